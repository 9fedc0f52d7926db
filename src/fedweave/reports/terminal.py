"""The command line's view of a run: its progress, and its result."""

import shlex
import signal
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedweave.accounts.document import plain_text, print_line
from fedweave.core.text import counted
from fedweave.core.types import Values
from fedweave.experiment.config import Config, load
from fedweave.experiment.runs.files import CONFIG, METRICS, read_table
from fedweave.metrics.selection import (
    ALL_EXAMPLES,
    ALONE,
    BESIDE,
    CHOSEN_ROUND,
    CROSSING,
    LAST_ROUND,
    MEMBER_MEAN,
    OF_RANKS,
    PLAIN,
    RANKS_SAMPLED,
    REFERENCE,
    RMSE,
    RMSE_OF_MEAN,
    WORDS_OF_PLACES,
    WORST_MEMBER,
    headline,
    of_members,
    of_result,
    rank,
    sample_words,
    selection_metric_of,
    title_of,
)
from fedweave.reports.absences import absence_sentence, long_absence_sentence
from fedweave.reports.notes import (
    GLOBAL_TEST,
    RunFacts,
    alerts_clause,
    fairest_notes,
    fallback_reason,
    gap_notes,
    intervals,
    members_clause,
    notes,
    people_sentence,
)
from fedweave.reports.verdict import SHELVES, member_values, shelf_sentences, verdict_of

if TYPE_CHECKING:  # the command line imports this module, and should start quickly
    import pyarrow as pa

    from fedweave.experiment.runs.checkpoint import Checkpoint
    from fedweave.experiment.runs.saving import Ready
    from fedweave.reports.cells import ResultTable as Cells

# Where the output is not a terminal:
LINES = 20  # progress lines of a run
LINES_ALONE = 4  # progress lines of the same model at each member alone
WIDTH = 160  # of tables
# Metrics shown below a selection metric of ranks; other selection metrics have `BESIDE`.
_BESIDE_RANKS = ("hits_at_10", "auc", "average_precision")
_GAPS = ("sp", "eo", "equalised_odds", "tradeoff_accuracy", "tradeoff_auc", "tradeoff_skill")


def screen(quiet: bool = False) -> Console:
    """Where results go: wide enough for every table when it is not a terminal."""
    console = Console(quiet=quiet, emoji=False)  # "mine.py:A" is a plug-in, no picture of a letter
    return console if console.is_terminal else Console(quiet=quiet, emoji=False, width=WIDTH)


class Terminal:
    """Shows a run on `console`: a bar on a terminal, plain lines elsewhere (see `experiment.runs.run.RunObserver`)."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._rounds = self._done = 0
        self._last = ""  # headline of the last evaluation

    def begin(self, config: Config, built: "Ready", directory: Path, done: int) -> None:
        """The header, the clients, and where training starts."""
        from fedweave.reports.clients import header  # imports torch, which the result of a run does not need

        self._rounds, self._done = config.general.rounds, done
        header(self._console, config, built)
        if done:
            self._console.print(f"continuing after round {done} of {self._rounds}", highlight=False)
        if self._console.is_terminal:
            columns = (
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}", markup=False),
                TimeRemainingColumn(),
            )
            self._bar = Progress(TextColumn("{task.description}"), *columns, console=self._console)
            self._task = self._bar.add_task("rounds", total=self._rounds, completed=done, note="")
            self._bar.start()

    def step(self, reached: "Checkpoint") -> None:
        """One more round."""
        note = f"{reached.seconds / reached.round:.3g} s/round"
        score = headline(reached.summary)
        if score:
            note += f", {score}"
            name = title_of(selection_metric_of(reached.summary))
            self._last = f", {name} after round {reached.round}:{score.removeprefix(name)}"
        else:
            note += self._last
        if self._bar is not None:
            self._bar.update(self._task, completed=reached.round, note=note)
        elif reached.round == self._rounds or reached.round % max(1, self._rounds // LINES) == 0:
            self._console.print(f"round {reached.round}/{self._rounds}  {note}", highlight=False, soft_wrap=True)

    def alone(self, done: int, rounds: int) -> None:
        """One more round of the same model at each member alone, with a bar of its own."""
        words = f"{WORDS_OF_PLACES[ALONE]}, the same model at each member"
        if self._bar is None:
            if done % max(1, rounds // LINES_ALONE) == 0:
                self._console.print(f"{words}, round {done}/{rounds}", highlight=False, soft_wrap=True)
        elif done:
            self._bar.update(self._task, completed=done)
        else:
            self._task = self._bar.add_task("alone", total=rounds, note=words)

    def stopping(self, number: int) -> None:
        """Print what a first Ctrl-C does."""
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        self._console.print(f"{name}: finishing this round and saving; once more to stop at once", highlight=False)

    def end(self) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.stop()


def show_result(console: Console, summary: Values, directory: Path, verbose: bool = False) -> None:
    """Print the result on the test split first, then cost, traffic, privacy and what to do next.

    The result is the selection metric, the member that the model serves worst, and references to compare with; of the
    round that validation chose, with the last round beside it. With `verbose` it prints all metrics.
    """
    metrics, metric = of_result(summary), selection_metric_of(summary["metrics"])
    rows = read_table(directory, METRICS) if (directory / METRICS).is_file() else None

    # 1. The result, and what a reader has to know about it.
    warning = "" if rows is None else long_absence_sentence(rows)
    if warning:
        console.print(f"[bold red]{plain_text(warning)}[/]", highlight=False, soft_wrap=True)
    console.print(_result_table(summary, rows))
    if verbose:
        console.print(Columns(_score_tables(metrics)))
    verdict = verdict_of(summary, rows)
    if verdict is not None:
        style = "green" if verdict.sign > 0 else "yellow"
        words = f"[bold {style}]{plain_text(verdict.sentence)}[/] {plain_text(verdict.tools_sentence)}"
        console.print(words.strip(), highlight=False)
    members = members_clause(metrics, summary.get("members", summary.get("clients")))
    for sentence in (members, alerts_clause(metrics, summary.get("classes") or ()), intervals(metrics)):
        if sentence:
            print_line(console, sentence)
    absences = "" if rows is None else absence_sentence(rows)
    config = load(directory / CONFIG) if (directory / CONFIG).is_file() else {}
    facts = RunFacts.of_summary(summary, config)
    sentences = [*notes(metrics, facts).values(), *shelf_sentences(summary), absences]
    _print_notes(console, filter(None, sentences))

    # 2. Two groups of people.
    if "groups/global/mae_signed" in metrics:
        table = _table("between groups", ("group 0", "group 1", "difference"))
        for name, words in {"mae": "mean absolute error", "bias": "mean error"}.items():
            values = [metrics.get(f"groups/global/{name}_{end}") for end in ("group0", "group1", "signed")]
            table.add_row(words, *map(_number, values))
        console.print(table)
    if "groups/median/sp_undefined" in metrics:
        heads = ("global", "noise floor", "signed", "median", "undefined at", "predicted", "favorable")
        table = _table("between groups", heads)
        shares = [_number(metrics.get(f"groups/global/{name}")) for name in ("predicted", "favorable")]
        for name in _GAPS:
            if f"groups/median/{name}_undefined" in metrics:
                keys = (f"global/{name}", f"global/{name}_floor", f"global/{name}_signed", f"median/{name}")
                cells = [_number(metrics.get(f"groups/{key}")) for key in keys]
                undefined = f"{metrics[f'groups/median/{name}_undefined']:.0f} clients"
                table.add_row(name, *cells, undefined, *shares)
        console.print(table)
        people = people_sentence(summary.get("groups") or ())
        if people:
            print_line(console, people)
        _print_notes(console, gap_notes(metrics).values())

    # 3. The rounds that validation chose.
    if "stopped" in summary:
        print_line(console, summary["stopped"])
    if "chosen_round" in summary:
        print_line(
            console, f"{CHOSEN_ROUND} {summary['chosen_round']:,}, by {MEMBER_MEAN} validation {title_of(metric)}"
        )
    if "best_fair/round" in metrics:
        by = "fairest by validation"
        if fallback_reason(metrics):
            by = f"best by validation {title_of(metric)}"
        accuracy = _number(metrics.get("best_fair/global/accuracy"))
        sp, eo = (_number(metrics.get(f"best_fair/groups/global/{name}")) for name in ("sp", "eo"))
        words = f"after round {metrics['best_fair/round']}, test accuracy {accuracy}, SP {sp}, EO {eo}"
        console.print(f"{by}: {words}", highlight=False)
        _print_notes(console, fairest_notes(metrics).values())

    # 4. Cost, traffic, privacy, the files and what to do next.
    cost = f"{counted(summary['rounds'], 'round')} in {summary['seconds']:.1f} s"
    cost += f" ({summary['seconds_per_round']:.3g} s each), {summary['peak_rss_mb']:.0f} MB at peak"
    if "alone_seconds" in summary:
        cost += f"; {WORDS_OF_PLACES[ALONE]} {summary['alone_seconds']:.1f} s more"
    traffic = f"clients sent {decimal(summary['bytes_up'])}, received {decimal(summary['bytes_down'])}"
    traffic += f", sent {decimal(summary['bytes_peer'])} to each other" if "bytes_peer" in summary else ""
    if "bytes_evaluation" in summary:
        ways = "all three" if "bytes_peer" in summary else "both"
        traffic += f" ({decimal(summary['bytes_evaluation'])} of {ways} for evaluation)"
    epsilons = [bound["epsilon"] for bound in summary.get("privacy", ()) if bound.get("epsilon") is not None]
    privacy = f"ε up to {max(epsilons):.3g}" if epsilons else "no noise was added to what members sent"
    folder = shlex.quote(str(directory))
    lines = [("cost", cost), ("traffic", traffic), ("privacy", privacy), ("files", str(directory))]
    lines.append(("next", f"fedweave report {folder}   a page to read"))
    lines.append(("", f"fedweave ledger {folder}   what left each member"))
    for head, text in lines:
        print_line(console, f"{head:<8}  {text}")


def _print_notes(console: Console, sentences: Iterable[str]) -> None:
    for sentence in sentences:
        console.print(f"[bold yellow]note: {plain_text(sentence)}[/]", highlight=False, soft_wrap=True)


def _table(title: str, heads: Iterable[str]) -> Table:
    table = Table(title, box=SIMPLE_HEAD)
    for head in heads:
        table.add_column(head, justify="right")
    return table


def _result_table(summary: Values, rows: "pa.Table | None") -> Table:
    """The most important metrics on the test split, and the references to compare them with.

    rows: of metrics.parquet, which name the member that the model serves worst.
    """
    metrics, metric = of_result(summary), selection_metric_of(summary["metrics"])
    size, chosen = summary.get(GLOBAL_TEST), summary.get("chosen_round")
    heads = (ALL_EXAMPLES, MEMBER_MEAN, WORST_MEMBER)
    title = f"test after {counted(summary['rounds'], 'round')}"
    if chosen is not None:
        title = f"test, {CHOSEN_ROUND} {chosen:,}"
    table = _table(title, heads)

    def add(head: str, keys: str, worst: str = "") -> None:
        on_all, mean = (metrics.get(keys.format(kind)) for kind in ("global", "local"))
        if (on_all, mean) == (None, None):
            return
        if size and on_all is not None:  # "global/…" is of the global test set, which no member has
            table.add_row(head, _short(metrics.get(keys.format("pooled"))), _short(mean), worst)
            indent = " " * (len(head) - len(head.lstrip()) + 2)
            table.add_row(f"{indent}global test set ({size:,})", _short(on_all), "", "")
        else:
            table.add_row(head, _short(on_all), _short(mean), worst)

    def add_one(head: str, key: str) -> None:
        if metrics.get(key) is not None:
            table.add_row(head, _short(metrics[key]), "", "")

    def add_mean(head: str, key: str) -> None:
        if metrics.get(key) is not None:
            table.add_row(head, "", _short(metrics[key]), "")

    add(title_of(metric), f"{{}}/{metric}", _worst_member(metrics, metric, rows, chosen))
    if not size:
        add_one(f"  {WORDS_OF_PLACES['pooled']}", f"pooled/{metric}")
    if chosen is not None and chosen != summary["rounds"]:
        place = "pooled" if size else "global"
        last = [summary["metrics"].get(f"{kind}/{metric}") for kind in (place, "local")]
        sampled = bool(summary["metrics"].get(RANKS_SAMPLED))
        words = f"{LAST_ROUND} {summary['rounds']:,}{sample_words(metric, sampled)}"
        table.add_row(f"  {words}", *map(_short, last), "")
    if metric == PLAIN:
        add("  the most frequent class", "{}/majority")
    if metric == RMSE:
        add("  the training mean", f"{{}}/{RMSE_OF_MEAN}")
    add_mean(f"  {WORDS_OF_PLACES[ALONE]}", f"{ALONE}/local/{metric}")
    for place, words in SHELVES.items():
        add_mean(f"  {words}", f"{place}/{metric}")
    for kind in _references(metrics):
        add_one(f"  {kind.replace('_', ' ')}", f"{REFERENCE}/{kind}/{metric}")
    for name in dict.fromkeys((metric, "auc", "average_precision")):
        add_one(f"{title_of(name)}, {WORDS_OF_PLACES[CROSSING]}", f"{CROSSING}/{name}")
    for name in _BESIDE_RANKS if metric in OF_RANKS else BESIDE:
        if name != metric:
            add(title_of(name), f"{{}}/{name}")
            if not size:
                add_one(f"  {WORDS_OF_PLACES['pooled']}", f"pooled/{name}")
    return table


def _references(metrics: Values) -> dict[str, None]:
    """The scores of links without a model, in order."""
    return dict.fromkeys(key.split("/")[1] for key in metrics if key.startswith(f"{REFERENCE}/"))


def _worst_member(metrics: Values, metric: str, rows: "pa.Table | None", round: int | None) -> str:
    """The result of the member that the model serves worst, with its name where the run's files have it. round: the
    round that the result is of; None for the last.

    Without these files the unit is "sd" where members are compared in units of their own standard deviation.
    """
    results = {} if rows is None else member_values(rows, metric, round)
    if results:
        worst = min(results, key=lambda client: rank(metric, results[client]))
        return f"{_short(results[worst])} {worst}"
    fair = of_members(metric)
    value = metrics.get(f"fairness/worst_{fair}")
    if value is None:
        return ""
    return _short(value) + ("" if fair == metric else " sd")


def _score_tables(metrics: Values) -> list[Table]:
    """The final models on the test split, and how evenly they serve members."""
    places = dict[str, dict[str, float]]()  # {place: {name: value}}
    for key, value in metrics.items():
        place, _, name = key.partition("/")
        places.setdefault(place, {})[name] = value
    kinds = ("global", "local", "trained") if "trained" in places else ("global", "local")
    table = _table("test split", [WORDS_OF_PLACES[kind] for kind in kinds])

    def add(head: str, keys: str) -> None:
        values = [metrics.get(keys.format(kind)) for kind in kinds]
        if any(value is not None for value in values):
            table.add_row(head, *map(_number, values))

    for name in dict.fromkeys(key.partition("/")[2] for key in metrics if key.partition("/")[0] in kinds):
        if name != "classes_predicted":
            table.add_row(name, *(_number(metrics.get(f"{kind}/{name}")) for kind in kinds))
    for name, value in places.get("pooled", {}).items():
        table.add_row(f"{name}, {WORDS_OF_PLACES['pooled']}", _number(value))
    metric = selection_metric_of(metrics)
    for name in dict.fromkeys((metric, "auc")):
        for place, words in SHELVES.items():
            value = metrics.get(f"{place}/{name}")
            if value is not None:
                table.add_row(f"{name}, {words}", "", _number(value))
    for kind in _references(metrics):
        for name in dict.fromkeys((metric, "auc", "average_precision")):
            table.add_row(f"{name}, {kind.replace('_', ' ')}", _number(metrics.get(f"{REFERENCE}/{kind}/{name}")))
    for name, value in places.get(CROSSING, {}).items():
        table.add_row(f"{name}, {WORDS_OF_PLACES[CROSSING]}", _number(value))
    tables = [table]
    if "fairness" in places:
        tables.append(Table("fairness", "", box=SIMPLE_HEAD))
        for name, value in places["fairness"].items():
            tables[1].add_row(name, _number(value))
    return tables


def show_rows(console: Console, rows: Sequence[Mapping[str, str]], words: Container[str]) -> None:
    """A table of rows {column: text}; the columns `words` are on the left, numbers on the right."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0))
    for name in rows[0]:
        table.add_column(name, justify="left" if name in words else "right")
    for row in rows:
        table.add_row(*map(plain_text, row.values()))
    console.print(table)


def show_cells(console: Console, result: "Cells") -> None:
    """A table of the report (`report.cells.ResultTable`)."""
    table = Table(box=SIMPLE_HEAD)
    for at, head in enumerate(result.head):
        table.add_column(head, justify="left" if at < result.words else "right")
    for row in result.rows:
        table.add_row(*(plain_text(f"{cell.text} {cell.note}".strip()) for cell in row))
    console.print(table)


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"

"""The command line's view of a run: its progress, and its result."""

import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedweave.accounts.document import unmarked
from fedweave.core.text import counted
from fedweave.core.types import Values
from fedweave.experiment.config import Config
from fedweave.experiment.runs.files import METRICS, read_table
from fedweave.metrics.selection import (
    BESIDE,
    CROSSING,
    OF_POSITIVE,
    OF_RANKS,
    OF_SCORES,
    PLAIN,
    POSITIVES,
    REFERENCE,
    RMSE,
    RMSE_OF_MEAN,
    WITHOUT_GRAPH,
    headline,
    of_members,
    selection_metric_of,
    title_of,
)
from fedweave.reports.absences import absent, mostly
from fedweave.reports.notes import (
    RunFacts,
    alerts_clause,
    fairest_notes,
    fallback_reason,
    gap_notes,
    global_test_title,
    hits,
    intervals,
    members_clause,
    notes,
    people_sentence,
)

if TYPE_CHECKING:  # the command line imports this module, and should start quickly
    import pyarrow as pa

    from fedweave.experiment.runs.checkpoint import Checkpoint
    from fedweave.experiment.runs.saving import Ready
    from fedweave.reports.cells import ResultTable as Cells

# Where the output is not a terminal:
LINES = 20  # progress lines of a run
WIDTH = 160  # of tables
FAIREST = ("global/accuracy", "groups/global/sp", "groups/global/eo")  # what the result shows of the fairest round


def _absences(directory: Path, tell: "Callable[[pa.Table], str]" = absent) -> list[str]:
    """A note on clients that were missing from rounds."""
    sentence = tell(read_table(directory, METRICS)) if (directory / METRICS).is_file() else ""
    return [sentence] if sentence else []


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
            self._bar = Progress(TextColumn("rounds"), *columns, console=self._console)
            self._task = self._bar.add_task("rounds", total=self._rounds, completed=done, note="")
            self._bar.start()

    def step(self, reached: "Checkpoint") -> None:
        """One more round."""
        note = f"{reached.seconds / reached.round:.3g} s/round"
        if known := headline(reached.summary):
            note += f", {known}"
            name = title_of(selection_metric_of(reached.summary))
            self._last = f", {name} after round {reached.round}{known.removeprefix(name)}"
        else:
            note += self._last
        if self._bar is not None:
            self._bar.update(self._task, completed=reached.round, note=note)
        elif reached.round == self._rounds or reached.round % max(1, self._rounds // LINES) == 0:
            self._console.print(f"round {reached.round}/{self._rounds}  {note}", highlight=False, soft_wrap=True)

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

    The result is the selection metric, the member that the model serves worst, and references to compare with. With
    `verbose` it prints all metrics.
    """
    metrics = summary["metrics"]
    for sentence in _absences(directory, mostly):
        console.print(f"[bold red]{unmarked(sentence)}[/]", highlight=False, soft_wrap=True)
    console.print(_result(summary, directory))
    if verbose:
        console.print(Columns(_scores(metrics)))
    if some := members_clause(metrics, summary.get("members", summary.get("clients"))):
        console.print(some, highlight=False, soft_wrap=True, markup=False)
    if alerts := alerts_clause(metrics, summary.get("classes") or ()):
        console.print(alerts, highlight=False, soft_wrap=True, markup=False)
    if wide := intervals(metrics):
        console.print(wide, highlight=False, soft_wrap=True, markup=False)
    for note in (*notes(metrics, RunFacts.of_summary(summary)).values(), *_absences(directory)):
        console.print(f"[bold yellow]note: {unmarked(note)}[/]", highlight=False, soft_wrap=True)
    if "groups/global/mae_signed" in metrics:
        console.print(_errors_of_groups(metrics))
    if "groups/median/sp_undefined" in metrics:
        console.print(_between_groups(metrics))
        if people := people_sentence(summary.get("groups") or ()):
            console.print(people, highlight=False, soft_wrap=True, markup=False)
        for note in gap_notes(metrics).values():
            console.print(f"[bold yellow]note: {unmarked(note)}[/]", highlight=False, soft_wrap=True)
    if "stopped" in summary:
        console.print(summary["stopped"], highlight=False, soft_wrap=True, markup=False)
    if "best_val/round" in metrics:
        console.print(_chosen(metrics, selection_metric_of(metrics)), highlight=False, soft_wrap=True)
    if "best_fair/round" in metrics:
        _show_fairest(console, metrics)
    for head, text in _account(summary, directory):
        console.print(f"{head:<8}  {text}", highlight=False, soft_wrap=True, markup=False)


def _result(summary: Values, directory: Path) -> Table:
    """The most important metrics on the test split, and the references to compare them with."""
    metrics, metric = summary["metrics"], selection_metric_of(summary["metrics"])
    rounds = counted(summary["rounds"], "round")
    table = Table(f"test after {rounds}", box=SIMPLE_HEAD)
    for heading in (global_test_title(summary), "member mean", "worst member"):
        table.add_column(heading, justify="right")
    kinds = ("global", "local")

    def row(head: str, keys: str, worst: str = "") -> None:
        values = [metrics.get(f"{keys.format(kind)}") for kind in kinds]
        if any(value is not None for value in values):
            table.add_row(head, *map(_short, values), worst)

    def together(name: str) -> None:
        if (value := metrics.get(f"pooled/{name}")) is not None:
            table.add_row("  members ranked together", _short(value), "", "")

    row(title_of(metric), f"{{}}/{metric}", _worst(metrics, metric, directory))
    together(metric)
    if "best_val/round" in metrics:
        row(f"  in the best round, {metrics['best_val/round']:g}", f"best_val/{{}}/{metric}")
    if metric == PLAIN:
        row("  the most frequent class", "{}/majority")
    if metric == RMSE:
        row("  the training mean", f"{{}}/{RMSE_OF_MEAN}")
    row("  a regression without graph", f"{WITHOUT_GRAPH}/{{}}/{metric}")
    for kind in dict.fromkeys(key.split("/")[1] for key in metrics if key.startswith(f"{REFERENCE}/")):
        if (value := metrics.get(f"{REFERENCE}/{kind}/{metric}")) is not None:
            table.add_row(f"  {kind.replace('_', ' ')}", _short(value), "", "")
    for name in dict.fromkeys((metric, "auc", "average_precision")):
        if (value := metrics.get(f"{CROSSING}/{name}")) is not None:
            table.add_row(f"{title_of(name)}, links between members", _short(value), "", "")
    for name in dict.fromkeys((metric, *(_BESIDE_RANKS if metric in OF_RANKS else BESIDE))):
        if name != metric:
            row(title_of(name), f"{{}}/{name}")
            together(name)
    return table


# Metrics shown below a selection metric of ranks; other selection metrics have `BESIDE`:
_BESIDE_RANKS = ("hits_at_10", "auc", "average_precision")


def _worst(metrics: Values, metric: str, directory: Path) -> str:
    """The result of the member that the model serves worst, with its name where the run's files have it.

    The unit is "sd" where members are compared in units of their own standard deviation.
    """
    fair = of_members(metric)
    value = metrics.get(f"fairness/worst_{fair}")
    if value is None:
        return ""
    unit = "" if fair == metric else " sd"
    return f"{_short(value)}{unit} {_whose(fair, value, directory)}".strip()


def _whose(metric: str, value: float, directory: Path) -> str:
    """The member with this low test score in the last round; "" if the files do not show it."""
    import pyarrow.compute as pc

    if not (directory / METRICS).is_file():
        return ""
    rows = read_table(directory, METRICS)
    rows = rows.filter(pc.and_(pc.equal(rows["metric"], metric), pc.equal(rows["split"], "test")))
    last = rows.filter(pc.and_(pc.equal(rows["round"], pc.max(rows["round"])), pc.equal(rows["value"], value)))
    return str(last["client"][0]) if len(last) else ""


def _account(summary: Values, directory: Path) -> Iterator[tuple[str, str]]:
    """(what, a line) on cost, traffic, privacy, the files and what to do next."""
    each = f"{summary['seconds_per_round']:.3g} s each"
    cost = f"{counted(summary['rounds'], 'round')} in {summary['seconds']:.1f} s ({each})"
    yield "cost", f"{cost}, {summary['peak_rss_mb']:.0f} MB at peak"
    traffic = f"clients sent {decimal(summary['bytes_up'])}, received {decimal(summary['bytes_down'])}"
    traffic += f", sent {decimal(summary['bytes_peer'])} to each other" if "bytes_peer" in summary else ""
    yield "traffic", traffic + _for_evaluation(summary)
    spent = [one["epsilon"] for one in summary.get("privacy", ()) if one.get("epsilon") is not None]
    yield "privacy", f"ε up to {max(spent):.3g}" if spent else "no noise was added to what members sent"
    yield "files", str(directory)
    for head, command, what in (("next", "report", "a page to read"), ("", "ledger", "what left each member")):
        yield head, f"fedweave {command} {shlex.quote(str(directory))}   {what}"


def _scores(metrics: Values) -> list[Table]:
    """The final models on the test split, and how evenly they serve members."""
    kinds = ("global", "local", *(["trained"] if any(key.startswith("trained/") for key in metrics) else []))
    names = dict.fromkeys(key.partition("/")[2] for key in metrics if key.partition("/")[0] in kinds)
    table = Table("test split", box=SIMPLE_HEAD)
    for heading in kinds:
        table.add_column(heading, justify="right")
    for name in [name for name in names if name != "classes_predicted"]:
        table.add_row(name, *(_number(metrics.get(f"{kind}/{name}")) for kind in kinds))
    for name in (key.removeprefix("pooled/") for key in metrics if key.startswith("pooled/")):
        table.add_row(f"{name}, pooled", _number(metrics[f"pooled/{name}"]))
    metric, chosen = selection_metric_of(metrics), "best_val/round" in metrics
    for name in dict.fromkeys((metric, "auc")):
        if (values := [metrics.get(f"{WITHOUT_GRAPH}/{kind}/{name}") for kind in kinds]) != [None] * len(kinds):
            table.add_row(f"{name}, features only", *map(_number, values))
    for kind in dict.fromkeys(key.split("/")[1] for key in metrics if key.startswith(f"{REFERENCE}/")):
        for name in dict.fromkeys((metric, "auc", "average_precision")):
            table.add_row(f"{name}, {kind.replace('_', ' ')}", _number(metrics.get(f"{REFERENCE}/{kind}/{name}")))
    for name in (key.partition("/")[2] for key in metrics if key.startswith(f"{CROSSING}/")):
        table.add_row(f"{name}, between members", _number(metrics[f"{CROSSING}/{name}"]))
    for name in dict.fromkeys((metric, *(OF_POSITIVE if metric in OF_POSITIVE else ()))) if chosen else ():
        best = (_number(metrics.get(f"best_val/{kind}/{name}")) for kind in kinds)
        table.add_row(f"{name}, best val", *best)
    tables = [table]
    fairness = {key.partition("/")[2]: value for key, value in metrics.items() if key.startswith("fairness/")}
    if fairness:
        tables.append(Table("fairness", "", box=SIMPLE_HEAD))
        for name, value in fairness.items():
            tables[1].add_row(name, _number(value))
    return tables


def _chosen(metrics: Values, metric: str) -> str:
    """Which round is the best on validation examples, and what its model finds where a positive class is looked for."""
    which = f"best mean validation {title_of(metric)} after round {metrics['best_val/round']}"
    shown = (metric, "recall_at_1", "recall") if metric in OF_POSITIVE else ()
    of = hits(metrics.get("best_val/pooled/recall_at_1"), metrics.get(f"{POSITIVES}/test"))
    values = {name: metrics.get(f"best_val/pooled/{name}") for name in dict.fromkeys(shown)}
    words = {name: title_of(name) + " from its threshold on" * (name not in OF_SCORES) for name in values}
    counts = {"recall_at_1": f" ({of})"} if of else {}
    known = ", ".join(
        f"{words[name]} {value:.4f}{counts.get(name, '')}" for name, value in values.items() if value is not None
    )
    return f"{which}; pooled: {known}" if known else which


def _show_fairest(console: Console, metrics: Values) -> None:
    """Print the test result of the fairest round, or of the round shown instead, and notes on it."""
    fair = (_number(metrics.get(f"best_fair/{key}")) for key in FAIREST)
    words = "after round {}, test accuracy {}, SP {}, EO {}".format(metrics["best_fair/round"], *fair)
    by = (
        f"best by validation {title_of(selection_metric_of(metrics))}"
        if fallback_reason(metrics)
        else "fairest by validation"
    )
    console.print(f"{by}: {words}", highlight=False)
    for note in fairest_notes(metrics).values():
        console.print(f"[bold yellow]note: {unmarked(note)}[/]", highlight=False, soft_wrap=True)


def _for_evaluation(summary: Values) -> str:
    """How much of the traffic in all directions evaluation took; "" where that is not known."""
    if "bytes_evaluation" not in summary:
        return ""
    every = "all three" if "bytes_peer" in summary else "both"
    return f" ({decimal(summary['bytes_evaluation'])} of {every} for evaluation)"


def _between_groups(metrics: Values) -> Table:
    """The gaps between groups of people on the test split, each with the gap that chance would show."""
    table = Table("between groups", box=SIMPLE_HEAD)
    for heading in ("global", "noise floor", "signed", "median", "undefined at", "predicted", "favorable"):
        table.add_column(heading, justify="right")
    shares = [_number(metrics.get(f"groups/global/{name}")) for name in ("predicted", "favorable")]
    rows = ("sp", "eo", "equalised_odds", "tradeoff_accuracy", "tradeoff_auc", "tradeoff_skill")
    for name in (name for name in rows if f"groups/median/{name}_undefined" in metrics):
        keys = (f"global/{name}", f"global/{name}_floor", f"global/{name}_signed", f"median/{name}")
        undefined = f"{metrics[f'groups/median/{name}_undefined']:.0f} clients"
        table.add_row(name, *(_number(metrics.get(f"groups/{key}")) for key in keys), undefined, *shares)
    return table


def _errors_of_groups(metrics: Values) -> Table:
    """The mean errors of two groups of people where numbers are predicted."""
    table = Table("between groups", box=SIMPLE_HEAD)
    for heading in ("group 0", "group 1", "difference"):
        table.add_column(heading, justify="right")
    for name, words in {"mae": "mean absolute error", "bias": "mean error"}.items():
        keys = (f"groups/global/{name}_{end}" for end in ("group0", "group1", "signed"))
        table.add_row(words, *(_number(metrics.get(key)) for key in keys))
    return table


def show_cells(console: Console, result: "Cells") -> None:
    """A table of the report (`report.cells.ResultTable`)."""
    table = Table(box=SIMPLE_HEAD)
    for at, head in enumerate(result.head):
        table.add_column(head, justify="left" if at < result.words else "right")
    for row in result.rows:
        table.add_row(*(unmarked(f"{cell.text} {cell.note}".strip()) for cell in row))
    console.print(table)


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"

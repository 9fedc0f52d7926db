"""What a tuning leaves: a table on the terminal, a page, all trials as CSV, and `tuned.toml`, which `fedweave run`
takes. Nothing of it has a number from test examples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fedweave.accounts.document import Document as PageDocument
from fedweave.accounts.document import Section, grid
from fedweave.core.shown import Shown, Words, page
from fedweave.core.text import counted
from fedweave.core.types import Record, Values
from fedweave.experiment.config import Config, Document, dumps, resolve
from fedweave.experiment.runs.files import write, write_csv, write_page
from fedweave.metrics.selection import lower, rank, title_of
from fedweave.reports.cells import NONE, ResultTable, number, row_of
from fedweave.reports.colors import run_tone
from fedweave.reports.conditions import settings_text
from fedweave.reports.html import figure_html
from fedweave.reports.pages import html
from fedweave.reports.panels import Cloud, Figure, LineSeries, Panel, legend_of
from fedweave.reports.terminal import screen, show_cells
from fedweave.sweeps.in_python import name_and_document, setting_texts, write_document
from fedweave.sweeps.plan import algorithm_documents, parse_seeds
from fedweave.sweeps.tuning import FAILED, STOPPED, Tuning, TuningTrial, run_tuning

TUNED, PAGE, TRIALS = "tuned.toml", "tune.html", "trials.csv"
ROWS = 10  # of the table on the terminal
AS_IT_IS = "the experiment as it is"


@dataclass(frozen=True, repr=False)
class Tuned(Shown):
    """The result of a tuning.

    config:    the experiment with the best setting, which `fedweave.run` takes.
    trials:    a row per trial: its number, the selection metric on validation examples, rounds, seconds, outcome, why
               it failed, and a column for each setting that differs from the experiment's in some trial.
    sentences: what was found, and what it cost.
    directory: has `tuned.toml`, the page `tune.html`, `trials.csv` and the study.
    """

    config: Config
    trials: pa.Table
    sentences: tuple[str, ...]
    directory: Path
    tuning: Tuning

    def facts(self) -> dict[str, object]:
        """How many trials there were, the best value on validation examples, and its setting."""
        best = self.tuning.best
        facts: dict[str, object] = {"": counted(len(self.trials), "trial")}
        facts |= {f"validation {title_of(self.tuning.metric)}": best.value}
        return facts | {"best": Words(_setting_text(best)), "directory": str(self.directory)}

    def _repr_html_(self) -> str:
        table = result_table(self.tuning)
        rows = [[cell.text for cell in row] for row in table.rows]
        return page(" ".join(self.sentences), rows, table.head)


def tune(
    experiment: "str | Path | Document | Config",
    *,
    minutes: float | None = None,
    trials: int | None = None,
    seeds: str | Sequence[int] = (0,),
    settings: Values | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> Tuned:
    """Find a good model and training settings for an experiment by its validation examples, as `fedweave tune` does.
    The same call goes on where an earlier one was interrupted.

    experiment: the path of a TOML file, its content as a dict, or a `Config`. minutes, trials: the budget, of all calls
    together; 20 minutes without either. seeds: of each trial, numbers or "0-2". settings: {"model.hidden": 32} in place
    of the experiment's. out: a folder, by default tuned/<experiment>. overwrite: begin again. progress: show it.

    Raises:
        UserError: a setting is not valid, the folder has another study, or there are no validation examples.
    """
    stem, document = name_and_document(experiment)
    folder = Path("tuned") / stem if out is None else Path(out).expanduser()
    if isinstance(experiment, str | Path):
        file = Path(experiment).expanduser()
    else:
        file = folder / "experiment.toml"
        write_document(file, document)
    seed_text = seeds if isinstance(seeds, str) else ",".join(map(str, seeds))
    console = screen(quiet=not progress)
    return tune_file(console, file, setting_texts(settings), folder, seed_text, trials, minutes, overwrite)


def tune_file(
    console: Console,
    file: Path,
    settings: Sequence[str],
    folder: Path,
    seeds: str,
    trials: int | None,
    minutes: float | None,
    overwrite: bool,
) -> Tuned:
    """Tune the experiment of a file (see `tune`); shows progress, and writes the result's files.

    settings: as in `fedweave run --set`. seeds: "0-4" or "0,3,7".
    """
    [document], _ = algorithm_documents(file, "", settings)
    with TuningProgress(console, trials) as watch:
        tuning = run_tuning(document, folder, parse_seeds(seeds), trials, minutes, watch, overwrite)
    sentences = describe(tuning)
    rows = trial_rows(tuning)
    write(folder / TUNED, lambda opened: opened.write(tuned_toml(tuning, file).encode()))
    write_page(folder / PAGE, _page(tuning, file, sentences))
    write_csv(folder / TRIALS, rows, spreadsheet=True)
    return Tuned(resolve(tuning.document), rows, tuple(sentences), folder, tuning)


def show(console: Console, tuned: Tuned) -> None:
    """Print a tuning's best trials, what was found, and its files."""
    table = result_table(tuned.tuning)
    show_cells(console, ResultTable(table.head, table.rows[:ROWS], table.words))
    more = len(table.rows) - ROWS
    for line in [f"and {counted(more, 'trial')} more on the page"] * (more > 0) + [*tuned.sentences]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    files = ", ".join(str(tuned.directory / name) for name in (TUNED, PAGE, TRIALS))
    console.print(f"files: {files}", highlight=False, markup=False, soft_wrap=True)


def describe(tuning: Tuning) -> list[str]:
    """Sentences on what was found and what it cost."""
    best, unchanged, title = tuning.best, tuning.trials[0], title_of(tuning.metric)
    before = "diverged" if unchanged.value is None else number(unchanged.value)
    found = f"No setting is better on validation examples than {AS_IT_IS}: {title} {before}."
    if best.number and best.value is not None:
        values = f"{number(best.value)} ({AS_IT_IS}: {before})"
        found = f"Best {title} on validation examples: {values}, with {_setting_text(best)}."
    outcomes = [trial.outcome for trial in tuning.trials]
    count, seeds = counted(len(outcomes), "trial"), counted(len(tuning.seeds), "seed")
    cost = (
        f"{count} of {seeds} took {tuning.seconds / 60:.1f} minutes; {outcomes.count(STOPPED)} stopped early, "
        f"{outcomes.count(FAILED)} failed."
    )
    chosen = "lowest" if lower(tuning.metric) else "highest"
    caution = (
        f"This is the {chosen} of {counted(len(outcomes), 'value')} on the same validation examples, so expect less on "
        "others. No test example was looked at: `fedweave run` does that once."
    )
    return [found, cost, caution]


def result_table(tuning: Tuning) -> ResultTable:
    """The trials, the best first, and failed ones last."""
    ordered = sorted(tuning.trials, key=lambda trial: (trial.outcome == FAILED, -_rank(tuning, trial), trial.number))
    rows = []
    for trial in ordered:
        value = NONE if trial.value is None else number(trial.value)
        cells = (str(trial.number), value, str(trial.rounds), f"{trial.seconds:.0f}", _outcome_text(trial))
        rows.append(row_of(_setting_text(trial), *cells))
    head = ("setting", "trial", f"validation {title_of(tuning.metric)}", "rounds", "seconds", "outcome")
    return ResultTable(head, tuple(rows))


def trial_rows(tuning: Tuning) -> pa.Table:
    """A row per trial (`Tuned.trials`)."""
    keys = list(dict.fromkeys(key for trial in tuning.trials for key in trial.setting))
    rows: list[Record] = []
    for trial in tuning.trials:
        row: Record = {"trial": trial.number, f"validation {tuning.metric}": trial.value, "rounds": trial.rounds}
        row |= {"seconds": trial.seconds, "outcome": trial.outcome, "reason": trial.reason}
        for key in keys:
            value = trial.setting.get(key, tuning.space.current.get(key))
            row[key] = None if value is None else str(value)
        rows.append(row)
    return pa.Table.from_pylist(rows)


def tuned_toml(tuning: Tuning, file: Path) -> str:
    """The experiment with the best setting, and where it comes from."""
    lines = [f"From `fedweave tune {file.name}`.", *describe(tuning)]
    lines.append(f"Seeds: {', '.join(map(str, tuning.seeds))}.")
    return "".join(f"# {line}\n" for line in lines) + "\n" + dumps(tuning.document)


def _page(tuning: Tuning, file: Path, sentences: Sequence[str]) -> str:
    """The page: the sentences, the values over trials, all trials, and the file to run."""
    table = result_table(tuning)
    rows = [dict(zip(table.head, [cell.text for cell in row], strict=True)) for row in table.rows]
    how = (
        "A trial is one setting, trained with every seed. It is stopped early at a ninth or a third of the rounds "
        "unless it is among the best third so far (successive halving). Values are of each trial's best round, mean "
        "over seeds."
    )
    sections = (
        Section("Trials", (how,), grid=grid(rows, ("setting", "outcome"))),
        Section("The experiment with the best setting", code=(tuned_toml(tuning, file),)),
    )
    document = PageDocument(f"Tuning of {file.stem}", lead=tuple(sentences), sections=sections)
    return html(document, str(figure_html(_figure(tuning), "trials")))


def _figure(tuning: Tuning) -> Figure:
    """Validation values over trials, and the best so far."""
    scored = [trial for trial in tuning.trials if trial.value is not None]
    numbers = [trial.number for trial in scored]
    values = [trial.value or 0.0 for trial in scored]
    best_so_far = np.minimum.accumulate if lower(tuning.metric) else np.maximum.accumulate
    marks = (
        Cloud("a trial", numbers, values, run_tone(1)),
        LineSeries("the best so far", numbers, best_so_far(np.array(values)).tolist(), run_tone(0)),
    )
    title = f"{title_of(tuning.metric)} on validation examples"
    return Figure((Panel(title, marks, below="trial"),), legend_of(marks))


def _rank(tuning: Tuning, trial: TuningTrial) -> float:
    return float("-inf") if trial.value is None else rank(tuning.metric, trial.value)


def _setting_text(trial: TuningTrial) -> str:
    return settings_text(trial.setting) if trial.setting else AS_IT_IS


def _outcome_text(trial: TuningTrial) -> str:
    return f"{trial.outcome}: {trial.reason.splitlines()[0]}" if trial.reason else trial.outcome


class TuningProgress:
    """Shows trials as they go: a bar on a terminal, else a line per trial. It is a context manager and a
    `TuningWatch`.

    trials: how many there will be, if that is known.
    """

    def __init__(self, console: Console, trials: int | None) -> None:
        self._console = console
        columns = (BarColumn(), TextColumn("{task.fields[note]}", markup=False), TimeElapsedColumn())
        self._bar = Progress(TextColumn("trials"), *columns, console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task("trials", total=trials, note="")

    def __enter__(self) -> "TuningProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, number: int, setting: Values) -> None:
        """Show what is tried."""
        self._bar.update(self._task, completed=number, note=f"{number}: {settings_text(setting) or AS_IT_IS}")

    def evaluate(self, number: int, round: int, value: float) -> None:
        """Show how far the trial is."""
        self._bar.update(self._task, note=f"{number}: {value:.4f} after round {round}")

    def end(self, trial: TuningTrial) -> None:
        """Show the trial's value, or why it failed."""
        if not self._console.is_terminal or trial.outcome == FAILED:
            value = NONE if trial.value is None else number(trial.value)
            words = (
                f"trial {trial.number}",
                value,
                _outcome_text(trial),
                f"{trial.seconds:.0f} s",
                _setting_text(trial),
            )
            self._console.print("  ".join(words), highlight=False, markup=False, soft_wrap=True)

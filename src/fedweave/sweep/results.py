"""The end of a sweep: its tables, a row per combination of settings with means over seeds, its page, charts, and what
papers need of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedweave.core.text import counted
from fedweave.errors import FedweaveError
from fedweave.experiment.config import Config, flat
from fedweave.experiment.runs.files import write
from fedweave.experiment.runs.own_metrics import function, of_run
from fedweave.metrics import judging
from fedweave.metrics.judging import PLAIN, WORDS
from fedweave.papers.grid import PlannedRun
from fedweave.papers.table import piped
from fedweave.report.cells import Cell, Table, measured, number
from fedweave.report.compare import headlines, over_conditions
from fedweave.report.conditions import Condition, conditions, said
from fedweave.report.gain import gains
from fedweave.report.html import Choice, render
from fedweave.report.reading import Group, Run, grouped, judged_alike, read_runs
from fedweave.report.terminal import show_cells
from fedweave.report.training import unlike
from fedweave.sweep import charts, choosing, paper

COLUMNS = {
    "best_val/val/{}": "best val",
    "best_val/local/{}": "test then",
    "global/{}": "final global test",
    "local/{}": "final local test",
    "fairness/worst_{}": "worst client",
}
OF_POSITIVE = {  # besides, where a metric of a positive class judges
    "best_val/pooled/{}": "pooled then",
    "best_val/pooled/recall_at_1": "recall at 1 %",
    "best_val/pooled/recall": "recall at threshold",
}
NOTE = (
    "{}, mean ± standard deviation over seeds. Choose settings by “best val”, the mean over clients of the "
    "validation {} in the round where it is best; “test then” is the mean over clients on test examples in that "
    "round. “Final” is after the last round: global, the mean over clients, and that of the client served worst."
)
APART = "The runs are judged by different metrics ([evaluation] metric), so that no setting can be chosen among them."
AFTER = {"pooled/auc": "pooled AUC", "within/auc": "AUC within members", "global/macro_f1": "macro F1"}


def headings(groups: Sequence[Group], own: Mapping[str, str]) -> dict[str, str]:
    """{metric: heading} of what tables show of such runs; own: of further columns."""
    metric = judged_alike(groups)
    named = COLUMNS | (OF_POSITIVE if metric in judging.OF_POSITIVE else {})
    columns = {name.format(metric): words for name, words in named.items()} if metric else AFTER
    return {**columns, **own, "seconds": "seconds"}


def results(groups: Sequence[Group], columns: Mapping[str, str]) -> Table:
    """A row for each group of runs that differ in the seed alone; columns: {metric: heading}."""
    shown = [name for name in columns if any(value is not None for group in groups for value in group.values(name))]
    rows = [
        (Cell(group.label), Cell(str(len(group.runs))), *(measured(group.values(name), number) for name in shown))
        for group in groups
    ]
    return Table(("run", "seeds", *(columns[name] for name in shown)), tuple(rows))


def told(groups: Sequence[Group], chosen: Sequence[choosing.Chosen] = ()) -> tuple[str, ...]:
    """What the numbers are, and by which to choose; chosen: what was, in every condition."""
    if not (metric := judged_alike(groups)):
        ways = dict.fromkeys(f"{WORDS[one.metric]} ({said(one.condition)})" for one in chosen)
        return (f"Each condition is judged by its own metric: {', '.join(ways)}.",) if ways else (APART,)
    words = WORDS[metric]
    return (NOTE.format("Accuracies" if metric == PLAIN else words[0].upper() + words[1:], words),)


def lost(runs: Sequence[PlannedRun], failed: Mapping[str, str], grid: Sequence[str]) -> list[str]:
    """A sentence for each run that failed, with its values of the grid's keys: the table has no row of it.

    failed: {name of the run: why}. grid: "section.key=value,value,…".
    """
    keys = [text.partition("=")[0].strip() for text in grid]
    return [f"{run.name}{_values(run, keys)} failed: {failed[run.name]}" for run in runs if run.name in failed]


def _values(run: PlannedRun, keys: Sequence[str]) -> str:
    """ " (key = value, …)" of those keys that a run has, or ""."""
    known = flat(run.config.plain())
    shown = ", ".join(f"{key} = {known[key]}" for key in keys if key in known)
    return f" ({shown})" if shown else ""


def markdown(found: Table, notes: Sequence[str], lost: Sequence[str], above: Sequence[str] = ()) -> str:
    """The table as Markdown, what is above it; its `notes` and the runs that are not in it below."""
    without = [f"Not in the table: {counted(len(lost), 'failed run')}."] if lost else []
    return "\n\n".join([*above, rows_of(found), *notes, *without, *(f"- {said}" for said in lost)]) + "\n"


def rows_of(found: Table) -> str:
    """A table as Markdown."""
    rule = ["---" if at < found.words else "---:" for at in range(len(found.head))]
    return piped(found.head, rule, *([cell.text for cell in row] for row in found.rows))


if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Asked:
    """What the command asked for. keys: of the grid. over: those of them to compare over. figures: where to draw.
    metrics: functions of one's own, by name. grid: {key or NAME:key: values as TOML, or a range}."""

    keys: tuple[str, ...]
    over: tuple[str, ...] = ()
    latex: bool = False
    csv: bool = False
    figures: Path | None = None
    metrics: tuple[str, ...] = ()
    grid: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse before anything runs what could not be drawn.

        Raises:
            UserError: matplotlib is not installed, or there is no such function.
        """
        for name in self.metrics:
            function(name)
        if self.figures is not None:
            charts.check()


def finish(
    console: "Console", folder: Path, runs: Sequence[PlannedRun], failed: Mapping[str, str], asked: Asked
) -> None:
    """Show and save what the runs that did not fail found.

    Raises:
        FedweaveError: all failed.
    """
    done = [run.directory for run in runs if run.name not in failed]
    if not done:
        raise FedweaveError(f"no run succeeded; the first says: {failed[runs[0].name]}")
    read = read_runs(done)
    own = _measured(read, {run.directory: run.config for run in runs}, asked.metrics)
    groups = grouped(read)
    columns = headings(groups, own)
    apart = choosing.conditions(asked.keys, asked.over)
    chosen = choosing.choose(groups, asked.keys, apart, asked.grid)
    rows, notes, gone = results(groups, columns), [*told(groups, chosen)], lost(runs, failed, asked.keys)
    show_cells(console, rows)
    above, choice, compared = list[str](), None, groups
    if asked.keys and chosen:
        best = choosing.table(chosen, columns)
        show_cells(console, best)
        about = [*choosing.told(chosen)]
        above = ["Settings chosen by validation:", rows_of(best)]
        choice = Choice(best, rows, (*notes, *about))
        notes += about
        compared = grouped([run for one in chosen for run in one.group.runs])
    found = conditions(compared, apart, choice is not None)
    above += _compared(console, compared, found)
    for note in (*notes, *(one for alike in choosing.by_condition(compared, apart) for one in unlike(alike))):
        console.print(note, highlight=False, markup=False)
    text = markdown(rows, notes, gone, [*above, *(["All:"] if above else [])])
    files = [folder / "sweep.md", folder / "report.html"]
    page = render([run for group in compared for run in group.runs], gone, choice, apart)
    for path, content in zip(files, (text, page), strict=True):
        _save(path, content)
    files += _for_papers(folder, groups, chosen, asked)
    console.print(f"files: {', '.join(map(str, files))}", highlight=False, soft_wrap=True, markup=False)


def _compared(console: "Console", groups: Sequence[Group], found: Sequence[Condition]) -> list[str]:
    """Show how groups of runs compare, in each condition and over all of several; the same as Markdown."""
    lines: list[str | Table] = over_conditions(found) if len(found) > 1 else []
    if len(found) < 2 <= len(groups):
        lines += headlines(groups, gains(groups))
    for line in lines:
        if isinstance(line, Table):
            show_cells(console, line)
        else:
            console.print(line, highlight=False, markup=False)
    return [rows_of(line) if isinstance(line, Table) else line for line in lines]


def _measured(runs: Sequence[Run], configs: Mapping[Path, Config], names: Sequence[str]) -> dict[str, str]:
    """Put what functions of one's own say of the runs' test examples into their summaries; {metric: heading}."""
    columns = dict[str, str]()
    for name in names:
        metric = function(name)
        for run in runs:
            found = of_run(run.directory, metric, config=configs[run.directory])
            values = {f"own/local/{found.name}": found.local, f"own/pooled/{found.name}": found.pooled}
            run.summary["metrics"] |= {key: value for key, value in values.items() if math.isfinite(value)}
            columns |= {f"own/local/{found.name}": f"{found.name}, test", f"own/pooled/{found.name}": "pooled"}
    return columns


def _for_papers(folder: Path, groups: Sequence[Group], chosen: Sequence[choosing.Chosen], asked: Asked) -> list[Path]:
    """What was asked for besides, and charts over numbers of the grid; the files written.

    Raises:
        FedweaveError: a table or figures are wanted, and nothing could be chosen.
    """
    if not chosen and (asked.latex or asked.figures is not None):
        raise FedweaveError(
            "--latex and --figures show what is best by validation, and these runs have no validation examples, or no "
            "metric that judges them all; --csv has all numbers."
        )
    over = charts.charts(chosen)
    files = [Path(path) for path in charts.draw(over, folder)]
    if asked.latex:
        files.append(_save(folder / "sweep.tex", paper.latex(chosen)))
    if asked.csv:
        files.append(_save(folder / "sweep.csv", paper.rows_of(groups, chosen, asked.keys)))
        if len({said(one.condition) for one in chosen}) > 1:
            files.append(_save(folder / "sweep-conditions.csv", paper.by_condition(chosen)))
    if asked.figures is not None:
        files += [Path(path) for path in charts.save([*over, *charts.over_rounds(chosen)], asked.figures)]
    return files


def _save(path: Path, text: str) -> Path:
    write(path, lambda file: file.write(text.encode()))
    return path

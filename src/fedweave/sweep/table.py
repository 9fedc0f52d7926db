"""What a sweep found: a row per combination of settings, means over seeds."""

from collections.abc import Mapping, Sequence

from fedweave.core.text import counted
from fedweave.experiment.config import flat
from fedweave.metrics import judging
from fedweave.metrics.judging import PLAIN, WORDS
from fedweave.papers.grid import PlannedRun
from fedweave.papers.table import piped
from fedweave.report.cells import Cell, Table, measured, number
from fedweave.report.reading import Group, judged_alike

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


def told(groups: Sequence[Group]) -> tuple[str, ...]:
    """What the numbers are, and by which to choose."""
    if not (metric := judged_alike(groups)):
        return (APART,)
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

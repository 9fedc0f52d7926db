"""What a sweep found: a row per combination of settings, means over seeds."""

from collections.abc import Mapping, Sequence

from fedweave.core.text import counted
from fedweave.experiment.config import flat
from fedweave.papers.grid import PlannedRun
from fedweave.papers.table import piped
from fedweave.report.cells import Cell, Table, measured, number
from fedweave.report.reading import Group

COLUMNS = {
    "best_val/val/accuracy": "best val",
    "best_val/local/accuracy": "test then",
    "global/accuracy": "final global test",
    "local/accuracy": "final local test",
    "fairness/worst_accuracy": "worst client",
    "seconds": "seconds",
}
OF_RARE = {  # where a class is rare
    "pooled/auc": "pooled AUC",
    "within/auc": "AUC within members",
    "global/macro_f1": "macro F1",
    "seconds": "seconds",
}
RARE = (
    "On test examples after the last round, mean ± standard deviation over seeds. The rarest class has so small a "
    "share of the training examples that nothing is chosen by accuracy.",
)
NOTES = (
    "Accuracies, mean ± standard deviation over seeds. Choose settings by “best val”, the mean over clients of the "
    "validation accuracy in the round where it is best; “test then” is the mean over clients on test examples in that "
    "round. “Final” is after the last round: global, the mean over clients, and that of the client served worst.",
)


def results(groups: Sequence[Group]) -> Table:
    """A row for each group of runs that differ in the seed alone."""
    columns = COLUMNS if by_accuracy(groups) else OF_RARE
    shown = [name for name in columns if any(value is not None for group in groups for value in group.values(name))]
    rows = [
        (Cell(group.label), Cell(str(len(group.runs))), *(measured(group.values(name), number) for name in shown))
        for group in groups
    ]
    return Table(("run", "seeds", *(columns[name] for name in shown)), tuple(rows))


def by_accuracy(groups: Sequence[Group]) -> bool:
    """Whether settings are chosen by accuracy; not where a class is rare."""
    return all(group.by_accuracy for group in groups)


def told(groups: Sequence[Group]) -> tuple[str, ...]:
    """What the numbers are, and by which to choose."""
    return NOTES if by_accuracy(groups) else RARE


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


def markdown(found: Table, notes: Sequence[str], lost: Sequence[str]) -> str:
    """The table as Markdown; its `notes` and the runs that are not in it below."""
    rule = ["---" if at < found.words else "---:" for at in range(len(found.head))]
    rows = ([cell.text for cell in row] for row in found.rows)
    without = [f"Not in the table: {counted(len(lost), 'failed run')}."] if lost else []
    return "\n\n".join([piped(found.head, rule, *rows), *notes, *without, *(f"- {said}" for said in lost)]) + "\n"

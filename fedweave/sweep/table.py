"""What a sweep found: a row per combination of settings, means over seeds."""

from collections.abc import Sequence

from fedweave.report.cells import Cell, Table, measured, number
from fedweave.report.reading import Group
from fedweave.reproduce.table import piped

COLUMNS = {
    "best_val/val/accuracy": "best val",
    "best_val/local/accuracy": "test then",
    "global/accuracy": "final global test",
    "local/accuracy": "final local test",
    "fairness/worst_accuracy": "worst client",
    "seconds": "seconds",
}
NOTES = (
    "Accuracies, mean ± standard deviation over seeds. Choose settings by “best val”, the mean over clients of the "
    "validation accuracy in the round where it is best; “test then” is the mean over clients on test examples in that "
    "round. “Final” is after the last round: global, the mean over clients, and that of the client served worst.",
)


def results(groups: Sequence[Group]) -> Table:
    """A row for each group of runs that differ in the seed alone."""
    shown = [name for name in COLUMNS if any(value is not None for group in groups for value in group.values(name))]
    rows = [
        (Cell(group.label), Cell(str(len(group.runs))), *(measured(group.values(name), number) for name in shown))
        for group in groups
    ]
    return Table(("run", "seeds", *(COLUMNS[name] for name in shown)), tuple(rows))


def markdown(found: Table) -> str:
    """The table as Markdown, its notes below."""
    rule = ["---" if at < found.words else "---:" for at in range(len(found.head))]
    rows = ([cell.text for cell in row] for row in found.rows)
    return "\n\n".join([piped(found.head, rule, *rows), *NOTES]) + "\n"

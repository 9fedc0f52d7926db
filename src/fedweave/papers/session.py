"""One call of `fedweave reproduce`: its tables one after the other, over shared runs, on the terminal and in files."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid

from fedweave.core.text import counted
from fedweave.errors import listed
from fedweave.papers import grid
from fedweave.papers.differences import HEADS, NOTE, difference_texts, differences, save_differences
from fedweave.papers.paper import PaperTable
from fedweave.papers.pictures import draw_curves, draw_planes, draw_stacks
from fedweave.papers.table import BEST_NOTE, MEASURED, NUMBERS, assemble, headings, row_texts, save, save_page
from fedweave.sweeps.scheduler import run_with_progress


@dataclass
class Session:
    """Where to show and store results, how, and with which seeds (None: the number that each table specifies).

    failed: {name: reason} for runs that failed so far; they are not tried again.
    """

    console: Console
    out: Path
    quick: bool
    jobs: int
    seeds: Sequence[int] | None = None
    failed: dict[str, str] = field(default_factory=dict)
    stock: grid.Stock = field(default_factory=grid.Stock)

    def show(self, name: str, heading: str, table: PaperTable) -> bool:
        """Run, save as `name` and show one table; returns whether nothing failed.

        Raises:
            Stopped: a signal came; the message has the number of finished runs.
        """
        notes = list(table.notes)
        if self.quick:
            fewer = grid.quick(table, self.stock)
            notes = [f"Of the whole table, not of this look: {note}" for note in notes]
            notes.insert(0, _note_of_quick_look(fewer, table))
            table, name = fewer, f"{name}-quick"
        planned = grid.plan(table, self.out, self.stock, None if self.quick else self.seeds)
        self._run(heading, planned)
        rows = assemble(planned, self.failed)
        stem = self.out / name
        title = f"{heading}: {table.title}" + (" (quick look)" if self.quick else "")
        if any(row.best_on_test is not None for row in rows):
            notes.append(BEST_NOTE)
        files = save(stem, title, notes, rows)
        heads = headings(rows)
        styles = [None if row.status == MEASURED else "dim" for row in rows]
        show_lines(self.console, title, heads, [row_texts(row, heads) for row in rows], styles)
        for note in notes:
            self.console.print(note, highlight=False, markup=False)
        if table.against:
            pairs = differences(rows, table.against)
            show_lines(self.console, f"{title}: differences", HEADS, [difference_texts(pair) for pair in pairs])
            files += save_differences(stem, pairs)
            notes.append(NOTE)
        if table.over:
            files += draw_curves(stem, title, table.over, planned, rows)
        if table.plane is not None:
            files += draw_planes(stem, title, table.plane, rows)
        if table.stacked:
            files += draw_stacks(stem, title, rows)
        files.insert(0, save_page(stem, title, notes, rows, files))
        self.console.print(f"files: {', '.join(files)}\n", highlight=False, soft_wrap=True, markup=False)
        return not any(row.status.startswith("failed") for row in rows)

    def _run(self, heading: str, planned: Sequence[grid.PlannedCell]) -> None:
        remaining = grid.unfinished(planned)
        total = grid.count(planned)
        done = f"{counted(total, 'run')}, {total - len(remaining)} of them done already"
        self.console.print(f"{heading}: {done}", highlight=False, markup=False, soft_wrap=True)
        runs = [run for run in remaining if run.name not in self.failed]
        unfinished = partial(grid.unfinished, planned)
        self.failed |= run_with_progress(self.console, runs, self.jobs, total, unfinished, " of this table")


def _note_of_quick_look(fewer: PaperTable, table: PaperTable) -> str:
    """A sentence on what a quick look has run, compared with the whole table."""
    rounds = max(cell.document["rounds"] for cell in fewer.cells)
    all_rounds = max(cell.document["rounds"] for cell in table.cells)
    [data_set] = {cell.document["data"]["name"] for cell in fewer.cells}
    all_sets = list(dict.fromkeys(cell.document["data"]["name"] for cell in table.cells))
    data = f"on {data_set} only, of {listed(all_sets)}" if len(all_sets) > 1 else f"on {data_set}"
    return (
        f"QUICK LOOK, NOT COMPARABLE WITH THE PAPER: one seed of {table.seeds}, {rounds} rounds of {all_rounds}, "
        f"{data}. A number near the printed one, or above it, is not a reproduction of it."
    )


def show_lines(
    console: Console,
    title: str,
    heads: Sequence[str],
    lines: Sequence[Sequence[str]],
    styles: Sequence[str | None] | None = None,
) -> None:
    """`lines` under `heads`, each in its style."""
    grid = Grid(title=title, title_justify="left", box=SIMPLE_HEAD)
    for head in heads:
        grid.add_column(head, justify="right" if head in NUMBERS else "left", no_wrap=head in NUMBERS)
    for line, style in zip(lines, styles or [None] * len(lines), strict=True):
        grid.add_row(*line, style=style)
    console.print(grid)

"""One call of `fedweave reproduce`: its tables one after the other, over shared runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console

from fedweave.core.text import counted
from fedweave.errors import listed
from fedweave.papers import grid, pictures
from fedweave.papers.differences import HEADS, Difference, differences, save_differences, told
from fedweave.papers.display import Progression, show_lines, show_table
from fedweave.papers.grid import PlannedRun
from fedweave.papers.paper import PaperTable
from fedweave.papers.table import BEST_NOTE, assemble, save
from fedweave.papers.workers import Stopped, execute


@dataclass
class Session:
    """Where to show and keep results, how, with which seeds (None: as many as the tables say), and which runs failed so
    far: {name: why}; they are not tried again."""

    console: Console
    out: Path
    quick: bool
    jobs: int
    seeds: Sequence[int] | None = None
    failed: dict[str, str] = field(default_factory=dict)
    stock: grid.Stock = field(default_factory=grid.Stock)

    def show(self, name: str, heading: str, table: PaperTable) -> bool:
        """Run, save as `name` and show one table; whether nothing failed.

        Raises:
            Stopped: by a signal; says how far it got.
        """
        notes = list(table.notes)
        if self.quick:
            fewer = grid.quick(table, self.stock)
            notes = [_looked(fewer, table), *(f"Of the whole table, not of this look: {note}" for note in notes)]
            table, name = fewer, f"{name}-quick"
        planned = grid.plan(table, self.out, self.stock, None if self.quick else self.seeds)
        self._run(heading, planned)
        rows, stem = assemble(planned, self.failed), self.out / name
        title = f"{heading}: {table.title}" + (" (quick look)" if self.quick else "")
        notes += [BEST_NOTE] if any(row.best_on_test is not None for row in rows) else []
        save(stem, title, notes, rows)
        show_table(self.console, title, notes, rows)
        files = [f"{stem}.md", f"{stem}.parquet"]
        if table.against:
            files += self._compare(stem, title, notes, differences(rows, table.against))
        if table.over:
            files += pictures.draw_curves(stem, title, table.over, planned, rows)
        if table.plane is not None:
            files += pictures.draw_planes(stem, title, table.plane, rows)
        if table.stacked:
            files += pictures.draw_stacks(stem, title, rows)
        self.console.print(f"files: {', '.join(files)}\n", highlight=False, soft_wrap=True, markup=False)
        return not any(row.status.startswith("failed") for row in rows)

    def _compare(self, stem: Path, title: str, notes: Sequence[str], found: Sequence[Difference]) -> list[str]:
        """Save and show them; the files written."""
        show_lines(self.console, f"{title}: differences", HEADS, [told(it) for it in found])
        return save_differences(stem, title, notes, found)

    def _run(self, heading: str, planned: Sequence[grid.PlannedCell]) -> None:
        todo, total = grid.unfinished(planned), grid.count(planned)
        there = f"{counted(total, 'run')}, {total - len(todo)} of them done already"
        self.console.print(f"{heading}: {there}", highlight=False, markup=False, soft_wrap=True)
        runs = [run for run in todo if run.name not in self.failed]
        left = partial(grid.unfinished, planned)
        self.failed |= watched(self.console, runs, self.jobs, total, left, " of this table")


def _looked(fewer: PaperTable, table: PaperTable) -> str:
    """What a quick look has run, and what the whole table would be."""
    (rounds, sets), (of, all_sets) = (
        (
            max(cell.document["rounds"] for cell in each.cells),
            list(dict.fromkeys(cell.document["data"]["name"] for cell in each.cells)),
        )
        for each in (fewer, table)
    )
    data = f"on {sets[0]}" + (f" alone of {listed(all_sets)}" if len(all_sets) > 1 else "")
    return (
        f"QUICK LOOK, NOT COMPARABLE WITH THE PAPER: one seed of {table.seeds}, {rounds} rounds of {of}, {data}. A "
        "number near the printed one, or above it, is no reproduction of it."
    )


def watched(
    console: Console,
    runs: Sequence[PlannedRun],
    jobs: int,
    total: int,
    left: Callable[[], Sequence[object]],
    of: str = "",
) -> dict[str, str]:
    """Do `runs`, those to be done of `total`, under a progress bar; {name: why} of those that failed.

    left: which are not finished yet. of: what they are of, for the message.

    Raises:
        Stopped: by a signal; says how far it got.
    """
    if not runs:
        return {}
    try:
        with Progression(console, total, total - len(runs)) as progress:
            return execute(runs, jobs, progress)
    except Stopped as error:
        raise Stopped(error.signal, f"stopped; {total - len(left())} of {counted(total, 'run')}{of} done.") from error

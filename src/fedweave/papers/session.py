"""One call of `fedweave reproduce`: its tables one after the other, over shared runs; and what the terminal shows of
it, how the runs go and the table.
"""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid

from fedweave.core.text import counted
from fedweave.errors import listed
from fedweave.papers import grid, pictures
from fedweave.papers.differences import HEADS, Difference, differences, save_differences, told
from fedweave.papers.grid import PlannedRun
from fedweave.papers.paper import PaperTable
from fedweave.papers.table import BEST_NOTE, MEASURED, NUMBERS, Row, assemble, headings, save, shown
from fedweave.papers.workers import Stopped, execute


class Progression:
    """Shows the `total` runs of one table, `done` of which are there: a bar on a terminal, one line per run elsewhere
    (see `workers.Watch`). A context manager."""

    def __init__(self, console: Console, total: int, done: int) -> None:
        self._console, self._total, self._done, self._first = console, total, done, done
        self._running: list[str] = []
        self._began = time.monotonic()
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
        )
        self._bar = Progress(TextColumn("runs"), *columns, console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task("runs", total=total, completed=done, note="")

    def __enter__(self) -> "Progression":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def started(self, run: PlannedRun) -> None:
        """Name it beside the bar."""
        self._running.append(run.name)
        self._show()

    def ended(self, run: PlannedRun, seconds: float, failure: str) -> None:
        """One more, with its time, or with the reason for its failure."""
        self._done += 1
        self._running.remove(run.name)
        outcome = f"failed: {failure}" if failure else f"{seconds:.0f} s"
        if failure or not self._console.is_terminal:
            line = f"run {self._done}/{self._total}  {run.name}  {outcome}"
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)
        self._show()

    def stopping(self, number: int) -> None:
        """Say what a first Ctrl-C does."""
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        self._console.print(f"{name}: finishing this round and saving; once more to stop at once", highlight=False)

    def _show(self) -> None:
        fresh = self._done - self._first
        each = (time.monotonic() - self._began) / fresh if fresh else None
        left = "" if each is None else f" · about {_duration(each * (self._total - self._done))} left"
        self._bar.update(self._task, completed=self._done, note=", ".join(self._running) + left)


def show_table(console: Console, title: str, notes: Sequence[str], rows: Sequence[Row]) -> None:
    """The table with its title above and its notes below."""
    heads = headings(rows)
    styles = [None if row.status == MEASURED else "dim" for row in rows]
    show_lines(console, title, heads, [shown(row, heads) for row in rows], styles)
    for note in notes:
        console.print(note, highlight=False, markup=False)


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


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


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

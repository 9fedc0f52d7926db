"""What the terminal shows of a reproduction: how the runs go, and the table."""

import signal
import time
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid

from fedweave.papers.grid import PlannedRun
from fedweave.papers.table import MEASURED, NUMBERS, Row, headings, shown


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

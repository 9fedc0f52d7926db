"""One call of `fedweave reproduce`: its tables one after the other, over shared runs.

It also shows the progress of the runs and the tables on the terminal.
"""

import dataclasses
import multiprocessing
import os
import runpy
import signal
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from signal import SIGINT
from typing import Protocol

import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid

from fedweave.core.text import counted
from fedweave.errors import FedweaveError, listed
from fedweave.experiment.config import dumps
from fedweave.experiment.runs.files import plain_errors, write, write_table
from fedweave.experiment.runs.resuming import Stop
from fedweave.papers import grid
from fedweave.papers import table as pictures
from fedweave.papers.grid import PlannedRun
from fedweave.papers.paper import PaperTable
from fedweave.papers.table import BEST_NOTE, MEASURED, NUMBERS, TableRow, assemble, headings, markdown, save, shown
from fedweave.reports.cells import interval

# ----------------------------------------------------------------------------------------------------
# Runs of a table, each in a process of its own, so that one that fails or is killed takes nothing with it. The
# processes are forked from a server that has imported what a run needs, since importing takes longer than many runs.


POLL_SECONDS = 0.05
ERROR = "error: "  # how the command line begins what went wrong
_IMPORTED = [
    "fedweave.cli",
    "fedweave.experiment.build",
    "fedweave.experiment.rounds",
    "fedweave.reports.terminal",
    "fedweave.experiment.runs.run",
]


class Stopped(FedweaveError):
    """A signal stopped the runs; all of them can be continued."""

    def __init__(self, number: int, message: str = "stopped") -> None:
        self.signal = number
        super().__init__(message)


class Watch(Protocol):
    """Receives reports on the runs while they go."""

    def started(self, run: PlannedRun) -> None:
        """A run begins."""

    def ended(self, run: PlannedRun, seconds: float, failure: str) -> None:
        """A run is over; `failure` has the reason for its failure, "" if it succeeded."""

    def stopping(self, number: int) -> None:
        """Signal `number` requested a stop; the current rounds are being finished."""


@dataclass(frozen=True)
class _Worker:
    run: PlannedRun
    process: ForkServerProcess
    log: Path
    began: float


def execute(runs: Sequence[PlannedRun], jobs: int, watch: Watch) -> dict[str, str]:
    """Execute `runs`, `jobs` at a time, continuing interrupted ones; returns {name: reason} for failed ones.

    Raises:
        Stopped: SIGINT or SIGTERM came; the active runs have saved their last round, unless the signal came twice.
    """
    waiting, active, failed, interrupted = deque(runs), list[_Worker](), dict[str, str](), False
    with Stop(watch.stopping) as stop:
        try:
            while active or (waiting and stop.signal is None):
                while waiting and len(active) < jobs and stop.signal is None:
                    watch.started(waiting[0])
                    active.append(_start(waiting.popleft(), jobs))
                time.sleep(POLL_SECONDS)
                if stop.signal is not None and not interrupted:
                    interrupted = True
                    _interrupt(active)
                for worker in [worker for worker in active if not worker.process.is_alive()]:
                    active.remove(worker)
                    failure = _failure(worker)
                    if failure and stop.signal is None:
                        failed[worker.run.name] = failure
                    if not failure or stop.signal is None:
                        watch.ended(worker.run, time.monotonic() - worker.began, failure)
        except KeyboardInterrupt as error:
            raise Stopped(stop.signal or SIGINT) from error
        finally:  # leave no process behind
            _interrupt(active)
            for worker in active:
                worker.process.join()
        if stop.signal is not None:
            raise Stopped(stop.signal)
    return failed


def _start(run: PlannedRun, jobs: int) -> _Worker:
    document, log = (run.directory.with_name(run.name + suffix) for suffix in (".toml", ".log"))
    with plain_errors(document):
        document.parent.mkdir(parents=True, exist_ok=True)
    write(document, lambda file: file.write(dumps(run.config.plain()).encode()))
    write(log, lambda file: None)  # a folder that cannot be written to fails here, not in the process
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    arguments = ["run", str(document), "--out", str(run.directory), "--overwrite" if run.outdated else "--resume", "-q"]
    threads = int(os.environ.get("OMP_NUM_THREADS", max(1, (os.cpu_count() or 1) // jobs)))
    process = context.Process(target=_command, args=(arguments, log, threads, dict(os.environ)))
    process.start()
    return _Worker(run, process, log, time.monotonic())


def _command(arguments: list[str], log: Path, threads: int, environment: dict[str, str]) -> None:
    """`python -m fedweave`, in a process group of its own: Ctrl-C on the terminal reaches it through us, once."""
    os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(environment)
    with open(log, "wb") as output:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output.fileno(), stream.fileno())
    import torch

    torch.set_num_threads(threads)
    sys.argv = ["fedweave", *arguments]
    runpy.run_module("fedweave", run_name="__main__")


def _interrupt(active: Sequence[_Worker]) -> None:
    for worker in active:
        if worker.process.is_alive() and worker.process.pid is not None:
            os.kill(worker.process.pid, SIGINT)


def _failure(worker: _Worker) -> str:
    """The reason for the run's failure, from its last output; "" if it succeeded, whose log is deleted."""
    if worker.process.exitcode == 0:
        worker.log.unlink(missing_ok=True)
        return ""
    lines = worker.log.read_text(encoding="utf-8", errors="replace").split("\n")
    errors = [line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)]
    messages = errors or [line for line in lines if line.strip()]
    return messages[-1] if messages else f"it ended with exit code {worker.process.exitcode}"


# ----------------------------------------------------------------------------------------------------
# Rows of a table compared with each other: differences between runs with the same seed, and their intervals.


HEADS = ["row", "against", "column", "test", "unit", "difference", "95 % interval", "seeds"]
NOTE = (
    "Row minus the row it is set against, between runs with the same seed: the mean over the seeds that both have, and "
    "its two-sided 95 % interval by Student's t."
)


@dataclass(frozen=True)
class Difference:
    """`row` minus `against` where both have the same column, split and unit.

    difference: the mean over `seeds` pairs of runs with the same seed. low, high: its two-sided 95 % interval; None
    with fewer than two seeds. digits: decimals to show.
    """

    row: str
    against: str
    column: str
    split: str
    unit: str
    difference: float
    low: float | None
    high: float | None
    seeds: int
    digits: int


COLUMNS = [field.name for field in dataclasses.fields(Difference) if field.name != "digits"]
_TYPES = dict.fromkeys(("difference", "low", "high"), pa.float64()) | {"seeds": pa.int64()}
SCHEMA = pa.schema([(name, _TYPES.get(name, pa.string())) for name in COLUMNS])


def differences(rows: Sequence[TableRow], against: Sequence[str]) -> list[Difference]:
    """The differences of every row to each row named in `against`, over the seeds that have both numbers.

    If both rows are in `against`, the later one minus the earlier one.
    """
    there = {(row.row, row.column, row.split, row.unit): row for row in rows}
    results = []
    for row in rows:
        for name in against[: against.index(row.row)] if row.row in against else against:
            other = there.get((name, row.column, row.split, row.unit))
            if other is not None and (both := _paired(row, other)):
                low, high = interval(both)
                mean = statistics.fmean(both)
                place = row.row, name, row.column, row.split, row.unit
                results.append(Difference(*place, mean, low, high, len(both), row.digits))
    return results


def difference_row(it: Difference) -> list[str]:
    """The difference as text under `HEADS`."""
    signed = f"+,.{it.digits}f"
    between = "" if it.low is None or it.high is None else f"{it.low:{signed}} to {it.high:{signed}}"
    return [it.row, it.against, it.column, it.split, it.unit, f"{it.difference:{signed}}", between, str(it.seeds)]


def save_differences(stem: Path, title: str, notes: Sequence[str], rows: Sequence[Difference]) -> list[str]:
    """Write `stem`-differences.md for people and .parquet with the columns of `SCHEMA`; returns both names."""
    to = stem.with_name(f"{stem.name}-differences")
    columns = {name: pa.array([getattr(it, name) for it in rows], SCHEMA.field(name).type) for name in COLUMNS}
    text = markdown(f"{title}: differences", [*notes, NOTE], HEADS, [difference_row(it) for it in rows])
    write_table(to.with_name(f"{to.name}.parquet"), pa.table(columns, SCHEMA))
    write(to.with_name(f"{to.name}.md"), lambda file: file.write(text.encode()))
    return [f"{to}.md", f"{to}.parquet"]


def _paired(row: TableRow, other: TableRow) -> list[float]:
    """Row minus other by seed, where both have a number."""
    pairs = zip(row.by_seed, other.by_seed, strict=False)
    return [one - two for one, two in pairs if one is not None and two is not None]


class Progression:
    """Shows the `total` runs of one table, with `done` of them finished: a bar on a terminal, else one line per run.

    It is a context manager, and a `Watch`.
    """

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
        """Show the run's name next to the bar."""
        self._running.append(run.name)
        self._show()

    def ended(self, run: PlannedRun, seconds: float, failure: str) -> None:
        """Count one more run, with its time, or with the reason for its failure."""
        self._done += 1
        self._running.remove(run.name)
        outcome = f"failed: {failure}" if failure else f"{seconds:.0f} s"
        if failure or not self._console.is_terminal:
            line = f"run {self._done}/{self._total}  {run.name}  {outcome}"
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)
        self._show()

    def stopping(self, number: int) -> None:
        """Print what a first Ctrl-C does."""
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        self._console.print(f"{name}: finishing this round and saving; once more to stop at once", highlight=False)

    def _show(self) -> None:
        fresh = self._done - self._first
        each = (time.monotonic() - self._began) / fresh if fresh else None
        left = "" if each is None else f" · about {_duration(each * (self._total - self._done))} left"
        self._bar.update(self._task, completed=self._done, note=", ".join(self._running) + left)


def show_table(console: Console, title: str, notes: Sequence[str], rows: Sequence[TableRow]) -> None:
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
            notes = [_quick_look(fewer, table), *(f"Of the whole table, not of this look: {note}" for note in notes)]
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
            compared = differences(rows, table.against)
            show_lines(self.console, f"{title}: differences", HEADS, [difference_row(it) for it in compared])
            files += save_differences(stem, title, notes, compared)
        if table.over:
            files += pictures.draw_curves(stem, title, table.over, planned, rows)
        if table.plane is not None:
            files += pictures.draw_planes(stem, title, table.plane, rows)
        if table.stacked:
            files += pictures.draw_stacks(stem, title, rows)
        self.console.print(f"files: {', '.join(files)}\n", highlight=False, soft_wrap=True, markup=False)
        return not any(row.status.startswith("failed") for row in rows)

    def _run(self, heading: str, planned: Sequence[grid.PlannedCell]) -> None:
        todo, total = grid.unfinished(planned), grid.count(planned)
        there = f"{counted(total, 'run')}, {total - len(todo)} of them done already"
        self.console.print(f"{heading}: {there}", highlight=False, markup=False, soft_wrap=True)
        runs = [run for run in todo if run.name not in self.failed]
        left = partial(grid.unfinished, planned)
        self.failed |= watched(self.console, runs, self.jobs, total, left, " of this table")


def _quick_look(fewer: PaperTable, table: PaperTable) -> str:
    """A sentence on what a quick look has run, compared with the whole table."""
    (rounds, sets), (of, all_sets) = (
        (
            max(cell.document["rounds"] for cell in each.cells),
            list(dict.fromkeys(cell.document["data"]["name"] for cell in each.cells)),
        )
        for each in (fewer, table)
    )
    data = f"on {sets[0]}" + (f" only, of {listed(all_sets)}" if len(all_sets) > 1 else "")
    return (
        f"QUICK LOOK, NOT COMPARABLE WITH THE PAPER: one seed of {table.seeds}, {rounds} rounds of {of}, {data}. A "
        "number near the printed one, or above it, is no reproduction of it."
    )


def run_unfinished(console: Console, runs: Sequence[PlannedRun], jobs: int) -> dict[str, str]:
    """Do all runs that are not finished; returns {name: why} of failed runs."""

    def unfinished() -> list[PlannedRun]:
        return [run for run in runs if not run.finished()]

    todo = unfinished()
    console.print(f"{counted(len(runs), 'run')}, {len(runs) - len(todo)} of them done already", highlight=False)
    return watched(console, todo, jobs, len(runs), unfinished)


def watched(
    console: Console,
    runs: Sequence[PlannedRun],
    jobs: int,
    total: int,
    left: Callable[[], Sequence[object]],
    of: str = "",
) -> dict[str, str]:
    """Execute `runs`, the unfinished ones of `total`, under a progress bar; {name: reason} for failed ones.

    left: returns the runs that are not finished yet. of: the runs' owner, for the message.

    Raises:
        Stopped: a signal came; the message has the number of finished runs.
    """
    if not runs:
        return {}
    try:
        with Progression(console, total, total - len(runs)) as progress:
            return execute(runs, jobs, progress)
    except Stopped as error:
        raise Stopped(error.signal, f"stopped; {total - len(left())} of {counted(total, 'run')}{of} done.") from error

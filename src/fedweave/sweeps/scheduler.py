"""Runs many experiments, some of them at a time, and shows their progress.

Each run has a process of its own, so that one that fails or is killed takes nothing with it. The processes are forked
from a server that has imported what a run needs, since importing takes longer than many runs.
"""

import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fedweave.core.text import counted
from fedweave.errors import FedweaveError
from fedweave.experiment.config import dumps
from fedweave.experiment.runs.files import SHARED, plain_errors, write
from fedweave.experiment.runs.resuming import Stop
from fedweave.sweeps.runs import PlannedRun

POLL_SECONDS = 0.05
ERROR = "error: "  # how the command line begins what went wrong
_PRELOADED = [
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

    def begin(self, run: PlannedRun) -> None:
        """A run begins."""

    def end(self, run: PlannedRun, seconds: float, failure: str) -> None:
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
    waiting = deque(runs)
    active: list[_Worker] = []
    failed: dict[str, str] = {}
    interrupted = False
    with Stop(watch.stopping) as stop:
        try:
            while active or (waiting and stop.signal is None):
                while waiting and len(active) < jobs and stop.signal is None:
                    watch.begin(waiting[0])
                    active.append(_start(waiting.popleft(), jobs))
                time.sleep(POLL_SECONDS)
                if stop.signal is not None and not interrupted:
                    interrupted = True
                    _interrupt(active)
                for worker in [worker for worker in active if not worker.process.is_alive()]:
                    active.remove(worker)
                    failure = _failure(worker)
                    if failure and stop.signal is not None:
                        continue  # it was interrupted: it neither failed nor is it over
                    if failure:
                        failed[worker.run.name] = failure
                    watch.end(worker.run, time.monotonic() - worker.began, failure)
        except KeyboardInterrupt as error:  # the second signal
            raise Stopped(stop.signal or signal.SIGINT) from error
        finally:  # leave no process behind
            _interrupt(active)
            for worker in active:
                worker.process.join()
        if stop.signal is not None:
            raise Stopped(stop.signal)
    return failed


def _start(run: PlannedRun, jobs: int) -> _Worker:
    document = run.directory.with_name(f"{run.name}.toml")
    log = run.directory.with_name(f"{run.name}.log")
    with plain_errors(document):
        (document.parent / SHARED).mkdir(parents=True, exist_ok=True)
    write(document, lambda file: file.write(dumps(run.config.plain()).encode()))
    write(log, lambda file: None)  # a folder that cannot be written to fails here, not in the process
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    arguments = ["run", str(document), "--out", str(run.directory), "--overwrite" if run.outdated else "--resume", "-q"]
    threads = int(os.environ.get("OMP_NUM_THREADS", max(1, (os.cpu_count() or 1) // jobs)))
    process = context.Process(target=_command, args=(arguments, log, threads, dict(os.environ)))
    process.start()
    return _Worker(run, process, log, time.monotonic())


def _command(arguments: list[str], log: Path, threads: int, environment: dict[str, str]) -> None:
    """`python -m fedweave`, in the worker's process."""
    os.setpgid(0, 0)  # a process group of its own: Ctrl-C on the terminal reaches it through the scheduler, once
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
            os.kill(worker.process.pid, signal.SIGINT)


def _failure(worker: _Worker) -> str:
    """The reason for the run's failure, from its last output; "" if it succeeded, whose log is deleted."""
    if worker.process.exitcode == 0:
        worker.log.unlink(missing_ok=True)
        return ""
    lines = worker.log.read_text(encoding="utf-8", errors="replace").split("\n")
    errors = [line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)]
    messages = errors or [line for line in lines if line.strip()]
    return messages[-1] if messages else f"it ended with exit code {worker.process.exitcode}"


class Progression:
    """Shows the `total` runs of one table, with `done` of them finished: a bar on a terminal, else one line per run.

    It is a context manager, and a `Watch`.
    """

    def __init__(self, console: Console, total: int, done: int) -> None:
        self._console = console
        self._total = total
        self._done = self._done_before = done
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

    def begin(self, run: PlannedRun) -> None:
        """Show the run's name next to the bar."""
        self._running.append(run.name)
        self._show()

    def end(self, run: PlannedRun, seconds: float, failure: str) -> None:
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
        note = ", ".join(self._running)
        recent = self._done - self._done_before
        if recent:
            seconds = (time.monotonic() - self._began) / recent * (self._total - self._done)
            note += f" · about {_duration(seconds)} left"
        self._bar.update(self._task, completed=self._done, note=note)


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02} min"


def run_unfinished(console: Console, runs: Sequence[PlannedRun], jobs: int, announce: bool = True) -> dict[str, str]:
    """Execute the runs that are not finished, under a progress bar; returns {name: reason} for failed ones.

    announce: whether to print how many there are.

    Raises:
        Stopped: a signal came; the message has the number of finished runs.
    """

    def unfinished() -> list[PlannedRun]:
        return [run for run in runs if not run.finished()]

    remaining = unfinished()
    if announce:
        done = len(runs) - len(remaining)
        console.print(f"{counted(len(runs), 'run')}, {done} of them done already", highlight=False)
    return run_with_progress(console, remaining, jobs, len(runs), unfinished)


def run_with_progress(
    console: Console,
    runs: Sequence[PlannedRun],
    jobs: int,
    total: int,
    unfinished: Callable[[], Sequence[PlannedRun]],
    owner: str = "",
) -> dict[str, str]:
    """Execute `runs`, the unfinished ones of `total`, under a progress bar; returns {name: reason} for failed ones.

    unfinished: returns the runs that are not finished at the time of the call. owner: of the runs, for the message.

    Raises:
        Stopped: a signal came; the message has the number of finished runs.
    """
    if not runs:
        return {}
    try:
        with Progression(console, total, total - len(runs)) as progress:
            return execute(runs, jobs, progress)
    except Stopped as error:
        done = total - len(unfinished())
        raise Stopped(error.signal, f"stopped; {done} of {counted(total, 'run')}{owner} done.") from error

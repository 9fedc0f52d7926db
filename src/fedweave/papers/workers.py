"""Runs of a table, each in a process of its own, so that one that fails or is killed takes nothing with it.

The processes are forked from a server that has imported what a run needs, since importing takes longer than many runs.
"""

import multiprocessing
import os
import runpy
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from signal import SIGINT
from typing import Protocol

from fedweave.errors import FedweaveError
from fedweave.experiment.config import dumps
from fedweave.experiment.runs.files import plain_errors, write
from fedweave.experiment.runs.resuming import Stop
from fedweave.papers.grid import PlannedRun

POLL_SECONDS = 0.05
ERROR = "error: "  # how the command line begins what went wrong
_IMPORTED = [
    "fedweave.cli",
    "fedweave.experiment.build",
    "fedweave.experiment.rounds",
    "fedweave.report.terminal",
    "fedweave.experiment.runs.run",
]


class Stopped(FedweaveError):
    """A signal stopped the runs; every one of them can be continued."""

    def __init__(self, number: int, message: str = "stopped") -> None:
        self.signal = number
        super().__init__(message)


class Watch(Protocol):
    """What is told of the runs while they go."""

    def started(self, run: PlannedRun) -> None:
        """A run begins."""

    def ended(self, run: PlannedRun, seconds: float, failure: str) -> None:
        """A run is over; `failure` says why it failed, "" if it did not."""

    def stopping(self, number: int) -> None:
        """Signal `number` asked to stop; the rounds at hand are being finished."""


@dataclass(frozen=True)
class _Worker:
    run: PlannedRun
    process: ForkServerProcess
    log: Path
    began: float


def execute(runs: Sequence[PlannedRun], jobs: int, watch: Watch) -> dict[str, str]:
    """Do `runs`, `jobs` at a time, continuing those that were interrupted; returns {name: why} of those that failed.

    Raises:
        Stopped: SIGINT or SIGTERM came; the running ones have saved their last round, unless the signal came twice.
    """
    waiting, active, failed, told = deque(runs), list[_Worker](), dict[str, str](), False
    with Stop(watch.stopping) as stop:
        try:
            while active or (waiting and stop.signal is None):
                while waiting and len(active) < jobs and stop.signal is None:
                    watch.started(waiting[0])
                    active.append(_start(waiting.popleft(), jobs))
                time.sleep(POLL_SECONDS)
                if stop.signal is not None and not told:
                    told = True
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
        finally:  # whatever ended the loop, no process is left behind
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
    arguments = ["run", str(document), "--out", str(run.directory), "--overwrite" if run.anew else "--resume", "-q"]
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
    """Why the run failed, from what it wrote last; "" and no log if it did not."""
    if worker.process.exitcode == 0:
        worker.log.unlink(missing_ok=True)
        return ""
    lines = worker.log.read_text(encoding="utf-8", errors="replace").split("\n")
    errors = [line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)]
    said = errors or [line for line in lines if line.strip()]
    return said[-1] if said else f"it ended with exit code {worker.process.exitcode}"

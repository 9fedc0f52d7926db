"""Runs of a table, each in a process of its own, so that one that fails or is killed takes nothing with it."""

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT
from typing import Protocol

from fedweave.config import dumps
from fedweave.errors import FedweaveError
from fedweave.reproduce.grid import PlannedRun
from fedweave.runs.files import plain_errors, write
from fedweave.runs.stopping import Stop

POLL_SECONDS = 0.05
ERROR = "error: "  # how the command line begins what went wrong


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
    process: "subprocess.Popen[bytes]"
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
                for worker in [worker for worker in active if worker.process.poll() is not None]:
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
                worker.process.wait()
        if stop.signal is not None:
            raise Stopped(stop.signal)
    return failed


def _start(run: PlannedRun, jobs: int) -> _Worker:
    """A process in a group of its own: Ctrl-C on the terminal reaches it through us, once."""
    document, log = (run.directory.with_name(run.name + suffix) for suffix in (".toml", ".log"))
    with plain_errors(document):
        document.parent.mkdir(parents=True, exist_ok=True)
    write(document, lambda file: file.write(dumps(run.config.plain()).encode()))
    threads = max(1, (os.cpu_count() or 1) // jobs)
    command = [sys.executable, "-m", "fedweave", "run", str(document), "--out", str(run.directory), "--resume", "-q"]
    with plain_errors(log), open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={"OMP_NUM_THREADS": str(threads)} | os.environ,
            process_group=0,
        )
    return _Worker(run, process, log, time.monotonic())


def _interrupt(active: Sequence[_Worker]) -> None:
    for worker in active:
        if worker.process.poll() is None:
            worker.process.send_signal(SIGINT)


def _failure(worker: _Worker) -> str:
    """Why the run failed, from what it wrote last; "" and no log if it did not."""
    if worker.process.returncode == 0:
        worker.log.unlink(missing_ok=True)
        return ""
    lines = worker.log.read_text(encoding="utf-8", errors="replace").split("\n")
    errors = [line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)]
    said = errors or [line for line in lines if line.strip()]
    return said[-1] if said else f"it ended with exit code {worker.process.returncode}"

"""Runs in processes of their own: interrupted and continued."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from fedweave.papers import grid
from fedweave.sweeps.runs import PlannedRun
from fedweave.sweeps.scheduler import Stopped, execute
from tests.reproduce.tiny import cell, table


class Log:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def begin(self, run: PlannedRun) -> None:
        self.told.append(("started", run.name))

    def end(self, run: PlannedRun, seconds: float, failure: str) -> None:
        self.told.append(("ended", run.name, failure))

    def stopping(self, number: int) -> None:
        self.told.append(("stopping", number))


def interrupt_after(path: Path) -> threading.Thread:
    """Ctrl-C as soon as `path` exists."""

    def wait() -> None:
        until = time.monotonic() + 60
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def first_round(directory: Path) -> list[float]:
    """Wall-clock times of the first round: the same again only if they are not measured again."""
    ledger = pq.read_table(directory / "ledger.parquet")
    return ledger.filter(pc.field("round") == 1)["seconds"].to_pylist()


def test_an_interrupted_run_is_continued_not_begun_again(tmp_path: Path) -> None:
    [planned] = grid.plan(table(cell("a", rounds=60), seeds=2), tmp_path, grid.Stock())
    run, waiting = planned.runs
    thread, log = interrupt_after(run.directory / "checkpoint" / "state.safetensors"), Log()
    with pytest.raises(Stopped) as stopped:
        execute([run, waiting], 1, log)
    thread.join()
    assert stopped.value.signal == signal.SIGINT
    assert log.told == [("started", run.name), ("stopping", signal.SIGINT)]
    assert not run.finished()
    before = first_round(run.directory)
    assert any(before)
    assert execute(grid.unfinished([grid.PlannedCell(planned.cell, (run,))]), 1, log) == {}
    assert log.told[2:] == [("started", run.name), ("ended", run.name, "")]
    assert run.finished()
    assert first_round(run.directory) == before
    assert not waiting.directory.exists()

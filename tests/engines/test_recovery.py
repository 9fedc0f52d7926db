"""A worker that is lost costs time and no number."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedweave.algorithms import ALGORITHMS
from fedweave.contract.subject import RecordingEngine, Subject, distance, everything
from fedweave.engines import recovery
from fedweave.engines.recovery import RecoveringChannel
from fedweave.engines.sharded import Channel, Pending, Shard, Sharded, Worker
from fedweave.engines.vectorized import Vectorized
from fedweave.errors import WorkerLost
from fedweave.experiment.rounds import train
from tests.refusals import refusal


class Mortal:
    """Makes workers of which the n-th dies at its `deaths[n]`-th request, before or after it has done it."""

    def __init__(self, make: Callable[[], Worker], deaths: list[int], after: bool) -> None:
        self.made, self._make, self._deaths, self._after = 0, make, deaths, after

    def __call__(self) -> Channel:
        worker, asked = self._make(), 0
        last = self._deaths[self.made] if self.made < len(self._deaths) else None
        self.made += 1

        def channel(method: str, *blobs: bytes) -> Pending:
            nonlocal asked
            asked += 1
            if last is not None and asked >= last:
                if self._after and asked == last:
                    worker.answer(method, *blobs)
                return _gone
            answer = worker.answer(method, *blobs)
            return lambda: answer

        return channel


def _gone() -> bytes:
    raise WorkerLost("power cut")


def federation(subject: Subject, spool: Path, deaths: list[int], after: bool = False) -> tuple[Any, Mortal]:
    """All clients but the first with a worker that dies."""
    graphs, whole = subject.graphs(), subject.federation(mode="loop")
    given = {"classes": whole.classes, "test": whole.test}

    def make(clients: list[str]) -> Worker:
        return Worker(Vectorized({client: graphs[client] for client in clients}, **given), subject.build())

    first, *others = graphs
    mortal = Mortal(lambda: make(others), deaths, after)
    safe = Mortal(lambda: make([first]), [], False)
    shards = [Shard([first], safe()), Shard(others, RecoveringChannel("worker 2", mortal, spool / "2"))]
    held = {"test": whole.test, "validation": whole.test}
    return RecordingEngine(Sharded(tuple(graphs), shards), held=held, **given), mortal


@pytest.mark.often("64-fedavg-False")
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", ["fedavg", "dfedgnn"])
@pytest.mark.parametrize("saved_every", [2, 64])
def test_a_lost_worker_changes_no_number(
    name: str, after: bool, saved_every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_CALLS", saved_every)
    subject = Subject(ALGORITHMS[name])
    ends = []
    for deaths in ([], [4, 7, 9]):
        fed, mortal = federation(subject, tmp_path / str(len(deaths)), deaths, after)
        (tmp_path / str(len(deaths))).mkdir()
        *_, last = train(subject.build(), fed, 3)
        ends.append(everything(last, fed))
        assert mortal.made == len(deaths) + 1
    assert distance(*ends) == 0
    assert (tmp_path / "3" / "2").exists() == (saved_every == 2)


def test_a_worker_that_cannot_be_rebuilt_is_named(tmp_path: Path) -> None:
    subject = Subject(ALGORITHMS["fedavg"])
    fed, _ = federation(subject, tmp_path, [3] + [1] * 9)
    with refusal("worker-lost", "worker 2"):
        list(train(subject.build(), fed, 3))

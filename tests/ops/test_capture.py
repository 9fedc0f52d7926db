"""Recordings that are captured: the same numbers from kernels alone, for the batch that a capture is of."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fedweave.algorithms import ALGORITHMS
from fedweave.contract.subject import Subject, distance, everything
from fedweave.engines import vectorized
from fedweave.engines.simulation import Simulation
from fedweave.experiment.rounds import train
from fedweave.ops.captures import StableOperands, _Copies
from fedweave.ops.recording import Recordings, record_or_play
from tests.contract.federations import on_device
from tests.stand_in import DEVICE, Replays, present

ROUNDS = 8  # steps are recorded first, then rounds as a whole
REFUSES_NOTHING = {"fedavg", "fedego", "fairgfl", "fairgraphfl", "f2gnn", "glasu", "scaffold"}
REFUSES_NOTHING |= {"cgsv", "dw", "eu", "fedtgp", "rffl"}


def runs(recordings: Recordings, function: Any, name: int, *operands: Tensor) -> Any:
    with recordings.activate():
        return record_or_play(function, (function,), ("x", "w"), (), operands, StableOperands(name, frozenset({0})))


@pytest.fixture
def calls() -> list[str]:
    return []


def test_what_is_captured_runs_no_python_and_follows_its_inputs(calls: list[str]) -> None:
    def step(x: Tensor, w: Tensor) -> Tensor:
        calls.append("python")
        return (x @ w).relu().sum()

    by, x = Replays(), torch.randn(3, 3)
    recordings = Recordings("always", by)
    found = [runs(recordings, step, 1, x, w) for w in torch.arange(12.0).reshape(4, 3, 1)]
    assert found == [(x @ w).relu().sum() for w in torch.arange(12.0).reshape(4, 3, 1)]
    assert (len(calls), by.captured, recordings.captured, recordings.played) == (1, 1, 1, 3)
    assert len({own.data_ptr() for own in found}) == 4  # results are the caller's own


def test_every_batch_has_a_capture_of_its_own() -> None:
    def step(x: Tensor, w: Tensor) -> Tensor:
        return x * w

    by, w = Replays(), torch.ones(2)
    recordings = Recordings("always", by)
    batches = {name: torch.full((2,), float(name)) for name in (1, 2)}
    found = [(name, runs(recordings, step, name, batches[name], w)) for name in (1, 2, 1, 2, 1)]
    assert all(own.tolist() == [name, name] for name, own in found)  # after the others, which share the buffers
    assert by.captured == 2
    assert len({buffers for own in recordings._computations.values() for buffers in own.buffers.values()}) == 1
    assert runs(recordings, step, 3, torch.full((2,), 7.0), w).tolist() == [7, 7]  # the same batch with other data


def test_other_sizes_are_another_capture() -> None:
    def step(x: Tensor, w: Tensor) -> Tensor:
        return x + w

    by = Replays()
    recordings = Recordings("always", by)
    for size in (2, 3, 2, 3):
        assert runs(recordings, step, size, torch.ones(size), torch.ones(size)).tolist() == [2.0] * size
    assert by.captured == 2


def test_what_cannot_be_captured_is_played() -> None:
    def writes(x: Tensor, w: Tensor) -> Tensor:
        return w.add_(x)

    by, w = Replays(), torch.zeros(2)
    recordings = Recordings("always", by)
    for _ in range(3):
        runs(recordings, writes, 1, torch.ones(2), w)
    assert w.tolist() == [3, 3]
    assert by.captured == 0

    class Refuses:
        def capture(self, function: Any) -> Any:
            raise RuntimeError("operation not permitted when stream is capturing")

    recordings = Recordings("always", Refuses())
    found = [runs(recordings, lambda x, w: x + w, 1, torch.ones(1), torch.ones(1)).tolist() for _ in range(3)]
    assert found == [[2.0]] * 3


@pytest.mark.parametrize("form", [((2, 3), (3, 1)), ((2, 3), (1, 2)), ((2, 3), (0, 1)), ((2, 0), (1, 1)), ((), ())])
def test_copies_have_the_strides_of_what_they_are_of(form: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    memory = torch.arange(20.0)
    one, other = (memory.as_strided(*form, offset) for offset in (0, 7))
    copy = _Copies([one])
    copy.fill([other])
    assert copy.tensors[0].stride() == one.stride()
    assert copy.tensors[0].equal(other)


@pytest.mark.often("fedavg")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_give_the_same_numbers_captured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, by = Subject(ALGORITHMS[name]), Replays()
    monkeypatch.setattr(vectorized, "recorder_for", lambda device: by)
    with present():
        there = on_device(subject, DEVICE, mode="vmap", record="always")
        here = subject.federation(Simulation, torch.float64, mode="loop")
        (*_, last), (*_, specified) = (train(subject.build(), own, ROUNDS, 1) for own in (there, here))
        assert distance(everything(last, there), everything(specified, here)) < 1e-9
    assert by.captured
    if name in REFUSES_NOTHING:
        assert by.refused == []

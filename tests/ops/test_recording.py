"""Recordings: what is played has the bits of what was called, for whatever inputs of the same sizes it is played on."""

import gc
import logging
import re
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedweave.algorithms import FedAvg
from fedweave.core.graph import Graph
from fedweave.core.tree import leaves
from fedweave.engines.simulation import Simulation
from fedweave.experiment.rounds import train
from fedweave.models import MODELS
from fedweave.ops import recording
from fedweave.ops.recorded_calls import Recording
from fedweave.ops.recording import Recordings, record_or_play
from fedweave.ops.tape import derived, kernel


def call(recordings: Recordings, function: Callable[..., Any], *operands: Any, roots: tuple[Any, ...] = ()) -> Any:
    with recordings.activate(), torch.no_grad():
        return record_or_play(function, (function,), (), roots, operands)


def inputs(seed: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(4, 6, generator=rng), torch.randn(4, 6, generator=rng)


def gradient(a: Tensor, b: Tensor) -> Tensor:
    with torch.enable_grad():
        free = a.detach().requires_grad_()
        total = vmap(lambda a, b: (torch.softmax(a, 0) * b.exp()).sum())(free, b).pow(2).sum()
        return torch.autograd.grad(total, free)[0]


def through_a_view(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    out = torch.zeros_like(a)
    row = out.view(-1)[6:12]
    row += b[1]
    out.t()[2].mul_(3)
    return out, row.sum()


def through_a_view_of_a_part(a: Tensor, b: Tensor) -> Tensor:
    base = a.clone()
    first, *_ = base.split(2)
    later = base.unbind(0)[1]
    first.sub_(b[:2])
    return later + 1


def shape_changed_in_place(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    out = a[:1] * 2
    other = out.detach()
    out.squeeze_(0)
    return out + b, other, other[0] + out


def results_that_share_memory(a: Tensor, b: Tensor) -> dict[str, Any]:
    total = a + b
    return {"whole": total, "again": total, "row": total[1], "given": a, "of given": b[0], "number": 3}


def changed_numbers(a: Tensor, b: Tensor) -> Tensor:
    count = torch.tensor([1.0, 2.0])
    count += a[0, :2]
    return count


def changed_and_not_used(a: Tensor, b: Tensor) -> Tensor:
    lost = a.clone()
    lost.add_(b)
    return b * 2


def changed_input(a: Tensor, b: Tensor) -> Tensor:
    a[0].add_(b[0])
    return a.sum()


def fused(a: Tensor, b: Tensor) -> Tensor:
    w = a.clone()
    optimizer = torch.optim.Adam([w], lr=0.1, fused=True)
    for _ in range(3):
        w.grad = w * b
        optimizer.step()
    return w


def several_results(a: Tensor, b: Tensor) -> list[Tensor]:
    values, order = a.sort(1)
    largest, _ = b.max(0)
    return [values, order, largest, torch.where(a > 0, b, 0.5).gather(1, order), b[order[0] % 4]]


def computed_twice(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).exp().t() @ (a * b).exp() + (a[1:] * 2).sum() + (a[1:] * 2).sum()


def computed_twice_and_changed(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    first, second = a * b, a * b
    first.view(-1)[3:].add_(1)
    return first.sum(), second.sum()


def computed_again_of_what_changes(a: Tensor, b: Tensor) -> Tensor:
    total = a.clone()
    before = (total * 2).sum()
    total[1] += b[1]
    return before - (total * 2).sum()


def computed_twice_for_two_results(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return (a * b).view(-1), (a * b).view(-1), (a * b).t()


def views_of_views(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    inner = a.unsqueeze(0).expand(2, 4, 6)[:, 1:].transpose(1, 2)[1].detach()
    part = b.chunk(2, 1)[1][1:3].t()
    return inner.contiguous() * 2, inner.t().sum(0), part @ part.t().clone(), b.view(2, 12).view(4, 6).detach() + a


def views_of_which_one_changes_shape(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    first, second = a[:1], a[:1]
    second.squeeze_(0)
    return first.sum(1), second.sum(0)


@kernel
def sums(matrix: Tensor, times: int) -> tuple[Tensor, Tensor]:
    rows = torch.stack([row.sum() * times for row in matrix])
    return rows, matrix.nonzero().sum(0)  # of a size that depends on values, and reads them, but gives two numbers


def called_whole(a: Tensor, b: Tensor) -> Tensor:
    rows, places = sums(a, 2)
    return rows.sum() + places.sum() + b


CASES = (
    gradient,
    through_a_view,
    through_a_view_of_a_part,
    shape_changed_in_place,
    results_that_share_memory,
    changed_numbers,
    changed_and_not_used,
    changed_input,
    fused,
    several_results,
    computed_twice,
    computed_twice_and_changed,
    computed_again_of_what_changes,
    computed_twice_for_two_results,
    views_of_views,
    views_of_which_one_changes_shape,
    called_whole,
)


def shared(given: tuple[Tensor, ...], found: Any) -> list[int]:
    """For each tensor that went in or came out, the first one that has the same memory."""
    tensors = [leaf for leaf in pytree.tree_leaves((given, found)) if isinstance(leaf, Tensor)]
    places = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [places.index(place) for place in places]


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_every_call_gives_the_bits_and_the_memory_of_the_function(function: Callable[..., Any]) -> None:
    recordings = Recordings("always")
    for seed in range(3):
        given, own = inputs(seed), inputs(seed)
        found, expected = call(recordings, function, *given), function(*own)
        torch.testing.assert_close((found, given), (expected, own), rtol=0, atol=0)
        assert shared(given, found) == shared(own, expected)
    assert (recordings.recorded, recordings.played) == (1, 2)


def test_results_belong_to_whoever_gets_them() -> None:
    recordings, given = Recordings("always"), inputs(0)
    for _ in range(3):
        found = call(recordings, changed_numbers, *given)
        assert torch.equal(found, changed_numbers(*given))
        found.zero_()


@pytest.mark.parametrize(("when", "counts"), [("auto", [0, 0, 1]), ("always", [0, 1, 2]), ("never", [0, 0, 0])])
def test_what_is_played_is_counted_in_calls(when: Any, counts: list[int]) -> None:
    recordings, played = Recordings(when), []
    for seed in range(3):
        call(recordings, gradient, *inputs(seed))
        played.append(recordings.played)
    assert played == counts


def test_a_tensor_given_twice_may_be_two_the_next_time() -> None:
    recordings, (a, b) = Recordings("always"), inputs(0)
    assert torch.equal(call(recordings, torch.sub, a, a), torch.zeros(4, 6))
    assert torch.equal(call(recordings, torch.sub, a, b), a - b)
    assert recordings.played == 1


def scaled(a: Tensor, n: Any) -> Tensor:
    return a * 2 if n is True else a.reshape(-1)[: a.shape[0]] * n


@pytest.mark.parametrize(
    ("other", "n"),
    [
        (torch.ones(3, 4), 1),
        (torch.ones(4, 2).double(), 1),
        (torch.ones(2, 4).t(), 1),
        (torch.ones(4, 2), True),
        (torch.ones(4, 2), 1.0),
        (torch.ones(4, 2), 3),
    ],
    ids=["shape", "dtype", "strides", "truth", "type", "number"],
)
def test_other_sizes_and_numbers_are_other_computations(other: Tensor, n: Any) -> None:
    recordings = Recordings("always")
    for given in ((torch.ones(4, 2), 1), (other, n)) * 2:
        assert torch.equal(call(recordings, scaled, *given), scaled(*given))
    assert (recordings.recorded, recordings.played) == (2, 2)


def picked_by_value(a: Tensor) -> Tensor:
    return a[a > 0].sum()


def as_often_as_a_value_says(a: Tensor) -> Tensor:
    return a * int(a.sum())


def with_any_there_are(a: Tensor) -> Tensor:
    return a.nonzero().sum()


@pytest.mark.parametrize("function", [picked_by_value, as_often_as_a_value_says, with_any_there_are])
def test_what_depends_on_values_is_computed_anew_with_one_note(
    function: Callable[..., Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    recordings = Recordings("always")
    with caplog.at_level(logging.INFO):
        for width in (3, 5):
            for seed in range(3):
                (a, _), rows = inputs(seed), width
                assert torch.equal(call(recordings, function, a[:, :rows]), function(a[:, :rows]))
    assert (recordings.recorded, recordings.played) == (0, 0)
    [note] = caplog.records
    assert note.levelno == logging.INFO
    assert function.__name__ in note.message


OUTSIDE = {"factor": torch.tensor(2.0)}


def from_outside(a: Tensor) -> Tensor:
    return a * OUTSIDE["factor"]


def test_a_tensor_from_outside_is_never_repeated_and_noted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    recordings, (a, _) = Recordings("always"), inputs(0)
    for factor in (2.0, 3.0, 4.0):
        monkeypatch.setitem(OUTSIDE, "factor", torch.tensor(factor))
        assert torch.equal(call(recordings, from_outside, a), a * factor)
    [note] = caplog.records
    assert note.levelno == logging.WARNING


@pytest.mark.parametrize("broken", ["play", "derive", "making"])
def test_a_recording_that_fails_is_dropped_with_one_note(
    broken: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("no such kernel")

    recordings = Recordings("always")
    if broken == "making":
        monkeypatch.setattr("fedweave.ops.tape.compile_calls", fails)
    else:
        monkeypatch.setattr(Recording, broken, fails)
    for seed in range(4):
        given = inputs(seed)
        assert torch.equal(call(recordings, gradient, *given), gradient(*given))
    assert recordings.played == 0
    [note] = caplog.records
    assert note.levelno == logging.WARNING
    assert re.search("(?s)gradient.*no such kernel", note.message)


def test_errors_of_the_function_are_its_own() -> None:
    def refuses(a: Tensor) -> Tensor:
        raise ValueError("not with me")

    recordings = Recordings("always")
    for _ in range(3):
        with pytest.raises(ValueError, match="not with me"):
            call(recordings, refuses, torch.ones(2))


class Owner:
    """Rows that a batch holds, of which a matrix is made; what it holds further down is derived from that."""

    def __init__(self, *rows: float) -> None:
        self.rows, self.sizes = rows, "any"

    @property
    @derived
    def matrix(self) -> Tensor:
        return torch.tensor(self.rows)[:, None].expand(-1, 6).contiguous()

    @property
    @derived
    def below(self) -> "tuple[Tensor, Owner]":
        return torch.tensor(self.rows) + 1, Owner(*(row + 1 for row in self.rows))


def from_owner(owner: Owner, a: Tensor) -> Tensor:
    first, deeper = owner.below
    return a[: len(first)] @ owner.matrix.T + deeper.matrix.sum() * first


def test_what_is_derived_is_that_of_the_batch_it_is_played_on() -> None:
    recordings, (a, _) = Recordings("always"), inputs(0)
    for rows in ((1.0, 2.0), (5.0, 7.0), (3.0, 4.0, 5.0), (0.0, 9.0), (1.0, 1.0, 8.0)):
        owner, plain = Owner(*rows), Owner(*rows)

        with recordings.activate():
            found = record_or_play(partial(from_owner, owner), (from_owner,), (), (owner,), (a,))
        assert torch.equal(found, from_owner(plain, a))
    assert (recordings.recorded, recordings.played) == (2, 3)  # one of two rows, one of three


def test_a_batch_is_not_kept_alive() -> None:
    recordings = Recordings("always")

    def used() -> list[weakref.ref[Any]]:
        owner = Owner(1.0, 2.0)
        with recordings.activate():
            record_or_play(partial(from_owner, owner), (from_owner,), (), (owner,), (torch.ones(4, 6),))
        return [weakref.ref(thing) for thing in (owner, owner.matrix, *owner.below)]

    gone = used()
    gc.collect()
    assert recordings.recorded == 1
    assert [reference() for reference in gone] == [None] * 4


def test_a_recorded_part_is_one_call_of_the_whole() -> None:
    recordings = Recordings()

    def whole(a: Tensor, b: Tensor) -> Tensor:
        for _ in range(3):
            a = a - record_or_play(gradient, (gradient,), (), (), (a, b))
        return a

    for seed in range(4):
        given = inputs(seed)
        assert torch.equal(call(recordings, whole, *given), whole(*given))
    parts = 1 + 3  # of the first and, while it is taped, the second call
    assert (recordings.recorded, recordings.played) == (2, parts + 2)


def test_recordings_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_MAX_COMPUTATIONS", 3)
    recordings = Recordings("always")
    for size in (1, 2, 1, 3, 1, 4, 1, 5, 2):
        call(recordings, torch.neg, torch.ones(size))
    assert recordings.recorded == 6  # the first stays, for it is asked for; the second is recorded twice
    assert recordings.played == 3
    assert len(recordings._computations) == 3


def test_recordings_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_MAX_BYTES", 30_000)
    recordings = Recordings("always")
    for size in range(20):

        def large(a: Tensor) -> Tensor:
            return a + torch.tensor([1.0] * 2500)  # 10,000 bytes

        found = call(recordings, large, torch.zeros(size, 1))
        assert found.shape == (size, 2500)
        assert recordings.bytes <= 30_000
    assert len(recordings._computations) == 2


def rounds(graphs: dict[str, Graph], count: int, **options: Any) -> tuple[dict[str, Tensor], Simulation]:
    model = MODELS["gcn"](hidden=4).build(6, 3)
    fed = Simulation(graphs, classes=3, **options)
    *_, last = train(FedAvg(model, participation=0.3), fed, count)
    return dict(leaves(last.state["w"])), fed


def test_other_clients_of_the_same_sizes_are_played(make_graphs: Callable[..., dict[str, Graph]]) -> None:
    """Three of ten clients in every round, hardly ever the same three."""
    graphs = make_graphs([40 + at for at in range(10)], sparse=True, dtype=torch.float32)
    expected, _ = rounds(graphs, 8, mode="loop")
    for record in ("auto", "never"):
        found, fed = rounds(graphs, 8, record=record)
        assert all(torch.equal(found[path], tensor) for path, tensor in expected.items())
        if record == "auto":
            assert len(fed.executor._batches._stacked) > 5
            assert fed.recordings.played >= 8

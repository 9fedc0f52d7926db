"""Updates in fewer bytes: what is packed is unpacked, rounding has no bias, and what is left out comes later."""

import math
from typing import Any

import pytest
import torch
from torch.func import vmap

from fedweave.algorithms import ALGORITHMS, FedAvg
from fedweave.algorithms.parts import Clip, MemberNoise, Quantize, SecureSum, TopK
from fedweave.algorithms.parts.packing import Packing
from fedweave.core import random
from fedweave.core.replies import Replies, ReplyBatch
from fedweave.core.tree import Tree, leaves, map_leaves, ravel
from fedweave.engines.simulation import Simulation
from fedweave.errors import ReplyRefused
from fedweave.experiment.rounds import train
from tests.contract.federations import Recorder, distance, federation, model

PACKINGS = [Packing(share, bits) for share in (1.0, 0.3) for bits in (0, 8, 4) if (share, bits) != (1.0, 0)]


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_on_the_grid_comes_back(packing: Packing, dtype: torch.dtype) -> None:
    """Odd counts, zeros, one entry, and several clients at once."""
    for shape in ((7, 3), (1,), (5, 1), (4, 4)):
        rows = random.normal(random.key(3), (6, *shape)).to(dtype)
        rows[0] = 0
        if packing.share < 1:
            rows = torch.stack([TopK(packing.share).keep_largest(row) for row in rows])
        if packing.bits:
            part = Quantize(packing.bits)  # type: ignore[arg-type]
            rows = torch.stack([part.round_leaf(row, random.key(at)) for at, row in enumerate(rows)])
        packed = vmap(packing.pack_leaf)(rows)
        count, kept = rows[0].numel(), packing.max_entries(rows[0].numel())
        each = (4 * kept if packing.share < 1 else 0) + (
            math.ceil(kept * packing.bits / 8) + dtype.itemsize if packing.bits else kept * dtype.itemsize
        )
        assert sum(leaf[0].nbytes for leaf in packed.values()) == each
        whole = packing.unpack_leaf(packed, rows[0])
        tolerance = 1e-6 if dtype == torch.float32 else 1e-15
        torch.testing.assert_close(whole, rows, rtol=tolerance, atol=tolerance)
        assert count == whole[0].numel()
        for row, one in zip(rows, whole, strict=True):
            alone = {name: leaf[None] for name, leaf in packing.pack_leaf(row).items()}
            assert torch.equal(packing.unpack_leaf(alone, row)[0], one)


@pytest.mark.parametrize("bits", [8, 4])
def test_rounding_is_unbiased_and_to_a_neighbor(bits: Any) -> None:
    """Mean and variance: of a step s, rounded up with probability p, it is s² p (1 − p)."""
    x, draws = torch.tensor([-1.0, -0.3, -0.01, 0.0, 0.123, 0.77, 1.0], dtype=torch.float64), 20_000
    part, levels = Quantize(bits), Packing(bits=bits).levels
    rounded = vmap(part.round_leaf, in_dims=(None, 0))(x, random.fold(random.key(7), torch.arange(draws)))
    step = 1 / levels
    assert ((rounded - x).abs() < step + 1e-12).all()
    p = x / step - torch.floor(x / step)
    deviation = step * (p * (1 - p)).sqrt()
    assert ((rounded.mean(0) - x).abs() <= 5 * deviation / draws**0.5 + 1e-12).all()
    torch.testing.assert_close(rounded.std(0), deviation, rtol=0.05, atol=1e-9)
    nearest = torch.round(x / step) * step  # a cheat: without chance there is a bias
    assert ((nearest - x).abs() > 5 * deviation / draws**0.5 + 1e-12).any()


def test_what_is_left_out_is_sent_later() -> None:
    """Σ sent + what is left = Σ of the updates that clients would have sent, in every round."""
    algorithm = FedAvg(model(), parts=(TopK(0.2),))
    fed = federation(engine=Recorder, dtype=torch.float64)
    fed.begin(0)
    state = algorithm.init(fed)
    sent = {client: torch.zeros_like(ravel(state["w"])) for client in fed.clients}
    due = {client: torch.zeros_like(ravel(state["w"])) for client in fed.clients}
    for number in range(1, 5):
        fed.begin(number)
        before = state["w"]
        state = algorithm.round(state, fed)
        replies = algorithm.composed.packing.unpack(fed.heard, before)  # type: ignore[union-attr]
        for client, kept in fed.snapshot().items():
            update = ravel(replies[client]["update"])
            sent[client] = sent[client] + update
            due[client] = due[client] + ravel(kept["w"]) - ravel(before)
            torch.testing.assert_close(sent[client] + ravel(kept["TopK"]["left"]), due[client], rtol=0, atol=1e-12)
            for path, leaf in leaves(replies[client]["update"]):
                assert (leaf != 0).sum() <= math.ceil(0.2 * leaf.numel()), path


def run(parts: Any, rounds: int = 4, **options: Any) -> tuple[Tree, Simulation]:
    fed = federation(**options)
    *_, last = train(FedAvg(model(), parts=parts), fed, rounds)
    return last.state, fed


PARTS: list[Any] = [
    (TopK(0.3),),
    (Quantize(8),),
    (Quantize(4), Clip(0.3)),
    (TopK(0.3), Quantize(8)),
    ("quantize", "median"),
]


@pytest.mark.often(*map(str, PARTS[2:]))
@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_loop_batch_and_recording_agree(parts: Any) -> None:
    states = [
        run(parts, 2, mode=mode, record=record, dtype=torch.float64)
        for mode, record in (("loop", "never"), ("vmap", "never"), ("vmap", "always"))
    ]
    assert distance(states[0][0]["w"], states[1][0]["w"]) <= 1e-9
    assert distance(states[1][0], states[2][0]) == 0
    assert states[0][1].ledger.bytes_up == states[1][1].ledger.bytes_up


def test_all_entries_are_fedavg_and_few_bits_are_near_it() -> None:
    plain, whole = (run(parts, dtype=torch.float64)[0]["w"] for parts in ((), (TopK(1.0),)))
    assert distance(plain, whole) == 0
    assert 0 < distance(plain, run((Quantize(8),), dtype=torch.float64)[0]["w"]) < 0.1


FEWER: list[Any] = [((Quantize(8),), 2.5), ((Quantize(4),), 4.5), ((TopK(0.05), Quantize(8)), 5.6)]


@pytest.mark.parametrize(("parts", "least"), FEWER)
def test_the_ledger_has_fewer_bytes(parts: Any, least: float) -> None:
    """Of the update; what frames a message is as large."""

    def of_updates(fed: Simulation) -> int:
        rows = fed.ledger.table().to_pylist()
        return sum(row["bytes"] for row in rows if row["key"].startswith("update") and row["direction"] == "up")

    (_, plain), (_, packed) = run((), 2), run(parts, 2)
    assert of_updates(plain) / of_updates(packed) > least
    assert plain.ledger.bytes_up > packed.ledger.bytes_up


def test_a_run_goes_on_from_a_checkpoint() -> None:
    algorithm = FedAvg(model(), parts=(TopK(0.2), Quantize(8)))
    (expected, whole), (before, half), after = run(algorithm.parts), run(algorithm.parts, 2), federation()
    after.restore(half.snapshot(), half.snapshot_data())
    *_, last = train(algorithm, after, 4, resume=(2, before))
    assert distance({"s": last.state, "c": after.snapshot()}, {"s": expected, "c": whole.snapshot()}) == 0


HOSTILE: list[Any] = [
    lambda packed: packed | {"at": packed["at"] + 1000},
    lambda packed: packed | {"at": packed["at"] - 1000},
    lambda packed: packed | {"codes": packed["codes"][:, 1:]},
    lambda packed: packed | {"scale": packed["scale"].float()},
    lambda packed: {name: leaf for name, leaf in packed.items() if name != "scale"},
    lambda packed: packed | {"values": packed["scale"]},
]


@pytest.mark.parametrize("spoil", HOSTILE)
def test_what_has_another_form_is_refused(spoil: Any) -> None:
    packing, w = Packing(0.5, 8), {"a": torch.arange(6, dtype=torch.float64)}
    packed = map_leaves(lambda leaf: leaf[None], packing.pack(w))
    good = Replies(["site"], [ReplyBatch((0,), {"update": packed})], {})
    assert packing.unpack(good, w).paths == ("update/a",)
    bad = Replies(["site"], [ReplyBatch((0,), {"update": {"a": spoil(packed["a"])}})], {})
    with pytest.raises(ReplyRefused):
        packing.unpack(bad, w)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("fedavg", (Quantize(), SecureSum())),
        ("fedavg", (TopK(), SecureSum())),
        ("fedavg", (Clip(), TopK())),
        ("fedavg", (Quantize(), MemberNoise(sigma=1.0))),
        ("fedavg", (Quantize(), Quantize(4))),
        ("fedavg", (Quantize(), TopK())),
        ("fedavg", (TopK(), TopK())),
        ("cgsv", (TopK(),)),
    ],
)
def test_what_does_not_go_together_is_refused(name: str, parts: Any) -> None:
    with pytest.raises(ValueError, match="parts: "):
        ALGORITHMS[name](model(), parts=parts)

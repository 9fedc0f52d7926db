from typing import Any

import numpy as np
import pytest

from fedweave.datasets import Dataset, load
from fedweave.datasets.check import check
from fedweave.datasets.transfers import CYCLE, FAN_IN, FAN_OUT, LAYERING, Rings, Transfers, draw_rings, place, times
from fedweave.errors import ConfigError
from fedweave.partition import Column


def as_bytes(data: Dataset) -> list[bytes]:
    assert data.edge_attrs is not None
    return [np.asarray(part).tobytes() for part in (data.x, data.y, data.owner, *data.edge_attrs.arrays().values())]


@pytest.mark.often("small", "banks")
@pytest.mark.parametrize(
    ("params", "accounts", "transfers", "frauds"),
    [
        pytest.param({"preset": "small"}, 600, 3000, 30, id="small"),
        pytest.param({}, 30_000, 150_000, 300, id="banks"),
        pytest.param({"accounts": 6000, "transfers": 1000, "fraud": 0.0005}, 6000, 1000, 3, id="rare"),
        pytest.param({"preset": "small", "transfers": 1000, "banks": 1, "decoys": 0.0}, 600, 1000, 30, id="one bank"),
        pytest.param({"preset": "large", "accounts": 300_000, "transfers": 10**6}, 300_000, 10**6, 150, id="large"),
    ],
)
def test_sizes_and_shares_are_the_parameters(
    params: dict[str, Any], accounts: int, transfers: int, frauds: int
) -> None:
    data = check(load("transfers", seed=1, **params), "transfers")
    edge_attrs, banks = data.edge_attrs, params.get("banks", 3)
    assert edge_attrs is not None
    assert edge_attrs.time is not None
    assert edge_attrs.y is not None
    assert edge_attrs.split is not None
    assert (data.nodes, edge_attrs.total, data.y.sum()) == (accounts, transfers, frauds)
    assert np.ptp(np.bincount(np.asarray(data.owner), minlength=banks)) <= 1
    assert np.bincount(edge_attrs.split).tolist() == [transfers * 3 // 5, transfers // 5, transfers // 5]
    assert (np.diff(edge_attrs.time) >= 0).all()
    assert edge_attrs.time[0] >= 0
    assert edge_attrs.time[-1] < 180
    laundered = edge_attrs.ends[:, edge_attrs.y == 1]
    assert set(laundered.ravel()) == set(np.flatnonzero(data.y))  # a ring's members, and nobody else
    assert 2 * frauds / 2 <= edge_attrs.y.sum() <= 5 * frauds
    if banks > 1 and transfers >= 3000:
        owner = np.asarray(data.owner)[edge_attrs.ends]
        assert (owner[0] != owner[1])[edge_attrs.y == 0].mean() == pytest.approx(0.3, abs=0.04)


def test_a_seed_gives_the_same_bits_and_another_others() -> None:
    one, again, other = (as_bytes(load("transfers", seed=seed, preset="small")) for seed in (3, 3, 4))
    assert one == again
    assert all(mine != theirs for mine, theirs in zip(one[:4], other[:4], strict=True))


def degrees(rings: Rings, ring: int) -> tuple[list[int], list[int]]:
    """How often each member of one ring pays, and is paid."""
    members = np.flatnonzero(rings.ring == ring)
    ends = (rings.source, rings.target)
    pays, paid = (np.bincount(end, minlength=len(rings.ring))[members].tolist() for end in ends)
    return pays, paid


@pytest.mark.parametrize("members", [3, 4, 7, 500])
def test_rings_have_the_degrees_of_their_kind(members: int) -> None:
    rings = draw_rings(members, np.random.default_rng(0))
    assert rings.size.sum() == members == len(rings.ring)
    assert rings.size.min() >= 3
    for ring, (kind, size) in enumerate(zip(rings.kind, rings.size, strict=True)):
        pays, paid = degrees(rings, ring)
        many, width = size - 1, (size - 2) // 2
        expected = {
            FAN_IN: ([0] + [1] * many, [many] + [0] * many),
            FAN_OUT: ([many] + [0] * many, [0] + [1] * many),
            CYCLE: ([1] * size, [1] * size),
            LAYERING: ([width] + [1] * (size - 2) + [0], [0] + [1] * (size - 2) + [width]),
        }
        assert (pays, paid) == expected[kind]
    if members == 500:
        assert set(rings.kind) == {FAN_IN, FAN_OUT, CYCLE, LAYERING}


def test_layers_are_at_one_bank_after_the_other_and_their_times_rise() -> None:
    rng = np.random.default_rng(0)
    rings, bank = draw_rings(300, rng), np.arange(3000) % 3
    taken = np.arange(3000) < 900
    account = place(rings, bank, taken, 1.0, rng)
    assert len(set(account)) == 300
    assert not taken[account].any()
    at, chain = bank[account], rings.kind[rings.ring] == LAYERING
    paying = chain[rings.source]
    assert ((at[rings.target] - at[rings.source])[paying] % 3 == 1).all()
    alone = bank[place(rings, bank, taken, 0.0, rng)]
    assert (alone[rings.target] == alone[rings.source]).all()
    runs = np.full(len(rings.size), 2)
    payment, time = times(rings, runs, 180.0, 2.0, rng)
    stage, ring = rings.stage[payment], rings.ring[rings.source[payment]]
    for own in range(len(runs)):
        mine = np.flatnonzero(ring == own)
        for run in (mine[np.argsort(time[mine])][: len(mine) // 2], mine[np.argsort(time[mine])][len(mine) // 2 :]):
            assert (np.diff(stage[run]) >= 0).all()
    assert time.min() >= 0
    assert time.max() < 180


def test_no_feature_alone_tells_frauds_or_laundering() -> None:
    from sklearn.metrics import average_precision_score

    data = load("transfers", seed=0, accounts=15_000, transfers=75_000)
    assert data.edge_attrs is not None
    assert data.edge_attrs.features is not None
    ends = data.edge_attrs.ends
    counts = [np.bincount(end, minlength=data.nodes)[:, None] for end in ends]
    for y, columns, most in (
        (data.y, np.concatenate([data.x, *counts], 1), 0.1),
        (data.edge_attrs.y, data.edge_attrs.features, 0.1),
    ):
        for column in columns.T:
            assert max(average_precision_score(y, column), average_precision_score(y, -column)) < most


def test_tables_say_the_same() -> None:
    kind = Transfers("small")
    data, (accounts, transfers) = kind.load(None, 5), kind.tables(5)
    assert data.edge_attrs is not None
    assert accounts["label"].to_pylist() == [("honest", "fraud")[label] for label in data.y]
    assert accounts["bank"].to_pylist() == [data.owners[owner] for owner in np.asarray(data.owner)]
    assert np.array_equal([transfers["source"], transfers["target"]], data.edge_attrs.ends)
    assert transfers["kind"].to_pylist() == [("ordinary", "laundering")[label] for label in data.edge_attrs.y]
    days = (transfers["date"].to_numpy() - np.datetime64("2024-01-01")) / np.timedelta64(1, "D")
    assert np.abs(days - data.edge_attrs.time).max() < 2e-5


def test_a_bank_is_a_client_and_labels_survive_a_file(tmp_path: Any) -> None:
    data = load("transfers", preset="small")
    cut = Column().cut(data, 0)
    assert cut.names == ("bank-1", "bank-2", "bank-3")
    again = load("npz", str(data.save(tmp_path / "own.npz")), loops="keep", edge_normalize="none")
    assert as_bytes(again) == as_bytes(data)


@pytest.mark.parametrize(
    ("params", "key"),
    [
        ({"preset": "huge"}, "preset"),
        ({"accounts": 20}, "banks"),
        ({"fraud": 0.00001}, "fraud"),
        ({"fraud": 0.5}, "fraud"),
        ({"transfers": 1000}, "transfers"),
        ({"accounts": 100, "banks": 10, "fraud": 0.2, "transfers": 1000, "spanning": 0.0}, "banks"),
    ],
)
def test_what_cannot_be_is_refused(params: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} = "):
        load("transfers", **params)

"""Vertical cuts: laws on random graphs, cases worked by hand, and Cora."""

import functools
import hashlib
import hmac
import operator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedweave import datasets
from fedweave.datasets.base import Dataset, Party
from fedweave.partition import PARTITIONS, Parties, Vertical, statistics, totals
from fedweave.partition.splits import masks_by_hash
from tests.refusals import refusal

# 0 - 1 - 2 - 3 - 0 and 1 - 3
EDGES = np.array([[0, 0, 1, 1, 1, 2, 2, 3, 3, 3], [1, 3, 0, 2, 3, 1, 3, 0, 1, 2]])


def square(**more: Any) -> Dataset:
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    return Dataset("square", x, EDGES, np.array([0, 1, -1, 1]), 2, **more)


def random_data(nodes: int, features: int, seed: int) -> Dataset:
    rng = np.random.default_rng(seed)
    dense = np.triu(rng.random((nodes, nodes)) < 0.3, 1)
    x = rng.random((nodes, features)).astype(np.float32)
    return Dataset("random", x, np.stack(np.nonzero(dense | dense.T)), rng.integers(0, 2, nodes), 2)


def codes(data: Dataset, edges: np.ndarray) -> np.ndarray:
    return edges[0] * data.nodes + edges[1]


@settings(max_examples=60, deadline=None)
@given(
    clients=st.integers(1, 6),
    features=st.integers(6, 40),
    nodes=st.integers(2, 25),
    share=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_laws(clients: int, features: int, nodes: int, share: float, seed: int) -> None:
    data = random_data(nodes, features, seed)
    cut = Vertical(clients=clients, edges=share).cut(data, seed)
    assert len(cut.parts) == clients
    assert cut.test is None
    blocks = [part.columns for part in cut.parts]
    assert np.concatenate(blocks).tolist() == list(range(features))  # type: ignore[arg-type]
    widths = [len(block) for block in blocks]  # type: ignore[arg-type]
    assert max(widths) - min(widths) <= 1
    for part in cut.parts:
        assert part.nodes.tolist() == list(range(nodes))
        assert np.array_equal(part.masks, cut.parts[0].masks)
        assert part.edges is not None
        assert part.edges.shape[1] == 2 * round(share * data.edges.shape[1] / 2)
        forth, back = codes(data, part.edges), codes(data, part.edges[::-1])
        assert (np.diff(forth) > 0).all()  # sorted, without duplicates
        assert np.array_equal(np.sort(back), forth)
        assert np.isin(forth, codes(data, data.edges)).all()


def test_clients_sample_edges_independently_and_by_seed() -> None:
    data = random_data(60, 6, 0)
    kept = [codes(data, part.edges) for part in Vertical(clients=2, edges=0.5).cut(data, 1).parts]  # type: ignore[arg-type]
    share = np.isin(kept[0], kept[1]).mean()
    assert 0.3 < share < 0.7
    more = Vertical(clients=3, edges=0.5).cut(data, 1).parts
    assert np.array_equal(codes(data, more[0].edges), kept[0])  # type: ignore[arg-type]
    other = Vertical(clients=2, edges=0.5).cut(data, 2).parts[0]
    assert not np.array_equal(codes(data, other.edges), kept[0])  # type: ignore[arg-type]


def test_every_edge_is_equally_likely() -> None:
    """5 edges, 3 kept, 400 draws: each is kept 240 times, give or take 5 standard deviations of 9.8."""
    data = square()
    count = np.zeros(EDGES.shape[1], int)
    for seed in range(400):
        [part] = Vertical(clients=1, edges=0.6).cut(data, seed).parts
        count += np.isin(codes(data, EDGES), codes(data, part.edges))  # type: ignore[arg-type]
    assert (abs(count - 240) < 49).all()


def test_widths_by_hand() -> None:
    parts = Vertical(clients=3, widths=(2.0, 2.0, 1.0)).cut(square(), 0).parts
    assert [part.columns.tolist() for part in parts] == [[0, 1], [2, 3], [4]]  # type: ignore[union-attr]
    with refusal("config.blocks", "[99.0, 1.0]"):
        Vertical(clients=2, widths=(99.0, 1.0)).cut(square(), 0)
    with refusal("config.blocks", "6 blocks"):
        Vertical(clients=6).cut(square(), 0)


def test_random_blocks_hold_every_column_once_and_are_the_seeds() -> None:
    data = random_data(8, 30, 0)
    first, again, other = (Vertical(blocks="random").cut(data, seed).parts for seed in (0, 0, 1))
    columns = [part.columns.tolist() for part in first]  # type: ignore[union-attr]
    assert sorted(functools.reduce(operator.iadd, columns, [])) == list(range(30))
    assert all(own == sorted(own) for own in columns)
    assert columns[0] != list(range(10))
    assert columns == [part.columns.tolist() for part in again] != [part.columns.tolist() for part in other]  # type: ignore[union-attr]


def test_labels_only_at_the_first() -> None:
    everyone, first = (Vertical(labels=labels).cut(square(), 0).parts for labels in ("all", "first"))  # type: ignore[arg-type]
    assert [part.labels for part in everyone] == [True, True, True]
    assert [part.labels for part in first] == [True, False, False]
    assert first[2].masks.any()


def test_published_masks_and_the_rest() -> None:
    """Node 2 is unlabeled; 0 is published as train, 1 as test, and 3 is in no mask."""
    public = np.array([[1, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]], bool)
    for train_on_rest, trains in ((False, [0]), (True, [0, 3])):
        cut = Vertical(use_dataset_split=True, train_on_rest=train_on_rest).cut(square(public=public), 0)
        for part in cut.parts:
            assert [np.flatnonzero(mask).tolist() for mask in part.masks] == [trains, [], [1]]
    with refusal("config.no-split", "'square'"):
        Vertical(use_dataset_split=True).cut(square(), 0)


@pytest.mark.parametrize("kind", [Vertical, Parties])
def test_rest_needs_the_published_split(kind: type) -> None:
    with refusal("config.public-split", "train_on_rest = true", "use_dataset_split = true"):
        kind(train_on_rest=True)


def test_widths_are_of_all_clients() -> None:
    with refusal("config.value", "widths = [1.0]: are 1 for clients = 3"):
        Vertical(widths=(1.0,))


def test_statistics_by_hand() -> None:
    """Of 5 edges each client keeps 3, so 2 are missing, with 4 ends."""
    cut = Vertical(clients=2, edges=0.6).cut(square(), 0)
    columns = statistics(square(), cut)
    assert columns["features"] == [2, 3]
    assert columns["nodes"] == [4, 4]
    assert columns["edges_kept"] == [3, 3]
    assert columns["edges_cut"] == [0, 0]  # none leads to another client
    union = {tuple(edge) for part in cut.parts for edge in part.edges.T.tolist()}  # type: ignore[union-attr]
    whole = totals(square(), cut)
    assert (whole["edges"], whole["edges_kept"], whole["edges_lost"]) == (5, len(union) // 2, 5 - len(union) // 2)


def parties() -> tuple[Party, ...]:
    return (
        Party("bank", np.array([0, 1, 2]), np.array([[0, 1], [1, 0]]), labels=False),
        Party("shop", np.array([3, 4]), EDGES),
    )


def test_parties_keep_what_is_theirs() -> None:
    data = square(parties=parties())
    cut = PARTITIONS["parties"](labels="holders").cut(data, 0)
    assert cut.names == ("bank", "shop")
    for part, party in zip(cut.parts, parties(), strict=True):
        assert part.nodes.tolist() == [0, 1, 2, 3]
        assert np.array_equal(part.columns, party.columns)
        assert np.array_equal(part.edges, party.edges)
        assert part.labels == party.labels
        assert part.masks.any(1).tolist() == cut.parts[0].masks.any(1).tolist()
    assert all(part.labels for part in PARTITIONS["parties"]().cut(data, 0).parts)


def test_parties_are_refused_where_there_are_none() -> None:
    with refusal("config.one-party", "'square'", "'vertical'"):
        Parties().cut(square(), 0)


def test_cora(data_root: Path) -> None:
    data = datasets.load("cora", path=str(data_root))
    cut = Vertical(use_dataset_split=True, train_on_rest=True).cut(data, 0)
    columns = statistics(data, cut)
    assert columns["features"] == [478, 477, 478]
    edges = data.edges.shape[1] // 2
    assert columns["edges_kept"] == [round(0.8 * edges)] * 3
    assert (columns["train"], columns["val"], columns["test"]) == ([1208] * 3, [500] * 3, [1000] * 3)
    assert totals(data, cut)["edges_lost"] == pytest.approx(0.2**3 * edges, rel=0.5)


def test_equally_many_nodes_of_each_label_train() -> None:
    data = random_data(60, 6, 0)
    cut = Vertical(clients=2, train_per_class=10, val=0.25, test=0.3).cut(data, 0)
    for part in cut.parts:
        assert np.bincount(data.y[part.masks[0]]).tolist() == [10, 10]
        assert part.masks.sum(1).tolist() == [20, 15, 18]
        assert np.array_equal(part.masks, cut.parts[0].masks)
    with refusal("config.public-split", "train_per_class = 10"):
        Vertical(train_per_class=10, use_dataset_split=True)


def test_a_hashed_split_is_what_the_key_and_the_id_say(tmp_path: Path) -> None:
    """As whoever has the key computes it: the first 8 bytes of HMAC-SHA256 as a share of 2^64."""
    ids, key, shares = tuple(f"p{i}" for i in range(4000)), b"k" * 32, (0.5, 0.2, 0.2)
    masks = masks_by_hash(ids, shares, key)
    for at in range(20):
        digest = hmac.new(key, b"fedweave split\x00" + ids[at].encode(), hashlib.sha256).digest()
        place = int.from_bytes(digest[:8], "big") / 2**64
        assert masks[:, at].tolist() == [place < 0.5, 0.5 <= place < 0.7, 0.7 <= place < 0.9]
    assert masks.sum(0).max() == 1
    np.testing.assert_allclose(masks.mean(1), shares, atol=0.03)  # four standard deviations of 0.5 over 4,000
    np.testing.assert_array_equal(masks_by_hash(ids[::-2], shares, key), masks[:, ::-2])  # whatever other ids there are
    assert not np.array_equal(masks_by_hash(ids, shares, b"j" * 32), masks)


def test_parties_that_split_by_a_hash_do_so_whatever_the_labels() -> None:
    ids = tuple(map(str, range(200)))
    held = tuple(Party(name, np.array([at]), np.empty((2, 0), np.int64)) for at, name in enumerate("ab"))

    def cut(y: np.ndarray, seed: int = 0) -> np.ndarray:
        data = Dataset("d", np.ones((200, 2), np.float32), np.empty((2, 0), np.int64), y, 2, parties=held, ids=ids)
        first, second = Parties(split="hash", train=0.6, val=0.2, test=0.2).cut(data, seed).parts
        assert np.array_equal(first.masks, second.masks)
        return first.masks

    y = np.arange(200) % 2
    masks = cut(y)
    assert masks.sum(0).tolist() == [1] * 200
    assert np.array_equal(cut(1 - y), masks)
    assert not np.array_equal(cut(y, 1), masks)
    some = np.where(np.arange(200) < 50, y, -1)
    assert np.array_equal(cut(some), masks & (some >= 0))
    with refusal("config.public-split", "split", "use_dataset_split"):
        Parties(split="hash", use_dataset_split=True)

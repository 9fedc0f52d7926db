"""Rounds of which each calls a few clients: recordings, states and graphs of the others."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedweave.core.graph import stack
from fedweave.core.sizes import batch_sizes
from fedweave.core.tree import leaves
from fedweave.datasets.base import Dataset
from fedweave.engines import states as filed
from fedweave.engines.states import RowStore
from fedweave.experiment import graphs
from fedweave.experiment.build import build
from fedweave.experiment.config import Document, resolve
from fedweave.experiment.graphs import client_graphs
from fedweave.experiment.rounds import train
from fedweave.ops.sparse import Sparse
from fedweave.partition.base import Part, Partition

CLIENTS = 30


def sampled(mode: str = "vmap") -> Any:
    document: Document = {
        "data": {"name": "synthetic", "nodes": 6 * CLIENTS, "features": 8},
        "partition": {"name": "random", "clients": CLIENTS, "train": 0.5, "val": 0.2, "test": 0.3},
        "model": {"name": "gcn", "hidden": 4},
        "algorithm": {"name": "fedavg", "participation": 0.4},
        "engine": {"mode": mode},
    }
    return build(resolve(document))


def rounds(built: Any, count: int) -> Any:
    return [step.state for step in islice(train(built.algorithm, built.fed, 1000, eval_every=0), count)][-1]


def test_recordings_of_one_sample_are_played_for_the_next_with_the_loops_bits() -> None:
    one, other = sampled(), sampled("loop")
    states = [dict(leaves(rounds(built, 8))) for built in (one, other)]
    assert all(torch.equal(states[0][path], own) for path, own in states[1].items())
    assert one.fed.recordings.played >= 2 * one.fed.recordings.recorded
    kept, loops = (dict(leaves(built.fed.snapshot())) for built in (one, other))
    assert kept.keys() == loops.keys()
    assert all(torch.equal(torch.as_tensor(kept[path]), torch.as_tensor(own)) for path, own in loops.items())


@pytest.mark.parametrize(
    ("clients", "rows", "most", "expected"),
    [
        (1000, 64, 1024, [(1000, 1024)]),
        (800, 64, 1024, [(512, 512), (256, 256), (32, 32)]),
        (20, 64, 1024, [(20, 32)]),
        (5, 5000, 100, [(4, 4), (1, 1)]),
        (90, 64, 100, [(90, 100)]),
    ],
)
def test_few_sizes_serve_all_numbers_of_clients(
    clients: int, rows: int, most: int, expected: list[tuple[int, int]]
) -> None:
    assert batch_sizes(clients, rows, most) == expected


@pytest.mark.parametrize("in_memory", [1 << 20, 0])
def test_rows_stay_with_their_clients_while_a_table_grows(monkeypatch: Any, in_memory: int) -> None:
    monkeypatch.setattr(filed, "_IN_MEMORY", in_memory)
    flat = {"w": torch.arange(400.0).view(200, 2), "steps": torch.arange(200), "name": "x"}
    table = RowStore(flat)
    names = [f"c{i}" for i in range(200)]
    at = table.put(names[:50], flat, range(50)) + table.put(names[50:], flat, range(50, 200))
    assert table.put(names[:1], flat, [7]) == [0]
    assert table.leaves["w"][at[1:]].equal(flat["w"][1:])
    assert table.leaves["w"][0].equal(flat["w"][7])
    assert table.leaves["steps"][at[1:]].equal(flat["steps"][1:])
    assert table.leaves["name"] == "x"


def test_graphs_of_absent_clients_are_not_made_and_the_oldest_are_made_again(monkeypatch: Any) -> None:
    built, batched = sampled("loop"), sampled()
    made = built.fed.executor.data.graphs.maps[1]
    assert len(made) == CLIENTS
    rounds(built, 1)
    assert len(made._graphs) in (12, 13)  # those called, and one that was asked for the features' dtype
    rounds(batched, 1)
    assert len(batched.fed.executor.data.graphs.maps[1]._graphs) == 1  # a batch is made without a graph of each
    first = next(iter(made._graphs))
    whole = made[first].x.clone()
    monkeypatch.setattr(graphs, "_MAX_BYTES", 0)
    made[next(client for client in made if client not in made._graphs)]
    assert len(made._graphs) == 1
    assert made[first].x.equal(whole)


def small(sparse: bool, sensitive: bool, shared: bool) -> tuple[Dataset, Partition]:
    """Clients of 5, 20, 0 and 9 of 40 nodes, which may be `shared`; one sees no labels, and a node has none."""
    rng = np.random.default_rng(3)
    whole = np.triu(rng.random((40, 40)) < 0.3, 1)
    x, y = rng.random((40, 6)).astype(np.float32), rng.integers(0, 3, 40)
    x[x < 0.7], y[4] = 0, -1
    people = rng.integers(-1, 2, 40) if sensitive else None
    data = Dataset("made", sp.csr_matrix(x) if sparse else x, np.stack((whole | whole.T).nonzero()), y, 3, people)
    parts, dealt = [], np.split(rng.permutation(40), (5, 25, 25, 34))
    for size, own in zip((5, 20, 0, 9), dealt[:4], strict=True):
        nodes = np.sort(rng.choice(40, size, replace=False) if shared else own)
        use = rng.integers(0, 4, size)
        parts.append(Part(nodes, np.stack([use == split for split in range(3)]) & (y[nodes] >= 0), labels=size != 9))
    return data, Partition(tuple(parts))


@pytest.mark.parametrize(
    ("sparse", "sensitive", "dtype", "shared"),
    [(False, True, torch.float64, True), (True, False, torch.float32, True), (False, False, torch.float32, False)],
)
def test_a_batch_made_at_once_is_the_stack_of_its_clients_graphs_to_the_bit(
    sparse: bool, sensitive: bool, dtype: torch.dtype, shared: bool
) -> None:
    made: Any = client_graphs(*small(sparse, sensitive, shared), dtype)
    names = [*made, "client-1"]  # the last fills up
    assert (made._slots is None) == shared
    ours, theirs = made.stack(names), stack([made[name] for name in names])
    assert {made.rows(name) for name in names} == {(32, 32)}
    pairs = [(getattr(ours, name), getattr(theirs, name)) for name in ("y", "masks", "real", "sensitive", "x")]
    pairs += [(ours.edges.operator(kind), theirs.edges.operator(kind)) for kind in ("gcn", "mean", "two_hops")]
    pairs += [*zip(ours.whole_edges.cache.neighbors(), theirs.whole_edges.cache.neighbors(), strict=True)]
    for one, other in pairs:
        if isinstance(one, Sparse):
            assert one.blocks.sizes == other.blocks.sizes
            assert all(mine.equal(its) for mine, its in zip(one.blocks.whole[:3], other.blocks.whole[:3], strict=True))
            assert one.blocks.touched[0].equal(other.blocks.touched[0])
        else:
            assert one is other is None or (one.equal(other) and one.stride() == other.stride())
    for one, other in zip(ours.whole_edges.members, theirs.whole_edges.members, strict=True):
        assert np.array_equal(one.index, other.index)
        assert (one.weight is None) == (other.weight is None) == (dtype == torch.float32)

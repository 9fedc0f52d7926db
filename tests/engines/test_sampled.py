"""Rounds of which each calls a few clients: recordings, states and graphs of the others."""

from itertools import islice
from typing import Any

import pytest
import torch

from fedweave.core.sizes import fillings
from fedweave.core.tree import leaves
from fedweave.engines import filed
from fedweave.engines.filed import Filed
from fedweave.experiment import graphs
from fedweave.experiment.build import build
from fedweave.experiment.config import Document, resolve
from fedweave.experiment.rounds import train

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
    assert fillings(clients, rows, most) == expected


@pytest.mark.parametrize("in_memory", [1 << 20, 0])
def test_rows_stay_with_their_clients_while_a_table_grows(monkeypatch: Any, in_memory: int) -> None:
    monkeypatch.setattr(filed, "_IN_MEMORY", in_memory)
    flat = {"w": torch.arange(400.0).view(200, 2), "steps": torch.arange(200), "name": "x"}
    table = Filed(flat)
    names = [f"c{i}" for i in range(200)]
    at = table.put(names[:50], flat, range(50)) + table.put(names[50:], flat, range(50, 200))
    assert table.put(names[:1], flat, [7]) == [0]
    assert table.leaves["w"][at[1:]].equal(flat["w"][1:])
    assert table.leaves["w"][0].equal(flat["w"][7])
    assert table.leaves["steps"][at[1:]].equal(flat["steps"][1:])
    assert table.leaves["name"] == "x"


def test_graphs_of_absent_clients_are_not_made_and_the_oldest_are_made_again(monkeypatch: Any) -> None:
    built = sampled()
    made = built.fed.executor.data.graphs.maps[1]
    assert len(made) == CLIENTS
    rounds(built, 1)
    assert len(made._made) in (12, 13)  # those called, and one that was asked for the features' dtype
    first = next(iter(made._made))
    whole = made[first].x.clone()
    monkeypatch.setattr(graphs, "_BYTES_KEPT", 0)
    made[next(client for client in made if client not in made._made)]
    assert len(made._made) == 1
    assert made[first].x.equal(whole)

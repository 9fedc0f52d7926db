"""FedTAD's reliability, pseudo graph and divergence against arithmetic that was written apart, and its laws."""

from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.fedtad import divergence, labels, pseudo_graph, reliability, shares
from fedweave.core.graph import TRAIN, make_graph
from fedweave.experiment.rounds import train
from fedweave.ops.sparse import dense
from tests.contract.federations import CLASSES, distance, federation, graphs, model

SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.3, "weight_decay": 0.0, "local_steps": 2}
SMALL: dict[str, Any] = {"pseudo": 20, "outer": 2, "inner": 2, "rate": 0.01, "decay": 0.0}


def ended(rounds: int = 2, fed: Any = None, dropout: float = 0.0, **options: Any) -> tuple[Any, Any]:
    fed = fed or federation(dtype=torch.float64)
    *_, last = train(ALGORITHMS["fedtad"](model(dropout), **{**SGD, **SMALL, **options}), fed, rounds)
    return last, fed


def matrix(graph: Any, n: int) -> np.ndarray:
    a = np.zeros((n, n))
    edges = graph.whole_edges.members[0].index
    a[edges[0], edges[1]] = 1
    return a


def test_reliability_is_that_of_the_reference(baselines: Any) -> None:
    known = ended()[0].state["parts"]["Distilled"]["known"]
    for at, graph in enumerate(graphs(torch.float64).values()):
        n = int(graph.real.sum())
        a, x = matrix(graph, n), dense(graph.x)[:n].numpy()
        t = np.concatenate([x, baselines.walk_returns(a)], 1)
        y, trains = graph.y[:n].numpy(), graph.masks[TRAIN][:n].numpy()
        expected = np.maximum(baselines.tad_reliability(a, t, y, trains, CLASSES), 0)
        assert np.abs(known[at].numpy() - expected).max() < 1e-12
    found = shares(known)
    assert np.abs(found.numpy() - baselines.tad_shares(known.numpy())).max() < 1e-12


def test_reliability_by_hand() -> None:
    """Of a star: (1 + 1 + 0) / 3 at its center, (1 + 1) / 2 at the leaf that is like it; 1 of a node alone."""
    masks = np.zeros((3, 4), bool)
    masks[0, [0, 1, 3]] = True
    edges, y = np.array([[0, 0, 1, 2], [1, 2, 0, 0]]), np.array([0, 1, 1, 2])
    graph = make_graph(np.array([[1.0, 0], [1, 0], [0, 1], [1, 1]]), edges, y, masks, dtype=torch.float64)
    assert reliability(graph, graph.x, 4).tolist() == pytest.approx([2 / 3, 1, 1, 0])  # type: ignore[arg-type]


def test_shares_of_a_class_sum_to_1_or_0() -> None:
    assert shares(torch.tensor([[1.0, 0, 2], [3, 0, 2]])).tolist() == [[0.25, 0, 0.5], [0.75, 0, 0.5]]


def test_pseudo_graph_and_divergence_are_those_of_the_reference(baselines: Any) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(30, 4))
    a = matrix(pseudo_graph(torch.from_numpy(x), 5), 30)
    assert (a + np.eye(30) == baselines.tad_graph(x)).all()
    label, share = labels(30, 4), rng.uniform(size=(3, 4))
    assert label.bincount().tolist() == [7, 7, 7, 9]
    own, told = rng.normal(size=(30, 4)), rng.normal(size=(3, 30, 4))
    of_nodes = torch.from_numpy(share)[:, label] / label.bincount()[label]
    found = divergence(torch.from_numpy(own), torch.from_numpy(told), of_nodes)
    assert float(found) == pytest.approx(baselines.tad_divergence(own, told, share, label.numpy()), abs=1e-12)


def test_without_distillation_it_is_fedavg_to_the_bit() -> None:
    ends = []
    for name, options in (("fedtad", {"outer": 0}), ("fedavg", {})):
        *_, last = train(ALGORITHMS[name](model(), **options), federation(), 3, eval_every=0)
        ends.append(last.state["w"])
    assert distance(*ends) == 0


def test_one_client_has_nothing_to_be_distilled() -> None:
    """The mean is its model, which differs nowhere from itself."""
    ends = []
    for options in ({"outer": 0}, {}):
        one = {"site-1": graphs(torch.float64)["site-1"]}
        ends.append(ended(fed=federation(dtype=torch.float64, clients=one), **options)[0].state["w"])
    assert distance(*ends) < 1e-12


def test_distillation_brings_the_mean_nearer_to_what_clients_answer() -> None:
    """On the graph that the generator makes at last."""
    moved = ended(rounds=1, outer=1, inner=20, rate=0.003)[0].state["w"]
    plain = ended(rounds=1, outer=0)[0].state["w"]
    assert 1e-4 < distance(moved, plain) < 0.1


def test_one_message_leaves_before_the_first_round() -> None:
    _, fed = ended()
    rows = [row for row in fed.ledger.table().to_pylist() if row["direction"] == "up" and row["key"] == "reliability"]
    assert {row["round"] for row in rows} == {0}
    assert rows[0]["shape"].startswith(f"[{CLASSES}]")

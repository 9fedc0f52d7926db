"""FedGTA against arithmetic that was written apart from it, and its laws."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.fedgta import certainty, degrees, moments, shares
from fedweave.algorithms.parts.part import Context
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.federation import Client
from fedweave.core.graph import TRAIN, make_graph
from fedweave.experiment.rounds import train
from fedweave.models.propagation import propagate
from tests.contract.federations import CLASSES, distance, federation, graphs, model

SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.3, "weight_decay": 0.0, "local_steps": 2}


def ended(rounds: int = 3, fed: Any = None, **options: Any) -> tuple[Any, Any]:
    fed = fed or federation(dtype=torch.float64)
    *_, last = train(ALGORITHMS["fedgta"](model(0.0), **{**SGD, **options}), fed, rounds)
    return last, fed


def told(made: Any, graph: Any, w: Any) -> Any:
    """What a client reports whose trained weights are `w`."""
    client = Client(graph, {}, torch.tensor(0), torch.tensor(0), None)
    return made.composed["TopologyMix"].report(Context(client, made.objective, {"w": w}, trained=w))


@pytest.mark.parametrize("kind", ["hybrid", "raw", "central"])
def test_what_clients_tell_is_what_the_reference_computes(baselines: Any, kind: Any) -> None:
    made = ALGORITHMS["fedgta"](model(0.0), kind=kind, orders=4)
    w = models.init(made.net, random.key(3), torch.float64)
    for graph in graphs(torch.float64).values():
        found, n = told(made, graph, w), int(graph.real.sum())
        a = np.zeros((n, n))
        edges = graph.whole_edges.members[0].index
        a[edges[0], edges[1]] = 1
        soft = torch.softmax(models.apply(made.net, w, graph), 1)[:n].numpy()
        y, trains = graph.y.clamp(min=0)[:n].numpy(), graph.masks[TRAIN][:n].numpy()
        f = baselines.gta_labels(a, soft, y, trains)
        expected = baselines.gta_moments(baselines.gta_read(f, y, trains), 4, kind)
        assert np.abs(found["moments"].numpy() - expected).max() < 1e-9
        sure = baselines.gta_confidence(a.sum(1), baselines.gta_read(f, y, trains, 20.0))
        assert float(found["certainty"]) == pytest.approx(sure, rel=1e-9)


@pytest.mark.parametrize("epsilon", [-1.1, 0.5, 0.9, 1.0])
def test_shares_are_those_of_the_reference(baselines: Any, epsilon: float) -> None:
    rng = np.random.default_rng(0)
    m, h = rng.normal(size=(6, 4)), rng.uniform(size=6)
    for sure in (h, np.zeros(6)):
        found = shares(torch.from_numpy(m), torch.from_numpy(sure), epsilon).numpy()
        assert np.abs(found - baselines.gta_mix(m, sure, epsilon)).max() < 1e-12


@pytest.mark.slow
def test_at_epsilon_1_clients_train_alone_from_common_weights() -> None:
    last, _ = ended(epsilon=1.0)
    for at, (name, graph) in enumerate(graphs(torch.float64).items()):
        alone = federation(dtype=torch.float64, clients={name: graph})
        *_, own = train(ALGORITHMS["fedavg"](model(0.0), **SGD), alone, 3)
        row = {layer: {key: leaf[at] for key, leaf in tree.items()} for layer, tree in last.state["own"].items()}
        assert distance(row, own.state["w"]) < 1e-12


def test_below_minus_1_all_share_one_model() -> None:
    last, _ = ended(epsilon=-1.1)
    for tree in last.state["own"].values():
        for leaf in tree.values():
            assert (leaf - leaf[:1]).abs().max() < 1e-12


def test_certainty_by_hand() -> None:
    """Of a path of three nodes: C/e a degree where classes are sure, C/e − ln C where they are uniform."""
    graph = make_graph(
        np.ones((3, 1)), np.array([[0, 1, 1, 2], [1, 0, 2, 1]]), np.zeros(3, int), np.zeros((3, 3), bool)
    )
    degree = degrees(graph)
    assert degree[:3].tolist() == [1, 2, 1]
    assert not degree[3:].any()
    sure = torch.zeros(len(degree), CLASSES, dtype=torch.float64)
    sure[:, 0] = 1
    assert float(certainty(sure, degree)) == pytest.approx(4 * CLASSES / math.e)
    even = torch.full_like(sure, 1 / CLASSES)
    assert float(certainty(even, degree)) == pytest.approx(4 * (CLASSES / math.e - math.log(CLASSES)))


def test_a_node_alone_keeps_its_label() -> None:
    """1, 2, 2.5 after no, one and two steps; moments of a class that all nodes have are 1 and 0."""
    graph = make_graph(np.ones((1, 1)), np.zeros((2, 0), int), np.zeros(1, int), np.eye(3, 1, dtype=bool))
    start, trains = torch.ones(graph.nodes, 1, dtype=torch.float64), graph.masks[TRAIN][:, None]
    assert float(propagate(graph, start, trains, 2, 0.5)[0]) == pytest.approx(2.5)
    assert moments(start, graph.real, 2, "hybrid").tolist() == [1, 1, 0, 0]


def test_one_vector_and_one_number_leave_besides_the_update() -> None:
    _, fed = ended()
    rows = {row["key"]: row for row in fed.ledger.table().to_pylist() if row["direction"] == "up"}
    assert rows["moments"]["shape"].startswith(f"[{2 * 6 * CLASSES}]")
    assert rows["certainty"]["shape"].startswith("[]")
    assert "n" not in rows

"""AdaFGL's likeness, scaling and homophily against arithmetic that was written apart from them, and its laws."""

from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.adafgl import AdaFGL
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import TRAIN, make_graph
from fedweave.experiment.rounds import train
from fedweave.models import propagation
from fedweave.models.propagation import Propagation
from fedweave.ops.sparse import dense
from tests.contract.federations import CLASSES, FEATURES, distance, federation, graphs, model

MODULES = Propagation(0.05, 0.2, 0.999, 8, 0.5)


def ended(rounds: int, name: str = "adafgl", **options: Any) -> tuple[list[Any], Any]:
    fed = federation(dtype=torch.float64)
    given = {"joint": 2, "hidden": 8} if name == "adafgl" else {}
    return list(train(ALGORITHMS[name](model(0.0), **{**given, **options}), fed, rounds)), fed


def matrix(graph: Any, n: int) -> np.ndarray:
    a = np.zeros((n, n))
    edges = graph.whole_edges.members[0].index
    a[edges[0], edges[1]] = 1
    return a


def test_until_the_switch_every_number_is_fedavgs() -> None:
    ours, theirs = ended(2)[0][-1], ended(2, "fedavg")[0][-1]
    assert distance(ours.state["w"], theirs.state["w"]) == 0
    for name in ("local/accuracy", "global/accuracy", "trained/accuracy"):
        assert ours.summary[name] == theirs.summary[name]


def test_after_it_nothing_leaves_but_scores() -> None:
    last, fed = ended(4)
    rows = [row for row in fed.ledger.table().to_pylist() if row["purpose"] == "training" and row["round"] > 2]
    assert not [row for row in rows if row["direction"] == "up" and row["bytes"] and row["key"] in ("update", "n")]
    assert {row["round"] for row in rows if row["key"].startswith("w/")} == {3}  # the joint model, once
    assert distance(last[-1].state["w"], last[1].state["w"]) == 0


@pytest.mark.parametrize("seed", [0, 1])
def test_likeness_and_scaling_are_those_of_the_reference(baselines: Any, seed: int) -> None:
    out = np.random.default_rng(seed).normal(size=(9, 3)) * 3
    real = torch.arange(12) < 9
    both = propagation.pairs(real)
    padded = torch.from_numpy(np.concatenate([out, np.ones((3, 3))]))
    found = propagation.similarity(padded, both)
    expected = baselines.ada_likeness(out)
    assert np.abs(found[:9, :9].numpy() - expected).max() < 1e-12
    assert not found[9:].any()
    assert np.abs(propagation.signs(found, both)[:9, :9].numpy() - baselines.ada_signed(expected)).max() < 1e-9


def test_homophily_is_that_of_the_reference(baselines: Any) -> None:
    for graph in graphs(torch.float64).values():
        n = int(graph.real.sum())
        trains = graph.masks[TRAIN].nonzero()[:, 0]
        shown, asked = torch.zeros_like(graph.real), torch.zeros_like(graph.real)
        shown[trains[::2]], asked[trains[1::2]] = True, True
        y = graph.y.clamp(min=0)[:n].numpy()
        expected = baselines.ada_homophily(matrix(graph, n), y, shown[:n].numpy(), asked[:n].numpy(), CLASSES)
        assert float(propagation.propagation_accuracy(graph, shown, asked, CLASSES)) == pytest.approx(
            expected, abs=1e-12
        )


def test_two_triangles_of_one_class_each_are_homophilous() -> None:
    edges = np.stack(np.nonzero(np.kron(np.eye(2), 1 - np.eye(3))))
    for y, s in (([0, 0, 0, 1, 1, 1], 1.0), ([0, 1, 0, 1, 0, 1], 0.5)):
        graph = make_graph(np.ones((6, 1)), edges, np.array(y), np.eye(3, 6, dtype=bool), dtype=torch.float64)
        shown = torch.arange(graph.nodes).remainder(3).eq(0) & graph.real
        assert float(propagation.propagation_accuracy(graph, shown, graph.real & ~shown, 2)) == s
    assert float(propagation.homophily(graph, random.key(0), 2)) == 0.5  # of one training node


def test_x_hat_is_features_by_hops() -> None:
    """One product of X with weights side by side is that of [X, ÂX, Â²X, Â³X]."""
    graph = graphs(torch.float64)["site-1"]
    w = MODULES.init(random.key(1), FEATURES, CLASSES, torch.float64)
    soft = torch.softmax(torch.randn(graph.nodes, CLASSES, generator=torch.Generator().manual_seed(0)).double(), 1)
    given = MODULES.constants(graph, soft)
    x, hat, h = dense(graph.x), given["hat"], MODULES.hidden
    hops = [x, hat @ x, hat @ hat @ x, hat @ hat @ hat @ x]
    wide = [w["features"]["weight"][:, k * 3 * h : k * 3 * h + h] for k in range(4)]
    first = torch.cat(hops, 1) @ torch.cat(wide, 0)
    like = propagation.prelu(first, torch.tensor(0.25)) @ w["like"]["weight1"]
    assert (MODULES.logits(w, graph, given, None)["like"] - like).abs().max() < 1e-9


def test_predictions_sum_to_1_and_s_decides_the_branch() -> None:
    graph = graphs(torch.float64)["site-1"]
    w = MODULES.init(random.key(1), FEATURES, CLASSES, torch.float64)
    soft = torch.full((graph.nodes, CLASSES), 1 / CLASSES, dtype=torch.float64)
    given = MODULES.constants(graph, soft)
    other = w | {"ego": {name: leaf + 1 for name, leaf in w["ego"].items()}}
    for s, same in ((1.0, True), (0.5, False)):
        p = [MODULES.predict(own, graph, given, torch.tensor(s)).exp() for own in (w, other)]
        assert (p[0].sum(1) - 1).abs().max() < 1e-12
        assert ((p[0] - p[1]).abs().max() < 1e-12) == same


def test_clients_can_use_what_they_trained() -> None:
    """The deployed model gives the evaluation's numbers, and before the switch the joint model's."""
    for rounds in (1, 3):
        steps, fed = ended(rounds)
        made = AdaFGL(model(), joint=2, hidden=8)
        made.deploy(steps[-1].state, fed)
        for name, graph in graphs(torch.float64).items():
            logits = models.apply(made.net, fed.snapshot()[name]["model"], graph)
            assert (logits.exp().sum(1) - 1).abs().max() < 1e-9 if rounds == 3 else logits.shape[1] == CLASSES

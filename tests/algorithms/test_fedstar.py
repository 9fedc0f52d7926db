"""FedStar: structure codes by powers of the walk's matrix, the model of two channels by dense arithmetic, and what is
shared."""

from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import FedAvg, FedStar
from fedweave.algorithms.parts import GraphCrossEntropy
from fedweave.contract.subject import RecordingSimulation
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import Graph, make_graph
from fedweave.core.tree import leaves
from fedweave.experiment.rounds import train
from fedweave.models import MODELS
from tests.contract import small_graphs as small
from tests.contract import test_graphs as contract
from tests.contract.federations import distance
from tests.refusals import refusal

SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.05}
# a triangle with a tail, a pair, a node alone, and a hub of 20 neighbors
EDGES = [(0, 1), (1, 2), (0, 2), (2, 3), (4, 5), *((7, 8 + leaf) for leaf in range(20))]
GRAPH_OF = np.array([0] * 4 + [1] * 2 + [2] + [3] * 21)


def tiny(x: np.ndarray | None = None) -> Graph:
    edges = np.array([*EDGES, *((b, a) for a, b in EDGES)]).T
    masks, features = np.ones((3, 4), bool), np.ones((28, 3)) if x is None else x
    return make_graph(features, edges, np.zeros(4, int), masks, dtype=torch.float64, graph_of=GRAPH_OF)


def adjacency() -> np.ndarray:
    a = np.zeros((28, 28))
    for i, j in EDGES:
        a[i, j] = a[j, i] = 1
    return a


def codes(graph: Graph) -> np.ndarray:
    return (graph.edges.operator("structure") @ torch.eye(32, dtype=torch.float64)).numpy()


def test_codes_are_return_probabilities_and_degrees() -> None:
    a = adjacency()
    walk = np.divide(a, a.sum(1, keepdims=True), out=np.zeros_like(a), where=a.sum(1, keepdims=True) > 0)
    back = np.stack([np.diag(np.linalg.matrix_power(walk, k)) for k in range(1, 17)], 1)
    found = codes(tiny())
    assert np.isfinite(found).all()
    assert np.abs(found[:28, :16] - back).max() < 1e-12
    assert not found[28:].any()  # padding


def test_codes_by_hand() -> None:
    found = codes(tiny())
    assert found[3, :4] == pytest.approx([0, 1 / 3, 0, (1 / 3) * (1 / 3 + 2 / 3 * 1 / 2)])  # the tail: 2 or by 0, 1
    assert found[0, :3] == pytest.approx([0, 1 / 2 * 1 / 2 + 1 / 2 * 1 / 3, 1 / 2 * 1 / 2 * 1 / 3 * 2])
    assert found[4, :16].tolist() == [0, 1] * 8  # of a pair, back and forth
    assert found[7, :2] == pytest.approx([0, 1])
    degrees = [2, 2, 3, 1, 1, 1, None, 16, *[1] * 20]
    for node, degree in enumerate(degrees):
        assert found[node, 16:].nonzero()[0].tolist() == ([] if degree is None else [degree - 1])
    assert not found[6].any()  # alone: zeros, and no NaN


def test_the_model_is_the_papers() -> None:
    """Two layers of both channels, by dense matrices."""
    draw = np.random.default_rng(0)
    x, a = draw.normal(size=(28, 3)), adjacency()
    graph, net = tiny(x), MODELS["star"](hidden=5, layers=2, dropout=0.5).build(3, 2)
    w = models.init(net, random.key(1), torch.float64)
    names = [sorted(w[str(i)]) for i in range(7)]
    plain, channel = ["bias", "weight"], ["structure_bias", "structure_weight"]
    mixing = ["bias1", "bias2", "weight1", "weight2"]
    assert names == [plain, channel, mixing, channel, mixing, channel, plain]
    n = {path.replace("structure_", ""): leaf.numpy() for path, leaf in leaves(w)}
    looped = a + np.eye(28)
    hat = looped / np.sqrt(np.outer(looped.sum(1), looped.sum(1)))
    h, s = x @ n["0/weight"] + n["0/bias"], codes(graph)[:28] @ n["1/weight"] + n["1/bias"]
    for mix, turn in ((2, 3), (4, 5)):
        both = (a + np.eye(28)) @ np.concatenate([h, s], 1)
        inner = np.maximum(both @ n[f"{mix}/weight1"] + n[f"{mix}/bias1"], 0)
        h = np.maximum(inner @ n[f"{mix}/weight2"] + n[f"{mix}/bias2"], 0)
        s = np.tanh(hat @ s @ n[f"{turn}/weight"] + n[f"{turn}/bias"])
    joined = np.concatenate([h, s], 1) @ n["6/weight"] + n["6/bias"]
    pooled = np.stack([joined[g == GRAPH_OF].sum(0) for g in range(4)])
    logits = np.maximum(pooled @ n["8/weight"] + n["8/bias"], 0) @ n["9/weight"] + n["9/bias"]
    assert np.abs(models.apply(net, w, graph)[:4].numpy() - logits).max() < 1e-12


def star(dropout: float = 0.5) -> Any:
    return MODELS["star"](hidden=8, layers=2, dropout=dropout).build(small.FEATURES, small.CLASSES)


def test_only_the_structure_channel_is_shared() -> None:
    fed = contract.federation(engine=RecordingSimulation)
    *_, last = train(FedStar(star()), fed, 2, eval_every=0)
    sent = {path for reply in fed.heard[0] for path, _ in leaves(reply["update"])}
    channel = {f"{layer}/structure_{name}" for layer in (1, 3, 5) for name in ("weight", "bias")}
    assert sent == {path for path, _ in leaves(last.state["w"])} == channel
    first, second, *_ = (own["w"] for own in fed.snapshot().values())
    assert not torch.equal(first["2"]["weight1"], second["2"]["weight1"])


@pytest.mark.often("vmap")
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_a_mini_batch_of_all_training_graphs_is_the_full_batch(mode: str) -> None:
    drawn = FedStar(star(0.0), parts=(GraphCrossEntropy(batch=70),), **SGD)
    ends = []
    for made in (drawn, FedStar(star(0.0), **SGD)):
        *_, last = train(made, contract.federation(mode=mode), 2, eval_every=0)
        ends.append(last.state["w"])
    assert distance(*ends) <= 1e-12


def test_a_model_without_a_structure_channel_is_refused() -> None:
    fed = contract.federation()
    fed.begin(0)
    with refusal("config.model", "star"):
        FedStar(contract.net()).init(fed)
    with refusal("config.value", "choose sum or mean"):
        MODELS["star"](pool="none")
    assert FedAvg(contract.net()).init(fed)["w"]

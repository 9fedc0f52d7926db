"""FGSSL's terms against arithmetic that was written apart from them, and their laws."""

from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS, fgssl
from fedweave.algorithms.fairaug import view
from fedweave.algorithms.fgssl import SemanticStructure
from fedweave.algorithms.parts import Outputs
from fedweave.algorithms.parts.part import Forward
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import TRAIN
from fedweave.core.tree import leaves
from fedweave.experiment.rounds import train
from tests.contract.federations import distance, federation, graphs, model


def weights(net: Any, seed: int) -> Any:
    """Such that no embedding is 0, of which the reference has no cosine."""
    w = models.init(net, random.key(seed), torch.float64)
    return w | {"0": {"weight": w["0"]["weight"], "bias": w["0"]["bias"] + 0.5}}


def told(net: Any, w: Any, graph: Any) -> Any:
    """Embeddings and logits of the whole graph."""
    starts = torch.cat([graph.whole_edges.neighbors.first, sum(graph.whole_edges.neighbors[:2])[-1:]])
    whole = {"columns": graph.whole_edges.neighbors.columns, "starts": starts}
    return fgssl.view_outputs(
        net, w, graph, whole | {"features": torch.ones(graph.x.shape[1], dtype=torch.float64)}, None
    )


def adjacency(graph: Any) -> np.ndarray:
    a = np.zeros((graph.nodes, graph.nodes))
    first, second = graph.whole_edges.members[0].index
    a[first, second] = 1
    return a


@pytest.mark.parametrize("others_only", [False, True])
def test_both_terms_are_those_of_the_reference(baselines: Any, others_only: bool) -> None:
    part = SemanticStructure(tau=0.3, omega=0.7, others_only=others_only)
    graph, net = graphs(torch.float64)["site-1"], model(0.0)
    (h, z), (far, answers) = (told(net, weights(net, seed), graph) for seed in (1, 2))
    trains, real = graph.masks[TRAIN], graph.real
    expected = baselines.fgssl_contrast(
        h[trains].numpy(), far[trains].numpy(), graph.y[trains].numpy(), 0.3, others_only
    )
    assert float(part.semantic(h, far, graph)) == pytest.approx(expected, abs=1e-9)
    n, a = int(real.sum()), adjacency(graph)
    near = torch.from_numpy(a + np.eye(len(a)) > 0) & real & real[:, None]
    expected = baselines.fgssl_structure(z[:n].numpy(), answers[:n].numpy(), a[:n, :n], 0.7)
    assert float(part.structural(z, answers, near, real)) == pytest.approx(expected, abs=1e-9)


def test_where_both_models_are_the_same_and_nothing_is_altered_the_structure_has_no_gradient() -> None:
    graph, net = graphs(torch.float64)["site-1"], model(0.0)
    w = weights(net, 1)
    near = torch.from_numpy(adjacency(graph) + np.eye(graph.nodes) > 0)

    def term(now: Any) -> torch.Tensor:
        z, other = told(net, now, graph)[1], told(net, w, graph)[1]
        return SemanticStructure().structural(z, other, near, graph.real)

    slopes, value = torch.func.grad_and_value(term)(w)
    assert float(value) == pytest.approx(0, abs=1e-12)
    assert all(leaf.abs().max() < 1e-10 for _, leaf in leaves(slopes))


def test_views_drop_edges_in_both_directions_and_whole_columns() -> None:
    graph, net = graphs(torch.float64)["site-1"], model(0.0)
    drawn = SemanticStructure().draw(net, graph, random.key(5), 40)
    a, one = adjacency(graph), torch.eye(graph.nodes, dtype=torch.float64)
    shares = {}
    for name in ("weak", "strong"):
        left = [view(graph, {key: leaf[s] for key, leaf in drawn[name].items()}) for s in range(40)]
        kept = [(one_of.edges.operator("sum") @ one).numpy() for one_of in left]
        assert all((own == own.T).all() and (own <= a).all() for own in kept)
        shares[name] = sum(own.sum() for own in kept) / (40 * a.sum()), float(drawn[name]["features"].mean())
    assert shares["weak"] == pytest.approx((0.7, 0.7), abs=0.08)
    assert shares["strong"] == pytest.approx((0.2, 0.5), abs=0.08)


@pytest.mark.often("text")
@pytest.mark.parametrize("variant", ["text", "authors", "openfgl"])
def test_only_the_objective_differs_from_fedavg(variant: str) -> None:
    """Without strength it is FedAvg to the bit; no other messages cross; each variant trains something."""
    ends, keys = [], []
    for name, options in (
        ("fgssl", {"variant": variant, "contrast": 0.0, "structure": 0.0}),
        ("fedavg", {}),
        ("fgssl", {"variant": variant}),
    ):
        fed = federation()
        *_, last = train(ALGORITHMS[name](model(), **options), fed, 2, eval_every=0)
        ends.append(last.state["w"])
        keys.append({(row["direction"], row["key"]) for row in fed.ledger.table().to_pylist()})
    assert distance(*ends[:2]) == 0
    assert distance(*ends[1:]) > 1e-4
    assert keys[0] == keys[1] == keys[2]


def test_openfgls_term_is_0_of_one_model_and_grows_with_columns_apart() -> None:
    graph, net = graphs(torch.float64)["site-1"], model(0.0)
    part, w, other = SemanticStructure(variant="openfgl"), weights(net, 1), weights(net, 2)
    drawn = {name: {key: leaf[0] for key, leaf in own.items()}
             for name, own in part.draw(net, graph, random.key(1), 1).items()}  # fmt: skip
    same = drawn | {"strong": drawn["weak"]}
    for views, received, apart in ((same, w, False), (same, other, True), (drawn, w, True)):
        given = {"w": received, "trains": torch.ones((), dtype=torch.float64)}
        value = float(part.objective(Outputs(Forward(w, net, graph, random.key(2)), given, views)))
        assert value > 1e-3 if apart else abs(value) < 1e-12

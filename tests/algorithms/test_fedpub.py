"""FED-PUB: mixing by what models do on the proxy graph, and masks with penalties that have a gradient."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS, FedAvg
from fedweave.algorithms.fedpub import FunctionalMix, SparseMasks, proxy_graph
from fedweave.algorithms.parts import Uniform
from fedweave.contract.subject import RecordingSimulation
from fedweave.core.graph import make_graph
from fedweave.core.graph_arrays import graph_arrays
from fedweave.core.model import apply
from fedweave.core.tree import leaves, map_leaves
from fedweave.engines.simulation import Simulation
from fedweave.experiment.rounds import train
from fedweave.models import MODELS
from tests.contract.federations import CLASSES, FEATURES, arrays, distance, federation, model

SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.5, "weight_decay": 0.0}


def after(algorithm: Any, rounds: int = 3, **options: Any) -> tuple[Any, Any]:
    fed = federation(dtype=torch.float64, **options)
    *_, last = train(algorithm, fed, rounds)
    return last.state, fed


def test_the_proxy_graph_has_five_blocks_and_no_edges_between_them() -> None:
    x, edges, *_ = graph_arrays(proxy_graph(7, 30, torch.float64))
    source, target = edges
    assert x.shape == (500, 30)
    assert abs(x.mean()) < 0.05
    assert abs(x.std() - 1) < 0.05
    assert (source // 100 == target // 100).all()
    assert abs(edges.shape[1] / (5 * 100 * 99) - 0.1) < 0.01
    assert {(a, b) for a, b in edges.T} == {(b, a) for a, b in edges.T}
    assert not np.array_equal(x, graph_arrays(proxy_graph(8, 30, torch.float64)).x)


def test_mixing_follows_the_embeddings_of_the_proxy_graph(oracles: Any) -> None:
    """One round, the embeddings by NumPy: h = mean over nodes of A (relu(A X W_1 + b_1)) W_2 + b_2."""
    made = FedAvg(model(0.0), parts=(FunctionalMix(tau=5.0),), **SGD)
    state, fed = after(made, rounds=1)
    x, edges, *_ = graph_arrays(proxy_graph(int(state["parts"]["FunctionalMix"]["proxy"]), FEATURES, torch.float64))
    a = np.eye(500)
    a[edges[0], edges[1]] = 1
    a /= np.sqrt(np.outer(a.sum(0), a.sum(0)))
    trained = [map_leaves(torch.Tensor.numpy, own["w"]) for own in fed.snapshot().values()]
    h = [
        (a @ np.maximum(a @ x @ w["0"]["weight"] + w["0"]["bias"], 0) @ w["1"]["weight"] + w["1"]["bias"]).mean(0)
        for w in trained
    ]
    mix = oracles.fedpub_mix(h, 5.0)
    assert mix.max() - mix.min() > 0.01
    for path, leaf in leaves(state["own"]):
        theirs = np.tensordot(mix, np.stack([dict(leaves(w))[path] for w in trained]), 1)
        assert np.abs(leaf.numpy() - theirs).max() < 1e-9


def test_a_model_whose_layers_hand_on_more_than_h_is_compared_by_h(oracles: Any) -> None:
    """GCNII's convolutions also carry their first representation; the last layer is the classifier."""
    deep = MODELS["gcnii"](hidden=4, layers=2, dropout=0.0).build(FEATURES, CLASSES)
    state, fed = after(FedAvg(deep, parts=(FunctionalMix(tau=5.0),), **SGD), rounds=1)
    proxy = proxy_graph(int(state["parts"]["FunctionalMix"]["proxy"]), FEATURES, torch.float64)
    trained = [own["w"] for own in fed.snapshot().values()]
    h = [apply(deep[:-1], w, proxy)["h"][:500].mean(0).numpy() for w in trained]
    mix = oracles.fedpub_mix(h, 5.0)
    for path, leaf in leaves(state["own"]):
        theirs = np.tensordot(mix, np.stack([dict(leaves(w))[path].numpy() for w in trained]), 1)
        assert np.abs(leaf.numpy() - theirs).max() < 1e-9


@pytest.mark.slow
def test_without_tau_it_is_the_plain_mean() -> None:
    mixed, _ = after(FedAvg(model(), parts=(FunctionalMix(tau=0.0),), **SGD))
    plain, _ = after(FedAvg(model(), parts=(Uniform(),), **SGD))
    for at in range(5):
        assert distance(map_leaves(lambda leaf, at=at: leaf[at], mixed["own"]), plain["w"]) <= 1e-12


def test_the_penalties_have_the_gradients_of_their_norms() -> None:
    part, draw = SparseMasks(l1=0.3, pull=0.7), torch.Generator().manual_seed(0)
    received = {"0": {"weight": torch.randn(4, 3, generator=draw), "weight_mask": torch.ones(4, 3)}}
    w = {"0": {name: torch.randn(4, 3, generator=draw).requires_grad_() for name in received["0"]}}
    part.penalty(w, received, {"pull": torch.tensor(0.7)}).backward()
    moved = (w["0"]["weight"] - received["0"]["weight"]).detach()
    assert torch.allclose(w["0"]["weight"].grad, 0.7 * moved / moved.norm())
    assert torch.equal(w["0"]["weight_mask"].grad, 0.3 * w["0"]["weight_mask"].sign())


def lone(absent: int, **options: Any) -> tuple[Simulation, Any]:
    """One client none of whose nodes has the feature `absent`, after 50 steps of plain gradient descent."""
    x, edges, y, masks = arrays(40, 1)
    x = x.tolil()
    x[:, absent] = 0
    fed = Simulation({"only": make_graph(x.tocsr(), edges, y, masks, dtype=torch.float64)}, classes=CLASSES)
    *_, last = train(ALGORITHMS["fedpub"](model(0.0), **SGD, **options), fed, 50, eval_every=0)
    return fed, last


def test_a_mask_of_what_is_not_needed_shrinks_by_the_penalty_alone() -> None:
    """50 steps of length 0.5 · 0.02 take 0.5 off the mask of a feature that no node has; without the penalty it stays
    at 1, as it does in the authors' code."""
    for l1, left in ((0.02, 0.5), (0.0, 1.0)):
        fed, _ = lone(3, l1=l1)
        mask = fed.snapshot()["only"]["w"]["0"]["weight_mask"]
        assert (mask[3] - left).abs().max() < 1e-12
        assert mask.std() > 1e-3  # other entries are trained


def test_entries_below_the_threshold_count_in_training_and_not_in_evaluation() -> None:
    net = SparseMasks(threshold=0.4).layers(MODELS["mlp"](hidden=4, layers=1, dropout=0.0).build(2, 3), True)
    w = {"weight": torch.ones(2, 3), "bias": torch.zeros(3), "weight_mask": torch.full((2, 3), 0.3)}
    x = torch.eye(2)
    assert not net[0].apply(w, None, x, None).any()
    assert torch.allclose(net[0].apply(w, None, x, torch.tensor(0)), torch.full((2, 3), 0.3))


@dataclass(frozen=True)
class Telling(SparseMasks):
    """Masks that are shared as other weights are."""

    needs: ClassVar = replace(SparseMasks.needs, private=())


@pytest.mark.parametrize(("part", "leaves_home"), [(SparseMasks, False), (Telling, True)])
def test_masks_stay_at_their_clients(part: Any, leaves_home: bool) -> None:
    fed = federation(engine=RecordingSimulation)
    *_, last = train(FedAvg(model(), parts=(part(),)), fed, 2)
    sent = {path for replies in fed.heard for reply in replies for path, _ in leaves(reply)}
    held = {path for path, _ in leaves(last.state)}
    assert any(path.endswith("_mask") for path in sent | held) == leaves_home
    assert all("weight_mask" in own["w"]["0"] for own in fed.snapshot().values())

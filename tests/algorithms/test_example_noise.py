"""Noise for single examples: what one of them can change, what is sent without noise, ledgers, what is refused."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch.func import grad

from fedweave.algorithms import ALGORITHMS, FedAvg
from fedweave.algorithms.cgsv import CosineValue, SparseUpdates
from fedweave.algorithms.f2gnn import FairPenalty
from fedweave.algorithms.fedprox import Proximal
from fedweave.algorithms.parts import Drift, ExampleNoise, SecureSum, Uniform, example_noise
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import TRAIN, Graph, make_graph
from fedweave.core.graph_arrays import graph_arrays
from fedweave.core.mechanism import Gaussian, read_applied
from fedweave.core.tree import Tree, norm, ravel, scale, sub
from fedweave.experiment.rounds import train
from fedweave.learn import cross_entropy
from fedweave.models import MODELS
from fedweave.privacy.accountant import bounds
from fedweave.privacy.gaussian import epsilon
from tests.contract import small_graphs
from tests.contract.federations import FEATURES, distance, federation, graphs

MLP = MODELS["mlp"](hidden=8, layers=2, dropout=0.5).build(FEATURES, 3)
GIN = MODELS["gin"](hidden=8, layers=2, dropout=0.5, pool="sum").build(small_graphs.FEATURES, small_graphs.CLASSES)
KINDS = {"nodes": (MLP, graphs), "graphs": (GIN, small_graphs.graphs)}


def of(kind: str) -> tuple[Any, Tree, Graph]:
    model, made = KINDS[kind]
    graph = made(torch.float64)["site-0"]
    return model, models.init(model, random.key(3), torch.float64), graph


def _loss(model: Any, graph: Graph, weight: torch.Tensor, w: Tree) -> torch.Tensor:
    return cross_entropy(models.apply(model, w, graph), graph.y.clamp(min=0), weight)


@pytest.mark.parametrize("kind", KINDS)
def test_unclipped_and_without_noise_it_is_a_step_of_gradient_descent(kind: str) -> None:
    model, w, graph = of(kind)

    weight = graph.masks[TRAIN].double()
    mean = grad(partial(_loss, model, graph, weight))(w)
    found = ExampleNoise(clip=1e9).clipped_sum(w, model, graph)
    assert distance(found, scale(mean, float(weight.sum()))) < 1e-9


@pytest.mark.often("3-nodes", "7-graphs")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at_once", [1, 3, 7])
def test_every_example_counts_once_however_many_are_held_at_a_time(
    kind: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, w, graph = of(kind)
    whole = ExampleNoise(clip=0.1).clipped_sum(w, model, graph)
    monkeypatch.setattr(example_noise, "_AT_ONCE", at_once)
    assert distance(ExampleNoise(clip=0.1).clipped_sum(w, model, graph), whole) < 1e-12


def test_each_gradient_is_clipped_by_itself() -> None:
    """With a tiny norm all of them are as long, so that the sum is no longer than their number."""
    model, w, graph = of("nodes")
    alone = []
    for i in graph.masks[TRAIN].nonzero()[:, 0].tolist():
        weight = torch.zeros(len(graph.y), dtype=torch.float64).index_fill(0, torch.tensor([i]), 1.0)
        one = grad(lambda w, weight=weight: cross_entropy(models.apply(model, w, graph), graph.y.clamp(min=0), weight))(
            w
        )
        alone.append(ravel(scale(one, 1e-3 / norm(one))))
    found = ravel(ExampleNoise(clip=1e-3).clipped_sum(w, model, graph))
    torch.testing.assert_close(found, torch.stack(alone).sum(0), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("strange", [0.0, 1.0, -50.0, 1e30, math.inf])
def test_another_example_changes_the_sum_by_two_clips_at_most(strange: float) -> None:
    """Whatever its features are, and with any other label."""
    model, w, graph = of("nodes")
    part, before = ExampleNoise(clip=0.2), ExampleNoise(clip=0.2).clipped_sum(w, model, graph)
    own = graph_arrays(graph)._asdict()
    at = int(graph.masks[TRAIN].nonzero()[0, 0])
    x, y = own["x"].toarray() if hasattr(own["x"], "toarray") else own["x"].copy(), own["y"].copy()
    x[at], y[at] = strange, (y[at] + 1) % 3
    other = make_graph(**own | {"x": x, "y": y}, dtype=torch.float64, rows=graph.nodes)
    after = part.clipped_sum(w, model, other)
    assert torch.isfinite(ravel(after)).all()
    assert 0 < float(norm(sub(after, before))) <= 2 * 0.2 * (1 + 1e-9)


def made(**settings: Any) -> FedAvg:
    part = ExampleNoise(**{"clip": 0.5, "sigma": 4.0, "examples": 15, "lr": 0.5, **settings})
    return FedAvg(MLP, local_steps=1, parts=(Uniform(), part))


@pytest.mark.often("vmap")
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_the_ledger_has_the_epsilon_of_an_example(mode: str) -> None:
    fed, algorithm = federation(mode=mode), made()
    *_, last = train(algorithm, fed, 3)
    rows = [
        row for row in fed.ledger.table().to_pylist() if row["key"].startswith("update") and row["direction"] == "up"
    ]
    one = 0.5 * 0.5 / 15
    assert {read_applied(row["applied"]).mechanisms for row in rows} == {(Gaussian(4 * one, 2 * one, "example"),)}
    told = next(own for own in bounds(fed.ledger.table()) if own.per == "example")
    assert told.epsilon == pytest.approx(epsilon(math.sqrt(3) * 2 / 4, 1e-5))
    assert ExampleNoise(0.5, 4.0, delta=1e-7, examples=15, lr=0.5).protection.mechanism == (
        Gaussian(4 * one, 2 * one, "example", 1e-7),
    )
    assert torch.isfinite(ravel(last.state["w"])).all()


@pytest.mark.slow
def test_loop_and_vectorized_send_the_same() -> None:
    ends = [[*train(made(), federation(mode=mode, dtype=torch.float64), 2)][-1].state for mode in ("loop", "vmap")]
    assert distance(*ends) < 1e-9


@pytest.mark.slow
def test_with_little_noise_it_learns() -> None:
    steps = [*train(made(sigma=1e-3, clip=2.0, lr=1.0), federation(mode="vmap"), 30, eval_every=10)]
    losses = [step.summary["local/loss"] for step in steps if step.evaluated]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.95 * math.log(3)


def test_noise_has_its_standard_deviation() -> None:
    """Of clients without a gradient: with features of zero and a clip that leaves nothing else."""
    algorithm = made(clip=1e-6, sigma=5.0, examples=1, lr=1.0)
    fed = federation(mode="loop")
    state = algorithm.init(fed)
    fed.begin(1)
    after = algorithm.round(state, fed)
    moved = ravel(sub(after["w"], state["w"])).double()
    assert float(moved.std()) == pytest.approx(5e-6 / math.sqrt(5), rel=0.2)  # the mean of five clients


def test_what_cannot_be_bounded_is_refused() -> None:
    gcn = MODELS["gcn"](hidden=8, layers=2).build(FEATURES, 3)
    with pytest.raises(ValueError, match="with message passing a node is in its neighbors' losses"):
        FedAvg(gcn, parts=(Uniform(), ExampleNoise()))
    with pytest.raises(ValueError, match="fair_penalty would have no effect"):
        FedAvg(MLP, parts=(Uniform(), FairPenalty(), ExampleNoise()))
    with pytest.raises(ValueError, match="proximal would have no effect"):
        FedAvg(MLP, parts=(Uniform(), Proximal(0.1), ExampleNoise()))
    with pytest.raises(ValueError, match="leave out one of them"):
        ALGORITHMS["graphfl"](MLP, parts=(ExampleNoise(),))
    for own in ({"share": ("0/*",)}, {"parts": (Uniform(), Drift(), ExampleNoise())}):
        with pytest.raises(
            ValueError, match=r"dp_examples bounds what one example reveals through its own gradient, but"
        ):
            FedAvg(MLP, **{"parts": (Uniform(), ExampleNoise()), **own})
    with pytest.raises(ValueError, match="no reward"):
        FedAvg(MLP, parts=(CosineValue(), SparseUpdates(), ExampleNoise()))
    for wrong in ({"examples": 0}, {"lr": 0.0}, {"clip": -1.0}, {"epsilon": 1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ExampleNoise(**wrong)
    assert list(FedAvg(MLP, parts=(ExampleNoise(), SecureSum(weights="equal"))).composed)[:2]

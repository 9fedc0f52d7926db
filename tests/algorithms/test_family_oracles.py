"""The family against arithmetic that was written apart from it: three rounds in float64, full batches, no dropout."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.tree import Tree, leaves, ravel, unravel
from fedweave.experiment.rounds import train
from tests.contract.federations import cross_entropy, federation, graphs, model

ROUNDS, STEPS, LR = 3, 4, 0.3
SGD: dict[str, Any] = {"optimizer": "sgd", "lr": LR, "weight_decay": 0.0, "local_steps": STEPS}


class Problem:
    """The contract's clients as functions of a flat vector."""

    def __init__(self) -> None:
        self.net, self.fed = model(0.0), federation(dtype=torch.float64)
        self.fed.begin(0)
        self.like = ALGORITHMS["fedavg"](self.net).init(self.fed)["w"]
        self.start = ravel(self.like).numpy()
        self.clients = [self._client(graph) for graph in graphs(torch.float64).values()]

    def _client(self, graph: Graph) -> tuple[int, Callable[..., float], Callable[..., np.ndarray]]:
        def loss(flat: torch.Tensor) -> torch.Tensor:
            return cross_entropy(unravel(flat, self.like), self.net, graph)

        def value(w: np.ndarray) -> float:
            return float(loss(torch.from_numpy(w)))

        def gradient(w: np.ndarray) -> np.ndarray:
            flat = torch.from_numpy(w).requires_grad_()
            return torch.autograd.grad(loss(flat), flat)[0].numpy()

        return int(graph.masks[TRAIN].sum()), value, gradient

    def layers(self) -> list[slice]:
        """Where each tensor lies in the flat vector."""
        sizes = [leaf.numel() for _, leaf in sorted(leaves(self.like))]
        ends = np.cumsum(sizes)
        return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def trained(problem: Problem, name: str, **options: Any) -> tuple[Tree, Any]:
    """The server's state after three rounds, and the federation."""
    fed = federation(dtype=torch.float64)
    *_, last = train(ALGORITHMS[name](problem.net, **{**SGD, **options}), fed, ROUNDS, eval_every=0)
    return last.state, fed


def same(ours: Any, theirs: np.ndarray) -> None:
    flat = ravel(ours).numpy() if isinstance(ours, dict) else np.asarray(ours)
    assert np.abs(theirs - flat).max() < 1e-9
    assert theirs.shape == flat.shape


@pytest.mark.often("True")
@pytest.mark.parametrize("uniform", [False, True])
def test_fedavg(oracles: Any, problem: Problem, uniform: bool) -> None:
    from fedweave.algorithms.parts import Uniform

    state, _ = trained(problem, "fedavg", parts=(Uniform(),) if uniform else ())
    solvers = [lambda w, g, s: oracles.sgd(w, g, s, LR)] * len(problem.clients)
    same(state["w"], oracles.fedavg(problem.start, problem.clients, ROUNDS, solvers, STEPS, uniform))


def test_fedavg_with_kept_moments(oracles: Any, problem: Problem) -> None:
    kept = {"optimizer": "adam", "lr": 0.01, "weight_decay": 5e-4}
    state, _ = trained(problem, "fedavg", **kept)
    solvers = [oracles.Adam(0.01, 5e-4) for _ in problem.clients]
    same(state["w"], oracles.fedavg(problem.start, problem.clients, ROUNDS, solvers, STEPS))
    fresh, _ = trained(problem, "fedavg", optimizer_state="fresh", **kept)
    assert (ravel(fresh["w"]) - ravel(state["w"])).abs().max() > 1e-3


def test_fedprox(oracles: Any, problem: Problem) -> None:
    state, _ = trained(problem, "fedprox", mu=0.7)
    same(state["w"], oracles.fedprox(problem.start, problem.clients, ROUNDS, STEPS, LR, 0.7))


@pytest.mark.often("3.0")
@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 3.0])
def test_qfedavg(oracles: Any, problem: Problem, q: float) -> None:
    state, _ = trained(problem, "qfedavg", q=q)
    same(state["w"], oracles.qfedavg(problem.start, problem.clients, ROUNDS, STEPS, LR, q))


def test_fedadam(oracles: Any, problem: Problem) -> None:
    state, _ = trained(problem, "fedadam", server_lr=0.02)
    same(state["w"], oracles.server_adam(problem.start, problem.clients, ROUNDS, STEPS, LR, 0.02))


def test_fedavgm(oracles: Any, problem: Problem) -> None:
    state, _ = trained(problem, "fedavgm", server_lr=0.8, momentum=0.6)
    same(state["w"], oracles.server_momentum(problem.start, problem.clients, ROUNDS, STEPS, LR, 0.8, 0.6))


@pytest.mark.often("1.0")
@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_ditto(oracles: Any, problem: Problem, lam: float) -> None:
    state, fed = trained(problem, "ditto", lam=lam)
    whole, own = oracles.ditto(problem.start, problem.clients, ROUNDS, STEPS, LR, lam)
    same(state["w"], whole)
    for client, theirs in zip(fed.snapshot().values(), own, strict=True):
        same(client["PersonalModel"]["v"], theirs)


def test_cgsv(oracles: Any, problem: Problem) -> None:
    options = {"gamma": 0.15, "beta": 2.0, "alpha": 0.9}
    state, fed = trained(problem, "cgsv", **options)
    own, r = oracles.cgsv(problem.start, problem.clients, ROUNDS, STEPS, LR, problem.layers(), **options)
    same(state["parts"]["CosineValue"]["r"], r)
    rewards = (
        ALGORITHMS["cgsv"](problem.net, **SGD, **options)
        .composed["SparseReward"]
        .download(state["parts"]["SparseReward"], torch.arange(len(own)))[2]
    )
    for at, (client, theirs) in enumerate(zip(fed.snapshot().values(), own, strict=True)):
        last = {i: {k: leaf.dense[at] for k, leaf in layer.items()} for i, layer in rewards.items()}
        same(ravel(client["SparseReward"]["w"]) + ravel(last), theirs)

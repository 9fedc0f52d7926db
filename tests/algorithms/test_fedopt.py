"""The server's adaptive steps against algorithm 2 of Reddi et al. 2021, written in NumPy."""

from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS, FedAvg
from fedweave.algorithms.fedopt import ServerAdagrad, ServerAdam, ServerYogi
from fedweave.core.tree import leaves, map_leaves, ravel
from fedweave.core.tree import sub as minus
from fedweave.experiment.rounds import train
from tests.contract.federations import distance, federation, model

RULES: dict[str, Any] = {
    "fedadam": (ServerAdam, lambda v, d, beta: beta * v + (1 - beta) * d**2),
    "fedyogi": (ServerYogi, lambda v, d, beta: v - (1 - beta) * d**2 * np.sign(v - d**2)),
    "fedadagrad": (ServerAdagrad, lambda v, d, beta: v + d**2),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("beta1", [0.0, 0.9])
def test_steps_are_those_of_algorithm_2(name: str, beta1: float) -> None:
    kind, squares = RULES[name]
    part = kind(server_lr=0.3, beta1=beta1, beta2=0.8, tau=0.01)
    rng = np.random.default_rng(1)
    w = {"a": torch.from_numpy(rng.normal(size=5)), "b": torch.from_numpy(rng.normal(size=(2, 3)))}
    state = part.init(federation(), w)
    m, v, x = np.zeros(11), np.full(11, 0.01**2), ravel(w).numpy()
    for number in range(6):
        scale = 10.0 ** (-number)  # so that v - Δ² has both signs
        delta = map_leaves(lambda leaf: torch.from_numpy(scale * rng.normal(size=leaf.shape)), w)  # noqa: B023
        d = ravel(delta).numpy()
        m = beta1 * m + (1 - beta1) * d
        v = squares(v, d, 0.8)
        x = x + 0.3 * m / (np.sqrt(v) + 0.01)
        w, state = part.step(state, w, delta)
        np.testing.assert_allclose(ravel(w).numpy(), x, rtol=1e-12)
        np.testing.assert_allclose(ravel(state["v"]).numpy(), v, rtol=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_the_algorithm_steps_along_fedavgs_mean(name: str) -> None:
    """One round: w + η m / (√v + τ) of the difference that FedAvg makes."""
    how: dict[str, Any] = {"local_steps": 2, "optimizer": "sgd", "lr": 0.1}
    options: dict[str, Any] = {"dtype": torch.float64}
    plain, made = FedAvg(model(), **how), ALGORITHMS[name](model(), **how, server_lr=0.05)
    fed = federation(**options)
    fed.begin(0)
    start = plain.init(fed)["w"]
    *_, mean = train(plain, federation(**options), 1)
    *_, last = train(made, federation(**options), 1)
    delta = minus(mean.state["w"], start)
    part = made.composed[f"Server{name.removeprefix('fed').capitalize()}"]
    expected, _ = part.step(part.init(fed, start), start, delta)
    assert distance(last.state["w"], expected) <= 1e-12
    assert all((leaf != 0).any() for _, leaf in leaves(delta))

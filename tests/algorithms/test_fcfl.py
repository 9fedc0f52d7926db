"""FCFL: the smoothed maximum, the direction in which no loss rises, and when one follows the other."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.fcfl import ParetoDescent, common_descent
from fedweave.algorithms.parts import Round
from fedweave.core.replies import Replies, ReplyBatch
from fedweave.experiment.rounds import train
from tests.contract.federations import federation, graphs, model


def round_of(updates: np.ndarray, losses: list[float], **options: Any) -> Round:
    tree = {"update": {"0": {"w": torch.tensor(updates)}}, "loss": torch.tensor(losses).double()}
    clients = tuple("abcdef"[: len(losses)])
    replies = Replies(clients, [ReplyBatch(tuple(range(len(losses))), tree)], {})
    return Round(replies, torch.arange(len(losses)), {}, (), **options)


def test_of_two_gradients_by_hand() -> None:
    """g_1 = (2, 0), g_2 = (−1, 1): along α g_1 + (1 − α) g_2 the first loss falls where 4α − 2(1 − α) ≥ 0, so α ≥ 1/3,
    the second where −2α + 2(1 − α) ≥ 0, so α ≤ 1/2; the mean falls by 2α, most at 1/2."""
    g = np.array([[2.0, 0.0], [-1.0, 1.0]])
    assert np.allclose(common_descent(g @ g.T), [0.5, 0.5])


def test_no_loss_rises_and_the_mean_falls_most() -> None:
    draw = np.random.default_rng(0)
    for clients in (3, 4, 6):
        g = draw.normal(size=(clients, 5)) + 0.3
        c, alpha = g @ g.T, common_descent(g @ g.T)
        assert alpha.min() >= 0
        assert alpha.sum() == pytest.approx(1)
        assert (c @ alpha).min() > -1e-9
        assert (c @ alpha).sum() == pytest.approx(max(c_sum for c_sum in vertices(c)))


def vertices(c: np.ndarray) -> list[float]:
    """Σ (C α)_i at every vertex of {α ≥ 0, Σ α = 1, C α ≥ 0}: as many of these as there are unknowns hold exactly."""
    count = len(c)
    rows = np.concatenate([np.eye(count), c])
    found = []
    for tight in combinations(range(2 * count), count - 1):
        matrix = np.concatenate([np.ones((1, count)), rows[list(tight)]])
        if np.linalg.cond(matrix) > 1e10:
            continue
        alpha = np.linalg.solve(matrix, np.eye(count)[0])
        if (rows @ alpha).min() > -1e-9:
            found.append(float((c @ alpha).sum()))
    return found


def test_the_largest_loss_comes_first_and_the_softness_shrinks_where_its_gradient_vanishes() -> None:
    part = ParetoDescent(delta=0.5, first=100, lipschitz=10.0)
    state = part.init(None, {})  # type: ignore[arg-type]
    round = round_of(np.array([[0.3], [0.1]]), [1.0, 0.5])
    alpha = part.weigh(state, round)
    assert np.allclose(alpha, np.exp([0, -1]) / (1 + np.exp(-1)))
    assert part.update(state, round_of(np.array([[0.9], [0.9]]), [1, 1], weights=alpha))["delta"] == 0.5  # .1 · 9 > .5
    deltas = []
    for _ in range(4):
        quiet = round_of(np.zeros((2, 1)), [1.0, 0.5], weights=alpha)
        state = part.update(state, quiet)
        deltas.append((state["delta"], state["stage"]))
    assert deltas == [(pytest.approx(d), s) for d, s in ((5e-3, 1), (5e-5, 1), (5e-5, 2), (5e-5, 2))]
    assert np.allclose(part.weigh(state, round_of(np.array([[2.0, 0], [-1, 1]]), [1, 1])), 0.5)


@pytest.mark.often("1000")
@pytest.mark.parametrize("first", [1000, 0])
def test_the_worst_loss_falls_first_and_then_no_loss_rises(first: int) -> None:
    """Gradient descent with small steps: the largest loss alone is chased, or each falls."""
    made = ALGORITHMS["fcfl"](model(0.0), first=first, delta=0.01, lr=0.005, weight_decay=0.0)
    fed, losses = federation(dtype=torch.float64, record="auto"), []
    for step in train(made, fed, 12, eval_every=1):
        rows = step.metrics.to_pylist()
        own = [row for row in rows if row["client"] != "global" and row["split"] == "train"]
        losses.append([row["value"] for row in own if row["metric"] == "loss"])
    moved = np.diff(np.array(losses), axis=0)
    assert len(losses[0]) == len(graphs())
    assert (np.diff(np.array(losses).max(1)) < 1e-3).all()
    assert np.array(losses)[-1].max() < np.array(losses)[0].max()
    if first == 0:
        assert moved.max() < -1e-2 * moved.min()  # what is left is of second order

"""Soft gaps and the servers' weights, against formulas written apart, by hand, and by their laws."""

from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms.fairness import (
    SoftGaps,
    f2gnn_weights,
    fairfed_deviation,
    fairfed_weights,
    shares,
    soft_gaps,
    total_gap,
)

NAN = float("nan")


def people(seed: int, nodes: int = 100) -> tuple[torch.Tensor, ...]:
    rng = np.random.default_rng(seed)
    p, y, sensitive = rng.random(nodes), rng.integers(0, 2, nodes), rng.integers(-1, 2, nodes)
    return tuple(torch.from_numpy(part) for part in (p, y, sensitive, rng.random(nodes) < 0.6))


def test_soft_gaps_are_the_formulas_written_apart(oracles: Any) -> None:
    for seed in range(5):
        p, y, sensitive, nodes = people(seed)
        gaps = soft_gaps(p, shares(y, sensitive, nodes, p.dtype))
        chosen = [part[nodes].numpy() for part in (p, y, sensitive)]
        assert gaps.sp.item() == pytest.approx(oracles.parity_gap(chosen[0], chosen[2]), abs=1e-12)
        assert gaps.eo.item() == pytest.approx(oracles.opportunity_gap(*chosen), abs=1e-12)


def test_a_gap_with_an_empty_group_is_zero_without_gradient() -> None:
    p, y, sensitive, nodes = people(0)
    for emptied in (0, 1):
        own = torch.where(sensitive == emptied, -1, sensitive)

        def penalty(p: torch.Tensor, own: torch.Tensor = own) -> torch.Tensor:
            return total_gap(p, shares(y, own, nodes, p.dtype))

        grad, value = torch.func.grad_and_value(penalty)(p)
        assert value.item() == 0
        assert torch.equal(grad, torch.zeros_like(p))


def test_the_gradient_moves_the_groups_apart() -> None:
    """d sp / dp is 1 / n_1 at group 1, -1 / n_0 at group 0, and 0 elsewhere."""
    p, y, sensitive, nodes = people(1)
    grad = torch.func.grad(lambda p: soft_gaps(p, shares(y, sensitive, nodes, p.dtype)).sp)(p)
    sizes = [(nodes & (sensitive == s)).sum() for s in (0, 1)]
    wanted = torch.where(sensitive == 1, 1 / sizes[1], -1 / sizes[0]) * (nodes & (sensitive >= 0))
    torch.testing.assert_close(grad, wanted.double())


def test_soft_gaps_of_stacked_clients() -> None:
    clients = [people(seed) for seed in range(4)]

    def found(p: torch.Tensor, y: torch.Tensor, sensitive: torch.Tensor, nodes: torch.Tensor) -> SoftGaps:
        return soft_gaps(p, shares(y, sensitive, nodes, p.dtype))

    stacked = torch.func.vmap(found)(*(torch.stack(part) for part in zip(*clients, strict=True)))
    for place, client in enumerate(clients):
        for got, wanted in zip(stacked, found(*client), strict=True):
            torch.testing.assert_close(got[place], wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("prefer", ["fair", "as_printed", "script"])
@pytest.mark.parametrize(("lam", "tau"), [(1.0, 1.0), (0.5, 0.05), (4.0, 4.0)])
def test_f2gnn_weights_are_the_formula_written_apart(oracles: Any, prefer: Any, lam: float, tau: float) -> None:
    rng = np.random.default_rng(0)
    balances, gaps = rng.random(7), rng.random(7) * 0.5
    gaps[0] = 0.0
    got = f2gnn_weights(torch.from_numpy(balances), torch.from_numpy(gaps), lam, tau, prefer)
    np.testing.assert_allclose(got, oracles.f2gnn_weights(balances, gaps, lam, tau, prefer), rtol=0, atol=1e-12)
    assert got.sum().item() == pytest.approx(1, abs=1e-12)


def test_whom_f2gnn_prefers() -> None:
    """Of two equally balanced clients "fair" weighs the fairer one more, "as_printed" the other. At temperature 4 the
    weights hardly differ."""
    balances, gaps = torch.tensor([0.5, 0.5]), torch.tensor([0.0, 0.6])
    fair = f2gnn_weights(balances, gaps, 1.0, 0.05)
    printed = f2gnn_weights(balances, gaps, 1.0, 0.05, "as_printed")
    assert fair[0] > 0.99
    torch.testing.assert_close(printed, fair.flip(0))
    assert (f2gnn_weights(balances, gaps / 3, 1.0, 4.0) - 0.5).abs().max() < 0.0125  # a ratio of at most 1.05
    balanced = f2gnn_weights(torch.tensor([1.0, 0.0]), torch.zeros(2), 1.0, 0.05)
    assert balanced[0] > 0.99


@pytest.mark.parametrize("beta", [0.0, 0.05, 1.0, 20.0])
def test_fairfed_weights_are_the_formula_written_apart(oracles: Any, beta: float) -> None:
    rng = np.random.default_rng(1)
    omega, gaps = rng.dirichlet(np.ones(6)), rng.random(6) - 0.5
    deviation = fairfed_deviation(torch.from_numpy(gaps), torch.tensor(0.1), torch.rand(6), torch.tensor(0.5))
    got = fairfed_weights(torch.from_numpy(omega), deviation, beta)
    np.testing.assert_allclose(got, oracles.fairfed_weights(omega, gaps, float(np.float32(0.1)), beta), atol=1e-12)
    assert got.min() >= 0
    if beta == 0:
        np.testing.assert_allclose(got, omega, atol=1e-12)


def test_fairfed_takes_accuracies_where_a_gap_is_undefined() -> None:
    got = fairfed_deviation(
        torch.tensor([0.5, NAN, -0.25]), torch.tensor(0.25), torch.tensor([0.0, 0.75, 0.0]), torch.tensor(0.5)
    )
    assert got.tolist() == [0.25, 0.25, 0.5]

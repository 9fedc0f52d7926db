"""Values, rewards and gradient-based Shapley values, against independent arithmetic and by hand."""

import math
from types import ModuleType

import numpy as np
import pytest
import torch

from fedweave.algorithms.fairgraphfl import AgentValue
from fedweave.algorithms.parts import Round
from fedweave.core.replies import Replies
from fedweave.errors import UserError
from fedweave.incentives import agent_values
from fedweave.incentives.agent_values import cosine_value
from fedweave.incentives.shapley import coalitions, shapley


def tensor(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def case(seed: int, agents: int = 6, size: int = 50) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Updates with a common direction, values of which one is negative, diversities."""
    rng = np.random.default_rng(seed)
    updates = rng.normal(size=(agents, size)) + 0.5 * rng.normal(size=size)
    r = rng.uniform(0.1, 1, agents)
    r[seed % agents] *= -0.2
    return torch.from_numpy(updates), torch.from_numpy(r / r.sum()), torch.from_numpy(rng.uniform(0.1, 0.4, agents))


def joint(updates: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """u_N, as FairGraphFL's server weighs updates."""
    round = Round(Replies((), [], {}), torch.arange(len(r)), {}, ())
    return AgentValue().weigh({"r": r.double()}, round) @ updates.double()


@pytest.mark.parametrize("seed", range(10))
def test_values_and_rewards_equal_the_reference(oracles: ModuleType, seed: int) -> None:
    updates, r, diversity = case(seed)
    whole, phi, new = oracles.agent_values(r.numpy(), list(updates.numpy()), diversity.numpy(), 0.07, 1.3)
    ours = joint(updates, r)
    alignment = agent_values.alignment(updates, ours)
    np.testing.assert_allclose(ours, whole, rtol=0, atol=1e-12)
    np.testing.assert_allclose(alignment, phi, rtol=0, atol=1e-12)
    values = torch.from_numpy(new)
    best = int(values.argmax())
    others = [i for i in range(len(r)) if i != best]
    for beta in (0.5, 1.0, 2.0):
        expected = np.stack(oracles.reward(whole, new, beta))
        got = agent_values.reward(ours, agent_values.quota(values, len(ours), beta))
        np.testing.assert_allclose(got[others], expected[others], rtol=0, atol=1e-12)
        # The best agent's D x / x is exactly D (Eq. 4); evaluated from the left, as there, it can round to below D.
        assert torch.equal(got[best], ours)
        assert np.count_nonzero(expected[best]) >= len(ours) - 1


def test_an_alignment_by_hand() -> None:
    updates = torch.tensor([[3.0, 4.0], [0.0, 2.0], [0.0, -1.0]])
    whole = joint(updates, tensor(0.5, 0.75, -0.25))
    torch.testing.assert_close(whole, tensor(1.2, 2.8))
    phi = agent_values.alignment(updates, whole)
    torch.testing.assert_close(phi, tensor(14.8, 14, -14) / tensor(5, 5, 5) / math.sqrt(1.2**2 + 2.8**2))


def test_an_update_of_zeros_is_aligned_with_nothing() -> None:
    updates = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    assert agent_values.alignment(updates, joint(updates, tensor(0.5, 0.5))).tolist() == [0.0, pytest.approx(1.0)]
    assert agent_values.alignment(updates, torch.zeros(2)).tolist() == [0.0, 0.0]


def test_quotas_the_best_gets_all_whatever_the_size_and_the_harmful_nothing() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 49, 24960, 29506, 10**9 + 7):
        for r in torch.from_numpy(rng.uniform(-0.3, 0.7, (200, 4))):
            quota = agent_values.quota(r, size)
            assert int(quota.max()) == (size if (r > 0).any() else 0)
            assert not quota[r <= 0].any()
    assert agent_values.quota(tensor(-1.0, 0.0), 5).tolist() == [0, 0]


def test_a_larger_beta_gives_more() -> None:
    r = tensor(0.1, 0.3, 0.6)
    quotas = torch.stack([agent_values.quota(r, 1000, beta) for beta in (0.5, 1, 2, 50)])
    assert (quotas.diff(dim=0) >= 0).all()
    assert quotas[0].tolist() == [int(1000 * math.tanh(0.5 * x) / math.tanh(0.3)) for x in (0.1, 0.3, 0.6)]
    assert int(quotas[-1].min()) == 999  # tanh 5, all but 1


def test_what_updates_that_cancel_leave_is_no_reward() -> None:
    """A remainder of 1e-20 beside entries of 1 would travel as an entry, in one order of clients and not in another."""
    got = agent_values.reward(torch.tensor([1e-20, 0.5, -1.0, 1e-6, -1e-20]), torch.tensor([5, 1]))
    assert got.tolist() == torch.tensor([[0.0, 0.5, -1.0, 1e-6, 0.0], [0.0, 0.0, -1.0, 0.0, 0.0]]).tolist()
    assert not agent_values.reward(torch.zeros(3), torch.tensor([3])).any()


def test_a_reward_keeps_the_largest_entries_and_of_ties_the_first() -> None:
    whole = torch.tensor([1.0, -3.0, 3.0, 0.0, 1.0])
    got = agent_values.reward(whole, torch.tensor([0, 1, 3, 5]))
    assert got.tolist() == [[0] * 5, [0, -3, 0, 0, 0], [1, -3, 3, 0, 0], whole.tolist()]


@pytest.mark.parametrize("seed", range(4))
def test_gradient_shapley_equals_the_reference(oracles: ModuleType, seed: int) -> None:
    updates, r, _ = case(seed)
    arrays, weights = updates.numpy(), np.maximum(r.numpy(), 0)

    def nu(coalition: frozenset[int]) -> float:
        mixed = sum(weights[i] * arrays[i] for i in coalition)
        return oracles.cosine(mixed, weights @ arrays) if np.any(mixed) else 0.0

    expected = oracles.shapley(list(range(6)), nu)
    values = shapley(cosine_value(updates, r), 6).values
    np.testing.assert_allclose(values, [expected[i] for i in range(6)], rtol=0, atol=1e-12)
    assert float(values.sum()) == pytest.approx(1)
    assert float(values[seed]) == 0  # r < 0: it is in no mean


def test_coalitions_whose_updates_cancel_are_worth_nothing() -> None:
    rng = np.random.default_rng(0)
    a, b = torch.from_numpy(rng.normal(size=(2, 30000)))
    value = cosine_value(torch.stack([a, -a, 1e-3 * b]), tensor(0.25, 0.25, 0.5))
    worth = dict(zip(map(tuple, coalitions(3).long().tolist()), value(coalitions(3)).tolist(), strict=True))
    assert worth[0, 0, 0] == worth[1, 1, 0] == 0
    assert worth[0, 0, 1] == pytest.approx(1)
    assert worth[1, 0, 0] == pytest.approx(-worth[0, 1, 0])
    nothing = cosine_value(torch.stack([a, -a]), tensor(0.5, 0.5))
    assert nothing(coalitions(2)).tolist() == [0.0] * 4


@pytest.mark.parametrize("length", [1e-6, 1, 1e6])
def test_what_rounding_leaves_of_updates_that_cancel_is_nothing_however_long_they_are(length: float) -> None:
    a, b = length * torch.from_numpy(np.random.default_rng(1).normal(size=(2, 3000)))
    mixed = tensor(0.3, 0.1, 0.5)
    found = cosine_value(torch.stack([0.1 * a, -0.3 * a, 1e-3 * b]), mixed)(tensor(1, 1, 0, 0, 0, 1).bool().view(2, 3))
    assert found.tolist() == [0.0, pytest.approx(1)]


def test_wrong_arguments_are_refused() -> None:
    assert joint(torch.ones(2, 3), tensor(0, -1)).tolist() == [0, 0, 0]  # nobody is worth anything
    with pytest.raises(UserError, match="beta is 0"):
        agent_values.quota(tensor(1), 3, 0)


def test_diversity_is_the_share_of_all_agents_motifs() -> None:
    """Of the motifs 3, 5 and 9, two of which both have; and where nobody has any."""
    motif = torch.tensor([[3, 5, -1], [3, 5, 9], [-1, -1, -1]])
    assert agent_values.diversity(motif).tolist() == [2 / 3, 1.0, 0.0]
    assert agent_values.diversity(torch.full((2, 3), -1)).tolist() == [0.0, 0.0]

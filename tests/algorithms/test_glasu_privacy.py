"""The Gaussian mechanism on rows and its accountant."""

import math

import numpy as np
import pytest
import torch
from scipy.special import ndtr

from fedweave.algorithms.vertical.aggregation import RowRelease
from fedweave.core import random
from fedweave.core.federation import Client
from fedweave.core.mechanism import Clipped, Cost, Gaussian
from fedweave.privacy import gaussian
from fedweave.privacy.gaussian import GaussianRows, epsilon, noise, total_epsilon
from tests.contract.federations import graphs


def delta_of(mu: float, eps: float) -> float:
    """E[max(0, 1 - e^(ε - L))] over the privacy loss L ~ N(μ²/2, μ²) of a Gaussian mechanism, by quadrature."""
    loss = np.linspace(mu**2 / 2 - 12 * mu, mu**2 / 2 + 12 * mu, 400_001)
    density = np.exp(-((loss - mu**2 / 2) ** 2) / (2 * mu**2)) / (mu * math.sqrt(2 * math.pi))
    return float(np.trapezoid(np.clip(1 - np.exp(eps - loss), 0, None) * density, loss))


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5])
def test_epsilon_gives_its_delta(mu: float, delta: float) -> None:
    assert delta_of(mu, epsilon(mu, delta)) == pytest.approx(delta, rel=1e-4)


def test_epsilon_is_zero_where_delta_covers_everything_and_grows() -> None:
    assert epsilon(1e-4, 1e-3) == 0
    values = [epsilon(mu, 1e-5) for mu in (0.1, 0.2, 0.5, 1, 2, 5, 20)]
    assert values == sorted(values)
    rows = GaussianRows(clip=3.0, sigma=4.0)
    assert rows.epsilon(1) == pytest.approx(epsilon(2 / 4, 1e-5))
    assert rows.epsilon(9) == pytest.approx(epsilon(3 * 2 / 4, 1e-5))
    assert GaussianRows().epsilon(1) == math.inf


def test_rows_are_clipped_and_noised() -> None:
    """Rows of norm 5 and 0.5 with clip 1: (0.6, 0.8) and unchanged, plus noise of standard deviation sigma · clip."""
    h = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    clipped = torch.tensor([[0.6, 0.8], [0.3, 0.4]])
    assert torch.equal(GaussianRows(clip=1.0).apply(h, random.key(0)), h)
    assert torch.allclose(GaussianRows(1.0, 1e-9).apply(h, random.key(0)), clipped, atol=1e-6)
    for sigma, clip in ((2.0, 1.0), (0.5, 3.0)):
        noise = GaussianRows(clip, sigma).apply(torch.zeros(20_000, 2), random.key(1))
        assert float(noise.std()) == pytest.approx(sigma * clip, rel=0.02)
        assert float(noise.mean().abs()) < 5 * sigma * clip / 200
    assert not torch.equal(*(GaussianRows(1.0, 1.0).apply(h, random.key(seed)) for seed in (0, 1)))


def test_no_row_is_impossible_that_another_makes_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    """(ε, δ) asks for noise whose tails go on: what ends at 5.9 standard deviations tells rows apart at sigma = 1 with
    probability 5e-5, whatever ε."""
    rows, key = GaussianRows(3.0, 2.0), random.key(5)
    drawn = rows.apply(torch.zeros(7, 3, dtype=torch.float64), key)
    assert torch.equal(drawn, 2.0 * 3.0 * noise(key, (7, 3)))
    farthest = math.sqrt(-2 * math.log(2.0**-54))
    assert 2 * ndtr(-farthest) < 1e-16
    monkeypatch.setattr(gaussian, "bits", lambda key, count: torch.zeros(count, dtype=torch.int64))
    assert float(noise(key, (1,))) == pytest.approx(farthest, rel=1e-12), "the least word is the farthest noise"


def test_noise_of_representations_comes_from_the_secret_alone_and_of_a_node_is_drawn_once() -> None:
    """The server may know the key of a client's other randomness; and the mean of a node's rows would have less."""
    release, graph = RowRelease(GaussianRows(1.0, 2.0), False), graphs()["site-0"]

    def sent(key: int, secret: int) -> torch.Tensor:
        client = Client(graph, {}, random.key(key), random.key(secret))
        return release.add_noise(client, torch.zeros(4, 3), torch.tensor([5, 2, 5, 5]))

    assert torch.equal(sent(1, 2), sent(3, 2))
    assert not (sent(1, 2) == sent(1, 4)).any()
    rows = sent(1, 2)
    assert torch.equal(rows[[0, 0, 0]], rows[[0, 2, 3]])
    assert not torch.equal(rows[0], rows[1])


def test_the_ledger_is_told() -> None:
    assert GaussianRows().mechanisms == ()
    rows = GaussianRows(0.5, 4.0)
    assert rows.mechanisms == (Clipped(0.5), Gaussian(2.0, 1.0, "row", 1e-5))
    assert rows.mechanisms[1].mu == rows.mu == 0.5
    assert GaussianRows(0.5, 4.0, 1e-7).mechanisms[1] == Gaussian(2.0, 1.0, "row", 1e-7)


def test_costs_make_one_epsilon() -> None:
    """Two releases with μ = 1/2 are one of √½, whose ε is 2.943; pure ones are added to it."""
    assert delta_of(math.sqrt(0.5), 2.943) == pytest.approx(1e-5, rel=0.01)
    assert total_epsilon(Cost(squared_mu=2 * 0.5**2), 1e-5) == pytest.approx(2.943, abs=1e-3)
    assert total_epsilon(Cost(1.5, 2 * 0.5**2, unbounded=7), 1e-5) == pytest.approx(4.443, abs=1e-3)
    assert total_epsilon(Cost(1.5), 1e-5) == 1.5
    for much in (1e13, 1e20, 1e100, math.inf):
        assert total_epsilon(Cost(squared_mu=much), 1e-5) == math.inf

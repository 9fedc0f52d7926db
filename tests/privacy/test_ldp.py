"""𝓜_N and 𝓜_E: their exact distributions, what follows for ε, and that the rest is post-processing."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from fedweave.core import random
from fedweave.ops.hashing import bits
from fedweave.privacy.mechanisms import (
    flip_probability,
    level_probabilities,
    noisy_levels,
    noisy_links,
    pack_bits,
    sparsify_links,
    true_density,
    uniform,
    unpack_bits,
)

EPSILONS = (0.5, 1.0, 3.0)


def inputs(levels: int) -> torch.Tensor:
    """Values in [0, 1], among them all at which an output's probability jumps and those beside them."""
    steps = np.arange(levels + 1) / levels
    beside = np.concatenate([steps - 1e-9, steps, steps + 1e-9, np.linspace(0, 1, 257)])
    return torch.from_numpy(np.unique(beside.clip(0, 1)))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_codes_are_epsilon_private_and_no_more(epsilon: float) -> None:
    for levels in range(1, 51):
        p = level_probabilities(inputs(levels), levels, epsilon)
        assert p.sum(-1).numpy() == pytest.approx(1, abs=1e-12)
        worst = float((p.max(0).values / p.min(0).values).log().max())
        assert worst == pytest.approx(epsilon, abs=1e-9)


def test_a_closed_form_of_the_sum_would_not_do() -> None:
    """Eq. 21 as printed: its probabilities do not sum to 1 where x is not at an end."""
    levels, epsilon, x = 10, 3.0, 0.5
    i = np.arange(levels + 1)
    weights = np.exp(epsilon * (1 - np.floor(levels * np.abs(x - i / levels)) / levels))
    factor = (math.exp(epsilon / levels) - 1) / (math.exp((levels + 1) * epsilon / levels) - 1)
    assert factor * weights.sum() > 1.1


@pytest.mark.often("1.0")
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_codes_equal_the_reference(oracles: Any, epsilon: float) -> None:
    for levels in range(1, 51):
        x = inputs(levels)
        ours = level_probabilities(x, levels, epsilon).numpy()
        theirs = np.stack([oracles.code_probabilities(float(one), levels, epsilon) for one in x])
        assert np.abs(ours - theirs).max() < 1e-12


@pytest.mark.parametrize("epsilon", [0.0, *EPSILONS, 20.0])
def test_flips_equal_the_reference(oracles: Any, epsilon: float) -> None:
    p = flip_probability(epsilon)
    assert p == pytest.approx(oracles.flip_probability(epsilon), rel=1e-12)
    assert math.log((1 - p) / p) == pytest.approx(epsilon)
    for observed in (0.1, 0.27, 0.5):
        if epsilon:
            ours = float(true_density(torch.tensor(observed, dtype=torch.float64), p))
            assert ours == pytest.approx(oracles.true_density(observed, p))


@pytest.mark.parametrize(("levels", "x"), [(1, 0.0), (1, 1.0), (4, 0.3), (10, 0.55)])
def test_what_is_drawn_has_the_stated_distribution(levels: int, x: float) -> None:
    count = 200_000
    words = bits(random.key(levels), count)
    drawn = noisy_levels(torch.full((count,), x), levels, 1.5, words)
    share = np.bincount(drawn.numpy(), minlength=levels + 1) / count
    stated = level_probabilities(torch.tensor(x), levels, 1.5).numpy()
    assert share == pytest.approx(stated, abs=5 * math.sqrt(0.25 / count))


def test_one_level_is_randomized_response() -> None:
    p = level_probabilities(torch.tensor([0.0, 1.0]), 1, 3.0)
    assert p[:, 1].tolist() == pytest.approx([flip_probability(3.0), 1 - flip_probability(3.0)])


def test_infinite_epsilon_adds_no_noise() -> None:
    x = torch.tensor([0.0, 0.25, 1.0])
    assert noisy_levels(x, 4, math.inf, bits(random.key(0), 3)).tolist() == [0, 1, 4]


@pytest.mark.parametrize(("odd", "counts_as"), [(math.nan, 0.0), (math.inf, 1.0), (-math.inf, 0.0), (7.0, 1.0)])
def test_what_is_not_between_0_and_1_has_as_much_noise(odd: float, counts_as: float) -> None:
    words = bits(random.key(3), 4000)
    one, other = (noisy_levels(torch.full((4000,), value), 4, 1.0, words) for value in (odd, counts_as))
    assert torch.equal(one, other)
    assert len(one.unique()) == 5
    links = torch.tensor([[0, 1], [1, 0]], dtype=torch.bool)
    assert torch.equal(noisy_links(links, torch.arange(2), math.inf, random.key(0)), links)


# --- links


def adjacency(nodes: int, density: float, seed: int) -> torch.Tensor:
    upper = np.triu(np.random.default_rng(seed).random((nodes, nodes)) < density, 1)
    return torch.from_numpy(upper | upper.T)


def test_links_flip_with_the_stated_probability_and_stay_symmetric() -> None:
    links, nodes = adjacency(400, 0.3, 0), torch.arange(400)
    noisy = noisy_links(links, nodes, 1.0, random.key(1))
    assert torch.equal(noisy, noisy.mT)
    assert not noisy.diagonal().any()
    upper = torch.ones(400, 400).triu(1).bool()
    for there in (False, True):
        flipped = (noisy ^ links)[upper & (links == there)].double().mean()
        assert float(flipped) == pytest.approx(flip_probability(1.0), abs=0.01)


def test_a_pair_gives_the_same_bit_in_every_minibatch() -> None:
    """Whatever the padding, the order and the other nodes."""
    links, key = adjacency(50, 0.2, 0), random.key(7)
    whole = noisy_links(links, torch.arange(50), 1.0, key)
    some = torch.tensor([31, 4, 17, 49, 0])
    assert torch.equal(noisy_links(links[some][:, some], some, 1.0, key), whole[some][:, some])
    assert not torch.equal(noisy_links(links, torch.arange(50), 1.0, random.key(8)), whole)


def test_the_density_is_unbiased() -> None:
    nodes, flip, found = 40, flip_probability(1.0), []
    upper = torch.ones(nodes, nodes).triu(1).bool()
    links = adjacency(nodes, 0.05, 3)
    for seed in range(400):
        noisy = noisy_links(links, torch.arange(nodes), 1.0, random.key(seed))
        found.append(float(true_density(noisy[upper].double().mean(), flip)))
    error = np.std(found) / math.sqrt(len(found))
    assert np.mean(found) == pytest.approx(float(links[upper].double().mean()), abs=4 * error)
    assert error < 0.002
    # the observed density is not: it is far above
    assert float(noisy[upper].double().mean()) > 0.2


def test_the_farthest_surplus_links_go_first_by_hand() -> None:
    flip = 0.25
    epsilon = math.log((1 - flip) / flip)
    distance = torch.tensor([[0, 1, 5, 2], [1, 0, 4, 3], [5, 4, 0, 6], [2, 3, 6, 0]])
    noisy = ~torch.eye(4, dtype=torch.bool)
    noisy[2, 3] = noisy[3, 2] = False  # 5 of 6 ones: (5/6 − 1/4) / (1/2) of 6 would be 7, so that all stay
    valid = torch.ones(4, dtype=torch.bool)
    assert torch.equal(sparsify_links(noisy, distance, valid, epsilon), noisy)
    noisy[0, 2] = noisy[2, 0] = noisy[1, 2] = noisy[2, 1] = False  # 3 of 6: 3 stay
    assert torch.equal(sparsify_links(noisy, distance, valid, epsilon), noisy)
    noisy[0, 3] = noisy[3, 0] = False  # 2 of 6: 1 stays, the nearest
    left = sparsify_links(noisy, distance, valid, epsilon)
    assert left.nonzero().tolist() == [[0, 1], [1, 0]]
    valid[1] = False  # of 3 pairs none is a one
    assert not sparsify_links(noisy, distance, valid, epsilon).any()


def test_noise_between_nodes_and_padding_counts_for_nothing() -> None:
    """Of 64 rows the last 24 are padding, full of ones."""
    noisy = noisy_links(adjacency(40, 0.1, 5), torch.arange(40), 1.0, random.key(3))
    noisy = noisy | noisy.mT
    distance = torch.arange(64 * 64).view(64, 64)
    padded = torch.nn.functional.pad(noisy, (0, 24, 0, 24), value=True)
    alone = sparsify_links(noisy, distance[:40, :40], torch.ones(40, dtype=torch.bool), 1.0)
    left = sparsify_links(padded, distance, torch.arange(64) < 40, 1.0)
    assert alone.any()
    assert torch.equal(left, torch.nn.functional.pad(alone, (0, 24, 0, 24)))


def test_sparsifying_keeps_the_true_number_of_links() -> None:
    links = adjacency(64, 0.1, 5)
    noisy = noisy_links(links, torch.arange(64), 1.0, random.key(3))
    distance = torch.arange(64 * 64).view(64, 64)
    left = sparsify_links(noisy, distance, torch.ones(64, dtype=torch.bool), 1.0)
    pairs = 64 * 63 // 2
    wanted = true_density(noisy.sum() / 2 / pairs, flip_probability(1.0)) * pairs
    assert int(left.sum()) // 2 == round(float(wanted))
    assert not (left & ~noisy).any()
    assert torch.equal(left, left.mT)


def test_words_are_uniform_and_bits_are_packed_as_numpy_packs_them() -> None:
    u = uniform(bits(random.key(0), 100_000)).numpy()
    assert ((u >= 0) & (u < 1)).all()
    assert uniform(torch.tensor([0, 1 << 11, -1])).tolist() == [0.0, 2.0**-53, 1 - 2.0**-53]
    assert np.histogram(u, 10, (0, 1))[0] == pytest.approx(10_000, abs=500)
    drawn = torch.from_numpy(np.random.default_rng(0).random((5, 13)) < 0.5)
    assert np.array_equal(pack_bits(drawn).numpy(), np.packbits(drawn.numpy(), axis=-1, bitorder="little"))
    assert torch.equal(unpack_bits(pack_bits(drawn), 13), drawn)

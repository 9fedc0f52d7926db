"""Noise that sites draw: words of a secret key, of which those that are seen tell no others."""

import hashlib

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from fedweave.core import random
from fedweave.core.random import fold
from fedweave.ops import hashing
from fedweave.ops import hashing as secret
from fedweave.privacy.gaussian import noise
from fedweave.privacy.mechanisms import noisy_links
from tests.refusals import refusal

KEY = secret.from_bytes(b"a site's own")
MASK = (1 << 64) - 1


def unsigned(word: int) -> int:
    return word & MASK


def before(z: int) -> int:
    """What `hashing.finalize` made `z` of."""
    for shift, factor in ((31, 1), (27, hashing.MIX2), (30, hashing.MIX1)):
        z = z * pow(unsigned(factor), -1, 1 << 64) & MASK
        found = z
        for _ in range(64 // shift + 1):
            found = z ^ found >> shift
        z = found
    return z


def parent_of(child: int, purpose: str) -> int:
    """The key that `fold(…, purpose)` made `child` of."""
    child = child ^ child >> 32
    return (child * pow(unsigned(hashing.MIX1), -1, 1 << 64) & MASK) ^ unsigned(random._fixed(purpose))


def guessed(root: Tensor) -> tuple[Tensor, Tensor]:
    """The noise of one leaf, and what somebody computes for it who has seen the first word of another."""
    word = unsigned(int(hashing.bits(fold(root, "0/weight"), 1)[0]))
    key = before(word) - unsigned(hashing.GOLDEN) & MASK
    found = parent_of(key, "0/weight")
    rest = torch.tensor(found - (1 << 64) * (found >> 63), dtype=torch.int64)
    return noise(fold(root, "0/bias"), (50,)), noise(fold(rest, "0/bias"), (50,))


def test_noise_that_was_seen_tells_no_other_noise() -> None:
    """The hash of simulations is undone in a few lines; the same lines find nothing of a secret key."""
    true, found = guessed(fold(random.key(7), "update"))
    assert torch.equal(true, found)
    true, found = guessed(fold(KEY, "update"))
    assert abs(float(torch.corrcoef(torch.stack([true, found]))[0, 1])) < 0.6  # of 50 pairs, some 4 deviations


def test_words_are_those_of_the_standard_library() -> None:
    assert fold(KEY, "update").tolist() == [
        *hashlib.blake2b(b"str update", key=bytes(KEY.numpy()), digest_size=32).digest()
    ]
    drawn = hashing.bits(KEY, 5)
    assert drawn.numpy().tobytes() == hashlib.shake_256(b"bits" + bytes(KEY.numpy())).digest(40)
    assert torch.equal(hashing.bits(KEY, 9)[:5], drawn)


def test_a_word_of_a_number_needs_all_of_the_key() -> None:
    """Whoever knows a part of it alone cannot compute which pairs of nodes were flipped."""
    numbers = torch.tensor([[7, 3], [7, -1]])
    words = fold(KEY, numbers)
    key = bytes(KEY.numpy())
    keyed = [hashlib.blake2b(number.to_bytes(8, "little"), key=key, digest_size=8) for number in (7, 3)]
    assert words[0].numpy().tobytes() == b"".join(one.digest() for one in keyed)
    assert words[0, 0] == words[1, 0]
    for place in (0, 31):
        other = KEY.clone()
        other[place] += 1
        assert not (fold(other, numbers) == words).any()


def test_purposes_give_keys_of_their_own() -> None:
    made = [fold(KEY, *purpose) for purpose in (("a",), ("b",), (1,), (torch.tensor(1),), ("a", "b"), ("1",))]
    assert len({bytes(key.numpy()) for key in (KEY, *made)}) == len(made) + 1
    assert all(secret.is_secret(key) for key in made)


@pytest.mark.parametrize("shape", [(20_000,), (100, 200)])
def test_noise_of_a_secret_key_is_normal(shape: tuple[int, ...]) -> None:
    assert stats.kstest(noise(KEY, shape).flatten().numpy(), "norm").pvalue > 1e-4


def test_a_pair_of_nodes_draws_the_same_bit_again() -> None:
    """In any order and company; and bits are even."""
    nodes, none = torch.arange(300), torch.zeros(300, 300, dtype=torch.bool)

    def both_ways(links: Tensor) -> Tensor:
        return links | links.mT

    flipped = both_ways(noisy_links(none, nodes, 1.0, KEY))
    some = torch.tensor([17, 3, 250, 99])
    assert torch.equal(both_ways(noisy_links(none[:4, :4], some, 1.0, KEY)), flipped[some][:, some])
    share = float(flipped.triu(1).sum()) / (300 * 299 / 2)
    assert share == pytest.approx(1 / (1 + np.e), abs=0.01)


def test_a_key_read_inside_a_transform_is_refused_with_what_to_do() -> None:
    """A simulation does not show the mistake: its keys are numbers, which can be read there."""
    key = secret.from_bytes(b"a site's")
    with refusal("user.secret", "torch.func"):
        torch.func.grad(lambda w: (w * secret.secret_bits(key, 2)[0]).sum())(torch.ones(2))

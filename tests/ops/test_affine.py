"""Affine layers and dropout masks taken block by block: the numbers of PyTorch's and NumPy's, whatever the blocks."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from fedweave.core import random
from fedweave.ops.linear import affine

SHAPES = [(300, 64, 64), (33, 8, 4), (50, 7, 3), (129, 4, 12)]


def given(clients: int, *shape: int) -> tuple[Tensor, ...]:
    """h [P, n, in], w, bias, and the gradient of the result."""
    generator = torch.Generator().manual_seed(sum(shape))
    n, width, out = shape
    sizes = ((clients, n, width), (clients, width, out), (clients, out), (clients, n, out))
    return tuple(torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_affine_and_its_gradients_are_those_of_torch(shape: tuple[int, ...], relu: bool) -> None:
    *sides, slope = given(3, *shape)
    free = [side.requires_grad_() for side in sides]
    out = vmap(lambda h, w, b: affine(h, w, b, relu))(*free)
    theirs = torch.stack([F.linear(h, w.T, b) for h, w, b in zip(*free, strict=True)])
    theirs = theirs.relu() if relu else theirs
    torch.testing.assert_close(out, theirs, rtol=1e-12, atol=1e-12)
    for own, other in zip(torch.autograd.grad(out, free, slope), torch.autograd.grad(theirs, free, slope), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_client_alone_has_the_bits_that_it_has_among_others(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    *sides, slope = (side.to(dtype) for side in given(5, *shape))
    free = [side.requires_grad_() for side in sides]
    together = vmap(lambda h, w, b: affine(h, w, b, True))(*free)
    among = torch.autograd.grad(together, free, slope)
    own = [side[2].detach().requires_grad_() for side in free]
    alone = affine(*own, True)
    assert torch.equal(alone, together[2])
    for one, all_of_them in zip(torch.autograd.grad(alone, own, slope[2]), among, strict=True):
        assert torch.equal(one, all_of_them[2])


@pytest.mark.parametrize("relu", [False, True])
def test_affine_can_be_differentiated_twice(relu: bool) -> None:
    *sides, _ = given(1, 9, 4, 8)
    free = [side[0].requires_grad_() for side in sides]
    assert torch.autograd.gradgradcheck(lambda h, w, b: affine(h, w, b, relu), free)


def words(key: int, count: int) -> np.ndarray:
    """SplitMix64's outputs from the state `key` on, uint64 [count]."""
    z = np.uint64(key % 2**64) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@pytest.mark.parametrize("block", [1, 8, 1 << 15])
@pytest.mark.parametrize("shape", [(3,), (257,), (41, 7)], ids=str)
def test_masks_are_draws_of_splitmix_whatever_the_blocks(
    shape: tuple[int, ...], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "_WORDS", block)
    keys, count = [-5, 7, 2**62], int(np.prod(shape))
    drawn = vmap(lambda key: random.mask(key, shape, 1000, 0.25, torch.float32))(torch.tensor(keys))
    for own, key in zip(drawn, keys, strict=True):
        sixteenths = words(key, -(-count // 4)).view("<i2")[:count]
        np.testing.assert_array_equal(own, np.where(sixteenths < 1000, 0.25, 0).reshape(shape))

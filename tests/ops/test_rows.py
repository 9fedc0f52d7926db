"""Rows picked for all clients at once, against plain indexing of each client's matrix."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from fedweave.ops import rows
from fedweave.ops.recording import Recordings, record_or_play
from fedweave.ops.rows import gather_rows, row_products, weighted_gather

CLIENTS, NODES, PICKED, WIDTH, MEMBERS = 3, 5, 8, 4, 6


def inputs(seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """h [P, n, k], index [P, m] with repeats, index of bags [P, m, j], and weights [P, m, j], some of them 0."""
    rng = torch.Generator().manual_seed(seed)
    h = torch.randn(CLIENTS, NODES, WIDTH, generator=rng, dtype=dtype)
    one, many = (
        torch.randint(NODES, shape, generator=rng) for shape in ((CLIENTS, PICKED), (CLIENTS, PICKED, MEMBERS))
    )
    return h, one, many, torch.rand(many.shape, generator=rng, dtype=dtype) * (many > 0)


def batched(function: Callable[..., Tensor], dims: tuple[Any, ...], *given: Tensor) -> Tensor:
    """`function` over clients; what `dims` calls shared is the first client's."""
    return vmap(function, dims)(*(t if dim == 0 else t[0] for t, dim in zip(given, dims, strict=True)))


def one_by_one(function: Callable[..., Tensor], dims: tuple[Any, ...], *given: Tensor) -> Tensor:
    pick = [[t[site if dim == 0 else 0] for t, dim in zip(given, dims, strict=True)] for site in range(CLIENTS)]
    return torch.stack([function(*own) for own in pick])


def some_batched(count: int) -> list[tuple[Any, ...]]:
    return [dims for dims in product((0, None), repeat=count) if 0 in dims]


def test_rows_are_plain_indexing() -> None:
    h, index, _, _ = inputs()
    assert torch.equal(gather_rows(h[0], index[0]), h[0][index[0]])
    assert gather_rows(h[0], index[0][:0]).shape == (0, WIDTH)


def test_gradients_of_rows_once_and_twice() -> None:
    h, index, _, _ = inputs()
    free = h[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda h: gather_rows(h, index[0]), (free,))
    assert torch.autograd.gradgradcheck(lambda h: gather_rows(h, index[0]).sin(), (free,))


@pytest.mark.parametrize("dims", some_batched(2))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_of_all_clients_have_the_bits_of_each_alone(dims: tuple[Any, ...], dtype: torch.dtype) -> None:
    h, index, _, _ = inputs(dtype=dtype)
    assert torch.equal(batched(gather_rows, dims, h, index), one_by_one(gather_rows, dims, h, index))
    pull = torch.randn(PICKED, WIDTH, generator=torch.Generator().manual_seed(1), dtype=dtype)

    def slope(h: Tensor, index: Tensor) -> Tensor:
        return torch.func.grad(lambda h: (gather_rows(h, index).sin() * pull).sum())(h)

    def curve(h: Tensor, index: Tensor) -> Tensor:
        return torch.func.grad(lambda h: slope(h, index).square().sum())(h)

    for function in (slope, curve):
        together = batched(function, dims, h, index)
        assert together.any()
        assert torch.equal(together, one_by_one(function, dims, h, index))
    plain = torch.stack(
        [torch.func.grad(lambda h, i=i: (h[i].sin() * pull).sum())(own) for own, i in zip(h, index, strict=True)]
    )
    if dims == (0, 0):
        torch.testing.assert_close(batched(slope, dims, h, index), plain)


@pytest.mark.parametrize("at_once", [1, 3, 100])
@pytest.mark.parametrize("dims", some_batched(3))
def test_products_of_rows_are_those_of_plain_indexing(
    dims: tuple[Any, ...], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "PAIRS_IN_CACHE", at_once)
    h, first, _, _ = inputs()
    second = first.flip(1)

    def plain(h: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return (h[first] * h[second]).sum(1)

    together = batched(row_products, dims, h, first, second)
    assert torch.equal(together, one_by_one(plain, dims, h, first, second))
    assert row_products(h[0], first[0, :0], second[0, :0]).shape == (0,)

    def slope(products: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda h, *ends: torch.func.grad(lambda h: products(h, *ends).sin().sum())(h)

    grads = batched(slope(row_products), dims, h, first, second)
    torch.testing.assert_close(grads, one_by_one(slope(plain), dims, h, first, second))


def test_gradients_of_products_once_and_twice() -> None:
    h, index, _, _ = inputs()
    free, ends = h[0].requires_grad_(), (index[0], index[0].flip(0))
    assert torch.autograd.gradcheck(lambda h: row_products(h, *ends), (free,))
    assert torch.autograd.gradgradcheck(lambda h: row_products(h, *ends), (free,))


def test_gradient_from_outside_vmap() -> None:
    """`fit` differentiates the sum of all clients' losses, outside the vectorized forward pass."""
    h, index, _, _ = inputs()
    free = [h.clone().requires_grad_() for _ in range(2)]
    vmap(gather_rows)(free[0], index).pow(3).sum().backward()
    sum(own[i].pow(3).sum() for own, i in zip(free[1], index, strict=True)).backward()  # type: ignore[union-attr]
    torch.testing.assert_close(free[0].grad, free[1].grad, atol=0, rtol=0)
    assert free[0].grad is not None
    assert free[0].grad.any()


def test_mixed_are_weighted_sums_of_rows() -> None:
    h, _, index, weight = inputs()
    expected = torch.einsum("mj,mjk->mk", weight[0], h[0][index[0]])
    torch.testing.assert_close(weighted_gather(h[0], index[0], weight[0]), expected, atol=1e-14, rtol=1e-14)
    by_hand = weighted_gather(
        torch.tensor([[1.0, 2], [10, 20]]), torch.tensor([[0, 1, 1]]), torch.tensor([[3.0, 0.5, 0]])
    )
    assert by_hand.tolist() == [[8.0, 16.0]]


@pytest.mark.parametrize("dims", some_batched(3))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mixed_of_all_clients_have_the_bits_of_each_alone(dims: tuple[Any, ...], dtype: torch.dtype) -> None:
    h, _, index, weight = inputs(dtype=dtype)
    together = batched(weighted_gather, dims, h, index, weight)
    assert together.shape == (CLIENTS, PICKED, WIDTH)
    assert torch.equal(together, one_by_one(weighted_gather, dims, h, index, weight))


def test_mixed_rows_have_the_gradients_of_plain_indexing() -> None:
    h, _, index, weight = inputs()
    free = [h[0].clone().requires_grad_() for _ in range(2)]
    outs = weighted_gather(free[0], index[0], weight[0]), torch.einsum("mj,mjk->mk", weight[0], free[1][index[0]])
    grads = [torch.autograd.grad(out.pow(3).sum(), tensor)[0] for out, tensor in zip(outs, free, strict=True)]
    torch.testing.assert_close(*grads, atol=1e-12, rtol=1e-12)
    assert grads[0].any()


def test_a_recording_picks_the_rows_that_it_is_given_later() -> None:
    def step(h: Tensor, index: Tensor, many: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        free = h.detach().requires_grad_()
        with torch.enable_grad():
            out = vmap(gather_rows)(free, index)
            (slope,) = torch.autograd.grad(out.pow(3).sum(), free)
        return out.detach(), slope, vmap(weighted_gather)(h, many, weight)

    recordings = Recordings("always")
    for seed in (0, 1):
        with recordings.activate():
            given = record_or_play(step, (step,), (), (), inputs(seed))
        for found, expected in zip(given, step(*inputs(seed)), strict=True):
            assert torch.equal(found, expected)
    assert recordings.played == 1

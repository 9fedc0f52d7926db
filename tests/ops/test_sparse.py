from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.func import vmap

from fedweave.core.random import generator
from fedweave.core.tree import materialize
from fedweave.ops.csr import Csr, StackedCsr
from fedweave.ops.sparse import Sparse
from fedweave.ops.touched_rows import TouchedRows

DTYPES = [torch.float32, torch.float64]


def matrix(rows: int, cols: int, density: float, seed: int, dtype: torch.dtype = torch.float64) -> sp.csr_matrix:
    made = sp.random(rows, cols, density, rng=generator(seed, "matrix"), format="csr")
    return made.astype(np.float64 if dtype == torch.float64 else np.float32)


def of_clients(members: list[sp.csr_matrix], rows: int, cols: int) -> tuple[Sparse, Tensor]:
    """The batch, and the same dense [P, rows, cols]."""
    dense = torch.zeros(len(members), rows, cols, dtype=torch.float64)
    for p, m in enumerate(members):
        dense[p, : m.shape[0], : m.shape[1]] = torch.from_numpy(m.toarray())
    return Sparse(StackedCsr([Csr.of(m) for m in members], rows, cols), torch.arange(len(members))), dense


def some(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.from_numpy(generator(1, "dense").normal(size=shape)).to(dtype)


MEMBERS = {
    "alike": [matrix(4, 5, 0.5, seed) for seed in range(3)],
    "different sizes": [matrix(2, 3, 0.6, 1), matrix(4, 5, 0.4, 2), matrix(1, 1, 1.0, 3)],
    "one empty": [matrix(3, 5, 0.5, 1), sp.csr_matrix((4, 5)), matrix(4, 2, 0.5, 2)],
    "all empty": [sp.csr_matrix((4, 5)), sp.csr_matrix((2, 2))],
    "empty rows and columns": [
        sp.csr_matrix(([1.0, 2.0], ([0, 3], [4, 0])), shape=(4, 5)),
        sp.csr_matrix(([3.0], ([2], [2])), shape=(4, 5)),
    ],
    "one client": [matrix(4, 5, 0.5, 4)],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_one_client_multiplies_as_dense(dtype: torch.dtype, density: float) -> None:
    m = matrix(6, 4, density, 5, dtype)
    h, weight = some(4, 3, dtype=dtype).requires_grad_(), some(6, 3, dtype=dtype)
    out = Sparse.of(m) @ h
    assert out.dtype == dtype
    (out * weight).sum().backward()
    dense = torch.from_numpy(m.toarray())
    torch.testing.assert_close(out, dense @ h)
    torch.testing.assert_close(h.grad, dense.T @ weight)


@pytest.mark.parametrize("wide", ["features", "operators"])
@pytest.mark.parametrize("shared_dense", [False, True])
@pytest.mark.parametrize("name", MEMBERS)
def test_batch_multiplies_as_dense(name: str, shared_dense: bool, wide: str) -> None:
    a, dense = of_clients(MEMBERS[name], 4, 5)
    clients, width = len(dense), {"features": 3, "operators": 1}[wide]
    h = (some(5, width) if shared_dense else some(clients, 5, width)).requires_grad_()
    weight = some(clients, 4, width)
    out = vmap(lambda a, h: a @ h, in_dims=(0, None if shared_dense else 0))(a, h)
    (out * weight).sum().backward()
    torch.testing.assert_close(out, dense @ h.detach())
    back = dense.mT @ weight
    torch.testing.assert_close(h.grad, back.sum(0) if shared_dense else back)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_one_matrix_meets_many_dense_sides(dim: int) -> None:
    m = matrix(4, 5, 0.5, 6)
    a, h, weight = Sparse.of(m), some(3, 5, 2), some(3, 4, 2)
    given = h.movedim(0, dim).detach().requires_grad_()
    out = vmap(lambda h: a @ h, in_dims=dim)(given)
    (out * weight).sum().backward()
    dense = torch.from_numpy(m.toarray())
    torch.testing.assert_close(out, dense @ h)
    torch.testing.assert_close(given.grad.movedim(dim, 0), dense.T @ weight)  # type: ignore[union-attr]


@pytest.mark.parametrize("dim", [1, 2])
def test_the_dense_side_may_be_batched_along_any_axis(dim: int) -> None:
    a, dense = of_clients(MEMBERS["different sizes"], 4, 5)
    h = some(3, 5, 2)
    torch.testing.assert_close(vmap(lambda a, h: a @ h, in_dims=(0, dim))(a, h.movedim(0, dim)), dense @ h)


def test_products_chain_inside_one_call() -> None:
    """Â (X W) as in the first layer: features [n, d], then operator [n, n]."""
    x, dense_x = of_clients([matrix(4, 5, 0.5, s) for s in (1, 2)], 4, 5)
    a, dense_a = of_clients([matrix(4, 4, 0.5, s) for s in (3, 4)], 4, 4)
    w = some(5, 2).requires_grad_()
    loss = vmap(lambda x, a, w: (a @ (x @ w)).square().sum(), in_dims=(0, 0, None))(x, a, w)
    loss.sum().backward()
    again = w.detach().clone().requires_grad_()
    (dense_a @ (dense_x @ again)).square().sum().backward()
    torch.testing.assert_close(w.grad, again.grad)


def test_gradients_of_first_and_second_order() -> None:
    a = Sparse.of(matrix(4, 5, 0.5, 7))
    batch, _ = of_clients(MEMBERS["different sizes"], 4, 5)

    def many(h: Tensor) -> Tensor:
        return vmap(lambda a, h: (a @ h) ** 2)(batch, h)

    def shared(h: Tensor) -> Tensor:
        return vmap(lambda a, h: (a @ h) ** 2, in_dims=(0, None))(batch, h)

    cases: list[tuple[Callable[[Tensor], Tensor], Tensor]] = [
        (lambda h: (a @ h) ** 2, some(5, 2)),
        (many, some(3, 5, 2)),
        (shared, some(5, 2)),
    ]
    for product, h in cases:
        assert torch.autograd.gradcheck(product, h.clone().requires_grad_())
        assert torch.autograd.gradgradcheck(product, h.clone().requires_grad_())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_csr_keeps_its_matrix(dtype: torch.dtype) -> None:
    m = matrix(6, 4, 0.4, 8, dtype)
    csr = Csr.of(m)
    assert csr.starts.dtype == csr.columns.dtype == torch.int32
    assert (csr.scipy() != m).nnz == 0
    assert (csr.transpose().scipy() != m.T).nnz == 0
    assert (csr.transpose().transpose().scipy() != m).nnz == 0
    assert torch.equal(csr.torch().to_dense(), torch.from_numpy(m.toarray()))
    assert csr.values.dtype == dtype


def test_duplicates_are_summed_and_integers_become_float32() -> None:
    m = sp.coo_matrix(([1, 2, 5], ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    csr = Csr.of(m)
    assert csr.values.dtype == torch.float32
    assert csr.scipy().toarray().tolist() == [[0, 3], [5, 0]]
    assert len(csr.values) == 2


@pytest.mark.parametrize("name", [name for name in MEMBERS if name != "all empty"])
def test_touched_columns_hold_the_whole_product(name: str) -> None:
    a, dense = of_clients(MEMBERS[name], 4, 5)
    rows, narrow = a.blocks.touched
    h = torch.cat([some(len(dense), 5, 3), torch.zeros(len(dense), 1, 3, dtype=torch.float64)], 1)
    own = torch.stack([h[p, rows[p]] for p in range(len(dense))])
    out = vmap(lambda a, h: a @ h)(Sparse(narrow, a.client_index), own)
    torch.testing.assert_close(out, dense @ h[:, :5])
    for p, m in enumerate(MEMBERS[name]):
        used = sorted(set(m.indices.tolist()))
        assert rows[p].tolist() == used + [5] * (rows.shape[1] - len(used))


def test_touched_rows_are_the_rest_with_own_rows_laid_over() -> None:
    rest = torch.arange(8.0).reshape(4, 2)
    rows = TouchedRows(rest, torch.tensor([3, 0, 4]), torch.tensor([[30.0, 31.0], [10.0, 11.0], [-1.0, -1.0]]))
    expected = torch.tensor([[10.0, 11.0], [2.0, 3.0], [4.0, 5.0], [30.0, 31.0]])
    assert torch.equal(rows.materialize(), expected)
    assert torch.equal(materialize(rows), expected)
    assert (rows.shape, rows.dtype) == (expected.shape, expected.dtype)
    assert torch.equal(rest, torch.arange(8.0).reshape(4, 2))
    none = TouchedRows(rest, torch.zeros(0, dtype=torch.int64), torch.zeros(0, 2))
    assert torch.equal(none.materialize(), rest)


def test_touched_rows_are_filled_for_every_client_of_a_batch() -> None:
    rest = torch.zeros(3, 2)
    rows, values = torch.tensor([[0, 3], [1, 2]]), torch.arange(8.0).reshape(2, 2, 2)
    out = vmap(lambda r, v: TouchedRows(rest, r, v).materialize())(rows, values)
    one = torch.stack([TouchedRows(rest, rows[p], values[p]).materialize() for p in range(2)])
    assert torch.equal(out, one)


def test_partly_stored_tensors_are_arithmetic_like_whole_ones() -> None:
    whole = torch.tensor([[10.0, 11.0], [2.0, 3.0]])
    rows = TouchedRows(torch.tensor([[0.0, 1.0], [2.0, 3.0]]), torch.tensor([0]), torch.tensor([[10.0, 11.0]]))
    for found, expected in (
        (2 * rows, 2 * whole), (rows * 2, 2 * whole), (rows - rows, whole - whole), (1 - rows, 1 - whole),
        (rows**2, whole**2), (-rows, -whole), (rows[0], whole[0]), (rows / whole, whole / whole), (rows > 5, whole > 5),
        (whole + rows, 2 * whole), (rows + whole, 2 * whole), (rows @ whole, whole @ whole), (rows.sum(), whole.sum()),
    ):  # fmt: skip
        assert torch.equal(found, expected)
    with pytest.raises(AttributeError, match="cannot be changed in place"):
        rows.add_(1)
    one = TouchedRows(torch.tensor(3), torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    assert (int(one), float(one), bool(one > 2)) == (3, 3.0, True)


@pytest.mark.parametrize("name", MEMBERS)
def test_a_product_with_the_rows_that_a_matrix_touches_needs_no_others(name: str) -> None:
    a, dense = of_clients(MEMBERS[name], 4, 5)
    rows, rest = a.blocks.touched[0], some(5, 3)
    own = some(len(dense), rows.shape[1], 3) + 1

    def product(a: Sparse, rows: Tensor, own: Tensor, matrix: Any) -> Tensor:
        return a @ TouchedRows(rest, rows, own, matrix)

    whole = torch.stack([TouchedRows(rest, rows[p], own[p]).materialize() for p in range(len(dense))])
    for matrix in (a.blocks, None, object()):
        out = vmap(lambda a, r, o: product(a, r, o, matrix))(a, rows, own)  # noqa: B023
        torch.testing.assert_close(out, dense @ whole)


def test_products_are_built_once_per_batch() -> None:
    a, _ = of_clients(MEMBERS["alike"], 4, 5)
    first = a.blocks.diagonal
    vmap(lambda a, h: a @ h)(a, some(3, 5, 2))
    assert a.blocks.diagonal is first


@pytest.mark.parametrize("name", MEMBERS)
def test_entries_are_those_of_the_dense_matrix(name: str) -> None:
    a, dense = of_clients(MEMBERS[name], 4, 5)
    rows, columns = torch.cartesian_prod(torch.arange(4), torch.arange(5)).T
    found = vmap(lambda a, rows: a.entries(rows, columns), in_dims=(0, None))(a, rows)
    assert torch.equal(found.view_as(dense), dense.to(found.dtype))
    one = Sparse.of(MEMBERS[name][0])
    rows, columns = torch.cartesian_prod(*map(torch.arange, one.shape)).T
    assert torch.equal(one.entries(rows, columns), torch.from_numpy(MEMBERS[name][0].toarray()).flatten())

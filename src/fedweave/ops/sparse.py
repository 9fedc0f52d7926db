"""Sparse matrices of one client that multiply for all clients at once inside a vectorized call.

A step writes `adjacency @ h` for one client. Under `torch.func.vmap` the P products become ONE product with a
block-diagonal CSR matrix (or, if all clients share the dense side, with the clients' rows stacked), and the backward
pass one product with its transpose. Both are built once per batch and cached.
"""

import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from fedweave.ops.batching import Batch, Constant, Context, Dims, Operands, Operation, over_clients
from fedweave.ops.csr import Csr, PaddedRows, Pair, StackedCsr, look_up, multiply, weighted_scatter
from fedweave.ops.rows import gather_rows
from fedweave.ops.tape import kernel
from fedweave.ops.touched_rows import TouchedRows, materialize


class Sparse:
    """A client's matrix [rows, cols] (float), used as `matrix @ dense` with dense [cols, k], giving [rows, k].

    `client_index` is an int64 scalar that counts the clients of a batch; only the batching rule reads it.
    """

    def __init__(self, blocks: StackedCsr, client_index: Tensor) -> None:
        self.blocks, self.client_index = blocks, client_index

    @classmethod
    def of(cls, matrix: sp.spmatrix | sp.sparray | Csr) -> "Sparse":
        """A single client's matrix, on the host."""
        one = matrix if isinstance(matrix, Csr) else Csr.of(matrix)
        return cls(StackedCsr((one,), one.rows, one.cols), torch.tensor(0, device="cpu"))

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, cols) of one client's matrix."""
        return self.blocks.rows, self.blocks.cols

    @property
    def dtype(self) -> torch.dtype:
        """dtype of the values."""
        return self.blocks.dtype

    @property
    def device(self) -> torch.device:
        """The device of its products."""
        return self.blocks.device

    def to(self, device: torch.device | str) -> "Sparse":
        """The same matrix for products on a device."""
        return Sparse(self.blocks.to(device), self.client_index.to(device))

    def __matmul__(self, dense: Tensor) -> Tensor:
        if isinstance(dense, TouchedRows) and dense.matrix is self.blocks:  # no entry reads the other rows
            return _Product.apply(self.client_index, dense.values, self.blocks.touched[1], False)
        return _Product.apply(self.client_index, materialize(dense), self.blocks, False)

    def transpose_matmul(self, dense: Tensor) -> Tensor:
        """The product of the transpose [cols, rows] with dense [rows, k]: [cols, k]."""
        return _Product.apply(self.client_index, dense, self.blocks, True)

    @property
    def first_place(self) -> Tensor:
        """int64, scalar: where this client's matrix begins in `StackedCsr.entries`."""
        return self.client_index * (self.blocks.rows * self.blocks.cols)

    def entries(self, rows: Tensor, columns: Tensor) -> Tensor:
        """The numbers at (rows[i], columns[i]), int64 [m] each: [m], 0 where the matrix has no entry."""
        return _LookUp.apply(self.first_place + rows * self.blocks.cols + columns, *self.blocks.entries)

    def pick(self, rows: Tensor) -> "Picked":
        """The rows int64 [m] of the matrix, for products that need few rows."""
        return Picked(self.blocks, self.client_index, rows)


class Picked(Sparse):
    """Some rows of a client's matrix, picked again for every product; `Sparse` prepares a matrix for many products."""

    def __init__(self, blocks: StackedCsr, client_index: Tensor, rows: Tensor) -> None:
        super().__init__(blocks, client_index)
        self.rows = rows

    @property
    def shape(self) -> tuple[int, int]:
        """(picked rows, cols)."""
        return len(self.rows), self.blocks.cols

    def __matmul__(self, dense: Tensor) -> Tensor:
        at = self.client_index * self.blocks.rows + self.rows
        return _PickedProduct.apply(at, torch.zeros_like(at), materialize(dense), self.blocks.table)


def pick_rows(x: "Tensor | Sparse", nodes: Tensor) -> "Tensor | Picked":
    """The rows `nodes` int64 [m] of features x [n, d], dense or sparse."""
    return x.pick(nodes) if isinstance(x, Sparse) else gather_rows(x, nodes)


def dense(x: "Tensor | Sparse") -> Tensor:
    """The matrix [n, d] with all its zeros."""
    return x @ torch.eye(x.shape[1], dtype=x.dtype, device=x.device) if isinstance(x, Sparse) else x


class _Times(Operation):
    """matrix @ dense, or its transpose @ dense."""

    @staticmethod
    def forward(dense: Tensor, pair: Pair, transposed: bool) -> Tensor:
        return multiply(pair, dense, transposed)

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: Tensor) -> None:
        _, ctx.pair, ctx.transposed = inputs

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Times.apply(grad.contiguous(), ctx.pair, not ctx.transposed), None, None


class _Product(Operation):
    """One client's product with its matrix (or the transpose), and the rule that makes P of them one."""

    @staticmethod
    def forward(client_index: Tensor, dense: Tensor, blocks: StackedCsr, transposed: bool) -> Tensor:
        return multiply(blocks.diagonal, dense, transposed)

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: Tensor) -> None:
        client_index, _, ctx.blocks, ctx.transposed = inputs
        ctx.save_for_backward(client_index)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[None, Tensor, None, None]:
        return None, _Product.apply(*ctx.saved_tensors, grad.contiguous(), ctx.blocks, not ctx.transposed), None, None

    @staticmethod
    def vmap(
        info: Batch, in_dims: Dims, client_index: Tensor, dense: Tensor, blocks: StackedCsr, transposed: bool
    ) -> tuple[Tensor, int]:
        clients = info.batch_size
        if in_dims[0] is None:  # one matrix, many dense sides: widen the dense side
            wide = dense.movedim(in_dims[1], 1)
            out = _Times.apply(wide.reshape(wide.shape[0], -1), blocks.diagonal, transposed)
            return out.view(out.shape[0], clients, -1), 1
        if in_dims[1] is None and not transposed:
            out = _Times.apply(dense, blocks.tall, False)
        else:
            (tall,) = over_clients(clients, in_dims[1:], dense)
            out = _Times.apply(tall.reshape(-1, tall.shape[-1]), blocks.diagonal, transposed)
        return out.view(clients, -1, out.shape[-1]), 0


class _LookUp(Constant):
    """The values of the `Entries` (places, values) at places int64 [m]."""

    @staticmethod
    def forward(at: Tensor, places: Tensor, values: Tensor) -> Tensor:
        return look_up(at, places, values)

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, at: Tensor, places: Tensor, values: Tensor) -> tuple[Tensor, int]:
        return _LookUp.apply(at.movedim(in_dims[0], 0), places, values), 0


@kernel
def _multiply_picked(at: Tensor, shift: Tensor, dense: Tensor, table: PaddedRows) -> Tensor:
    columns = table.columns.index_select(0, at) + shift[:, None]  # [m, longest]
    values = table.values.index_select(0, at)  # [m, longest]
    return F.embedding_bag(columns, dense, mode="sum", per_sample_weights=values)


@kernel
def _multiply_picked_transposed(at: Tensor, shift: Tensor, grad: Tensor, table: PaddedRows, count: int) -> Tensor:
    columns = table.columns.index_select(0, at) + shift[:, None]  # [m, longest]
    values = table.values.index_select(0, at)  # [m, longest]
    return weighted_scatter(grad, columns, values, count)


class _PickedProduct(Operation):
    """Rows `at` [m] of a table of sparse rows times dense; row i's columns count from `shift[i]`."""

    @staticmethod
    def forward(at: Tensor, shift: Tensor, dense: Tensor, table: PaddedRows) -> Tensor:
        return _multiply_picked(at, shift, dense, table)

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: Tensor) -> None:
        at, shift, dense, ctx.table = inputs
        ctx.save_for_backward(at, shift)
        ctx.count = dense.shape[0]

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[None, None, Tensor, None]:
        return None, None, _PickedTransposed.apply(*ctx.saved_tensors, grad, ctx.table, ctx.count), None

    @staticmethod
    def vmap(
        info: Batch, in_dims: Dims, at: Tensor, shift: Tensor, dense: Tensor, table: PaddedRows
    ) -> tuple[Tensor, int]:
        clients = info.batch_size
        at, shift = over_clients(clients, in_dims, at, shift)
        if in_dims[2] is not None:
            shift = shift + torch.arange(clients, device=shift.device)[:, None] * dense.movedim(in_dims[2], 0).shape[1]
            dense = dense.movedim(in_dims[2], 0).flatten(0, 1)
        return _PickedProduct.apply(at.flatten(), shift.flatten(), dense, table).unflatten(0, (clients, -1)), 0


class _PickedTransposed(Operation):
    """The transpose of `_PickedProduct`, with `count` rows."""

    @staticmethod
    def forward(at: Tensor, shift: Tensor, grad: Tensor, table: PaddedRows, count: int) -> Tensor:
        return _multiply_picked_transposed(at, shift, grad, table, count)

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: Tensor) -> None:
        at, shift, _, ctx.table, _ = inputs
        ctx.save_for_backward(at, shift)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[None, None, Tensor, None, None]:
        return None, None, _PickedProduct.apply(*ctx.saved_tensors, grad, ctx.table), None, None

    @staticmethod
    def vmap(
        info: Batch, in_dims: Dims, at: Tensor, shift: Tensor, grad: Tensor, table: PaddedRows, count: int
    ) -> tuple[Tensor, int]:
        clients = info.batch_size
        at, shift, grad = over_clients(clients, in_dims, at, shift, grad)
        shift = shift + torch.arange(clients, device=shift.device)[:, None] * count
        out = _PickedTransposed.apply(at.flatten(), shift.flatten(), grad.flatten(0, 1), table, clients * count)
        return out.unflatten(0, (clients, -1)), 0


pytree.register_pytree_node(
    Sparse,
    lambda matrix: ([matrix.client_index], matrix.blocks),
    lambda children, blocks: Sparse(blocks, next(iter(children))),
)

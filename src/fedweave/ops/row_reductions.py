"""Sums over lists of rows, and the largest value over the entries of each row of a sparse pattern.

Both run for one client and, inside a vectorized call, for all clients at once. `ops.sparse` prepares a lasting matrix
once. Rows that every step draws again are a list of columns for each row, and all entries are 1. As in `ops.attention`,
P clients' patterns become one block-diagonal pattern, and every row is reduced in its own order.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.ops.attention import entries
from fedweave.ops.batching import Batch, Context, Dims, Operands, Operation, merge_clients, over_clients
from fedweave.ops.csr import Pair, StackedCsr, multiply
from fedweave.ops.sparse import Sparse
from fedweave.ops.tape import kernel


class Lists(NamedTuple):
    """A matrix of zeros and ones [m, n] by rows: row i has ones in `columns[starts[i] : starts[i + 1]]`.

    columns: int64 [E], padded after the last row. starts: int64 [m + 1], rising from 0.
    """

    columns: Tensor
    starts: Tensor


def sum_rows(h: Tensor, lists: Lists, transposed: Lists) -> Tensor:
    """The matrix `lists` [m, n] times h [n, k]: [m, k]; the gradient in h uses the matrix `transposed` [n, m]."""
    parts = [part[None] for part in (*lists, *transposed)]
    return _SumRows.apply(h[None], *parts).squeeze(0)


@kernel
def _sum_rows(h: Tensor, columns: Tensor, starts: Tensor) -> Tensor:
    """The products of P clients, [P, m, k]: h [P, n, k], columns [P, E], starts [P, m + 1]."""
    clients, total = torch.arange(len(h), device=h.device)[:, None], starts[:, -1]
    if h.device.type == "cpu":
        used = torch.arange(columns.shape[1], device=h.device) < total[:, None]  # [P, E]
        before, ends = (total.cumsum(0) - total)[:, None], starts[:, :-1]
        entries = (columns + clients * h.shape[1])[used]  # of all clients, without padding
        last = before[-1] + total[-1:]
    else:  # no wait for the number of entries that count: the other entries are one more row of each client
        inside = columns.clamp(max=h.shape[1] - 1) + clients * h.shape[1]
        before, ends, entries = clients * columns.shape[1], starts, inside.flatten()
        last = torch.full_like(total[:1], entries.shape[0])
    offsets = torch.cat([(ends + before).flatten(), last])
    out = F.embedding_bag(entries, h.flatten(0, 1), offsets, mode="sum", include_last_offset=True)
    result: Tensor = out.unflatten(0, (len(h), -1))[:, : starts.shape[1] - 1]
    return result


class _SumRows(Operation):
    """`sum_rows` for P clients, all tensors [P, …]."""

    @staticmethod
    def forward(h: Tensor, columns: Tensor, starts: Tensor, back_columns: Tensor, back_starts: Tensor) -> Tensor:
        return _sum_rows(h, columns, starts)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        columns, starts, back_columns, back_starts = ctx.saved_tensors
        return _SumRows.apply(grad, back_columns, back_starts, columns, starts), None, None, None, None

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, *tensors: Tensor) -> tuple[Tensor, int]:
        merged = [tensor.flatten(0, 1) for tensor in over_clients(info.batch_size, in_dims, *tensors)]
        return _SumRows.apply(*merged).unflatten(0, (info.batch_size, -1)), 0


def largest(operator: object, h: Tensor) -> Tensor:
    """[m, k]: for each row i of `operator` [m, n] the largest h_j [n, k] over the columns j with an entry; 0 for a row
    without entries.

    Entries are 1, and each column is in at most one row, as messages reach one node. Can be differentiated once; equal
    values share the gradient. Operators that are not matrices (sampled messages) have a `largest` method.

    Raises:
        TypeError: the operator is not a whole sparse matrix.
    """
    if hasattr(operator, "largest"):
        result: Tensor = operator.largest(h)
        return result
    if type(operator) is not Sparse:
        raise TypeError(f"this needs the entries of a ops.sparse.Sparse matrix, got a {type(operator).__name__}")
    return _Largest.apply(operator.client_index, h, operator.blocks)


@kernel
def _largest(h: Tensor, pattern: Any) -> Tensor:
    top = torch.segment_reduce(h.index_select(0, pattern.columns), "max", offsets=pattern.row_ends)
    return torch.where((pattern.row_ends.diff() > 0)[:, None], top, 0)


@kernel
def _largest_back(grad: Tensor, h: Tensor, top: Tensor, pair: Pair) -> Tensor:
    hit = (h == multiply(pair, top, True)).to(h.dtype)  # every column is in one row
    times = multiply(pair, hit, False).clamp_(min=1)
    return hit.mul_(multiply(pair, grad / times, True))


class _Largest(Operation):
    @staticmethod
    def forward(client_index: Tensor, h: Tensor, blocks: StackedCsr) -> Tensor:
        return _largest(h, entries(blocks))

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: Tensor) -> None:
        ctx.blocks = inputs[2]
        ctx.save_for_backward(*inputs[:2], output)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[None, Tensor, None]:
        client_index, h, top = ctx.saved_tensors
        return None, _LargestBack.apply(client_index, grad, h, top, ctx.blocks), None

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, client_index: Tensor, h: Tensor, blocks: StackedCsr) -> tuple[Tensor, int]:
        return _rows_over_all(_Largest, info.batch_size, in_dims, client_index, h, blocks)


class _LargestBack(Operation):
    """The gradient in h."""

    @staticmethod
    def forward(client_index: Tensor, grad: Tensor, h: Tensor, top: Tensor, blocks: StackedCsr) -> Tensor:
        return _largest_back(grad, h, top, blocks.diagonal)

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> None:
        raise NotImplementedError("the largest value over neighbors can be differentiated only once")

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, client_index: Tensor, *rest: Any) -> tuple[Tensor, int]:
        return _rows_over_all(_LargestBack, info.batch_size, in_dims, client_index, *rest)


def _rows_over_all(kind: Any, clients: int, in_dims: Dims, client_index: Tensor, *rest: Any) -> tuple[Tensor, int]:
    """One call for all clients: their rows below each other or, if they share one pattern, their columns side by
    side."""
    *tensors, blocks = rest
    axis = 1 if in_dims[0] is None else 0
    merged = merge_clients(clients, in_dims[1:-1], axis, *tensors)
    return kind.apply(client_index, *merged, blocks).unflatten(axis, (clients, -1)), axis

"""Sums over lists of rows that are drawn anew for every step, for all clients at once inside a vectorised call.

Where a matrix lasts, `ops.sparse` prepares it once; here it is a list of columns for each row, all entries being 1.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.ops.batched import Batch, Context, Dims, Operation, over_clients
from fedweave.ops.tape import kernel


class Lists(NamedTuple):
    """A matrix of zeros and ones [m, n] by rows: row i has ones in `columns[starts[i] : starts[i + 1]]`.

    columns: int64 [E], padded behind the last row's. starts: int64 [m + 1], rising from 0.
    """

    columns: Tensor
    starts: Tensor


def sum_rows(h: Tensor, lists: Lists, transposed: Lists) -> Tensor:
    """The matrix `lists` [m, n] times h [n, k]: [m, k]; differentiable in h, by the matrix `transposed` [n, m]."""
    return _SumRows.apply(h[None], *(part[None] for part in (*lists, *transposed))).squeeze(0)


@kernel
def _summed(h: Tensor, columns: Tensor, starts: Tensor) -> Tensor:
    """Of P clients, [P, m, k]: h [P, n, k], columns [P, E], starts [P, m + 1]."""
    clients, total = torch.arange(len(h), device=h.device)[:, None], starts[:, -1]
    if h.device.type == "cpu":
        used = torch.arange(columns.shape[1], device=h.device) < total[:, None]
        before, ends = (total.cumsum(0) - total)[:, None], starts[:, :-1]
        entries = (columns + clients * h.shape[1])[used]
        last = before[-1] + total[-1:]
    else:  # nobody waits to know how many entries count: those that do not are one more row of each client
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
        return _summed(h, columns, starts)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        columns, starts, back_columns, back_starts = ctx.saved_tensors
        return _SumRows.apply(grad, back_columns, back_starts, columns, starts), None, None, None, None

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, *tensors: Tensor) -> tuple[Tensor, int]:
        many = (tensor.flatten(0, 1) for tensor in over_clients(info.batch_size, in_dims, *tensors))
        return _SumRows.apply(*many).unflatten(0, (info.batch_size, -1)), 0

"""Rows of a dense matrix picked by number, for all clients at once inside a vectorized call.

Plain indexing would do for one client. Under `torch.func.vmap` its backward pass adds up rows one element at a time,
which is 20 times slower; here P clients' rows are one selection from one tall matrix.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.ops.batching import Batch, Context, Dims, Operands, Operation, flat_index, over_clients
from fedweave.ops.csr import weighted_scatter
from fedweave.ops.tape import kernel

PAIRS_IN_CACHE, PAIRS_AT_ONCE = 1 << 12, 1 << 17  # whose rows are multiplied together on a CPU, and elsewhere
COUNTING = {"cpu"}  # kinds of devices where lists' sizes are counted inside a step (`common_length`)


def gather_rows(h: Tensor, index: Tensor) -> Tensor:
    """h[index]: h [n, k], index int64 [m], giving [m, k]; differentiable in h."""
    return h[index] if torch.compiler.is_exporting() else _GatherRows.apply(h, index)


def row_products(h: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """h[first] · h[second] for each pair of rows, without a matrix of all pairs: h [n, k], first and second int64 [m].

    Returns [m]; differentiable in h, any number of times.
    """
    if torch.compiler.is_exporting():
        return (h[first] * h[second]).sum(1)
    return _RowProducts.apply(h, first, second)


def weighted_gather(h: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """Σ_j weight[i, j] h[index[i, j]] without the [m, j, k] in between: h [n, k], index int64 and weight [m, j].

    Returns [m, k]; differentiable in h, any number of times.
    """
    return _WeightedGather.apply(h, index, weight)


def nonzero_columns(member: Tensor, fill: Tensor, max_count: int) -> tuple[Tensor, Tensor]:
    """The columns of the ones in each row of `member`, int64 [s, n] of 0 and 1.

    Returns int64 [s, m], rising, padded with `fill` [s, 1]; and int64 [s, n], the number of ones up to and including
    each column. m is the largest number of ones in a row, rounded up (`round_up`). max_count: an upper bound of the
    ones in a row; accelerators compute m from it (see `common_length`).
    """
    rank = member.cumsum(1)  # [s, n]
    size = round_up(common_length(rank[:, -1], min(max_count, member.shape[1])))
    numbers = fill.repeat(1, size + 1)  # [s, m + 1]; the last column takes the zeros' writes
    columns = torch.arange(member.shape[1], device=member.device).expand_as(member)
    numbers.scatter_(1, torch.where(member > 0, rank - 1, size), columns)
    return numbers[:, :size], rank


def common_length(sizes: Tensor, max_size: int) -> int:
    """The length to which lists with these `sizes` are padded: the largest size on the CPU.

    Accelerators use `max_size`, an upper bound, because a step must not wait there until sizes are known.
    """
    return int(sizes.max()) if sizes.device.type in COUNTING else max_size


def round_up(size: int, multiple: int = 64, parts: int = 2) -> int:
    """Round `size` up to a multiple of `multiple`, and to one of `parts` (a power of 2) sizes between two powers of 2.

    A recording (`ops.recording`) holds for one combination of sizes, so few sizes mean few recordings.
    """
    step = max(multiple, (1 << max(0, size.bit_length() - 1)) // parts)
    return -(-size // step) * step


class _GatherRows(Operation):
    @staticmethod
    def forward(h: Tensor, index: Tensor) -> Tensor:
        return h.index_select(0, index)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.count = inputs[0].shape[0]

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None]:
        return _ScatterRows.apply(grad, *ctx.saved_tensors, ctx.count), None

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, *tensors: Tensor) -> tuple[Tensor, int]:
        h, index = over_clients(info.batch_size, in_dims, *tensors)
        out = _GatherRows.apply(h.flatten(0, 1), flat_index(index, h.shape[1]))
        return out.unflatten(0, (info.batch_size, -1)), 0


class _ScatterRows(Operation):
    """The transpose of `_GatherRows`: out[index[i]] += grad[i] in `count` rows."""

    @staticmethod
    def forward(grad: Tensor, index: Tensor, count: int) -> Tensor:
        return grad.new_zeros(count, grad.shape[1]).index_add_(0, index, grad)

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None, None]:
        return _GatherRows.apply(grad, *ctx.saved_tensors), None, None

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, *operands: Any) -> tuple[Tensor, int]:
        *tensors, count = operands
        grad, index = over_clients(info.batch_size, in_dims, *tensors)
        out = _ScatterRows.apply(grad.flatten(0, 1), flat_index(index, count), info.batch_size * count)
        return out.unflatten(0, (info.batch_size, -1)), 0


@kernel
def _products(h: Tensor, first: Tensor, second: Tensor) -> Tensor:
    step = PAIRS_IN_CACHE if h.device.type == "cpu" else PAIRS_AT_ONCE
    out = h.new_empty(len(first))
    one, other = h.new_empty(2, min(step, len(first)), h.shape[1])  # used again for each piece
    for start in range(0, len(first), step):
        some = slice(start, min(start + step, len(first)))
        size = some.stop - start
        torch.index_select(h, 0, first[some], out=one[:size])
        torch.index_select(h, 0, second[some], out=other[:size])
        torch.sum(one[:size].mul_(other[:size]), 1, out=out[some])
    return out


class _RowProducts(Operation):
    @staticmethod
    def forward(h: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return _products(h, first, second)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None, None]:
        h, first, second = ctx.saved_tensors
        to_first = _ScatterRows.apply(grad[:, None] * _GatherRows.apply(h, second), first, len(h))
        to_second = _ScatterRows.apply(grad[:, None] * _GatherRows.apply(h, first), second, len(h))
        return to_first + to_second, None, None

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, *tensors: Tensor) -> tuple[Tensor, int]:
        h, first, second = over_clients(info.batch_size, in_dims, *tensors)
        n = h.shape[1]
        out = _RowProducts.apply(h.flatten(0, 1), flat_index(first, n), flat_index(second, n))
        return out.unflatten(0, (info.batch_size, -1)), 0


class _WeightedGather(Operation):
    @staticmethod
    def forward(h: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        return F.embedding_bag(index, h, mode="sum", per_sample_weights=weight)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        h, *rest = inputs
        ctx.save_for_backward(*rest)
        ctx.count = h.shape[0]

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None, None]:
        return _WeightedScatter.apply(grad, *ctx.saved_tensors, ctx.count), None, None

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, *tensors: Tensor) -> tuple[Tensor, int]:
        h, index, weight = over_clients(info.batch_size, in_dims, *tensors)
        out = _WeightedGather.apply(h.flatten(0, 1), flat_index(index, h.shape[1]), weight.flatten(0, 1))
        return out.unflatten(0, (info.batch_size, -1)), 0


class _WeightedScatter(Operation):
    """The transpose of `_WeightedGather`, with `count` rows."""

    @staticmethod
    def forward(grad: Tensor, index: Tensor, weight: Tensor, count: int) -> Tensor:
        return weighted_scatter(grad, index, weight, count)

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:3])

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _WeightedGather.apply(grad, *ctx.saved_tensors), None, None, None

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, *operands: Any) -> tuple[Tensor, int]:
        *tensors, count = operands
        grad, index, weight = over_clients(info.batch_size, in_dims, *tensors)
        out = _WeightedScatter.apply(
            grad.flatten(0, 1), flat_index(index, count), weight.flatten(0, 1), info.batch_size * count
        )
        return out.unflatten(0, (info.batch_size, -1)), 0

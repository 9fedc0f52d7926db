"""Attention over neighbors, for one client and, inside a vectorized call, for all clients at once.

As in `ops.sparse`, P clients' neighborhoods become one block-diagonal pattern. Every sum runs over one row or column
of the pattern in its own order. So one client alone and the same client in a batch give the same bits.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.ops.batching import Batch, Context, Dims, Operands, Operation, merge_clients
from fedweave.ops.csr import Pair, StackedCsr, csr_tensor
from fedweave.ops.hashing import bits
from fedweave.ops.sparse import Sparse
from fedweave.ops.tape import derived, kernel


def attend(
    operator: object,
    source: Tensor,
    target: Tensor,
    values: Tensor,
    slope: float = 0.2,
    key: Tensor | None = None,
    rate: float = 0.0,
) -> Tensor:
    """Σ_j a_ij v_j with a_ij = softmax over j of LeakyReLU(target_i + source_j), for H heads of C columns each.

    Velickovic et al. (2018, "Graph Attention Networks"), eqs. 3 and 4. j runs over the columns in which row i of
    `operator` [m, n] has an entry, with any value; a row without entries gives 0. source [n, H], target [m, H],
    values [n, H C], slope of LeakyReLU below 0; returns [m, H C]. Can be differentiated once. With a key, each a_ij is
    dropped with probability `rate` and the rest rescaled. Operators that are not matrices (sampled neighbors) have an
    `attend` method.

    Raises:
        TypeError: the operator is not a whole sparse matrix.
    """
    if hasattr(operator, "attend"):
        result: Tensor = operator.attend(source, target, values, slope, key, rate)
        return result
    if type(operator) is not Sparse:
        raise TypeError(f"attention needs the entries of a ops.sparse.Sparse matrix, got a {type(operator).__name__}")
    key, rate = (operator.client_index, 0.0) if key is None else (key, rate)
    return _Attend.apply(operator.client_index, key, source, target, values, operator.blocks, slope, rate)


class _Pattern:
    """The entries of a block-diagonal matrix, by row and by column; `order` sorts the entries by column.

    `client` is the block of each entry, `place` its number within the block, and `max_entries` the largest number of
    entries of a block. E entries, P clients, m rows and n columns in total.
    """

    def __init__(self, pair: Pair, clients: int) -> None:
        self.clients = clients
        self.starts, self.columns = pair.matrix.crow_indices(), pair.matrix.col_indices()
        self.back_starts, self.back_columns = pair.transpose.crow_indices(), pair.transpose.col_indices()
        self.rows = torch.repeat_interleave(self.starts.diff().long())  # [E]
        self.order = torch.argsort(self.columns, stable=True)  # [E]
        self.row_ends, self.column_ends = self.starts.long(), self.back_starts.long()
        self.shape = tuple(pair.matrix.shape)
        self.client = self.rows // (self.shape[0] // clients)  # [E]
        ends = self.row_ends[:: self.shape[0] // clients]  # [P + 1]
        self.place = torch.arange(len(self.rows), device=self.rows.device) - ends[self.client]
        self.max_entries = int(ends.diff().max())

    def matrix(self, values: Tensor) -> Tensor:
        """The matrix [m, n] with these entries."""
        return csr_tensor(self.starts, self.columns, values, self.shape)

    def transpose(self, values: Tensor) -> Tensor:
        """The transpose [n, m] of the matrix with these entries."""
        return csr_tensor(self.back_starts, self.back_columns, values[self.order], self.shape[::-1])


@derived
def entries(blocks: StackedCsr) -> _Pattern:
    """The pattern of the block-diagonal matrix of all clients."""
    return _Pattern(blocks.diagonal, blocks.clients)


def _coefficients(source: Tensor, target: Tensor, pattern: _Pattern, slope: float) -> tuple[Tensor, Tensor]:
    """Per entry and head [E, H]: the score before LeakyReLU, and a_ij."""
    raw = target.index_select(0, pattern.rows) + source.index_select(0, pattern.columns)
    scores = F.leaky_relu(raw, slope)
    top = torch.segment_reduce(scores, "max", offsets=pattern.row_ends)  # [m, H]
    powers = (scores - top.index_select(0, pattern.rows)).exp_()  # at most 1, so that nothing overflows
    total = torch.segment_reduce(powers, "sum", offsets=pattern.row_ends)
    return raw, powers.div_(total.index_select(0, pattern.rows))


def _scale(key: Tensor, pattern: _Pattern, like: Tensor, rate: float) -> Tensor | float:
    """Per entry and head [E, H]: 0 with probability `rate`, else 1 / (1 - rate); key holds one number per client."""
    if rate == 0:
        return 1.0
    keys, heads = key.reshape(-1, 1), like.shape[1]
    if pattern.clients == 1:  # clients that share the graph have separate heads
        heads //= len(keys)
    words = bits(keys, pattern.max_entries * heads).view(len(keys), pattern.max_entries, heads)
    entry_bits = words.transpose(0, 1).flatten(1) if pattern.clients == 1 else words[pattern.client, pattern.place]
    return ((entry_bits >> 40 & 0xFFFFFF) >= round(rate * 2**24)).to(like.dtype) / (1 - rate)


def _heads(tensor: Tensor, heads: int) -> tuple[Tensor, ...]:
    """The columns of each head, as views."""
    parts: tuple[Tensor, ...] = tensor.unflatten(1, (heads, -1)).unbind(1)
    return parts


def _per_head(matrices: Iterable[Tensor], dense: Tensor, heads: int, rows: int) -> Tensor:
    """A product [rows, C] of each head's matrix with its columns of `dense`, side by side, without copies."""
    out = dense.new_empty(rows, dense.shape[1])
    for matrix, part, into in zip(matrices, _heads(dense, heads), _heads(out, heads), strict=True):
        torch.addmm(into, matrix, part, beta=0, out=into)
    return out


@kernel
def _attend(
    key: Tensor, source: Tensor, target: Tensor, values: Tensor, pattern: _Pattern, slope: float, rate: float
) -> Tensor:
    heads = source.shape[1]
    _, a = _coefficients(source, target, pattern, slope)
    a = a * _scale(key, pattern, a, rate)  # [E, H]
    return _per_head(map(pattern.matrix, a.T.contiguous()), values, heads, pattern.shape[0])


@kernel
def _attend_back(
    grad: Tensor,
    key: Tensor,
    source: Tensor,
    target: Tensor,
    values: Tensor,
    pattern: _Pattern,
    slope: float,
    rate: float,
) -> tuple[Tensor, Tensor, Tensor]:
    heads = source.shape[1]
    raw, a = _coefficients(source, target, pattern, slope)
    scale = _scale(key, pattern, a, rate)
    weights = (a * scale).T.contiguous()  # [H, E]
    of_a = torch.empty_like(a)  # [E, H]
    of_values = _per_head(map(pattern.transpose, weights), grad, heads, pattern.shape[1])
    for head, (pull, value) in enumerate(zip(_heads(grad, heads), _heads(values, heads), strict=True)):
        of_a[:, head] = torch.sparse.sampled_addmm(pattern.matrix(weights[head]), pull, value.T, beta=0).values()
    of_a *= scale
    mean = torch.segment_reduce(a * of_a, "sum", offsets=pattern.row_ends)  # [m, H]
    of_scores = a * (of_a - mean.index_select(0, pattern.rows))
    of_raw = torch.where(raw > 0, of_scores, of_scores * slope)
    of_source = torch.segment_reduce(of_raw[pattern.order], "sum", offsets=pattern.column_ends)
    return of_source, torch.segment_reduce(of_raw, "sum", offsets=pattern.row_ends), of_values


class _Attend(Operation):
    @staticmethod
    def forward(client_index: Tensor, key: Tensor, *rest: Any) -> Tensor:
        source, target, values, blocks, slope, rate = rest
        return _attend(key, source, target, values, entries(blocks), slope, rate)

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: Tensor) -> None:
        ctx.rest = inputs[5:]
        ctx.save_for_backward(*inputs[:5])

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        client_index, key, *inputs = ctx.saved_tensors
        return None, None, *_AttendBack.apply(client_index, key, grad, *inputs, *ctx.rest), None, None, None

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, client_index: Tensor, *rest: object) -> tuple[Tensor, int]:
        return _over_all(_Attend, info.batch_size, in_dims, client_index, *rest)


class _AttendBack(Operation):
    """Gradients in source, target and values."""

    @staticmethod
    def forward(client_index: Tensor, key: Tensor, grad: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        source, target, values, blocks, slope, rate = rest
        return _attend_back(grad, key, source, target, values, entries(blocks), slope, rate)

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> None:
        raise NotImplementedError("attention can be differentiated only once")

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, client_index: Tensor, *rest: object) -> tuple[Any, Any]:
        return _over_all(_AttendBack, info.batch_size, in_dims, client_index, *rest)


def _over_all(kind: Any, clients: int, in_dims: Dims, client_index: Tensor, *rest: Any) -> tuple[Any, Any]:
    """One call for all clients: their nodes below each other or, if they share one graph, their heads side by side."""
    key, *tensors, blocks, slope, rate = rest
    keys = key.expand(clients) if in_dims[1] is None else key  # [P]
    axis = 1 if in_dims[0] is None else 0
    merged = merge_clients(clients, in_dims[2:-3], axis, *tensors)
    out = kind.apply(client_index, keys, *merged, blocks, slope, rate)
    if isinstance(out, Tensor):
        return out.unflatten(axis, (clients, -1)), axis
    return tuple(part.unflatten(axis, (clients, -1)) for part in out), (axis,) * len(out)

"""Compressed sparse rows: one matrix, and many matrices joined into one."""

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from fedweave.ops.tape import derived, kernel
from fedweave.ops.touched import TouchedRows, materialize

for _message in ("Sparse CSR tensor support is in beta", "Sparse invariant checks are implicitly disabled"):
    warnings.filterwarnings("ignore", message=_message)


class Csr(NamedTuple):
    """One matrix [rows, cols]: `starts` int32 [rows + 1], `columns` int32 [nnz], `values` float [nnz].

    Indices are int32 because the CPU kernels want them: a transposed product was measured 12 to 30 times slower with
    int64.
    """

    starts: Tensor
    columns: Tensor
    values: Tensor
    rows: int
    cols: int

    @classmethod
    def of(cls, matrix: sp.spmatrix | sp.sparray) -> "Csr":
        """Convert any SciPy sparse matrix; duplicates are summed, values become float32 unless they are float64."""
        m = sp.csr_matrix(matrix)
        m.sum_duplicates()
        kind = np.float64 if m.dtype == np.float64 else np.float32
        starts, columns = (torch.from_numpy(part.astype(np.int32)) for part in (m.indptr, m.indices))
        return cls(starts, columns, torch.from_numpy(m.data.astype(kind)), *m.shape)

    def scipy(self) -> sp.csr_matrix:
        """The same matrix in SciPy."""
        parts = (self.values.cpu().numpy(), self.columns.cpu().numpy(), self.starts.cpu().numpy())
        return sp.csr_matrix(parts, shape=(self.rows, self.cols))

    def transposed(self) -> "Csr":
        """The transpose [cols, rows]."""
        rows = torch.arange(self.rows, dtype=torch.int32, device=self.starts.device)
        row = torch.repeat_interleave(rows, self.starts.diff().long())
        order = torch.argsort(self.columns, stable=True)
        starts = self.starts.new_zeros(self.cols + 1)
        starts[1:] = torch.bincount(self.columns, minlength=self.cols).cumsum(0)
        return Csr(starts, row[order], self.values[order], self.cols, self.rows)

    def apart(self, rows: int) -> "tuple[Csr, ...]":
        """Split into matrices of `rows` rows; their values are views of this one's values."""
        count, ends = self.rows // rows, self.starts[::rows].tolist()
        sizes = [after - before for before, after in pairwise(ends)]
        starts = (self.starts[:-1].view(count, rows) - self.starts[:-1:rows, None]).unbind()
        whole = [torch.cat([part, part.new_tensor([size])]) for part, size in zip(starts, sizes, strict=True)]
        parts = zip(whole, self.columns.split(sizes), self.values.split(sizes), strict=True)
        return tuple(Csr(*part, rows, self.cols) for part in parts)

    def of_blocks(self, rows: int) -> "Csr":
        """The blocks [rows, rows] of a block-diagonal matrix, below each other."""
        sizes = self.starts[::rows].diff().long()
        first = torch.repeat_interleave(torch.arange(len(sizes), dtype=torch.int32, device="cpu") * rows, sizes)
        return self._replace(columns=self.columns - first, cols=rows)

    def to(self, device: torch.device | str) -> "Csr":
        """The same matrix on a device."""
        starts, columns, values = (part.to(device) for part in self[:3])
        return Csr(starts, columns, values, self.rows, self.cols)

    def torch(self) -> Tensor:
        """The same matrix as a torch CSR tensor."""
        return csr_tensor(self.starts, self.columns, self.values, (self.rows, self.cols))


def csr_tensor(starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A torch CSR tensor on the device of its parts."""
    return torch.sparse_csr_tensor(starts, columns, values, shape, check_invariants=False, device=values.device)


class Pair:
    """A constant matrix and its transpose on a device, ready for `multiply`."""

    def __init__(self, matrix: Csr, device: torch.device | str) -> None:
        self.forth, self.back = matrix.to(device).torch(), matrix.transposed().to(device).torch()


@kernel
def multiply(pair: Pair, dense: Tensor, transposed: bool) -> Tensor:
    """matrix @ dense, or its transpose @ dense; not differentiable by itself."""
    chosen = pair.back if transposed else pair.forth
    out = dense.new_empty(chosen.shape[0], dense.shape[1])
    # `chosen @ dense` would fill a zero matrix, copy it, and only then multiply
    return torch.addmm(out, chosen, dense, beta=0, out=out)


@dataclass(frozen=True, eq=False)
class PaddedRows:
    """Sparse rows of equal length: `columns` int64 and `values` float, both [rows, longest], padded with zeros."""

    columns: Tensor
    values: Tensor


def _counts(numbers: Tensor, most: int) -> Tensor:
    """How often each number below `most` occurs, int64 [most]; on a GPU without a wait, which `bincount` would need."""
    if numbers.device.type == "cpu":
        return torch.bincount(numbers, minlength=most)
    return numbers.new_zeros(most, dtype=torch.int64).scatter_add_(0, numbers, torch.ones_like(numbers))


@kernel
def gathered(dense: Tensor, columns: Tensor, values: Tensor, rows: int) -> Tensor:
    """The transpose of a product with rows of equal length: out [rows, k] with out[columns[i, j]] += values[i, j]
    dense[i]; dense [m, k], columns int64 and values [m, j]. Not differentiable by itself."""
    # computed as one product with a matrix; on the host without its zeros, whose count a GPU would have to wait for
    column = columns.reshape(-1)
    host = values.device.type == "cpu"
    entry = torch.nonzero(values.reshape(-1))[:, 0] if host else torch.arange(len(column), device=column.device)
    entry = entry[torch.argsort(column[entry], stable=True)]
    starts = column.new_zeros(rows + 1, dtype=torch.int32)
    starts[1:] = _counts(column[entry], rows).cumsum(0)
    row = torch.div(entry, columns.shape[1], rounding_mode="floor").int()
    matrix = Csr(starts, row, values.reshape(-1)[entry], rows, len(dense)).torch()
    out = dense.new_empty(rows, dense.shape[1])
    return torch.addmm(out, matrix, dense, beta=0, out=out)


class StackedCsr:
    """P clients' matrices, each padded with empty rows and columns to [rows, cols].

    The members stay on the host. Everything derived from them is computed there, once for a batch, and then placed on
    `device`.
    """

    def __init__(self, members: Sequence[Csr], rows: int, cols: int, device: torch.device | str = "cpu") -> None:
        self.members, self.rows, self.cols, self.device = tuple(members), rows, cols, torch.device(device)
        self.clients = len(self.members)

    @classmethod
    def cut(cls, whole: Csr, clients: int, device: torch.device | str = "cpu") -> "StackedCsr":
        """Make it from all members below each other in one matrix, [P rows, cols]; members are split on first use."""
        instance = cls.__new__(cls)
        instance.whole, instance.rows, instance.cols, instance.device = (
            whole,
            whole.rows // clients,
            whole.cols,
            torch.device(device),
        )
        instance.clients = clients
        return instance

    @cached_property
    def members(self) -> tuple[Csr, ...]:
        """The clients' matrices."""
        return self.whole.apart(self.rows)

    @cached_property
    def whole(self) -> Csr:
        """The members below each other, [P rows, cols], on the host."""
        if self.clients == 1 and self.members[0].rows == self.rows:
            return self.members[0]._replace(cols=self.cols)
        starts, nnz = [self.members[0].starts[:1]], 0
        for m in self.members:
            starts.append(m.starts[1:] + nnz)
            nnz += len(m.columns)
            if self.rows > m.rows:
                starts.append(m.starts.new_full((self.rows - m.rows,), nnz))
        columns, values = (
            torch.cat(parts) for parts in zip(*((m.columns, m.values) for m in self.members), strict=True)
        )
        return Csr(torch.cat(starts), columns, values, self.rows * len(self.members), self.cols)

    def to(self, device: torch.device | str) -> "StackedCsr":
        """The same matrices for products on a device."""
        if "members" in vars(self):
            return StackedCsr(self.members, self.rows, self.cols, device)
        return StackedCsr.cut(self.whole, self.clients, device)

    @property
    def sizes(self) -> tuple[int, int, int, torch.dtype]:
        """(P, rows, cols, dtype)."""
        return self.clients, self.rows, self.cols, self.dtype

    @property
    def dtype(self) -> torch.dtype:
        """dtype of the values."""
        return (self.members[0] if "members" in vars(self) else self.whole).values.dtype

    @property
    def values(self) -> tuple[Tensor, ...]:
        """All values: one tensor if the members are in one matrix, else one tensor per member."""
        if "members" in vars(self):
            return tuple(member.values for member in self.members)
        return (self.whole.values,)

    def _owners(self) -> Tensor:
        """The client of each entry, int64 [nnz]."""
        ends = self.whole.starts[torch.arange(self.clients + 1, device="cpu") * self.rows]
        return torch.repeat_interleave(torch.arange(self.clients, device="cpu"), ends.long().diff())

    @property
    @derived
    def diagonal(self) -> "Pair":
        """Block-diagonal [P rows, P cols]."""
        columns = self.whole.columns
        if self.clients > 1:
            columns = columns + (self._owners() * self.cols).int()
        return Pair(self.whole._replace(columns=columns, cols=self.cols * self.clients), self.device)

    @property
    @derived
    def below(self) -> "Pair":
        """The members below each other [P rows, cols]."""
        return Pair(self.whole, self.device)

    @property
    @derived
    def table(self) -> PaddedRows:
        """All members' rows below each other [P rows, longest]."""
        m, degree = self.whole, self.whole.starts.diff().long()
        values = m.values.new_zeros(m.rows, max(1, int(degree.max())))
        columns = torch.zeros_like(values, dtype=torch.int64)
        row = torch.repeat_interleave(torch.arange(m.rows, device="cpu"), degree)
        place = torch.arange(len(m.columns), device="cpu") - m.starts[row].long()
        columns[row, place], values[row, place] = m.columns.long(), m.values
        return PaddedRows(columns.to(self.device), values.to(self.device))

    @property
    @derived
    def touched(self) -> "tuple[Tensor, StackedCsr]":
        """The columns in which each member has entries, int64 [P, m] padded with `cols`, and the members with only
        those columns, [rows, m]."""
        codes, at = torch.unique(self._owners() * self.cols + self.whole.columns, return_inverse=True)
        owner = torch.div(codes, self.cols, rounding_mode="floor")
        counts = torch.bincount(owner, minlength=self.clients)
        most = int(counts.max())
        place = torch.arange(len(codes), device="cpu") - (counts.cumsum(0) - counts)[owner]
        rows = torch.full((self.clients, most), self.cols, device="cpu")
        rows[owner, place] = codes - owner * self.cols
        narrow = self.whole._replace(columns=place[at].int(), cols=most)
        return rows.to(self.device), StackedCsr.cut(narrow, self.clients, self.device)


# ----------------------------------------------------------------------------------------------------
# Helpers of batching rules (`torch.autograd.Function.vmap`): P clients' tensors as one.


Context: TypeAlias = Any  # PyTorch's context of one operation; the passes share values as its attributes


Dims: TypeAlias = tuple[Any, ...]  # for each operand the axis of clients, or None if it is the same for all
Operands: TypeAlias = tuple[Any, ...]


class Batch(Protocol):
    """PyTorch's information for a batching rule."""

    @property
    def batch_size(self) -> int:
        """Number of clients."""


class Operation(torch.autograd.Function):
    """An autograd function that looks up its arguments' names once. PyTorch asks for them at each call, which takes as
    long as a small kernel."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        cls.forward.__signature__ = inspect.signature(cls.forward)  # type: ignore[attr-defined]

    if TYPE_CHECKING:  # PyTorch's has no types

        @classmethod
        def apply(cls, *operands: object) -> Tensor:
            """The result of the operation on these operands."""


class Constant(Operation):
    """An operation whose results have no gradient."""

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: Tensor | tuple[Tensor, ...]) -> None:
        """Mark all results."""
        ctx.mark_non_differentiable(*(output if isinstance(output, tuple) else (output,)))


def over_clients(clients: int, dims: tuple[int | None, ...], *tensors: Tensor) -> list[Tensor]:
    """The tensors with clients first, [P, …]; `dims` has each tensor's axis of clients, or None if all share it."""
    return [
        tensor.expand(clients, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(tensors, dims, strict=False)
    ]


def shifted(index: Tensor, count: int) -> Tensor:
    """Row numbers int64 [P, k, …] as numbers in all clients' matrices of `count` rows below each other: [P k, …]."""
    offset = torch.arange(len(index), device=index.device) * count
    return (index + offset.view(-1, *[1] * (index.dim() - 1))).flatten(0, 1)


def together(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Make a function of one client's tensors from `function`, which accepts any leading axes and returns a tensor
    without a gradient. It is one computation for all clients of a batch, and one call in a recording."""
    whole = kernel(function)

    class Together(Constant):
        @staticmethod
        def forward(*tensors: Tensor) -> Tensor:
            return whole(*tensors)

        @staticmethod
        def vmap(info: Batch, in_dims: Dims, *tensors: Tensor) -> tuple[Tensor, int]:
            return Together.apply(*over_clients(info.batch_size, in_dims, *tensors)), 0

    return Together.apply


# ----------------------------------------------------------------------------------------------------
# Rows of a dense matrix picked by number, for all clients at once inside a vectorized call. Plain indexing would do
# for one client. Under `torch.func.vmap` its backward pass adds up rows one element at a time (measured: 20 times
# slower); here P clients' rows are one selection from one tall matrix.


COUNTING = {"cpu"}  # kinds of devices where lists' sizes are counted inside a step (`counted`)


def gather_rows(h: Tensor, index: Tensor) -> Tensor:
    """h[index]: h [n, k], index int64 [m], giving [m, k]; differentiable in h."""
    return h[index] if torch.compiler.is_exporting() else _Rows.apply(h, index)


def weighted_gather(h: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """Σ_j weight[i, j] h[index[i, j]] without the [m, j, k] in between: h [n, k], index int64 and weight [m, j], giving
    [m, k]; differentiable in h, any number of times."""
    return _Mix.apply(h, index, weight)


def padded_nonzero(member: Tensor, fill: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The columns of the ones in each row of `member`, int64 [s, n] of 0 and 1.

    Returns int64 [s, m], rising, padded with `fill` [s, 1], with m the largest number of ones in a row, `rounded`; and
    int64 [s, n], the number of ones up to and including each column. most: an upper bound of the ones in a row;
    accelerators compute m from it (see `counted`).
    """
    rank = member.cumsum(1)
    size = rounded(counted(rank[:, -1], min(most, member.shape[1])))
    numbers = fill.repeat(1, size + 1)
    columns = torch.arange(member.shape[1], device=member.device).expand_as(member)
    numbers.scatter_(1, torch.where(member > 0, rank - 1, size), columns)
    return numbers[:, :size], rank


def counted(sizes: Tensor, most: int) -> int:
    """The length to which lists with these `sizes` are padded: the largest size on the CPU. Accelerators use `most`, an
    upper bound, because a step must not wait there until sizes are known."""
    return int(sizes.max()) if sizes.device.type in COUNTING else most


def rounded(size: int, least: int = 64, parts: int = 2) -> int:
    """`size` rounded up to a multiple of `least`, and to one of `parts` (a power of 2) sizes between two powers of 2.

    A recording (`ops.recording`) holds for one combination of sizes, so few sizes mean few recordings.
    """
    step = max(least, (1 << max(0, size.bit_length() - 1)) // parts)
    return -(-size // step) * step


class _Rows(Operation):
    @staticmethod
    def forward(h: Tensor, index: Tensor) -> Tensor:
        return h.index_select(0, index)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.count = inputs[0].shape[0]

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None]:
        return _AddRows.apply(grad, *ctx.saved_tensors, ctx.count), None

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, *tensors: Tensor) -> tuple[Tensor, int]:
        h, index = over_clients(info.batch_size, in_dims, *tensors)
        out = _Rows.apply(h.flatten(0, 1), shifted(index, h.shape[1]))
        return out.unflatten(0, (info.batch_size, -1)), 0


class _AddRows(Operation):
    """The transpose of `_Rows`: out[index[i]] += grad[i] in `count` rows."""

    @staticmethod
    def forward(grad: Tensor, index: Tensor, count: int) -> Tensor:
        return grad.new_zeros(count, grad.shape[1]).index_add_(0, index, grad)

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Rows.apply(grad, *ctx.saved_tensors), None, None

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, *operands: Any) -> tuple[Tensor, int]:
        *tensors, count = operands
        grad, index = over_clients(info.batch_size, in_dims, *tensors)
        out = _AddRows.apply(grad.flatten(0, 1), shifted(index, count), info.batch_size * count)
        return out.unflatten(0, (info.batch_size, -1)), 0


class _Mix(Operation):
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
        return _Spread.apply(grad, *ctx.saved_tensors, ctx.count), None, None

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, *tensors: Tensor) -> tuple[Tensor, int]:
        h, index, weight = over_clients(info.batch_size, in_dims, *tensors)
        out = _Mix.apply(h.flatten(0, 1), shifted(index, h.shape[1]), weight.flatten(0, 1))
        return out.unflatten(0, (info.batch_size, -1)), 0


class _Spread(Operation):
    """The transpose of `_Mix`, with `count` rows."""

    @staticmethod
    def forward(grad: Tensor, index: Tensor, weight: Tensor, count: int) -> Tensor:
        return gathered(grad, index, weight, count)

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:3])

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _Mix.apply(grad, *ctx.saved_tensors), None, None, None

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, *operands: Any) -> tuple[Tensor, int]:
        *tensors, count = operands
        grad, index, weight = over_clients(info.batch_size, in_dims, *tensors)
        out = _Spread.apply(grad.flatten(0, 1), shifted(index, count), weight.flatten(0, 1), info.batch_size * count)
        return out.unflatten(0, (info.batch_size, -1)), 0


# ----------------------------------------------------------------------------------------------------
# Sparse matrices of one client that multiply for all clients at once inside a vectorized call. A step writes
# `adjacency @ h` for one client. Under `torch.func.vmap` the P products become ONE product with a block-diagonal CSR
# matrix (or, when all clients share the dense side, with the clients' rows stacked), and the backward pass one
# product with its transpose. Both are built once per batch and cached.


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

    def transposed(self, dense: Tensor) -> Tensor:
        """The product of the transpose [cols, rows] with dense [rows, k]: [cols, k]."""
        return _Product.apply(self.client_index, dense, self.blocks, True)

    def picked(self, rows: Tensor) -> "Picked":
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


def picked(x: "Tensor | Sparse", nodes: Tensor) -> "Tensor | Picked":
    """The rows `nodes` int64 [m] of features x [n, d], dense or sparse."""
    return x.picked(nodes) if isinstance(x, Sparse) else gather_rows(x, nodes)


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
            out = _Times.apply(dense, blocks.below, False)
        else:
            (tall,) = over_clients(clients, in_dims[1:], dense)
            out = _Times.apply(tall.reshape(-1, tall.shape[-1]), blocks.diagonal, transposed)
        return out.view(clients, -1, out.shape[-1]), 0


@kernel
def _picked(at: Tensor, shift: Tensor, dense: Tensor, table: PaddedRows) -> Tensor:
    columns, values = table.columns.index_select(0, at) + shift[:, None], table.values.index_select(0, at)
    return F.embedding_bag(columns, dense, mode="sum", per_sample_weights=values)


@kernel
def _picked_transposed(at: Tensor, shift: Tensor, grad: Tensor, table: PaddedRows, count: int) -> Tensor:
    columns, values = table.columns.index_select(0, at) + shift[:, None], table.values.index_select(0, at)
    return gathered(grad, columns, values, count)


class _PickedProduct(Operation):
    """Rows `at` [m] of a table of sparse rows times dense; row i's columns count from `shift[i]`."""

    @staticmethod
    def forward(at: Tensor, shift: Tensor, dense: Tensor, table: PaddedRows) -> Tensor:
        return _picked(at, shift, dense, table)

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
        return _picked_transposed(at, shift, grad, table, count)

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

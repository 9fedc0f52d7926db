"""Matrices in compressed sparse rows: one client's, many clients' joined into one, and their products."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedweave.ops.tape import derived, kernel

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
        starts = torch.from_numpy(m.indptr.astype(np.int32))
        columns = torch.from_numpy(m.indices.astype(np.int32))
        return cls(starts, columns, torch.from_numpy(m.data.astype(kind)), *m.shape)

    def scipy(self) -> sp.csr_matrix:
        """The same matrix in SciPy."""
        parts = (self.values.cpu().numpy(), self.columns.cpu().numpy(), self.starts.cpu().numpy())
        return sp.csr_matrix(parts, shape=(self.rows, self.cols))

    def transpose(self) -> "Csr":
        """The transpose [cols, rows]."""
        rows = torch.arange(self.rows, dtype=torch.int32, device=self.starts.device)
        row = torch.repeat_interleave(rows, self.starts.diff().long())  # [nnz]
        order = torch.argsort(self.columns, stable=True)  # [nnz]
        starts = self.starts.new_zeros(self.cols + 1)
        starts[1:] = torch.bincount(self.columns, minlength=self.cols).cumsum(0)
        return Csr(starts, row[order], self.values[order], self.cols, self.rows)

    def split(self, rows: int) -> "tuple[Csr, ...]":
        """Split into matrices of `rows` rows; their values are views of this one's values."""
        ends = self.starts[::rows].tolist()
        matrices = []
        for at, (start, end) in enumerate(pairwise(ends)):
            starts = self.starts[at * rows : (at + 1) * rows + 1] - start
            matrices.append(Csr(starts, self.columns[start:end], self.values[start:end], rows, self.cols))
        return tuple(matrices)

    def diagonal_blocks(self, rows: int) -> "Csr":
        """The blocks [rows, rows] of a block-diagonal matrix, below each other."""
        sizes = self.starts[::rows].diff().long()  # entries of each block
        first = torch.repeat_interleave(torch.arange(len(sizes), dtype=torch.int32, device="cpu") * rows, sizes)
        return self._replace(columns=self.columns - first, cols=rows)

    def to(self, device: torch.device | str) -> "Csr":
        """The same matrix on a device."""
        return Csr(self.starts.to(device), self.columns.to(device), self.values.to(device), self.rows, self.cols)

    def torch(self) -> Tensor:
        """The same matrix as a torch CSR tensor."""
        return csr_tensor(self.starts, self.columns, self.values, (self.rows, self.cols))


def csr_tensor(starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A torch CSR tensor on the device of its parts."""
    return torch.sparse_csr_tensor(starts, columns, values, shape, check_invariants=False, device=values.device)


class Pair:
    """A constant matrix and its transpose on a device, ready for `multiply`."""

    def __init__(self, matrix: Csr, device: torch.device | str) -> None:
        self.matrix = matrix.to(device).torch()
        self.transpose = matrix.transpose().to(device).torch()


@kernel
def multiply(pair: Pair, dense: Tensor, transposed: bool) -> Tensor:
    """matrix @ dense, or its transpose @ dense; not differentiable by itself."""
    matrix = pair.transpose if transposed else pair.matrix
    out = dense.new_empty(matrix.shape[0], dense.shape[1])
    # `matrix @ dense` would fill a zero matrix, copy it, and only then multiply
    return torch.addmm(out, matrix, dense, beta=0, out=out)


class Entries(NamedTuple):
    """The entries of a matrix [rows, cols], at least one: `places` int64 [nnz], row cols + column, rising, and `values`
    float [nnz]."""

    places: Tensor
    values: Tensor


@kernel
def look_up(at: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """The values of `Entries` at the places `at` int64 […], 0 where there is none: […]."""
    entry = torch.searchsorted(places, at).clamp(max=places.shape[0] - 1)
    return torch.where(places[entry] == at, values[entry], 0.0)


@dataclass(frozen=True, eq=False)
class PaddedRows:
    """Sparse rows of equal length: `columns` int64 and `values` float, both [rows, longest], padded with zeros."""

    columns: Tensor
    values: Tensor


def _counts(numbers: Tensor, count: int) -> Tensor:
    """How often each number below `count` occurs, int64 [count]."""
    if numbers.device.type == "cpu":
        return torch.bincount(numbers, minlength=count)
    # `bincount` would wait for the GPU
    return numbers.new_zeros(count, dtype=torch.int64).scatter_add_(0, numbers, torch.ones_like(numbers))


@kernel
def weighted_scatter(dense: Tensor, columns: Tensor, values: Tensor, rows: int) -> Tensor:
    """The transpose of `rows.weighted_gather`: out [rows, k] with out[columns[i, j]] += values[i, j] dense[i].

    dense [m, k], columns int64 [m, j], values [m, j]. Not differentiable by itself.
    """
    # computed as one product with a matrix; on the host without its zeros, whose count a GPU would have to wait for
    column = columns.reshape(-1)  # [m j]
    host = values.device.type == "cpu"
    entry = torch.nonzero(values.reshape(-1))[:, 0] if host else torch.arange(len(column), device=column.device)
    entry = entry[torch.argsort(column[entry], stable=True)]
    starts = column.new_zeros(rows + 1, dtype=torch.int32)
    starts[1:] = _counts(column[entry], rows).cumsum(0)  # [rows + 1]
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
    def from_whole(cls, whole: Csr, clients: int, device: torch.device | str = "cpu") -> "StackedCsr":
        """Make it from all members below each other in one matrix, [P rows, cols]; members are split on first use."""
        instance = cls.__new__(cls)
        instance.whole = whole
        instance.rows, instance.cols = whole.rows // clients, whole.cols
        instance.device = torch.device(device)
        instance.clients = clients
        return instance

    @cached_property
    def members(self) -> tuple[Csr, ...]:
        """The clients' matrices."""
        return self.whole.split(self.rows)

    @cached_property
    def whole(self) -> Csr:
        """The members below each other, [P rows, cols], on the host."""
        if self.clients == 1 and self.members[0].rows == self.rows:
            return self.members[0]._replace(cols=self.cols)
        starts = [self.members[0].starts[:1]]
        nnz = 0
        for m in self.members:
            starts.append(m.starts[1:] + nnz)
            nnz += len(m.columns)
            if self.rows > m.rows:
                starts.append(m.starts.new_full((self.rows - m.rows,), nnz))
        columns = torch.cat([m.columns for m in self.members])
        values = torch.cat([m.values for m in self.members])
        return Csr(torch.cat(starts), columns, values, self.rows * len(self.members), self.cols)

    def to(self, device: torch.device | str) -> "StackedCsr":
        """The same matrices for products on a device."""
        if "members" in vars(self):
            return StackedCsr(self.members, self.rows, self.cols, device)
        return StackedCsr.from_whole(self.whole, self.clients, device)

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
    def tall(self) -> "Pair":
        """The members below each other [P rows, cols]."""
        return Pair(self.whole, self.device)

    @property
    @derived
    def table(self) -> PaddedRows:
        """All members' rows below each other [P rows, longest]."""
        m = self.whole
        degree = m.starts.diff().long()  # [P rows]
        values = m.values.new_zeros(m.rows, max(1, int(degree.max())))  # [P rows, longest]
        columns = torch.zeros_like(values, dtype=torch.int64)
        row = torch.repeat_interleave(torch.arange(m.rows, device="cpu"), degree)
        place = torch.arange(len(m.columns), device="cpu") - m.starts[row].long()
        columns[row, place] = m.columns.long()
        values[row, place] = m.values
        return PaddedRows(columns.to(self.device), values.to(self.device))

    @property
    @derived
    def entries(self) -> Entries:
        """All members' entries, as those of one matrix [P rows, cols]."""
        m = self.whole
        row = torch.repeat_interleave(torch.arange(m.rows, device="cpu"), m.starts.diff().long())  # [nnz]
        places, order = (row * self.cols + m.columns).sort()
        values = m.values[order]
        if not len(places):
            places, values = torch.full((1,), -1, device="cpu"), m.values.new_zeros(1)
        return Entries(places.to(self.device), values.to(self.device))

    @property
    @derived
    def touched(self) -> "tuple[Tensor, StackedCsr]":
        """The columns in which each member has entries, int64 [P, m] padded with `cols`, and the members with only
        those columns, [rows, m].
        """
        codes, at = torch.unique(self._owners() * self.cols + self.whole.columns, return_inverse=True)
        owner = torch.div(codes, self.cols, rounding_mode="floor")  # client of each touched column
        counts = torch.bincount(owner, minlength=self.clients)  # [P]
        width = int(counts.max())
        place = torch.arange(len(codes), device="cpu") - (counts.cumsum(0) - counts)[owner]
        rows = torch.full((self.clients, width), self.cols, device="cpu")  # [P, m]
        rows[owner, place] = codes - owner * self.cols
        narrow = self.whole._replace(columns=place[at].int(), cols=width)
        return rows.to(self.device), StackedCsr.from_whole(narrow, self.clients, self.device)

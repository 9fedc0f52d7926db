"""Compressed sparse rows: one matrix, and many joined into one."""

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

for _said in ("Sparse CSR tensor support is in beta", "Sparse invariant checks are implicitly disabled"):
    warnings.filterwarnings("ignore", message=_said)


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
        """From any SciPy sparse matrix; duplicates are summed, values become float32 unless they are float64."""
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
        """[cols, rows]."""
        rows = torch.arange(self.rows, dtype=torch.int32, device=self.starts.device)
        row = torch.repeat_interleave(rows, self.starts.diff().long())
        order = torch.argsort(self.columns, stable=True)
        starts = self.starts.new_zeros(self.cols + 1)
        starts[1:] = torch.bincount(self.columns, minlength=self.cols).cumsum(0)
        return Csr(starts, row[order], self.values[order], self.cols, self.rows)

    def apart(self, rows: int) -> "tuple[Csr, ...]":
        """Each `rows` of them as a matrix; their values are views of this one's."""
        count, ends = self.rows // rows, self.starts[::rows].tolist()
        sizes = [after - before for before, after in pairwise(ends)]
        starts = (self.starts[:-1].view(count, rows) - self.starts[:-1:rows, None]).unbind()
        whole = [torch.cat([own, own.new_tensor([size])]) for own, size in zip(starts, sizes, strict=True)]
        parts = zip(whole, self.columns.split(sizes), self.values.split(sizes), strict=True)
        return tuple(Csr(*own, rows, self.cols) for own in parts)

    def of_blocks(self, rows: int) -> "Csr":
        """Of a block-diagonal matrix the blocks [rows, rows] below each other."""
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
    """A torch CSR tensor where its parts lie."""
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
    """How often each number below `most` occurs, int64 [most]; nobody waits for `bincount` to size its result."""
    if numbers.device.type == "cpu":
        return torch.bincount(numbers, minlength=most)
    return numbers.new_zeros(most, dtype=torch.int64).scatter_add_(0, numbers, torch.ones_like(numbers))


@kernel
def gathered(dense: Tensor, columns: Tensor, values: Tensor, rows: int) -> Tensor:
    """The transpose of a product with rows of equal length: out [rows, k] with out[columns[i, j]] += values[i, j]
    dense[i]; dense [m, k], columns int64 and values [m, j]. Not differentiable by itself."""
    # as one product with a matrix made for it; zeros are left out where a count of the others need not be waited for
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

    The members stay on the host. What is derived from them is put together there, once for a batch, and then placed on
    `device`.
    """

    def __init__(self, members: Sequence[Csr], rows: int, cols: int, device: torch.device | str = "cpu") -> None:
        self.members, self.rows, self.cols, self.device = tuple(members), rows, cols, torch.device(device)
        self.clients = len(self.members)

    @classmethod
    def cut(cls, whole: Csr, clients: int, device: torch.device | str = "cpu") -> "StackedCsr":
        """Of the members below each other, [P rows, cols], in one piece; each is taken out when it is asked for."""
        made = cls.__new__(cls)
        made.whole, made.rows, made.cols, made.device = whole, whole.rows // clients, whole.cols, torch.device(device)
        made.clients = clients
        return made

    @cached_property
    def members(self) -> tuple[Csr, ...]:
        """Each client's."""
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
        """Of the values."""
        return (self.members[0] if "members" in vars(self) else self.whole).values.dtype

    @property
    def values(self) -> tuple[Tensor, ...]:
        """All that the members have, in one piece or in theirs."""
        if "members" in vars(self):
            return tuple(member.values for member in self.members)
        return (self.whole.values,)

    def _owners(self) -> Tensor:
        """Whose each entry is, int64 [nnz]."""
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
        """The columns that each member has entries in, int64 [P, m] padded with `cols`, and the members with only those
        columns, [rows, m]."""
        found, at = torch.unique(self._owners() * self.cols + self.whole.columns, return_inverse=True)
        owner = torch.div(found, self.cols, rounding_mode="floor")
        counts = torch.bincount(owner, minlength=self.clients)
        most = int(counts.max())
        place = torch.arange(len(found), device="cpu") - (counts.cumsum(0) - counts)[owner]
        rows = torch.full((self.clients, most), self.cols, device="cpu")
        rows[owner, place] = found - owner * self.cols
        narrow = self.whole._replace(columns=place[at].int(), cols=most)
        return rows.to(self.device), StackedCsr.cut(narrow, self.clients, self.device)

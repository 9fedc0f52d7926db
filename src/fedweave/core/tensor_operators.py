"""Matrices of tensors that layers multiply by, and edges that are made of such matrices: pieces of a graph, samples."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedweave.core.operators import Operator
from fedweave.ops.linear import linear


@dataclass(frozen=True)
class DenseMatrix:
    """A dense matrix [m, n], by its rows."""

    rows: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.rows.shape)  # (m, n)

    def __matmul__(self, dense: Tensor) -> Tensor:
        return linear(self.rows.to(dense.dtype), dense)

    def entries(self, rows: Tensor, columns: Tensor) -> Tensor:
        """The numbers at (rows[i], columns[i]), int64 [k] each: [k]."""
        return self.rows[rows, columns]


@dataclass(frozen=True)
class RowSelection:
    """[m, n] with a single 1 in each row, at the columns int64 [m]."""

    columns: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.columns.shape)  # (m,)

    def __matmul__(self, h: Tensor) -> Tensor:
        return h.index_select(0, self.columns)


@dataclass(frozen=True)
class ScatterSum:
    """[t, m]: adds up the messages that reach each of t targets, int64 [m], times the target's share [t]."""

    target: Tensor
    share: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.share.shape)  # (t,)

    def __matmul__(self, sent: Tensor) -> Tensor:
        total = torch.index_add(sent.new_zeros(self.share.shape[0], sent.shape[1]), 0, self.target, sent)  # [t, k]
        return total * self.share[:, None]

    def largest(self, sent: Tensor) -> Tensor:
        """`ops.row_reductions.largest` of the messages [m, k]: [t, k]."""
        lowest = sent.new_full((self.share.shape[0], sent.shape[1]), -torch.inf)
        top = lowest.scatter_reduce(0, self.target[:, None].expand(-1, sent.shape[1]), sent, "amax")
        return torch.where(top == -torch.inf, 0.0, top)


def message_operator(
    what: str, source: Tensor, target: Tensor, features: Tensor | None, degree: Tensor
) -> DenseMatrix | RowSelection | ScatterSum:
    """The matrix `what` (`core.edge_attributes.kinds`) of m messages along single edges, which reach t nodes.

    source, target: int64 [m]. features: [m, k], of the messages' edges, or None. degree: float [t], messages of a node.

    Raises:
        ValueError: there is no such matrix, or it needs features.
    """
    match what:
        case "from" | "to":
            return RowSelection(source if what == "from" else target)
        case "sum":
            return ScatterSum(target, torch.ones_like(degree))
        case "mean" | "relation_mean":
            return ScatterSum(target, 1 / degree.clamp(min=1))
        case "scalers":
            return DenseMatrix(torch.stack([torch.log1p(degree), 1 / torch.log1p(degree.clamp(min=1))], 1))
        case "features" if features is not None:
            return DenseMatrix(features)
        case "feature_means" if features is not None:
            return DenseMatrix(ScatterSum(target, 1 / degree.clamp(min=1)) @ features)
    raise ValueError(f"these edges have no matrix {what!r} of single edges")


class ShrinkingEdges(ABC):
    """Edges that lead only to the first m of n nodes (a `core.operators.MessagePassing`)."""

    shrinks = True

    @abstractmethod
    def operator(self, kind: str) -> Operator:
        """The matrix of that name."""

    def with_means(self, h: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        means = self.operator(kind)
        return h[: means.shape[0]], means @ h


@dataclass(frozen=True)
class PrecomputedEdges(ShrinkingEdges):
    """Edges with some precomputed matrices, by name (a `core.operators.MessagePassing`)."""

    operators: Mapping[str, Operator]

    def operator(self, kind: str) -> Operator:
        """The matrix of that name.

        Raises:
            ValueError: the name is unknown; lists the known names.
        """
        if kind not in self.operators:
            raise ValueError(f"there is no operator {kind!r} here, only {', '.join(self.operators)}")
        return self.operators[kind]

"""What a layer may ask of a graph's edges, whatever the graph is: a client's whole graph, ego-graphs, a sample of
neighbours, or a mini-batch of small graphs."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedweave.ops.linear import linear


class Operator(Protocol):
    """A constant matrix [m, n] that a layer multiplies by."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(m, …)."""
        ...

    def __matmul__(self, dense: Tensor) -> Tensor:
        """Its product [m, k] with h [n, k]; differentiable in h, and one product for all clients of a batch."""
        ...


@dataclass(frozen=True)
class Dense:
    """A dense matrix [m, n], by its rows."""

    rows: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """(m, n)."""
        return tuple(self.rows.shape)

    def __matmul__(self, dense: Tensor) -> Tensor:
        return linear(self.rows.to(dense.dtype), dense)


class MessagePassing(Protocol):
    """Edges among n rows of h, one for each node."""

    @property
    def shrinks(self) -> bool:
        """Whether message passing returns fewer rows, m, than it receives, n: those of the first m nodes."""
        ...

    def operator(self, kind: str) -> Operator:
        """The matrix [m, n] of a kind of message passing, or of pooling, [examples, n] (see `core.edges.Edges`).

        Raises:
            ValueError: there is no such matrix here; says which there are.
        """
        ...

    def with_means(self, h: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """The rows of h [n, k] that get new values, and for each of them the mean over its neighbours, both [m, k], for
        `kind` "mean" or "mean_or_self".

        Raises:
            ValueError: there is no such mean here.
        """
        ...

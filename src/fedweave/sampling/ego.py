"""Ego-graphs of a fixed shape as a `Graph`, so that any layer with a mean aggregator runs on them unchanged.

An ego of k hops and fan-out f has 1 + f + … + f^k positions: position 0 is the centre, and the children of position v
are f v + 1, …, f v + f. A batch of b egos is stored position by position, [positions · b, …]: then every ring of all
egos is one slice. Each message-passing layer uses up the outermost ring, and after k layers the b centres are left.
"""

import torch
from torch import Tensor

from fedweave.core.edges import Neighbours
from fedweave.core.graph import Graph
from fedweave.core.operators import Operator
from fedweave.ops.batched import Batch, Context, Dims, Operands, Operation, over_clients
from fedweave.ops.rows import padded_nonzero

KINDS = ("mean", "mean_or_self")  # an ego's inner positions always have children, so both are the same here


def positions(hops: int, fan_out: int) -> int:
    """1 + f + … + f^k."""
    return sum(fan_out**hop for hop in range(hops + 1))


class EgoEdges:
    """The edges of `batch` ego-graphs (a `core.operators.MessagePassing`)."""

    shrinks = True

    def __init__(self, batch: int, fan_out: int) -> None:
        self.batch, self.fan_out = batch, fan_out

    def inner(self, h: Tensor) -> int:
        """How many positions of h [positions · b, k] have children.

        Raises:
            ValueError: only the centres are left.
        """
        count = (h.shape[0] // self.batch - 1) // self.fan_out
        if count < 1:
            raise ValueError("the ego-graphs have no ring left; they need as many hops as there are layers with edges")
        return count

    def operator(self, kind: str) -> Operator:
        """None: what egos compute is means (`with_means`).

        Raises:
            ValueError: always.
        """
        raise ValueError(f"ego-graphs of fixed fan-out have no operator {kind!r}, only means over children")

    def with_means(self, h: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """The positions that have children, and for each of them the mean over its children: both [inner · b, k].

        Raises:
            ValueError: the kind of aggregation is not a mean.
        """
        if kind not in KINDS:
            raise ValueError(f"ego-graphs of fixed fan-out have no operator {kind!r}, only {' and '.join(KINDS)}")
        own, means = _Rings.apply(h.view(-1, self.batch, h.shape[1]), self.inner(h), self.fan_out)
        return own.flatten(0, 1), means.flatten(0, 1)


class _Rings(Operation):
    """h [..., positions, b, k] -> its first `inner` positions, and the means over their children.

    Left to itself, autograd would fill a zero tensor of h's size for either use of h, and add the two.
    """

    @staticmethod
    def forward(h: Tensor, inner: int, fan_out: int) -> tuple[Tensor, Tensor]:
        return h[..., :inner, :, :].clone(), h[..., 1:, :, :].unflatten(-3, (inner, fan_out)).mean(-3)

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: object) -> None:
        _, ctx.inner, ctx.fan_out = inputs

    @staticmethod
    def backward(ctx: Context, own: Tensor, means: Tensor) -> tuple[Tensor, None, None]:
        return _SpreadRings.apply(own, means, ctx.inner, ctx.fan_out), None, None

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, h: Tensor, inner: int, fan_out: int) -> tuple[Tensor, tuple[int, int]]:
        return _Rings.apply(h.movedim(in_dims[0], 0), inner, fan_out), (0, 0)


class _SpreadRings(Operation):
    """The transpose of `_Rings`."""

    @staticmethod
    def forward(own: Tensor, means: Tensor, inner: int, fan_out: int) -> Tensor:
        out = own.new_empty(*own.shape[:-3], 1 + inner * fan_out, *own.shape[-2:])
        out[..., 0, :, :] = own[..., 0, :, :]
        out[..., 1:, :, :].unflatten(-3, (inner, fan_out)).copy_((means / fan_out).unsqueeze(-3))
        out[..., 1:inner, :, :] += own[..., 1:, :, :]
        return out

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: object) -> None:
        _, _, ctx.inner, ctx.fan_out = inputs

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        return *_Rings.apply(grad, ctx.inner, ctx.fan_out), None, None

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, own: Tensor, means: Tensor, inner: int, fan_out: int) -> tuple[Tensor, int]:
        sides = over_clients(info.batch_size, in_dims, own, means)
        return _SpreadRings.apply(*sides, inner, fan_out), 0


def ego_graph(h: Tensor, batch: int, fan_out: int) -> Graph:
    """`batch` egos with the embeddings h [positions · b, k]; unlabelled."""
    count = h.shape[0]
    return Graph(
        x=h,
        edges=EgoEdges(batch, fan_out),
        y=torch.full((count,), -1, device=h.device),
        masks=torch.zeros(3, count, dtype=torch.bool, device=h.device),
        real=torch.ones(count, dtype=torch.bool, device=h.device),
    )


def children(neighbours: Neighbours, parents: Tensor, uniforms: Tensor) -> Tensor:
    """One random neighbour (with replacement) of `parents` int64 [...] for each of `uniforms` [..., f] in [0, 1).

    A node without neighbours is its own. Returns int64 [..., f].
    """
    first, degree, columns = neighbours
    flat = parents.reshape(-1)
    begin, count = (table.gather(0, flat).view(*parents.shape, 1) for table in (first, degree))
    at = (begin + (uniforms * count).long()).clamp(max=len(columns) - 1)
    return torch.where(count > 0, columns.gather(0, at.reshape(-1)).view(at.shape), parents[..., None])


def compact(nodes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Name each node once: nodes int64 [s, k] below `count` -> (named int64 [s, m], place int64 [s, k]) such that
    nodes[i, j] = named[i, place[i, j]].

    m is what the longest row needs, the same for all clients of a batch, rounded up; what is beyond is node 0.
    """
    named, place = _Compact.apply(nodes, count)
    return named, place


class _Compact(Operation):
    @staticmethod
    def forward(nodes: Tensor, count: int) -> tuple[Tensor, Tensor]:
        seen = nodes.new_zeros(len(nodes), count).scatter_(1, nodes, 1)
        named, rank = padded_nonzero(seen, nodes.new_zeros(len(nodes), 1), most=nodes.shape[1])
        return named.contiguous(), rank.gather(1, nodes) - 1

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Context, *grads: object) -> tuple[None, None]:
        return None, None

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, nodes: Tensor, count: int) -> tuple[tuple[Tensor, ...], tuple[int, int]]:
        rows = nodes.movedim(in_dims[0], 0)
        return tuple(out.unflatten(0, rows.shape[:2]) for out in _Compact.apply(rows.flatten(0, 1), count)), (0, 0)

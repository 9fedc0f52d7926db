"""Layer-wise sampled neighbourhoods (Zhang et al. 2023, GLASU, algorithm 2), for all clients at once inside a
vectorised call.

A layer takes sources to targets. The targets lead the sources, in order, so that a node's own row keeps its place.
What is sampled for a node depends on its number and the key alone, not on the list it stands in: any part of a list
sees the neighbours that the whole list sees.

Lists are padded behind their last node, and no place points there: what a layer makes of the padding (a sum of other
nodes' rows) reaches nothing. So a node's row, and with it what dropout does to it, is the same for any padding.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.core import random
from fedweave.core.graph import Graph
from fedweave.core.tree import Tree
from fedweave.ops.batched import Batch, Context, Dims, Operands, Operation, over_clients
from fedweave.ops.rows import counted, gather_rows, weighted_gather


def grow(
    graph: Graph, targets: Tensor, filled: Tensor, key: Tensor, layers: Sequence[int], fan_out: int
) -> tuple[Tensor, Tensor, Tree]:
    """Up to `fan_out` different neighbours of each of `targets` int64 [t], of which the first `filled` (int64 scalar)
    count, every one equally likely, for the first of `layers`, which come in falling order; for the next, neighbours
    of all these nodes; and so on.

    Returns the lowest layer's sources int64 [s], how many of them count, and the hops by layer. A layer's sources are
    its targets, then the further neighbours, each once, then repeats of the first target up to a size of few different
    values; they are the next layer's targets. Its hop: "place" int64 [t, fan_out] where the sampled neighbours stand
    among the sources, "count" [t, fan_out] how many neighbours each of them stands for (0: there is none), and "gcn"
    [t, 1 + fan_out] the weights of the node itself and its neighbours.

    The weights are those of D~^-1/2 (A + I) D~^-1/2, times the number of neighbours that a sampled one stands for: the
    sum over the sampled is the full graph's in expectation, and exactly if no node has more than `fan_out` neighbours,
    so that training and full-graph inference compute the same thing.
    """
    if not layers:
        return targets, filled, {}
    size = graph.own_edges.cache.padded_size
    grown = partial(_grow, layers=tuple(layers), fan_out=fan_out, dtype=graph.x.dtype, padded_size=size)
    sources, filled, *found = _Grow.apply(grown, *graph.own_edges.neighbours, targets, filled, key)
    hops = zip(layers, found[::3], found[1::3], found[2::3], strict=True)
    return sources, filled, {str(i): {"place": place, "count": count, "gcn": gcn} for i, place, count, gcn in hops}


def neighbours(
    first: Tensor, degree: Tensor, columns: Tensor, targets: Tensor, key: Tensor, fan_out: int
) -> tuple[Tensor, Tensor]:
    """Sampled neighbours [P, t, f] (the node itself where there is none) and how many each stands for, float64.

    What is drawn of them: see `places`."""
    at, there, count = places(first, degree, targets, key, fan_out)
    chosen = torch.where(there, columns.gather(1, at.flatten(1)).view(at.shape), targets[..., None])
    return chosen, count


def places(first: Tensor, degree: Tensor, targets: Tensor, key: Tensor, fan_out: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where in a list by nodes those stand that are sampled for each of `targets` [P, t], int64 [P, t, f] (0 where
    there is none), which are there, and how many each stands for, float64.

    Systematic sampling: of d > f neighbours, those at (u + j) d / f for j = 0, …, f - 1 with one uniform u are all
    different, and each is taken with probability f / d.
    """
    many = degree.gather(1, targets)[..., None]
    u = (random.fold(key[:, None], targets) >> 40 & 0xFFFFFF).to(torch.float64)[..., None] * 2.0**-24
    j = torch.arange(fan_out, device=many.device)
    at = torch.where(many > fan_out, ((u + j) * many / fan_out).long().minimum(many - 1), j)
    there = (at < many).expand(*targets.shape, fan_out)
    at = torch.where(there, first.gather(1, targets)[..., None] + at, 0)
    return at, there, torch.where(there, (many / fan_out).clamp(min=1), 0.0)


def alone(targets: Tensor, dtype: torch.dtype) -> Tree:
    """The hop in which every one of `targets` [t] sees itself only: A = I."""
    one = torch.ones(len(targets), 1, dtype=dtype, device=targets.device)
    return {"place": targets[:, None][:, :0], "count": one[:, :0], "gcn": one}


def located(nodes: Tensor, within: Tensor, count: int) -> Tensor:
    """Where each of `nodes` int64 [k], numbers below `count`, stands in the list `within` int64 [m]; the last place of
    those that are in it several times, on every device."""
    places = torch.arange(len(within), device=within.device)
    table = torch.zeros(count, dtype=torch.int64, device=within.device)
    return table.scatter_reduce(0, within, places, "amax").gather(0, nodes)


def rising(nodes: Tensor, count: int, size: int) -> Tensor:
    """The different ones of `nodes` int64 [k], numbers below `count`: rising, with the first repeated up to `size`."""
    there = torch.zeros(count, dtype=torch.int64, device=nodes.device).scatter(0, nodes, 1)
    rank = there.cumsum(0)
    place = torch.where(there > 0, rank - 1, size)
    numbers = torch.arange(count, device=nodes.device)
    return nodes.min().expand(size + 1).scatter(0, place, numbers)[:size]


class Sampled:
    """The edges of one layer between sampled nodes (a `core.operators.MessagePassing`)."""

    shrinks = True
    KINDS = ("gcn", "sum", "mean", "mean_or_self")

    def __init__(self, hop: Tree) -> None:
        self.hop = hop

    def operator(self, kind: str) -> "Bipartite":
        """The matrix [targets, sources] that estimates a row of the one that `Edges.operator` makes.

        Raises:
            ValueError: the kind has no such estimate.
        """
        count = self.hop["count"]
        if kind == "gcn":
            return Bipartite(self.hop["place"], self.hop["gcn"])
        if kind not in ("sum", "mean", "mean_or_self"):
            raise ValueError(f"sampled neighbours have no operator {kind!r}, only gcn, sum, mean and mean_or_self")
        total = count.sum(1, keepdim=True)
        own = (total == 0).to(count.dtype) if kind == "mean_or_self" else torch.zeros_like(total)
        return Bipartite(self.hop["place"], torch.cat([own, count if kind == "sum" else count / total.clamp(min=1)], 1))

    def with_means(self, h: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """The targets, and for each of them the mean over its sampled neighbours: both [t, k]."""
        return h[: len(self.hop["place"])], self.operator(kind) @ h


class Bipartite:
    """A matrix [targets, sources] with few entries a row: `weight` [t, 1 + f], of the node itself (source i of target
    i) and of the sources `place` int64 [t, f]; an entry of weight 0 is none."""

    def __init__(self, place: Tensor, weight: Tensor) -> None:
        self.place, self.weight = place, weight

    @property
    def shape(self) -> tuple[int]:
        """(targets,)."""
        return (len(self.weight),)

    @property
    def _index(self) -> Tensor:
        """The sources that every target sees: int64 [t, 1 + f]."""
        return torch.cat([torch.arange(len(self.place), device=self.place.device)[:, None], self.place], 1)

    def _rows(self, h: Tensor) -> Tensor:
        """The rows of h [s, k] that every target sees: [t, 1 + f, k]."""
        result: Tensor = gather_rows(h, self._index.reshape(-1)).unflatten(0, tuple(self.weight.shape))
        return result

    def __matmul__(self, h: Tensor) -> Tensor:
        return weighted_gather(h, self._index, self.weight)

    def attend(
        self, source: Tensor, target: Tensor, values: Tensor, slope: float, key: Tensor | None, rate: float
    ) -> Tensor:
        """`ops.attention.attend` over the node itself and its sampled neighbours."""
        heads = source.shape[1]
        scores = F.leaky_relu(target[:, None] + self._rows(source), slope)  # [t, 1 + f, H]
        a = torch.softmax(scores.masked_fill((self.weight == 0)[..., None], -torch.inf), 1)
        a = a if key is None or rate == 0 else random.dropout(key, a, rate)
        result: Tensor = (a[..., None] * self._rows(values).unflatten(2, (heads, -1))).sum(1).flatten(1)
        return result


class _Grow(Operation):
    """`grow` on tensors, and the rule that makes P clients' lists one computation."""

    @staticmethod
    def forward(grown: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(out[0] for out in grown([tensor[None] for tensor in tensors]))

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Context, *grads: object) -> tuple[None, ...]:
        return (None,) * 7

    @staticmethod
    def vmap(
        info: Batch, in_dims: Dims, grown: Callable[..., tuple[Tensor, ...]], *tensors: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        out = grown(over_clients(info.batch_size, in_dims[1:], *tensors))
        return out, (0,) * len(out)


def _grow(
    tensors: list[Tensor], layers: tuple[int, ...], fan_out: int, dtype: torch.dtype, padded_size: Callable[..., int]
) -> tuple[Tensor, ...]:
    """For P clients, all tensors [P, …]: the tables of neighbours, the targets, how many count, and the key."""
    first, degree, columns, sources, filled, key = tensors
    looped, found = (degree + 1).to(torch.float64), []
    for i in layers:
        targets, drawn = sources, random.fold(key, "sample", i)
        chosen, count = neighbours(first, degree, columns, targets, drawn, fan_out)
        own = looped.gather(1, targets)[..., None]
        other = looped.gather(1, chosen.flatten(1)).view(chosen.shape)
        gcn = torch.cat([1 / own, count / torch.sqrt(own * other)], 2)
        sources, filled, place = _joined(
            targets, filled, chosen.flatten(1), degree.shape[1], partial(padded_size, (i, targets.shape[1]))
        )
        found += [place.view(chosen.shape), count.to(dtype), gcn.to(dtype)]
    return sources, filled, *found


def _joined(
    targets: Tensor, filled: Tensor, nodes: Tensor, count: int, padded_size: Callable[[int], int]
) -> tuple[Tensor, Tensor, Tensor]:
    """The targets [P, t], of which the first `filled` [P] count, followed by those of `nodes` [P, k] that are no
    targets; how many these are together, [P]; and the place of each of `nodes`, the last one of those that stand in the
    list several times."""
    sizes = targets.shape[1], count + 1
    at, numbers = (torch.arange(size, device=nodes.device).expand(len(nodes), size) for size in sizes)
    own = torch.where(at < filled[:, None], targets, count)  # the last column takes what does not count
    new = torch.zeros_like(numbers, memory_format=torch.contiguous_format).scatter_(1, nodes, 1).scatter_(1, own, 0)
    where = new.cumsum(1) + (filled[:, None] - 1)
    total = where[:, -1] + 1
    most = targets.shape[1] + min(count, nodes.shape[1])
    size = padded_size(max(len(at[0]), counted(total, most)))
    sources = targets[:, :1].repeat(1, size + 1).scatter_(1, torch.where(new > 0, where, size), numbers)
    sources[:, : len(at[0])] = torch.where(own < count, targets, sources[:, : len(at[0])])
    return sources[:, :size], total, where.scatter_reduce_(1, own, at, "amax", include_self=False).gather(1, nodes)

"""Layer-wise sampled neighborhoods (Zhang et al. 2023, GLASU, algorithm 2), for all clients at once inside a
vectorized call.

A layer takes sources to targets. The targets come first among the sources, in order, so that a node's own row keeps its
place. The sample of a node depends only on its number and the key, not on the list around it: a part of a list has the
same samples as the whole list.

Lists are padded after their last node, and no place points to padding. So a layer's results for the padding (sums of
other nodes' rows) reach no node. A node's row, and the dropout on it, is therefore the same for any padding.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.core import random
from fedweave.core.graph import Graph
from fedweave.core.tree import Tree
from fedweave.ops.batching import Batch, Constant, Dims, over_clients
from fedweave.ops.rows import common_length, gather_rows, weighted_gather


def grow(
    graph: Graph, targets: Tensor, filled: Tensor, key: Tensor, layers: Sequence[int], fan_out: int
) -> tuple[Tensor, Tensor, Tree]:
    """Sample up to `fan_out` different neighbors of each target with equal probability, layer by layer.

    targets: int64 [t]; only the first `filled` (int64 scalar) count. layers: numbers of layers, falling. The second
    layer samples neighbors of all nodes of the first layer, and so on.

    Returns the lowest layer's sources int64 [s], how many of them count, and the hops by layer. A layer's sources are
    its targets, then the further neighbors, each once, then repeats of the first target up to a size of few different
    values. They are the next layer's targets. Its hop has "place" int64 [t, fan_out], the places of the sampled
    neighbors among the sources, "count" [t, fan_out], the number of neighbors that each represents (0: no neighbor),
    and "gcn" [t, 1 + fan_out], the weights of the node itself and its neighbors.

    "gcn" has the weights of D~^-1/2 (A + I) D~^-1/2, times the number of neighbors that a sampled one represents. The
    expected sum over the samples is the full graph's. It is exact if no node has more than `fan_out` neighbors, so that
    training and full-graph inference compute the same.
    """
    if not layers:
        return targets, filled, {}
    size = graph.whole_edges.cache.padded_size
    run = partial(_grow, layers=tuple(layers), fan_out=fan_out, dtype=graph.x.dtype, padded_size=size)
    sources, filled, *tensors = ForClients.apply(run, *graph.whole_edges.neighbors, targets, filled, key)
    hops: dict[str, Tree] = {}
    for at, layer in enumerate(layers):
        place, count, gcn = tensors[3 * at : 3 * at + 3]
        hops[str(layer)] = {"place": place, "count": count, "gcn": gcn}
    return sources, filled, hops


def neighbors(
    first: Tensor, degree: Tensor, columns: Tensor, targets: Tensor, key: Tensor, fan_out: int
) -> tuple[Tensor, Tensor]:
    """Sampled neighbors [P, t, f] (the node itself at places without a neighbor) and how many each represents, float64.

    `places` defines the sample."""
    at, exists, count = places(first, degree, targets, key, fan_out)
    nodes = torch.where(exists, columns.gather(1, at.flatten(1)).view(at.shape), targets[..., None])
    return nodes, count


def places(first: Tensor, degree: Tensor, targets: Tensor, key: Tensor, fan_out: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sample places in a list of neighbors that is sorted by node, for each of `targets` [P, t].

    Returns the places int64 [P, t, f] (0 where there is none), which of them exist, and how many neighbors each
    represents, float64.

    Systematic sampling: of d > f neighbors, those at (u + j) d / f for j = 0, …, f - 1 with one uniform u are all
    different, and each is taken with probability f / d.
    """
    d = degree.gather(1, targets)[..., None]  # [P, t, 1]
    bits = random.fold(key[:, None], targets) >> 40 & 0xFFFFFF
    u = bits.to(torch.float64)[..., None] * 2.0**-24  # [P, t, 1]
    j = torch.arange(fan_out, device=d.device)
    at = torch.where(d > fan_out, ((u + j) * d / fan_out).long().minimum(d - 1), j)  # [P, t, f]
    exists = (at < d).expand(*targets.shape, fan_out)
    at = torch.where(exists, first.gather(1, targets)[..., None] + at, 0)
    return at, exists, torch.where(exists, (d / fan_out).clamp(min=1), 0.0)


def gcn_weights(degree: Tensor, targets: Tensor, nodes: Tensor, count: Tensor) -> Tensor:
    """The weights of targets [P, t] and of their sampled neighbors `nodes` [P, t, f] in D~^-1/2 (A + I) D~^-1/2, times
    the number `count` of neighbors that each represents: float64 [P, t, 1 + f]."""
    with_loop = (degree + 1).to(torch.float64)  # [P, n]
    target_degree = with_loop.gather(1, targets)[..., None]
    neighbor_degree = with_loop.gather(1, nodes.flatten(1)).view(nodes.shape)
    return torch.cat([1 / target_degree, count / torch.sqrt(target_degree * neighbor_degree)], 2)


def self_hop(targets: Tensor, dtype: torch.dtype) -> Tree:
    """The hop in which each of `targets` [t] sees only itself: A = I."""
    one = torch.ones(len(targets), 1, dtype=dtype, device=targets.device)
    return {"place": targets[:, None][:, :0], "count": one[:, :0], "gcn": one}


def find_places(nodes: Tensor, within: Tensor, count: int) -> Tensor:
    """The place of each of `nodes` int64 [k], numbers below `count`, in the list `within` int64 [m]; the last place of
    a node that is in the list several times, on every device."""
    numbers = torch.arange(len(within), device=within.device)
    table = torch.zeros(count, dtype=torch.int64, device=within.device)
    return table.scatter_reduce(0, within, numbers, "amax").gather(0, nodes)


def sort_distinct(nodes: Tensor, count: int, size: int) -> Tensor:
    """The distinct `nodes` int64 [k], numbers below `count`, in rising order; the first is repeated up to `size`."""
    present = torch.zeros(count, dtype=torch.int64, device=nodes.device).scatter(0, nodes, 1)
    rank = present.cumsum(0)
    place = torch.where(present > 0, rank - 1, size)
    numbers = torch.arange(count, device=nodes.device)
    return nodes.min().expand(size + 1).scatter(0, place, numbers)[:size]


class Sampled:
    """The edges of one layer between sampled nodes (a `core.operators.MessagePassing`)."""

    shrinks = True
    KINDS = ("gcn", "sum", "mean", "mean_or_self")

    def __init__(self, hop: Tree) -> None:
        self.hop = hop

    def operator(self, kind: str) -> "Bipartite":
        """The matrix [targets, sources] that estimates rows of the matrix of `Edges.operator`."""
        count = self.hop["count"]
        if kind == "gcn":
            return Bipartite(self.hop["place"], self.hop["gcn"])
        if kind not in ("sum", "mean", "mean_or_self"):
            raise ValueError(f"sampled neighbors have no operator {kind!r}, only gcn, sum, mean and mean_or_self")
        total = count.sum(1, keepdim=True)
        self_weight = (total == 0).to(count.dtype) if kind == "mean_or_self" else torch.zeros_like(total)
        weight = count if kind == "sum" else count / total.clamp(min=1)
        return Bipartite(self.hop["place"], torch.cat([self_weight, weight], 1))

    def with_means(self, h: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """The targets, and for each of them the mean over its sampled neighbors: both [t, k]."""
        return h[: len(self.hop["place"])], self.operator(kind) @ h


class Bipartite:
    """A matrix [targets, sources] with few entries a row: `weight` [t, 1 + f], first for the node itself (source i of
    target i), then for the sources `place` int64 [t, f]. Weight 0 means no entry."""

    def __init__(self, place: Tensor, weight: Tensor) -> None:
        self.place = place
        self.weight = weight

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
        """`ops.attention.attend` over the node itself and its sampled neighbors."""
        heads = source.shape[1]
        scores = F.leaky_relu(target[:, None] + self._rows(source), slope)  # [t, 1 + f, H]
        attention = torch.softmax(scores.masked_fill((self.weight == 0)[..., None], -torch.inf), 1)  # [t, 1 + f, H]
        if key is not None and rate > 0:
            attention = random.dropout(key, attention, rate)
        messages = self._rows(values).unflatten(2, (heads, -1))  # [t, 1 + f, H, k]
        result: Tensor = (attention[..., None] * messages).sum(1).flatten(1)
        return result


class ForClients(Constant):
    """`run` on the tensors of one client, where it takes those of P clients at once, [P, …]: a vectorized call makes
    all clients' lists, of one length, in one computation."""

    @staticmethod
    def forward(run: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(out[0] for out in run(*(tensor[None] for tensor in tensors)))

    @staticmethod
    def vmap(
        info: Batch, in_dims: Dims, run: Callable[..., tuple[Tensor, ...]], *tensors: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        out = run(*over_clients(info.batch_size, in_dims[1:], *tensors))
        return out, (0,) * len(out)


def _grow(
    *tensors: Tensor, layers: tuple[int, ...], fan_out: int, dtype: torch.dtype, padded_size: Callable[..., int]
) -> tuple[Tensor, ...]:
    """`grow` for P clients. tensors, all [P, …]: tables of neighbors, targets, how many of these count, and the key."""
    first, degree, columns, sources, filled, key = tensors
    hop_tensors = []
    for layer in layers:
        targets = sources
        nodes, count = neighbors(first, degree, columns, targets, random.fold(key, "sample", layer), fan_out)
        gcn = gcn_weights(degree, targets, nodes, count)
        padded_length = partial(padded_size, (layer, targets.shape[1]))
        sources, filled, place = _join(targets, filled, nodes.flatten(1), degree.shape[1], padded_length)
        hop_tensors += [place.view(nodes.shape), count.to(dtype), gcn.to(dtype)]
    return sources, filled, *hop_tensors


def _join(
    targets: Tensor, filled: Tensor, nodes: Tensor, count: int, padded_length: Callable[[int], int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Join the targets and their new neighbors, nodes with numbers below `count`.

    Returns the first `filled` [P] targets [P, t], followed by those `nodes` [P, k] that are not targets; their number
    [P]; and the place of each of `nodes`, the last place if a node is in the list several times."""
    clients, t = targets.shape
    at = torch.arange(t, device=nodes.device).expand(clients, t)
    numbers = torch.arange(count + 1, device=nodes.device).expand(clients, count + 1)
    target_columns = torch.where(at < filled[:, None], targets, count)  # the last column takes targets beyond `filled`
    new = torch.zeros_like(numbers, memory_format=torch.contiguous_format)  # [P, count + 1]
    new = new.scatter_(1, nodes, 1).scatter_(1, target_columns, 0)
    where = new.cumsum(1) + (filled[:, None] - 1)  # the place of each new node
    total = where[:, -1] + 1
    max_total = t + min(count, nodes.shape[1])
    size = padded_length(max(t, common_length(total, max_total)))
    sources = targets[:, :1].repeat(1, size + 1).scatter_(1, torch.where(new > 0, where, size), numbers)
    sources[:, :t] = torch.where(target_columns < count, targets, sources[:, :t])
    place = where.scatter_reduce_(1, target_columns, at, "amax", include_self=False).gather(1, nodes)
    return sources[:, :size], total, place

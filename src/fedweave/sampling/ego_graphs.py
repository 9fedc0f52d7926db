"""Sampled ego-graphs, mini-batches of them, and training on them (Zhang et al. 2023, FedEgo, sections 3.1 and 4.1).

They have a fixed shape and are a `Graph`, so that any layer with a mean aggregator runs on them unchanged.

An ego of k hops and fan-out f has 1 + f + … + f^k positions: position 0 is the center, and the children of position v
are f v + 1, …, f v + f. A batch of b egos is stored position by position, [positions · b, …]: then every ring of all
egos is one slice. Each message-passing layer removes the outermost ring, and after k layers the b centers are left.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.edges import Neighbors
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Model
from fedweave.core.operators import Operator
from fedweave.core.tree import Tree
from fedweave.learn import PLAIN, Criterion
from fedweave.ops.batching import Batch, Constant, Context, Dims, Operands, Operation, over_clients
from fedweave.ops.rows import gather_rows, nonzero_columns
from fedweave.ops.sparse import pick_rows
from fedweave.sampling.minibatches import draw_nodes

KINDS = ("mean", "mean_or_self")  # an ego's inner positions always have children, so both are the same here


def positions(hops: int, fan_out: int) -> int:
    """1 + f + … + f^k."""
    return sum(fan_out**hop for hop in range(hops + 1))


class EgoEdges:
    """The edges of `batch` ego-graphs (a `core.operators.MessagePassing`)."""

    shrinks = True

    def __init__(self, batch: int, fan_out: int) -> None:
        self.batch = batch
        self.fan_out = fan_out

    def inner(self, h: Tensor) -> int:
        """Number of positions of h [positions · b, k] that have children."""
        count = (h.shape[0] // self.batch - 1) // self.fan_out
        if count < 1:
            raise ValueError("the ego-graphs have no ring left; set hops to the number of layers with edges")
        return count

    def operator(self, kind: str) -> Operator:
        """Raise an error: ego-graphs have no matrices, only means over children (`with_means`)."""
        raise ValueError(f"ego-graphs of fixed fan-out have no operator {kind!r}, only means over children")

    def with_means(self, h: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """The positions that have children, and for each of them the mean over its children: both [inner · b, k]."""
        if kind not in KINDS:
            raise ValueError(f"ego-graphs of fixed fan-out have no operator {kind!r}, only {' and '.join(KINDS)}")
        nodes, means = _Rings.apply(h.view(-1, self.batch, h.shape[1]), self.inner(h), self.fan_out)
        return nodes.flatten(0, 1), means.flatten(0, 1)


class _Rings(Operation):
    """h [..., positions, b, k] -> its first `inner` positions, and the means over their children.

    Without this operation, autograd would fill a zero tensor of h's size for either use of h, and add the two.
    """

    @staticmethod
    def forward(h: Tensor, inner: int, fan_out: int) -> tuple[Tensor, Tensor]:
        return h[..., :inner, :, :].clone(), h[..., 1:, :, :].unflatten(-3, (inner, fan_out)).mean(-3)

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: object) -> None:
        _, ctx.inner, ctx.fan_out = inputs

    @staticmethod
    def backward(ctx: Context, nodes: Tensor, means: Tensor) -> tuple[Tensor, None, None]:
        return _SpreadRings.apply(nodes, means, ctx.inner, ctx.fan_out), None, None

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, h: Tensor, inner: int, fan_out: int) -> tuple[Tensor, tuple[int, int]]:
        return _Rings.apply(h.movedim(in_dims[0], 0), inner, fan_out), (0, 0)


class _SpreadRings(Operation):
    """The transpose of `_Rings`."""

    @staticmethod
    def forward(nodes: Tensor, means: Tensor, inner: int, fan_out: int) -> Tensor:
        out = nodes.new_empty(*nodes.shape[:-3], 1 + inner * fan_out, *nodes.shape[-2:])
        out[..., 0, :, :] = nodes[..., 0, :, :]
        out[..., 1:, :, :].unflatten(-3, (inner, fan_out)).copy_((means / fan_out).unsqueeze(-3))
        out[..., 1:inner, :, :] += nodes[..., 1:, :, :]
        return out

    @staticmethod
    def setup_context(ctx: Context, inputs: Operands, output: object) -> None:
        _, _, ctx.inner, ctx.fan_out = inputs

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        return *_Rings.apply(grad, ctx.inner, ctx.fan_out), None, None

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, nodes: Tensor, means: Tensor, inner: int, fan_out: int) -> tuple[Tensor, int]:
        sides = over_clients(info.batch_size, in_dims, nodes, means)
        return _SpreadRings.apply(*sides, inner, fan_out), 0


def ego_graph(h: Tensor, batch: int, fan_out: int) -> Graph:
    """`batch` egos with the embeddings h [positions · b, k]; unlabeled."""
    count = h.shape[0]
    return Graph(
        x=h,
        edges=EgoEdges(batch, fan_out),
        y=torch.full((count,), -1, device=h.device),
        masks=torch.zeros(3, count, dtype=torch.bool, device=h.device),
        real=torch.ones(count, dtype=torch.bool, device=h.device),
    )


def children(neighbors: Neighbors, parents: Tensor, uniforms: Tensor) -> Tensor:
    """One random neighbor (with replacement) of `parents` int64 [...] for each of `uniforms` [..., f] in [0, 1).

    A node without neighbors is its own neighbor. Returns int64 [..., f].
    """
    first, degree, columns = neighbors
    flat = parents.reshape(-1)
    begin, count = (table.gather(0, flat).view(*parents.shape, 1) for table in (first, degree))
    at = (begin + (uniforms * count).long()).clamp(max=len(columns) - 1)
    return torch.where(count > 0, columns.gather(0, at.reshape(-1)).view(at.shape), parents[..., None])


def compact(nodes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """List each node once: nodes int64 [s, k] below `count` -> (distinct int64 [s, m], place int64 [s, k]) such that
    nodes[i, j] = distinct[i, place[i, j]].

    m is the size of the longest list, rounded up, the same for all clients of a batch; shorter lists are padded with
    node 0.
    """
    distinct, place = _Compact.apply(nodes, count)
    return distinct, place


class _Compact(Constant):
    @staticmethod
    def forward(nodes: Tensor, count: int) -> tuple[Tensor, Tensor]:
        present = nodes.new_zeros(len(nodes), count).scatter_(1, nodes, 1)
        distinct, rank = nonzero_columns(present, nodes.new_zeros(len(nodes), 1), max_count=nodes.shape[1])
        return distinct.contiguous(), rank.gather(1, nodes) - 1

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, nodes: Tensor, count: int) -> tuple[tuple[Tensor, ...], tuple[int, int]]:
        rows = nodes.movedim(in_dims[0], 0)
        return tuple(out.unflatten(0, rows.shape[:2]) for out in _Compact.apply(rows.flatten(0, 1), count)), (0, 0)


@dataclass(frozen=True)
class Egos:
    """Ego-graphs of `hops` hops with `fan_out` neighbors each, drawn with replacement, `batch` centers at a time.

    epochs: number of epochs that all steps together make; the mini-batches of one epoch share no center. 0 draws every
            mini-batch independently.
    share:  number of train nodes in an epoch, as a share of all the client's nodes.
    """

    batch: int = 32
    hops: int = 2
    fan_out: int = 6
    epochs: int = 0
    share: float = 1.0

    def split(self, model: Model) -> int:
        """Number of leading layers that see nodes, not egos: all layers before the last `hops` layers with edges."""
        passing = [i for i, layer in enumerate(model) if layer.operator is not None]
        on_egos = passing[len(passing) - self.hops :]
        split = on_egos[0] if on_egos else max(passing, default=-1) + 1
        if len(on_egos) < self.hops or split == 0 or any(model[i].operator not in KINDS for i in on_egos):
            kinds = ", ".join(str(model[i].operator) for i in passing) or "none"
            raise ValueError(
                f"ego-graphs of {self.hops} hops need a model with {self.hops} layers that average over neighbors, "
                f"and a layer before them; this one has {len(model)} layers, those with edges being: {kinds}. Choose "
                "model.name = 'ego', or 'sage' with more layers than algorithm.hops"
            )
        if any(layer.collects for layer in model[:split]):
            raise ValueError(
                "ego-graphs hold one row for each node, and this model (gprgnn, or one with model.jump) hands on the "
                "outputs of several layers there; leave model.jump out, or set algorithm.hops to the number of layers "
                "with edges"
            )
        return split

    def draw(self, graph: Graph, key: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """A mini-batch per step: int64 [steps, b] distinct train nodes, and bool [steps, b] which of them are real
        (with fewer nodes than b, places stay empty)."""
        if not self.epochs:
            keys = random.fold(key, torch.arange(steps, device=key.device))
            return draw_nodes(graph.masks[TRAIN], keys[:, None], self.batch)
        each = steps // self.epochs
        keys = random.fold(key, torch.arange(self.epochs, device=key.device))
        nodes, _ = draw_nodes(graph.masks[TRAIN], keys[:, None], each * self.batch)
        count = self.epoch(graph).clamp(max=each * self.batch)
        # the ends of an epoch's mini-batches, whose sizes differ by at most 1
        ends = torch.arange(each + 1, device=key.device) * count // each
        place = ends[:-1, None] + torch.arange(self.batch, device=key.device)
        real = place < ends[1:, None]
        centers = nodes[:, torch.where(real, place, 0).reshape(-1)].reshape(steps, self.batch)
        return centers, real.expand(self.epochs, *real.shape).reshape(steps, self.batch)

    def min_examples(self, graph: Graph, steps: int) -> int:
        """The fewest train nodes in any of `steps` mini-batches that has train nodes. Waits for the graph's device, so
        call it between steps."""
        if not self.epochs:
            return min(self.batch, int(graph.masks[TRAIN].sum()))
        each = max(1, steps // self.epochs)
        count = min(int(self.epoch(graph)), each * self.batch)
        return max(1, count // each) if count else 0

    def epoch(self, graph: Graph) -> Tensor:
        """Number of train nodes in an epoch: int64 scalar."""
        size = (self.share * graph.real.sum().double()).floor().long()
        return torch.minimum(size, graph.masks[TRAIN].sum())

    def batches_per_epoch(self, graph: Graph) -> Tensor:
        """Number of mini-batches in an epoch: int64 scalar."""
        return -(-self.epoch(graph) // self.batch)

    def around(self, graph: Graph, key: Tensor, centers: Tensor) -> Tensor:
        """Nodes at all positions of the egos around `centers` int64 [m]: int64 [positions, m] (see `positions`)."""
        rings = [centers[None]]
        neighbors = graph.whole_edges.neighbors
        for hop in range(self.hops):
            parents = rings[-1]
            uniforms = random.uniform(random.fold(key, "hop", hop), (*parents.shape, self.fan_out))
            rings.append(children(neighbors, parents, uniforms).transpose(1, 2).reshape(-1, len(centers)))
        return torch.cat(rings)

    def batches(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        """Mini-batches of egos for `fit(…, batches=…)`, all leaves [steps, …]: the "target" class and "weight" (0 or 1)
        of b centers, the distinct "nodes" of a batch's egos, and the "place" of each ego position among the nodes."""
        centers, real = self.draw(graph, random.fold(key, "centres"), steps)
        nodes = self.around(graph, random.fold(key, "egos"), centers.reshape(-1))
        nodes = nodes.unflatten(1, (steps, self.batch)).transpose(0, 1).flatten(1)
        target = graph.truth_at(centers)
        minibatch = {"target": target, "weight": real.to(graph.x.dtype)}
        if any(layer.operator for layer in model[: self.split(model)]):
            return minibatch | {"place": nodes}
        distinct, place = compact(nodes, len(graph.y))
        return minibatch | {"nodes": distinct, "place": place}

    def mixtures(self, graph: Graph, key: Tensor, uploads: int, min_size: int, mixup: bool) -> tuple[Tensor, Tensor]:
        """The train nodes in random batches to be mixed: int64 [uploads, batch + min_size - 1], and their weights. The
        weights sum to 1 in a batch that is uploaded, else to 0. Without `mixup` only one node of each batch counts."""
        train = graph.masks[TRAIN]
        order = random.order(key, train).argsort()
        count = train.sum()
        batch = torch.arange(uploads, device=train.device)[:, None]
        place = torch.arange(self.batch + min_size - 1, device=train.device)
        rank = batch * self.batch + place  # [uploads, batch + min_size - 1]
        full = self.full_batches(count, min_size)
        last = batch == full - 1
        inside = (rank < count) & (last | (place < self.batch)) & (batch < full)
        if not mixup:
            inside = inside & (place == 0)
        weight = inside.to(graph.x.dtype)
        nodes = order.gather(0, torch.where(inside, rank, 0).reshape(-1)).view(inside.shape)
        return nodes, weight / weight.sum(-1, keepdim=True).clamp(min=1)

    def full_batches(self, count: Tensor, min_size: int) -> Tensor:
        """Number of batches that `count` train nodes fill; fewer than `min_size` further nodes join the last batch."""
        return count // self.batch + (count % self.batch >= min_size)

    def loss(self, w: Tree, model: Model, graph: Graph, key: Tensor, minibatch: Tree, how: Criterion = PLAIN) -> Tensor:
        """Mean cross-entropy (eq. 2 with the minus sign that it lacks) of one mini-batch's centers, each seen through
        its sampled ego; scalar, 0 at a client without train nodes."""
        split = self.split(model)
        if "nodes" in minibatch:  # layers without edges see only the batch's nodes, each of them once
            graph = graph._replace(x=pick_rows(graph.x, minibatch["nodes"]))
        reduced = models.apply(model[:split], w, graph, key)
        egos = ego_graph(gather_rows(reduced, minibatch["place"]), self.batch, self.fan_out)
        logits = models.apply(model[split:], w, egos, key, first=split)
        return how.of(logits, minibatch["target"], minibatch["weight"], graph.y, graph.masks[TRAIN])

"""Differential privacy of each example: gradients that are clipped one by one, and noise on their sum."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.func import grad, vmap

from fedweave.algorithms.parts.context import Context
from fedweave.algorithms.parts.dp import MemberNoise
from fedweave.algorithms.parts.needs import Protection
from fedweave.algorithms.parts.training import Training
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.mechanism import Gaussian
from fedweave.core.model import Model
from fedweave.core.ranges import check_least, check_positive
from fedweave.core.tree import Tree, add, leaves, map_leaves, nest
from fedweave.learn import cross_entropy
from fedweave.ops.sparse import dense
from fedweave.sampling.graphs import GraphBatches

_AT_ONCE = 64  # examples whose gradients are held at the same time
Loss = Callable[[Tree, Tree], Tensor]


@dataclass(frozen=True)
class ExampleNoise(MemberNoise):
    """Sends, in place of the update, one step of noised gradient descent: every training example's gradient is clipped
    to an L2 norm, and their sum gets Gaussian noise at the member (Abadi et al. 2016, algorithm 1, of all examples and
    without a sample).

    A record is a labelled node or, if small graphs are the examples, a whole graph: a receiver can hardly distinguish
    one example from any other in its place. That holds only if an example's loss depends on no other example, so a node
    model may pass no messages between nodes. A member's number of training examples is taken as known. Replacing one
    example changes the sum by at most 2 · clip, so a round is μ-Gaussian differentially private with μ = 2 / sigma and
    T rounds with √T μ.

    clip:     norm of one example's gradient at most. One that is not finite counts as 0.
    sigma:    the sum's noise has the standard deviation sigma · clip; 1 unless `epsilon` and `target_rounds` are given
              in its place, as of `MemberNoise`.
    examples: what the sum is divided by: a public guess of how many examples a member has.
    lr:       the step's length. What a member trains besides never leaves it; local_steps = 1 saves time.
    """

    examples: int = 100
    lr: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(1, examples=self.examples)
        check_positive(lr=self.lr)

    def check(self, training: Training) -> None:
        """Refuse a model that passes messages between examples."""
        passing = models.needs_graph(training.model) or any(layer.operator is not None for layer in training.model)
        if passing and not models.pools(training.model):
            raise ValueError(
                "dp_examples bounds what one example tells, but with message passing a node is in its neighbours' "
                "losses; take a model without it (mlp), small graphs as examples, or the part dp of whole members"
            )

    @property
    def protection(self) -> Protection:
        """As ledgers name it and policies count it, for as many rounds as the target is for."""
        one = self.lr * self.clip / self.examples
        noised = Gaussian(self.multiplier * one, 2 * one, "example", self.delta)
        step = "one noised step of gradient descent on the training examples"
        return Protection((noised,), becomes=step, plain_loss=True, most_rounds=self.target_rounds)

    def release(self, ctx: Context, update: Tree) -> Tree:
        """-lr (Σ_i g_i · min(1, clip / ‖g_i‖₂) + sigma · clip · N(0, I)) / examples, g_i at the received weights."""
        total = dict(leaves(self.clipped_sum(ctx.received, ctx.training.model, ctx.client.graph)))
        noised = self.noised(ctx, nest({path: total[path] for path, _ in leaves(update)}))
        step = -self.lr / self.examples
        return map_leaves(lambda leaf, like: (step * leaf).to(like.dtype), noised, update)

    def clipped_sum(self, w: Tree, model: Model, graph: Graph) -> Tree:
        """Σ_i g_i · min(1, clip / ‖g_i‖₂) over the training examples, without dropout; float64."""
        loss, items = _examples(model, graph)
        gradient = vmap(lambda item: self.clipped(grad(loss)(w, item)))
        total = map_leaves(lambda leaf: torch.zeros_like(leaf, dtype=torch.float64), w)
        for start in range(0, len(items["weight"]), _AT_ONCE):
            some = gradient(map_leaves(partial(_some, start), items))
            total = add(total, map_leaves(lambda each: each.sum(0), some))
        return total


def _some(start: int, leaf: Tensor) -> Tensor:
    return leaf[start : start + _AT_ONCE]


def _examples(model: Model, graph: Graph) -> tuple[Loss, Tree]:
    """The loss of one example at weights, 0 of one that does not train; and all examples, leaves [e, …]."""
    if graph.graph_of is not None:
        each = GraphBatches(1)
        count = len(graph.y)
        drawn = each.batches(graph, random.key(0, graph.device), count)
        again = torch.arange(count, device=graph.device) >= graph.masks[TRAIN].sum()  # all have been drawn
        drawn["weight"] = drawn["weight"].masked_fill(again[:, None], 0.0)
        return lambda w, item: each.loss(w, model, graph, None, item), drawn

    def loss(w: Tree, item: Tree) -> Tensor:
        logits = models.apply(model, w, graph, h=item["x"][None])
        return cross_entropy(logits, item["y"][None], item["weight"][None])

    x = dense(graph.x)
    return loss, {"x": x, "y": graph.y.clamp(min=0), "weight": graph.masks[TRAIN].to(x.dtype)}

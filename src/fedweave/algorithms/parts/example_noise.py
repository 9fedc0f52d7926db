"""Differential privacy of each example: clip the gradient of every example, and add noise to the sum."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter

import torch
from torch import Tensor
from torch.func import grad, vmap

from fedweave.algorithms.parts.dp import MemberNoise
from fedweave.algorithms.parts.needs import Protection
from fedweave.algorithms.parts.part import Context
from fedweave.algorithms.parts.training import Training
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.bounds import Count, Positive
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.mechanism import Gaussian
from fedweave.core.model import Model
from fedweave.core.tree import Tree, add, leaves, map_leaves, nest
from fedweave.learn import PLAIN
from fedweave.ops.sparse import dense
from fedweave.sampling.graphs import GraphBatches, ways_of

_AT_ONCE = 64  # examples whose gradients are in memory at the same time
Loss = Callable[[Tree, Tree], Tensor]


@dataclass(frozen=True)
class ExampleNoise(MemberNoise):
    """Sends one step of noised gradient descent instead of the update. The client clips every training example's
    gradient to an L2 norm and adds Gaussian noise to their sum (Abadi et al. 2016, algorithm 1, of all examples and
    without a sample).

    A record is a labeled node or, if small graphs are the examples, a whole graph: a receiver can hardly distinguish
    one example from any other. That holds only if an example's loss depends on no other example, so a node model may
    pass no messages between nodes. The number of a client's training examples counts as known. Replacing one example
    changes the sum by at most 2 · clip, so a round is μ-Gaussian differentially private with μ = 2 / sigma, and T
    rounds with √T μ.

    clip:     largest norm of one example's gradient; a gradient that is not finite counts as 0.
    sigma:    noise multiplier: the sum's noise has the standard deviation sigma · clip; 1 without a target (see
              `MemberNoise`).
    examples: divisor of the sum: a public guess of the number of a client's examples.
    lr:       length of the step. The client's local training does not leave it; local_steps = 1 saves time.
    """

    examples: Count = 100
    lr: Positive = 0.1
    recorded = True

    def check(self, training: Training) -> None:
        passes = models.needs_graph(training.model) or any(layer.operator is not None for layer in training.model)
        if passes and not models.pools(training.model):
            raise ValueError(
                "dp_examples bounds what one example reveals, but with message passing a node is in its neighbors' "
                "losses; take a model without it (mlp), small graphs as examples, or the part dp of whole members"
            )

    @property
    def protection(self) -> Protection:
        one = self.lr * self.clip / self.examples  # the largest change of the step by one example
        noise = Gaussian(self.multiplier * one, 2 * one, "example", self.delta)
        step = "one noised step of gradient descent on the training examples"
        return Protection((noise,), becomes=step, plain_loss=True, max_rounds=self.target_rounds)

    def release(self, ctx: Context, update: Tree) -> Tree:
        """-lr (Σ_i g_i · min(1, clip / ‖g_i‖₂) + sigma · clip · N(0, I)) / examples, g_i at the received weights."""
        total = dict(leaves(self.clipped_sum(ctx.received, ctx.training.model, ctx.client.graph)))
        released = nest({path: total[path] for path, _ in leaves(update)})
        step = -self.lr / self.examples
        return map_leaves(lambda leaf, like: (step * leaf).to(like.dtype), self.add_noise(ctx, released), update)

    def clipped_sum(self, w: Tree, model: Model, graph: Graph) -> Tree:
        """Σ_i g_i · min(1, clip / ‖g_i‖₂) over the training examples, without dropout; float64."""
        loss, items = _examples(model, graph)
        gradient = vmap(lambda item: self.clip_tree(grad(loss)(w, item)))
        total = map_leaves(lambda leaf: torch.zeros_like(leaf, dtype=torch.float64), w)
        # In chunks: the gradients of all examples at once, each as large as the model, would not fit into memory.
        for start in range(0, len(items["weight"]), _AT_ONCE):
            chunk = map_leaves(itemgetter(slice(start, start + _AT_ONCE)), items)
            total = add(total, map_leaves(lambda gradients: gradients.sum(0), gradient(chunk)))
        return total


def _examples(model: Model, graph: Graph) -> tuple[Loss, Tree]:
    """The loss of one example as a function of the weights, 0 for an example that does not train; and all examples,
    leaves [e, …]."""
    if graph.graph_of is not None:
        single = GraphBatches(1)
        count = len(graph.y)
        items = single.batches(graph, random.key(0, graph.device), count, ways_of(model))
        # A pass over the training examples ends after their number; later draws repeat them and must not count.
        repeats = torch.arange(count, device=graph.device) >= graph.masks[TRAIN].sum()
        items["weight"] = items["weight"].masked_fill(repeats[:, None], 0.0)
        return lambda w, item: single.loss(w, model, graph, None, item), items

    def loss(w: Tree, item: Tree) -> Tensor:
        logits = models.apply(model, w, graph, h=item["x"][None])
        return PLAIN.of(logits, item["y"][None], item["weight"][None], graph.y, graph.masks[TRAIN])

    x = dense(graph.x)
    return loss, {"x": x, "y": graph.truth, "weight": graph.masks[TRAIN].to(x.dtype)}

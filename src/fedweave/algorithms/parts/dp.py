"""Parts that protect an update before it leaves: bounded norms, and differential privacy by noise."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Annotated

import torch
from torch import Tensor
from torch.func import grad, vmap

from fedweave.algorithms.parts.needs import Needs, Protection
from fedweave.algorithms.parts.part import Context, Part
from fedweave.algorithms.parts.training import Training
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.bounds import Between, ClipNorm, Count, Positive
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.mechanism import Clipped, Gaussian
from fedweave.core.model import Model
from fedweave.core.settings import Beside
from fedweave.core.tree import Tree, add, leaves, map_leaves, nest, norm, scale
from fedweave.learn import PLAIN
from fedweave.ops.sparse import dense
from fedweave.ops.touched import materialize
from fedweave.privacy.gaussian import noise, noise_multiplier
from fedweave.sampling.graphs import GraphBatches


@dataclass(frozen=True)
class Clip(Part):
    """Scales the update Δ down to L2 norm `norm` at most, so that no client moves the model further.

    The first half of McMahan et al. 2018, algorithm 1; without noise it gives no privacy guarantee.

    norm: largest norm of an update.
    """

    norm: Positive = 1.0
    recorded = True

    @property
    def protection(self) -> Protection:
        return Protection(Clipped(self.norm))

    def release(self, ctx: Context, update: Tree) -> Tree:
        """Δ · min(1, norm / ‖Δ‖₂), the norm over all weights together."""
        return scale(update, (self.norm / norm(update).clamp(min=1e-12)).clamp(max=1.0))


@dataclass(frozen=True)
class Normalised(Part):
    """Scales the update Δ to L2 norm `gamma`, so that only its direction counts (Xu et al. 2021, section 3.1).

    gamma: Γ, norm of each client's update.
    """

    gamma: Positive = 0.5
    recorded = True
    needs = Needs(statistics="home")

    @property
    def protection(self) -> Protection:
        return Protection(Clipped(self.gamma))

    def release(self, ctx: Context, update: Tree) -> Tree:
        """Γ Δ / ‖Δ‖₂, 0 if Δ is 0."""
        return scale(update, self.gamma / norm(update).clamp(min=1e-12))


@dataclass(frozen=True)
class MemberNoise(Part):
    """Clips the update Δ to an L2 norm and adds Gaussian noise to it at the client, so that clients need not trust the
    server (McMahan et al. 2018, algorithm 1, with the noise where the data is).

    A record is all data of a client: a receiver can hardly distinguish the client's data from any other. Two clipped
    updates differ by at most 2 · clip, so a round is μ-Gaussian differentially private with μ = 2 / sigma, and T rounds
    with √T μ. A sample of the clients in each round does not lower ε: the sample follows from the run's seed, which the
    server and all clients know.

    clip:     largest norm of an update; an update that is not finite counts as 0.
    sigma:    noise multiplier: each weight's noise has the standard deviation sigma · clip; 1 without a target.
    epsilon, target_rounds: a target instead of sigma: the least noise with which target_rounds rounds have this ε.
              Longer runs raise an error.
    delta:    δ of the target's ε and of the ε in ledgers.

    Raises:
        ValueError: a value is out of range, or sigma and epsilon are both given, or epsilon without target_rounds.
    """

    clip: ClipNorm = 1.0
    sigma: Positive | None = None
    epsilon: Annotated[Positive | None, Beside("target_rounds")] = None
    delta: Between = 1e-5
    target_rounds: Annotated[Count | None, Beside("epsilon")] = None
    recorded = True
    needs = Needs(statistics="home")

    def __post_init__(self) -> None:
        if self.sigma is not None and self.epsilon is not None:
            raise ValueError(
                f"sigma = {self.sigma}: epsilon is {self.epsilon}. Give the noise, or the target that it follows from"
            )

    @cached_property
    def multiplier(self) -> float:
        """Sigma, from its setting or from the target."""
        if self.epsilon is not None and self.target_rounds is not None:
            return 2 * noise_multiplier(self.epsilon, self.delta, self.target_rounds)
        return 1.0 if self.sigma is None else self.sigma

    @property
    def protection(self) -> Protection:
        """The mechanism for ledgers and policies, and the rounds of the target."""
        noised = Gaussian(self.multiplier * self.clip, 2 * self.clip, "client", self.delta)
        return Protection((Clipped(self.clip), noised), max_rounds=self.target_rounds)

    def release(self, ctx: Context, update: Tree) -> Tree:
        """Δ · min(1, clip / ‖Δ‖₂) + sigma · clip · N(0, I), the norm over all weights together."""
        return map_leaves(lambda leaf, like: leaf.to(like.dtype), self.noised(ctx, self.clipped(update)), update)

    def noised(self, ctx: Context, tree: Tree) -> Tree:
        """The tree with noise of standard deviation sigma · clip in every number, drawn from the client's secret;
        float64."""
        key, deviation = random.fold(ctx.client.secret, "update"), self.multiplier * self.clip

        def with_noise(path: str, leaf: Tensor) -> Tensor:
            return leaf.double() + deviation * noise(random.fold(key, path), tuple(leaf.shape))

        return nest({path: with_noise(path, leaf) for path, leaf in leaves(tree)})

    def clipped(self, update: Tree) -> Tree:
        """The update clipped to norm `clip`, float64.

        Training that diverges only with some data would reveal which data it was, so a diverged update counts as 0.
        """
        update = map_leaves(lambda leaf: materialize(leaf).double(), update)
        length = norm(update)
        factor = (self.clip / length.clamp(min=1e-12)).clamp(max=1.0)
        return map_leaves(
            lambda leaf: torch.where(length.isfinite(), leaf, torch.zeros_like(leaf)), scale(update, factor)
        )


# ----------------------------------------------------------------------------------------------------
# Differential privacy of each example: clip the gradient of every example, and add noise to the sum.


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
        """Raise a ValueError if the model passes messages between examples."""
        passing = models.needs_graph(training.model) or any(layer.operator is not None for layer in training.model)
        if passing and not models.pools(training.model):
            raise ValueError(
                "dp_examples bounds what one example reveals, but with message passing a node is in its neighbors' "
                "losses; take a model without it (mlp), small graphs as examples, or the part dp of whole members"
            )

    @property
    def protection(self) -> Protection:
        """The mechanism for ledgers and policies, and the rounds of the target."""
        one = self.lr * self.clip / self.examples
        noised = Gaussian(self.multiplier * one, 2 * one, "example", self.delta)
        step = "one noised step of gradient descent on the training examples"
        return Protection((noised,), becomes=step, plain_loss=True, max_rounds=self.target_rounds)

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
        # In chunks: the gradients of all examples at once, each as large as the model, would not fit into memory.
        for start in range(0, len(items["weight"]), _AT_ONCE):
            chunk = map_leaves(itemgetter(slice(start, start + _AT_ONCE)), items)
            total = add(total, map_leaves(lambda gradients: gradients.sum(0), gradient(chunk)))
        return total


def _examples(model: Model, graph: Graph) -> tuple[Loss, Tree]:
    """The loss of one example as a function of the weights, 0 for an example that does not train; and all examples,
    leaves [e, …]."""
    if graph.graph_of is not None:
        each = GraphBatches(1)
        count = len(graph.y)
        drawn = each.batches(graph, random.key(0, graph.device), count)
        # A pass over the training examples ends after their number; later draws repeat them and must not count.
        repeats = torch.arange(count, device=graph.device) >= graph.masks[TRAIN].sum()
        drawn["weight"] = drawn["weight"].masked_fill(repeats[:, None], 0.0)
        return lambda w, item: each.loss(w, model, graph, None, item), drawn

    def loss(w: Tree, item: Tree) -> Tensor:
        logits = models.apply(model, w, graph, h=item["x"][None])
        return PLAIN.of(logits, item["y"][None], item["weight"][None], graph.y, graph.masks[TRAIN])

    x = dense(graph.x)
    return loss, {"x": x, "y": graph.truth, "weight": graph.masks[TRAIN].to(x.dtype)}

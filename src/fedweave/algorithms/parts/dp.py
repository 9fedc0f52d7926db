"""Parts that protect an update before it leaves: bounded norms, and differential privacy by noise."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import torch

from fedweave.algorithms.parts.needs import Needs, Protection
from fedweave.algorithms.parts.part import Context, Part
from fedweave.core import random
from fedweave.core.bounds import Between, ClipNorm, Count, Positive
from fedweave.core.mechanism import Clipped, Gaussian
from fedweave.core.settings import Beside
from fedweave.core.tree import Tree, leaves, map_leaves, nest, norm, scale
from fedweave.ops.touched_rows import materialize
from fedweave.privacy.gaussian import noise, noise_multiplier


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
        noise = Gaussian(self.multiplier * self.clip, 2 * self.clip, "client", self.delta)
        return Protection((Clipped(self.clip), noise), max_rounds=self.target_rounds)

    def release(self, ctx: Context, update: Tree) -> Tree:
        """Δ · min(1, clip / ‖Δ‖₂) + sigma · clip · N(0, I), the norm over all weights together."""
        result = self.add_noise(ctx, self.clip_tree(update))
        return map_leaves(lambda leaf, like: leaf.to(like.dtype), result, update)

    def add_noise(self, ctx: Context, tree: Tree) -> Tree:
        """The tree with noise of standard deviation sigma · clip in every number, drawn from the client's secret;
        float64."""
        key, deviation = random.fold(ctx.client.secret, "update"), self.multiplier * self.clip
        result = Tree()
        for path, leaf in leaves(tree):
            result[path] = leaf.double() + deviation * noise(random.fold(key, path), tuple(leaf.shape))
        return nest(result)

    def clip_tree(self, update: Tree) -> Tree:
        """The update clipped to norm `clip`, float64.

        Training that diverges only with some data would reveal which data it was, so a diverged update counts as 0.
        """
        update = map_leaves(lambda leaf: materialize(leaf).double(), update)
        length = norm(update)
        factor = (self.clip / length.clamp(min=1e-12)).clamp(max=1.0)
        return map_leaves(
            lambda leaf: torch.where(length.isfinite(), leaf, torch.zeros_like(leaf)), scale(update, factor)
        )

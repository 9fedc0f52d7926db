"""What protects an update before it leaves: bounded norms, and differential privacy of each member by noise."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedweave.algorithms.parts.context import Context
from fedweave.algorithms.parts.needs import Protection
from fedweave.algorithms.parts.part import Part
from fedweave.core import random
from fedweave.core.mechanism import Clipped, Gaussian
from fedweave.core.ranges import check_positive
from fedweave.core.tree import Tree, leaves, map_leaves, nest, norm, scale
from fedweave.ops.touched import materialize
from fedweave.privacy.gaussian import check_clip, noise, noise_multiplier


@dataclass(frozen=True)
class Clip(Part):
    """The update Δ scaled down to L2 norm `norm` at most, so that no client moves the model further.

    The first half of McMahan et al. 2018, algorithm 1; without noise it gives no privacy guarantee.

    norm: the most that it may be.
    """

    norm: float = 1.0

    def __post_init__(self) -> None:
        if self.norm <= 0:
            raise ValueError(f"norm is {self.norm}; it must be positive")

    @property
    def protection(self) -> Protection:
        """As the ledger names it."""
        return Protection(Clipped(self.norm))

    def release(self, ctx: Context, update: Tree) -> Tree:
        """Δ · min(1, norm / ‖Δ‖₂), the norm over all weights together."""
        return scale(update, (self.norm / norm(update).clamp(min=1e-12)).clamp(max=1.0))


@dataclass(frozen=True)
class Normalised(Part):
    """The update Δ scaled to L2 norm `gamma`, so that its direction alone counts (Xu et al. 2021, section 3.1).

    gamma: Γ, norm of the updates that clients send.
    """

    gamma: float = 0.5

    def __post_init__(self) -> None:
        if self.gamma <= 0:
            raise ValueError(f"gamma is {self.gamma}; it must be positive")

    @property
    def protection(self) -> Protection:
        """As the ledger names it."""
        return Protection(Clipped(self.gamma))

    def release(self, ctx: Context, update: Tree) -> Tree:
        """Γ Δ / ‖Δ‖₂, 0 where Δ is."""
        return scale(update, self.gamma / norm(update).clamp(min=1e-12))


@dataclass(frozen=True)
class MemberNoise(Part):
    """Clips the update Δ to an L2 norm and adds Gaussian noise to it at the member, so that nobody need trust the
    server (McMahan et al. 2018, algorithm 1, with the noise where the data is).

    A record is the whole member: a receiver can hardly distinguish the member's data from any other. Two clipped
    updates are at most 2 · clip apart, so a round is μ-Gaussian differentially private with μ = 2 / sigma and T rounds
    with √T μ. Calling only a sample of the members does not lower ε: the sample is drawn from the run's seed, which the
    server and all members know.

    clip:     norm of an update at most. One that is not finite counts as 0.
    sigma:    the noise of each weight has the standard deviation sigma · clip; 1 where no target is given.
    epsilon, target_rounds: a target instead: the least noise with which so many rounds have this ε. A run of more
              rounds is refused.
    delta:    δ of that ε and of the one that ledgers state.

    Raises:
        ValueError: a value is out of range, or sigma and epsilon are both given, or epsilon without target_rounds.
    """

    clip: float = 1.0
    sigma: float | None = None
    epsilon: float | None = None
    delta: float = 1e-5
    target_rounds: int | None = None

    def __post_init__(self) -> None:
        check_positive(clip=self.clip, sigma=self.sigma, epsilon=self.epsilon, target_rounds=self.target_rounds)
        check_clip(self.clip)
        if not 0 < self.delta < 1:
            raise ValueError(f"delta is {self.delta}; it must lie between 0 and 1, such as 1e-5")
        if self.sigma is not None and self.epsilon is not None:
            raise ValueError(
                f"sigma is {self.sigma} and epsilon {self.epsilon}; give the noise, or the target that it follows from"
            )
        if (self.epsilon is None) != (self.target_rounds is None):
            raise ValueError(
                f"epsilon is {self.epsilon} and target_rounds {self.target_rounds}; give both, the target and for how "
                "many rounds it is, or neither"
            )

    @cached_property
    def multiplier(self) -> float:
        """Sigma, as given or as the target needs it."""
        if self.epsilon is not None and self.target_rounds is not None:
            return 2 * noise_multiplier(self.epsilon, self.delta, self.target_rounds)
        return 1.0 if self.sigma is None else self.sigma

    @property
    def protection(self) -> Protection:
        """As ledgers name it and policies count it, for as many rounds as the target is for."""
        noised = Gaussian(self.multiplier * self.clip, 2 * self.clip, "client", self.delta)
        return Protection((Clipped(self.clip), noised), most_rounds=self.target_rounds)

    def release(self, ctx: Context, update: Tree) -> Tree:
        """Δ · min(1, clip / ‖Δ‖₂) + sigma · clip · N(0, I), the norm over all weights together."""
        return map_leaves(lambda leaf, like: leaf.to(like.dtype), self.noised(ctx, self.clipped(update)), update)

    def noised(self, ctx: Context, tree: Tree) -> Tree:
        """Float64 leaves; every number has noise of standard deviation sigma · clip, drawn from the client's secret."""
        key, deviation = random.fold(ctx.client.secret, "update"), self.multiplier * self.clip

        def with_noise(path: str, leaf: Tensor) -> Tensor:
            return leaf.double() + deviation * noise(random.fold(key, path), tuple(leaf.shape))

        return nest({path: with_noise(path, leaf) for path, leaf in leaves(tree)})

    def clipped(self, update: Tree) -> Tree:
        """The value that noise is added to, float64: of norm at most `clip`, whatever the update.

        Training that diverges only with some data would reveal which data it was, so a diverged update counts as 0.
        """
        wide = map_leaves(lambda leaf: materialize(leaf).double(), update)
        length = norm(wide)
        factor = (self.clip / length.clamp(min=1e-12)).clamp(max=1.0)
        return map_leaves(
            lambda leaf: torch.where(length.isfinite(), leaf, torch.zeros_like(leaf)), scale(wide, factor)
        )

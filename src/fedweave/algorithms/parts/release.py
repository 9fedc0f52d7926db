"""What a client does to its update before it leaves."""

from dataclasses import dataclass

from fedweave.algorithms.parts.context import Context
from fedweave.algorithms.parts.needs import Protection
from fedweave.algorithms.parts.part import Part
from fedweave.core.mechanism import Clipped
from fedweave.core.tree import Tree, norm, scale


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

"""What a client does to its weights before they leave it."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedweave.core.federation import Client
from fedweave.core.mechanism import Clipped, Mechanism
from fedweave.core.tree import Tree, map_leaves


class Release(Protocol):
    """What a client does to its weights before they leave it."""

    @property
    def mechanism(self) -> Mechanism | tuple[Mechanism, ...] | None:
        """What is declared of it."""
        ...

    def apply(self, client: Client, received: Tree, trained: Tree) -> Tree:
        """The weights that leave."""
        ...


@dataclass(frozen=True)
class Plain:
    """The trained weights as they are."""

    mechanism = None

    def apply(self, client: Client, received: Tree, trained: Tree) -> Tree:
        """Unchanged."""
        return trained


@dataclass(frozen=True)
class Clip:
    """The update Δ = w − w_t scaled down to L2 norm `norm` at most, so that no client moves the model further.

    The first half of McMahan et al. 2018, algorithm 1; without noise it gives no privacy guarantee.

    norm: the most that it may be.
    """

    norm: float = 1.0

    def __post_init__(self) -> None:
        if self.norm <= 0:
            raise ValueError(f"norm is {self.norm}; it must be positive")

    @property
    def mechanism(self) -> Clipped:
        """What is declared of it."""
        return Clipped(self.norm)

    def apply(self, client: Client, received: Tree, trained: Tree) -> Tree:
        """w_t + Δ · min(1, norm / ‖Δ‖₂), the norm over all weights together."""
        delta = map_leaves(lambda after, before: after - before, trained, received)
        squares: list[Tensor] = []
        map_leaves(lambda d: squares.append((d**2).sum()), delta)
        scale = (self.norm / torch.stack(squares).sum().sqrt().clamp(min=1e-12)).clamp(max=1.0)
        return map_leaves(lambda before, d: before + scale * d, received, delta)

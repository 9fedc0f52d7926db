"""Where local training starts."""

from dataclasses import dataclass

from fedweave.algorithms.parts.context import Context
from fedweave.algorithms.parts.part import Part
from fedweave.core.tree import Tree, map_leaves


@dataclass(frozen=True)
class MixedStart(Part):
    """Every client starts from α w + (1 − α) w_i, its own last weights w_i mixed with the global ones (a fixed personal
    mix, as FedEgo's fixed λ); at its first call from the global weights.

    alpha: share of the global weights.
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha is {self.alpha}; it must be between 0 and 1")

    def start(self, ctx: Context) -> Tree:
        """The mix."""
        if "w" not in ctx.client.state:
            return ctx.received
        return map_leaves(lambda w, own: self.alpha * w + (1 - self.alpha) * own, ctx.received, ctx.client.state["w"])

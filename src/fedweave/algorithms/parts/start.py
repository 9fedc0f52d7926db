"""Where local training starts, and which of its models a client uses."""

from dataclasses import dataclass

from fedweave.algorithms.parts.context import Context
from fedweave.algorithms.parts.needs import Needs
from fedweave.algorithms.parts.part import Part
from fedweave.core.ranges import check_part
from fedweave.core.tree import Tree, map_leaves


@dataclass(frozen=True)
class TrainedModel(Part):
    """Every client uses, and is evaluated by, the model after its own training, and not the average, as the released
    code of FedEgo (Zhang et al. 2023) evaluates FedAvg and FedProx. Before its first round it uses the received
    model."""

    needs = Needs(judged_apart=True)

    def judged(self, ctx: Context) -> Tree:
        """w_i."""
        return ctx.client.state["w"] if ctx.client.state.get("w") else ctx.received


@dataclass(frozen=True)
class MixedStart(Part):
    """Every client starts from α w + (1 − α) w_i, its own last weights w_i mixed with the global ones (a fixed personal
    mix, as FedEgo's fixed λ); at its first call from the global weights.

    alpha: share of the global weights.
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        check_part(alpha=self.alpha)

    def start(self, ctx: Context) -> Tree:
        """The mix."""
        if "w" not in ctx.client.state:
            return ctx.received
        return map_leaves(lambda w, own: self.alpha * w + (1 - self.alpha) * own, ctx.received, ctx.client.state["w"])

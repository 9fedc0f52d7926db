"""Where local training starts, and which model a client uses."""

from dataclasses import dataclass

from fedweave.algorithms.parts.needs import Needs
from fedweave.algorithms.parts.part import Context, Part
from fedweave.core.bounds import Fraction
from fedweave.core.tree import Tree, map_leaves


@dataclass(frozen=True)
class TrainedModel(Part):
    """Every client uses the model after its own training instead of the average, and the evaluation uses it too. The
    released code of FedEgo (Zhang et al. 2023) evaluates FedAvg and FedProx so. Before its first round a client uses
    the received model."""

    recorded = True
    needs = Needs(personalizes="trained")

    def personalize(self, ctx: Context) -> Tree:
        return ctx.client.state["w"] if ctx.client.state.get("w") else ctx.received


@dataclass(frozen=True)
class MixedStart(Part):
    """Every client starts from α w + (1 − α) w_i, a mix of the global weights w and its own last weights w_i (a fixed
    personal mix, as FedEgo's fixed λ). At its first call it starts from the global weights.

    alpha: share of the global weights.
    """

    alpha: Fraction = 0.5
    recorded = True

    def start(self, ctx: Context) -> Tree:
        if "w" not in ctx.client.state:
            return ctx.received
        return map_leaves(
            lambda w, previous: self.alpha * w + (1 - self.alpha) * previous, ctx.received, ctx.client.state["w"]
        )

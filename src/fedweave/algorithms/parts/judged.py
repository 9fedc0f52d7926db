"""Which of its models a client uses."""

from dataclasses import dataclass

from fedweave.algorithms.parts.context import Context
from fedweave.algorithms.parts.needs import Needs
from fedweave.algorithms.parts.part import Part
from fedweave.core.tree import Tree


@dataclass(frozen=True)
class TrainedModel(Part):
    """Every client uses, and is evaluated by, the model after its own training, and not the average, as the released
    code of FedEgo (Zhang et al. 2023) evaluates FedAvg and FedProx. Before its first round it uses the received
    model."""

    needs = Needs(judged_apart=True)

    def judged(self, ctx: Context) -> Tree:
        """w_i."""
        return ctx.client.state["w"] if ctx.client.state.get("w") else ctx.received

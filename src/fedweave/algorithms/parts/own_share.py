"""Which model each client uses, by its own validation examples: the joint one, its own, or the mean of both, whose
weights lie between two models as in Wortsman et al. 2022, "Robust fine-tuning of zero-shot models", equation 1.

Deviation: the fine-tuned model is the client's after its last local training.
"""

from dataclasses import dataclass

import torch

from fedweave.algorithms.apfl import mix_weights
from fedweave.algorithms.parts.needs import Needs
from fedweave.algorithms.parts.part import Context, Part
from fedweave.algorithms.scoring import on_validation
from fedweave.core.tree import Tree, map_leaves
from fedweave.learn import keep_trained


@dataclass(frozen=True)
class OwnShare(Part):
    """Every client uses the best of three models on its own validation examples: the joint model, its own after its
    last training, or the mean of both.

    Best is the highest AUC of two classes or several labels, otherwise the lowest loss. A client without training or
    validation examples uses the joint model. Which one a client uses stays at home; its scores are sent as ever.

    alone: whether a client also trains a fourth model, on its own examples only, by as many steps again.
    """

    alone: bool = False
    recorded = True
    needs = Needs(personalizes="personal")

    @property
    def tries(self) -> int:
        """Models that an evaluation tries at a client."""
        return 4 if self.alone else 3

    def report(self, ctx: Context) -> Tree:
        if self.alone:
            ctx.keep(ctx.train_beside(ctx.memory.get("v", ctx.received), "alone"))
        return {}

    def personalize(self, ctx: Context) -> Tree:
        own, model, graph = ctx.client.state.get("w"), ctx.training.model, ctx.client.graph
        if not own:
            return ctx.received
        models = [ctx.received, mix_weights(0.5, own, ctx.received), own]
        if self.alone:
            models.append(ctx.memory["v"])
        best = torch.stack([on_validation(model, w, graph) for w in models]).argmax(0)  # the first of equally good ones
        chosen = map_leaves(lambda *leaves: torch.stack(leaves)[best], *models)
        return keep_trained(ctx.examples > 0, chosen, ctx.received)

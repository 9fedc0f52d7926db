"""Which mix of the joint model and its own each client uses: weights between two models as in Wortsman et al. 2022,
"Robust fine-tuning of zero-shot models", equation 1, with the share that is best on the client's validation examples.

Deviation: the fine-tuned model is the client's after its last local training.
"""

from dataclasses import dataclass

import torch

from fedweave.algorithms.apfl import mix_weights
from fedweave.algorithms.parts.needs import Needs
from fedweave.algorithms.parts.part import Context, Part
from fedweave.algorithms.scoring import on_validation
from fedweave.core.tree import Tree, map_leaves


@dataclass(frozen=True)
class OwnShare(Part):
    """Every client uses a w_i + (1 − a) w, a mix of its model after its last training w_i and the joint model w, where
    the share a is 0, ½ or 1: the one that is best on its own validation examples, by the AUC of two classes or several
    labels, otherwise by the loss.

    Neither a nor w_i leaves the client. Without validation examples, and before its first training, it uses w.
    """

    recorded = True
    needs = Needs(personalizes="personal")
    tries = 3  # models, in each evaluation

    def personalize(self, ctx: Context) -> Tree:
        own, model, graph = ctx.client.state.get("w"), ctx.training.model, ctx.client.graph
        if not own:
            return ctx.received
        mixes = [ctx.received, mix_weights(torch.tensor(0.5), own, ctx.received), own]
        best = torch.stack([on_validation(model, w, graph) for w in mixes]).argmax(0)  # the first of equally good ones
        return map_leaves(lambda *leaves: torch.stack(leaves)[best], *mixes)

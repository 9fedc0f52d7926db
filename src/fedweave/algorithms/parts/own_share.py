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

SHARES = (0.0, 0.5, 1.0)  # of the own model in the mix, in the order in which equally good ones are preferred


@dataclass(frozen=True)
class OwnShare(Part):
    """Every client uses a w_i + (1 − a) w, a mix of its model after its last training w_i and the joint model w, where
    the share a is 0, ½ or 1: the one that is best on its own validation examples, by the AUC of two classes or several
    labels, otherwise by the loss.

    Neither a nor w_i leaves the client. Without validation examples, and before its first training, it uses w.
    """

    recorded = True
    needs = Needs(personalizes="personal")
    tries = len(SHARES)  # models that each evaluation tries at a client

    def personalize(self, ctx: Context) -> Tree:
        own, model, graph = ctx.client.state.get("w"), ctx.training.model, ctx.client.graph
        if not own:
            return ctx.received
        mixes = [mix_weights(torch.tensor(share), own, ctx.received) for share in SHARES]
        worth = torch.stack([on_validation(model, w, graph) for w in mixes])
        best = worth.nan_to_num(-torch.inf).argmax(0)
        return map_leaves(lambda *leaves: torch.stack(leaves)[best], *mixes)

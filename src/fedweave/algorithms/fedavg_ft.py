"""FedAvg with fine-tuning: Yu, Bagdasaryan and Shmatikov 2020, "Salvaging federated learning by local adaptation", its
first way, a reference for what is called personal.

The evaluation uses models after a few more steps on the client's own training examples; clients neither keep nor send
these steps. Deviation: full batches, as in the local training.
"""

from dataclasses import dataclass

from fedweave.algorithms.parts import Context, Needs, Part
from fedweave.algorithms.preset import preset_of
from fedweave.core import random
from fedweave.core.bounds import StepsOrNone
from fedweave.core.tree import Tree
from fedweave.learn import keep_trained


@dataclass(frozen=True)
class FineTuned(Part):
    """Every client uses the received model after a few steps of local training, also in the evaluation, and then
    discards these steps.

    tune_steps: steps of the fine-tuning; 0 uses the received model.
    """

    tune_steps: StepsOrNone = 5
    recorded = True
    needs = Needs(personalizes="tuned")

    def personalize(self, ctx: Context) -> Tree:
        if not self.tune_steps:
            return ctx.received
        key = random.fold(ctx.client.key, "tune")
        w = ctx.objective.fit(ctx.received, ctx.client, key, ctx.sent, steps=self.tune_steps).w
        return keep_trained(ctx.examples > 0, w, ctx.received)


@preset_of(FineTuned)
class FedAvgFT:
    """FedAvg whose clients fine-tune the global model for their own use."""

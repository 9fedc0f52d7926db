"""FedRep: Collins et al. 2021, "Exploiting shared representations for personalized federated learning", algorithm 1.

In a round a client first fits its head to the received body, and then takes a few steps on the body with that head.
Deviations: full batches; heads start in common; a client without training examples is left out of the mean; the
evaluation uses the head that the client trained last, without further training.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedweave.algorithms.fedper import OwnHead
from fedweave.algorithms.parts import Context, UniformTrained
from fedweave.algorithms.preset import preset_of
from fedweave.core import random
from fedweave.core.bounds import StepsOrNone
from fedweave.core.tree import Tree, leaves, nest
from fedweave.learn import Fit


@dataclass(frozen=True)
class HeadThenBody(OwnHead):
    """The last layer's weights stay at their client. It trains them for `head_steps` with the others fixed, and then
    the others, for `local_steps`, with these fixed.

    head_steps: τ_h, steps on the head in a round; 0 leaves heads as they start.
    """

    head_steps: StepsOrNone = 10
    recorded = True

    def train(self, ctx: Context) -> Fit:
        body = ctx.shared(ctx.start)
        paths = {path for path, _ in leaves(body)}
        head = nest({path: leaf for path, leaf in leaves(ctx.start) if path not in paths})
        client, inputs, state = ctx.client, ctx.sent, ctx.optimizer_state or {}
        memory: Tree = {}
        if self.head_steps:
            key, steps = random.fold(client.key, "head"), self.head_steps
            head, _, optimizer = ctx.objective.fit(
                head, client, key, inputs, ctx.received, state.get("head"), steps=steps, within=body
            )
            memory = {"head": optimizer}
        body, loss, optimizer = ctx.objective.fit(
            body, client, client.key, inputs, ctx.received, state.get("body"), within=head
        )
        trained = dict(leaves(body)) | dict(leaves(head))
        return Fit(nest({path: trained[path] for path, _ in leaves(ctx.start)}), loss, memory | {"body": optimizer})


@preset_of(HeadThenBody, UniformTrained)
class FedRep:
    """FedAvg of a body; every client fits its own head to the body before it trains the body.

    local_steps: τ_b, steps on the body in a round.
    """

    local_steps: int = 3

    exempt_laws: ClassVar[dict[str, str]] = {"one_client_is_ordinary_training": "the head trains before the body"}

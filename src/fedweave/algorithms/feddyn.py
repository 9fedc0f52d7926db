"""FedDyn: Acar et al. 2021, "Federated learning based on dynamic regularization", algorithm 1.

A client's gradient g_i and the server's h are sums of updates, g_i = −α Σ Δ_i and h = −(α/N) Σ_t Σ_S Δ_i, and are kept
as these sums: nothing but updates is sent. Deviations: local problems are solved by a fixed number of steps, without
the released code's clipping of gradients at norm 10; a client without training examples is left out of means; these are
plain, without the released code's weights of α by size.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedweave.algorithms.parts import Context, LocalSteps, Needs, OptimizerName, Part, Round, UniformTrained
from fedweave.algorithms.preset import preset_of
from fedweave.core.bounds import Positive
from fedweave.core.federation import Federation
from fedweave.core.tree import Tree, add, map_leaves, scale, squared_distance, sub


@dataclass(frozen=True)
class DynamicRegularisation(Part):
    """Clients train on F_i(v) − ⟨g_i, v⟩ + α/2 ‖v − w_t‖², that is F_i(v) + α/2 ‖d_i + v − w_t‖² with d_i the sum of
    the client's updates so far, and the server also moves by what all clients have drifted: w ← w + Δ + (1/N) Σ d_i.

    alpha: α, the strength; the smaller, the further the server moves where clients take few steps.
    """

    alpha: Positive = 0.1
    recorded = True

    @property
    def needs(self) -> Needs:
        return Needs(models=("global",), steps=LocalSteps(pull=self.alpha))

    def init(self, fed: Federation, w: Tree) -> Tree:
        """Σ d_i / N = 0, and the number of clients."""
        return {"drift": map_leaves(torch.zeros_like, w), "clients": len(fed.clients)}

    def recall(self, ctx: Context) -> Tree:
        return {"target": sub(ctx.shared(ctx.received), self._drift(ctx))}

    def penalty(self, w: Tree, received: Tree, inputs: Tree) -> torch.Tensor:
        """α/2 ‖d_i + w − w_t‖²."""
        return 0.5 * self.alpha * squared_distance(inputs["target"], w)

    def report(self, ctx: Context) -> Tree:
        """Nothing; d_i ← d_i + Δ_i, the update as it was sent."""
        ctx.keep_with_steps({"drift": add(self._drift(ctx), ctx.released)})
        return {}

    def _drift(self, ctx: Context) -> Tree:
        return ctx.memory_or_zeros("drift", like=ctx.shared(ctx.received))

    def update(self, state: Tree, round: Round) -> Tree:
        """Σ d_i / N, grown by (1/N) Σ_S Δ_i, of the clients that train."""
        share = round.counting.double() / state["clients"]
        return state | {"drift": add(state["drift"], scale(round.delta, share))}

    def step(self, state: Tree, w: Tree, delta: Tree) -> tuple[Tree, Tree]:
        return add(add(w, delta), state["drift"]), state


@preset_of(DynamicRegularisation, UniformTrained)
class FedDyn:
    """FedAvg whose clients' objectives are bent so that all have the joint optimum.

    optimizer: optimizer of the local training.
    lr:        learning rate of the local training.
    """

    optimizer: OptimizerName = "sgd"
    lr: float = 0.03

    exempt_laws: ClassVar[dict[str, str]] = {
        "one_client_is_ordinary_training": "the server goes on by what clients have drifted"
    }

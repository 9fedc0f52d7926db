"""FedProx: Li et al. 2020, "Federated optimization in heterogeneous networks", algorithm 2.

Deviations: the local problem is solved by a fixed number of steps rather than to a given inexactness γ.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedweave.algorithms.parts import Context, LocalSteps, Needs, Part, Round
from fedweave.algorithms.preset import preset_of
from fedweave.core.bounds import NonNegative
from fedweave.core.federation import Federation, Sends
from fedweave.core.ranges import Real
from fedweave.core.tree import Tree, squared_distance


@dataclass(frozen=True)
class Proximal(Part):
    """FedProx's term μ/2 ‖w − w_t‖² (Li et al. 2020, eq. 2).

    mu:       μ, strength of the pull to the received weights.
    adaptive: `mu` is only the first μ: it is multiplied by ten when the mean training loss rose since the last round,
        divided by ten when it fell, and kept within [.001, 1]. FedEgo (section 5.2) names the grid {.001, .01, .1, 1}
        and "the fluctuation of the loss"; the last round's loss as threshold is our reading.
    """

    mu: NonNegative = 0.01
    adaptive: bool = False
    client_learns = "how strongly training is pulled to the received weights"

    @property
    def recorded(self) -> bool:
        return not self.adaptive  # `update` branches on the loss, which a recorded round cannot

    @property
    def needs(self) -> Needs:
        """Several local steps: at the received weights, where the first begins, the term has no gradient."""
        return Needs(steps=LocalSteps(several="the penalty has a gradient; this is FedAvg's training", pull=self.mu))

    @property
    def sends(self) -> Mapping[str, Sends | str]:  # type: ignore[override]
        return {"loss": Sends("mean training loss before the last local step", within=Real())} if self.adaptive else {}

    def init(self, fed: Federation, w: Tree) -> Tree:
        """μ as a tensor, because each new Python number would be a new computation to record."""
        return {"mu": torch.tensor(self.mu, dtype=torch.float64, device=fed.device)}

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, Tree]:
        return {"mu": state["mu"]}, {}

    def penalty(self, w: Tree, received: Tree, inputs: Tree) -> Tensor:
        """μ/2 ‖w − w_t‖²."""
        result: Tensor = 0.5 * inputs["mu"] * squared_distance(w, received)
        return result

    def report(self, ctx: Context) -> Tree:
        return {"loss": ctx.last_loss} if self.adaptive else {}

    def update(self, state: Tree, round: Round) -> Tree:
        """Adaptive: μ for the next round, and the loss to compare its loss with; μ is unchanged after the first."""
        if not self.adaptive:
            return state
        loss, last = round.mean("loss"), state.get("loss", math.nan)
        if loss == last or math.isnan(last):
            return state | {"loss": loss}
        return {"mu": (state["mu"] * (10.0 if loss > last else 0.1)).clamp(0.001, 1.0), "loss": loss}


@preset_of(Proximal)
class FedProx:
    """FedAvg whose local objective has the proximal term μ/2 ‖w − w_t‖² added. With one local step it is FedAvg: the
    term's gradient is 0 where training starts."""

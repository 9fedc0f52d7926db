"""Ditto: Li et al. 2021, "Ditto: fair and robust federated learning through personalization", algorithm 1.

Deviations: the personal model takes the same number of steps per round as the global one, and starts from the first
weights that the client receives.
"""

from dataclasses import dataclass

from torch import Tensor

from fedweave.algorithms.parts import Context, LocalSteps, Needs, Part
from fedweave.algorithms.preset import preset_of
from fedweave.core.bounds import NonNegative
from fedweave.core.tree import Tree, squared_distance


@dataclass(frozen=True)
class PersonalModel(Part):
    """Every client also trains a personal model, v_i ← v_i − lr (∇F_i(v_i) + λ (v_i − w_t)), and uses it.

    lam: λ, the pull to the received weights; 0 is local training.
    """

    lam: NonNegative = 1.0
    recorded = True

    @property
    def needs(self) -> Needs:
        return Needs(steps=LocalSteps(pull=self.lam))

    def report(self, ctx: Context) -> Tree:
        ctx.keep(ctx.train_beside(self.personalize(ctx), "personal", anchor=ctx.received, penalty=self._pull))
        return {}

    def _pull(self, v: Tree, received: Tree, args: Tree) -> Tensor:
        """λ/2 ‖v − w_t‖² (eq. 2)."""
        return 0.5 * self.lam * squared_distance(v, received)

    def personalize(self, ctx: Context) -> Tree:
        return ctx.memory["v"] if ctx.memory else ctx.received


@preset_of(PersonalModel)
class Ditto:
    """FedAvg whose clients also train personal models, which a penalty pulls to the global one."""

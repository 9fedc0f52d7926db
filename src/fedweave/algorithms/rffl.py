"""RFFL: Xu and Lyu 2021, "A reputation mechanism is all you need: collaborative fairness and adversarial robustness in
federated learning".

FairGraphFL compares with it under the name CFFL. Deviations: values begin at 1 / N, and one below 0 counts as 0. If not
all clients are called, those called divide the sum of their earlier values among them.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.algorithms.cgsv import MIN_DIVISOR, SparseUpdates
from fedweave.algorithms.parts import Clip, Part, Round
from fedweave.algorithms.preset import part_of, preset_of
from fedweave.core.bounds import CountOrNone, Fraction
from fedweave.core.federation import Federation
from fedweave.core.tree import Tree


@dataclass(frozen=True)
class Reputation(Part):
    """Values r_i ← α r_i + (1 − α) cos(u_i, u_N), at least 0, normalized to sum 1, u_N = Σ r_i u_i. After `wait` rounds
    a client below 1 / (3 |R|) is excluded for good, and its updates count 0; R are the remaining clients.

    alpha: share of the last values in the new ones.
    wait:  rounds in which no client is excluded.
    """

    alpha: Fraction = 0.95
    wait: CountOrNone = 10
    recorded = True

    def init(self, fed: Federation, w: Tree) -> Tree:
        count = len(fed.clients)
        r = torch.full((count,), 1 / count, dtype=torch.float64, device=fed.device)
        return {"r": r, "inside": torch.ones_like(r, dtype=torch.bool), "round": torch.zeros_like(r[0]).long()}

    def weigh(self, state: Tree, round: Round) -> Tensor:
        """r of the round's clients, normalized; where its sum is 0, equal for the remaining clients."""
        r, inside = state["r"][round.at], state["inside"][round.at].double()
        return torch.where(r.sum() > 0, r / r.sum(), inside / inside.sum().clamp(min=1))

    def value(self, state: Tree, round: Round) -> Tensor:
        """r of the round's clients after it; 0 for excluded clients."""
        inside: Tensor = state["inside"][round.at]
        last: Tensor = state["r"][round.at]
        phi = F.cosine_similarity(round.updates, (round.weights @ round.updates)[None], eps=1e-30)
        r = torch.where(inside, (self.alpha * last + (1 - self.alpha) * phi).clamp(min=0), 0)
        falls = (r / r.sum() < 1 / (3 * inside.sum())) & self._drops(state)
        remain = torch.where(falls, 0, r)
        return torch.where(r.sum() > 0, remain / remain.sum() * last.sum(), last)

    def update(self, state: Tree, round: Round) -> Tree:
        inside = torch.where(self._drops(state), round.value > 0, state["inside"][round.at])
        return {
            "r": state["r"].index_copy(0, round.at, round.value),
            "inside": state["inside"].index_copy(0, round.at, inside),
            "round": state["round"] + 1,
        }

    def _drops(self, state: Tree) -> Tensor:
        """Whether clients can be dropped in the round, bool scalar."""
        return torch.as_tensor(state["round"] >= self.wait, device=state["r"].device)

    def measures(self, state: Tree) -> dict[str, Tensor]:
        """{"value": r, "inside": 1 until the client is dropped}."""
        return {"value": state["r"], "inside": state["inside"].double()}


@dataclass(frozen=True)
class ReputationReward(SparseUpdates):
    """Client i gets the min(⌈q_i n⌉, n − 1) entries of largest magnitude of every tensor of u_N, with q_i = r_i / max_j
    r_j. It adds them to the weights that it trained, so its own update stays."""

    recorded = True

    def quota(self, round: Round) -> Tensor:
        result: Tensor = round.value / round.value.max().clamp(min=MIN_DIVISOR)
        return result


@preset_of(Reputation, ReputationReward)
class RFFL:
    """Clients get as much of the joint update as their reputation earns, and those without one are dropped.

    gamma: Γ, largest norm of the updates that clients send.
    """

    gamma: float = 0.5

    exempt_laws: ClassVar[dict[str, str]] = {
        "one_client_is_ordinary_training": "clients get a reward on top of what they trained"
    }

    def parts(self) -> tuple[Part, ...]:
        return Clip(self.gamma), part_of(self, Reputation), ReputationReward()

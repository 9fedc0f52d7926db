"""CGSV: Xu et al. 2021, "Gradient driven rewards to guarantee fairness in collaborative machine learning", algorithm 1.

Deviations: a client's values r_i start at 0, so that the first round's values are only its alignment. If a round calls
only some clients, these divide the sum of their earlier values among them, and a client without a value counts 1 / N. A
client that misses a round earns nothing in it, and gets its earlier reward when it is called again.

DW and EU are baselines of FairGraphFL's paper that differ only in the values: clients' sizes, and the distance of
updates to the joint one. The paper describes EU in one sentence; 1 / (1 + ‖u_i − u_N‖) is our reading of it.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.algorithms.parts import Context, Needs, Normalised, Part, Round
from fedweave.algorithms.parts.weights import BySize, ReportsExamples, by_size
from fedweave.algorithms.preset import preset_of
from fedweave.core.bounds import Fraction, NonNegative, Positive
from fedweave.core.federation import Federation
from fedweave.core.tree import Tree, leaves, map_leaves, nest
from fedweave.incentives.agent_values import reward
from fedweave.ops.sparsified import Sparsified


class OwedReward(Part):
    """Clients get entries of the joint update as rewards. The server keeps a client's last reward until it is called
    again, so that a client that misses a round loses none."""

    needs = Needs(decided=("value",), statistics="none")
    client_learns = "its reward: the largest entries of the joint update, in the number that it has earned"

    def init(self, fed: Federation, w: Tree) -> Tree:
        """{"owed": leaves [N, …] like w}, all 0."""
        return {"owed": map_leaves(lambda leaf: leaf.new_zeros(len(fed.clients), *leaf.shape), w)}

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, ...]:
        return {}, {}, map_leaves(lambda owed: Sparsified(owed[at]), state["owed"])


def add_reward(ctx: Context, base: Tree) -> Tree:
    """The client's weights: `base` plus the reward in the message; leaves that are not shared are its own."""
    before, w = dict(leaves(base)), dict(leaves(ctx.local_weights))
    for path, entries in leaves(ctx.message["w"]):
        w[path] = before[path] + entries
    return nest(w)


MIN_DIVISOR = 1e-300  # replaces a divisor of 0


@dataclass(frozen=True)
class CosineValue(ReportsExamples):
    """Values r_i ← α r_i + (1 − α) cos(u_i, u_N), at least `minimum`, normalized to sum 1; u_N = Σ r_i u_i with the
    values before the round, by number of examples in the first (eqs. 2-4).

    alpha: share of the last values in the new ones.
    minimum: the smallest value.
    """

    alpha: Fraction = 0.95
    minimum: NonNegative = 1e-3
    recorded = True

    def init(self, fed: Federation, w: Tree) -> Tree:
        return {"r": torch.zeros(len(fed.clients), dtype=torch.float64, device=fed.device)}

    def weigh(self, state: Tree, round: Round) -> Tensor:
        """r, or by size in the first round."""
        r = self._values(state)[round.at]
        return torch.where(state["r"][round.at].any(), r / r.sum(), by_size(round))

    def value(self, state: Tree, round: Round) -> Tensor:
        phi = self.similarity(round.updates, round.weights @ round.updates)
        r: Tensor = (self.alpha * state["r"][round.at] + (1 - self.alpha) * phi).clamp(min=self.minimum)
        return r / r.sum() * self._values(state)[round.at].sum()

    def _values(self, state: Tree) -> Tensor:
        """r, 1 / N for clients without a value: these sum to 1."""
        return torch.where(state["r"] > 0, state["r"], 1 / len(state["r"]))

    def similarity(self, updates: Tensor, whole: Tensor) -> Tensor:
        """The similarity [P] of the `updates` [P, D] to the joint one, `whole` [D]."""
        return F.cosine_similarity(updates, whole[None], eps=1e-30)

    def update(self, state: Tree, round: Round) -> Tree:
        return {"r": state["r"].index_copy(0, round.at, round.value)}

    def measures(self, state: Tree) -> dict[str, Tensor]:
        return {"value": state["r"]}


class SparseUpdates(OwedReward):
    """Client i gets the min(⌈q_i n⌉, n − 1) entries of largest magnitude of every tensor of the joint update u_N. The
    server keeps a global model, which gets all of u_N."""

    def init(self, fed: Federation, w: Tree) -> Tree:
        return super().init(fed, w) | {"q": torch.zeros(len(fed.clients), dtype=torch.float64, device=fed.device)}

    def reward_entries(self, round: Round, quota: Tensor) -> Tree:
        """The rewards of the round's clients, leaves [P, …]."""
        return map_leaves(lambda u: largest(u, quota), round.delta)

    def quota(self, round: Round) -> Tensor:
        """q of the round's clients, float64 [P] in [0, 1]."""
        raise NotImplementedError

    def receive(self, ctx: Context) -> Tree:
        """The weights that the client trained, its own update among them, and the reward."""
        return add_reward(ctx, ctx.local_weights)

    def update(self, state: Tree, round: Round) -> Tree:
        """Quotas and rewards after a round; clients that were not called keep their reward."""
        quota = self.quota(round)
        owed = map_leaves(
            lambda owed, new: owed.index_copy(0, round.at, new), state["owed"], self.reward_entries(round, quota)
        )
        return {"owed": owed, "q": torch.zeros_like(state["q"]).index_copy(0, round.at, quota)}

    def measures(self, state: Tree) -> dict[str, Tensor]:
        """{"quota": q, the share of u_N that each client earned in the round}."""
        return {"quota": state["q"]}


@dataclass(frozen=True)
class SparseReward(SparseUpdates):
    """Client i gets the min(⌈q_i n⌉, n − 1) entries of largest magnitude of every tensor of u_N, with q_i = tanh(β r_i)
    / max_j tanh(β r_j). It adds them to the weights that it trained from, and discards its own update (eq. 5).

    beta: β, how evenly rewards are spread; the larger, the more equal.
    """

    beta: Positive = 1.0
    recorded = True

    def quota(self, round: Round) -> Tensor:
        q = torch.tanh(self.beta * round.value)
        return q / q.max().clamp(min=MIN_DIVISOR)

    def receive(self, ctx: Context) -> Tree:
        return add_reward(ctx, ctx.memory["w"] if ctx.memory else ctx.first)

    def report(self, ctx: Context) -> Tree:
        """Keep the weights that training started from; sends nothing."""
        ctx.keep({"w": ctx.received})
        return {}


def largest(u: Tensor, quota: Tensor) -> Tensor:
    """[P, *u.shape]: the min(⌈quota_i n⌉, n − 1) entries of largest magnitude of u's n entries, 0 elsewhere; quota
    [P]."""
    n = u.numel()
    keep = torch.ceil(quota * n).long().clamp(max=n - 1)
    result: Tensor = reward(u.flatten(), keep).unflatten(1, u.shape)
    return result


@preset_of(Normalised, CosineValue, SparseReward, without=("minimum",))
class CGSV:
    """Every client gets a share of the joint update that grows with the alignment of its own update."""

    exempt_laws: ClassVar[dict[str, str]] = {
        "one_client_is_ordinary_training": "clients get a reward from normalized updates"
    }


@dataclass(frozen=True)
class SizeValue(BySize):
    """Values r_i = n_i / Σ n_k, which weigh the updates too."""

    recorded = True

    def init(self, fed: Federation, w: Tree) -> Tree:
        return {"r": torch.zeros(len(fed.clients), dtype=torch.float64, device=fed.device)}

    def value(self, state: Tree, round: Round) -> Tensor:
        return by_size(round)

    def update(self, state: Tree, round: Round) -> Tree:
        """The values of the round's clients; 0 for the others."""
        return {"r": torch.zeros_like(state["r"]).index_copy(0, round.at, round.value.double())}

    def measures(self, state: Tree) -> dict[str, Tensor]:
        return {"value": state["r"]}


@preset_of(Normalised, SizeValue, SparseReward)
class DW:
    """CGSV with a client's share of the training examples as its value."""

    exempt_laws: ClassVar[dict[str, str]] = {
        "one_client_is_ordinary_training": "clients get a reward from normalized updates"
    }


@dataclass(frozen=True)
class EuclideanValue(CosineValue):
    """Values r_i ← α r_i + (1 − α) / (1 + ‖u_i − u_N‖₂), at least `minimum`, normalized to sum 1; u_N as in
    `CosineValue`.

    alpha: share of the last values in the new ones.
    minimum: the smallest value.
    """

    recorded = True

    def similarity(self, updates: Tensor, whole: Tensor) -> Tensor:
        """1 / (1 + the distance), [P]; 0 for an update of 0, which would be near a short joint update."""
        return torch.where(updates.any(1), 1 / (1 + (updates - whole).norm(dim=1)), 0.0)


@preset_of(Normalised, EuclideanValue, SparseReward, without=("minimum",))
class EU:
    """CGSV with the distance of updates to the joint one instead of their angle."""

    exempt_laws: ClassVar[dict[str, str]] = {
        "one_client_is_ordinary_training": "clients get a reward from normalized updates"
    }

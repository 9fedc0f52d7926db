"""CFFL: Lyu et al. 2020, "Collaborative fairness in federated learning".

A client's value is what its update does for the server's model on examples that the server holds. Deviations: updates
are weighted by number of examples; the server's model starts where the clients' do. If not all clients are called,
those called divide the sum of their earlier values among them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from fedweave.algorithms.cgsv import MIN_DIVISOR, SparseUpdates
from fedweave.algorithms.parts import Needs, Round
from fedweave.algorithms.parts.weights import ReportsExamples
from fedweave.algorithms.preset import preset_of
from fedweave.core import model as models
from fedweave.core.bounds import Positive
from fedweave.core.federation import Federation
from fedweave.core.tree import Tree, leaves, nest
from fedweave.errors import ConfigError


@dataclass(frozen=True)
class Credibility(ReportsExamples):
    """Values c_i ← sinh(a (.2 c_i + .8 v_i / Σ v_j)), normalized to sum 1, where v_i is the accuracy of its model plus
    Δ_i on the server's validation examples. A client below (2/3) / |R| is excluded for good; R are the remaining
    clients.

    a: a, how much more the better members are worth.
    """

    a: Positive = 5.0
    recorded = True
    rounds_vary = True
    needs = Needs(data=("classes",), models=("whole",))

    def init(self, fed: Federation, w: Tree) -> Tree:
        """Equal values.

        Raises:
            ConfigError: the server holds nothing to validate on.
        """
        if "validation" not in fed.held:
            raise ConfigError(
                "CFFL judges updates on validation examples of the server, which has none; set partition.server_val "
                "(of the partition graphs_iid), or take rffl, which needs none.",
                code="config.server-val",
            )
        count = len(fed.clients)
        c = torch.full((count,), 1 / count, dtype=torch.float64, device=fed.device)
        return {"c": c, "inside": torch.ones_like(c, dtype=torch.bool)}

    def weigh(self, state: Tree, round: Round) -> Tensor:
        """n_i / Σ n_k over the remaining clients, 0 for the others."""
        n: Tensor = round.replies.stack("n") * state["inside"][round.at].double()
        return n / n.sum().clamp(min=1)

    def value(self, state: Tree, round: Round) -> Tensor:
        """c of the round's clients after it; 0 for excluded clients."""
        graph, inside = round.held["validation"], state["inside"][round.at]
        labeled = (graph.y >= 0).double()

        def accuracy(w: Tree) -> Tensor:
            hits = models.infer(round.model, w, graph).argmax(1) == graph.y
            result: Tensor = (hits * labeled).sum() / labeled.sum()
            return result

        last: Tensor = state["c"][round.at]
        v = torch.where(inside, vmap(accuracy, chunk_size=32)(round.trained), 0)
        whole = last.sum().clamp(min=MIN_DIVISOR)  # the sum of the called clients' values, so that all values sum to 1
        c = torch.sinh(self.a * (0.2 * last / whole + 0.8 * v / v.sum().clamp(min=1e-12))) * inside
        if c.sum() <= 0:
            return last
        c = torch.where(c / c.sum() < 2 / (3 * inside.sum()), 0, c)
        return c / c.sum() * whole

    def update(self, state: Tree, round: Round) -> Tree:
        return {
            "c": state["c"].index_copy(0, round.at, round.value),
            "inside": state["inside"].index_copy(0, round.at, round.value > 0),
        }

    def measures(self, state: Tree) -> dict[str, Tensor]:
        """{"value": c, "inside": 1 until the client is dropped}."""
        return {"value": state["c"], "inside": state["inside"].double()}


@dataclass(frozen=True)
class CredibilityReward(ReportsExamples, SparseUpdates):
    """Client i gets the min(⌈q_i n⌉, n − 1) entries of largest magnitude of every tensor of u_N, minus its own share of
    them, with q_i = c_i / max_j c_j · n_i / max_j n_j. It adds them to the weights that it trained."""

    recorded = True

    def quota(self, round: Round) -> Tensor:
        n = round.replies.stack("n").double()
        result: Tensor = round.value / round.value.max().clamp(min=MIN_DIVISOR) * n / n.max().clamp(min=1)
        return result

    def reward_entries(self, round: Round, quota: Tensor) -> Tree:
        """The entries without the client's own share, leaves [P, …]."""

        rewards = Tree()
        for path, entries in leaves(super().reward_entries(round, quota)):
            update = round.update(path)  # [P, …]
            share = round.weights.to(update.dtype).view(-1, *[1] * (update.dim() - 1)) * update
            rewards[path] = torch.where(entries != 0, entries - share, 0)
        return nest(rewards)


@preset_of(Credibility, CredibilityReward)
class CFFL:
    """Clients get as much of the others' joint update as theirs is worth on the server's validation examples."""

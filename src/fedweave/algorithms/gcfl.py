"""GCFL and GCFL+: Xie et al. 2021, "Federated graph classification over non-IID graphs".

Clients begin as one cluster. A cluster whose updates cancel out while single updates are still large is cut in two, and
from then on each half learns its own model.

Deviations: norms and cosines use the shared weights. GCFL+ takes the norm of the gradient at the trained weights, on
one mini-batch if clients train on mini-batches; the authors' code takes the last mini-batch's gradient before its step.
A client that misses a round keeps its model until the next.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedweave.algorithms.parts import Context, Needs, Round
from fedweave.algorithms.parts.weights import EXAMPLES, ReportsExamples
from fedweave.algorithms.preset import preset_of
from fedweave.core import random
from fedweave.core.bounds import CountOrNone, NonNegative
from fedweave.core.federation import Federation, Sends
from fedweave.core.ranges import Real
from fedweave.core.tree import Tree, norm
from fedweave.core.types import Record

_MAX_ROUNDS = 10_000  # of a series; every client has a series of this length in memory


@dataclass(frozen=True)
class Clusters(ReportsExamples):
    """Every cluster C has a model, the mean of its clients' by number of examples; C is cut in two by a minimum cut of
    the cosines of its updates plus 1 when ‖mean Δ_i‖ < eps1, max ‖Δ_i‖ > eps2 and |C| > 2 (eqs. 2-3).

    eps1:  a cluster is cut in two only if its mean update is shorter than this.
    eps2:  a cluster is cut in two only if its longest update is longer than this.
    wait:  rounds before the first cluster is cut in two.
    """

    eps1: NonNegative = 0.03
    eps2: NonNegative = 0.06
    wait: CountOrNone = 20
    needs = Needs(models=("personal",))

    def init(self, fed: Federation, w: Tree) -> Tree:
        return {"round": 0, "cluster": torch.zeros(len(fed.clients), dtype=torch.int64, device=fed.device)}

    def weigh(self, state: Tree, round: Round) -> Tensor:
        """n_j / Σ n_k over the client's cluster, after this round's cuts; 0 outside of it."""
        cluster = round.once(self, lambda: self._cut(state, round))[round.at]
        n = round.replies.stack("n").double()
        within = (cluster[:, None] == cluster).double()
        n = torch.where((within @ n > 0)[:, None], within * n, within)  # equal where a cluster has no training example
        return n / n.sum(1, keepdim=True)

    def update(self, state: Tree, round: Round) -> Tree:
        return state | {"round": state["round"] + 1, "cluster": round.once(self, lambda: self._cut(state, round))}

    def measures(self, state: Tree) -> dict[str, Tensor]:
        return {"cluster": state["cluster"].double()}

    def _cut(self, state: Tree, round: Round) -> Tensor:
        """The number of every client's cluster, int64 [N], after this round's cuts."""
        cluster: Tensor = state["cluster"].clone()
        if state["round"] < self.wait:
            return cluster
        numbers = cluster[round.at]
        groups, cuts = [], []  # rows of each cluster's clients, and whether it is to be cut
        for number in sorted(set(numbers.tolist())):
            rows = (numbers == number).nonzero()[:, 0]
            if len(rows) > 2:
                updates = round.updates[rows]  # [C, D]
                groups.append(rows)
                cuts.append((updates.mean(0).norm() < self.eps1) & (updates.norm(dim=1).max() > self.eps2))
        decisions = torch.stack(cuts).tolist() if cuts else []  # waits for a device once
        for rows, cut in zip(groups, decisions, strict=True):
            if cut:
                updates = round.updates[rows]
                side = smaller_side(self._similarity(state, round, rows, updates), updates.norm(dim=1))
                cluster[round.at[rows[side]]] = cluster.max() + 1
        return cluster

    def _similarity(self, state: Tree, round: Round, rows: Tensor, updates: Tensor) -> Tensor:
        """[C, C], not negative: how similar the clients `rows` of a cluster are."""
        unit = updates / updates.norm(dim=1, keepdim=True).clamp(min=1e-30)
        result: Tensor = (unit @ unit.T + 1).clamp(min=0)
        return result


def smaller_side(similarity: Tensor, norms: Tensor) -> Tensor:
    """bool [C]: the side of a minimum cut of a graph with the weights `similarity` [C, C] (Stoer and Wagner 1997) that
    does not hold the client of the largest norm; `norms` [C]."""
    import networkx as nx  # slow to import

    graph = nx.Graph()
    for i, row in enumerate(similarity.tolist()):
        for j in range(i):
            graph.add_edge(i, j, weight=row[j])
    _, (nodes, _) = nx.stoer_wagner(graph)
    side = torch.tensor([i in nodes for i in range(len(norms))], device=norms.device)  # bool [C]
    return ~side if side[norms.argmax()] else side


@dataclass(frozen=True)
class SeriesClusters(Clusters):
    """`Clusters` cut by how similarly the clients' gradients changed over the last rounds: a minimum cut of max D − D,
    D the dynamic time warping distances of the norms of their gradients (section 4.3); after a cut all series start
    from scratch.

    length: rounds of a series.
    """

    length: Annotated[int, Field(ge=1, le=_MAX_ROUNDS)] = 5
    sends: ClassVar = EXAMPLES | {
        "gradient": Sends("norm of the training loss's gradient at the trained weights", within=Real())
    }

    def init(self, fed: Federation, w: Tree) -> Tree:
        state = super().init(fed, w)
        return state | self._none(state["cluster"])

    def report(self, ctx: Context) -> Tree:
        """{"n": training examples, "gradient": norm over the shared weights}."""
        key = random.fold(ctx.client.key, "gradient")
        slope = ctx.objective.gradient(ctx.trained, ctx.client, key, ctx.sent)
        return super().report(ctx) | {"gradient": norm(ctx.shared(slope))}

    def update(self, state: Tree, round: Round) -> Tree:
        after = super().update(state, round)
        if not torch.equal(after["cluster"], state["cluster"]):
            return after | self._none(after["cluster"])
        known = state["known"].index_add(0, round.at, torch.ones_like(round.at))
        return after | {"series": state["series"].index_copy(0, round.at, self._newest(state, round)), "known": known}

    def _none(self, clusters: Tensor) -> Tree:
        """No norms of the clients in `clusters` int64 [N]."""
        series = clusters.new_zeros(len(clusters), self.length, dtype=torch.float64)
        return {"series": series, "known": torch.zeros_like(clusters)}

    def _newest(self, state: Tree, round: Round) -> Tensor:
        """The series of the round's clients with this round's norms last, [P, length]."""
        return torch.cat([state["series"][round.at, 1:], round.replies.stack("gradient").double()[:, None]], 1)

    def _cut(self, state: Tree, round: Round) -> Tensor:
        full = bool((state["known"][round.at] + 1 >= self.length).all())
        return super()._cut(state, round) if full else state["cluster"]

    def _similarity(self, state: Tree, round: Round, rows: Tensor, updates: Tensor) -> Tensor:
        series = self._newest(state, round)[rows].cpu().numpy()
        d = torch.zeros(len(rows), len(rows), dtype=torch.float64, device="cpu")
        for i, one in enumerate(series):
            for j, other in enumerate(series):
                d[i, j] = warping_distance(one, other)
        return (d.max() - d).to(rows.device)


def warping_distance(one: np.ndarray, other: np.ndarray) -> float:
    """The dynamic time warping distance of two series, the square root of the smallest Σ (a − b)² over all alignments
    that go through both in order (Sakoe and Chiba 1978, without window or slopes)."""
    cost = np.full((len(one) + 1, len(other) + 1), np.inf)
    cost[0, 0] = 0
    for i, a in enumerate(one, 1):
        for j, b in enumerate(other, 1):
            cost[i, j] = (a - b) ** 2 + min(cost[i - 1, j - 1], cost[i - 1, j], cost[i, j - 1])
    return float(np.sqrt(cost[-1, -1]))


@preset_of(Clusters)
class GCFL:
    """Clients that learn similarly share a model, in clusters cut by the cosines of their updates.

    The authors use eps1 = .03, eps2 = .06 on PROTEINS, .025 and .045 on IMDB-BINARY.
    """

    test_settings: ClassVar[Record] = {"eps1": 10.0, "eps2": 0.0, "wait": 2}


@preset_of(SeriesClusters)
class GCFLPlus:
    """GCFL with clusters cut by how the norms of gradients went over the last rounds.

    length: rounds of a series; the authors use 10 on PROTEINS.
    """

    test_settings: ClassVar[Record] = {"eps1": 10.0, "eps2": 0.0, "wait": 2, "length": 2}

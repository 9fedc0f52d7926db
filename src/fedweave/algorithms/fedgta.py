"""FedGTA: Li et al. 2023, "FedGTA: topology-aware averaging for federated graph learning", section 3.

Clients whose predictions have similar distributions over their graphs share a model, weighted by the certainty of their
predictions. As in the authors' script, moments come from the last propagation step (in the text from each step) and the
certainty uses a temperature of 20, with which it is nearly a weight by degrees: 2.58 for an edge's end at a training
node and .63 elsewhere, with 7 classes. Deviations: a client is always its own neighbor (in the script not with epsilon
≥ 1), weights are equal if no client has an edge, and a client without training examples has the weight 0. OpenFGL, the
source of the tables for graphs, propagates only from predictions of training nodes, without loops at nodes and clamped
to [0, 1]; the authors' own tables are of GAMLP with three hops.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.algorithms.parts import Context, Needs, Part, Round, Training
from fedweave.algorithms.preset import preset_of
from fedweave.core import model as models
from fedweave.core.bounds import Count, Fraction
from fedweave.core.federation import Sends
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.ranges import Real
from fedweave.core.tree import Tree
from fedweave.models.propagation import propagate

TEMPERATURE = 20.0  # of the certainty, in the authors' code


@dataclass(frozen=True)
class TopologyMix(Part):
    """Client i gets Σ_j∈S_i H_j w_j / Σ H, S_i being those whose moments have a cosine above epsilon with its own.

    The moments are of class probabilities over the client's nodes, H is Σ_v deg_v Σ_c (1/e + p_vc ln p_vc), p what k
    steps F ← α Â F + (1 − α) F_0 of label propagation make of labels of training nodes and predictions of the others.

    epsilon: ε, smallest cosine of clients that share; 1 leaves every client its own model, below −1 all share one
             model. The authors take .5 to .65 by data.
    orders:  how many moments of each class; the authors take 3 to 20 by data.
    kind:    "raw" moments, "central" ones, or both ("hybrid").
    hops:    k, number of times that labels are spread along edges.
    alpha:   α, how much a node takes from its neighbors.
    """

    epsilon: float = 0.5
    orders: Count = 6
    kind: Literal["hybrid", "raw", "central"] = "hybrid"
    hops: Count = 5
    alpha: Fraction = 0.5
    recorded = True
    sends: ClassVar = {
        "moments": Sends(
            "how the predicted classes of the client's nodes are distributed, to high moments", within=Real(-1.0, 1.0)
        ),
        "certainty": Sends("sum of the degrees of its nodes, weighted by how sure their classes are", within=Real()),
    }
    needs = Needs(data=("nodes", "classes"), reads=("graph",), models=("personal",))

    def check(self, training: Training) -> None:
        if models.pools(training.model):
            raise ValueError("FedGTA spreads labels along edges, so that the examples must be nodes, not small graphs")

    def report(self, ctx: Context) -> Tree:
        """{"moments": [2 K C] or [K C], "certainty": scalar} by the trained model, float64."""
        graph, train = ctx.client.graph, ctx.client.graph.masks[TRAIN][:, None]
        logits = ctx.outputs(ctx.trained).double()
        truth = F.one_hot(graph.y.clamp(min=0), logits.shape[1]).to(logits.dtype)
        spread = propagate(graph, torch.where(train, truth, torch.softmax(logits, 1)), train, self.hops, self.alpha)
        soft = torch.where(train, truth, torch.softmax(spread, 1))  # [n, C]
        softer = torch.where(train, truth, torch.softmax(spread / TEMPERATURE, 1))
        trains = (ctx.examples > 0).double()
        return {
            "moments": moments(soft, graph.real, self.orders, self.kind),
            "certainty": trains * certainty(softer, degrees(graph)),
        }

    def weigh(self, state: Tree, round: Round) -> Tensor:
        """H_j / Σ H over S_i, float64 [P, P]; its rows sum to 1."""
        return shares(round.replies.stack("moments"), round.replies.stack("certainty"), self.epsilon)


def degrees(graph: Graph) -> Tensor:
    """float64 [n], how many neighbors each node has."""
    degree: Tensor = graph.edges.operator("sum") @ torch.ones_like(graph.real, dtype=graph.x.dtype)[:, None]
    return degree[:, 0].double()


def moments(p: Tensor, real: Tensor, orders: int, kind: str) -> Tensor:
    """For k = 1, …, orders the mean over nodes of p^k and of (p − mean p)^k, p [n, C]: one vector [2 · orders · C]."""
    row = real.to(p.dtype)[:, None]
    count = row.sum().clamp(min=1)
    deviation = p - (p * row).sum(0) / count
    result = []
    for base in {"raw": (p,), "central": (deviation,), "hybrid": (p, deviation)}[kind]:
        for k in range(1, orders + 1):
            result.append((base**k * row).sum(0) / count)
    return torch.cat(result)


def certainty(p: Tensor, degree: Tensor) -> Tensor:
    """Σ_v deg_v Σ_c (1/e + p_vc ln p_vc), scalar, never negative."""
    sure: Tensor = (1 / math.e + torch.special.xlogy(p, p)).sum(1)
    return (sure * degree).sum().clamp(min=0)


def shares(moments: Tensor, certainty: Tensor, epsilon: float) -> Tensor:
    """float64 [P, P]: row i divides 1 by `certainty` [P] over client i and the clients whose moments [P, m] have a
    cosine above epsilon with its moments; equally if the certainties of all of these are 0."""
    unit = F.normalize(moments.double(), dim=1, eps=1e-8)
    near = (unit @ unit.T > epsilon) | torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    weight = near * certainty.double()
    weight = torch.where(weight.sum(1, keepdim=True) > 0, weight, near.double())
    return weight / weight.sum(1, keepdim=True)


@preset_of(TopologyMix)
class FedGTA:
    """Clients whose predictions are distributed similarly over their graphs share a model."""

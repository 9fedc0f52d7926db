"""FairAug: Köse and Shen 2022, "Fair node representation learning via adaptive data augmentation", in a federation as
in F²GNN's comparison (Cui et al. 2023, section VI-A): every client trains on augmented copies of its graph, FedAvg
averages.

Deviations: augmented graphs train the classifier itself, not a contrastive representation; each local step draws a new
one. We could not check the paper's constants, so the constants here are ours. Nodes of unknown group and their edges
stay, which is our choice too. A client with only one group, or without edges between the groups, keeps all its edges,
because balancing would remove all of them.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.parts import Needs, Outputs, Part, Training
from fedweave.algorithms.preset import preset_of
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.algorithm import Capabilities
from fedweave.core.bounds import Fraction
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree
from fedweave.errors import DataError
from fedweave.ops.hashing import bits
from fedweave.ops.sparse import dense
from fedweave.sampling.graphs import BatchEdges


class EdgeEnds(NamedTuple):
    """The two ends of the entries of a client's lists of neighbors, int64 [E], bool [E] which entries are real, and
    int64 [n + 1] where each list starts, and the last one ends."""

    source: Tensor
    target: Tensor
    real: Tensor
    starts: Tensor


def groups_of(graph: Graph) -> Tensor:
    """bool [2, n]: the nodes of each group."""
    if graph.sensitive is None:
        raise DataError("FairAug needs a sensitive attribute (sens); choose data that has one")
    return graph.sensitive == torch.arange(2, device=graph.device)[:, None]


def mask_probabilities(x: Tensor, groups: Tensor, largest: float) -> Tensor:
    """[d]: for each column of x [n, d] `largest` times the difference of the groups' means as a share of the largest;
    0 where a group is empty."""
    member = groups.to(x.dtype)
    means = member @ x / member.sum(1, keepdim=True).clamp(min=1)
    delta = (means[1] - means[0]).abs() * groups.any(1).all()
    return largest * delta / delta.max().clamp(min=torch.finfo(x.dtype).tiny)


def draw_balanced_nodes(groups: Tensor, real: Tensor, keys: Tensor) -> Tensor:
    """bool [steps, n]: all nodes except random nodes of the larger group, so that both groups have equal size; all
    nodes if a group is empty. keys: int64 [steps]."""
    smaller = groups.sum(1).min()
    chosen = []
    for s in (0, 1):
        order = random.order(random.fold(keys, "nodes", s)[:, None], groups[s])  # [steps, n]
        chosen.append(groups[s] & (order.argsort(1).argsort(1) < smaller))
    return real & torch.where(smaller > 0, chosen[0] | chosen[1] | ~groups.any(0), True)


def ends_of(graph: Graph) -> EdgeEnds:
    """Both directions of every edge."""
    first, degree, columns = graph.whole_edges.neighbors
    ended = torch.zeros(len(columns) + 1, dtype=torch.int64, device=columns.device)
    ended = ended.scatter_add(0, first + degree, torch.ones_like(first))
    owner = ended.cumsum(0)[:-1]
    starts = torch.cat([first, (first + degree)[-1:]])
    return EdgeEnds(owner.clamp(max=len(first) - 1), columns, owner < len(first), starts)


def edge_probabilities(ends: EdgeEnds, groups: Tensor, nodes: Tensor, keep: float) -> Tensor:
    """[steps, E]: probability that each entry stays among `nodes` bool [steps, n]. Edges between groups stay with π =
    `keep`, edges within group s with min(1, π |E_inter| / (2 |E_intra,s|)). So the expected numbers within both groups
    are equal, and their sum equals the number between them. Other edges stay with 1, edges that lose an end with 0. If
    no edge of the client joins the groups, all edges stay."""
    source, target = groups[:, ends.source], groups[:, ends.target]  # [2, E]
    alive = ends.real & nodes[:, ends.source] & nodes[:, ends.target]
    inter = source.any(0) & target.any(0) & ~(source & target).any(0)
    between = (alive & inter).sum(1)
    chance = torch.where(inter, keep, 1.0).expand(alive.shape)
    for s in (0, 1):
        intra = source[s] & target[s]
        within = (alive & intra).sum(1).clamp(min=1)
        chance = torch.where(intra, (keep * between / (2 * within)).clamp(max=1)[:, None], chance)
    joined = (ends.real & inter).any()
    return torch.where(alive, torch.where(joined, chance, 1.0), 0.0)


def draw_edges(ends: EdgeEnds, chance: Tensor, keys: Tensor) -> Tree:
    """Lists of neighbors in which both directions of an edge stay or go together: "columns" [steps, E], which are
    filled from the left, and "starts" [steps, n + 1]."""
    low, high = torch.minimum(ends.source, ends.target), torch.maximum(ends.source, ends.target)
    stays = uniform(random.fold(random.fold(keys, "edges")[:, None], low, high)) < chance
    before = F.pad(stays.cumsum(1), (1, 0))
    place = torch.where(stays, before[:, :-1], stays.shape[1])
    room = torch.zeros(len(keys), stays.shape[1] + 1, dtype=torch.int64, device=keys.device)
    columns = room.scatter(1, place, ends.target.expand(place.shape))[:, :-1]
    return {"columns": columns, "starts": before.gather(1, ends.starts.expand(len(keys), -1))}


def view(graph: Graph, lists: Tree) -> Graph:
    """The graph with the drawn edges."""
    return graph._replace(edges=BatchEdges({"nodes": graph.real, **lists}, graph.x.dtype, graph.whole_edges))


def uniform(words: Tensor) -> Tensor:
    """Numbers in [0, 1) from random words."""
    return (words >> 40 & 0xFFFFFF) * 2.0**-24


@dataclass(frozen=True)
class FairAugmented(Part):
    """Cross-entropy on a random copy of the client's graph, drawn in every step, with equal numbers of nodes in both
    groups and of edges within and between them. The probability of masking a feature grows with its difference between
    the groups.

    mask: π, masking probability of the feature that differs most between the groups, at most 1.
    keep: π, probability that an edge between the groups stays.
    """

    mask: Fraction = 0.5
    keep: Fraction = 0.8
    recorded = True
    needs = Needs(data=("sensitive", "nodes", "classes"), reads=("features",), supervised=True)

    def check(self, training: Training) -> None:
        if any(layer.reads != "product" for layer in training.model):
            raise ValueError(
                "FairAug draws other edges in every step, which attention, h2gcn and a torch.nn.Module cannot read; "
                "choose model gcn, sage, gcnii or gin"
            )

    def draw(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        """For each step the "features" [d] that stay (0 or 1), the "kept" nodes bool [n], and the lists of neighbors,
        "columns" and "starts"."""
        keys, groups = random.fold(key, torch.arange(steps, device=key.device)), groups_of(graph)
        chance = mask_probabilities(dense(graph.x), groups & graph.real, self.mask)
        features = uniform(bits(random.fold(keys, "features")[:, None], len(chance))) >= chance
        nodes, ends = draw_balanced_nodes(groups & graph.real, graph.real, keys), ends_of(graph)
        edges = draw_edges(ends, edge_probabilities(ends, groups, nodes, self.keep), keys)
        return {"features": features.to(graph.x.dtype), "kept": nodes, **edges}

    def min_examples(self, graph: Graph, steps: int) -> int:
        """The training examples that remain if balancing removes training nodes of the larger group first. Waits for
        the graph's device, so call it between steps."""
        groups, train = groups_of(graph) & graph.real, graph.masks[TRAIN] & graph.real
        sizes, trained, per_group = groups.sum(1), (groups & train).sum(1), groups.sum(1).min()
        if not per_group:
            return int(train.sum())
        remaining = (per_group - sizes + trained).clamp(min=0).sum() + (train & ~groups.any(0)).sum()
        return max(1, int(remaining)) if train.any() else 0

    def objective(self, outputs: Outputs) -> Tensor:
        """The loss on one augmented copy, scalar; 0 without training examples in it."""
        graph, sample = outputs.graph, outputs.drawn
        copy = view(graph, sample)._replace(x=dense(graph.x) * sample["features"])
        logits = models.apply(outputs.model, outputs.w, copy, outputs.key)
        return outputs.cross_entropy(logits, graph.masks[TRAIN] & sample["kept"])


@preset_of(FairAugmented)
class FairAug:
    """FedAvg whose clients train on copies of their graphs that are balanced between groups of people."""

    capabilities: ClassVar[Capabilities] = replace(FedAvg.capabilities, sensitive=True)
    exempt_laws: ClassVar[dict[str, str]] = {"one_client_is_ordinary_training": "clients train on augmented graphs"}

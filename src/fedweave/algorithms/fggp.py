"""FGGP: Wan, Huang and Ye 2024, "Federated graph learning under domain shift with generalizable prototypes".

Clients also train on a second view of their graph, whose edges two further layers draw, and pull both views' prototypes
of a class together. They predict by the nearest class centers, which the server computes from all clients' prototypes.
This follows the released code, not the text. Deviations: every round computes the graph of nearest neighbors (there
every 20); prototypes have the class's own index (there its place among the client's classes); only centers predict
(there a queue that begins with random vectors of class 0); similarities in the pull are cosines of both sides; the pull
starts from both views in turn (there from the drawn one); nearest nodes are joined both ways (there from one to the
other); clients count by training examples (there by nodes, or equally); clients without two nodes of a class do not
send it. OpenFGL predicts by the classifier, answer = "classifier".
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.algorithms.fairaug import uniform
from fedweave.algorithms.fedtad import nearest_pairs
from fedweave.algorithms.fgssl import unit
from fedweave.algorithms.parts import Context, Needs, Outputs, Part, Round, Training
from fedweave.algorithms.preset import part_of, preset_of
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.bounds import Count, CountOrNone, NonNegative, Positive
from fedweave.core.federation import Federation
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Hidden, Model
from fedweave.core.tree import Tree
from fedweave.core.types import Record
from fedweave.models.blocks import glorot
from fedweave.ops.linear import linear

CENTER, AUGMENTOR = "centre", ("augment1", "augment2")  # weights in the last layer
SURE, SHARPNESS = 1e-4, 0.1  # smallest distance of edge probabilities from 0 and 1; the temperature of predictions


@dataclass(frozen=True)
class AugmentedView(Part):
    """augment · (cross-entropy on Ã + L_ga) + align · L_pa, where Ã draws pairs with probability ½ L / max L + ½ A₂. L
    is u uᵀ of two layers u on A₂; A₂ joins the client's edges and each node's `near` most similar nodes by the received
    model.

    L_ga is the cross-entropy of L against A₂, in which edges and other pairs have equal total weight; L_pa contrasts
    the prototypes of a class on both views with the prototypes of other classes.

    augment: strength of the terms on Ã.
    align:   strength of L_pa.
    near:    number of nodes that A₂ joins a node to, by the cosine of embeddings.
    tau:     temperature of L_pa.
    width:   width of the two layers u.
    """

    augment: NonNegative = 1.0
    align: NonNegative = 1.0
    near: CountOrNone = 3
    tau: Positive = 0.5
    width: Count = 64
    recorded = True
    needs = Needs(data=("nodes", "classes"), reads=("received", "features", "graph"), statistics="none")

    def check(self, training: Training) -> None:
        gcn = all(layer.reads == "product" and layer.operator in (None, "gcn") for layer in training.model)
        if models.pools(training.model) or not gcn:
            raise ValueError("FGGP draws edges of its own; choose a model of nodes that takes them, such as gcn")

    def layers(self, model: Model, on_clients: bool) -> Model:
        models.check_embeds(model, "fggp")
        if not model[0].by_feature:
            raise ValueError("FGGP draws edges of features by weights; choose a model that has such, such as gcn")
        features = models.fan_in(model[0])

        def init(key: Tensor) -> Tree:
            first, second = AUGMENTOR
            return model[-1].init(key) | {
                first: glorot(random.fold(key, first), features, self.width),
                second: glorot(random.fold(key, second), self.width, self.width),
            }

        return (*model[:-1], model[-1]._replace(init=init))

    def recall(self, ctx: Context) -> Tree:
        graph = ctx.client.graph
        return {"joined": nearest_graph(models.embedded(ctx.training.model, ctx.received, graph), graph, self.near)}

    def objective(self, outputs: Outputs) -> Tensor:
        """All three terms, scalar; 0 at a client that does not train."""
        graph, h = outputs.graph, outputs.embedding
        if self.augment == self.align == 0:
            return h.new_zeros(())
        a, train = outputs.inputs["joined"], graph.masks[TRAIN]
        pairs = pair_products(outputs.w[str(len(outputs.model) - 1)], graph, a)
        edges = DenseGraph(normalize(draw_edges(pairs, a, graph.real, random.fold(outputs.key, "edges"))))
        key = random.fold(outputs.key, "view")
        *_, view_h, logits = models.embeddings(outputs.model, outputs.w, graph._replace(edges=edges), key)
        first, count = prototypes(h, torch.softmax(outputs.logits.detach(), 1), graph)
        second, view_count = prototypes(models.rows_of(view_h), torch.softmax(logits.detach(), 1), graph)
        pull = contrast(first, second, (count > 0) & (view_count > 0), self.tau)
        view = outputs.cross_entropy(logits, train) + reconstruction(pairs, a, graph.real)
        return train.any() * (self.augment * view + self.align * pull)


@dataclass(frozen=True)
class NearestCentres(Part):
    """Clients predict by the class centers nearest to h: the sum of softmax(cos / .1) over the `nearest` centers, per
    class.

    The centers of a class are the means of FINCH's groups of clients' prototypes.

    nearest: number of centers that predict.
    minimum: fewest nodes of a class whose prototype a client sends; the mean of one node would be its embedding.
    """

    nearest: Count = 30
    minimum: Count = 2
    recorded = True
    rounds_vary = True
    sends: ClassVar = {
        "prototype": "of each class, the mean embedding of the client's nodes that have it or are predicted to have it"
    }
    client_learns: ClassVar = {CENTER: "of each class, the means of groups of members' mean embeddings"}
    needs = Needs(data=("nodes", "classes"), personalizes="trained", statistics="none")

    def layers(self, model: Model, on_clients: bool) -> Model:
        models.check_embeds(model, "fggp")
        last = model[-1]

        def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Hidden:
            if CENTER not in w:
                return last.apply(w, graph, h, key)
            return log_probabilities(models.rows_of(h), w[CENTER], self.nearest)

        return (*model[:-1], last._replace(apply=apply))

    def init(self, fed: Federation, w: Tree) -> Tree:
        """{"groups": the largest number of groups of a class}; each has two clients or more, if there are two."""
        return {"groups": max(1, len(fed.clients) // 2)}

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, ...]:
        return {CENTER: state[CENTER]} if CENTER in state else {}, {}

    def report(self, ctx: Context) -> Tree:
        """{"prototype": [C, d]} by the trained model, 0 for a class that the client does not send."""
        graph = ctx.client.graph
        *_, h, logits = models.embeddings(ctx.training.model, ctx.trained, graph)
        mean, count = prototypes(models.rows_of(h), torch.softmax(logits, 1), graph)
        return {"prototype": torch.where(count[:, None] >= self.minimum, mean, 0.0)}

    def update(self, state: Tree, round: Round) -> Tree:
        """The new centers; a class that no client sent keeps its centers."""
        prototype = round.replies.stack("prototype")  # [P, C, d]
        empty = prototype.new_zeros(prototype.shape[1], state["groups"], prototype.shape[2])
        center = state.get(CENTER, empty).clone()
        for c, class_rows in enumerate(prototype.double().cpu().numpy().swapaxes(0, 1)):
            rows = class_rows[class_rows.any(1)]
            if len(rows):
                means = torch.from_numpy(centers(rows)).to(center)
                center[c] = F.pad(means, (0, 0, 0, state["groups"] - len(means)))
        return state | {CENTER: center}

    def personalize(self, ctx: Context) -> Tree:
        last = str(len(ctx.training.model) - 1)
        return ctx.received | {last: ctx.received[last] | ctx.downloaded}


class DenseGraph:
    """Weighted edges as a matrix [n, n], which is also their operator."""

    shrinks = False

    def __init__(self, matrix: Tensor) -> None:
        self._matrix = matrix

    def operator(self, kind: str) -> Tensor:
        """The matrix; `AugmentedView.layers` lets no model ask for another than GCN's."""
        return self._matrix

    def with_means(self, h: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        return h, self._matrix @ h


def nearest_graph(h: Tensor, graph: Graph, near: int) -> Tensor:
    """A₂ [n, n], 0 or 1: the edges, each node's `near` nodes of the largest cosine of h [n, d], and itself."""
    eye, real = torch.eye(graph.nodes, dtype=torch.bool, device=h.device), graph.real & graph.real[:, None]
    cosine = (unit(h) @ unit(h).T).masked_fill(eye | ~real, -torch.inf)
    edges = graph.edges.operator("sum") @ eye.to(h.dtype) > 0
    return (((nearest_pairs(cosine, near) | edges) & real) | eye).to(h.dtype)


def normalize(a: Tensor) -> Tensor:
    """D^-1/2 A D^-1/2, A [n, n] having no empty rows."""
    scale = a.sum(1).rsqrt()
    return scale[:, None] * a * scale


def pair_products(w: Tree, graph: Graph, a: Tensor) -> Tensor:
    """L = u uᵀ [n, n] of two layers without biases on A₂."""
    mean = normalize(a)
    first, second = w[AUGMENTOR[0]], w[AUGMENTOR[1]]
    u = mean @ linear(torch.relu(mean @ linear(graph.x, first)), second)
    result: Tensor = u @ u.T
    return result


def draw_edges(pairs: Tensor, a: Tensor, real: Tensor, key: Tensor) -> Tensor:
    """Symmetric edges [n, n], 0 or 1 with ones on the diagonal, with the gradient of a relaxed draw at temperature 1
    with probability ½ L / max L + ½ A₂."""
    both = real & real[:, None]
    largest = torch.where(both, pairs, 0.0).amax().clamp(min=1e-12)
    chance = (0.5 * pairs / largest + 0.5 * a).clamp(SURE, 1 - SURE)
    at = torch.arange(len(a), device=a.device)
    words = random.fold(key, torch.minimum(at, at[:, None]), torch.maximum(at, at[:, None]))
    noise = uniform(words).to(a.dtype).clamp(SURE, 1 - SURE)
    soft = torch.sigmoid(chance.logit() + noise.logit())
    hard = (soft > 0.5).to(a.dtype) + soft - soft.detach()
    eye = torch.eye(len(a), dtype=torch.bool, device=a.device)
    return torch.where(eye, 1.0, torch.where(both, hard, 0.0))


def reconstruction(pairs: Tensor, a: Tensor, real: Tensor) -> Tensor:
    """L_ga, scalar: n² / (2 (n² − Σ A₂)) times the mean over pairs of the cross-entropy of sigmoid L against A₂, where
    an edge counts (n² − Σ A₂) / Σ A₂ times."""
    both = (real & real[:, None]).to(a.dtype)
    linked = a * both
    edges, non_edges = linked.sum(), (both.sum() - linked.sum()).clamp(min=1)
    entropy = linked * (non_edges / edges) * F.softplus(-pairs) + (both - linked) * F.softplus(pairs)
    return entropy.sum() / (2 * non_edges)


def prototypes(h: Tensor, p: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:
    """([C, d], the mean of h [n, d] over each class's nodes, weighted by confidence, 0 without any; int64 [C], their
    number). Training nodes have their true class with confidence 1, other nodes the class of the largest p [n, C] with
    that p as confidence."""
    train, (trust, label) = graph.masks[TRAIN], p.max(1)
    label = torch.where(train, graph.y, label)
    member = (label[:, None] == torch.arange(p.shape[1], device=p.device)) & graph.real[:, None]
    weight = member * torch.where(train, 1.0, trust)[:, None]
    return weight.T @ h / weight.sum(0).clamp(min=1e-12)[:, None], member.sum(0)


def contrast(first: Tensor, second: Tensor, known: Tensor, tau: float) -> Tensor:
    """L_pa, scalar: mean over classes known, bool [C], and views of −ln(e^s_c / (e^s_c + Σ e^s of other classes in both
    views)), where s_c is the cosine of a class's prototypes [C, d] on the two views, divided by τ."""
    a, b = unit(first), unit(second)
    same = torch.eye(len(known), dtype=torch.bool, device=known.device)

    def one_way(here: Tensor, there: Tensor) -> Tensor:
        s = here @ there.T / tau  # [C, C]
        within = (here @ here.T / tau).masked_fill(same | ~known, -1e9)
        return torch.cat([s.masked_fill(~known, -1e9), within], 1).logsumexp(1) - s.diagonal()

    return torch.where(known, one_way(a, b) + one_way(b, a), 0.0).sum() / (2 * known.sum().clamp(min=1))


def centers(rows: np.ndarray) -> np.ndarray:
    """The means [groups, d] of the groups of rows [n, d] in the last partition of FINCH (Sarfraz et al. 2019) with more
    than one: every row is linked to its nearest by cosine, and so are groups' means while there is more than one."""
    from scipy.sparse.csgraph import connected_components  # slow to import

    means = rows
    label = np.arange(len(rows))
    while len(means) > 1:
        units = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
        links = np.eye(len(means))[(units @ units.T - 10 * np.eye(len(means))).argmax(1)]
        count, merged = connected_components(links, directed=False)
        if count == 1 and len(means) < len(rows):
            break
        label = merged[label]
        means = np.stack([rows[label == group].mean(0) for group in range(count)])
    return means


def log_probabilities(h: Tensor, center: Tensor, nearest: int) -> Tensor:
    """ln Σ over a class's centers among the `nearest` of softmax(cos / .1), [n, C]; center [C, groups, d], 0 where
    there is none."""
    flat = center.flatten(0, 1)
    cosine = (unit(h) @ unit(flat).T / SHARPNESS).masked_fill(~(flat != 0).any(1), -1e4)
    top, at = cosine.topk(min(nearest, len(flat)), 1)
    of = (at // center.shape[1])[..., None] == torch.arange(len(center), device=at.device)
    return (torch.softmax(top, 1)[..., None] * of).sum(1).clamp(min=1e-12).log()


@preset_of(AugmentedView, NearestCentres)
class FGGP:
    """FedAvg whose clients train on a second, drawn view of their graphs, and answer by the nearest class centers.

    answer: prediction by the nearest "centres", or by the "classifier", which needs no exchange of prototypes.
    """

    answer: Literal["centres", "classifier"] = "centres"

    exempt_laws: ClassVar[dict[str, str]] = {
        "one_client_is_ordinary_training": "clients train on drawn edges, too",
        "training_lowers_the_loss": "centers answer, which no loss trains",
        "a_client_without_training_examples_keeps_what_it_receives": "with centers, which are not part of what trains",
    }
    test_settings: ClassVar[Record] = {"width": 8, "near": 2, "lr": 0.02}

    def parts(self) -> tuple[Part, ...]:
        view = part_of(self, AugmentedView)
        return (view, part_of(self, NearestCentres)) if self.answer == "centres" else (view,)

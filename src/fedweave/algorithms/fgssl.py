"""FGSSL: Huang, Wan, Ye and Du 2023, "Federated graph semantic and structural learning", eqs. 3 to 9.

A client's embeddings of a strongly altered view of its graph are pulled to the received model's of a weakly altered one
by node and class, and its similarities of neighbors to that model's. Neither released code trains this: the authors'
trainer overwrites the first term by one between two views of the local model, weighted 3, and never adds the second
(variant = "authors"); OpenFGL, whence the tables for graphs, computes both contrasts, drops them, and adds .1 times a
divergence between the softmax over columns of |h_u − h_v| of each edge (variant = "openfgl", as read there; the views
are the text's). Deviations: cosines of all nodes of a class in one step, n × n at a client; cosines of vectors shorter
than .01 are smaller; the temperature ω of the similarities, which the text leaves open, is .5; the text's denominator
is others_only.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedweave.algorithms.fairaug import draw_edges, ends_of, uniform, view
from fedweave.algorithms.parts import Context, Needs, Outputs, Part, Training
from fedweave.algorithms.preset import preset_of
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.bounds import NonNegative, Positive
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree
from fedweave.core.types import Record
from fedweave.ops.hashing import bits
from fedweave.ops.rows import gather_rows

MIN_NORM = 0.01  # of a vector in a cosine: logits close to 0 would have gradients without a bound
WEAK, STRONG = (0.7, 0.7), (0.2, 0.5)  # how likely an edge stays, and a column of features


@dataclass(frozen=True)
class SemanticStructure(Part):
    """λ_C times the contrast of training nodes between a strong view by the client's weights and a weak view by the
    received ones, −mean_v mean_p∈P_v log(e^(cos(h_v, h̄_p)/τ) / Z), P_v being v's class, and λ_D times the mean over
    nodes of KL(softmax cos(z̄_v, z̄_u)/ω ‖ softmax cos(z_v, z_u)/ω) over v and its neighbors, by logits z.

    contrast:    λ_C, weight of the contrast of nodes.
    structure:   λ_D, weight of the distillation of structure.
    tau:         τ, temperature of the contrast.
    omega:       ω, temperature of the cosines with neighbors.
    others_only: Z sums over p and the nodes of other classes (the text) instead of all training nodes.
    variant:     the "text", or what the code of the "authors" or of "openfgl" trains, at these strengths.
    """

    contrast: NonNegative = 1.0
    structure: NonNegative = 1.0
    tau: Positive = 0.1
    omega: Positive = 0.5
    others_only: bool = False
    variant: Literal["text", "authors", "openfgl"] = "text"
    recorded = True
    needs = Needs(data=("nodes", "classes"), reads=("received", "features"), statistics="none")

    def check(self, training: Training) -> None:
        models.check_embeds(training.model, "fgssl")
        net = training.model
        if models.pools(net) or not net[0].by_feature or any(layer.reads != "product" for layer in net):
            raise ValueError(
                "FGSSL draws other edges in every step, which attention, h2gcn, a torch.nn.Module and models of small "
                "graphs cannot read; choose model gcn, sage, gcnii or gin"
            )

    def recall(self, ctx: Context) -> Tree:
        """{"w": the received weights, "trains": 0 at a client without training examples, else 1, and of the text
        "near": bool [n, n], pairs of neighbors and each node itself}."""
        graph = ctx.client.graph
        known = {"w": ctx.received, "trains": (ctx.examples > 0).to(graph.x.dtype)}
        if self.variant != "text":
            return known
        one = torch.eye(graph.nodes, dtype=graph.x.dtype, device=graph.device)
        near = (graph.edges.operator("sum_with_self") @ one > 0) & graph.real & graph.real[:, None]
        return known | {"near": near}

    def draw(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        """{"weak", "strong": the "features" [steps, d] that stay (0 or 1) and lists of neighbors}; both directions of
        an edge stay or go."""
        keys, ends = random.fold(key, torch.arange(steps, device=key.device)), ends_of(graph)
        views = {}
        for name, (edge, feature) in (("weak", WEAK), ("strong", STRONG)):
            view_keys = random.fold(keys, name)
            stays = uniform(bits(random.fold(view_keys, "features")[:, None], graph.x.shape[1])) < feature
            chance = torch.where(ends.real, edge, 0.0).expand(steps, -1)
            views[name] = {"features": stays.to(graph.x.dtype), **draw_edges(ends, chance, view_keys)}
        return views

    def objective(self, outputs: Outputs) -> Tensor:
        """Both terms, scalar; 0 at a client that does not train."""
        graph, inputs = outputs.graph, outputs.inputs
        trains: Tensor = inputs["trains"]
        if self.contrast == self.structure == 0:
            return outputs.logits.new_zeros(())
        weak, strong = outputs.drawn["weak"], outputs.drawn["strong"]
        h, z = view_outputs(outputs.model, outputs.w, graph, strong, random.fold(outputs.key, "strong"))
        if self.variant == "authors":
            other, _ = view_outputs(outputs.model, outputs.w, graph, weak, random.fold(outputs.key, "weak"))
            return trains * self.contrast * self.semantic(h, other, graph)
        with torch.no_grad():
            global_h, global_z = view_outputs(outputs.model, inputs["w"], graph, weak, None)
        if self.variant == "openfgl":
            return trains * self.structure * edge_divergence(h, global_h, graph)
        structural = self.structural(z, global_z, inputs["near"], graph.real)
        return trains * (self.contrast * self.semantic(h, global_h, graph) + self.structure * structural)

    def semantic(self, h: Tensor, other: Tensor, graph: Graph) -> Tensor:
        """L_C of embeddings [n, d] by two models, scalar."""
        train = graph.masks[TRAIN]
        pair = train & train[:, None]
        same = (graph.y[:, None] == graph.y) & pair
        s = unit(h) @ unit(other).T / self.tau
        if self.others_only:
            different = torch.where(pair & ~same, s, -torch.inf).logsumexp(1, keepdim=True)
            terms = torch.logaddexp(torch.where(train[:, None], different, 0.0), s) - s
        else:
            terms = torch.where(pair, s, -torch.inf).where(train[:, None], 0.0).logsumexp(1, keepdim=True) - s
        mean = torch.where(same, terms, 0.0).sum(1) / same.sum(1).clamp(min=1)
        return mean.sum() / train.sum().clamp(min=1)

    def structural(self, z: Tensor, other: Tensor, near: Tensor, real: Tensor) -> Tensor:
        """L_D of logits [n, C] by two models, near bool [n, n], scalar."""
        near = near | ~real[:, None]  # no row without entries

        def distribution(logits: Tensor) -> Tensor:
            cosine = unit(logits) @ unit(logits).T
            return torch.log_softmax((cosine / self.omega).masked_fill(~near, -1e4), 1)  # [n, n]

        p, q = distribution(z), distribution(other)
        divergence = (q.exp() * torch.where(near, q - p, 0.0)).sum(1)
        return torch.where(real, divergence, 0.0).sum() / real.sum().clamp(min=1)


def unit(h: Tensor) -> Tensor:
    """The rows of h [n, d] divided by their norms, by `MIN_NORM` where these are less."""
    return h / h.square().sum(1, keepdim=True).clamp(min=MIN_NORM**2).sqrt()


def view_outputs(model: Model, w: Tree, graph: Graph, drawn: Tree, key: Tensor | None) -> tuple[Tensor, Tensor]:
    """(embeddings [n, d], logits [n, C]) of a view: a column that is left out is one whose weights are 0."""
    layer = dict(w["0"])
    for name in model[0].by_feature:
        layer[name] = layer[name] * drawn["features"][:, None]
    *_, h, logits = models.embeddings(model, w | {"0": layer}, view(graph, drawn), key)
    return models.rows_of(h), logits


def edge_divergence(h: Tensor, other: Tensor, graph: Graph) -> Tensor:
    """The mean over edges of KL between the softmax over columns of |h_u − h_v| / .1, by two models; scalar."""
    ends = ends_of(graph)

    def distribution(rows: Tensor) -> Tensor:
        difference = (gather_rows(rows, ends.source) - gather_rows(rows, ends.target)).abs()
        return torch.log_softmax(difference / 0.1, 1)  # [E, d]

    q, p = distribution(other), distribution(h)
    divergence = torch.where(ends.real, (q.exp() * (q - p)).sum(1), 0.0)
    return divergence.sum() / ends.real.sum().clamp(min=1)


@preset_of(SemanticStructure)
class FGSSL:
    """FedAvg whose clients pull altered views of their graphs to the global model, by classes and by neighbors."""

    exempt_laws: ClassVar[dict[str, str]] = {"one_client_is_ordinary_training": "clients train on altered views, too"}
    test_settings: ClassVar[Record] = {"contrast": 0.1, "structure": 0.1, "lr": 0.02}

"""FedAux: Zhuo, Zhan and Yu 2025, "Personalized subgraph federated learning with auxiliary projections", eqs. 1 to 8.

A client learns a direction a in addition to its model. It classifies its nodes' embeddings together with the same
embeddings smoothed along that line. Clients with similar directions get more of each other's models. The printed
numbers are of the text's scores over FED-PUB's masked GCN (add the part sparse_masks for that; most of the distance to
the printed FedAvg is the mask's). In the released script scores are cosines and a begins in [0, 1) (score = "script",
start = "uniform"), so that all directions stay within a small angle and the mix near the plain mean. Deviations: any
model whose last layer multiplies by weights has that layer made twice as wide, where the paper's is a linear one; a
client without training examples is left out of mixes.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.algorithms.parts import Needs, Round, UniformTrained
from fedweave.algorithms.preset import preset_of
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.bounds import NonNegative, Positive
from fedweave.core.graph import Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.tree import Tree, leaves

AUX = "aux"  # the weight that is the direction


@dataclass(frozen=True)
class AuxiliaryMix(UniformTrained):
    """Client k gets Σ_l ω_kl (w_l, a_l), ω_kl = softmax_l(α cos(a_k, a_l)); a is trained with a classifier of [h ‖ z],
    z_v = Σ_u K_vu h_u / Σ_u K_vu, K_vu = exp(−(s_v − s_u)² / σ²), s_v = ⟨h_v, a⟩ / max_u ‖h_u‖.

    sigma: σ, how far along a a node takes from others.
    alpha: α, how much more similar clients share; 0 is the plain mean.
    score: s as in the "text", or the cosine of h_v and a, as in the "script".
    start_at: a, common to all, "normal" as in the text or "uniform" in [0, 1) as in the script.
    """

    sigma: Positive = 1.0
    alpha: NonNegative = 10.0
    score: Literal["text", "script"] = "text"
    start_at: Literal["normal", "uniform"] = "normal"
    recorded = True
    needs = Needs(data=("nodes",), reads=("features",), models=("personal",))

    def layers(self, model: Model, on_clients: bool) -> Model:
        models.check_embeds(model, "fedaux")
        last = model[-1]
        if models.pools(model) or not last.by_feature:
            raise ValueError(
                "FedAux smooths embeddings of nodes for a last layer that multiplies them by weights; choose a model "
                "of nodes such as gcn or sage"
            )
        width = models.fan_in(last)
        return (*model[:-1], smoothing_layer(width, self.sigma, self.score, self.start_at), widen(last))

    def weigh(self, state: Tree, round: Round) -> Tensor:
        """ω, float64 [P, P]; its rows sum to 1."""
        a = next(leaf for path, leaf in leaves(round.trained) if path.endswith("/" + AUX))
        return mix(a, round.replies.stack("trains"), self.alpha)


def smooth(h: Tensor, s: Tensor, real: Tensor, sigma: float) -> Tensor:
    """z [n, d] of h [n, d] and the scores s [n], over the nodes that are real."""
    k = torch.exp(-((s[:, None] - s) / sigma).square()) * real
    return k @ h / k.sum(1, keepdim=True).clamp(min=torch.finfo(h.dtype).tiny)


def scores(h: Tensor, a: Tensor, kind: str) -> Tensor:
    """s [n] of h [n, d]: ⟨h_v, a⟩ / max_u ‖h_u‖, or by the "script" cos(h_v, a)."""
    if kind == "script":
        return F.cosine_similarity(h, a[None], dim=1)
    longest = h.square().sum(1).max()
    return (h * a).sum(1) / torch.where(longest > 0, longest, 1.0).sqrt()


def smoothing_layer(width: int, sigma: float, score: str, start: str) -> Layer:
    """h [n, width] -> [h ‖ z] [n, 2 width]."""
    draw = random.normal if start == "normal" else random.uniform

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        rows = models.rows_of(h) * graph.real[:, None]
        return torch.cat([rows, smooth(rows, scores(rows, w[AUX], score), graph.real, sigma)], 1)

    return Layer(lambda key: {AUX: draw(random.fold(key, AUX), (width,))}, apply, reads="graph")


def widen(layer: Layer) -> Layer:
    """`layer` for an input with twice the columns."""

    def init(key: Tensor) -> Tree:
        first, second = layer.init(key), layer.init(random.fold(key, "second"))
        wide = {name: torch.cat([first[name], second[name]]) * math.sqrt(0.5) for name in layer.by_feature}
        return first | wide

    return layer._replace(init=init)


def mix(a: Tensor, trains: Tensor, alpha: float) -> Tensor:
    """float64 [P, P]: row k is softmax_l(α cos(a_k, a_l)) of the directions a [P, d], over the clients in `trains`,
    bool [P]; over all if no client trains."""
    unit = F.normalize(a.double(), dim=1, eps=1e-8)
    members = trains | ~trains.any()
    return torch.softmax((alpha * unit @ unit.T).masked_fill(~members, -torch.inf), 1)


@preset_of(AuxiliaryMix)
class FedAux:
    """Clients mix models by how similar the directions are along which they smooth their nodes' embeddings."""

    exempt_laws: ClassVar[dict[str, str]] = {"one_client_is_ordinary_training": "clients train a direction, too"}

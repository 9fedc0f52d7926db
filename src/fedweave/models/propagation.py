"""A client's personal modules for homophilous and heterophilous neighbors, on top of the global model's predictions (Li
et al. 2024, "AdaFGL", section III).

P̂ [n, C] are the global model's probabilities, B the cosines of the rows of softmax P̂ (a second softmax, as in all
code), U = [B > threshold], Ã = α A + (1 − α) U, Â = D^-1/2 (Ã + I) D^-1/2 and X̂ = [X, ÂX, Â²X, Â³X]. R is scaled
continuously, (R − mean) / mean below its mean. The authors' line sets the least similar pairs to 0 and average ones to
−1.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.core import random
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.tree import Tree, map_leaves
from fedweave.learn import PLAIN, Criterion
from fedweave.models.blocks import uniform
from fedweave.ops.linear import linear

HOPS, SLOPE, SPREADING = 3, 0.25, 10  # hops of X̂; initial slope of PReLU; steps of label propagation
FEATURE_ROWS = frozenset({"features/weight"})  # weights that only X is multiplied with
MODULES = ("like", "smooth", "message", "ego")


@dataclass(frozen=True)
class Propagation:
    """The modules with the symbols above; hidden: their width; drop: their dropout; entropy: their loss."""

    alpha: float
    beta: float
    threshold: float
    hidden: int
    drop: float
    entropy: Criterion = PLAIN

    def init(self, key: Tensor, features: int, classes: int, dtype: torch.dtype) -> Tree:
        """First weights: Xavier-uniform with gain √2, no biases. The weights of X̂ are side by side, hop by hop."""
        slope = torch.full((), SLOPE, device=key.device)
        blocks = []
        for k in range(HOPS + 1):
            blocks.append(_xavier(random.fold(key, "hop", k), features, self.hidden * 3, 4 * features, self.hidden))
        blocks.append(_xavier(random.fold(key, "ego"), features, self.hidden, features, self.hidden))
        w: Tree = {"features": {"weight": torch.cat(blocks, 1)}, "signed": {"slope": slope}}
        for name in MODULES:
            widths = (self.hidden, classes) if name == "like" else (self.hidden, self.hidden, classes)
            w[name] = {"bias": torch.zeros(self.hidden, device=key.device), "slope": slope.clone()}
            for at, (fan_in, fan_out) in enumerate(pairwise(widths), 1):
                w[name][f"weight{at}"] = _xavier(random.fold(key, name, at), fan_in, fan_out, fan_in, fan_out)
                w[name][f"bias{at}"] = torch.zeros(fan_out, device=key.device)
            if name != "like":
                w[name]["slope1"] = slope.clone()
        return map_leaves(lambda leaf: leaf.to(dtype), w)

    def constants(self, graph: Graph, soft: Tensor) -> Tree:
        """The constants of training: "soft" P̂, "similar" U and "hat" Â [n, n]."""
        both = pairs(graph.real)
        similar = ((similarity(soft, both) > self.threshold) & both).to(soft.dtype)  # [n, n]
        identity = torch.eye(graph.nodes, dtype=soft.dtype, device=soft.device)
        edges = graph.edges.operator("sum") @ identity
        mixed = self.alpha * edges + (1 - self.alpha) * similar + identity
        scale = mixed.sum(1).rsqrt()
        return {"soft": soft, "similar": similar, "hat": scale[:, None] * mixed * scale}

    def logits(self, w: Tree, graph: Graph, inputs: Tree, key: Tensor | None) -> dict[str, Tensor]:
        """The logits [n, C] of every module; a key switches dropout on."""
        wide = self.hidden * 3
        product = linear(graph.x, w["features"]["weight"])
        *hops, ego = product.split([wide] * (HOPS + 1) + [self.hidden], 1)
        h = hops[-1]
        for hop in reversed(hops[:-1]):
            h = hop + inputs["hat"] @ h
        out = dict(zip(MODULES, (*h.split(self.hidden, 1), ego), strict=True))
        logits = {name: self._module(w[name], h, key, name) for name, h in out.items()}
        # the message e becomes ((softmax(PReLU(R) e) − softmax(PReLU(−R) e)) + e) / 2
        both, e, slope = pairs(graph.real), logits["message"], w["signed"]["slope"]
        r = signs(self.beta * inputs["similar"] + (1 - self.beta) * similarity(e, both), both)
        toward, away = (torch.softmax(prelu(side, slope) @ e, 1) for side in (r, -r))
        return logits | {"message": (toward - away + e) / 2}

    def _module(self, w: Tree, h: Tensor, key: Tensor | None, name: str) -> Tensor:
        def active(h: Tensor, slope: Tensor, at: int) -> Tensor:
            h = prelu(h, slope)
            return h if key is None or not self.drop else random.dropout(random.fold(key, name, at), h, self.drop)

        h = linear(active(h + w["bias"], w["slope"], 0), w["weight1"]) + w["bias1"]
        return linear(active(h, w["slope1"], 1), w["weight2"]) + w["bias2"] if "weight2" in w else h

    def loss(self, w: Tree, graph: Graph, key: Tensor, inputs: Tree) -> Tensor:
        """Cross-entropies of all modules, and the mean over nodes of ‖a − P̂‖² / C, scalar; 0 without training nodes."""
        outputs, train = self.logits(w, graph, inputs, key), graph.masks[TRAIN].to(inputs["soft"].dtype)
        y, real = graph.y.clamp(min=0), graph.real.to(train.dtype)
        near = ((outputs["like"] - inputs["soft"]).square().mean(1) * real).sum() / real.sum().clamp(min=1)
        entropies = [self.entropy.of(logits, y, train, graph.y, graph.masks[TRAIN]) for logits in outputs.values()]
        result: Tensor = near * train.any() + sum(entropies)
        return result

    def predict(self, w: Tree, graph: Graph, inputs: Tree, s: Tensor) -> Tensor:
        """ln(s (softmax a + P̂) / 2 + (1 − s) (softmax b + softmax c + softmax g) / 3), [n, C]."""
        p = {name: torch.softmax(logits, 1) for name, logits in self.logits(w, graph, inputs, None).items()}
        homophilous, heterophilous = (p["like"] + inputs["soft"]) / 2, (p["ego"] + p["smooth"] + p["message"]) / 3
        result: Tensor = (s * homophilous + (1 - s) * heterophilous).clamp(min=1e-12).log()
        return result


def pairs(real: Tensor) -> Tensor:
    """bool [n, n]: both nodes are real, not padding."""
    return real[:, None] & real


def similarity(out: Tensor, both: Tensor) -> Tensor:
    """[n, n]: cosines of the rows' softmax, 0 on the diagonal and outside `both`."""
    unit = F.normalize(torch.softmax(out, 1), dim=1)
    different = both & ~torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    return (unit @ unit.T) * different


def signs(r: Tensor, both: Tensor) -> Tensor:
    """R centered at its mean and scaled to (0, 1] above it and [−1, 0] below, and 1 added on the diagonal."""
    mean = r.sum() / both.sum().clamp(min=1)
    up, down = (torch.where(both, r, 0.0).amax() - mean).clamp(min=1e-12), mean.clamp(min=1e-12)
    scaled = torch.where(r > mean, (r - mean) / up, (r - mean) / down)
    return (scaled + torch.eye(len(r), dtype=r.dtype, device=r.device)) * both


def prelu(h: Tensor, slope: Tensor) -> Tensor:
    """h where positive, else slope · h."""
    return torch.where(h > 0, h, slope * h)


def homophily(graph: Graph, key: Tensor, classes: int) -> Tensor:
    """s, float64 scalar: label propagation's accuracy on a random half of the training nodes, with the other half's
    labels given; .5 with fewer than two training nodes."""
    train = graph.masks[TRAIN]
    rank = random.order(key, train).argsort().argsort()
    known = train & (rank < (train.sum() + 1) // 2)  # [n]
    return propagation_accuracy(graph, known, train & ~known, classes)


def propagation_accuracy(graph: Graph, known: Tensor, queried: Tensor, classes: int) -> Tensor:
    """Label propagation's accuracy on the `queried` nodes, given the labels of the `known` nodes; both bool [n]."""
    truth = F.one_hot(graph.y.clamp(min=0), classes).double()
    start = torch.where(known[:, None], truth, 1 / classes)
    correct = (propagate(graph, start, known[:, None], SPREADING, 0.5).argmax(1) == graph.y) & queried
    return torch.where(queried.any(), correct.sum() / queried.sum().clamp(min=1).double(), 0.5)


def propagate(graph: Graph, start: Tensor, train: Tensor, hops: int, alpha: float) -> Tensor:
    """F after `hops` steps F ← α Â F + (1 − α) F_0; each step also adds F_0 to the training nodes' rows: start,
    F_0, float64 [n, C], train bool [n, 1]. Entries may exceed 1."""
    a, f = graph.edges.operator("gcn"), start
    for _ in range(hops):
        f = alpha * (a @ f.to(graph.x.dtype)).double() + (1 - alpha) * start + torch.where(train, start, 0.0)
    return f


def _xavier(key: Tensor, rows: int, columns: int, fan_in: int, fan_out: int) -> Tensor:
    return uniform(key, (rows, columns), math.sqrt(2) * math.sqrt(6 / (fan_in + fan_out)))

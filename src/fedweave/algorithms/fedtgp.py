"""FedTGP: Zhang et al. 2024, "FedTGP: trainable global prototypes with adaptive-margin-enhanced contrastive learning
for data and model heterogeneity in federated learning", algorithm 1.

FedProto whose server trains one prototype of each class, so that clients' prototypes of the class are nearer to it than
to other classes' prototypes by a margin. Deviations: 20 full-batch steps of Adam a round (100 gave the same on Cora)
instead of a thousand epochs of SGD over batches of ten; the softmax is over the classes with a prototype this round (in
the released code over all); every client starts from the same weights; lam is 1 (in the released command 10). OpenFGL's
version divides the class means by the number of clients once for each class, so that its margin is about 0, and trains
on rows of 0 for classes that a client lacks, so its numbers are not comparable.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedweave.algorithms.fedproto import ClassPrototypes, NearestPrototype, stack_prototypes
from fedweave.algorithms.parts import Part, Round
from fedweave.algorithms.preset import part_of, preset_of
from fedweave.core import random
from fedweave.core.bounds import CountOrNone, Positive
from fedweave.core.federation import Federation
from fedweave.core.tree import Tree, map_leaves
from fedweave.learn import Adam, fit, keep_trained
from fedweave.models.blocks import affine

MAX_MARGIN = 100.0  # of the margin, in the released code


@dataclass(frozen=True)
class TrainedPrototypes(ClassPrototypes):
    """`ClassPrototypes` whose q_j = T(e_j) the server trains, T two linear layers and e_j a vector of class j, on the
    mean over received prototypes c of −ln softmax_j(−(‖c − q_j‖ + δ [j is its class])).

    δ is the largest distance of a class's plain mean over clients to the nearest other's, at most 100.

    steps: steps of Adam at the server in each round, from where the last round ended.
    rate:  learning rate of the server's steps of Adam.
    """

    steps: CountOrNone = 20
    rate: Positive = 0.01
    recorded = True
    client_learns: ClassVar = {
        "prototype": "of each class, a vector that the server trained near to members' mean embeddings",
        "known": "which classes any member has",
    }

    def init(self, fed: Federation, w: Tree) -> Tree:
        return {"key": fed.key("prototypes")}

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, ...]:
        return {key: state[key] for key in ("prototype", "known") if key in state}, {}

    def update(self, state: Tree, round: Round) -> Tree:
        received, counts = stack_prototypes(round)  # [P, C, d], [P, C]
        rows, present = received.double(), counts > 0
        w = state["w"] if "w" in state else first(state["key"], *rows.shape[1:])
        if self.steps:
            args = {"rows": rows, "present": present, "margin": margin(rows, present)}
            fitted = fit(_loss, w, None, state["key"], Adam(self.rate, 0.0), self.steps, args=args)  # type: ignore[arg-type]
            w = keep_trained(present.any(), fitted.w, w)
        known = state.get("known", False) | present.any(0)
        return {"key": state["key"], "w": w, "prototype": prototypes(w).to(received.dtype), "known": known}


@dataclass(frozen=True)
class NearestTrained(TrainedPrototypes, NearestPrototype):
    """`TrainedPrototypes` whose clients answer by the class of the nearest one, as in `NearestPrototype`."""

    recorded = True


def first(key: Tensor, classes: int, width: int) -> Tree:
    """T and e at first, float64: e ~ N(0, 1), T as torch's linear layers start."""
    layer = affine(width, width)
    weights: Tree = {str(at): layer.init(random.fold(key, "layer", at)) for at in range(2)}
    weights["e"] = {"class": random.normal(random.fold(key, "class"), (classes, width))}
    return map_leaves(Tensor.double, weights)


def prototypes(w: Tree) -> Tensor:
    """q [C, d]."""
    h = torch.relu(w["e"]["class"] @ w["0"]["weight"] + w["0"]["bias"])
    q: Tensor = h @ w["1"]["weight"] + w["1"]["bias"]
    return q


def margin(rows: Tensor, present: Tensor) -> Tensor:
    """δ, scalar, from the prototypes [P, C, d] that are `present`, bool [P, C]; 0 with fewer than two classes."""
    count = present.sum(0)
    center = (rows * present[:, :, None]).sum(0) / count.clamp(min=1)[:, None]
    distance = torch.cdist(center, center, compute_mode="donot_use_mm_for_euclid_dist")  # [C, C]
    pair = (count > 0) & (count > 0)[:, None] & ~torch.eye(len(count), dtype=torch.bool, device=rows.device)
    nearest = torch.where(pair, distance, torch.inf).amin(1)
    return torch.where(nearest.isfinite(), nearest, 0.0).amax().clamp(max=MAX_MARGIN)


def contrast(rows: Tensor, present: Tensor, q: Tensor, margin: Tensor) -> Tensor:
    """The server's loss, scalar: rows [P, C, d], present bool [P, C], q [C, d]."""
    distance = ((rows[:, :, None] - q).square().sum(3) + 1e-12).sqrt()  # [P, own class, other class]
    same = torch.eye(len(q), dtype=torch.bool, device=q.device)
    logits = torch.where(present.any(0), -(distance + margin * same), -torch.inf)
    each = logits.logsumexp(2) - logits.diagonal(dim1=1, dim2=2).where(present, 0.0)
    return torch.where(present, each, 0.0).sum() / present.sum().clamp(min=1)


def _loss(w: Tree, graph: object, key: Tensor, args: Tree) -> Tensor:
    return contrast(args["rows"], args["present"], prototypes(w), args["margin"])


@preset_of(TrainedPrototypes, without=("how",))
class FedTGP:
    """FedProto with prototypes that the server trains to be far from each other.

    head:  what clients answer by, their "own" last layer, or the nearest "prototype" (the paper), which needs a linear
           last layer.
    share: patterns of weights that are shared; none.
    """

    head: Literal["own", "prototype"] = "own"
    share: tuple[str, ...] = ()

    exempt_laws: ClassVar[dict[str, str]] = {
        "one_client_is_ordinary_training": "a client is pulled to its own prototypes"
    }

    def parts(self) -> tuple[Part, ...]:
        return (part_of(self, NearestTrained if self.head == "prototype" else TrainedPrototypes),)

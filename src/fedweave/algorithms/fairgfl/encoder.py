"""Codes of nodes: an encoder that the server makes of a public sample and sends to all clients (Zhou et al. 2026,
section V-B1 and appendix F-B), and what a curious server finds out of noisy codes and links (section VII).

Everything about an encoder comes from the public sample: its projection, and the thresholds or ranges of its
coordinates. The paper leaves its form open; ours is one linear layer, which an autoencoder follows by tanh and another.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.algorithms.parts.part import Attacked
from fedweave.core import random
from fedweave.core.arrays import dense
from fedweave.core.graph import Graph
from fedweave.core.tree import Tree, leaves
from fedweave.datasets.base import Dataset
from fedweave.errors import CallRefused, UserError
from fedweave.learn import Adam, fit
from fedweave.ops.linear import linear
from fedweave.ops.sparse import Sparse
from fedweave.partition.base import Partition
from fedweave.partition.statistics import statistics
from fedweave.privacy.attacks import reidentified, repeated_queries

EncoderName = Literal["autoencoder", "pca", "random"]
CodeName = Literal["binary", "minmax"]
_BATCH = 32  # of the autoencoder's training
_LR = (
    1e-4  # with ten times that, 600 rounds on Cora correlate the coordinates so much that different nodes' codes match
)


@dataclass(frozen=True)
class Encoder:
    """How the server makes an encoder.

    kind:   "autoencoder", "pca", or a "random" projection.
    code:   "binary": 1 where a coordinate is above its median on the public sample; "minmax": its place between its
            ends there.
    size:   d, coordinates of a code.
    rounds: minibatches of 32 public nodes that an autoencoder is trained on; 0 leaves its first weights.
    """

    kind: EncoderName
    code: CodeName
    size: int
    rounds: int

    def made(self, public: Graph, key: Tensor) -> Tree:
        """What clients are sent: "weight" [features, d], and "low" and, for a min-max code, "span" [d]."""
        x = features(public)
        weight = {"autoencoder": self._trained, "pca": self._principal, "random": self._random}[self.kind](
            x, public, key
        ).to(x.dtype)
        u = linear(x, weight)
        if self.code == "binary":
            return {"weight": weight, "low": u.quantile(0.5, dim=0)}
        low = u.amin(0)
        return {"weight": weight, "low": low, "span": (u.amax(0) - low).clamp(min=1e-9)}

    def _random(self, x: Tensor, public: Graph, key: Tensor) -> Tensor:
        result: Tensor = random.normal(random.fold(key, "encoder"), (x.shape[1], self.size)) * x.shape[1] ** -0.5
        return result

    def _principal(self, x: Tensor, public: Graph, key: Tensor) -> Tensor:
        if self.size > min(len(x) - 1, x.shape[1]):
            raise UserError(
                f"encoder = 'pca' has at most {min(len(x) - 1, x.shape[1])} components of {len(x)} public nodes with "
                f"{x.shape[1]} features, but code_size is {self.size}; lower it, or raise [partition] public.",
                code="user.components",
            )
        result: Tensor = torch.linalg.svd(x.double() - x.double().mean(0), full_matrices=False)[2][: self.size].T
        return result

    def _trained(self, x: Tensor, public: Graph, key: Tensor) -> Tensor:
        w = {
            "in": self._random(x, public, key).to(x.dtype),
            "out": (random.normal(random.fold(key, "decoder"), (self.size, x.shape[1])) * self.size**-0.5).to(x.dtype),
            "mean": x.mean(0),
        }
        if self.rounds == 0:
            result: Tensor = w["in"]
            return result
        trained: Tensor = fit(_reconstruction, w, public, key, Adam(_LR), self.rounds, args={"x": x}).w["in"]
        return trained


def features(public: Graph) -> Tensor:
    """[m, F]: those of the sample's m nodes, dense."""
    n = int(public.real.sum())
    x = public.x
    return torch.from_numpy(x.blocks.members[0].scipy()[:n].toarray()).to(x.device) if isinstance(x, Sparse) else x[:n]


def check_form(encoder: Tree, width: int, size: int, code: CodeName) -> None:
    """Refuse an encoder that is not of the form that `Encoder.made` gives: each further coordinate would cost its ε.

    Raises:
        CallRefused: names both forms.
    """
    due = {"weight": (width, size), "low": (size,)} | ({"span": (size,)} if code == "minmax" else {})
    found = {name: tuple(leaf.shape) for name, leaf in leaves(encoder)}
    if found != due:
        raise CallRefused(f"the server sends an encoder of the form {found}, and not {due}")


def encoded(encoder: Tree, x: "Tensor | Sparse") -> Tensor:
    """The codes of nodes with the features x [n, F]: [n, d] in [0, 1]."""
    u = linear(x, encoder["weight"])
    if "span" in encoder:
        result: Tensor = ((u - encoder["low"]) / encoder["span"]).clamp(0, 1)
        return result
    result = (u > encoder["low"]).to(u.dtype)
    return result


def _reconstruction(w: Tree, public: Graph, key: Tensor, args: Tree) -> Tensor:
    """Mean squared error of the autoencoder on a minibatch."""
    x = args["x"]
    x = x[random.bits(random.fold(key, "batch"), len(x)).argsort()[:_BATCH]]
    return F.mse_loss(torch.tanh(linear(x, w["in"])) @ w["out"] + w["mean"], x)


QUERIES = (1, 5, 10, 20, 30)
HOLDERS = (1, 3, 5, 10, 27)
PAIRS = 10_000  # that links are asked of


def attacked_links(data: Dataset, partition: Partition, epsilon: float, key: Tensor) -> list[Attacked]:
    """Telling whether two nodes are linked from several answers, of one client or of several."""
    links = sum(statistics(data, partition)["edges_kept"])
    truth = torch.arange(PAIRS, device="cpu") < min(links, PAIRS // 2)  # half are, or all links that there are

    def share(copies: int, permanent: bool) -> float:
        return repeated_queries(truth, epsilon, copies, key, permanent)

    asked = [("links, asked again", f"{n} answer{'s' * (n > 1)}", share(n, False), share(n, True)) for n in QUERIES]
    return asked + [("links, majority of holders", f"{n} client{'s' * (n > 1)}", 1.0, share(n, False)) for n in HOLDERS]


def held_features(data: Dataset, partition: Partition) -> Tensor:
    """The features of all nodes that clients hold, [n, d]."""
    x = data.x[np.unique(np.concatenate([own.nodes for own in partition.parts]))]
    return torch.from_numpy(dense(x))


def attacked_codes(clean: Tensor, bare: Tensor, hidden: Tensor) -> Attacked:
    """Naming the node of one code [b] among all n nodes, from codes [n, b] as sent without the noise and with it."""
    owner = torch.arange(len(clean), device="cpu")
    without, with_it = (reidentified(noisy, clean, owner) for noisy in (bare, hidden))
    return "node of one code", f"{len(clean):,} nodes' features", without, with_it

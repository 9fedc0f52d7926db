"""Codes of nodes (Zhou et al. 2026, section V-B1 and appendix F-B).

The server makes an encoder from a public sample and sends it to all clients. Everything about an encoder comes from the
sample: its projection, and the thresholds or ranges of its coordinates. The paper leaves its form open; ours is one
linear layer. To train it, an autoencoder adds tanh and a second linear layer, which codes do not use.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.core import random
from fedweave.core.graph import Graph
from fedweave.core.tree import Tree, leaves
from fedweave.errors import CallRefused, UserError
from fedweave.learn import Adam, fit
from fedweave.ops.linear import linear
from fedweave.ops.sparse import Sparse

EncoderName = Literal["autoencoder", "pca", "random"]
CodeName = Literal["binary", "minmax"]
_BATCH = 32  # of the autoencoder's training
# With ten times this rate, 600 rounds on Cora correlate the coordinates so much that different nodes' codes match.
_LR = 1e-4


@dataclass(frozen=True)
class Encoder:
    """The settings from which the server makes an encoder, which is a tree.

    kind:   "autoencoder", "pca", or a "random" projection.
    code:   "binary": 1 where a coordinate is above its median on the public sample; "minmax": its position in its
            range there, from 0 to 1.
    size:   d, number of coordinates of a code.
    rounds: number of minibatches of 32 public nodes that an autoencoder is trained on; 0 keeps its initial weights.
    """

    kind: EncoderName
    code: CodeName
    size: int
    rounds: int

    def build(self, public: Graph, key: Tensor) -> Tree:
        """The encoder for the clients: "weight" [features, d], "low" [d] (the threshold of a binary code, the lower end
        of a min-max code) and, for a min-max code, "span" [d].

        Raises:
            UserError: the sample has fewer principal components than `size`.
        """
        x = sample_features(public)  # [m, features]
        if self.kind == "pca":
            max_components = min(len(x) - 1, x.shape[1])
            if self.size > max_components:
                raise UserError(
                    f"encoder = 'pca' has at most {max_components} components of {len(x)} public nodes "
                    f"with {x.shape[1]} features, but code_size is {self.size}; lower it, or raise [partition] public.",
                    code="user.components",
                )
            components = torch.linalg.svd(x.double() - x.double().mean(0), full_matrices=False)[2]
            weight = components[: self.size].T.to(x.dtype)  # [features, d]
        else:
            projection = random.normal(random.fold(key, "encoder"), (x.shape[1], self.size)) * x.shape[1] ** -0.5
            weight = projection.to(x.dtype)  # [features, d]
        if self.kind == "autoencoder" and self.rounds:
            decoder = random.normal(random.fold(key, "decoder"), (self.size, x.shape[1])) * self.size**-0.5
            w = {"in": weight, "out": decoder.to(x.dtype), "bias": x.mean(0)}  # the bias starts at the mean
            weight = fit(_reconstruction_error, w, public, key, Adam(_LR), self.rounds, args={"x": x}).w["in"]
        u = linear(x, weight)  # [m, d]; centering x would move thresholds and ranges alike, and so no code
        if self.code == "binary":
            return {"weight": weight, "low": u.quantile(0.5, dim=0)}
        low = u.amin(0)
        return {"weight": weight, "low": low, "span": (u.amax(0) - low).clamp(min=1e-9)}


def sample_features(public: Graph) -> Tensor:
    """[m, F]: features of the sample's m nodes, dense and without padding."""
    m, x = int(public.real.sum()), public.x
    if isinstance(x, Sparse):
        return torch.from_numpy(x.blocks.members[0].scipy()[:m].toarray()).to(x.device)
    return x[:m]


def check_encoder(encoder: Tree, width: int, size: int, code: CodeName) -> None:
    """Check that an encoder from the server has the form of `Encoder.build`: each further coordinate costs another ε.

    Raises:
        CallRefused: it has not.
    """
    expected = {"weight": (width, size), "low": (size,)} | ({"span": (size,)} if code == "minmax" else {})
    shapes = {name: tuple(leaf.shape) for name, leaf in leaves(encoder)}
    if shapes != expected:
        raise CallRefused(f"the server sends an encoder of the form {shapes}, and not {expected}")


def node_codes(encoder: Tree, x: "Tensor | Sparse") -> Tensor:
    """The codes of nodes with the features x [n, F]: [n, d] in [0, 1]."""
    u = linear(x, encoder["weight"])
    if "span" in encoder:
        result: Tensor = ((u - encoder["low"]) / encoder["span"]).clamp(0, 1)
        return result
    result = (u > encoder["low"]).to(u.dtype)
    return result


def _reconstruction_error(w: Tree, public: Graph, key: Tensor, args: Tree) -> Tensor:
    """Mean squared error of the autoencoder on a minibatch."""
    order = random.bits(random.fold(key, "batch"), len(args["x"])).argsort()
    x = args["x"][order[:_BATCH]]  # [b, F]
    return F.mse_loss(torch.tanh(linear(x, w["in"])) @ w["out"] + w["bias"], x)

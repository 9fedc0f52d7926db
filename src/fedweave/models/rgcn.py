"""Relational graph convolutions (Schlichtkrull, Kipf, Bloem, van den Berg, Titov and Welling 2018, "Modeling Relational
Data with Graph Convolutional Networks", eqs. 2 and 3)."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.bounds import Depth, Width
from fedweave.core.edge_attributes import operator_name
from fedweave.core.graph import Graph
from fedweave.core.model import Hidden, Layer, Model
from fedweave.core.plugins import remember_maker
from fedweave.core.tree import Tree
from fedweave.models import blocks
from fedweave.models.norms import ConvolutionStack
from fedweave.ops.linear import linear
from fedweave.ops.rows import gather_rows


@dataclass(frozen=True)
class RGCN(ConvolutionStack):
    """`layers` relational convolutions of width `hidden`, with ReLU and `dropout` after each but the last.

    Messages go along a link and back. Each relation has a weight matrix for either way: a mixture of `bases` matrices
    that all relations share. Links have relations (`[data] task = "links"`); all other edges have the same one.

    layers:    number of convolutions.
    bases:     number of matrices that the relations' weights mix.
    relations: number of relations; None takes the data's number.
    """

    bases: Depth = 4
    relations: Width | None = None
    directed: ClassVar[str] = "both"

    @remember_maker
    def build(self, features: int, classes: int) -> Model:
        make_layer = partial(convolution, relations=self.relations or 1, bases=self.bases)
        return blocks.chain(make_layer, features, classes, self)


def convolution(fan_in: int, fan_out: int, relations: int, bases: int) -> Layer:
    """W_0 h_i + b + Σ_r 1/|N_r(i)| Σ_{j in N_r(i)} W_r h_j with W_r = Σ_b a_rb V_b. Relation r leads from a link's
    source to its target, and r + R from target to source. PyG's `RGCNConv` with `num_bases`, initialized like it
    (Glorot).

    The V_b lie side by side, [fan_in, bases fan_out], so that they are applied before messages are sent.
    """
    ways = {"forward": slice(0, relations), "reverse": slice(relations, 2 * relations)}

    def init(key: Tensor) -> Tree:
        each = [blocks.glorot(random.fold(key, "basis", b), fan_in, fan_out) for b in range(bases)]
        return {
            "basis": torch.cat(each, 1),
            "mixture": blocks.glorot(random.fold(key, "mixture"), 2 * relations, bases),
            "root": blocks.glorot(random.fold(key, "root"), fan_in, fan_out),
            "bias": torch.zeros(fan_out, device=key.device),
        }

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Tensor:
        sent = linear(h, w["basis"])  # [n, bases fan_out]
        out: Tensor = linear(h, w["root"]) + w["bias"]
        for way, rows in ways.items():
            names = ("from", "relation", "relation_mean")
            start, relation, means = (graph.edges.operator(operator_name(what, way)) for what in names)
            of_edge = (relation @ sent.new_ones(1, 1))[:, 0].long()
            mixture = gather_rows(w["mixture"][rows], of_edge)  # [m, bases]
            messages = ((start @ sent).unflatten(1, (bases, fan_out)) * mixture[:, :, None]).sum(1)
            out = out + means @ messages
        return out

    return Layer(init, apply, ("basis", "root"), operator=operator_name("relation_mean", "forward"), reads="graph")

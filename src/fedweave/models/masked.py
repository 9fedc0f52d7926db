"""Layers whose weights are multiplied by trained masks."""

from functools import partial

import torch
from torch import Tensor

from fedweave.core.graph import Graph
from fedweave.core.model import Hidden, Layer
from fedweave.core.tree import Tree

SUFFIX = "_mask"


def masked(layer: Layer, threshold: float) -> Layer:
    """`layer` with the weights w ∘ μ, a mask μ for each of its matrices.

    The mask of "weight" is the weight "weight_mask"; it starts at 1. Entries of it below `threshold` in magnitude count
    as 0 in evaluation, where a layer gets no key.
    """

    def init(key: Tensor) -> Tree:
        w = layer.init(key)
        return w | {name + SUFFIX: torch.ones_like(leaf) for name, leaf in w.items() if leaf.dim() > 1}

    def apply(w: Tree, graph: Graph, h: Hidden, key: Tensor | None) -> Hidden:
        return layer.apply(_multiplied(w, threshold if key is None else None), graph, h, key)

    return layer._replace(init=init, apply=apply, plain=partial(_multiplied, threshold=threshold))


def pruned(mask: Tensor, threshold: float) -> Tensor:
    """The mask with 0 in place of entries below `threshold` in magnitude."""
    return torch.where(mask.abs() < threshold, 0, mask)


def _multiplied(w: Tree, threshold: float | None) -> Tree:
    """The products of weights and masks, in which entries below a threshold in magnitude count as 0."""
    masks = {name: leaf for name, leaf in w.items() if name.endswith(SUFFIX)}
    if threshold is not None:
        masks = {name: pruned(mask, threshold) for name, mask in masks.items()}
    plain = {name: leaf for name, leaf in w.items() if name not in masks}
    return plain | {name: leaf * masks[name + SUFFIX] for name, leaf in plain.items() if name + SUFFIX in masks}

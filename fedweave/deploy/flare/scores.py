"""Scores as a site lets them leave."""

import torch
from torch import Tensor

from fedweave.core.tree import Tree

_COUNTED = ("own", "trained", "global_test")  # what holds pairs of `metrics.classification`
_PLAIN = ("loss", "accuracy")  # those that are not by class or group


def rounded(reply: Tree, step: int) -> Tree:
    """A scoring step's reply with sums and counts of loss and hits rounded to multiples of `step`, and zeros, which are
    the pairs of no examples, for all that is counted by class or group."""

    def coarse(pairs: Tree) -> Tree:
        return {name: _rounded(name, leaf, step) for name, leaf in pairs.items()}

    return {name: coarse(pairs) if name in _COUNTED else pairs for name, pairs in reply.items()}


def _rounded(name: str, leaf: Tensor, step: int) -> Tensor:
    if name not in _PLAIN:
        return torch.zeros_like(leaf)
    coarse = (leaf / step).round() * step
    return coarse * (coarse[:, 1:] > 0)  # no examples have no loss

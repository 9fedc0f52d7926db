"""Scores as a site lets them leave."""

from dataclasses import replace

import torch
from torch import Tensor

from fedweave.core.federation import StepInfo
from fedweave.core.tree import Tree

_COUNTED = ("own", "trained", "global_test")  # what holds pairs of `metrics.classification`
_PLAIN = "accuracy"  # what is counted, and not by class or group
NOTHING = "nothing: zeros in place of losses and of what is counted by class or group"


def rounded(reply: Tree, info: StepInfo, step: int) -> tuple[Tree, StepInfo]:
    """A scoring step's reply with counts of hits rounded to multiples of `step`, and zeros, which are the pairs of no
    examples, for all that is counted by class or group and for losses; and `info` with what that reveals.

    Weights that the server chooses make a single loss as large as it likes, such that a rounded sum tells exact counts.
    """
    made, sends = dict(reply), dict(info.sends)
    for key in (key for key in _COUNTED if key in reply):
        made[key] = {name: _rounded(name, leaf, step) for name, leaf in reply[key].items()}
        for name in reply[key]:
            told = f"how many hits and examples, as multiples of {step}" if name == _PLAIN else NOTHING
            sends[f"{key}/{name}"] = replace(info.sends[info.covering(f"{key}/{name}") or key], reveals=told)
    return made, replace(info, sends=sends)


def _rounded(name: str, leaf: Tensor, step: int) -> Tensor:
    if name != _PLAIN:
        return torch.zeros_like(leaf)
    coarse = (leaf / step).round() * step
    return coarse * (coarse[:, 1:] > 0)  # no examples have no hits

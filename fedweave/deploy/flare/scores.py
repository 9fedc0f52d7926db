"""Scores as a site lets them leave."""

from dataclasses import replace

import torch
from torch import Tensor

from fedweave.core.federation import StepInfo
from fedweave.core.tree import Tree, leaves
from fedweave.deploy.flare.peers import read_rounding

_COUNTED = ("own", "trained", "global_test")  # what holds pairs of `metrics.classification`
_PLAIN = "accuracy"  # what is counted, and not by class or group
NOTHING = "nothing: zeros in place of losses and of what is counted by class or group"


def rounded(reply: Tree, step: int) -> Tree:
    """A scoring step's reply with counts of hits rounded to multiples of `step`, and zeros, which are the pairs of no
    examples, for all that is counted by class or group and for losses.

    Weights that the server chooses make a single loss as large as it likes, such that a rounded sum tells exact counts.
    """
    return reply | {
        key: {name: _rounded(name, leaf, step) for name, leaf in reply[key].items()} for key in _COUNTED if key in reply
    }


def declared(info: StepInfo, reply: Tree, step: int) -> StepInfo:
    """`info` with what a `rounded` reply reveals."""
    sends = dict(info.sends)
    for key, name in ((own, name) for own in _COUNTED for name in reply.get(own, ())):
        told = f"how many hits and examples, as multiples of {step}" if name == _PLAIN else NOTHING
        sends[f"{key}/{name}"] = replace(info.sends[info.covering(f"{key}/{name}") or key], reveals=told)
    return replace(info, sends=sends)


def as_arrived(info: StepInfo, reply: Tree, note: str) -> StepInfo:
    """`info` with what a reply reveals whose site notes that it is `rounded`; `info` itself where it is not so."""
    step = read_rounding(note)
    if step < 2 or not any(key in reply for key in _COUNTED):
        return info
    whole = dict(leaves(reply))
    same = all(torch.equal(leaf, whole[path]) for path, leaf in leaves(rounded(reply, step)))
    return declared(info, reply, step) if same else info


def _rounded(name: str, leaf: Tensor, step: int) -> Tensor:
    if name != _PLAIN:
        return torch.zeros_like(leaf)
    coarse = (leaf / step).round() * step
    return coarse * (coarse[:, 1:] > 0)  # no examples have no hits

"""Scores as a site lets them leave."""

from dataclasses import replace

import torch
from torch import Tensor

from fedweave.core.federation import StepInfo
from fedweave.core.tree import Tree, leaves, nest
from fedweave.deploy.flare.wire.peers import read_rounding

_COUNTED = ("own", "trained", "global_test")  # what holds pairs of `metrics.classification`
_PLAIN = "accuracy"  # what is counted, and not by class or group
NOTHING = "nothing: zeros in place of losses, of what is counted by class or group, and of whatever else it measures"


def rounded(reply: Tree, step: int) -> Tree:
    """A scoring step's reply with counts of hits rounded to multiples of `step`, and zeros in place of all else: of no
    examples in pairs of what is counted by class or group.

    Messages that the server chooses make a single loss as large as it likes, so that a rounded sum gives exact counts,
    and other measures are functions of the labels, too.
    """
    flat = ((path, *path.split("/")) for path, _ in leaves(reply))
    hits = {path for path, key, *name in flat if key in _COUNTED and name == [_PLAIN]}
    return nest({path: _coarse(leaf, step) if path in hits else torch.zeros_like(leaf) for path, leaf in leaves(reply)})


def declared(info: StepInfo, reply: Tree, step: int) -> StepInfo:
    """`info` with what a `rounded` reply reveals."""
    sends = dict(info.sends)
    for path, _ in leaves(reply):
        key, *name = path.split("/")
        hits = key in _COUNTED and name == [_PLAIN]
        told = f"how many hits and examples, as multiples of {step}" if hits else NOTHING
        sends[path] = replace(info.sends[info.covering(path) or key], reveals=told)
    return replace(info, sends=sends)


def as_arrived(info: StepInfo, reply: Tree, note: str) -> StepInfo:
    """`info` with what a reply reveals whose site notes that it is `rounded`; `info` itself where it is not so."""
    step = read_rounding(note)
    if step < 2 or not any(key in reply for key in _COUNTED):
        return info
    whole = dict(leaves(reply))
    same = all(torch.equal(leaf, whole[path]) for path, leaf in leaves(rounded(reply, step)))
    return declared(info, reply, step) if same else info


def _coarse(leaf: Tensor, step: int) -> Tensor:
    coarse = (leaf / step).round() * step
    return coarse * (coarse[:, 1:] > 0)  # no examples have no hits

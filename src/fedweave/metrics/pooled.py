"""Scores of one model over the examples of all members together: where somebody holds them all, in a simulation, or
from sums of histograms.

Examples of different members are compared with each other there, so that these numbers are no sums over members. What
orders examples (AUC) needs their logits side by side, which no member sends; members send how many have which score, in
a sum over all (`histograms`).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedweave.core import model as models
from fedweave.core.graph import VAL, Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree, device_of
from fedweave.metrics import histograms
from fedweave.metrics.classification import ordered, values
from fedweave.metrics.flagging import probabilities, scores, threshold
from fedweave.metrics.judging import Threshold

POOLED = "pooled"  # of all metrics' names


class Alarm(NamedTuple):
    """Which of two classes is looked for, and by what it is decided which examples are flagged."""

    positive: int
    threshold: Threshold


def pooled(model: Model, w: Tree, graphs: Iterable[Graph], alarm: Alarm | None = None) -> dict[str, np.ndarray]:
    """{"pooled/auc": float64 [3]} of the model on the train, val and test examples of all `graphs`, NaN where a split
    lacks positives or negatives; an example that two of them hold counts twice. With an `alarm`, where there are two
    classes, also what `flagging.scores` says, from the "pooled/threshold" on that validation examples decide."""
    return pooled_examples([judged_examples(model, w, graph) for graph in graphs], alarm)


def judged_examples(model: Model, w: Tree, graph: Graph) -> Tree:
    """What the model says of a graph's examples that are in a split: "logits" [e, c], "y" [e] and "masks" [3, e]."""
    graph = graph.to(device_of(w))
    used = graph.masks.any(0)
    with torch.no_grad():
        return {"logits": models.judged(model, w, graph)[used], "y": graph.y[used], "masks": graph.masks[:, used]}


def pooled_examples(found: Sequence[Tree], alarm: Alarm | None = None) -> dict[str, np.ndarray]:
    """`pooled` of what `judged_examples` has of each client."""
    with torch.no_grad():
        named = (("logits", 0), ("y", 0), ("masks", 1))
        logits, y, masks = (torch.cat([own[name] for own in found], dim) for name, dim in named)
        pairs = torch.cat([ordered(logits[mask], y[mask], mask[mask][None]) for mask in masks])
    whole = {"auc": np.asarray(values({"auc": pairs.cpu()})["auc"])}
    if alarm is not None and logits.shape[-1] == 2:
        whole |= _flagged(logits.cpu(), y.cpu().numpy(), masks.cpu().numpy(), alarm)
    return {f"{POOLED}/{name}": value for name, value in whole.items()}


def pooled_sums(total: Tree, alarm: Alarm) -> dict[str, np.ndarray]:
    """The same from sums of clients' histograms (`algorithms.scoring.totals`), with bounds of the error; {} where no
    client has any."""
    found = {name: own.cpu().numpy() for name, own in total["histogram"].items()}
    if not found[histograms.MARGINS].any():
        return {}
    return {f"{POOLED}/{name}": v for name, v in histograms.pooled(found, alarm.positive, alarm.threshold).items()}


def _flagged(logits: Tensor, y: np.ndarray, masks: np.ndarray, alarm: Alarm) -> dict[str, np.ndarray]:
    """What `flagging.scores` says of each split."""
    margin, truth = (logits[:, alarm.positive] - logits[:, 1 - alarm.positive]).double().numpy(), y == alarm.positive
    p = probabilities(margin)
    at = threshold(p[masks[VAL]], truth[masks[VAL]], alarm.threshold)
    each = [scores(margin[mask], truth[mask], at) for mask in masks]
    return {name: np.array([own[name] for own in each]) for name in each[0]} | {"threshold": np.full(len(masks), at)}

"""Scores of one model over the examples of all members together, where somebody holds them all: in a simulation.

Examples of different members are compared with each other there, so that these numbers are no sums over members. What
orders examples (AUC) needs only their logits side by side; no member sends these, and between organisations there is
nothing of the kind.
"""

from collections.abc import Iterable

import numpy as np
import torch

from fedweave.core import model as models
from fedweave.core.graph import Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree
from fedweave.metrics.classification import ordered, values

POOLED = "pooled"  # of all metrics' names


def pooled(model: Model, w: Tree, graphs: Iterable[Graph]) -> dict[str, np.ndarray]:
    """{"pooled/auc": float64 [3]} of the model on the train, val and test examples of all `graphs`, NaN where a split
    lacks positives or negatives; an example that two of them hold counts twice."""
    found = []
    with torch.no_grad():
        for graph in graphs:
            used = graph.masks.any(0)
            found.append((models.apply(model, w, graph)[used], graph.y[used], graph.masks[:, used]))
        logits, y, masks = (torch.cat(own, dim) for own, dim in zip(zip(*found, strict=True), (0, 0, 1), strict=True))
        pairs = torch.cat([ordered(logits[mask], y[mask], mask[mask][None]) for mask in masks])
    return {f"{POOLED}/auc": np.asarray(values({"auc": pairs.cpu()})["auc"])}

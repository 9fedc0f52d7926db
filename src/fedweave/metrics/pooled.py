"""Scores of one model over the examples of all clients together: in a simulation, which holds all of them, or from sums
of histograms. Examples of different clients are compared with each other here, so these numbers are not sums over
clients. An order of examples (AUC) needs their logits side by side, which no client sends; clients send how many
examples have which score, in a sum over all (`score_histograms`).
"""

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedweave.core import model as models
from fedweave.core.graph import SPLIT_PAIRS, TEST, VAL, Graph
from fedweave.core.model import Model
from fedweave.core.target import CLASS, LABELS, NUMBER, from_scale, kind_of
from fedweave.core.tree import Tree, device_of
from fedweave.metrics import labels, numbers
from fedweave.metrics.classification import auc_pairs, class_scores, values
from fedweave.metrics.intervals import intervals, intervals_of_counts
from fedweave.metrics.ranking import probabilities, scores, threshold
from fedweave.metrics.score_histograms import MARGINS, metrics_of_histograms
from fedweave.metrics.score_intervals import average_precision_interval, delong
from fedweave.metrics.selection import Threshold

POOLED = "pooled"  # prefix of all metrics' names


class Alarm(NamedTuple):
    """The positive one of two classes, and the setting of the threshold from which examples are flagged."""

    positive: int
    threshold: Threshold


def example_outputs(model: Model, w: Tree, graph: Graph) -> Tree:
    """The model's outputs for a graph's examples that are in a split: "outputs" [e, c], "y" [e] and "masks" [3, e].
    "outputs" are `class_scores` for classes, logits for labels and, for numbers, predictions in the data's units."""
    graph = graph.to(device_of(w))
    used = graph.masks.any(0)
    with torch.no_grad():
        return _examples(infer_outputs(model, w, graph)[used], graph.y[used], graph.masks[:, used])


def _examples(outputs: Tensor, y: Tensor, masks: Tensor) -> Tree:
    return {"outputs": class_scores(outputs) if kind_of(y) == CLASS else outputs, "y": y, "masks": masks}


def infer_outputs(model: Model, w: Tree, graph: Graph) -> Tensor:
    """The model's outputs for a graph's examples, [e, c], and 0 of pairs that only serve ranks; numbers are in the
    data's units."""
    if SPLIT_PAIRS in graph.extra:
        e, rows = len(graph.y), graph.extra[SPLIT_PAIRS]
        logits = models.infer(model, w, graph.in_splits)
        at = torch.where(rows >= 0, rows, e)[:, None].expand_as(logits)
        return logits.new_zeros(e + 1, logits.shape[1]).scatter(0, at, logits)[:-1]
    outputs = models.infer(model, w, graph)
    return from_scale(outputs, graph.scale) if graph.target == NUMBER else outputs


def split_examples(outputs: Tensor, y: Tensor, masks: Tensor) -> list[Tree]:
    """`example_outputs` of each of P clients whose `outputs` [P, e, c], `y` [P, e] and `masks` [P, 3, e] are
    stacked. Padding rows are in no split."""
    used = masks.any(1)
    sizes = used.sum(1).tolist()
    columns = (torch.split(tensor[used], sizes) for tensor in (outputs, y, masks.movedim(1, -1)))
    return [_examples(outputs, truth, split.T) for outputs, truth, split in zip(*columns, strict=True)]


def pooled_examples(
    parts: Iterable[Sequence[Tree]], alarm: Alarm | None = None, share: float = 0.0
) -> dict[str, np.ndarray]:
    """Metrics of one model on the train, val and test examples of all clients together, float64 [3] each.

    "pooled/auc", NaN where a split lacks positives or negatives; an example that two clients hold counts twice. With an
    `alarm` and two classes also the metrics of `scores`, from the "pooled/threshold" on, which validation examples
    decide; and of test examples "pooled/auc_low", "pooled/auc_high" and those of the average precision, the ends of
    95 % intervals (`score_intervals`). For several labels also "pooled/average_precision". For
    numbers "pooled/spearman" and, with a `share`, the `intervals` that cover this share of examples. parts:
    `example_outputs` of each client; of classes possibly some columns after the other, with "y" and "masks" in the
    first part."""
    parts = iter(parts)
    clients = next(parts)
    target, margin = kind_of(clients[0]["y"]), np.zeros(0)
    with torch.no_grad():
        y = torch.cat([client["y"] for client in clients])
        masks = torch.cat([client["masks"] for client in clients], 1)
        metrics = []  # of each split
        if target == CLASS:
            pairs = list[Tensor]()  # of each class, [3, 2]
            parts, clients = chain([[{"outputs": client["outputs"]} for client in clients]], parts), ()
            for part in parts:
                for score in torch.cat([client["outputs"] for client in part]).T:
                    if alarm is not None and alarm.positive == len(pairs):
                        margin = score.cpu().double().numpy()
                    pairs.append(auc_pairs(score.contiguous(), y == len(pairs), masks).cpu())
            metrics = [values({"auc": split}) for split in torch.stack(pairs, -1)]
        else:
            outputs = torch.cat([client["outputs"] for client in clients])
            for mask in masks:
                each = outputs[mask], y[mask], mask[mask][None]
                if target == LABELS:
                    metrics.append(labels.values({name: pair.cpu()[0] for name, pair in labels.counts(*each).items()}))
                else:
                    sums = numbers.counts(*each, None)
                    metrics.append(numbers.values({name: pair.cpu()[0] for name, pair in sums.items()}))
    names = {CLASS: ("auc",), LABELS: ("auc", "average_precision"), NUMBER: ("spearman",)}[target]
    pooled = dict[str, np.ndarray]()
    for name in names:
        pooled[f"{POOLED}/{name}"] = np.array([split[name] for split in metrics])
    if target == NUMBER and share:
        errors = [abs(client["outputs"] - client["y"]).cpu().numpy() for client in clients]
        pooled |= intervals(
            [(e, client["masks"].cpu().numpy()) for e, client in zip(errors, clients, strict=True)], share
        )
    if target == CLASS and alarm is not None and len(pairs) == 2:
        truth, host_masks, p = y.cpu().numpy() == alarm.positive, masks.cpu().numpy(), probabilities(margin)
        at = threshold(p[host_masks[VAL]], truth[host_masks[VAL]], alarm.threshold)
        rows = [scores(margin[mask], truth[mask], at) for mask in host_masks]
        for name in rows[0]:
            pooled[f"{POOLED}/{name}"] = np.array([row[name] for row in rows])
        pooled[f"{POOLED}/threshold"] = np.full(len(rows), at)
        test = host_masks[TEST]
        found = {"auc": delong(margin[test], truth[test])}
        found["average_precision"] = average_precision_interval(margin[test], truth[test])
        for name, ends in found.items():
            for end, value in zip(("low", "high"), ends, strict=True):
                pooled[f"{POOLED}/{name}_{end}"] = np.array([math.nan, math.nan, value])
    return pooled


def pooled_sums(total: Tree, alarm: Alarm, share: float = 0.0) -> dict[str, np.ndarray]:
    """`pooled_examples` from sums of clients' histograms (`algorithms.score_sums.totals`), with bounds of the error; {}
    where no client has any."""
    sums = {name: tensor.cpu().numpy() for name, tensor in total.get("histogram", {}).items()}
    if "residuals" in sums:
        return intervals_of_counts(sums["residuals"], share) if share else {}
    if not sums or not sums[MARGINS].any():
        return {}
    metrics = metrics_of_histograms(sums, alarm.positive, alarm.threshold)
    return {f"{POOLED}/{name}": value for name, value in metrics.items()}

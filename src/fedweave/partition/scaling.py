"""The numbers by which clients scale features and targets, and the exchange in which they would agree on them.

A simulation loads and scales the whole data before it divides it (`datasets.features`). Members who each hold a part
would need one exchange for a mean, deviation and range over the nodes of all; the ledger records it. Between
organizations each site scales by its own nodes, without an exchange. With "auto" every client scales by its own nodes
everywhere.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from fedweave.core.federation import StepInfo
from fedweave.core.graph import TRAIN
from fedweave.core.ledger import Ledger
from fedweave.core.target import DIVISOR, LOG, NUMBER, SHIFT, scale_of, where_known
from fedweave.core.tree import Tree
from fedweave.core.types import SETUP
from fedweave.datasets.base import Dataset
from fedweave.datasets.features import OVER_NODES, ScalingNumbers, feature_scaling_numbers, scaling
from fedweave.partition.base import Part, Partition


def of_part(data: Dataset, part: Part) -> ScalingNumbers:
    """The numbers by which one client scales its columns of `data` (`Dataset.scaling`)."""
    if data.graph_columns is None or data.graph_of is None:
        return scaling(data.x[part.nodes], data.scaling)
    return feature_scaling_numbers(
        replace(data, x=data.x[part.nodes], graph_of=data.graph_of[part.nodes]), data.scaling
    )


def of_typical(data: Dataset, partition: Partition) -> ScalingNumbers:
    """The numbers by which a model of all clients scales features of new nodes (`typical`)."""
    numbers = [of_part(data, part) for part in partition.parts]
    return typical(numbers, [len(part.nodes) for part in partition.parts])


def typical(numbers: Sequence[ScalingNumbers], sizes: Sequence[int]) -> ScalingNumbers:
    """The numbers of a typical client: the mean over rows of the clients' shifts, and the root of the mean of their
    squared divisors. asinh is taken where the clients with most rows do, and the others do not count in that column;
    neither does a client with a constant column in its divisor.

    numbers, sizes: of each of P clients, and how many rows it has.
    """
    rows = np.array(sizes, np.float64)[:, None]  # [P, 1]
    shifts = np.stack([one.shift for one in numbers])  # [P, d]
    divisors = np.stack([one.divisor for one in numbers])  # [P, d]
    flags = np.stack([one.asinh for one in numbers])  # [P, d]
    asinh = 2 * (rows * flags).sum(0) > rows.sum()
    weights = np.where(flags == asinh, rows, 0.0)
    shift = (weights * shifts).sum(0) / weights.sum(0)
    varies = np.isfinite(divisors)
    weights = np.where(varies, weights, 0.0)
    total = weights.sum(0)
    squares = (weights * np.where(varies, divisors, 0.0) ** 2).sum(0)
    divisor = np.sqrt(squares / np.where(total > 0, total, 1.0))
    return ScalingNumbers(shift, np.where(total > 0, divisor, np.inf), asinh)


def target_scale_of(data: Dataset, part: Part) -> np.ndarray | None:
    """The units of a client's model, where it predicts numbers (`Dataset.target_scale`). With scales of their own,
    clients take their training examples; a number that none of these has keeps the units of `data`
    (`scale_targets`)."""
    if data.target_scale is None or data.target_scaling != "own":
        return data.target_scale
    y = data.y[part.examples[part.masks[TRAIN]]] if part.labels else data.y[:0]
    scale = scale_of(y, bool(data.target_scale[LOG].any()))
    return np.where(where_known(y).any(0), scale, data.target_scale)


def scale_targets(data: Dataset, partition: Partition) -> Dataset:
    """The data with the units in which a model of all clients predicts numbers.

    target_scaling "all": by all clients' training examples; one that several clients hold counts for each. "own": a
    typical client's, also for clients without training examples and the global test: the mean over clients of the
    shifts, and the root of the mean of the squared divisors, weighted by the training examples that have the number. A
    client whose numbers are all equal does not count in the divisor. "none": the data's.
    """
    if data.target_scale is None or data.target_scaling == "none":
        return data
    log = bool(data.target_scale[LOG].any())
    train_targets = [data.y[part.examples[part.masks[TRAIN]]] for part in partition.parts if part.labels]
    if data.target_scaling == "all":
        return replace(data, target_scale=scale_of(np.concatenate([data.y[:0], *train_targets]), log))
    shifts, squares, counts, varied_counts = np.zeros((4, data.outputs))  # [t] each
    for y in train_targets:
        known = where_known(y)
        scale = scale_of(y, log)
        count = known.sum(0)
        largest = np.where(known, y, -np.inf).max(0, initial=-np.inf)
        smallest = np.where(known, y, np.inf).min(0, initial=np.inf)
        varied_count = (largest > smallest) * count
        shifts = shifts + count * scale[SHIFT]
        counts = counts + count
        squares = squares + varied_count * scale[DIVISOR] ** 2
        varied_counts = varied_counts + varied_count
    scale = np.array(data.target_scale)
    scale[SHIFT] = shifts / np.maximum(counts, 1)
    scale[DIVISOR] = np.where(varied_counts > 0, np.sqrt(squares / np.maximum(varied_counts, 1)), 1.0)
    return replace(data, target_scale=scale)


def distance_of_targets(data: Dataset, partition: Partition) -> float | None:
    """How far the means of numbers are apart between members that each scale by their own: the deviation of these means
    over the typical deviation of a member's numbers, the largest over numbers; None with fewer than two members."""
    if data.target_scale is None or data.target_scaling != "own":
        return None
    parts = [part for part in partition.parts if len(data.y[part.examples[part.masks[TRAIN]]])]
    scales = [scale for scale in (target_scale_of(data, part) for part in parts) if scale is not None]
    if len(scales) < 2:
        return None
    shifts = np.stack([scale[SHIFT] for scale in scales])  # [P, t]
    divisors = np.stack([scale[DIVISOR] for scale in scales])
    return float((shifts.std(0) / np.sqrt((divisors**2).mean(0))).max())


SCALE = "(scale)"
TARGET_SCALE = "(target scale)"
_MOMENTS = {
    "n": "how many nodes it has",
    "sum": "the sum of every feature over its nodes",
    "squares": "the sum of every feature's square over its nodes",
}
_RANGE = {"low": "the smallest value of every feature at its nodes", "high": "the largest value of every feature"}
_BACK = {
    "shift": "by what every feature is shifted: its mean, or the middle of its range, over all members' nodes",
    "divisor": "by what every feature is divided: its deviation, or half its range, over all members' nodes",
}


_TARGET_MOMENTS = {
    "n": "how many training examples have each number that is predicted",
    "sum": "the sum of every number that is predicted, or of its logarithms, over its training examples",
    "squares": "the sum of their squares",
}
_TARGET_BACK = {
    "shift": "by what every number that is predicted is shifted: its mean over all members' training examples",
    "divisor": "by what every number that is predicted is divided: its deviation over all members' training examples",
}


def meter_scaling(
    ledger: Ledger, clients: Sequence[str], partition: Partition, features: int, normalize: str, rows: str = "node"
) -> None:
    """Record in a `ledger` the exchange by which `clients` scale `features` columns of nodes or edges, if any.

    There is no exchange if columns are not scaled over nodes, for one client, and for clients with columns of their own
    for the same nodes. A node that several clients hold counts for each; in the simulation once.

    normalize: one of `datasets.features.NORMALIZE`. rows: what has the features, "node" or "edge".
    """
    exempt = len(clients) < 2 or any(part.columns is not None for part in partition.parts)
    if normalize not in OVER_NODES or exempt:
        return
    up, down = _messages(torch.zeros(features, dtype=torch.float64, device="cpu"), normalize)
    ledger.purpose = SETUP
    up_notes = _RANGE if normalize == "minmax" else _MOMENTS
    up_notes = {key: text.replace("node", rows) for key, text in up_notes.items()}
    down_notes = {key: text.replace("node", rows) for key, text in _BACK.items()}
    ledger.record(0, 0, SCALE, clients, "up", up, 0.0, StepInfo.of(up_notes))
    ledger.record(0, 0, SCALE, clients, "down", down, 0.0, StepInfo.of(down_notes))


def meter_target_scaling(ledger: Ledger, clients: Sequence[str], data: Dataset) -> None:
    """Record in a `ledger` the exchange by which `clients` scale the numbers to predict. There is none where each has
    its own scale, or for one client."""
    if data.target != NUMBER or data.target_scaling != "all" or len(clients) < 2:
        return
    up, down = _messages(torch.zeros(data.outputs, dtype=torch.float64, device="cpu"), "standard")
    ledger.purpose = SETUP
    up = {**up, "n": up["sum"]}  # for each number, which some examples may lack
    ledger.record(0, 0, TARGET_SCALE, clients, "up", up, 0.0, StepInfo.of(_TARGET_MOMENTS))
    ledger.record(0, 0, TARGET_SCALE, clients, "down", down, 0.0, StepInfo.of(_TARGET_BACK))


def _messages(column: torch.Tensor, normalize: str) -> tuple[Tree, Tree]:
    """Messages with the shapes of what goes up and down; "scale" needs no shift."""
    up: Tree = {"low": column, "high": column} if normalize == "minmax" else {"n": 0, "sum": column, "squares": column}
    return up, {"divisor": column} if normalize == "scale" else {"shift": column, "divisor": column}

"""Predictions as a table for the owners of the data, and what such a table says of itself."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.graph import SPLITS
from fedweave.core.target import CLASS, NUMBER, kind_of
from fedweave.core.types import Record
from fedweave.datasets.base import Dataset
from fedweave.errors import UserError, listed, option
from fedweave.experiment.runs.outputs import Predicted
from fedweave.metrics.selection import HALF, Flagging

NOT_GIVEN = "neighbors_not_given"


def predictions_table(
    predictions: Sequence[Predicted],
    ids: Sequence[str] = (),
    labels: Sequence[str] = (),
    example: str = "node",
    y: np.ndarray | None = None,
    flagging: Flagging | Mapping[str, Flagging] | None = None,
    ends: np.ndarray | None = None,
    targets: Sequence[str] = (),
    half_widths: Sequence[float] = (),
) -> pa.Table:
    """A row per client and example: "client", "node", "graph" or "edge" (its place in the data), "id", of an edge
    "source" and "target", "split" ("" in none), "true" (the known class, else null), "predicted" (the most probable
    one), and a column of probabilities for each class, "p_low", "p_high".

    ids: the names of the examples, () without. labels: the names of the classes, () for their numbers; then these are
    predicted, and the probabilities are "p_0", "p_1", … y: int64 [n], the classes of all data, -1 where unknown;
    without it, or where none is known, there is no column "true". flagging: of two classes, which examples are flagged,
    for all clients or for each, from 0.5 on for a client that is not in it; then there are "score", the probability of
    the positive class, "flagged" and the "threshold". ends: [2, e] of all data, see `ends_of`.

    Where `y` [n, t] has numbers, called `targets`: "true", "predicted" and, with a half-width of each prediction
    interval, "low" and "high", all in the data's units; of several, "true_price", "predicted_price" and so on for each.
    Where it has several labels: "p_toxic", "predicted_toxic", 1 from 0.5 on, and "true_toxic" for each.

    Behind all of these, where the predictions have vectors, "e_0", "e_1", …, float32; null where another client's model
    is wider.

    Raises:
        UserError: a probability or a number is NaN.
    """
    # 1. The rows of all clients.
    clients = [one.client for one in predictions]
    counts = [len(one.examples) for one in predictions]
    each = [one.probability[:count].cpu().numpy() for one, count in zip(predictions, counts, strict=True)]
    diverged = [client for client, p in zip(clients, each, strict=True) if not np.isfinite(p).all()]
    if diverged:
        raise UserError(
            f"the model of {listed(diverged)} predicts no numbers (NaN): its training diverged. Train again with a "
            f"smaller algorithm.lr, or take the models of another round ({option('round', 'best')}).",
            code="user.not-finite",
        )
    p = np.concatenate(each)  # [rows, outputs]
    at = np.concatenate([one.examples for one in predictions])

    # 2. Which examples they are.
    columns: Record = {"client": np.repeat(np.array(clients), counts), example: at}
    if len(ids):
        columns["id"] = np.array(ids)[at]
    if ends is not None:
        columns |= {"source": ends[0, at], "target": ends[1, at]}
    if all(one.masks is not None for one in predictions):
        columns["split"] = np.concatenate([split_names(one.masks) for one in predictions if one.masks is not None])

    # 3. What is predicted of them.
    kind = CLASS if y is None else kind_of(y)
    if y is not None and kind != CLASS:
        names = list(targets) or [str(number) for number in range(p.shape[1])]
        if kind == NUMBER:
            columns |= _number_columns(p, y[at], names, half_widths)
        else:
            columns |= _label_columns(p, y[at], names)
        return pa.table(columns | _vector_columns(predictions))
    if y is not None and (y >= 0).any():
        columns["true"] = class_names(y[at], labels)
    columns["predicted"] = np.array(labels)[p.argmax(-1)] if len(labels) else p.argmax(-1)
    if flagging is not None:
        if isinstance(flagging, Flagging):
            rules = [flagging] * len(clients)
        else:
            positive = next((rule.positive for rule in flagging.values()), 1)
            rules = [flagging.get(client, Flagging(positive, HALF)) for client in clients]
        threshold = np.repeat(np.array([rule.threshold for rule in rules]), counts)
        score = p[:, rules[0].positive]
        columns |= {"score": score, "flagged": score >= threshold, "threshold": threshold}
    for number, name in enumerate(labels or range(p.shape[-1])):
        columns[f"p_{name}"] = p[:, number]
    return pa.table(columns | _vector_columns(predictions))


def _vector_columns(predictions: Sequence[Predicted]) -> Record:
    """The columns "e_0", "e_1", … of all predictions; {} where one has no vectors."""
    vectors = []
    for one in predictions:
        if one.vectors is None:
            return {}
        vectors.append(one.vectors[: len(one.examples)].float().cpu().numpy())
    columns = Record()
    for number in range(max(rows.shape[1] for rows in vectors)):
        blocks = []
        for rows in vectors:
            is_there = number < rows.shape[1]
            blocks.append(pa.array(rows[:, number]) if is_there else pa.nulls(len(rows), pa.float32()))
        columns[f"e_{number}"] = pa.chunked_array(blocks).combine_chunks()
    return columns


def _number_columns(p: np.ndarray, y: np.ndarray, targets: Sequence[str], half_widths: Sequence[float]) -> Record:
    """Columns of predicted numbers [e, t], their intervals, and the true ones, NaN where unknown."""
    columns = Record()
    for at, name in enumerate(targets):
        suffix = "" if len(targets) == 1 else f"_{name}"
        if not np.isnan(y[:, at]).all():
            columns[f"true{suffix}"] = pa.array(y[:, at], mask=np.isnan(y[:, at]))
        columns[f"predicted{suffix}"] = p[:, at]
        if len(half_widths):
            columns |= {f"low{suffix}": p[:, at] - half_widths[at], f"high{suffix}": p[:, at] + half_widths[at]}
    return columns


def _label_columns(p: np.ndarray, y: np.ndarray, targets: Sequence[str]) -> Record:
    """Columns of the probabilities [e, t] of several labels, and the true ones, -1 where unknown."""
    columns = Record()
    for at, name in enumerate(targets):
        if (y[:, at] >= 0).any():
            columns[f"true_{name}"] = pa.array(np.maximum(y[:, at], 0), mask=y[:, at] < 0)
        columns |= {f"predicted_{name}": (p[:, at] >= HALF).astype(np.int64), f"p_{name}": p[:, at]}
    return columns


def class_names(y: np.ndarray, labels: Sequence[str]) -> pa.Array:
    """Classes int64 [e] by name, or by number without names; null where they are -1, unknown."""
    known = np.maximum(y, 0)
    return pa.array(np.array(labels)[known] if len(labels) else known, mask=y < 0)


def split_names(masks: np.ndarray) -> np.ndarray:
    """The names [e] of the splits of masks [3, e], "" for none."""
    return np.where(masks.any(0), np.array(SPLITS)[masks.argmax(0)], "")


def ends_of(data: Dataset) -> np.ndarray | None:
    """[2, e], the names of the nodes at the ends of edges, or their numbers, where edges are the examples."""
    if data.edge_attrs is None or not data.edge_attrs.examples:
        return None
    ends: np.ndarray = np.array(data.node_ids)[data.edge_attrs.ends] if data.node_ids else data.edge_attrs.ends
    return ends


def with_neighbors_not_given(table: pa.Table, data: Dataset) -> pa.Table:
    """The table of predictions of new `data` with a column of how many neighbors of an example, or of an edge's ends,
    its tables do not have: nodes elsewhere, which count in columns of external edges and pass no messages. Only where
    such edges are allowed."""
    if data.outside is None:
        return table
    near, far = np.sort(data.outside.edge_attrs.ends, 0)
    pairs = np.unique(np.stack([near, far]), axis=1)
    count = np.bincount(pairs[0], minlength=data.nodes)  # [nodes]
    if data.example == "edge" and data.edge_attrs is not None:
        count = count[data.edge_attrs.ends].sum(0)
    return table.append_column(NOT_GIVEN, pa.array(count[table[data.example].to_numpy()]))


def accuracy_of(table: pa.Table) -> float | None:
    """The accuracy over rows whose class is known; None where none is known, or no class is predicted."""
    if "true" not in table.column_names or not any(name.startswith("p_") for name in table.column_names):
        return None
    share: float | None = pc.mean(pc.equal(table["true"], table["predicted"]).cast(pa.float64())).as_py()
    return share


def rmse_of(table: pa.Table) -> float | None:
    """The root of the mean squared error of one number, over rows where it is known; None of others, or without any."""
    if not {"true", "predicted"} <= set(table.column_names) or accuracy_of(table) is not None:
        return None
    square = pc.power(pc.subtract(table["true"], table["predicted"]), 2)
    mean: float | None = pc.mean(square).as_py()
    return None if mean is None else math.sqrt(mean)

"""What models predict, as a table for those who own the data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from torch import Tensor

from fedweave.core.graph import SPLITS
from fedweave.datasets.base import Dataset
from fedweave.errors import UserError, listed
from fedweave.metrics.judging import HALF, Flagging


@dataclass(frozen=True)
class Predicted:
    """What one client's model, or the global one, predicts.

    client:      whose it is. probability: of the classes, [e, c], with padding behind the examples.
    examples:    int64 [e], their places in the data.
    masks:       bool [3, e], how the run used them; None if it did not.
    """

    client: str
    probability: Tensor
    examples: np.ndarray
    masks: np.ndarray | None = None


def predictions_table(
    found: Sequence[Predicted],
    ids: Sequence[str] = (),
    labels: Sequence[str] = (),
    example: str = "node",
    y: np.ndarray | None = None,
    flagging: Flagging | Mapping[str, Flagging] | None = None,
    ends: np.ndarray | None = None,
) -> pa.Table:
    """A row per client and example: "client", "node", "graph" or "edge" (its place in the data), "id", of an edge
    "source" and "target", "split" ("" in none), "true" (the known class, else null), "predicted" (the most probable
    one), and a column of probabilities for each class, "p_low", "p_high".

    ids: what the examples are called, () if nobody said. labels: what the classes are called, () for their numbers;
    then these are predicted, and the probabilities are "p_0", "p_1", … y: int64 [n], the classes of all data, -1 where
    unknown; without it, or where none is known, there is no column "true". flagging: of two classes, which examples are
    flagged, of all clients or of each, from 0.5 on of one that is not named; then there are "score", the probability of
    the positive class, "flagged" and the "threshold". ends: [2, e] of all data, see `ends_of`.

    Raises:
        UserError: a probability is NaN.
    """
    each = [one.probability[: len(one.examples)].cpu().numpy() for one in found]
    if lost := [one.client for one, own in zip(found, each, strict=True) if not np.isfinite(own).all()]:
        raise UserError(
            f"the model of {listed(lost)} predicts no numbers (NaN): its training diverged. Train again with a smaller "
            "algorithm.lr, or take the models of another round (--round best).",
            code="user.not-finite",
        )
    p = np.concatenate(each)
    at = np.concatenate([one.examples for one in found])
    clients = np.repeat(np.array([one.client for one in found]), [len(one.examples) for one in found])
    columns = {"client": clients, example: at} | ({"id": np.array(ids)[at]} if len(ids) else {})
    if ends is not None:
        columns |= {"source": ends[0, at], "target": ends[1, at]}
    if all(one.masks is not None for one in found):
        use = np.concatenate([_split(one.masks) for one in found if one.masks is not None])
        columns["split"] = use
    if y is not None and (y >= 0).any():
        columns["true"] = pa.array(_named(np.maximum(y[at], 0), labels), mask=y[at] < 0)
    columns["predicted"] = _named(p.argmax(-1), labels)
    if flagging is not None:
        positive, own = _by_client(flagging, [one.client for one in found])
        score, at_least = p[:, positive], np.repeat(own, [len(one.examples) for one in found])
        columns |= {"score": score, "flagged": score >= at_least, "threshold": at_least}
    names = labels or range(p.shape[-1])
    return pa.table(columns | {f"p_{name}": p[:, c] for c, name in enumerate(names)})


def _by_client(flagging: Flagging | Mapping[str, Flagging], clients: Sequence[str]) -> tuple[int, np.ndarray]:
    """The positive class, and the threshold of each client."""
    if isinstance(flagging, Flagging):
        return flagging.positive, np.full(len(clients), flagging.threshold)
    positive = next((own.positive for own in flagging.values()), 1)
    return positive, np.array([flagging[client].threshold if client in flagging else HALF for client in clients])


def ends_of(data: Dataset) -> np.ndarray | None:
    """[2, e], what the nodes at the ends of edges are called, or their numbers, where edges are the examples."""
    if data.carried is None or not data.carried.examples:
        return None
    ends: np.ndarray = np.array(data.node_ids)[data.carried.ends] if data.node_ids else data.carried.ends
    return ends


def right(table: pa.Table) -> float | None:
    """The share of rows whose class is known and predicted right; None where none is known."""
    if "true" not in table.column_names:
        return None
    found: float | None = pc.mean(pc.equal(table["true"], table["predicted"]).cast(pa.float64())).as_py()
    return found


def _named(classes: np.ndarray, labels: Sequence[str]) -> np.ndarray:
    return np.array(labels)[classes] if len(labels) else classes


def _split(masks: np.ndarray) -> np.ndarray:
    """The names of the splits, "" for none: [e]."""
    return np.where(masks.any(0), np.array(SPLITS)[masks.argmax(0)], "")

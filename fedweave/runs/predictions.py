"""What clients predict, as a table for their owners."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from torch import Tensor

PREDICTIONS = "predictions.parquet"


def predictions_table(
    probability: Mapping[str, Tensor], nodes: int, ids: Sequence[str], labels: Sequence[str]
) -> pa.Table:
    """A row per client and node.

    probability: of every client's classes, [n, c] with padding behind its `nodes`. ids: what the nodes are called, ()
    if nobody said. labels: what the classes are called, or (). Columns "client", "node" (its place), "id", "class" (the
    most probable), "label" (its name), and "p0", "p1", … of c classes.
    """
    p = np.stack([one[:nodes].numpy() for one in probability.values()])
    columns: dict[str, Any] = {
        "client": np.repeat(np.array(list(probability)), nodes),
        "node": np.tile(np.arange(nodes), len(probability)),
    }
    columns |= {"id": list(ids) * len(probability)} if ids else {}
    columns["class"] = p.argmax(-1).ravel()
    columns |= {"label": np.array(labels)[columns["class"]]} if labels else {}
    return pa.table(columns | {f"p{c}": p[..., c].ravel() for c in range(p.shape[-1])})

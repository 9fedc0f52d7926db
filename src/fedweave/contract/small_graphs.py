"""The small graphs of five clients in the conformance tests."""

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
import torch

from fedweave.core.graph import TEST, Graph, make_graph
from fedweave.core.operators import Precomputed
from fedweave.core.sizes import size_classes
from fedweave.core.types import Record

FEATURES, CLASSES = 7, 2
COUNTS = (9, 40, 17, 70, 12)  # small graphs of each client


def arrays(count: int, seed: int) -> Record:
    """Random small graphs of 1 to 9 nodes; graphs of class 1 have more edges. Features are one-hot and sparse."""
    rng = np.random.default_rng(seed)
    y, graph_of = rng.integers(0, CLASSES, count), np.repeat(np.arange(count), rng.integers(1, 10, count))
    n = len(graph_of)
    odds = np.where(y[graph_of] == 1, 0.8, 0.2)[:, None]
    joined = (graph_of[:, None] == graph_of) & np.triu(rng.random((n, n)) < odds, 1)
    x = sp.csr_matrix(np.eye(FEATURES, dtype=np.float32)[rng.integers(0, FEATURES, n)])
    fate = rng.permutation(count)
    masks = np.stack([fate < count // 2, (fate >= count // 2) & (fate < 2 * count // 3), fate >= 2 * count // 3])
    return {"x": x, "edges": np.stack(np.nonzero(joined | joined.T)), "y": y, "masks": masks, "graph_of": graph_of}


def client_data(changed: int | None = None) -> list[Record]:
    """`arrays` of five clients; the client with number `changed` has other data."""
    return [arrays(count, i + 100 * (i == changed)) for i, count in enumerate(COUNTS)]


def graphs(
    dtype: torch.dtype = torch.float64, changed: int | None = None, extra: Sequence[Precomputed | None] = (None,) * 5
) -> dict[str, Graph]:
    """{client: graph} of their data, padded to few sizes, with `extra` precomputed values."""
    each = client_data(changed)
    rows = size_classes([len(fields["graph_of"]) for fields in each])
    examples = size_classes([len(fields["y"]) for fields in each])
    graphs = dict[str, Graph]()
    for i, fields in enumerate(each):
        graphs[f"site-{i}"] = make_graph(**fields, dtype=dtype, rows=rows[i], examples=examples[i], extra=extra[i])
    return graphs


def global_test(dtype: torch.dtype = torch.float64) -> Graph:
    """Graphs that no client holds; all of them are for testing."""
    fields = arrays(20, 999)
    fields["masks"] = np.arange(3)[:, None] == np.full(20, TEST)
    return make_graph(**fields, dtype=dtype)

"""The small graphs that five clients hold in the contract, and the motifs in them."""

import numpy as np
import scipy.sparse as sp
import torch

from fedweave.core.edge_list import MotifTable
from fedweave.core.graph import TEST, TRAIN, Graph, make_graph
from fedweave.core.records import Record
from fedweave.core.sizes import size_classes
from fedweave.incentives.motifs import extract
from fedweave.incentives.tables import padded, table
from fedweave.incentives.vocabulary import Vocabulary

FEATURES, CLASSES = 7, 2
COUNTS = (9, 40, 17, 70, 12)  # small graphs of each client
ROWS = 128  # of a table of motifs


def arrays(count: int, seed: int) -> Record:
    """Random small graphs of 1 to 9 nodes, those of class 1 with more edges; features are one-hot, and sparse."""
    rng = np.random.default_rng(seed)
    y, graph_of = rng.integers(0, CLASSES, count), np.repeat(np.arange(count), rng.integers(1, 10, count))
    n = len(graph_of)
    odds = np.where(y[graph_of] == 1, 0.8, 0.2)[:, None]
    joined = (graph_of[:, None] == graph_of) & np.triu(rng.random((n, n)) < odds, 1)
    x = sp.csr_matrix(np.eye(FEATURES, dtype=np.float32)[rng.integers(0, FEATURES, n)])
    fate = rng.permutation(count)
    masks = np.stack([fate < count // 2, (fate >= count // 2) & (fate < 2 * count // 3), fate >= 2 * count // 3])
    return {"x": x, "edges": np.stack(np.nonzero(joined | joined.T)), "y": y, "masks": masks, "graph_of": graph_of}


def motifs(own: Record) -> MotifTable:
    """Rings of three and four, and bonds, of the training graphs, by features as labels."""
    found = extract(own["edges"], own["graph_of"], np.asarray(own["x"].argmax(1)).ravel() % 3, max_ring=4)
    return padded(table(found, np.arange(len(own["y"])), own["masks"][TRAIN], Vocabulary(4)), ROWS)


def graphs(dtype: torch.dtype = torch.float64, changed: int | None = None, known: bool = False) -> dict[str, Graph]:
    """{client: graph} of five clients, padded to few sizes, with their motifs where these are to be `known`; the one of
    number `changed` holds other small graphs."""
    held = [arrays(count, i + 100 * (i == changed)) for i, count in enumerate(COUNTS)]
    rows, examples = (size_classes([len(own[name]) for own in held]) for name in ("graph_of", "y"))
    return {
        f"site-{i}": make_graph(
            **own, dtype=dtype, rows=rows[i], examples=examples[i], motifs=motifs(own) if known else None
        )
        for i, own in enumerate(held)
    }


def global_test(dtype: torch.dtype = torch.float64) -> Graph:
    """Graphs that no client holds, all to be tested on."""
    judged = arrays(20, 999)
    judged["masks"] = np.arange(3)[:, None] == np.full(20, TEST)
    return make_graph(**judged, dtype=dtype)

"""The generated neighbors in a client's graph."""

import numpy as np
import scipy.sparse as sp

from fedweave.core.graph_arrays import GraphArrays


def add_neighbors(graph: GraphArrays, owners: np.ndarray, features: np.ndarray) -> GraphArrays:
    """A client's graph with m more nodes, each unlabeled, in no mask, and with one neighbor, its owner.

    owners: int64 [m]. features: [m, d]. If the client's features are sparse, a new node keeps only its largest ones in
    magnitude, no more than the client's fullest row has: the longest row of a batch decides the time of a product.
    """
    n, added = len(graph.y), len(owners)
    if sp.issparse(graph.x):
        entries = int(np.diff(sp.csr_matrix(graph.x).indptr).max(initial=0))  # of the fullest row
        x = sp.vstack([graph.x, sp.csr_matrix(keep_largest(features, entries))], format="csr").astype(graph.x.dtype)
    else:
        x = np.concatenate([graph.x, features.astype(graph.x.dtype)])
    links = np.stack([owners, n + np.arange(added)])  # [2, m]
    return GraphArrays(
        x,
        np.concatenate([graph.edges, links, links[::-1]], 1),
        np.pad(graph.y, (0, added), constant_values=-1),
        np.pad(graph.masks, ((0, 0), (0, added))),
        None if graph.sensitive is None else np.pad(graph.sensitive, (0, added), constant_values=-1),
    )


def keep_largest(features: np.ndarray, entries: int) -> np.ndarray:
    """[m, d]: this number of entries of every row, the largest in magnitude; 0 elsewhere."""
    if entries >= features.shape[1]:
        return features
    largest = np.argsort(-np.abs(features), axis=1, kind="stable")[:, :entries]  # [m, entries]
    out = np.zeros_like(features)
    np.put_along_axis(out, largest, np.take_along_axis(features, largest, 1), 1)
    return out

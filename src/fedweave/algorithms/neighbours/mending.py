"""Graphs with generated neighbours in them."""

import numpy as np
import scipy.sparse as sp

from fedweave.core.arrays import GraphArrays


def mended(own: GraphArrays, owners: np.ndarray, features: np.ndarray) -> GraphArrays:
    """A client's graph with one more node, unlabelled and in no mask, for each of `owners` int64 [m], which is its only
    neighbour; features: [m, d].

    Where features are stored sparse, a generated node keeps its largest ones in magnitude, as many as the client's
    node with the most has: products with the rows of a batch take as long as its longest.
    """
    n, added = len(own.y), len(owners)
    if sp.issparse(own.x):
        most = int(np.diff(sp.csr_matrix(own.x).indptr).max(initial=0))
        x = sp.vstack([own.x, sp.csr_matrix(strongest(features, most))], format="csr").astype(own.x.dtype)
    else:
        x = np.concatenate([own.x, features.astype(own.x.dtype)])
    links = np.stack([owners, n + np.arange(added)])
    return GraphArrays(
        x,
        np.concatenate([own.edges, links, links[::-1]], 1),
        np.pad(own.y, (0, added), constant_values=-1),
        np.pad(own.masks, ((0, 0), (0, added))),
        None if own.sens is None else np.pad(own.sens, (0, added), constant_values=-1),
    )


def strongest(features: np.ndarray, most: int) -> np.ndarray:
    """[m, d] with all but the `most` largest in magnitude of every row 0."""
    if most >= features.shape[1]:
        return features
    left = np.argsort(-np.abs(features), axis=1, kind="stable")[:, :most]
    out = np.zeros_like(features)
    np.put_along_axis(out, left, np.take_along_axis(features, left, 1), 1)
    return out

"""The one form in which fedweave keeps undirected edges."""

import numpy as np


def undirected(source: np.ndarray, target: np.ndarray, nodes: int) -> np.ndarray:
    """int64 [2, E]: both directions of every given edge, sorted by (first row, second row), without duplicates.

    `source` and `target` are int [m], node numbers below `nodes`; an edge may be given in one direction, in both, or
    several times. Self loops stay.
    """
    source, target = source.astype(np.int64), target.astype(np.int64)
    codes = distinct(np.concatenate([source * nodes + target, target * nodes + source]))
    return np.stack(np.divmod(codes, nodes))


def distinct(codes: np.ndarray) -> np.ndarray:
    """The different values of int64 [m], sorted; numpy.unique hashes, which takes 100 times longer on millions."""
    codes = np.sort(codes)
    return codes[np.diff(codes, prepend=-1) != 0]

"""The one form in which fedweave keeps undirected edges."""

import logging
from pathlib import Path

import numpy as np

from fedweave.errors import ConfigError

LOOPS = ("refuse", "drop", "keep")
NO_LOOPS = (
    'Remove it, or leave all such out: [data] loops = "drop"; models add their own self loops. Edges that carry '
    'something may "keep" them.'
)

_LOG = logging.getLogger(__name__)


def check_loops(loops: str, carries: bool = False) -> None:
    """Raise ConfigError unless `loops` is one of `LOOPS`; edges keep them if they may carry something."""
    if loops == "keep" and not carries:
        raise ConfigError(
            "loops = 'keep': edges that carry nothing have none; say what they carry, or 'drop' them.",
            code="config.loops",
        )
    if loops not in LOOPS:
        raise ConfigError(f"loops = {loops!r} is not known; choose one of {', '.join(LOOPS)}.")


def note_loops(dropped: int, edges: int, where: str | Path) -> None:
    """Log how many of so many edges are dropped because they join a node with itself, if any are."""
    if dropped:
        join = "edge joins a node" if dropped == 1 else "edges join nodes"
        _LOG.warning("note: %s: %s of %s %s with itself, dropped", where, f"{dropped:,}", f"{edges:,}", join)


def undirected(source: np.ndarray, target: np.ndarray, nodes: int) -> np.ndarray:
    """int64 [2, E]: both directions of every given edge, sorted by (first row, second row), without duplicates.

    `source` and `target` are int [m], node numbers below `nodes`; an edge may be given in one direction, in both, or
    several times. Self loops stay.
    """
    codes, half = np.empty(2 * len(source), np.int64), len(source)
    for own, first, second in ((codes[:half], source, target), (codes[half:], target, source)):
        np.multiply(first, nodes, out=own, dtype=np.int64, casting="unsafe")
        np.add(own, second, out=own, dtype=np.int64, casting="unsafe")
    codes = distinct(codes, owned=True)
    edges = np.empty((2, len(codes)), np.int64)
    np.divmod(codes, nodes, out=(edges[0], edges[1]))
    return edges


def distinct(codes: np.ndarray, owned: bool = False) -> np.ndarray:
    """The different values of int64 [m], sorted; numpy.unique hashes, which takes 100 times longer on millions. owned:
    nobody else needs `codes`, which may be changed."""
    if owned:
        codes.sort()
    else:
        codes = np.sort(codes)
    new = np.ones(len(codes), bool)
    np.not_equal(codes[1:], codes[:-1], out=new[1:])
    return codes if new.all() else codes[new]

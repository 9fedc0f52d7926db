"""The one form in which fedweave keeps undirected edges; and edges between a member's nodes and nodes that it does not
hold, with what the member can say of them by itself.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from fedweave.core.carried import Carried
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


REFUSE, EXCHANGE = "refuse", "exchange"
EXTERNAL = (REFUSE, "features", EXCHANGE)
BARE = Carried(np.empty((2, 0), np.int64), False)  # no edges, that carry nothing


class Outside(NamedTuple):
    """C edges of a dataset's n nodes to nodes that are not among them.

    carried: what they carry; of their ends one is a node, below n, and the other n and its place in `names`.
    names:   what the files call the nodes that are elsewhere.
    """

    carried: Carried
    names: tuple[str, ...]


class Ends(NamedTuple):
    """H ends of edges whose other end is elsewhere: int64 [H] each.

    near: the node that the edge has at this end. far: the number of the other one. way: the place in `ways` of the
    direction that the edge has for `near`. edge: which edge it is.
    """

    near: np.ndarray
    far: np.ndarray
    way: np.ndarray
    edge: np.ndarray

    def only(self, which: np.ndarray) -> "Ends":
        """Those at bool [H], or at int64 places."""
        return Ends(*(own[which] for own in self))


def check_external(how: str) -> None:
    """Raise ConfigError unless `how` is one of `EXTERNAL`."""
    if how not in EXTERNAL:
        raise ConfigError(f"external = {how!r} is not known; choose one of {', '.join(EXTERNAL)}.", code="config.value")


def ways(directed: bool) -> tuple[str, ...]:
    """What the directions of an edge are called, seen from one of its ends."""
    return ("out", "in") if directed else ("",)


def ends_at(carried: Carried, holder: np.ndarray) -> Ends:
    """The ends that edges have at held nodes, where their other end is of another holder, or of none.

    holder: int64, of every node by its number; -1 is none.
    """
    source, target = carried.ends
    apart, found = holder[source] != holder[target], list[Ends]()
    for way, (near, far) in enumerate(((source, target), (target, source))):
        edge = np.flatnonzero(apart & (holder[near] >= 0))
        found.append(Ends(near[edge], far[edge], np.full(len(edge), way * carried.directed), edge))
    return Ends(*map(np.concatenate, zip(*found, strict=True)))


def summary(nodes: int, carried: Carried, holder: np.ndarray, ends: Ends) -> tuple[np.ndarray, tuple[str, ...]]:
    """Of the edges at each of so many nodes whose other end is elsewhere, for every direction: the logarithm of their
    number and 1; sum and mean of weight and of each feature, as inverse hyperbolic sines, which are logarithms of large
    numbers of either sign; the last time, from 0 to 1 between the first and the last of the holder's edges. float32
    [n, k], 0 without such edges; and the columns' names.

    holder: see `ends_at`.
    """
    found, moment = list[tuple[str, np.ndarray]](), _moments(carried, holder, ends)
    for way, called in enumerate(ways(carried.directed)):
        prefix, here = f"external {called} ".replace("  ", " "), ends.way == way
        made = _of_way(nodes, carried, ends.only(here), None if moment is None else moment[here])
        found += [(prefix + name, column) for name, column in made]
    return np.stack([column for _, column in found], 1).astype(np.float32), tuple(name for name, _ in found)


def _of_way(nodes: int, carried: Carried, own: Ends, moment: np.ndarray | None) -> Iterator[tuple[str, np.ndarray]]:
    """Names and columns float64 [n] of one direction."""
    count = np.bincount(own.near, minlength=nodes).astype(np.float64)
    yield "log count", np.log1p(count)
    for name, values in _values(carried):
        total = np.bincount(own.near, values[own.edge], nodes)
        yield f"log sum of {name}", np.arcsinh(total)
        yield f"log mean of {name}", np.arcsinh(total / count.clip(1))
    if moment is not None:
        last = np.zeros(nodes)
        np.maximum.at(last, own.near, moment)
        yield "last time", last


def _moments(carried: Carried, holder: np.ndarray, ends: Ends) -> np.ndarray | None:
    """float64 [H]: when each edge was, from 0 to 1 between the first and the last of those at its holder's nodes."""
    if carried.time is None:
        return None
    first = np.full(int(holder.max(initial=-1)) + 2, np.inf)
    last = -first
    for end in carried.ends:
        np.minimum.at(first, holder[end], carried.time)
        np.maximum.at(last, holder[end], carried.time)
    of, span = holder[ends.near], np.where(last > first, last - first, 1)
    found: np.ndarray = (carried.time[ends.edge] - first[of]) / span[of]
    return found


def _values(carried: Carried) -> list[tuple[str, np.ndarray]]:
    """(name, float64 [M]) of what edges carry and is summed up."""
    called = carried.columns or tuple(f"edge feature {at}" for at in range(carried.width))
    features = [] if carried.features is None else list(zip(called, carried.features.T.astype(np.float64), strict=True))
    if carried.weight is None or "weight" in called:
        return features
    return [("weight", carried.weight.astype(np.float64)), *features]


def beside(x: "np.ndarray | sp.csr_matrix", more: np.ndarray) -> "np.ndarray | sp.csr_matrix":
    """Features [n, d] with further columns [n, k] on their right, stored as they were."""
    if isinstance(x, sp.csr_matrix):
        return sp.csr_matrix(sp.hstack([x, sp.csr_matrix(more)], "csr"))
    return np.concatenate([x, more], 1)


def bare(ends: np.ndarray) -> Carried:
    """Undirected edges int64 [2, M] that carry nothing, each once, in whatever direction it is listed."""
    return Carried(np.unique(np.sort(ends, 0), axis=1), False)


def before(outside: Outside, nodes: int, limit: float) -> Outside:
    """Those edges that are no later than a time, and the names that they lead to."""
    if outside.carried.time is None or limit == np.inf:
        return outside
    kept = outside.carried.taken(outside.carried.time <= limit)
    far = kept.ends >= nodes
    used, place = np.unique(kept.ends[far], return_inverse=True)
    ends = kept.ends.copy()
    ends[far] = nodes + place
    return Outside(kept._replace(ends=ends), tuple(outside.names[at - nodes] for at in used))


def separated(carried: Carried, nodes: int, names: tuple[str, ...]) -> tuple[Carried, Outside]:
    """Edges of which some lead to nodes from number `nodes` on, called `names`, as those among the first and others."""
    inside = np.maximum(*carried.ends) < nodes
    outside = carried._replace(y=None, split=None, examples=False).taken(~inside, carried.ends[:, ~inside])
    return carried.taken(inside, carried.ends[:, inside]), Outside(outside, names)

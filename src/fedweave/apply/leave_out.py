"""Leaving out (occlusion; Zeiler and Fergus, ECCV 2014, "Visualizing and understanding convolutional networks"): the
score without each column, neighbor and edge. A column takes a typical value, a node goes with its edges, or one edge
goes.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from fedweave.apply.explanation import Reason
from fedweave.apply.gradients import slopes
from fedweave.apply.neighborhood import Neighborhood, around, reach, scores
from fedweave.apply.surroundings import MAX_VALUES, Surroundings
from fedweave.core.text import counted

MAX_TRIED = 1000  # neighbors and edges that are left out
MIN_TRIED = 32  # of them in any case
WORK = 1 << 23  # nodes and edges of all copies together, beyond which fewer are left out
GROUPS = 8  # into which neighbors are cut that are too many
CUT_AT_ONCE = 2  # of these that are cut in two


class Change(NamedTuple):
    """A reason to be tried, and what makes the copy of the neighborhood without it; see `Reason`."""

    kind: str
    name: str
    value: str
    typical: str
    copy: Callable[[], Neighborhood]
    places: tuple[int, ...] = ()


def leave_out(surroundings: Surroundings, score: float, alone: bool) -> tuple[list[Reason], int]:
    """What can be left out, each with the score without it, and how many neighbors and edges were not tried. score:
    with all of it. alone: whether each copy of the neighborhood is scored alone."""
    case = surroundings.case
    changes, untried = _changes(surroundings, alone)
    if not changes:
        return [], untried
    p = scores(case.net, case.w, (change.copy() for change in changes), case.dtype, alone)[:, surroundings.output]
    reasons = []
    for change, without in zip(changes, p.tolist(), strict=True):
        kind, name, value, typical = change[:4]
        reasons.append(Reason(kind, name, value, typical, without, score - without, change.places))
    return reasons, untried


def _changes(surroundings: Surroundings, alone: bool) -> tuple[list[Change], int]:
    """What can be left out, and how many neighbors and edges are not tried. Where these are too many, it has those for
    whose features, or for those of an edge's farther end, the score has the largest slopes, and in addition those that
    `_search` finds."""
    near, ends = surroundings.near, surroundings.near.ends
    nodes = np.array([node for node in range(len(near.nodes)) if surroundings.can_leave(node)], np.int64)
    edges = np.arange(ends.shape[1])
    if near.example == "edge":
        edges = edges[edges != near.target]
    limit = min(MAX_TRIED, max(MIN_TRIED, WORK // (len(near.nodes) + ends.shape[1])))
    order = np.arange(len(nodes) + len(edges))  # of what is tried: a place in the nodes, then in the edges
    if len(order) > limit:
        # 1. By slopes, then by distance.
        far = np.where(near.distance[ends[0]] > near.distance[ends[1]], *ends)[edges]
        where = np.concatenate([nodes, far])
        steepness = np.zeros(len(near.nodes))
        if not near.learned:
            steepness = np.abs(slopes(surroundings, np.zeros_like(near.x[0]), np.ones(1), alone)).sum(1)
        order = np.lexsort((near.distance[where], -steepness[where]))

        # 2. What the search finds: nodes, and their edges at the example.
        is_pick = np.zeros(len(near.nodes), bool)
        is_pick[_search(surroundings, nodes[order[order < len(nodes)]], limit, alone)] = True
        joins_pick = is_pick[ends[0]] | is_pick[ends[1]]
        at_example = (near.distance[ends] == 0).any(0)
        picks = np.flatnonzero(np.concatenate([is_pick[nodes], (joins_pick & at_example)[edges]]))
        picks = picks[: limit + MIN_TRIED]
        order = np.concatenate([order[:limit], picks[~np.isin(picks, order[:limit])]])

    changes = [*_edge_columns(surroundings), *_columns(surroundings), *_parallel_edges(surroundings)]
    for at in order:
        if at < len(nodes):
            changes.append(_node(surroundings, int(nodes[at])))
        else:
            changes.append(_edge(surroundings, int(edges[at - len(nodes)])))
    return changes, len(nodes) + len(edges) - len(order)


def _search(surroundings: Surroundings, nodes: np.ndarray, limit: int, alone: bool) -> np.ndarray:
    """int64, some of the `nodes` that move the score, found by leaving out groups: the groups that move it most for
    each of their nodes are cut in two, until they are single nodes or `limit` groups, or enough for one node, were left
    out.

    A node without which alone the score changes is found after about 2 log₂ n groups, unless others in its groups hide
    it. The search takes the neighborhood that messages come from, without the edges beyond, on which the degrees of its
    border depend: it proposes, and `leave_out` gives the exact effects.
    """
    # 1. The neighborhood, and the places of its nodes in that of the surroundings.
    case, near, hops = surroundings.case, surroundings.near, reach(surroundings.case.net)
    place = {int(at): number for number, at in enumerate(near.nodes)}
    if hops is not None and not surroundings.of_graph:
        wide = near
        near = around(case.data, wide.place, hops, wide.several, wide.learned)
        nodes = np.searchsorted(near.nodes, wide.nodes[nodes])[np.isin(wide.nodes[nodes], near.nodes)]
    whole = scores(case.net, case.w, [near], case.dtype, alone)[0, surroundings.output]
    limit = max(limit, 2 * GROUPS + 2 * CUT_AT_ONCE * len(nodes).bit_length())

    # 2. Groups of direct neighbors, and of nodes farther away.
    fresh = []
    for side in (nodes[near.distance[nodes] == 1], nodes[near.distance[nodes] > 1]):
        fresh += [group for group in np.array_split(side, GROUPS) if len(group)]

    # 3. The search: (effect, node), and of groups (effect for each node, nodes).
    singles, groups, count = list[tuple[float, int]](), list[tuple[float, np.ndarray]](), 0
    while fresh and count < limit:
        count += len(fresh)
        copies = (near.without(node=group) for group in fresh)
        effects = np.abs(whole - scores(case.net, case.w, copies, case.dtype, alone)[:, surroundings.output])
        for group, effect in zip(fresh, effects.tolist(), strict=True):
            if len(group) == 1:
                singles.append((effect, int(group[0])))
            else:
                groups.append((effect / len(group), group))
        groups.sort(key=lambda entry: entry[0])
        fresh = []
        for _, group in groups[-CUT_AT_ONCE:]:
            fresh += np.array_split(group, 2)
        del groups[-CUT_AT_ONCE:]
    best = sorted(singles, reverse=True)[: MIN_TRIED // 4]
    return np.array([place[int(near.nodes[node])] for _, node in best], np.int64)


def _columns(surroundings: Surroundings) -> list[Change]:
    """Each column that is not typical of the example's nodes."""
    near, columns_of = surroundings.near, surroundings.columns
    changes = []
    for prefix, nodes in surroundings.ends.items():
        rows = near.x[nodes]
        for name, columns in surroundings.groups.items():
            typical = columns_of.typical[columns]
            if (rows[:, columns] != typical).any():
                value, text = surroundings.values(columns, rows), columns_of.text_of(columns, columns_of.typical)
                copy = partial(near.with_columns, nodes, columns, typical)
                changes.append(Change("column", prefix + name, value, text, copy))
    return changes


def _edge_columns(surroundings: Surroundings) -> list[Change]:
    """Each column that is not typical of the edge that is the example."""
    near, columns_of = surroundings.near, surroundings.edge_columns
    if near.example != "edge" or near.edge_attrs is None or near.edge_attrs.features is None:
        return []
    row, changes = near.edge_attrs.features[near.target], []
    for name, columns in columns_of.groups.items():
        typical = columns_of.typical[columns]
        if (row[columns] != typical).any():
            value, text = columns_of.text_of(columns, row), columns_of.text_of(columns, columns_of.typical)
            copy = partial(near.with_edge_columns, near.target, columns, typical)
            changes.append(Change("column", name, value, text, copy))
    return changes


def _node(surroundings: Surroundings, node: int) -> Change:
    near = surroundings.near
    name, copy = surroundings.node_name(node), partial(near.without, node=node)
    if surroundings.of_graph:
        return Change(surroundings.words[0], name, "", "", copy, (node,))
    distance = counted(int(near.distance[node]), "step")
    return Change(surroundings.words[0], name, f"{distance} away", "", copy)


def _edge(surroundings: Surroundings, edge: int) -> Change:
    near, attributes, texts = surroundings.near, surroundings.near.edge_attrs, []
    if attributes is not None and attributes.features is not None:
        for name, columns in list(surroundings.edge_columns.groups.items())[:MAX_VALUES]:
            texts.append(f"{name} {surroundings.edge_columns.text_of(columns, attributes.features[edge])}")
    if attributes is not None and attributes.time is not None and near.link is None:
        texts.append(f"time {attributes.format_time(attributes.time[edge])}")
    places = tuple(near.ends[:, edge].tolist()) if surroundings.of_graph else ()
    copy = partial(near.without, edge=edge)
    return Change(surroundings.words[1], surroundings.edge_name(edge), ", ".join(texts), "", copy, places)


def _parallel_edges(surroundings: Surroundings) -> list[Change]:
    """All edges from one node to another at the example together, where they are several."""
    near, ends = surroundings.near, surroundings.near.ends
    if surroundings.of_graph or near.edge_attrs is None:
        return []
    here = np.flatnonzero((near.distance[ends] == 0).any(0))
    if near.example == "edge":
        here = here[here != near.target]
    first, second = ends[:, here] if near.edge_attrs.directed else np.sort(ends[:, here], 0)
    changes, codes = [], first * len(near.nodes) + second
    for code in np.unique(codes):
        edges = here[codes == code]
        if len(edges) > 1:
            name, value = surroundings.edge_name(int(edges[0])), f"all {len(edges):,}"
            changes.append(Change("edges", name, value, "", partial(near.without, edge=edges)))
    return changes

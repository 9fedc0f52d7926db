"""Edges with attributes as arrays: parallel edges are merged, reverse edges matched, features scaled."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedweave.core.edge_attributes import EdgeAttributes, is_visible
from fedweave.core.graph import TRAIN
from fedweave.core.graph_arrays import Matrix
from fedweave.datasets.base import Dataset
from fedweave.datasets.check import refuse
from fedweave.datasets.features import AUTO, BY_NODES, ScalingNumbers, amounts, apply_scaling, one_hot, scaler_of

_LOG = logging.getLogger(__name__)
NO_FEATURES = 'data.edge_features = "all" finds no feature of edges; they have neither labels nor further columns'


def numbered(kinds: np.ndarray) -> tuple[str, ...]:
    """The names of kinds int64 [m] that are numbers from 0: "0" to the largest; -1 is unknown."""
    return tuple(map(str, range(int(kinds.max(initial=-1)) + 1)))


def kinds_as_features(edges: np.ndarray, kinds: np.ndarray, names: tuple[str, ...]) -> EdgeAttributes:
    """The attributes of edges int64 [2, E], each in both directions, with a feature for each kind, "label = 3".

    kinds: int64 [E], from 0, -1 unknown. names: of the kinds; () where these are numbers.
    """
    once = edges[0] < edges[1]
    names = names or numbered(kinds)
    features = one_hot(kinds[once], len(names)).toarray()
    return EdgeAttributes(edges[:, once], False, features=features, columns=tuple(f"label = {name}" for name in names))


class EdgeScaler(NamedTuple):
    """A scaling of features of edges. numbers: see `EdgeAttributes.scaling`. features: of features [m, k], the scaled
    ones."""

    numbers: tuple[tuple[float, float, float], ...]
    features: Callable[[np.ndarray], Matrix]

    @classmethod
    def of_numbers(
        cls,
        how: str,
        shift: Sequence[float] = (),
        divisor: Sequence[float | None] = (),
        asinh: Sequence[bool] = (),
    ) -> "EdgeScaler":
        """The scaling by known numbers (`features.apply_scaling`)."""
        numbers = scaling_rows(shift, divisor, asinh)
        return cls(numbers, lambda values: apply_scaling(values, how, shift, divisor, asinh))

    def apply(self, edge_attrs: EdgeAttributes) -> EdgeAttributes:
        """The attributes with scaled features."""
        if edge_attrs.features is None:
            return edge_attrs
        features = np.ascontiguousarray(self.features(edge_attrs.features), np.float32)
        return edge_attrs._replace(features=features, scaling=self.numbers, auto=False)


def scaling_rows(
    shift: Sequence[float] | np.ndarray,
    divisor: Sequence[float | None] | np.ndarray,
    asinh: Sequence[bool] | np.ndarray = (),
) -> tuple[tuple[float, float, float], ...]:
    """`EdgeAttributes.scaling` by the fields of `features.ScalingNumbers`; no `asinh` is that of no column, and None is
    a divisor of infinity."""
    flags = asinh if len(asinh) else [False] * len(shift)
    rows = list[tuple[float, float, float]]()
    for start, by, flag in zip(shift, divisor, flags, strict=True):
        rows.append((float(start), 0.0 if by is None or math.isinf(by) else float(by), float(flag)))
    return tuple(rows)


def scaling_numbers(edge_attrs: EdgeAttributes) -> ScalingNumbers:
    """The numbers by which features of edges were scaled; 0 and 1 where they were not."""
    rows = np.array(edge_attrs.scaling or ((0.0, 1.0, 0.0),) * edge_attrs.width).reshape(-1, 3)
    return ScalingNumbers(rows[:, 0], np.where(rows[:, 1] == 0, np.inf, rows[:, 1]), rows[:, 2] != 0)


def edge_scaler(among: Sequence[EdgeAttributes], how: str, where: str | Path, end: float = math.inf) -> EdgeScaler:
    """The scaling of features of edges as `datasets.features.normalize` does, over all edges `among` up to `end`."""
    if how not in BY_NODES:
        return EdgeScaler.of_numbers(how)
    each, first_time = list[np.ndarray](), math.inf
    for edge_attrs in among:
        if edge_attrs.time is not None and edge_attrs.total:
            first_time = min(first_time, edge_attrs.time.min())
            edge_attrs = edge_attrs.select(edge_attrs.time <= end)
        if edge_attrs.features is not None:
            each.append(edge_attrs.features)
    over = each[0] if len(each) == 1 else np.concatenate(each)
    if first_time < math.inf and not len(over) and how != AUTO:  # a client may have later edges alone
        what = f"{first_time:.10g} is the first, and training ends at {end:.10g}"
        remedy = 'Let training end later (train_until), or set edge_normalize = "none".'
        refuse(where, f"no edge is early enough to scale features of edges by: {what}", remedy, "no-early-edges")
    if not len(over):
        return EdgeScaler((), lambda values: values)
    numbers, apply = scaler_of(over, how)
    shift, divisor, asinh = numbers
    if how == AUTO and not shift.any() and (divisor == 1).all():  # no column measures anything
        return EdgeScaler((), lambda values: values)
    return EdgeScaler(scaling_rows(shift, divisor, asinh), apply)


def scale_features(edge_attrs: EdgeAttributes, how: str, where: str | Path) -> EdgeAttributes:
    """The attributes with features scaled by all edges; "auto" leaves them to each holder of edges (`by_holder`), and
    as they are where they have been scaled, as in an archive of scaled ones."""
    if how == AUTO:
        return edge_attrs._replace(auto=edge_attrs.features is not None and not edge_attrs.scaling)
    return edge_attrs if how == "none" else edge_scaler([edge_attrs], how, where).apply(edge_attrs)


def scales_own_edges(edge_attrs: EdgeAttributes) -> bool:
    """Whether clients are to scale some feature of edges by their own edges."""
    return edge_attrs.auto and edge_attrs.features is not None and len(amounts(edge_attrs.features)) > 0


def by_holder(data: Dataset) -> Dataset:
    """The data of one client, with features of edges scaled by its own edges where `EdgeAttributes.auto` says so: by
    those until training ends, where examples are split by time."""
    attributes = data.edge_attrs
    if attributes is None or not attributes.auto:
        return data
    among = attributes.select(is_visible(attributes, TRAIN))
    return replace(data, edge_attrs=edge_scaler([among], AUTO, data.name).apply(attributes)._replace(auto=False))


def merge_parallel(edge_attrs: EdgeAttributes, parallel: str) -> EdgeAttributes:
    """The attributes with edges of the same ends merged by `parallel`; in the order of the last edge of each pair."""
    if parallel == "keep" or not edge_attrs.total:
        return edge_attrs
    index = edge_attrs.ends if edge_attrs.directed else np.sort(edge_attrs.ends, 0)
    codes = index[0] * (int(index.max()) + 1) + index[1]
    order = np.arange(edge_attrs.total) if edge_attrs.time is None else np.argsort(edge_attrs.time, kind="stable")
    group = np.unique(codes[order], return_inverse=True)[1]
    last = np.zeros(int(group.max()) + 1, np.int64)
    last[group] = order  # of what is assigned twice, the later stays
    rows = np.sort(last)
    place = np.empty(len(last), np.int64)
    place[np.argsort(last)] = np.arange(len(last))
    of = np.empty(edge_attrs.total, np.int64)
    of[order] = place[group]
    result = edge_attrs.select(rows)
    if parallel == "count":
        return result._replace(weight=np.bincount(of, minlength=len(rows)).astype(np.float32))
    if parallel == "last":
        return result
    sums = dict[str, Any]()
    for name in ("weight", "features"):
        values = getattr(edge_attrs, name)
        if values is not None:
            total = np.zeros((len(rows), *values.shape[1:]), np.float64)
            np.add.at(total, of, values)
            sums[name] = total.astype(np.float32)
    return result._replace(**sums)


def one_direction(edge_attrs: EdgeAttributes, where: str | Path) -> EdgeAttributes:
    """Undirected edges that are listed in both directions, each once."""
    if edge_attrs.directed:
        return edge_attrs
    if not is_mirrored(edge_attrs.ends):
        refuse(where, "an edge lacks its reverse", "List every edge in both directions, or set directed to true.")
    if not is_symmetric(edge_attrs):
        what = "an edge has another weight, other features or another time than its reverse"
        refuse(where, what, "Give both the same, or set directed to true.", "reverse")
    return edge_attrs.select(edge_attrs.ends[0] <= edge_attrs.ends[1])


def is_symmetric(edge_attrs: EdgeAttributes) -> bool:
    """Whether every edge is listed in both directions with the same values."""
    return bool(_reverse_rows(edge_attrs, np.zeros(edge_attrs.total, np.int64))[0].all())


def without_reverses(edge_attrs: EdgeAttributes, table: np.ndarray, where: str | Path) -> EdgeAttributes:
    """Undirected edges; each once where the table lists all in both directions with the same values, in the direction
    that comes first. Warns where it lists most of them so, or where edges are the examples, which all stay.

    table: int64 [M], which table each edge is from.
    """
    if edge_attrs.directed or not edge_attrs.total:
        return edge_attrs
    both, opens = _reverse_rows(edge_attrs, table)
    loop = edge_attrs.ends[0] == edge_attrs.ends[1]
    whole = np.bincount(table, ~both & ~loop)[table] == 0
    twice = both & ~loop & (~whole | edge_attrs.examples)
    if twice.any() and (twice.sum() >= MIN_SHARE * (~loop).sum()):
        are = "is two examples" if edge_attrs.examples else "counts twice"
        problem = f"{twice.sum():,} of {edge_attrs.total:,} rows list an edge in both directions with the same values"
        _LOG.warning("note: %s: %s, which %s; list it once, or set directed = true", where, problem, are)
    return edge_attrs if edge_attrs.examples else edge_attrs.select(~whole | loop | opens)


MIN_SHARE = 0.5  # of the edges that are listed in both directions, from which on this is noted


def _reverse_rows(edge_attrs: EdgeAttributes, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """bool [M], whether an edge is listed as often in the other direction with the same values in the same table, as
    loops are; and bool [M], whether it has the direction of the first row with its ends and values."""
    low, high = np.sort(edge_attrs.ends, 0)
    way = np.sign(edge_attrs.ends[1] - edge_attrs.ends[0])
    pair = np.unique(low << 31 | high, return_inverse=True)[1]
    ahead = np.bincount(pair[way == 1], minlength=len(pair))
    back = np.bincount(pair[way == -1], minlength=len(pair))
    both, opens = way == 0, np.ones(edge_attrs.total, bool)
    at = np.flatnonzero(((ahead > 0) & (back > 0))[pair])
    values = [column[at] for column in (edge_attrs.weight, edge_attrs.time) if column is not None]
    values += [] if edge_attrs.features is None else list(edge_attrs.features[at].T)
    order = np.lexsort([*values, pair[at], table[at]])
    new = np.ones(len(at), bool)  # the first row of each group of equal ones
    new[1:] = np.any([np.diff(key[order]) != 0 for key in (*values, pair[at], table[at])], 0)
    group = np.empty(len(at), np.int64)
    group[order] = np.cumsum(new) - 1
    both[at] = np.bincount(group, way[at])[group] == 0
    opens[at] = way[at] == way[at][order[new]][group]  # `lexsort` keeps the order of equal rows
    return both, opens


def direction_note(attributes: EdgeAttributes | None, both: bool, directed: bool | None) -> tuple[str, ...]:
    """A note on one-way edges of other programs' graphs, which count both ways here unless the user sets `directed`."""
    if attributes is not None or both or directed is not None:
        return ()
    return ("the edges' directions are not used; set directed = True to use them, or False to silence this note",)


def is_mirrored(index: np.ndarray) -> bool:
    """Whether edges int64 [2, M] are listed in both directions."""
    source, target = index
    codes = np.minimum(source, target) << 31 | np.maximum(source, target)
    return np.array_equal(np.sort(codes[source < target]), np.sort(codes[source > target]))


def as_edges(data: Dataset, labels: tuple[str, ...] = ()) -> Dataset:
    """The graph with its edges as the examples, by their classes, with the names `labels`, and their split."""
    attributes = data.edge_attrs
    if attributes is None or attributes.y is None:
        refuse(data.name, "its edges have no classes", "Set task = 'nodes', or give edge_y.")
    split = None if attributes.split is None else (attributes.split == np.arange(3)[:, None]) & (attributes.y >= 0)
    y, classes = attributes.y, max(len(labels), int(attributes.y.max(initial=-1)) + 1)
    examples = attributes._replace(examples=True, y=None, split=None)
    fields = {"labels": labels, "ids": (), "node_ids": data.ids, "sensitive": None, "groups": ()}
    return replace(data, edge_attrs=examples, y=y, classes=classes, public=split, **fields)  # type: ignore[arg-type]

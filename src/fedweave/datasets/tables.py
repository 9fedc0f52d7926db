"""Edge attributes of a user's own data: direction, weight, features, time; parallel edges and loops."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.graph import dense
from fedweave.core.types import Record
from fedweave.datasets.base import Dataset, undirected
from fedweave.datasets.check import check, refuse, refuse_rows
from fedweave.datasets.features import (
    OVER_NODES,
    compact,
    rescaled,
    scaled_by_holders,
    scaler_of,
    with_constant,
    without_sens,
)
from fedweave.datasets.schema import (
    ABSENT_END,
    AUTO,
    EDGES,
    NODES,
    OF_EDGES,
    Categories,
    Classified,
    check_columns,
    check_gaps,
    ends_of,
    feature_names,
    features_of,
    gaps_filled,
    gaps_of,
    group_names,
    ids_of,
    in_training,
    owners_of,
    refuse_row_as_names,
    seen,
    sens_of,
    split_of,
    spread,
)
from fedweave.datasets.settings import EdgeSettings
from fedweave.datasets.table import Table, Tables
from fedweave.errors import ConfigError, DataError, Faults

ALL = "all"
_DAY = {"s": 86_400.0, "ms": 86_400e3, "us": 86_400e6, "ns": 86_400e9}  # of each unit
_IN_EDGES = "edges."

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Carrying(EdgeSettings, Classified):
    """Tables whose edges may have attributes.

    edge_owner: the column of edges with their owners, for the partition "edges"; it is no feature.
    """

    edge_owner: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_carrying(self)

    @property
    def has_edge_attributes(self) -> bool:
        columns = (self.edge_features, self.edge_weight, self.edge_time, self.edge_owner)
        carry = any(name is not None for name in columns) or self.parallel != "keep"
        return self.directed or self.of_edges or carry

    @property
    def reserved(self) -> tuple[str, ...]:
        """The columns of edges with a meaning other than edge attributes."""
        return ()

    @property
    def listed(self) -> tuple[str, ...]:
        """`edge_features` as a tuple."""
        return (self.edge_features,) if isinstance(self.edge_features, str) else tuple(self.edge_features or ())

    @property
    def chosen(self) -> tuple[str, ...]:
        """The columns of edges that settings name."""
        numbers = self.edge_weight, self.edge_time, self.edge_owner
        every = (*(name for name in self.listed if name != ALL), *numbers)
        return tuple(dict.fromkeys(name for name in every if name is not None))


def check_carrying(kind: Carrying) -> None:
    """Reject settings that contradict each other.

    Raises:
        ConfigError: names the setting, its value and what is allowed.
    """
    if odd := [name for name in kind.chosen if name in EDGES]:
        raise ConfigError(f"data: {odd[0]!r} is an end of edges, and cannot be their feature, weight or time.")
    if odd := [name for name in kind.chosen if name in kind.reserved]:
        raise ConfigError(
            f"data: {odd[0]!r} has another meaning for edges, and cannot be their feature, weight or time."
        )
    if kind.of_edges and kind.parallel != "keep":
        raise ConfigError(
            f"parallel = {kind.parallel!r} merges edges, but each edge is an example. Set parallel = 'keep'."
        )
    if kind.parallel == "count" and kind.edge_weight is not None:
        raise ConfigError('parallel = "count" makes the number of edges the weight; leave out edge_weight.')


def carried_of(
    edges: Table, listed: tuple[np.ndarray, np.ndarray], kind: Carrying, categories: Categories | None = None
) -> EdgeAttributes | None:
    """The edge attributes; `listed` has the ends int64 [2, M] and the rows int64 [M] in the table; None without edge
    attributes.

    categories: columns of text of all tables; names of edge columns begin with "edges.", such as "edges.currency".

    Raises:
        DataError: a value is not a finite number, a weight is below 0 or a time is no date; names file and row.
    """
    if not kind.has_edge_attributes:
        return None
    ends, rows = listed
    weight = None if kind.edge_weight is None else _weights(edges, kind.edge_weight)[rows]
    time = None if kind.edge_time is None else times_of(edges, kind.edge_time)[rows]
    of_features, edge_categories = (
        gaps_filled(spread(_features(edges, kind)), gaps_of(kind.missing, True)),
        _of_edges(categories),
    )
    columns = feature_names(of_features, (), edge_categories)
    features = dense(features_of(of_features, (), edge_categories)[rows]) if columns else None
    dates = kind.edge_time if kind.edge_time is not None and has_dates(edges, kind.edge_time) else ""
    attributes = EdgeAttributes(
        ends, kind.directed, weight, features, time, columns, examples=kind.of_edges, dates=dates
    )
    if kind.edge_owner is not None:
        owners = owners_of(edges, kind.edge_owner)
        attributes = attributes._replace(owner=edges.kinds(kind.edge_owner, owners)[rows], owners=owners)
    result = merged(given_once(attributes, edges.origins[rows], edges.path), kind.parallel)
    return scaled(result, kind.edge_normalize, edges.path)


class EdgeScaler(NamedTuple):
    """A scaling of features of edges. pairs: see `EdgeAttributes.scaling`. features: of features [m, k], the scaled
    ones."""

    pairs: tuple[tuple[float, float], ...]
    features: "Callable[[np.ndarray], np.ndarray | sp.csr_matrix]"

    @classmethod
    def of_numbers(cls, how: str, shift: Sequence[float] = (), divisor: Sequence[float | None] = ()) -> "EdgeScaler":
        """The scaling by known numbers (`features.rescaled`)."""
        pairs = zip(shift, (by or 0.0 for by in divisor), strict=True)
        return cls(tuple(pairs), lambda values: rescaled(values, how, shift, divisor))

    def apply(self, edge_attrs: EdgeAttributes) -> EdgeAttributes:
        """The attributes with scaled features."""
        if edge_attrs.features is None:
            return edge_attrs
        features = np.ascontiguousarray(self.features(edge_attrs.features), np.float32)
        return edge_attrs._replace(features=features, scaling=self.pairs)


def edge_scaler(among: Sequence[EdgeAttributes], how: str, where: str | Path, end: float = math.inf) -> EdgeScaler:
    """The scaling of features of edges as `datasets.features.normalize` does, over all edges `among` up to `end`.

    Raises:
        DataError: there is no edge until then.
    """
    if how not in OVER_NODES:
        return EdgeScaler.of_numbers(how)
    early = [one if one.time is None else one.taken(one.time <= end) for one in among]
    each = [one.features for one in early if one.features is not None]
    over = each[0] if len(each) == 1 else np.concatenate(each)
    times = [one.time for one in among if one.time is not None and one.total]
    if times and not len(over):
        what = f"{min(map(np.min, times)):.10g} is the first, and training ends at {end:.10g}"
        remedy = 'Let training end later (train_until), or set edge_normalize = "none".'
        refuse(where, f"no edge is early enough to scale features of edges by: {what}", remedy, "no-early-edges")
    if not len(over):
        return EdgeScaler((), lambda values: values)
    shift, divisor, apply = scaler_of(over, how)
    pairs = zip(shift.tolist(), np.where(np.isinf(divisor), 0, divisor).tolist(), strict=True)
    return EdgeScaler(tuple(pairs), apply)


def scaled(edge_attrs: EdgeAttributes, how: str, where: str | Path) -> EdgeAttributes:
    """The attributes with features scaled by all edges."""
    return edge_attrs if how == "none" else edge_scaler([edge_attrs], how, where).apply(edge_attrs)


def merged(edge_attrs: EdgeAttributes, parallel: str) -> EdgeAttributes:
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
    result = edge_attrs.taken(rows)
    if parallel == "count":
        return result._replace(weight=np.bincount(of, minlength=len(rows)).astype(np.float32))
    if parallel == "last":
        return result
    weight, features = (_summed(values, of, len(rows)) for values in (edge_attrs.weight, edge_attrs.features))
    return result._replace(weight=weight, features=features)


def _summed(values: np.ndarray | None, of: np.ndarray, count: int) -> np.ndarray | None:
    if values is None:
        return None
    out = np.zeros((count, *values.shape[1:]), np.float64)
    np.add.at(out, of, values)
    return out.astype(np.float32)


def skeleton(index: np.ndarray, nodes: int) -> np.ndarray:
    """int64 [2, E]: who is joined to whom, in the form of `Dataset.edges`."""
    apart = index[0] != index[1]
    return undirected(index[0, apart], index[1, apart], nodes)


def once(edge_attrs: EdgeAttributes, where: str | Path) -> EdgeAttributes:
    """Undirected edges that are listed in both directions, each once.

    Raises:
        DataError: one lacks its reverse.
    """
    if edge_attrs.directed:
        return edge_attrs
    if not mirrored(edge_attrs.ends):
        refuse(where, "an edge lacks its reverse", "List every edge in both directions, or set directed to true.")
    if not alike_both_ways(edge_attrs):
        what = "an edge has another weight, other features or another time than its reverse"
        refuse(where, what, "Give both the same, or set directed to true.", "reverse")
    return edge_attrs.taken(edge_attrs.ends[0] <= edge_attrs.ends[1])


def alike_both_ways(edge_attrs: EdgeAttributes) -> bool:
    """Whether every edge is listed in both directions with the same values."""
    return bool(_both(edge_attrs, np.zeros(edge_attrs.total, np.int64))[0].all())


def given_once(edge_attrs: EdgeAttributes, table: np.ndarray, where: str | Path) -> EdgeAttributes:
    """Undirected edges; each once where the table lists all in both directions with the same values, in the direction
    that comes first. Warns where it lists most of them so, or where edges are the examples, which all stay.

    table: int64 [M], which table each edge is from.
    """
    if edge_attrs.directed or not edge_attrs.total:
        return edge_attrs
    both, opens = _both(edge_attrs, table)
    loop = edge_attrs.ends[0] == edge_attrs.ends[1]
    whole = np.bincount(table, ~both & ~loop)[table] == 0
    twice = both & ~loop & (~whole | edge_attrs.examples)
    if twice.any() and (twice.sum() >= _MOSTLY * (~loop).sum()):
        are = "is two examples" if edge_attrs.examples else "counts twice"
        problem = f"{twice.sum():,} of {edge_attrs.total:,} rows list an edge in both directions with the same values"
        _LOG.warning("note: %s: %s, which %s; list it once, or set directed = true", where, problem, are)
    return edge_attrs if edge_attrs.examples else edge_attrs.taken(~whole | loop | opens)


_MOSTLY = 0.5  # share of the edges


def _both(edge_attrs: EdgeAttributes, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """bool [M], whether an edge is listed as often in the other direction with the same values in the same table, as
    loops are; and bool [M], whether it has the direction of the first row with its ends and values."""
    low, high = np.sort(edge_attrs.ends, 0)
    way = np.sign(edge_attrs.ends[1] - edge_attrs.ends[0])
    pair = np.unique(low << 31 | high, return_inverse=True)[1]
    ahead, back = (np.bincount(pair[way == one], minlength=len(pair)) for one in (1, -1))
    both, opens = way == 0, np.ones(edge_attrs.total, bool)
    at = np.flatnonzero(((ahead > 0) & (back > 0))[pair])
    values = [column[at] for column in (edge_attrs.weight, edge_attrs.time) if column is not None]
    values += [] if edge_attrs.features is None else list(edge_attrs.features[at].T)
    order = np.lexsort([*values, pair[at], table[at]])
    new = np.ones(len(at), bool)
    new[1:] = np.any([np.diff(key[order]) != 0 for key in (*values, pair[at], table[at])], 0)
    group = np.empty(len(at), np.int64)
    group[order] = np.cumsum(new) - 1
    both[at] = np.bincount(group, way[at])[group] == 0
    opens[at] = way[at] == way[at][order[new]][group]  # `lexsort` keeps the order of equal rows
    return both, opens


def one_way(attributes: EdgeAttributes | None, both: bool, directed: bool | None) -> tuple[str, ...]:
    """A note on one-way edges of other programs' graphs, which count both ways here unless the user sets `directed`."""
    if attributes is not None or both or directed is not None:
        return ()
    return ("the edges' directions are not used; set directed = True to use them, or False to silence this note",)


def mirrored(index: np.ndarray) -> bool:
    """Whether edges int64 [2, M] are listed in both directions."""
    source, target = index
    codes = np.minimum(source, target) << 31 | np.maximum(source, target)
    ahead, back = (np.sort(codes[one_way]) for one_way in (source < target, source > target))
    return np.array_equal(ahead, back)


def as_edges(data: Dataset, labels: tuple[str, ...] = ()) -> Dataset:
    """The graph with its edges as the examples, by their classes, with the names `labels`, and their split.

    Raises:
        DataError: its edges have no classes of their own.
    """
    attributes = data.edge_attrs
    if attributes is None or attributes.y is None:
        refuse(data.name, "its edges have no classes", "Set task = 'nodes', or give edge_y.")
    split = None if attributes.split is None else (attributes.split == np.arange(3)[:, None]) & (attributes.y >= 0)
    y, classes = attributes.y, max(len(labels), int(attributes.y.max(initial=-1)) + 1)
    examples = attributes._replace(examples=True, y=None, split=None)
    fields = {"labels": labels, "ids": (), "node_ids": data.ids, "sensitive": None, "groups": ()}
    return replace(data, edge_attrs=examples, y=y, classes=classes, public=split, **fields)  # type: ignore[arg-type]


def has_dates(table: Table, column: str) -> bool:
    """Whether a column of times has dates, and no numbers or durations."""
    cells = table.cells(column)
    if pa.types.is_temporal(cells.type):
        return not pa.types.is_duration(cells.type)
    text = pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type)
    return text and _cast(cells, pa.float64()) is None


def times_of(table: Table, column: str) -> np.ndarray:
    """float64 [rows]: numbers as they are, dates and times as days since 1970, durations as days.

    Raises:
        DataError: a cell is empty or neither; names file and row.
    """
    cells = table.cells(column)
    refuse_rows(
        table,
        np.asarray(cells.is_null(nan_is_null=True)),
        lambda row: f"time {column!r} is empty",
        "Give every edge its time, or remove the row.",
    )
    if not pa.types.is_temporal(cells.type):
        try:
            times = np.asarray(cells.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            cells = _dates(table, column, cells)
        else:
            message = "time {!r} is no finite number".format
            refuse_rows(table, ~np.isfinite(times), lambda row: message(column), "Correct it, or remove the row.")
            return times
    if pa.types.is_date(cells.type):
        cells = cells.cast(pa.timestamp("ms"))
    if not pa.types.is_timestamp(cells.type) and not pa.types.is_duration(cells.type):
        refuse(table.path, f"column {column!r} holds {cells.type}, no point in time", _TIMES, "time")
    return np.asarray(cells.cast(pa.int64()).to_numpy(zero_copy_only=False) / _DAY[cells.type.unit])


_TIMES = "Give numbers, or dates such as 2024-03-31 or 2024-03-31T12:00:00."
_KINDS = tuple(pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC"))


def _dates(table: Table, column: str, cells: pa.Array) -> pa.Array:
    """The column of text as timestamps, of nanoseconds where microseconds do not keep it."""
    for kind in _KINDS:
        if (times := _cast(cells, kind)) is not None:
            return times
    bad = np.array([all(_cast(pa.array([text]), kind) is None for kind in _KINDS) for text in cells.to_pylist()], bool)

    def describe(row: int) -> str:
        number = _cast(cells[row : row + 1], pa.float64()) is not None
        what = "a number among dates" if number else "no number and no date"
        return f"time {column!r} is {cells[row].as_py()!r}, {what}"

    refuse_rows(table, bad, describe, _TIMES)
    remedy = "Give all times a zone, or none; nanoseconds reach from 1678 to 2261."
    refuse(table.path, f"column {column!r} mixes times with and without a zone, or of too many digits", remedy, "times")


def _cast(cells: pa.Array, kind: pa.DataType) -> pa.Array | None:
    try:
        return cells.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _weights(table: Table, column: str) -> np.ndarray:
    weight = table.numbers(column, apart=False, gaps="Give every edge its weight, or remove the row.")
    remedy = "Give weights from 0; a number of either sign may be a feature of the edge (edge_features)."
    refuse_rows(table, weight < 0, lambda row: f"weight {column!r} is {weight[row]:g}, below 0", remedy)
    return weight


def _features(edges: Table, kind: Carrying) -> Table:
    """The table's columns that are features of edges."""
    if kind.edge_features != ALL:
        return _of_numbers(edges, kind.edge_time, list(kind.listed))
    other_columns = (*EDGES, kind.edge_weight, kind.edge_time, kind.edge_owner, *kind.reserved)
    return _of_numbers(edges, None, [name for name in edges.columns if name not in other_columns])


def _of_numbers(edges: Table, time: str | None, names: list[str]) -> Table:
    """The table with the columns `names`, a time as a number."""
    data = edges.data.select(names)
    if time in names:
        data = data.set_column(names.index(time), time, pa.array(times_of(edges, time)))
    return replace(edges, data=data)


def _of_edges(categories: Categories | None) -> Categories:
    items = (categories or {}).items()
    return {name.removeprefix(_IN_EDGES): values for name, values in items if name.startswith(_IN_EDGES)}


def of_nodes(categories: Categories | None) -> Categories | None:
    """The part of `categories` that is about columns of nodes."""
    if categories is None:
        return None
    return {name: values for name, values in categories.items() if not name.startswith(_IN_EDGES)}


# ----------------------------------------------------------------------------------------------------
# Tables of nodes and edges, and of small graphs, wherever they were read: checked in one place, and made a `Dataset`.
# One error lists everything that is wrong in them, with file, row and remedy.


Parts = dict[str, Callable[[Record], object]]


@dataclass(frozen=True)
class Tabular(Carrying):
    """Tables that become one data set.

    owner: the column of the examples, or of nodes where these are edges, with their owners, for the partition "column";
           it is no feature.
    """

    absent_end: ClassVar[str] = ABSENT_END  # the remedy for an edge to an id that is no node
    owner: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.owner in NODES:
            raise ConfigError(
                f"data: owner = {self.owner!r} already means something else; name another column.",
                code="config.column-taken",
            )

        check_gaps(self.missing, self.categories)
        if both := [name for name in self.targets or () if name in (self.owner, *gaps_of(self.missing, self.of_edges))]:
            raise ConfigError(
                f"data.targets: {both[0]!r} is also in data.missing or data.owner. Name it once; targets may "
                "have gaps as they are.",
                code="config.conflict",
            )

    @property
    def known(self) -> tuple[str, ...]:
        """The columns of nodes that are no features."""
        return (*NODES, *(() if self.of_edges else self.targets or ()))

    def made(self, tables: Tables, root: Path, labelled: bool = True) -> Dataset:
        """The data set; errors about several tables name `root`, and its last part is the data's name.

        labelled: False for examples to be predicted, which need no labels and whose split does not matter.

        Raises:
            DataError: the tables are not valid; the message names file, row (see `table.Table`) and remedy, of each of
                the first 20 faults.
        """
        if (settled := self.settled(self.examples(tables))) is not self:
            return settled.made(tables, root, labelled)
        self.check_form(tables, labelled)
        if AUTO in (self.categories or {}).values():
            return replace(self, categories=self.seen_in(tables)).made(tables, root, labelled)
        nodes = gaps_filled(spread(tables.nodes, self.known), gaps_of(self.missing, of_edges=False))
        if nodes.rows == 0:
            refuse(nodes.path, "the table has no rows", "Give one row per node.")
        tables = self.arranged(tables._replace(nodes=nodes))
        faults, record = Faults(DataError), Record()
        for name, part in self.parts(tables, labelled).items():
            with faults:
                record[name] = part(record)
        faults.refuse()
        record["labels"] = self.names_of(self.examples(tables))
        record["y"], record["classes"] = record.pop("labelled")
        fields = self.finished(tables, record)
        data = Dataset(name=root.resolve().name, **(fields | self.of_targets(fields["y"])))
        data = with_constant(data, self.of_links)
        data = replace(data, notes=(*data.notes, *self._unused(tables)))
        without_sens(data, (tables.edges if self.of_edges else tables.nodes).path, self.sens_feature)
        data = scaled_by_holders(replace(data, x=compact(data.x)), self.normalize, root.name)
        return check(data, root, labelled)

    def check_form(self, tables: Tables, labelled: bool) -> None:
        """Refuse tables without columns that they must have, or with others that they may not."""
        known = (*EDGES, *self.chosen, *self.reserved)
        required = (*EDGES, *self.chosen, *(self.answers if self.of_edges and labelled else []))
        hint = "list others in data.edge_features, or name one in data.edge_weight or data.edge_time"
        if "label" in tables.edges.columns and not self.reserved:
            hint += "; data.task = 'edges' makes each edge an example"
        ids = (lambda: tables.nodes.texts("id")) if "id" in tables.nodes.columns else None
        if ids is not None:
            refuse_row_as_names(tables.edges, [(self.columns or {}).get(name) for name in EDGES], ids())
        check_columns(tables.edges, required, known, closed=self.edge_features != ALL, hint=hint, ids=ids)

    def _unused(self, tables: Tables) -> Iterator[str]:
        """A note on the column label where other columns are the targets."""
        examples = self.examples(tables)
        if "label" not in self.answers and "label" in examples.columns:
            yield f"{examples.path}: the column label is not used, since data.targets lists the targets"

    def seen_in(self, tables: Tables) -> dict[str, str | tuple[str, ...]]:
        """The categories, with "auto" replaced by the values of training rows: where the examples have a column split,
        rows with "train", and the nodes of such small graphs; else all."""
        categories = dict(self.categories or {})
        for name in (name for name, values in categories.items() if values == AUTO):
            table = tables.edges if name.startswith(OF_EDGES) else tables.nodes
            categories[name] = seen(table, name.removeprefix(OF_EDGES), self._trains(tables, table))
        return categories

    def _trains(self, tables: Tables, table: Table) -> np.ndarray | None:
        """bool [rows] of a table, the rows of examples whose split is "train"; None without a split."""
        examples = self.examples(tables)
        trains = in_training(examples)
        if trains is None or table is examples:
            return trains
        if tables.graphs is None or table is not tables.nodes:
            return None
        of_graphs = pc.is_in(table.filled("graph"), ids_of(examples).filter(pa.array(trains)))
        rows: np.ndarray = of_graphs.to_numpy(zero_copy_only=False)
        return rows if rows.any() else None

    def arranged(self, tables: Tables) -> Tables:
        """The tables with nodes in the order of the data set's nodes."""
        return tables

    def parts(self, tables: Tables, labelled: bool) -> Parts:
        """{name: the function that reads it} in order; each gets the record of the values before it."""
        nodes, edges, examples = tables.nodes, tables.edges, self.examples(tables)
        whose, known, categories = tables.graphs or nodes, self.known, of_nodes(self.categories)
        example = "graph" if tables.graphs else "edge" if self.of_edges else "node"
        split, owned = labelled and "split" in examples.columns, self.owner in whose.columns
        return {
            "ids": lambda record: ids_of(nodes),
            "labelled": lambda record: self.labels_of(examples, labelled),
            "x": lambda record: features_of(nodes, known, categories, apart=labelled),
            "columns": lambda record: feature_names(nodes, known, categories),
            "sensitive": lambda record: sens_of(examples, self.groups),
            # where that raised an error, its names would raise the same
            "groups": lambda record: group_names(examples, self.groups) if "sensitive" in record else (),
            "public": lambda record: (
                split_of(examples, record["labelled"][0], example) if split and "labelled" in record else None
            ),
            "owners": lambda record: owners_of(whose, self.owner or "") if owned else (),
            "owner": lambda record: whose.kinds(self.owner or "", record["owners"]) if record.get("owners") else None,
            "elsewhere": lambda record: pa.array([], "str"),
            "ends": lambda record: (
                ends_of(edges, pa.concat_arrays([record["ids"], record["elsewhere"]]), self.loops, self.absent_end)
                if {"ids", "elsewhere"} <= record.keys()
                else None
            ),
            "edge_attrs": lambda record: (
                carried_of(edges, record["ends"], self, self.categories) if record.get("ends") else None
            ),
        }

    def finished(self, tables: Tables, record: Record) -> Record:
        """The fields of the data set, from the values that `parts` read."""
        ends, _ = record["ends"]
        record = {name: value for name, value in record.items() if name not in ("ends", "elsewhere")}
        return record | {"ids": tuple(record["ids"].to_pylist()), "edges": skeleton(ends, tables.nodes.rows)}

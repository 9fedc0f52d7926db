"""Edge attributes in a user's table of edges: direction, weight, features and time."""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.graph_arrays import dense
from fedweave.datasets.check import refuse, refuse_rows
from fedweave.datasets.column_names import EDGES, OF_EDGES
from fedweave.datasets.columns import (
    Categories,
    expand_lists,
    feature_names,
    features_of,
    fill_gaps,
    gap_columns,
    owners_of,
)
from fedweave.datasets.edges import merge_parallel, scale_features, without_reverses
from fedweave.datasets.schema import Classified
from fedweave.datasets.settings import EdgeSettings
from fedweave.datasets.structure import check_kinds
from fedweave.datasets.table import Table, is_text
from fedweave.errors import ConfigError

ALL = "all"
_DAY = {"s": 86_400.0, "ms": 86_400e3, "us": 86_400e6, "ns": 86_400e9}  # of each unit


@dataclass(frozen=True)
class EdgeTables(EdgeSettings, Classified):
    """Tables whose edges may have attributes.

    edge_owner: the column of edges with their owners, for the partition "edges"; it is not a feature.
    """

    edge_owner: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kinds(self.structure)
        others = (self.edge_weight, self.edge_time, self.edge_owner)
        for name in self.attribute_columns:
            is_kind = name in self.kind_columns and name not in others
            if name in EDGES or (name in self.known_edge_columns and not is_kind):
                role = "is an end of edges" if name in EDGES else "has another meaning for edges"
                raise ConfigError(f"data: {name!r} {role}, and cannot be their feature, weight or time.")
        if self.of_edges and self.parallel != "keep":
            raise ConfigError(
                f"parallel = {self.parallel!r} merges edges, but each edge is an example. Set parallel = 'keep'."
            )
        if self.parallel == "count" and self.edge_weight is not None:
            raise ConfigError('parallel = "count" makes the number of edges the weight; leave out edge_weight.')

    @property
    def has_edge_attributes(self) -> bool:
        columns = (self.edge_features, self.edge_weight, self.edge_time, self.edge_owner)
        return self.directed or self.of_edges or self.parallel != "keep" or columns != (None,) * 4

    @property
    def known_edge_columns(self) -> tuple[str, ...]:
        """The columns of edges with a meaning other than edge attributes."""
        return ()

    @property
    def kind_columns(self) -> tuple[str, ...]:
        """The `known_edge_columns` that may also be features, one for each kind of edge."""
        return ()

    @property
    def feature_columns(self) -> tuple[str, ...]:
        """`edge_features` as a tuple."""
        return (self.edge_features,) if isinstance(self.edge_features, str) else tuple(self.edge_features or ())

    @property
    def attribute_columns(self) -> tuple[str, ...]:
        """The columns of edges that settings name."""
        names = dict.fromkeys((*self.feature_columns, self.edge_weight, self.edge_time, self.edge_owner))
        return tuple(name for name in names if name not in (None, ALL))


def edge_attributes_of(
    edges: Table, listing: tuple[np.ndarray, np.ndarray], kind: EdgeTables, categories: Categories | None = None
) -> EdgeAttributes | None:
    """The edge attributes, None without; `listing` has the ends int64 [2, M] and the rows int64 [M] in the table.

    categories: columns of text of all tables; names of edge columns begin with "edges.", such as "edges.currency".
    """
    if not kind.has_edge_attributes:
        return None
    ends, rows = listing
    weight = time = None
    dates = ""  # the column of times, if these are dates and no numbers or durations
    if kind.edge_weight is not None:
        numbers = edges.numbers(kind.edge_weight, distinct=False, gaps="Give every edge its weight, or remove the row.")
        remedy = "Give weights from 0; a number of either sign may be a feature of the edge (edge_features)."
        below = f"weight {kind.edge_weight!r} is {{:g}}, below 0".format
        refuse_rows(edges, numbers < 0, lambda row: below(numbers[row]), remedy)
        weight = numbers[rows]
    if kind.edge_time is not None:
        time, cells = times_of(edges, kind.edge_time)[rows], edges.cells(kind.edge_time)
        is_date = pa.types.is_temporal(cells.type) and not pa.types.is_duration(cells.type)
        if is_date or (is_text(cells.type) and _cast(cells, pa.float64()) is None):
            dates = kind.edge_time
    table = fill_gaps(expand_lists(_features(edges, kind)), gap_columns(kind.missing, True))
    edge_categories = dict[str, str | tuple[str, ...]]()
    for name, values in (categories or {}).items():
        if name.startswith(OF_EDGES):
            edge_categories[name.removeprefix(OF_EDGES)] = values
    columns = feature_names(table, (), edge_categories)
    features = dense(features_of(table, (), edge_categories)[rows]) if columns else None
    attributes = EdgeAttributes(
        ends, kind.directed, weight, features, time, columns, examples=kind.of_edges, dates=dates
    )
    if kind.edge_owner is not None:
        owners = owners_of(edges, kind.edge_owner)
        attributes = attributes._replace(owner=edges.kinds(kind.edge_owner, owners)[rows], owners=owners)
    result = merge_parallel(without_reverses(attributes, edges.origins[rows], edges.path), kind.parallel)
    return scale_features(result, kind.edge_normalize, edges.path)


def times_of(table: Table, column: str) -> np.ndarray:
    """float64 [rows]: numbers as they are, dates and times as days since 1970, durations as days."""
    cells = table.cells(column)
    empty, remedy = np.asarray(cells.is_null(nan_is_null=True)), "Give every edge its time, or remove the row."
    refuse_rows(table, empty, lambda row: f"time {column!r} is empty", remedy)
    if not pa.types.is_temporal(cells.type):
        try:
            times = np.asarray(cells.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            cells = _dates(table, column, cells)
        else:
            what = f"time {column!r} is not a finite number"
            refuse_rows(table, ~np.isfinite(times), lambda row: what, "Correct it, or remove the row.")
            return times
    if pa.types.is_date(cells.type):
        cells = cells.cast(pa.timestamp("ms"))
    if not pa.types.is_timestamp(cells.type) and not pa.types.is_duration(cells.type):
        refuse(table.path, f"column {column!r} holds {cells.type}, no point in time", _TIMES, "time")
    return np.asarray(cells.cast(pa.int64()).to_numpy(zero_copy_only=False) / _DAY[cells.type.unit])


_TIMES = "Give numbers, or dates such as 2024-03-31 or 2024-03-31T12:00:00."
_KINDS = (pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.timestamp("ns", "UTC"))


def _dates(table: Table, column: str, cells: pa.Array) -> pa.Array:
    """The column of text as timestamps, of nanoseconds where microseconds do not keep it."""
    for kind in _KINDS:
        times = _cast(cells, kind)
        if times is not None:
            return times
    bad = np.ones(len(cells), bool)
    for row, text in enumerate(cells.to_pylist()):
        bad[row] = all(_cast(pa.array([text]), kind) is None for kind in _KINDS)

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


def _features(edges: Table, kind: EdgeTables) -> Table:
    """The table's columns that are features of edges, a time as a number."""
    if kind.edge_features == ALL:
        other_columns = {*EDGES, kind.edge_weight, kind.edge_time, kind.edge_owner}
        other_columns |= {*kind.known_edge_columns} - {*kind.kind_columns}
        return replace(edges, data=edges.data.select([name for name in edges.columns if name not in other_columns]))
    names, time = list(kind.feature_columns), kind.edge_time
    data = edges.data.select(names)
    if time in names:
        data = data.set_column(names.index(time), time, pa.array(times_of(edges, time)))
    return replace(edges, data=data)


def of_nodes(categories: Categories | None) -> Categories | None:
    """The part of `categories` that is about columns of nodes."""
    if categories is None:
        return None
    return {name: values for name, values in categories.items() if not name.startswith(OF_EDGES)}

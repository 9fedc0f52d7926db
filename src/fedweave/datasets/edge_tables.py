"""Edge attributes in a user's table of edges: direction, weight, features and time."""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.graph_arrays import dense
from fedweave.datasets.check import refuse, refuse_rows
from fedweave.datasets.column_names import EDGES
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
from fedweave.datasets.table import Table
from fedweave.errors import ConfigError

ALL = "all"
_DAY = {"s": 86_400.0, "ms": 86_400e3, "us": 86_400e6, "ns": 86_400e9}  # of each unit
_IN_EDGES = "edges."


@dataclass(frozen=True)
class EdgeTables(EdgeSettings, Classified):
    """Tables whose edges may have attributes.

    edge_owner: the column of edges with their owners, for the partition "edges"; it is no feature.
    """

    edge_owner: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_edge_settings(self)

    @property
    def has_edge_attributes(self) -> bool:
        columns = (self.edge_features, self.edge_weight, self.edge_time, self.edge_owner)
        carry = any(name is not None for name in columns) or self.parallel != "keep"
        return self.directed or self.of_edges or carry

    @property
    def reserved_columns(self) -> tuple[str, ...]:
        """The columns of edges with a meaning other than edge attributes."""
        return ()

    @property
    def feature_columns(self) -> tuple[str, ...]:
        """`edge_features` as a tuple."""
        return (self.edge_features,) if isinstance(self.edge_features, str) else tuple(self.edge_features or ())

    @property
    def attribute_columns(self) -> tuple[str, ...]:
        """The columns of edges that settings name."""
        numbers = self.edge_weight, self.edge_time, self.edge_owner
        every = (*(name for name in self.feature_columns if name != ALL), *numbers)
        return tuple(dict.fromkeys(name for name in every if name is not None))


def check_edge_settings(kind: EdgeTables) -> None:
    """Reject settings that contradict each other.

    Raises:
        ConfigError: names the setting, its value and what is allowed.
    """
    if odd := [name for name in kind.attribute_columns if name in EDGES]:
        raise ConfigError(f"data: {odd[0]!r} is an end of edges, and cannot be their feature, weight or time.")
    if odd := [name for name in kind.attribute_columns if name in kind.reserved_columns]:
        raise ConfigError(
            f"data: {odd[0]!r} has another meaning for edges, and cannot be their feature, weight or time."
        )
    if kind.of_edges and kind.parallel != "keep":
        raise ConfigError(
            f"parallel = {kind.parallel!r} merges edges, but each edge is an example. Set parallel = 'keep'."
        )
    if kind.parallel == "count" and kind.edge_weight is not None:
        raise ConfigError('parallel = "count" makes the number of edges the weight; leave out edge_weight.')


def edge_attributes_of(
    edges: Table, listing: tuple[np.ndarray, np.ndarray], kind: EdgeTables, categories: Categories | None = None
) -> EdgeAttributes | None:
    """The edge attributes, None without; `listing` has the ends int64 [2, M] and the rows int64 [M] in the table.

    categories: columns of text of all tables; names of edge columns begin with "edges.", such as "edges.currency".

    Raises:
        DataError: a value is not a finite number, a weight is below 0 or a time is no date; names file and row.
    """
    if not kind.has_edge_attributes:
        return None
    ends, rows = listing
    weight = None if kind.edge_weight is None else _weights(edges, kind.edge_weight)[rows]
    time = None if kind.edge_time is None else times_of(edges, kind.edge_time)[rows]
    of_features, edge_categories = (
        fill_gaps(expand_lists(_features(edges, kind)), gap_columns(kind.missing, True)),
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
    result = merge_parallel(without_reverses(attributes, edges.origins[rows], edges.path), kind.parallel)
    return scale_features(result, kind.edge_normalize, edges.path)


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


def _features(edges: Table, kind: EdgeTables) -> Table:
    """The table's columns that are features of edges."""
    if kind.edge_features != ALL:
        return _of_numbers(edges, kind.edge_time, list(kind.feature_columns))
    other_columns = (*EDGES, kind.edge_weight, kind.edge_time, kind.edge_owner, *kind.reserved_columns)
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

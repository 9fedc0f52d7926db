"""Features with empty cells, in columns that may have them."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from fedweave.datasets.check import refuse
from fedweave.datasets.table import Table

OF_EDGES = "edges."


def gaps_of(missing: Sequence[str] | None, of_edges: bool) -> list[str]:
    """Of the names in [data] missing, such as "income" and "edges.fee", the columns of edges, or of nodes."""
    named = [(name.startswith(OF_EDGES), name.removeprefix(OF_EDGES)) for name in missing or ()]
    return [name for is_of_edges, name in named if is_of_edges == of_edges]


def gaps_filled(table: Table, names: Sequence[str]) -> Table:
    """With 0 in the empty cells of these columns, and behind all others a column for each that says where they were.

    Raises:
        DataError: there is no such column.
    """
    data = table.data
    for name in names:
        if name not in data.column_names:
            refuse(
                table.path,
                f"there is no column {name!r}, which [data] missing names",
                "Correct its name.",
                "column-named",
            )
        cells = data[name].combine_chunks()
        if pa.types.is_null(cells.type):
            cells = cells.cast(pa.float64())
        gaps = cells.is_null(nan_is_null=True)
        if pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type):
            gaps = pc.or_(gaps, pc.fill_null(pc.equal(cells, ""), False))
        zero = pa.scalar("0").cast(cells.type)
        data = data.set_column(data.column_names.index(name), name, pc.if_else(gaps, zero, cells))
        data = data.append_column(f"{name} is missing", gaps.cast(pa.uint8()))
    return replace(table, data=data)

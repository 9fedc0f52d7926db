"""Which columns of a user's tables have a meaning (docs/data-format.md), and under which names their owner has them."""

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.target import LABELS
from fedweave.datasets.cells import NUMBER
from fedweave.datasets.check import refuse
from fedweave.datasets.row_numbers import PANDAS, is_index
from fedweave.datasets.table import Table, refuse_name
from fedweave.errors import ConfigError

_LOG = logging.getLogger(__name__)


OF_EDGES = "edges."
OF_EXAMPLES = ("label", "sens", "split")  # the first table has them, be they nodes, small graphs or edges
NODES = ("id", *OF_EXAMPLES)
EDGES = ("source", "target")
# What columns mean, by what the examples are and by table; all others have names of their own.
COLUMNS: dict[str, dict[str, tuple[str, ...]]] = {
    "node": {"nodes": NODES, "edges": EDGES},
    "edge": {"nodes": ("id",), "edges": (*EDGES, "id", *OF_EXAMPLES)},
    "graph": {
        "nodes": ("id", "graph", "label"),
        "edges": (*EDGES, "label"),
        "graphs": ("id", *OF_EXAMPLES, "smiles", "scaffold"),
    },
    "triple": {"triples": ("head", "relation", "tail", "split")},
}
MEANINGS = tuple(dict.fromkeys(name for tables in COLUMNS.values() for names in tables.values() for name in names))


def check_columns(
    table: Table,
    required: tuple[str, ...],
    known: tuple[str, ...],
    closed: bool = False,
    hint: str = "",
    ids: Callable[[], pa.Array] | None = None,
) -> None:
    """Refuse a table without `required` columns, with a misspelt one of the `known` or, where it is `closed`, with any
    other; `hint` names a setting that would allow it. ids: the names of what columns refer to, by which a row
    that stands where the header should is known.

    Raises:
        DataError: names the file, the column and what it has.
    """
    text = f"it has {', '.join(table.columns)}"
    for name in table.columns:
        if name not in known and name.strip().casefold() in known:
            refuse(
                table.path, f"the column name {name!r} is almost {name.strip().casefold()!r}", "Spell it exactly so."
            )
    if absent := [name for name in required if name not in table.columns]:
        what = f"there is no column {' and no column '.join(map(repr, absent))}"
        naming = _naming_remedy(table, absent, known)
        row = _like_a_row(table, known, ids)
        header = f"Put a line with the columns' names, {','.join(absent)}{'…' if table.columns[len(absent) :] else ''}"
        header += ", above it (in pandas: header=None, then name the columns)."
        if row and all(row):  # to give these columns a meaning would lose the row
            refuse(table.path, f"{what}, and {', '.join(table.columns[:5])} look like a row", header, "header")
        remedy = f"If that is a row: {header} If not: {naming}" if row else naming
        refuse(table.path, f"{what}; {text}", remedy, "column-missing")
    extra = [name for name in table.columns if name not in known] if closed else []
    ignore = f"ignore = {json.dumps([f'{table.path.stem}.{name}' for name in extra])}"
    if "weight" in extra:
        what = "edge weights are not used without edge_weight" if hint else "edge weights are not supported"
        use = 'Set edge_weight = "weight" in [data]' if hint else "Remove the column weight"
        refuse(table.path, what, f"{use}, or {ignore}; then every edge counts 1.")
    if extra:
        remedy = f"Allowed are {', '.join(known)}{f'; {hint}' if hint else ''}; {ignore} leaves out the others."
        refuse(table.path, f"unknown columns: {', '.join(extra)}", remedy, "column-unknown")


def _like_a_row(table: Table, known: Sequence[str], ids: Callable[[], pa.Array] | None) -> list[bool]:
    """Whether each column is called like a number, a value of its own or one of the `ids`; [] if none is, if one has a
    meaning, or if all are called by their numbers from 0, which may be names, too."""
    if set(table.columns) & set(known):
        return []
    id_names = set() if ids is None else set(ids().to_pylist())
    row = [name in id_names or _is_value(table, name) for name in table.columns]
    if table.columns == [str(at) for at in range(len(table.columns))]:
        return [False, *row]
    return row if any(row) else []


def refuse_row_as_names(edges: Table, names: Sequence[str | None], ids: pa.Array) -> None:
    """Refuse names of the columns of both ends, in [data] columns, that are `ids` of nodes: they are an edge of a table
    without a header, which would be lost. 0 and 1 may be names: so pandas calls columns without names.

    Raises:
        DataError: names them.
    """
    if None in names or list(names) == ["0", "1"]:
        return
    if pc.all(pc.is_in(pa.array(names, pa.string()), ids)).as_py():
        what = f"data.columns takes {' and '.join(map(repr, names))} for names, and they are ids of nodes"
        remedy = "If the first line is an edge, put a line source,target above it, and leave both out of data.columns."
        refuse(edges.path, f"{what}: that edge would be lost", remedy, "header")


def _is_value(table: Table, name: str) -> bool:
    """Whether a column is called like a number, or like one of its own cells."""
    if re.match(NUMBER, name):
        return True
    cells = table.data[name].combine_chunks()
    return pa.types.is_string(cells.type) and pc.any(pc.equal(cells, name)).as_py() is True


def _naming_remedy(table: Table, absent: Sequence[str], known: Sequence[str]) -> str:
    """The remedy for columns that are `absent`: other columns may have their meaning, in order if the numbers agree."""
    others, parts = [name for name in table.columns if name not in known], table.columns[0].split()
    if len(table.columns) == 1 and len(parts) > 1:
        return f"Cells are split by commas: write {','.join(parts)}, and likewise all rows."
    meant = [name for name in absent if name in MEANINGS]
    names = others if len(others) == len(meant) else ["…"] * len(meant)
    pairs = ", ".join(f"{name} = {json.dumps(of, ensure_ascii=False)}" for name, of in zip(meant, names, strict=True))
    remedies = [f"If columns of another name have this meaning: [data] columns = {{{pairs}}}."] if meant else []
    if "label" in absent:
        remedies.append(_targets_remedy(table, others))
    if of_settings := [
        name for name in absent if name not in meant
    ]:  # such as the owner's column: a name of the user's
        which = " and ".join(map(repr, of_settings))
        remedies.append(f"Change {which} where [data] names it (owner, node_time or targets).")
    return f"{' '.join(remedies)} See docs/data-format.md for all columns."


def _targets_remedy(table: Table, columns: Sequence[str]) -> str:
    """The remedy where numbers or several labels are predicted, with the `columns` that may be such targets."""
    if table.path.stem == "nodes":  # where other columns are features
        return 'If numbers or several labels are predicted: target = "number" or "labels", and targets = ["…"].'
    kinds: dict[str, list[str]] = {}
    for name in columns:
        cells = table.data[name].combine_chunks()
        if pa.types.is_boolean(cells.type) or pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type):
            cell_values = {value for value in cells.unique().to_pylist() if value is not None and value == value}
            kinds.setdefault(LABELS if cell_values <= {0, 1} else "number", []).append(name)
    settings = [
        f'target = "{kind}", targets = {json.dumps(names, ensure_ascii=False)}' for kind, names in kinds.items()
    ]
    return f"If numbers or several labels are predicted: {' or '.join(settings)}." if settings else ""


def check_naming(columns: Mapping[str, str], ignore: Sequence[str]) -> None:
    """Refuse a meaning that no column has, and names that are given twice.

    Raises:
        ConfigError: says which.
    """
    if odd := [meaning for meaning in columns if meaning not in MEANINGS]:
        raise ConfigError(
            f"data.columns: {odd[0]!r} is no meaning of a column; name columns for {', '.join(MEANINGS)}.",
            code="config.unknown-key",
        )
    names = [*columns.values(), *ignore]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"data.columns and data.ignore: {twice[0]!r} occurs twice.")


def rename_columns(
    tables: Sequence[Table], root: Path, columns: Mapping[str, str], ignore: Sequence[str], lacking: bool = False
) -> list[Table]:
    """The tables without blank rows, with columns renamed to their meanings by `columns` {meaning: own name}, and
    without the columns of `ignore`. The first table has the examples. "edges.weight" in `ignore` is only the column of
    the edges. A row index is left out unless `columns` names it.

    lacking: whether names may be in none of the tables.

    Raises:
        DataError: a name is in none of the tables where it could be, its meaning is there, too, or a column has none.
    """
    tables = [table.without(table.blank()) for table in tables]
    for table in tables:
        table.refuse_headers()
    has = "; ".join(f"{table.path.name} has {', '.join(table.columns)}" for table in tables)
    held = {name for table in tables for name in table.columns}
    known = held | {_full(table, name) for table in tables for name in table.columns}
    if absent := [name for name in ignore if name not in known and not lacking]:
        refuse(
            root,
            f"no table has the column {absent[0]!r}, which data.ignore names ({has})",
            "Correct its name.",
            "column-named",
        )
    meanings: list[dict[str, str]] = [{} for _ in tables]
    for meaning, entry in columns.items():
        there = _tables_with(tables, meaning, entry)
        if not there and not lacking:
            which = f"no table that can say a {meaning}" if entry in held else "no table"
            what = f"{which} has the column {entry!r}, which data.columns names for {meaning} ({has})"
            refuse(root, what, "Correct its name.", "column-named")
        for at in there:
            meanings[at][entry] = meaning
    return [_rename_table(table, entry, ignore) for table, entry in zip(tables, meanings, strict=True)]


def _tables_with(tables: Sequence[Table], meaning: str, column: str) -> list[int]:
    """The tables where `column`, as its owner names it, has the meaning: all tables that can have the meaning; for
    meanings of examples only the first such table."""
    stems, triples = [table.path.stem for table in tables], COLUMNS["triple"]["triples"]
    known = COLUMNS["graph" if "graphs" in stems else "edge" if stems[0] == "edges" else "node"]
    found_in = [
        at
        for at, table in enumerate(tables)
        if column in table.columns
        and meaning in known.get(table.path.stem, triples)
        # the ends of edges keep their names, even if other columns have the same name
        and not (table.path.stem == "edges" and column in EDGES and meaning not in EDGES)
    ]
    return found_in[:1] if meaning in OF_EXAMPLES else found_in


def _rename_table(table: Table, meaning: Mapping[str, str], ignore: Sequence[str]) -> Table:
    columns = [name for name in table.columns if not {name, _full(table, name)} & set(ignore)]
    indexes = [name for name in columns if name not in meaning and is_index(table, name)]
    columns = [name for name in columns if name not in indexes]
    for name in indexes if table.path.stem != "edges" else ():
        level = logging.INFO if name.startswith(PANDAS) else logging.WARNING
        _LOG.log(level, "note: %s: the column %r is a row index and left out", table.path, name)
    for column, name in meaning.items():
        if name in columns and name not in meaning:
            refuse(
                table.path,
                f"data.columns calls {column!r} the {name}, and there is a column {name!r}",
                f"Leave that one out: ignore = [{name!r}] in [data].",
                "column-taken",
            )
    if nameless := [name for name in columns if not name.strip() and name not in meaning]:
        refuse_name(table.path, nameless[0])
    return replace(table, data=table.data.select(columns).rename_columns([meaning.get(name, name) for name in columns]))


def _full(table: Table, column: str) -> str:
    """The column with its table in front, such as "edges.weight"."""
    return f"{table.path.stem}.{column}"

"""Columns under names of their owner's own: what each means, and which do not count."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedweave.datasets.check import refuse
from fedweave.datasets.row_numbers import PANDAS, is_index
from fedweave.datasets.table import Table, refuse_name
from fedweave.errors import ConfigError

MEANINGS = ("id", "label", "sens", "split", "graph", "source", "target")
ENDS = ("source", "target")
_OF_EXAMPLES = ("label", "sens", "split")  # the first table has them, be they nodes, small graphs or edges
_OF_NODES = {"nodes": ("id", *_OF_EXAMPLES), "edges": ENDS}
_OF_EDGES = {"nodes": ("id",), "edges": (*ENDS, "id", *_OF_EXAMPLES)}
_OF_GRAPHS = {"graphs": ("id", *_OF_EXAMPLES), "nodes": ("id", "graph", "label"), "edges": (*ENDS, "label")}

_LOG = logging.getLogger(__name__)


def check_naming(columns: Mapping[str, str], ignore: Sequence[str]) -> None:
    """Refuse a meaning that no column has, and names that are given twice.

    Raises:
        ConfigError: says which.
    """
    if odd := [meaning for meaning in columns if meaning not in MEANINGS]:
        raise ConfigError(
            f"data.columns: nothing is called {odd[0]!r}; name columns for {', '.join(MEANINGS)}.",
            code="config.unknown-key",
        )
    names = [*columns.values(), *ignore]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"data.columns and data.ignore: {twice[0]!r} stands there twice.")


def named(
    tables: Sequence[Table], root: Path, columns: Mapping[str, str], ignore: Sequence[str], lacking: bool = False
) -> list[Table]:
    """The tables, of which the first has the examples, without blank rows, with the columns that `columns` {meaning:
    own name} names called by what they mean, and without those of `ignore`. "edges.weight" in `ignore` is the column of
    the edges alone. A row index is left out unless `columns` names it.

    lacking: whether names may be in none of the tables.

    Raises:
        DataError: a name is in none of the tables where it could be, its meaning is there, too, or a column has none.
    """
    tables = [table.without(table.blank()) for table in tables]
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
    for meaning, own in columns.items():
        there = _places(tables, meaning, own)
        if not there and not lacking:
            which = f"no table that can say a {meaning}" if own in held else "no table"
            what = f"{which} has the column {own!r}, which data.columns names for {meaning} ({has})"
            refuse(root, what, "Correct its name.", "column-named")
        for at in there:
            meanings[at][own] = meaning
    return [_named(table, own, ignore) for table, own in zip(tables, meanings, strict=True)]


def _places(tables: Sequence[Table], meaning: str, own: str) -> list[int]:
    """Where the column that its owner calls `own` has the meaning: in all tables whose rows have that, of what is said
    of examples in the first alone that has it."""
    of_graphs = any(table.path.stem == "graphs" for table in tables)
    known = _OF_GRAPHS if of_graphs else _OF_EDGES if tables[0].path.stem == "edges" else _OF_NODES
    there = [
        at
        for at, table in enumerate(tables)
        if own in table.columns
        and meaning in known[table.path.stem]
        # the ends of edges keep their names, whatever else is called so
        and not (table.path.stem == "edges" and own in ENDS and meaning not in ENDS)
    ]
    return there[:1] if meaning in _OF_EXAMPLES else there


def _named(table: Table, meaning: Mapping[str, str], ignore: Sequence[str]) -> Table:
    kept = [name for name in table.columns if not {name, _full(table, name)} & set(ignore)]
    indexes = [name for name in kept if name not in meaning and is_index(table, name)]
    kept = [name for name in kept if name not in indexes]
    for name in indexes if table.path.stem != "edges" else ():
        level = logging.INFO if name.startswith(PANDAS) else logging.WARNING
        _LOG.log(level, "note: %s: the column %r is a row index and left out", table.path, name)
    for own, name in meaning.items():
        if name in kept and name not in meaning:
            refuse(
                table.path,
                f"data.columns calls {own!r} the {name}, and there is a column {name!r}",
                f"Leave that one out: ignore = [{name!r}] in [data].",
                "column-taken",
            )
    if nameless := [name for name in kept if not name.strip() and name not in meaning]:
        refuse_name(table.path, nameless[0])
    return replace(table, data=table.data.select(kept).rename_columns([meaning.get(name, name) for name in kept]))


def _full(table: Table, column: str) -> str:
    """The column with its table in front, such as "edges.weight"."""
    return f"{table.path.stem}.{column}"

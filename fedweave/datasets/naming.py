"""Columns under names of their owner's own: what each means, and which do not count."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedweave.datasets.check import refuse
from fedweave.datasets.table import Table
from fedweave.errors import ConfigError

MEANINGS = ("id", "label", "sens", "split", "graph", "source", "target")
INDEX = "__index_level_"  # pandas writes a row index without a name as such a column


def check_naming(columns: Mapping[str, str], ignore: Sequence[str]) -> None:
    """Refuse a meaning that no column has, and names that are given twice.

    Raises:
        ConfigError: says which.
    """
    if odd := [meaning for meaning in columns if meaning not in MEANINGS]:
        raise ConfigError(f"data.columns: nothing is called {odd[0]!r}; name columns for {', '.join(MEANINGS)}.")
    names = [*columns.values(), *ignore]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"data.columns and data.ignore: {twice[0]!r} stands there twice.")


def named(tables: Sequence[Table], root: Path, columns: Mapping[str, str], ignore: Sequence[str]) -> list[Table]:
    """The tables with the columns that `columns` {meaning: own name} names called by what they mean, and without those
    of `ignore`; each is in one of the tables at least. "edges.weight" in `ignore` is the column of the edges alone. A
    row index of pandas is left out unless `columns` names it.

    Raises:
        DataError: a name is in none of the tables, or its meaning is there, too.
    """
    held = {name for table in tables for name in table.columns}
    full = {_full(table, name) for table in tables for name in table.columns}
    for key, names, known in (("columns", columns.values(), held), ("ignore", ignore, held | full)):
        if absent := [name for name in names if name not in known]:
            has = "; ".join(f"{table.path.name} has {', '.join(table.columns)}" for table in tables)
            refuse(root, f"no table has the column {absent[0]!r}, which data.{key} names ({has})", "Correct its name.")
    return [_named(table, columns, ignore) for table in tables]


def _named(table: Table, columns: Mapping[str, str], ignore: Sequence[str]) -> Table:
    meaning = {own: name for name, own in columns.items() if own in table.columns}
    there = [name for name in table.columns if name in meaning or not name.startswith(INDEX)]
    kept = [name for name in there if not {name, _full(table, name)} & set(ignore)]
    for own, name in meaning.items():
        if name in kept and name not in meaning:
            refuse(
                table.path,
                f"data.columns calls {own!r} the {name}, and there is a column {name!r}",
                f"Leave that one out: ignore = [{name!r}] in [data].",
            )
    return replace(table, data=table.data.select(kept).rename_columns([meaning.get(name, name) for name in kept]))


def _full(table: Table, column: str) -> str:
    """The column with its table in front, such as "edges.weight"."""
    return f"{table.path.stem}.{column}"

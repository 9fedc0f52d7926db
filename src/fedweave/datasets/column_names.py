"""Which columns of a user's tables have a meaning (docs/data-format.md), and under which names their owner has them."""

import json
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.target import LABELS
from fedweave.datasets.cells import NUMBER
from fedweave.datasets.check import refuse, refuse_rows
from fedweave.datasets.row_numbers import PANDAS, is_index
from fedweave.datasets.table import Table, is_text, refuse_name
from fedweave.errors import ConfigError

_LOG = logging.getLogger(__name__)

OF_EDGES = "edges."
OF_EXAMPLES = ("label", "sens", "split")  # the first table has them, be they nodes, small graphs or edges
NODES = ("id", *OF_EXAMPLES)
EDGES = ("source", "target")
# What columns mean, by what the examples are and by table; all others are features or attributes.
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
    that stands where the header should is known."""
    path, columns = table.path, table.columns
    # 1. A column that is almost called so.
    for name in columns:
        spelling = name.strip().casefold()
        if name not in known and spelling in known:
            refuse(path, f"the column name {name!r} is almost {spelling!r}", "Spell it exactly so.")
    # 2. Columns that are not there, perhaps because a row stands where the header should.
    absent = [name for name in required if name not in columns]
    if absent:
        what = f"there is no column {' and no column '.join(map(repr, absent))}"
        naming = _naming_remedy(table, absent, known)
        header = f"Put a line with the columns' names, {','.join(absent)}{'…' if columns[len(absent) :] else ''}"
        header += ", above it (in pandas: header=None, then name the columns)."
        is_value = [False]  # whether each column is called like a number, a value of its own or one of the `ids`
        if not set(columns) & set(known):
            id_names = set() if ids is None else set(ids().to_pylist())
            is_value = [name in id_names or _is_value(table, name) for name in columns]
        if columns == [str(at) for at in range(len(columns))]:  # numbers from 0 may be names, too
            is_value.append(False)
        if all(is_value):  # to give these columns a meaning would lose the row
            refuse(path, f"{what}, and {', '.join(columns[:5])} look like a row", header, "header")
        remedy = f"If that is a row: {header} If not: {naming}" if any(is_value) else naming
        refuse(path, f"{what}; it has {', '.join(table.file_columns)}", remedy, "column-missing")
    # 3. Columns without a meaning.
    extra = [name for name in columns if name not in known] if closed else []
    ignore = f"ignore = {json.dumps([f'{path.stem}.{name}' for name in extra])}"
    if "weight" in extra:
        what = "edge weights are not used without edge_weight" if hint else "edge weights are not supported"
        use = 'Set edge_weight = "weight" in [data]' if hint else "Remove the column weight"
        refuse(path, what, f"{use}, or {ignore}; then every edge counts 1.")
    if extra:
        remedy = f"Allowed are {', '.join(known)}{f'; {hint}' if hint else ''}; {ignore} leaves out the others."
        refuse(path, f"unknown columns: {', '.join(extra)}", remedy, "column-unknown")


def refuse_row_as_names(edges: Table, names: Sequence[str | None], ids: pa.Array) -> None:
    """Refuse names of the columns of both ends, in [data] columns, that are `ids` of nodes: they are an edge of a table
    without a header, which would be lost. 0 and 1 may be names: so pandas calls columns without names."""
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
    words = table.columns[0].split()
    if len(table.columns) == 1 and len(words) > 1:
        return f"Cells are split by commas: write {','.join(words)}, and likewise all rows."
    remedies = list[str]()
    unknown = [name for name in table.columns if name not in known]
    meanings = [name for name in absent if name in MEANINGS]
    if meanings:
        names = unknown if len(unknown) == len(meanings) else ["…"] * len(meanings)
        pairs = zip(meanings, names, strict=True)
        naming = ", ".join(f"{meaning} = {json.dumps(name, ensure_ascii=False)}" for meaning, name in pairs)
        remedies.append(f"If columns of another name have this meaning: [data] columns = {{{naming}}}.")
    if "label" in absent and table.path.stem == "nodes":  # where other columns are features
        remedies.append(
            'If numbers or several labels are predicted: target = "number" or "labels", and targets = ["…"].'
        )
    elif "label" in absent:
        targets: dict[str, list[str]] = {}  # by kind, columns that may be targets
        for name in unknown:
            cells = table.data[name].combine_chunks()
            if pa.types.is_boolean(cells.type) or pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type):
                values = {value for value in cells.unique().to_pylist() if value is not None and value == value}
                targets.setdefault(LABELS if values <= {0, 1} else "number", []).append(name)
        lists = {kind: json.dumps(names, ensure_ascii=False) for kind, names in targets.items()}
        settings = " or ".join(f'target = "{kind}", targets = {names}' for kind, names in lists.items())
        remedies += [f"If numbers or several labels are predicted: {settings}."] if settings else []
    of_settings = [name for name in absent if name not in MEANINGS]  # such as the owner's column: a name of the user's
    if of_settings:
        which = " and ".join(map(repr, of_settings))
        remedies.append(f"Change {which} where [data] names it (owner, node_time or targets).")
    return " ".join([*remedies, "See docs/data-format.md for all columns."])


def check_naming(columns: Mapping[str, str], ignore: Sequence[str]) -> None:
    """Refuse a meaning that no column has, and names that are given twice. A column of nodes may have the name of an
    end in the table of edges."""
    for meaning in columns:
        if meaning not in MEANINGS:
            message = f"data.columns: {meaning!r} is not a meaning of a column; name columns for {', '.join(MEANINGS)}."
            raise ConfigError(message, code="config.unknown-key")
    ends = [columns[meaning] for meaning in EDGES if meaning in columns]
    of_nodes = [name for meaning, name in columns.items() if meaning not in EDGES]
    for names in (ends, of_nodes):
        for name in names:
            same = [meaning for meaning, other in columns.items() if other == name]
            if names.count(name) > 1:
                what = f"data.columns: {name!r} is named for {' and '.join(same)}, which are columns of one table"
                raise ConfigError(f"{what}. Name another column for one of them.", code="config.column-twice")
            if name in ignore:
                what = f"data.ignore leaves out {name!r}, which data.columns names for {' and '.join(same)}"
                raise ConfigError(f"{what}. Take it out of one of them.", code="config.column-twice")
    for name in ignore:
        if ignore.count(name) > 1:
            raise ConfigError(f"data.ignore: {name!r} occurs twice. Write it once.", code="config.column-twice")


def rename_columns(
    tables: Sequence[Table], root: Path, columns: Mapping[str, str], ignore: Sequence[str], lacking: bool = False
) -> list[Table]:
    """The tables without blank rows, with columns renamed to their meanings by `columns` {meaning: local name}, and
    without the columns of `ignore`. The first table has the examples. "edges.weight" in `ignore` is only the column of
    the edges. A row index is left out unless `columns` names it.

    lacking: whether names may be in none of the tables.
    """
    # 1. Rows that are blank are left out; rows that repeat the header are refused.
    tables = [table.without(table.blank()) for table in tables]
    for table in tables:
        header = np.full(table.rows, len(table.columns) > 1)
        for column in table.columns:
            if header.any():
                cells = table.data[column].combine_chunks()
                same = pc.equal(cells, column).fill_null(False) if is_text(cells.type) else None
                header &= False if same is None else same.to_numpy(zero_copy_only=False)
        remedy = "Remove the row: the file was put together of several, each with its header."
        refuse_rows(table, header, lambda row: "the names of the columns are repeated", remedy)
    # 2. Every name in settings is somewhere.
    has = "; ".join(f"{table.path.name} has {', '.join(table.columns)}" for table in tables)
    names, full_names = set[str](), set[str]()
    for table in tables:
        names.update(table.columns)
        full_names.update(f"{table.path.stem}.{name}" for name in table.columns)
    for name in () if lacking else ignore:
        if name not in names | full_names:
            what = f"no table has the column {name!r}, which data.ignore names ({has})"
            refuse(root, what, "Correct its name.", "column-named")
    # 3. Where each column of `columns` has its meaning: {name: meaning} for each table.
    meanings: list[dict[str, str]] = [{} for _ in tables]
    ends = {*EDGES, *(columns[end] for end in EDGES if end in columns)}
    for meaning, name in columns.items():
        places = _tables_with(tables, meaning, name, ends)
        if not places and not lacking:
            which = f"no table that can say a {meaning}" if name in names else "no table"
            what = f"{which} has the column {name!r}, which data.columns names for {meaning} ({has})"
            refuse(root, what, "Correct its name.", "column-named")
        for at in places:
            meanings[at][name] = meaning
    # 4. The tables with these columns.
    return [_rename_table(table, meaning, ignore) for table, meaning in zip(tables, meanings, strict=True)]


def _tables_with(tables: Sequence[Table], meaning: str, column: str, ends: Collection[str]) -> list[int]:
    """The places of the tables where `column`, as its owner names it, has the meaning: all tables that can have the
    meaning; for meanings of examples only the first such table. ends: names of the ends of edges."""
    stems = [table.path.stem for table in tables]
    example = "edge" if stems[0] == "edges" else "node"
    if "graphs" in stems:
        example = "graph"
    known = COLUMNS[example]
    places = list[int]()
    for at, (table, stem) in enumerate(zip(tables, stems, strict=True)):
        can_have = meaning in known.get(stem, COLUMNS["triple"]["triples"])
        # the ends of edges keep their names, even if other columns have the same name
        is_end = stem == "edges" and column in ends and meaning not in EDGES
        if column in table.columns and can_have and not is_end:
            places.append(at)
    return places[:1] if meaning in OF_EXAMPLES else places


def _rename_table(table: Table, meaning: Mapping[str, str], ignore: Sequence[str]) -> Table:
    """The table with columns called by `meaning` {name: meaning}, without row indexes and the columns of `ignore`."""
    columns = list[str]()
    for name in table.columns:
        if name in ignore or f"{table.path.stem}.{name}" in ignore:
            continue
        if name in meaning or not is_index(table, name):
            columns.append(name)
        elif table.path.stem != "edges":
            level = logging.INFO if name.startswith(PANDAS) else logging.WARNING
            _LOG.log(level, "note: %s: the column %r is a row index and left out", table.path, name)
    for name, role in meaning.items():
        if role in columns and role not in meaning:
            what = f"data.columns calls {name!r} the {role}, and there is a column {role!r}"
            refuse(table.path, what, f"Leave that one out: ignore = [{role!r}] in [data].", "column-taken")
    for name in columns:
        if not name.strip() and name not in meaning:
            refuse_name(table.path, name)
    return replace(table, data=table.data.select(columns).rename_columns([meaning.get(name, name) for name in columns]))

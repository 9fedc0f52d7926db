"""The papers whose tables can be reproduced, and the tables and cells that a call of `fedweave reproduce` selects.

A further paper is a module of this package and an entry here. `PROTOCOLS` has the other protocols under which a paper's
tables can be run.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fedweave.errors import ConfigError
from fedweave.experiment.config.toml import check_name, quote
from fedweave.papers import fedego_script, glasu_script
from fedweave.papers.f2gnn import F2GNN
from fedweave.papers.fairgfl import FAIRGFL
from fedweave.papers.fairgraphfl import FAIRGRAPHFL
from fedweave.papers.fedego import FEDEGO
from fedweave.papers.glasu import GLASU
from fedweave.papers.paper import CLEAN, Paper, PaperCell, PaperTable, Protocol

PAPERS: dict[str, Paper] = {
    "fedego": FEDEGO,
    "fairgfl": FAIRGFL,
    "fairgraphfl": FAIRGRAPHFL,
    "f2gnn": F2GNN,
    "glasu": GLASU,
}

PROTOCOLS: dict[str, dict[str, Protocol]] = {
    "fedego": {"script": fedego_script.SCRIPT},
    "glasu": {"script": glasu_script.SCRIPT},
}


Chosen = list[tuple[str, str, PaperTable]]  # of each: the name of its files, its heading, and the table


def tables(
    paper: str,
    about: Paper,
    protocols: Mapping[str, Protocol],
    table: int | None,
    figure: int | None,
    protocol: str,
    one_off: bool,
) -> Chosen:
    """One table or figure of a paper, or all, under a protocol.

    Raises:
        ConfigError: there is no such table, figure or protocol; or `one_off` is combined with a table or a figure, or
        with the clean protocol.
    """
    check_name("--protocol", protocol, {CLEAN: None, **protocols})
    if one_off:
        if protocol == CLEAN or table is not None or figure is not None:
            raise ConfigError("--one-off is a table of its own, of a protocol: give --protocol script, and no --table.")
        return [(f"{paper}-{protocol}-one-off", f"{about.title}, {protocol}", protocols[protocol].one_off())]
    chosen: Chosen = []
    for kind, number, of_kind in (("table", table, about.tables), ("figure", figure, about.figures)):
        if number is not None and number not in of_kind:
            valid = ", ".join(map(str, of_kind)) or "none, there are none"
            raise ConfigError(f"--{kind}: there is no {kind} {number}; choose one of {valid}.")
        for n, it in of_kind.items():
            if n == number or (table is None and figure is None):
                name, heading = f"{paper}-{kind}{n}", f"{about.title}, {kind} {n}"
                if protocol == CLEAN:
                    chosen.append((name, heading, it))
                else:
                    chosen.append((f"{name}-{protocol}", f"{heading}, {protocol}", protocols[protocol].table(it)))
    return chosen


def of_data(chosen: Chosen, data: str | None) -> Chosen:
    """The tables' cells of one data set, in their own files; tables without it are left out.

    Raises:
        ConfigError: no table has it.
    """
    if data is None:
        return chosen
    data_sets: set[str] = set()
    for _, _, table in chosen:
        data_sets |= {cell.document["data"]["name"] for cell in table.cells}
    if data not in data_sets:
        raise ConfigError(f"--data: no table has {data!r}; choose one of {', '.join(sorted(data_sets))}.")
    return _cut(chosen, [data], lambda cell: cell.document["data"]["name"] == data)


def of_names(chosen: Chosen, names: Sequence[str]) -> Chosen:
    """The tables' cells in rows and columns of these names, in their own files.

    If none of the names is a row, all rows are selected; the same holds for columns.

    Raises:
        ConfigError: a name is neither a row nor a column; no cell is left.
    """
    if not names:
        return chosen
    rows, columns = list[str](), list[str]()
    for _, _, table in chosen:
        rows += [cell.row for cell in table.cells]
        columns += [cell.column for cell in table.cells]
    for name in names:
        check_name("--only", name, list(dict.fromkeys([*rows, *columns])))
    rows = [row for row in rows if row in names] or rows
    columns = [column for column in columns if column in names] or columns
    tables = _cut(chosen, names, lambda cell: cell.row in rows and cell.column in columns)
    if not tables:
        raise ConfigError(f"--only: no cell has its row and its column among {', '.join(map(quote, names))}.")
    return tables


def _cut(chosen: Chosen, names: Sequence[str], selected: Callable[[PaperCell], bool]) -> Chosen:
    """The tables with the `selected` cells, named after `names`; tables without such a cell are left out."""
    suffix = "-".join(re.sub(r"[^a-z0-9+.]+", "-", name.lower()).strip("-") for name in names)
    tables = []
    for name, heading, table in chosen:
        cells = tuple(filter(selected, table.cells))
        if cells:
            selection_heading = f"{heading}, {', '.join(map(quote, names))}"
            tables.append((f"{name}-{suffix}", selection_heading, replace(table, cells=cells)))
    return tables


def seeds_of(text: str | None) -> Sequence[int] | None:
    """Seeds written as "0-3" or "0,2,5".

    Raises:
        ConfigError: the text has another form, or a seed comes twice.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)-(\d+)", text)
    seeds = range(int(match[1]), int(match[2]) + 1) if match else [int(n) for n in text.split(",") if n.isdecimal()]
    if not seeds or (not match and len(seeds) != len(text.split(","))) or len(set(seeds)) != len(seeds):
        raise ConfigError(
            f"--seeds {text}: give the first and the last, such as 0-3, or different ones, such as 0,2,5."
        )
    return seeds

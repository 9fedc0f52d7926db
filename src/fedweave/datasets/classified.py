"""What all data sets of a user's tables have in common: columns under names of their owner's own, and classes.

Labels are whole numbers that count classes, or names: other numbers, such as measurements, are neither unless their
owner says so.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.datasets.check import first, refuse
from fedweave.datasets.columns import AUTO
from fedweave.datasets.edges import check_loops
from fedweave.datasets.features import check_normalise
from fedweave.datasets.files import find, read
from fedweave.datasets.odd_data import PANDAS, is_index
from fedweave.datasets.remedies import DECIMAL_COMMA
from fedweave.datasets.table import WHOLE, Table, Tables, meant_empty, refuse_name
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


NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"

FEW = 1000  # classes, which may be empty as far as there are rows for them
FILLED = 0.01  # the least share of more classes that has a row


def refuse_stray(y: np.ndarray, refuse_at: Callable[[int, str], None]) -> None:
    """Refuse classes int64 [m], -1 is unlabelled, of which the highest would leave nearly all below it empty; by
    `refuse_at` with the row and what is wrong.

    Raises:
        DataError: by `refuse_at`.
    """
    classes = int(y.max(initial=-1)) + 1
    if classes <= len(y) and classes <= FEW:
        return
    held = len(np.unique(y[y >= 0]))
    if classes > len(y) or held < FILLED * classes:
        row = int(y.argmax())
        refuse_at(row, f"label {y[row]} would make {classes:,} classes, of which {held:,} occur among {len(y):,} rows")


def labels_in(table: Table, key: str) -> pa.Array:
    """The cells of the column "label" as strings, null where empty; `key` in [data] can list what they are.

    Raises:
        DataError: the column holds fractions, in a type of numbers; names file and row.
    """
    return table.texts("label", _remedy(key))


# "[0, 1, 0]", "[0 1 0]", "0;1;0", "3|7", "0,1,0", "0 1 0": one decimal comma is none of them
SEVERAL = (
    r"^\s*([\[({]\s*(.*[,;|].*|\d+(\s+\d+)+)\s*[\])}]|\d+(\s*[;|]\s*\d+)+|\d+(\s*,\s*\d+){2,}|\d+(\s+\d+){2,})\s*$"
)


def refuse_several(table: Table, key: str) -> None:
    """Refuse several targets in one cell of the column "label", where `key` in [data] lists no names: each combination
    would be a class of its own. Targets are numbers, a list in brackets, or names that other cells hold by themselves.

    Raises:
        DataError: names file, row and how many there are.
    """
    cells = labels_in(table, key)
    names = set(cells.drop_null().unique().to_pylist())
    pieces = {name: re.split(r"\s*[,;|]\s*", name) for name in names}
    odd = [name for name, own in pieces.items() if re.match(SEVERAL, name) or (len(own) > 1 and names.issuperset(own))]
    bad = np.asarray(pc.is_in(cells, pa.array(odd, pa.string())))
    if (row := first(bad)) is not None:
        more = f" (and so are {int(bad.sum()) - 1:,} more of {table.rows:,} {table.counted})" if bad.sum() > 1 else ""
        remedy = (
            "An example has one class: keep one target, such as a column of it in the place of label; if such cells "
            f"are names, list all of them in data.{key}."
        )
        table.refuse_at(row, f"label is {cells[row].as_py()!r}, several targets in one cell{more}", remedy)


def refuse_numerals(table: Table, key: str) -> None:
    """Refuse numbers in the column "label" that are not written as whole ones, where `key` in [data] lists no names:
    each would be a name of its own, next to which 1 and 1.0 are two.

    Raises:
        DataError: names file, row and how many there are.
    """
    cells = labels_in(table, key)
    forms = "|".join((NUMBER, DECIMAL_COMMA))
    number, whole = (np.asarray(pc.match_substring_regex(cells, form).fill_null(False)) for form in (forms, WHOLE))
    bad = number & ~whole
    if (row := first(bad)) is not None:
        more = int(bad.sum()) - 1
        rest = (
            f" (and so {'are' if more > 1 else 'is'} {more:,} more of {table.rows:,} {table.counted})" if more else ""
        )
        what = f"label is {cells[row].as_py()!r}, a number, but not one like 0, 1 or 2{rest}"
        table.refuse_at(row, what, _remedy(key))


def _remedy(key: str) -> str:
    return (
        "Round or bin such numbers into whole ones from 0; if they are names, give them as text and list all of them "
        f"in data.{key}."
    )


@dataclass(frozen=True)
class Classified:
    """What all data sets of a user's tables have in common.

    normalise: how features are scaled: auto, none, row, binary, scale, standard or minmax (docs/data-format.md).
    classes:   number of classes when labels are numbers; None is the largest label + 1.
    labels:    class names in order when labels are names; None is those present, sorted. Sites that train together must
               all give the same `classes` or `labels`, since one site may lack a class.
    favourable: the class, by name or number, whose prediction is the favourable one where groups of people are
               compared; it becomes class 1 of the two. None is the second of `labels`, without these by alphabet.
    sens_feature: allow a feature column that says the same as the column sens.
    columns:   what columns with names of their own mean, such as {label = "diagnosis", sens = "sex"}.
    ignore:    columns that do not count.
    unlabelled: a word, or several, that stands in the examples' labels for an empty cell, such as "unknown".
    groups:    names of the sensitive groups in order when sens is text; None is those present, sorted.
    categories: columns of text and all their values in order, one feature for each value; an empty cell is in none.
                "auto" in the place of a list takes the values of the training rows, sorted.
    loops:     edges of a node with itself: "refuse", "drop", or "keep" where edges carry something.
    """

    stems: ClassVar[tuple[str, ...]] = ("nodes", "edges")  # of the files, in the order of `Tables`

    normalise: str = "auto"
    classes: int | None = None
    labels: tuple[str, ...] | None = None
    favourable: str | int | None = None
    sens_feature: bool = False
    columns: dict[str, str] | None = None
    ignore: tuple[str, ...] | None = None
    unlabelled: str | tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    loops: str = "refuse"
    categories: dict[str, str | tuple[str, ...]] | None = None

    def __post_init__(self) -> None:
        check_normalise(self.normalise)
        check_naming(self.columns or {}, self.ignore or ())
        if self.classes is not None and self.labels is not None:
            raise ConfigError(
                "data: give classes (labels are numbers) or labels (labels are names), not both.",
                code="config.conflict",
            )
        if self.classes is not None and self.classes < 1:
            raise ConfigError(f"data: classes = {self.classes} is not allowed; it must be at least 1.")
        if self.labels is not None and not 0 < len(self.labels) == len(set(self.labels)):
            raise ConfigError(f"data: labels = {list(self.labels)} is empty or names a class twice.")
        if self.favourable is not None:
            self._check_favourable(str(self.favourable))
        lists: dict[str, str | tuple[str, ...] | None] = {"groups": self.groups}
        lists |= {f"categories.{own}": names for own, names in (self.categories or {}).items()}
        for key, names in lists.items():
            if isinstance(names, str) and names != AUTO:
                raise ConfigError(
                    f'data: {key} = "{names}" is no list of values; list all, or say "{AUTO}", those of training rows.',
                    code="config.value",
                )
            if names is not None and not 0 < len(names) == len(set(names)):
                raise ConfigError(f"data: {key} = {list(names)} is empty or names a value twice.")
        if both := set(self.labels or ()) & set(self._unlabelled):
            raise ConfigError(
                f"data: {min(both)!r} is in labels, so that it is a class, and in unlabelled.", code="config.conflict"
            )
        check_loops(self.loops, self.carries)

    def _check_favourable(self, name: str) -> None:
        if self.classes is not None and (self.classes != 2 or name not in ("0", "1")):
            raise ConfigError(
                f"data.favourable = {name!r}: classes are the numbers 0 to {self.classes - 1}. The favourable class is "
                "one of two: give 0 or 1.",
                code="config.no-class",
            )
        if self.labels is not None and (len(self.labels) != 2 or name != self.labels[1]):
            raise ConfigError(
                f"data.favourable = {name!r}: data.labels = {list(self.labels)} says another order. The favourable "
                "class is the second of two: correct labels, and leave favourable out.",
                code="config.conflict",
            )

    def _ordered(self, table: Table) -> tuple[str, ...] | None:
        """The class names in order, `labels` or two of which the second is `favourable`; None where neither is given,
        or that is class 1 of numbers.

        Raises:
            DataError: the labels are not of two classes, one of which is `favourable`.
        """
        if self.labels is not None or self.favourable is None:
            return self.labels
        name, held = str(self.favourable), table.texts("label").drop_null().unique()
        whole = pc.all(pc.match_substring_regex(held, WHOLE)).as_py()
        present = sorted({one.partition(".")[0] for one in held.to_pylist()} if whole else held.to_pylist())
        if name not in present or len(present) != 2:
            what = f"data.favourable = {name!r}, and the classes are {', '.join(present)}"
            refuse(table.path, what, "Name one of two classes.", "no-class")
        if whole and name == "1" and present[0] == "0":
            return None
        return (*(set(present) - {name}), name)

    @property
    def _unlabelled(self) -> tuple[str, ...]:
        return (self.unlabelled,) if isinstance(self.unlabelled, str) else self.unlabelled or ()

    @property
    def carries(self) -> bool:
        """Whether anything but who is joined to whom counts of edges."""
        return False

    @property
    def of_edges(self) -> bool:
        """Whether edges are the examples."""
        return False

    def examples(self, tables: Tables) -> Table:
        """The table of the examples."""
        return tables.graphs or (tables.edges if self.of_edges else tables.nodes)

    def tables(self, folder: Path, lacking: bool = False) -> Tables:
        """The tables in a folder, columns called by what they mean.

        lacking: whether columns that are named may be in none of the tables.

        Raises:
            DataError: a file is missing or refused, or a column that is named is in none.
        """
        return self.named(folder, Tables(*(read(find(folder, stem)) for stem in self.stems)), lacking)

    def named(self, root: Path, tables: Tables, lacking: bool = False) -> Tables:
        """The tables with columns called by what they mean (`named`)."""
        held = [table for table in tables if table is not None]
        first_of = next(at for at, table in enumerate(held) if table is self.examples(tables))
        order = [first_of, *(at for at in range(len(held)) if at != first_of)]
        found = named([held[at] for at in order], root, self.columns or {}, self.ignore or (), lacking)
        if "label" in found[0].columns:
            found[0] = found[0].emptied("label", self._unlabelled)
        return Tables(*(found[order.index(at)] for at in range(len(held))))

    def names_of(self, table: Table) -> tuple[str, ...]:
        """What the classes are called; () where labels are numbers."""
        if "label" not in table.columns:
            return self.labels or ()
        if names := self._ordered(table):
            return names
        present = table.texts("label").drop_null().unique()
        whole = pc.all(pc.match_substring_regex(present, WHOLE)).as_py()
        return () if whole is not False else tuple(sorted(present.to_pylist()))

    def labels_of(self, table: Table, labelled: bool = True) -> tuple[np.ndarray, int]:
        """Classes int64 [rows], -1 where a label is missing, and how many classes there are; without `labelled`, all
        may be missing.

        Raises:
            DataError: a label is not one of the configured ones; names file and row.
        """
        there = labelled or "label" in table.columns
        cells = labels_in(table, "labels") if there else pa.nulls(table.rows, pa.string())
        present = cells.drop_null()
        if len(present) == 0 and not labelled:
            return np.full(table.rows, -1), self.classes or len(self.labels or ())
        if len(present) == 0:
            own = (self.columns or {}).get("label", "label")
            refuse(table.path, f"column {own} is empty in every row", "Label at least one row.")
        whole, named = pc.match_substring_regex(present, WHOLE), self._ordered(table)
        if named is None:
            if pc.all(whole).as_py():
                return self._numbered(table)
            table.refuse_gaps("label", "labels")
            table.refuse_blanks("label", "labels")
        if self.classes is not None and named is None:
            table.whole("label", empty="unlabelled")  # says which label is no number
        if named is None:
            refuse_several(table, "labels")
            refuse_numerals(table, "labels")
        if named is None and pc.any(whole).as_py():
            names = present.filter(pc.invert(whole))
            what = f"some labels are numbers, others are names ({names[0]})"
            refuse(table.path, what, f"Use one kind in column label. {meant_empty(names[0].as_py())}")
        classes = named or tuple(sorted(present.unique().to_pylist()))
        odd = sorted(set(present.unique().to_pylist()) - set(classes))
        remedy = f"Correct it or add it to labels. {meant_empty(*odd[:1])}"
        return table.among("label", cells, classes, remedy), len(classes)

    def _numbered(self, table: Table) -> tuple[np.ndarray, int]:
        y = table.whole("label", empty="unlabelled")
        if self.classes is None:
            refuse_stray(y, lambda row, what: table.refuse_at(row, what, "Number the classes from 0, without gaps."))
            return y, int(y.max()) + 1
        if (row := first(y >= self.classes)) is not None:
            what = f"label {y[row]} is not in 0..{self.classes - 1}"
            table.refuse_at(row, what, "Correct it or raise classes.")
        return y, self.classes

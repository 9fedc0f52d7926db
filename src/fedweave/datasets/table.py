"""A user's tables, read so strictly that every error can name file, row and column; and names in them that look
alike and are not the same, of ids, classes, groups and owners.
"""

import csv
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import ClassVar, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from fedweave.core.decompression import OF_TABLES, TABLE_FAULTS, DecompressionBomb, Nested, parquet_cost, read_parquet
from fedweave.datasets.cells import DATES, FEATURE, GAPS, MISSING, NESTED, NUMERIC, of_feature, of_number, short
from fedweave.datasets.check import refuse, refuse_rows
from fedweave.datasets.features import EXACT, exact, refuse_merged
from fedweave.datasets.lookup import TABLES, refuse_absent

# At most 18 digits, so that every match fits int64; pandas writes whole numbers next to gaps as "1.0".
WHOLE = r"^-?\d{1,18}(\.0*)?$"
TEXT = "Use whole numbers or text in this column."
TARGET = "Give a number, and an empty cell where it is not known."
OPAQUE = "Write the column as numbers, text or dates, or leave it out: ignore in [data]."
TEXT_TYPES = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_null)


@dataclass(frozen=True)
class Table:
    """One table. `top` is the number of its first data row: 2 in CSV (as a spreadsheet counts), 1 in Parquet; of one
    that lacks rows of its file, `there` int64 [rows] has the numbers of its rows in the file, from 0."""

    path: Path
    data: pa.Table
    top: int
    there: np.ndarray | None = field(default=None, kw_only=True)
    counted: ClassVar[str] = "rows"

    @property
    def columns(self) -> list[str]:
        """Names, in file order."""
        return list(self.data.column_names)

    @property
    def rows(self) -> int:
        """Number of data rows."""
        return int(self.data.num_rows)

    @property
    def origins(self) -> np.ndarray:
        """int64 [rows]: the number of the table that each row comes from, if it was joined from several."""
        return np.zeros(self.rows, np.int64)

    def refuse_at(self, row: int | None, what: str, remedy: str) -> None:
        """Raise DataError that names the file and data row `row` (from 0); nothing for None."""
        if row is not None:
            path, number = self.place(row)
            refuse(path, f"row {number}: {what}", remedy, "row")

    def place(self, row: int) -> tuple[Path, int]:
        """The file of data row `row` (from 0), and the row's number there."""
        return self.path, self.top + (row if self.there is None else int(self.there[row]))

    def without(self, rows: np.ndarray) -> "Table":
        """The table without the rows that are True in bool [rows]; complaints still name the file's."""
        return self.taken(np.flatnonzero(~rows)) if rows.any() else self

    def taken(self, rows: np.ndarray) -> "Table":
        """The table's rows at int64 [m] in this order; complaints still name the file's."""
        return replace(self, data=self.data.take(rows), there=rows if self.there is None else self.there[rows])

    def blank(self) -> np.ndarray:
        """bool [rows], those without a value in any column."""
        blank = np.ones(self.rows, bool)
        for column in self.columns:
            if not blank.any():
                break
            blank &= self.data[column].is_null(nan_is_null=True).to_numpy()
        return blank

    def cells(self, column: str) -> pa.Array:
        """The column in one piece, without a dictionary.

        Raises:
            DataError: it is of a type whose meaning is not known, such as intervals of pandas.
        """
        cells = self.data[column].combine_chunks()
        if isinstance(cells.type, pa.BaseExtensionType):
            refuse(self.path, f"column {column!r} holds {cells.type}", OPAQUE, "column-type")
        return cells.dictionary_decode() if pa.types.is_dictionary(cells.type) else cells

    def texts(self, column: str, remedy: str = TEXT) -> pa.Array:
        """The column as strings; empty cells are null. Whole numbers and text are allowed; `remedy` is for others."""
        cells = self.cells(column)
        if pa.types.is_boolean(cells.type):
            return words_of(cells)
        if pa.types.is_floating(cells.type):  # pandas stores whole numbers next to gaps as floats
            self._refuse_rounded(column, cells)
            cells = self._cast(pc.if_else(pc.is_nan(cells), None, cells), pa.int64(), column, remedy)
        elif not any(allows(cells.type) for allows in TEXT_TYPES):
            refuse(self.path, f"column {column!r} holds {cells.type}", remedy)
        cells = cells.cast(pa.string())
        return pc.if_else(pc.equal(cells, ""), None, cells)

    def filled(self, column: str) -> pa.Array:
        """`texts`, refusing empty cells."""
        cells = self.texts(column)
        what = f"{column} is empty"
        refuse_rows(self, _bools(cells.is_null()), lambda row: what, f"Fill in {column} or remove the row.")
        dotted = pc.match_substring_regex(cells, r"^-?\d{16,}\.0*$")  # so floats are written as text
        self._refuse_rounded(column, pc.if_else(dotted, cells, None).cast(pa.float64()))
        return cells

    def _refuse_rounded(self, column: str, cells: pa.Array) -> None:
        """Refuse floats so large that whole numbers next to each other are the same float: they name several things."""
        limit = 2.0 ** (np.finfo(cells.type.to_pandas_dtype()).nmant + 1)
        values = np.asarray(cells.to_numpy(zero_copy_only=False), np.float64)
        bad = np.flatnonzero(np.isfinite(values) & (np.abs(values) >= limit))
        if len(bad):
            more = f", and so in {len(bad) - 1:,} more of {self.rows:,} {self.counted}" if len(bad) > 1 else ""
            what = (
                f"{column} is {values[bad[0]]:.0f}, stored as a {cells.type}, in which whole numbers from {limit:,.0f}"
            )
            remedy = "Write the column as whole numbers or as text, from the source on (pandas: dtype='Int64' or str)."
            self.refuse_at(int(bad[0]), f"{what} on are rounded to others{more}", remedy)

    def whole(self, column: str, empty: str, key: str = "") -> np.ndarray:
        """The column as int64 [rows], -1 where empty (`empty` is the meaning of that); numbers below 0 are errors.
        [data] `key` could list names."""
        cells = self.texts(column)
        named = f", or list all names in data.{key}" if key else ""
        remedy = f"Use whole numbers from 0, or leave the cell empty for {empty}{named}."
        bad = _bools(pc.invert(pc.match_substring_regex(cells, WHOLE)))
        refuse_rows(self, bad, lambda row: f"{column} is {cells[row].as_py()!r}, not a whole number", remedy)
        values = pc.replace_substring_regex(cells, r"\.0*$", "").cast(pa.int64())
        below = _bools(pc.less(values, 0))
        if empty == "unlabeled" and below.any():
            remedy += f" {meant_empty(str(values.filter(pa.array(below))[0]))}"
        refuse_rows(self, below, lambda row: f"{column} is {values[row].as_py()}, below 0", remedy)
        return np.array(values.fill_null(-1))  # Arrow's own memory cannot be written to

    def numbers(self, column: str, apart: bool = True, gaps: str = MISSING) -> np.ndarray:
        """The column as float32 [rows]; text, empty cells, NaN and values beyond float32 are errors, and with `apart`
        also differences that float32 loses. gaps: the remedy for cells of unknown value."""
        cells = self.cells(column)
        if pa.types.is_temporal(cells.type):
            refuse(self.path, f"column {column!r} holds {cells.type}", DATES)
        if pa.types.is_nested(cells.type):
            refuse(self.path, f"column {column!r} holds {cells.type}", NESTED, "column-nested")
        if pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type):
            cells = _truth_as_numbers(cells)
            self._refuse_words(column, cells, gaps)
        refuse_rows(self, _bools(cells.is_null()), lambda row: f"feature {column!r} is empty", f"{FEATURE} {gaps}")
        values = self._cast(cells, pa.float64(), column, FEATURE, gaps).to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):
            narrow: np.ndarray = values.astype(np.float32)
        refuse_rows(
            self,
            ~np.isfinite(narrow),
            lambda row: f"feature {column!r} is {values[row]}, which is not finite in float32",
            f"{FEATURE} {gaps}" if np.isnan(values).any() else FEATURE,
        )
        if apart:
            refuse_merged(exact(cells, values), f"feature {column!r}", self.refuse_at)
        return narrow

    def targets(self, column: str) -> np.ndarray:
        """The column as float64 [rows], NaN where a cell is empty or holds a word for that (`GAPS`); text and dates are
        refused."""
        cells = self.cells(column)
        if pa.types.is_temporal(cells.type):
            refuse(self.path, f"column {column!r} holds {cells.type}", DATES, "target")
        if pa.types.is_nested(cells.type):
            refuse(self.path, f"column {column!r} holds {cells.type}", NESTED, "target")
        if pa.types.is_boolean(cells.type) or pa.types.is_null(cells.type):
            cells = cells.cast(pa.float64()) if pa.types.is_null(cells.type) else cells.cast(pa.uint8())
        if pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type):
            words = pc.utf8_lower(pc.utf8_trim_whitespace(_truth_as_numbers(cells)))
            cells = pc.if_else(pc.is_in(words, pa.array(["", *GAPS], words.type), skip_nulls=True), None, words)
            number = pc.match_substring_regex(cells, rf"^({_NUMBER}|[+-]?inf(inity)?)$")
            bad = _bools(pc.invert(number))
            texts = [text for text in cells.filter(pa.array(bad)).to_pylist() if text is not None]
            remedy = (of_number(column, texts, TARGET) if texts else "") or TARGET
            refuse_rows(self, bad, lambda row: f"{column!r} is {cells[row].as_py()!r}, no number", remedy, "target")
        read: np.ndarray = cells.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False)
        values = np.asarray(read, np.float64)
        self._refuse_merged_targets(column, cells, values)
        return values

    def _refuse_merged_targets(self, column: str, cells: pa.Array, values: np.ndarray) -> None:
        """Refuse whole numbers so large that float64 rounds them to others."""
        at = np.flatnonzero(np.abs(values) >= EXACT)
        digits = exact(cells.take(pa.array(at)), values[at])
        if digits.dtype != object:
            return
        bad = np.zeros(self.rows, bool)
        bad[at] = [int(value) != whole for value, whole in zip(values[at], digits, strict=True)]
        remedy = "Subtract one number from the whole column, the same wherever it is, or divide it."
        describe = lambda row: f"{column!r} is {cells[row].as_py()}, which float64 rounds to {values[row]:.0f}"  # noqa: E731
        refuse_rows(self, bad, describe, remedy, "target")

    def _refuse_words(self, column: str, cells: pa.Array, gaps: str) -> None:
        """Reject a feature without any number by one error, not row by row."""
        words = [text for text in pc.unique(cells.drop_null()).to_pylist() if text]
        if words and not any(re.match(NUMERIC, text) for text in words):
            empty = cells.null_count + cells.to_pylist().count("")
            more = f"{len(cells) - empty:,} {self.counted} hold text" + (f" and {empty:,} nothing" if empty else "")
            first, remedy = np.arange(len(cells)) == cells.to_pylist().index(words[0]), of_feature(column, words, gaps)
            refuse_rows(self, first, lambda row: f"{column!r} is {short(repr(words[0]))}; {more}", remedy)

    def refuse_gaps(self, column: str, key: str = "") -> None:
        """Refuse text that other programs write for an empty cell, in a column whose values [data] `key` could list,
        or, without it, one that may not be empty."""
        cells = self.texts(column)
        hint = "" if key != "labels" else ', or set [data] unlabeled = "…", the word'
        remedy = f"Leave the cell empty where nothing is known{hint}; if it is a value, name all of them in data.{key}."
        if not key:
            remedy = f"Fill in {column} or remove the row; if it is a name, spell it otherwise."
        written = _bools(pc.is_in(pc.utf8_lower(cells), pa.array(GAPS), skip_nulls=True))
        refuse_rows(self, written, lambda row: f"{column} is {cells[row].as_py()!r}", remedy)

    def refuse_headers(self) -> None:
        """Refuse rows that repeat the names of the columns."""
        same, columns = np.full(self.rows, len(self.columns) > 1), iter(self.columns)
        while same.any() and (column := next(columns, None)) is not None:
            cells = self.data[column].combine_chunks()
            is_text = pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type)
            same &= _bools(pc.equal(cells, column)) if is_text else False
        remedy = "Remove the row: the file was put together of several, each with its header."
        refuse_rows(self, same, lambda row: "the names of the columns are repeated", remedy)

    def refuse_blanks(self, column: str, key: str = "") -> None:
        """Refuse text with a blank at an end, which would be another name than without; [data] `key` could list it."""
        cells = self.texts(column)
        padded = _bools(pc.fill_null(pc.not_equal(cells, pc.utf8_trim_whitespace(cells)), False))
        hint = f", or list all names in data.{key}, if they are meant so" if key else ""
        remedy = f"Write it without, in all tables{hint}."
        refuse_rows(self, padded, lambda row: f"{column} is {cells[row].as_py()!r}, with a blank at an end", remedy)

    def emptied(self, column: str, words: Sequence[str]) -> "Table":
        """The table with the column's cells that say one of the `words` empty; whole numbers are as in `texts`."""
        cells = self.data[column].combine_chunks()
        try:
            texts = as_whole(words_of(cells) if pa.types.is_boolean(cells.type) else cells.cast(pa.string()))
        except pa.ArrowException:
            return self
        mask = pc.is_in(texts, pa.array(words, pa.string()))
        if not pc.any(mask).as_py():
            return self
        if pa.types.is_dictionary(cells.type):
            cells = cells.dictionary_decode()
        emptied_cells = pc.if_else(mask, pa.scalar(None, cells.type), cells)
        return replace(self, data=self.data.set_column(self.columns.index(column), column, emptied_cells))

    def kinds(self, column: str, names: tuple[str, ...], key: str = "") -> np.ndarray:
        """int64 [rows], the places of text in `names`, which `key` in [data] lists, -1 where empty; other text is
        refused."""
        return self.among(
            column, self.texts(column), names, f"Correct it{f', or add it to data.{key}' if key else ''}."
        )

    def among(self, column: str, cells: pa.Array, names: Sequence[str], remedy: str) -> np.ndarray:
        """int64 [rows], the places of the column's `cells`, which are strings, in `names`, -1 where empty; others are
        refused."""
        allowed = pa.array(names, pa.string())
        indices, known = _places(cells, allowed), NameIndex(allowed)

        def describe(row: int) -> str:
            return f"{column} {cells[row].as_py()!r} is none of {', '.join(names)}{known.hint(cells[row].as_py())}"

        refuse_rows(self, _bools(indices.is_null()) & ~_bools(cells.is_null()), describe, remedy)
        result: np.ndarray = indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        return result

    def _cast(self, cells: pa.Array, to: pa.DataType, column: str, remedy: str, gaps: str = "") -> pa.Array:
        try:
            if pa.types.is_boolean(cells.type):
                cells = cells.cast(pa.uint8())
            return cells.cast(to, safe=to == pa.int64())
        except pa.ArrowNotImplementedError:
            refuse(self.path, f"column {column!r} holds {cells.type}", remedy)
        except pa.ArrowInvalid as error:
            bad = np.array([_uncast(cell, to) for cell in cells])  # Arrow does not name the rows
            texts = [cell.as_py() for cell in cells.filter(pa.array(bad))]
            feature = to == pa.float64()
            whole = feature and bad.mean() > 0.5 and len(texts) > 1  # not single cells: the column is of another kind
            better = of_feature(column, [str(text) for text in texts], gaps, whole) if feature else remedy
            if whole:
                at, many = int(bad.argmax()), f"and so are {len(texts) - 1:,} more of {self.rows:,} {self.counted}"
                self.refuse_at(at, f"{column!r} is {short(repr(cells[at].as_py()))}, no number, {many}", better)
            refuse_rows(self, bad, lambda row: f"{column!r} is {short(repr(cells[row].as_py()))}", better)
            refuse(self.path, f"column {column!r}: {error}", remedy)


@dataclass(frozen=True)
class StackedTables(Table):
    """Several tables one below the other; errors name the file and row that a value comes from."""

    sources: tuple[Table, ...] = ()
    counted: ClassVar[str] = "rows of all tables"

    @property
    def origins(self) -> np.ndarray:
        table = np.repeat(np.arange(len(self.sources)), [source.rows for source in self.sources])
        return table if self.there is None else table[self.there]

    def place(self, row: int) -> tuple[Path, int]:
        row = row if self.there is None else int(self.there[row])
        for table in self.sources:
            if row < table.rows:
                return table.place(row)
            row -= table.rows
        raise IndexError(row)


@dataclass(frozen=True)
class TableParts(StackedTables):
    """The parts of one table."""

    counted: ClassVar[str] = "rows"

    @property
    def origins(self) -> np.ndarray:
        return np.zeros(self.rows, np.int64)


def stacked(path: Path, tables: Sequence[Table], kind: type[StackedTables] = StackedTables) -> StackedTables:
    """Tables with the same columns as one, whose name is `path`.

    Raises:
        DataError: a column has values of different types.
    """
    try:
        data = pa.concat_tables([table.data for table in tables], promote_options="permissive")
    except pa.ArrowException as error:
        what = f"the tables of {path.stem} hold values of different types ({error})"
        refuse(path.parent, what, "Write all as CSV, or all alike.")
    return kind(path, data, 0, sources=tuple(tables))


class Tables(NamedTuple):
    """A user's data as every reader of tables hands it over: its nodes and edges and, where these are the examples,
    small graphs."""

    nodes: Table
    edges: Table
    graphs: Table | None = None


def meant_empty(*words: str) -> str:
    """The remedy where a label is a word for an unknown class."""
    word = json.dumps(words[0], ensure_ascii=False) if words else "…"
    return f"If it means that the class is not known: [data] unlabeled = {word}."


def _uncast(cell: pa.Scalar, to: pa.DataType) -> bool:
    try:
        cell.cast(to)
    except pa.ArrowInvalid:
        return True
    return False


def _bools(mask: pa.Array) -> np.ndarray:
    result: np.ndarray = mask.fill_null(False).to_numpy(zero_copy_only=False)
    return result


def _truth_as_numbers(cells: pa.Array) -> pa.Array:
    """Texts that are all True, False, 0, 1 or empty, with 1 for True and 0 for False; other columns as they are."""
    lower = pc.utf8_lower(cells)
    if not pc.any(pc.is_in(lower, pa.array(["true", "false"], lower.type))).as_py():
        return cells
    if not pc.all(pc.is_in(lower, pa.array(["true", "false", "0", "1", "", None], lower.type))).as_py():
        return cells
    return pc.if_else(pc.equal(lower, "true"), "1", pc.if_else(pc.equal(lower, "false"), "0", cells))


def words_of(cells: pa.Array) -> pa.Array:
    """Truth values as the words that Python and CSV have for them."""
    return pc.if_else(cells, "True", "False")


def refuse_name(path: Path, name: str) -> NoReturn:
    """Raise DataError for a column without a name, or with the name of another column."""
    refuse(
        path, f"the column name {name!r} is empty or repeated", "Give every column a name of its own.", "column-name"
    )


def _places(cells: pa.Array, names: pa.Array) -> pa.Array:
    """Places int64 of cells in `names`, null where empty or none of them; "1.0", as pandas writes whole numbers next to
    gaps, is the name "1" where there is no name "1.0"."""
    normalized = pc.if_else(pc.is_in(cells, names, skip_nulls=True), cells, as_whole(cells))
    return pc.index_in(normalized, names, skip_nulls=True)


def as_whole(cells: pa.Array) -> pa.Array:
    """The strings, with "7.0", as pandas writes a whole number next to gaps, as "7"."""
    return pc.replace_substring_regex(cells, r"^(-?\d{1,18})\.0*$", r"\1")


_DOTTED = r"^((?:.*/)?-?\d{1,18})\.0+$"  # a whole number, with a member's name and a slash in front or without


_NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,4})?"
_APOSTROPHES = "'`\u2018\u2019"


def plain(name: str) -> str:
    """The name without the forms in which other programs write the same one (`FORMS`)."""
    for _, step in FORMS:
        name = step(name)
    return name


def shown(name: str) -> str:
    """The name without letters that do not show, such as a zero-width space."""
    return name if name.isascii() else "".join(sign for sign in name if unicodedata.category(sign) != "Cf")


def _behind_member(step: Callable[[str], str]) -> Callable[[str], str]:
    """The step on a name or, where it has nothing to do, on what follows its first slash, after a member."""

    def result(text: str) -> str:
        member, slash, name = text.partition("/")
        return member + slash + step(name) if slash and step(text) == text else step(text)

    return result


def _in_brackets(text: str) -> str:
    """The text without a pair of brackets or quotes around it."""
    inner = re.fullmatch(r"\{(.+)\}|\[(.+)\]|\((.+)\)|<(.+)>|\"(.+)\"", text)
    return text if inner is None else next(filter(None, inner.groups()))


def _uuid(text: str) -> str:
    """A UUID without its hyphens and the prefix of its URN; other texts as they are."""
    bare = text.removeprefix("urn:uuid:")
    return bare.replace("-", "") if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bare) else text


def _without_groups(text: str) -> str:
    """A whole number without the signs between its thousands; one dot is taken for a decimal point."""
    if re.fullmatch(r"[+-]?\d{1,3}(\.\d{3}){2,}", text):
        return text.replace(".", "")
    groups = re.fullmatch(r"([+-]?\d{1,3})([,' _\u2019])(\d{3}(?:\2\d{3})*)(\.0*)?", text)
    return text if groups is None else groups[1] + groups[3].replace(groups[2], "")


def _number(text: str) -> str:
    """A number in one form, as far as Decimal keeps its digits; other texts as they are."""
    return str((Decimal(text) + 0).normalize()) if len(text) <= 28 and re.fullmatch(_NUMBER, text, re.I) else text


# The forms in which other programs write the same name: what differs, and the name without that, one after the other.
FORMS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("the Unicode form of its letters (write both in NFC)", partial(unicodedata.normalize, "NFKC")),
    ("letters that do not show", shown),
    ("case", str.casefold),
    ("blanks", lambda text: " ".join(text.split())),
    ("the apostrophe before it", _behind_member(lambda text: text.lstrip(_APOSTROPHES))),
    ("brackets around it", _behind_member(_in_brackets)),
    ("how the same UUID is written", _behind_member(_uuid)),
    ("signs between thousands", _behind_member(_without_groups)),
    ("zeros before it", _behind_member(lambda text: text.lstrip("0") or "0")),
    ("how the same number is written", _behind_member(_number)),
)


def places(cells: pa.Array, ids: pa.Array) -> pa.Array:
    """int32 [m], where each of the names `cells` [m] stands in `ids`, null where it does not; a whole number that
    another program wrote as "7.0" is "7", unless both are there."""
    exact = pc.index_in(cells, ids, skip_nulls=True)
    if exact.null_count == cells.null_count:
        return exact
    return pc.coalesce(exact, pc.index_in(undotted(cells), undotted(ids), skip_nulls=True))


def positions(names: Sequence[str], known: Sequence[str | None]) -> np.ndarray:
    """int64 [m]: where each of the names stands among the `known`, as in `places`; -1 where it does not."""
    at = places(pa.array(names, pa.string()), pa.array(known, pa.string()))
    result: np.ndarray = at.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return result


def undotted(names: pa.Array) -> pa.Array:
    """The names with whole numbers written as such: "7.0" as "7"."""
    return pc.replace_substring_regex(names, _DOTTED, r"\1")


class NameIndex:
    """Known names, strings in an Arrow array, to find names that look like another one."""

    def __init__(self, names: pa.Array) -> None:
        self._names = names

    @cached_property
    def _plain(self) -> dict[str, str]:
        return {plain(name): name for name in self._names.drop_null().to_pylist()}

    def hint(self, name: str) -> str:
        """ ", but …" with the known name that this one looks like, and how they differ; "" if there is none."""
        other = self._plain.get(plain(name))
        return (
            "" if other is None or other == name else f", but {other!r} is, which differs in {difference(name, other)}"
        )


def look_alike(name: str, known: Sequence[str]) -> str:
    """`NameIndex.hint` for a name that is not among the `known`."""
    return NameIndex(pa.array(known, pa.string())).hint(name)


def difference(one: str, other: str) -> str:
    """In what two names differ that are the same when `plain`: the fewest of `FORMS` that make them so."""
    steps, names = list[tuple[str, Callable[[str], str]]](), (one, other)
    for how, step in FORMS:
        if names != (names := (step(names[0]), step(names[1]))):
            steps.append((how, step))
    for form in tuple(steps):
        rest = [one_form for one_form in steps if one_form is not form]
        first, second = one, other
        for _, step in rest:
            first, second = step(first), step(second)
        steps = rest if first == second else steps
    hidden = sorted({f"U+{ord(letter):04X}" for letter in one + other if not shown(letter)})
    differences = [how if step is not shown else f"{', '.join(hidden)}, which does not show" for how, step in steps]
    return " and ".join(differences)


def alike(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Every name that is another one when `plain`, after that one."""
    seen = dict[str, str]()
    for name in names:
        first = seen.setdefault(plain(name), name)
        if first != name:
            yield first, name


def not_composed(names: Iterable[str]) -> str:
    """The first name that is not in NFC, the form in which most programs write; "" if there is none."""
    return next((name for name in names if not unicodedata.is_normalized("NFC", name)), "")


# ----------------------------------------------------------------------------------------------------
# Files of tables: CSV (UTF-8, comma, header), whose cells are text, and Parquet.


CSV_FAULTS = (csv.Error,)
BLOCK = 1 << 26  # bytes; no row is longer
COMMENTS = ("#", "%")  # SNAP; KONECT and Matrix Market
MAX_COLUMNS = 1 << 16  # each takes .3 ms whatever its rows; the transcripts of all human genes are fewer
MAX_TEXT = (1 << 31) - 1  # bytes of a column, which Arrow counts in 32 bits
REPEATS = "Remove what repeats, give sparse features as .npz, or write it as CSV, if that is meant."
_QUOTE = b'"'
_MOST_COMMENTS = 1000  # lines
_SPLIT = r'\ufeff?"?sep=(.)"?\r?\n'  # the first line by which Excel tells itself what splits cells


class CsvLayout(NamedTuple):
    """How a CSV file begins. skipped: lines before the header. split: the sign between cells."""

    skipped: int
    split: str

    @property
    def top(self) -> int:
        """The number of the first data row."""
        return 2 + self.skipped


def read_csv(path: Path, layout: CsvLayout) -> pa.Table:
    """All cells as strings, null where empty; a line without any is a row of nulls.

    Raises:
        DataError: cells are split by something else, a quote is never closed, or there are too many columns. One of
            `decompression.TABLE_FAULTS` or `CSV_FAULTS`: the file is malformed.
    """
    header = _header(path, layout)
    for mark, name in ((";", "semicolons"), ("\t", "tabs")):
        if len(header) == 1 and mark in header[0]:
            refuse(
                path,
                f"cells are split by {name}; the columns are {', '.join(header[0].split(mark))}",
                "Split them by commas, and write numbers with decimal points.",
            )
    _check_width(path, len(header))
    _check_quotes(path, layout)
    options = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(header, pa.string()), strings_can_be_null=True, null_values=[""]
    )
    # Without threads the parser knows the number of a row that it complains about.
    return pa.csv.read_csv(
        path,
        read_options=pa.csv.ReadOptions(use_threads=False, block_size=BLOCK, skip_rows=layout.skipped),
        parse_options=pa.csv.ParseOptions(delimiter=layout.split, ignore_empty_lines=False, newlines_in_values=True),
        convert_options=options,
    )


def read_tabs(path: Path, columns: Sequence[str], header: bool) -> pa.Table:
    """The cells of a text file, which tabs split, as strings, null where empty; `columns` are their names, and `header`
    says whether the first line has them, too.

    Raises:
        DataError: a row has another number of cells. One of `decompression.TABLE_FAULTS`: the file is malformed.
    """
    faults = list[str]()

    def skip(row: pa.csv.InvalidRow) -> str:
        faults.append(f"row {row.number}: it has {row.actual_columns} cells, not {row.expected_columns}")
        return "skip"

    table = pa.csv.read_csv(
        path,
        read_options=pa.csv.ReadOptions(
            use_threads=False, block_size=BLOCK, column_names=list(columns), skip_rows=int(header)
        ),
        parse_options=pa.csv.ParseOptions(
            delimiter="\t", quote_char=False, ignore_empty_lines=False, invalid_row_handler=skip
        ),
        convert_options=pa.csv.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.string()), strings_can_be_null=True, null_values=[""]
        ),
    )
    if faults:
        more = f" (and so are {len(faults) - 1:,} more rows)" if faults[1:] else ""
        refuse(path, f"{faults[0]}{more}", f"Split {', '.join(columns)} by tabs in every row.", "row")
    return table


def _header(path: Path, layout: CsvLayout) -> list[str]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        return next(csv.reader(islice(file, layout.skipped, None), delimiter=layout.split), [])


def _check_width(path: Path, columns: int) -> None:
    if columns > MAX_COLUMNS:
        what = f"it has {columns:,} columns, and a table may have {MAX_COLUMNS:,}"
        refuse(path, what, "Leave out columns, or give sparse features as .npz (docs/data-format.md).", "too-large")


def layout_of(path: Path) -> CsvLayout:
    """How a CSV file begins: perhaps with Excel's line "sep=;", then with lines of comments.

    Raises:
        DataError: the line after the comments is no header, or one of them looks like it.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        first = next(file, "")
        split = re.fullmatch(_SPLIT, first)
        before = [first] if split else []
        layout = CsvLayout(len(before), split[1] if split else ",")
        lines = list[str]()
        for line in islice(file if split else chain([first], file), _MOST_COMMENTS):
            if not line.startswith(COMMENTS):
                break
            lines.append(line)
    if not lines:
        return layout
    mark, number = lines[-1][0], layout.skipped + len(lines)
    layout = layout._replace(skipped=number)
    if lines[0].startswith("%%MatrixMarket"):
        remedy = "Read it with scipy.io.mmread, and write its edges as a table with the columns source and target."
        refuse(path, "the file is a matrix in Matrix Market's format, without a header", remedy, "header")
    header = _header(path, layout)
    last = [cell.strip() for cell in re.split(r"[,\t]", lines[-1].lstrip(mark))]
    what = f"line {number}, {lines[-1].strip()!r}, begins with {mark}, as comments do"
    if all(re.match(NUMERIC, cell) for cell in re.split(r"\s+", " ".join(header).strip())):
        remedy = "Write a line with the columns' names, such as source,target, after it, and commas between all cells."
        refuse(path, f"{what}, and the line after it is no header", remedy, "header")
    if len(last) == len(header) > 1 and not any(" " in cell for cell in last):
        remedy = f"If it is the header, write it without {mark}, split by commas; if not, leave it out."
        refuse(path, f"{what}, and it looks like the header", remedy, "header")
    return layout


def _check_quotes(path: Path, layout: CsvLayout) -> None:
    """Refuse a quote that is never closed: all rows after it would be one cell."""
    with path.open("rb") as file:
        for _ in range(layout.skipped):
            file.readline()
        quotes = sum(block.count(_QUOTE) for block in iter(lambda: file.read(BLOCK), b""))
    if quotes % 2 == 0:
        return
    begin = 1 + layout.skipped  # of the row that is being read, as a spreadsheet counts
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            for _ in csv.reader(islice(file, layout.skipped, None), delimiter=layout.split, strict=True):
                begin += 1
        except csv.Error as error:
            if any(why in str(error) for why in ("unexpected end", "field limit")):
                refuse(
                    path, f"row {begin}: a quote opens a cell and is never closed", "Close it, or remove it.", "quote"
                )


def find(folder: Path, stem: str) -> Path:
    """`<stem>.parquet` or `<stem>.csv` in `folder`, a file or a folder of parts; neither or both is a DataError."""
    paths = [path for path in (folder / f"{stem}.parquet", folder / f"{stem}.csv") if path.exists()]
    if not paths:
        refuse_absent(folder, f"neither {stem}.parquet nor {stem}.csv is there", stem, TABLES)
    if len(paths) > 1:
        refuse(folder, f"both {stem}.parquet and {stem}.csv are there", "Keep the one that counts.")
    return paths[0]


def read(path: Path, columns: Sequence[str] = (), header: bool = True) -> Table:
    """Read a CSV file (UTF-8, comma, header; all cells as text), a Parquet file, or a folder of such parts, as Spark
    and Dask write a table, in the order of the numbers in their names; or, with `columns`, a text file of such columns
    with tabs between them, whose first line may be a `header`.

    Raises:
        DataError: a file is empty, damaged or malformed, would fill the memory, or repeats a column name; or parts have
            other columns.
    """
    return _joined(path, _parts(path)) if path.is_dir() else _read(path, columns, header)


def _read(path: Path, columns: Sequence[str] = (), header: bool = True) -> Table:
    top = 1
    try:
        if columns:
            data, top = read_tabs(path, columns, header), 1 + header
        elif path.suffix == ".csv":
            layout = layout_of(path)
            data, top = read_csv(path, layout), layout.top
        else:
            data = _parquet(path)
    except UnicodeError as error:
        _refuse_encoding(path, error)
    except PermissionError:
        _refuse_unreadable(path)
    except (*TABLE_FAULTS, *CSV_FAULTS) as error:
        if path.suffix != ".parquet" and "UTF8" in str(error):
            _refuse_encoding(path, error)
        why = " ".join(str(error).split())  # Arrow breaks lines
        _refuse_comment(path, why)
        refuse(
            path,
            f"the file is empty, damaged or malformed ({why})",
            "Write it again; see docs/data-format.md.",
            "damaged",
        )
    if twice := [name for name, times in Counter(data.column_names).items() if times > 1]:
        refuse_name(path, twice[0])
    for name, column in zip(data.column_names, data.columns, strict=True):
        if column.nbytes > MAX_TEXT and column.num_chunks > 1:
            what = f"column {name!r} takes {column.nbytes:,} bytes, and a column may take {MAX_TEXT:,}"
            refuse(path, what, "Leave it out of the file.", "too-large")
    return Table(path, data, top)


def _refuse_comment(path: Path, why: str) -> None:
    """Refuse a row with another number of cells, as the parser complains of it, that begins as comments do."""
    row = re.search(r"Row #(\d+): Expected \d+ columns, got \d+: ([#%].*)", why)
    if row is not None:
        what = f"row {row[1]}: {short(repr(row[2]))} begins with {row[2][0]}, as comments do"
        refuse(path, what, "Remove the line: comments are only before the header.", "comment")


def first_line(path: Path) -> str:
    """The first line of a text file, "" of an empty one.

    Raises:
        DataError: the file is not UTF-8, or may not be read.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            return file.readline().rstrip("\r\n")
    except UnicodeError as error:
        _refuse_encoding(path, error)
    except PermissionError:
        _refuse_unreadable(path)


def _refuse_unreadable(path: Path) -> NoReturn:
    refuse(path, "it may not be read", "Give this user the right to read it (chmod u+r).")


def _parquet(path: Path) -> pa.Table:
    try:
        _check_width(path, pq.ParquetFile(path).metadata.num_columns)
        return read_parquet(path, path.stat().st_size)
    except DecompressionBomb as error:
        refuse(path, str(error), REPEATS, "too-large")
    except Nested as error:
        refuse(path, str(error), NESTED, "column-nested")


def _parts(folder: Path) -> list[Path]:
    """The files of a table in several, by the numbers in their names.

    Raises:
        DataError: there is none, or there are folders or files of another kind.
    """
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith((".", "_")))
    whole = f"Write the table as one file, {folder.name}, or as parts that all end in {folder.suffix}."
    if other := [path.name for path in inside if path.is_dir() or path.suffix != folder.suffix]:
        what = f"it is a folder of parts, and {other[0]} is none"
        if "=" in other[0]:
            whole = f"Write it without partitions by column, which leave out {other[0].partition('=')[0]}. {whole}"
        refuse(folder, what, whole, "parts")
    parts = [path for path in inside if path.stat().st_size]  # Spark writes an empty file for an empty partition
    if not parts:
        refuse(folder, f"it is a folder without parts that end in {folder.suffix}", whole, "parts")
    return sorted(parts, key=lambda path: [int(piece) for piece in re.findall(r"\d+", path.name)[:1]])


def _joined(folder: Path, paths: list[Path]) -> Table:
    """The parts of a table one below the other, which together may not fill the memory either."""
    size, parts, needed = sum(path.stat().st_size for path in paths), list[Table](), 0
    for path in paths:
        parts.append(part := _read(path))
        needed += max(part.data.nbytes, parquet_cost(path) if path.suffix == ".parquet" else 0)
        if path.suffix == ".parquet" and not OF_TABLES.allows(needed, size):
            what = f"the {size:,} bytes of its {len(paths):,} parts would take more than {needed:,} bytes of memory"
            refuse(folder, what, REPEATS, "too-large")
        if part.columns != parts[0].columns:
            what = f"{path.name} has the columns {', '.join(part.columns[:5])}, others than {paths[0].name}"
            remedy = "Write all parts with the same columns, in CSV each with a header (Spark: option('header', True))."
            refuse(folder, what, remedy, "parts")
    return stacked(folder, parts, TableParts)


def _refuse_encoding(path: Path, error: Exception) -> NoReturn:
    start = path.read_bytes()[:4]
    wide = start[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in start
    form, encoding = ("UTF-16", "UTF-16") if wide else ("Latin-1 or Windows-1252", "WINDOWS-1252")
    refuse(
        path,
        f"the file is not UTF-8; it looks like {form}",
        f"Save it as UTF-8, in a spreadsheet as “CSV UTF-8”, or: iconv -f {encoding} -t UTF-8 {path.name} > new.csv.",
    )

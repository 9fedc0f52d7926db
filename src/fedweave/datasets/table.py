"""A user's table, in which every error can name file, row and column. `table_files` reads it."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from fedweave.datasets.cells import DATES, FEATURE, GAPS, MISSING, NESTED, NUMERIC, of_feature, of_number, short
from fedweave.datasets.check import refuse, refuse_rows
from fedweave.datasets.features import EXACT, exact, refuse_merged
from fedweave.datasets.name_matching import DECIMAL_NUMBER, NameIndex, as_whole

# At most 18 digits, so that every match fits int64; pandas writes whole numbers next to gaps as "1.0".
WHOLE = r"^-?\d{1,18}(\.0*)?$"
TEXT = "Use whole numbers or text in this column."
TARGET = "Give a number, and an empty cell where it is not known."
MADE = {b"made": b"of row numbers"}  # metadata of a column that reading a file adds
OPAQUE = "Write the column as numbers, text or dates, or leave it out: ignore in [data]."


@dataclass(frozen=True)
class Table:
    """One table. `top` is the number of its first data row: 2 in CSV (as a spreadsheet counts), 1 in Parquet; of one
    that lacks rows of its file, `file_rows` int64 [rows] has the numbers of its rows in the file, from 0."""

    path: Path
    data: pa.Table
    top: int
    file_rows: np.ndarray | None = field(default=None, kw_only=True)
    counted: ClassVar[str] = "rows"

    @property
    def columns(self) -> list[str]:
        """Names, in file order."""
        return list(self.data.column_names)

    @property
    def file_columns(self) -> list[str]:
        """Names of the file's columns, without those that reading it adds (`MADE`)."""
        return [column.name for column in self.data.schema if column.metadata != MADE]

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
        return self.path, self.top + (row if self.file_rows is None else int(self.file_rows[row]))

    def without(self, rows: np.ndarray) -> "Table":
        """The table without the rows that are True in bool [rows]; complaints still name the file's."""
        return self.take(np.flatnonzero(~rows)) if rows.any() else self

    def take(self, rows: np.ndarray) -> "Table":
        """The table's rows at int64 [m] in this order; complaints still name the file's."""
        return replace(
            self, data=self.data.take(rows), file_rows=rows if self.file_rows is None else self.file_rows[rows]
        )

    def blank(self) -> np.ndarray:
        """bool [rows], those without a value in any column."""
        blank = np.ones(self.rows, bool)
        for column in self.columns:
            if not blank.any():
                break
            blank &= self.data[column].is_null(nan_is_null=True).to_numpy()
        return blank

    def cells(self, column: str) -> pa.Array:
        """The column in one piece, without a dictionary."""
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
        elif not (is_text(cells.type) or pa.types.is_integer(cells.type) or pa.types.is_null(cells.type)):
            refuse(self.path, f"column {column!r} holds {cells.type}", remedy)
        cells = cells.cast(pa.string())
        return pc.if_else(pc.equal(cells, ""), None, cells)

    def nonempty_texts(self, column: str) -> pa.Array:
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
        names = f", or list all names in data.{key}" if key else ""
        remedy = f"Use whole numbers from 0, or leave the cell empty for {empty}{names}."
        bad = _bools(pc.invert(pc.match_substring_regex(cells, WHOLE)))
        refuse_rows(self, bad, lambda row: f"{column} is {cells[row].as_py()!r}, not a whole number", remedy)
        values = pc.replace_substring_regex(cells, r"\.0*$", "").cast(pa.int64())
        below = _bools(pc.less(values, 0))
        if empty == "unlabeled" and below.any():
            remedy += f" {remedy_for_gaps(str(values.filter(pa.array(below))[0]))}"
        refuse_rows(self, below, lambda row: f"{column} is {values[row].as_py()}, below 0", remedy)
        return np.array(values.fill_null(-1))  # Arrow's own memory cannot be written to

    def numbers(self, column: str, distinct: bool = True, gaps: str = MISSING) -> np.ndarray:
        """The column as float32 [rows]; text, empty cells, NaN and values beyond float32 are errors, and so are, with
        `distinct`, differences that float32 loses. gaps: the remedy for cells of unknown value."""
        cells = self.number_cells(column)
        if is_text(cells.type):
            cells = _truth_as_numbers(cells)
            words = [text for text in pc.unique(cells.drop_null()).to_pylist() if text]
            if words and not any(re.match(NUMERIC, text) for text in words):  # one error, not one for each row
                texts = cells.to_pylist()
                empty = texts.count(None) + texts.count("")
                more = f"{len(cells) - empty:,} {self.counted} hold text" + (f" and {empty:,} nothing" if empty else "")
                what = f"{column!r} is {short(repr(words[0]))}; {more}"
                first_word = np.arange(len(cells)) == texts.index(words[0])
                refuse_rows(self, first_word, lambda row: what, of_feature(column, words, gaps))
        refuse_rows(self, _bools(cells.is_null()), lambda row: f"feature {column!r} is empty", f"{FEATURE} {gaps}")
        values = self._cast(cells, pa.float64(), column, FEATURE, gaps).to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):
            narrow: np.ndarray = values.astype(np.float32)
        remedy = f"{FEATURE} {gaps}" if np.isnan(values).any() else FEATURE
        infinite = f"feature {column!r} is {{}}, which is not finite in float32".format
        refuse_rows(self, ~np.isfinite(narrow), lambda row: infinite(values[row]), remedy)
        if distinct:
            refuse_merged(exact(cells, values), f"feature {column!r}", self.refuse_at)
        return narrow

    def number_cells(self, column: str, code: str = "") -> pa.Array:
        """`cells` of a column of numbers, perhaps written as text; dates and lists are refused."""
        cells = self.cells(column)
        if pa.types.is_temporal(cells.type):
            refuse(self.path, f"column {column!r} holds {cells.type}", DATES, code)
        if pa.types.is_nested(cells.type):
            refuse(self.path, f"column {column!r} holds {cells.type}", NESTED, code or "column-nested")
        return cells

    def targets(self, column: str) -> np.ndarray:
        """The column as float64 [rows], NaN where a cell is empty or holds a word for that (`GAPS`); text and dates are
        refused."""
        cells = self.number_cells(column, "target")
        if pa.types.is_boolean(cells.type):
            cells = cells.cast(pa.uint8())
        if is_text(cells.type):
            words = pc.utf8_lower(pc.utf8_trim_whitespace(_truth_as_numbers(cells)))
            cells = pc.if_else(pc.is_in(words, pa.array(["", *GAPS], words.type), skip_nulls=True), None, words)
            bad = _bools(pc.invert(pc.match_substring_regex(cells, rf"^({DECIMAL_NUMBER}|[+-]?inf(inity)?)$")))
            texts = [text for text in cells.filter(pa.array(bad)).to_pylist() if text is not None]
            remedy = (of_number(column, texts, TARGET) if texts else "") or TARGET
            refuse_rows(self, bad, lambda row: f"{column!r} is {cells[row].as_py()!r}, no number", remedy, "target")
        read: np.ndarray = cells.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False)
        values = np.asarray(read, np.float64)
        # Whole numbers may be so large that float64 rounds them to others.
        at = np.flatnonzero(np.abs(values) >= EXACT)
        digits = exact(cells.take(pa.array(at)), values[at])
        if digits.dtype == object:
            rounded = np.zeros(self.rows, bool)
            rounded[at] = [int(value) != whole for value, whole in zip(values[at], digits, strict=True)]
            remedy = "Subtract one number from the whole column, the same wherever it is, or divide it."
            what = f"{column!r} is {{}}, which float64 rounds to {{:.0f}}".format
            refuse_rows(self, rounded, lambda row: what(cells[row].as_py(), values[row]), remedy, "target")
        return values

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

    def refuse_blanks(self, column: str, key: str = "") -> None:
        """Refuse text with a blank at an end, which would be another name than without; [data] `key` could list it."""
        cells = self.texts(column)
        padded = _bools(pc.not_equal(cells, pc.utf8_trim_whitespace(cells)))
        hint = f", or list all names in data.{key}, if they are meant so" if key else ""
        remedy = f"Write it without, in all tables{hint}."
        refuse_rows(self, padded, lambda row: f"{column} is {cells[row].as_py()!r}, with a blank at an end", remedy)

    def clear_cells(self, column: str, words: Sequence[str]) -> "Table":
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
        add = f", or add it to data.{key}" if key else ""
        return self.among(column, self.texts(column), names, f"Correct it{add}.")

    def among(self, column: str, cells: pa.Array, names: Sequence[str], remedy: str) -> np.ndarray:
        """int64 [rows], the places of the column's `cells`, which are strings, in `names`, -1 where empty; others are
        refused."""
        allowed = pa.array(names, pa.string())
        known = NameIndex(allowed)

        def describe(row: int) -> str:
            cell = cells[row].as_py()
            return f"{column} {cell!r} is none of {', '.join(names)}{known.hint(cell)}"

        # "1.0", as pandas writes whole numbers next to gaps, is the name "1" where there is no name "1.0".
        spelled = pc.if_else(pc.is_in(cells, allowed, skip_nulls=True), cells, as_whole(cells))
        indices = pc.index_in(spelled, allowed, skip_nulls=True)
        refuse_rows(self, _bools(indices.is_null()) & ~_bools(cells.is_null()), describe, remedy)
        return np.asarray(indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64))

    def _cast(self, cells: pa.Array, to: pa.DataType, column: str, remedy: str, gaps: str = "") -> pa.Array:
        try:
            if pa.types.is_boolean(cells.type):
                cells = cells.cast(pa.uint8())
            return cells.cast(to, safe=to == pa.int64())
        except pa.ArrowNotImplementedError:
            refuse(self.path, f"column {column!r} holds {cells.type}", remedy)
        except pa.ArrowInvalid as error:
            bad = np.zeros(len(cells), bool)
            for row, cell in enumerate(cells):  # Arrow does not name the rows
                try:
                    cell.cast(to)
                except pa.ArrowInvalid:
                    bad[row] = True
            texts = [str(cell.as_py()) for cell in cells.filter(pa.array(bad))]

            def describe(row: int) -> str:
                return f"{column!r} is {short(repr(cells[row].as_py()))}"

            cell_remedy = remedy
            if to == pa.float64():
                other_kind = bad.mean() > 0.5 and len(texts) > 1  # not single cells: the column is not a feature
                cell_remedy = of_feature(column, texts, gaps, other_kind)
                if other_kind:
                    row, more = int(bad.argmax()), f"{len(texts) - 1:,} more of {self.rows:,} {self.counted}"
                    self.refuse_at(row, f"{describe(row)}, no number, and so are {more}", cell_remedy)
            refuse_rows(self, bad, describe, cell_remedy)
            refuse(self.path, f"column {column!r}: {error}", remedy)


@dataclass(frozen=True)
class StackedTables(Table):
    """Several tables one below the other; errors name the file and row that a value comes from."""

    sources: tuple[Table, ...] = ()
    counted: ClassVar[str] = "rows of all tables"

    @property
    def origins(self) -> np.ndarray:
        table = np.repeat(np.arange(len(self.sources)), [source.rows for source in self.sources])
        return table if self.file_rows is None else table[self.file_rows]

    def place(self, row: int) -> tuple[Path, int]:
        row = row if self.file_rows is None else int(self.file_rows[row])
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


def stack(path: Path, tables: Sequence[Table], kind: type[StackedTables] = StackedTables) -> StackedTables:
    """Tables with the same columns as one, whose name is `path`."""
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


def is_text(kind: pa.DataType) -> bool:
    """Whether a column's type is text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def remedy_for_gaps(*words: str) -> str:
    """The remedy where a label is a word for an unknown class."""
    word = json.dumps(words[0], ensure_ascii=False) if words else "…"
    return f"If it means that the class is not known: [data] unlabeled = {word}."


def _bools(mask: pa.Array) -> np.ndarray:
    return np.asarray(mask.fill_null(False).to_numpy(zero_copy_only=False))


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

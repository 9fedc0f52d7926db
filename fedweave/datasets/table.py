"""Tables of a user's folder, read so strictly that every complaint can name file, row and column."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from fedweave.datasets.check import first, refuse

# At most 18 digits, so that every match fits int64; pandas writes whole numbers next to gaps as "1.0".
WHOLE = r"^-?\d{1,18}(\.0*)?$"
TEXT = "Use whole numbers or text in this column."
TEXT_TYPES = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_null)


@dataclass(frozen=True)
class Table:
    """One table. `top` is the number of its first data row: 2 in CSV (as a spreadsheet counts), 1 in Parquet."""

    path: Path
    data: pa.Table
    top: int

    @property
    def columns(self) -> list[str]:
        """Names, in file order."""
        return list(self.data.column_names)

    @property
    def rows(self) -> int:
        """Number of data rows."""
        return int(self.data.num_rows)

    def refuse_at(self, row: int | None, what: str, remedy: str) -> None:
        """Raise DataError that names the file and data row `row` (from 0); nothing for None."""
        if row is not None:
            refuse(self.path, f"row {row + self.top}: {what}", remedy)

    def texts(self, column: str) -> pa.Array:
        """The column as strings; empty cells are null. Whole numbers and text are allowed."""
        cells = self.data[column].combine_chunks()
        if pa.types.is_dictionary(cells.type):
            cells = cells.dictionary_decode()
        if pa.types.is_floating(cells.type):  # pandas stores whole numbers next to gaps as floats
            cells = self._cast(pc.if_else(pc.is_nan(cells), None, cells), pa.int64(), column, TEXT)
        elif not any(allows(cells.type) for allows in TEXT_TYPES):
            refuse(self.path, f"column {column!r} holds {cells.type}", TEXT)
        cells = cells.cast(pa.string())
        return pc.if_else(pc.equal(cells, ""), None, cells)

    def filled(self, column: str) -> pa.Array:
        """`texts`, refusing empty cells."""
        cells = self.texts(column)
        self.refuse_at(first(_bools(cells.is_null())), f"{column} is empty", f"Fill in {column} or remove the row.")
        return cells

    def whole(self, column: str, empty: str) -> np.ndarray:
        """The column as int64 [rows], -1 where empty (`empty` says what that means); numbers below 0 are refused."""
        cells = self.texts(column)
        bad = first(_bools(pc.invert(pc.match_substring_regex(cells, WHOLE))))
        remedy = f"Use whole numbers from 0, or leave the cell empty for {empty}."
        if bad is not None:
            self.refuse_at(bad, f"{column} is {cells[bad].as_py()!r}, not a whole number", remedy)
        values = pc.replace_substring_regex(cells, r"\.0*$", "").cast(pa.int64())
        below = first(_bools(pc.less(values, 0)))
        if below is not None:
            self.refuse_at(below, f"{column} is {values[below].as_py()}, below 0", remedy)
        return values.fill_null(-1).to_numpy(zero_copy_only=False)

    def numbers(self, column: str) -> np.ndarray:
        """The column as float32 [rows]; text, empty cells, NaN and values beyond float32 are refused."""
        cells = self.data[column].combine_chunks()
        remedy = "Every column without another meaning is a feature: give a finite number in every row."
        self.refuse_at(first(_bools(cells.is_null())), f"feature {column!r} is empty", remedy)
        values = self._cast(cells, pa.float64(), column, remedy).to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):
            narrow = values.astype(np.float32)
        bad = first(~np.isfinite(narrow))
        if bad is not None:
            self.refuse_at(bad, f"feature {column!r} is {values[bad]}, which is not finite in float32", remedy)
        return narrow

    def _cast(self, cells: pa.Array, to: pa.DataType, column: str, remedy: str) -> pa.Array:
        try:
            if pa.types.is_boolean(cells.type):
                cells = cells.cast(pa.uint8())
            return cells.cast(to, safe=to == pa.int64())
        except pa.ArrowNotImplementedError:
            refuse(self.path, f"column {column!r} holds {cells.type}", remedy)
        except pa.ArrowInvalid as error:
            for row, cell in enumerate(cells):  # Arrow does not say which row it was
                try:
                    cell.cast(to)
                except pa.ArrowInvalid:
                    self.refuse_at(row, f"{column!r} is {cell.as_py()!r}", remedy)
            refuse(self.path, f"column {column!r}: {error}", remedy)


def _bools(mask: pa.Array) -> np.ndarray:
    return mask.fill_null(False).to_numpy(zero_copy_only=False)


def find(folder: Path, stem: str) -> Path:
    """`<stem>.parquet` or `<stem>.csv` in `folder`; neither or both is a DataError."""
    found = [path for path in (folder / f"{stem}.parquet", folder / f"{stem}.csv") if path.is_file()]
    if not found:
        refuse(folder, f"neither {stem}.parquet nor {stem}.csv is there", "See docs/data-format.md for both files.")
    if len(found) > 1:
        refuse(folder, f"both {stem}.parquet and {stem}.csv are there", "Keep the one that counts.")
    return found[0]


def read(path: Path) -> Table:
    """Read a CSV file (UTF-8, comma, header; all cells as text) or a Parquet file.

    Raises:
        DataError: the file is empty, damaged or malformed, or a column name is empty or repeated.
    """
    try:
        data = _csv(path) if path.suffix == ".csv" else pa.parquet.read_table(path, partitioning=None)
    except (pa.ArrowException, OSError, UnicodeError, csv.Error) as error:
        why = " ".join(str(error).split())  # Arrow breaks lines
        refuse(path, f"the file is empty, damaged or malformed ({why})", "Write it again; see docs/data-format.md.")
    names = data.column_names
    for name in names:
        if not name.strip() or names.count(name) > 1:
            refuse(path, f"the column name {name!r} is empty or repeated", "Give every column a name of its own.")
    return Table(path, data, 2 if path.suffix == ".csv" else 1)


def _csv(path: Path) -> pa.Table:
    with path.open(newline="", encoding="utf-8-sig") as file:
        header = next(csv.reader(file), [])
    options = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(header, pa.string()), strings_can_be_null=True, null_values=[""]
    )
    # Without threads the parser knows the number of a row that it complains about.
    return pa.csv.read_csv(
        path,
        read_options=pa.csv.ReadOptions(use_threads=False),
        parse_options=pa.csv.ParseOptions(ignore_empty_lines=False),
        convert_options=options,
    )

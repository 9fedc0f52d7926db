"""Files of tables: CSV (UTF-8, comma, header), whose cells are text, and Parquet."""

import csv
import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from fedweave.core.arrow_types import plain
from fedweave.core.decompression import (
    OF_TABLES,
    TABLE_FAULTS,
    DecompressionBomb,
    Nested,
    parquet_cost,
    parquet_groups,
)
from fedweave.datasets.cells import NESTED, NUMERIC, short
from fedweave.datasets.check import refuse
from fedweave.datasets.lookup import TABLES, refuse_absent
from fedweave.datasets.table import Table, TableParts, refuse_name, stack

CSV_FAULTS = (csv.Error,)
BLOCK = 1 << 26  # bytes; no row is longer
COMMENTS = ("#", "%")  # SNAP; KONECT and Matrix Market
MAX_COLUMNS = 1 << 16  # each takes .3 ms whatever its rows; the transcripts of all human genes are fewer
MAX_TEXT = (1 << 31) - 1  # bytes of a column, which Arrow counts in 32 bits
REPEATS = "Remove what repeats, give sparse features as .npz, or write it as CSV, if that is meant."
READABLE = "Give this user the right to read it (chmod u+r)."
MAX_COMMENTS = 1000  # lines
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
    """All cells as strings, null where empty; a line without any is a row of nulls."""
    header = _header(path, layout)
    for mark, name in ((";", "semicolons"), ("\t", "tabs")):
        if len(header) == 1 and mark in header[0]:
            what = f"cells are split by {name}; the columns are {', '.join(header[0].split(mark))}"
            refuse(path, what, "Split them by commas, and write numbers with decimal points.")
    _check_width(path, len(header))
    _refuse_open_quote(path, layout)
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
    says whether the first line has them, too."""
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
        refuse(path, what, "Leave out columns, or give sparse features as .npz (docs/data-layouts.md).", "too-large")


def layout_of(path: Path) -> CsvLayout:
    """How a CSV file begins: perhaps with Excel's line "sep=;", then with lines of comments."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        first = next(file, "")
        split = re.fullmatch(_SPLIT, first)
        before = [first] if split else []
        layout = CsvLayout(len(before), split[1] if split else ",")
        lines = list[str]()
        for line in islice(file if split else chain([first], file), MAX_COMMENTS):
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
        refuse(path, f"{what}, and the line after it is not a header", remedy, "header")
    if len(last) == len(header) > 1 and not any(" " in cell for cell in last):
        remedy = f"If it is the header, write it without {mark}, split by commas; if not, leave it out."
        refuse(path, f"{what}, and it looks like the header", remedy, "header")
    return layout


def _refuse_open_quote(path: Path, layout: CsvLayout) -> None:
    """Refuse a quote that is never closed: all rows after it would be one cell."""
    with path.open("rb") as file:
        for _ in range(layout.skipped):
            file.readline()
        quotes = sum(block.count(b'"') for block in iter(lambda: file.read(BLOCK), b""))
    if quotes % 2 == 0:
        return
    begin = 1 + layout.skipped  # of the row that is being read, as a spreadsheet counts
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            for _ in csv.reader(islice(file, layout.skipped, None), delimiter=layout.split, strict=True):
                begin += 1
        except csv.Error as error:
            if any(why in str(error) for why in ("unexpected end", "field limit")):
                what = f"row {begin}: a quote opens a cell and is never closed"
                refuse(path, what, "Close it, or remove it.", "quote")


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
    if path.is_dir():
        return _read_parts(path)
    top = 1
    try:
        if columns:
            data, top = read_tabs(path, columns, header), 1 + header
        elif path.suffix == ".csv":
            layout = layout_of(path)
            data, top = read_csv(path, layout), layout.top
        else:
            _check_width(path, pq.ParquetFile(path).metadata.num_columns)
            data = plain(pa.concat_tables(parquet_groups(path, path.stat().st_size, OF_TABLES)))
    except DecompressionBomb as error:
        refuse(path, str(error), REPEATS, "too-large")
    except Nested as error:
        refuse(path, str(error), NESTED, "column-nested")
    except UnicodeError as error:
        _refuse_encoding(path, error)
    except PermissionError:
        refuse(path, "it may not be read", READABLE)
    except (*TABLE_FAULTS, *CSV_FAULTS) as error:
        if path.suffix != ".parquet" and "UTF8" in str(error):
            _refuse_encoding(path, error)
        why = " ".join(str(error).split())  # Arrow breaks lines
        comment = re.search(r"Row #(\d+): Expected \d+ columns, got \d+: ([#%].*)", why)
        if comment is not None:
            what = f"row {comment[1]}: {short(repr(comment[2]))} begins with {comment[2][0]}, as comments do"
            refuse(path, what, "Remove the line: comments are only before the header.", "comment")
        what = f"the file is empty, damaged or malformed ({why})"
        refuse(path, what, "Write it again; see docs/data-format.md.", "damaged")
    times = Counter(data.column_names)
    for name, column in zip(data.column_names, data.columns, strict=True):
        if times[name] > 1:
            refuse_name(path, name)
        if column.nbytes > MAX_TEXT and column.num_chunks > 1:
            what = f"column {name!r} takes {column.nbytes:,} bytes, and a column may take {MAX_TEXT:,}"
            refuse(path, what, "Leave it out of the file.", "too-large")
    return Table(path, data, top)


def first_line(path: Path) -> str:
    """The first line of a text file, "" of an empty one."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            return file.readline().rstrip("\r\n")
    except UnicodeError as error:
        _refuse_encoding(path, error)
    except PermissionError:
        refuse(path, "it may not be read", READABLE)


def _read_parts(folder: Path) -> Table:
    """The parts of a table one below the other, by the numbers in their names; together they may not fill the memory
    either."""
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith((".", "_")))
    remedy = f"Write the table as one file, {folder.name}, or as parts that all end in {folder.suffix}."
    for path in inside:
        if path.is_dir() or path.suffix != folder.suffix:
            if "=" in path.name:
                column = path.name.partition("=")[0]
                remedy = f"Write it without partitions by column, which leave out {column}. {remedy}"
            refuse(folder, f"it is a folder of parts, and {path.name} is none", remedy, "parts")
    paths = [path for path in inside if path.stat().st_size]  # Spark writes an empty file for an empty partition
    if not paths:
        refuse(folder, f"it is a folder without parts that end in {folder.suffix}", remedy, "parts")
    paths.sort(key=lambda path: [int(digits) for digits in re.findall(r"\d+", path.name)[:1]])
    size, needed, parts = sum(path.stat().st_size for path in paths), 0, list[Table]()
    for path in paths:
        part = read(path)
        parts.append(part)
        needed += max(part.data.nbytes, parquet_cost(pq.ParquetFile(path).metadata) if path.suffix == ".parquet" else 0)
        if path.suffix == ".parquet" and not OF_TABLES.allows(needed, size):
            what = f"the {size:,} bytes of its {len(paths):,} parts would take more than {needed:,} bytes of memory"
            refuse(folder, what, REPEATS, "too-large")
        if part.columns != parts[0].columns:
            what = f"{path.name} has the columns {', '.join(part.columns[:5])}, others than {paths[0].name}"
            remedy = "Write all parts with the same columns, in CSV each with a header (Spark: option('header', True))."
            refuse(folder, what, remedy, "parts")
    return stack(folder, parts, TableParts)


def _refuse_encoding(path: Path, error: Exception) -> NoReturn:
    start = path.read_bytes()[:4]
    wide = start[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in start
    form, encoding = ("UTF-16", "UTF-16") if wide else ("Latin-1 or Windows-1252", "WINDOWS-1252")
    refuse(
        path,
        f"the file is not UTF-8; it looks like {form}",
        f"Save it as UTF-8, in a spreadsheet as “CSV UTF-8”, or: iconv -f {encoding} -t UTF-8 {path.name} > new.csv.",
    )

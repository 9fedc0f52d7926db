"""Files of tables: CSV (UTF-8, comma, header), whose cells are text, and Parquet."""

import csv
import re
from collections import Counter
from itertools import islice, takewhile
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pyarrow.csv

from fedweave.core.decompression import TABLE_FAULTS, DecompressionBomb, Nested, read_parquet
from fedweave.datasets.check import refuse
from fedweave.datasets.lookup import TABLES, refuse_other_form
from fedweave.datasets.remedies import NESTED, NUMERIC
from fedweave.datasets.table import Table, refuse_name

CSV_FAULTS = (csv.Error,)
BLOCK = 1 << 26  # bytes; no row is longer
COMMENT = "#"
_QUOTE = b'"'
_MOST_COMMENTS = 1000  # lines


def read_csv(path: Path) -> pa.Table:
    """All cells as strings, null where empty; a line without any is a row of nulls.

    Raises:
        DataError: cells are split by something else, or a quote is never closed. One of `decompression.TABLE_FAULTS` or
            `CSV_FAULTS`: the file is malformed.
    """
    skipped = comments(path)
    with path.open(newline="", encoding="utf-8-sig") as file:
        header = next(csv.reader(islice(file, skipped, None)), [])
    for mark, name in ((";", "semicolons"), ("\t", "tabs")):
        if len(header) == 1 and mark in header[0]:
            refuse(
                path,
                f"cells are split by {name}; the columns are {', '.join(header[0].split(mark))}",
                "Split them by commas, and write numbers with decimal points.",
            )
    _check_quotes(path, skipped)
    options = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(header, pa.string()), strings_can_be_null=True, null_values=[""]
    )
    # Without threads the parser knows the number of a row that it complains about.
    return pa.csv.read_csv(
        path,
        read_options=pa.csv.ReadOptions(use_threads=False, block_size=BLOCK, skip_rows=skipped),
        parse_options=pa.csv.ParseOptions(ignore_empty_lines=False, newlines_in_values=True),
        convert_options=options,
    )


def comments(path: Path) -> int:
    """How many lines before the header of a CSV file begin with #, as those of SNAP and KONECT do.

    Raises:
        DataError: the line after them is no header, or one of them looks like it.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        found = list(takewhile(lambda line: line.startswith(COMMENT), islice(file, _MOST_COMMENTS)))
    if not found:
        return 0
    with path.open(newline="", encoding="utf-8-sig") as file:
        header = next(csv.reader(islice(file, len(found), None)), [])
    last = [cell.strip() for cell in re.split(r"[,\t]", found[-1].lstrip(COMMENT))]
    numbers = all(re.match(NUMERIC, cell) for cell in re.split(r"\s+", " ".join(header).strip()))
    if numbers or (len(last) == len(header) > 1 and not any(" " in cell for cell in last)):
        what = f"line {len(found)}, {found[-1].strip()!r}, begins with {COMMENT}, as comments do"
        after = "the line after it is no header" if numbers else "it looks like the header"
        remedy = f"Write the columns' names without {COMMENT}, split by commas, such as source,target."
        refuse(path, f"{what}, and {after}", remedy, "header")
    return len(found)


def _check_quotes(path: Path, skipped: int) -> None:
    """Refuse a quote that is never closed: all rows after it would be one cell. skipped: lines before the header."""
    with path.open("rb") as file:
        for _ in range(skipped):
            file.readline()
        quotes = sum(block.count(_QUOTE) for block in iter(lambda: file.read(BLOCK), b""))
    if quotes % 2 == 0:
        return
    begin = 1 + skipped  # of the row that is being read, as a spreadsheet counts
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            for _ in csv.reader(islice(file, skipped, None), strict=True):
                begin += 1
        except csv.Error as error:
            if any(why in str(error) for why in ("unexpected end", "field limit")):
                refuse(
                    path, f"row {begin}: a quote opens a cell and is never closed", "Close it, or remove it.", "quote"
                )


def find(folder: Path, stem: str) -> Path:
    """`<stem>.parquet` or `<stem>.csv` in `folder`; neither or both is a DataError."""
    found = [path for path in (folder / f"{stem}.parquet", folder / f"{stem}.csv") if path.is_file()]
    if not found:
        refuse_other_form(folder, f"neither {stem}.parquet nor {stem}.csv is there", stem, TABLES)
        refuse(folder, f"neither {stem}.parquet nor {stem}.csv is there", "See docs/data-format.md for both files.")
    if len(found) > 1:
        refuse(folder, f"both {stem}.parquet and {stem}.csv are there", "Keep the one that counts.")
    return found[0]


def read(path: Path) -> Table:
    """Read a CSV file (UTF-8, comma, header; all cells as text) or a Parquet file.

    Raises:
        DataError: the file is empty, damaged or malformed, or a column name is repeated.
    """
    try:
        data = read_csv(path) if path.suffix == ".csv" else _parquet(path)
    except UnicodeError as error:
        _refuse_encoding(path, error)
    except PermissionError:
        refuse(path, "it may not be read", "Give this user the right to read it (chmod u+r).")
    except (*TABLE_FAULTS, *CSV_FAULTS) as error:
        if path.suffix == ".csv" and "UTF8" in str(error):
            _refuse_encoding(path, error)
        why = " ".join(str(error).split())  # Arrow breaks lines
        refuse(
            path,
            f"the file is empty, damaged or malformed ({why})",
            "Write it again; see docs/data-format.md.",
            "damaged",
        )
    if twice := [name for name, times in Counter(data.column_names).items() if times > 1]:
        refuse_name(path, twice[0])
    return Table(path, data, 2 + comments(path) if path.suffix == ".csv" else 1)


def _parquet(path: Path) -> pa.Table:
    try:
        return read_parquet(path, path.stat().st_size)
    except DecompressionBomb as error:
        refuse(path, str(error), "Write it with another compression, or as CSV, if that is meant.")
    except Nested as error:
        refuse(path, str(error), NESTED, "column-nested")


def _refuse_encoding(path: Path, error: Exception) -> NoReturn:
    start = path.read_bytes()[:4]
    wide = start[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in start
    form, given = ("UTF-16", "UTF-16") if wide else ("Latin-1 or Windows-1252", "WINDOWS-1252")
    refuse(
        path,
        f"the file is not UTF-8; it looks like {form}",
        f"Save it as UTF-8, in a spreadsheet as “CSV UTF-8”, or: iconv -f {given} -t UTF-8 {path.name} > new.csv.",
    )

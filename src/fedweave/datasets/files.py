"""Files of tables: CSV (UTF-8, comma, header), whose cells are text, and Parquet."""

import csv
from collections import Counter
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pyarrow.csv

from fedweave.core.decompression import TABLE_FAULTS, DecompressionBomb, read_parquet
from fedweave.datasets.check import refuse
from fedweave.datasets.table import Table, refuse_name

CSV_FAULTS = (csv.Error,)
BLOCK = 1 << 26  # bytes; no row is longer
_QUOTE = b'"'


def read_csv(path: Path) -> pa.Table:
    """All cells as strings, null where empty; a line without any is a row of nulls.

    Raises:
        DataError: cells are split by something else, or a quote is never closed. One of `decompression.TABLE_FAULTS` or
            `CSV_FAULTS`: the file is malformed.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        header = next(csv.reader(file), [])
    for mark, name in ((";", "semicolons"), ("\t", "tabs")):
        if len(header) == 1 and mark in header[0]:
            refuse(
                path,
                f"cells are split by {name}; the columns are {', '.join(header[0].split(mark))}",
                "Split them by commas, and write numbers with decimal points.",
            )
    _check_quotes(path)
    options = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(header, pa.string()), strings_can_be_null=True, null_values=[""]
    )
    # Without threads the parser knows the number of a row that it complains about.
    return pa.csv.read_csv(
        path,
        read_options=pa.csv.ReadOptions(use_threads=False, block_size=BLOCK),
        parse_options=pa.csv.ParseOptions(ignore_empty_lines=False, newlines_in_values=True),
        convert_options=options,
    )


def _check_quotes(path: Path) -> None:
    """Refuse a quote that is never closed: all rows after it would be one cell."""
    with path.open("rb") as file:
        quotes = sum(block.count(_QUOTE) for block in iter(lambda: file.read(BLOCK), b""))
    if quotes % 2 == 0:
        return
    begin = 1  # of the row that is being read, as a spreadsheet counts
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            for _ in csv.reader(file, strict=True):
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
    return Table(path, data, 2 if path.suffix == ".csv" else 1)


def _parquet(path: Path) -> pa.Table:
    try:
        return read_parquet(path, path.stat().st_size)
    except DecompressionBomb as error:
        refuse(path, str(error), "Write it with another compression, or as CSV, if that is meant.")


def _refuse_encoding(path: Path, error: Exception) -> NoReturn:
    start = path.read_bytes()[:4]
    wide = start[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in start
    form, given = ("UTF-16", "UTF-16") if wide else ("Latin-1 or Windows-1252", "WINDOWS-1252")
    refuse(
        path,
        f"the file is not UTF-8; it looks like {form}",
        f"Save it as UTF-8, in a spreadsheet as “CSV UTF-8”, or: iconv -f {given} -t UTF-8 {path.name} > new.csv.",
    )

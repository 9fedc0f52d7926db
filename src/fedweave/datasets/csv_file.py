"""A CSV file (UTF-8, comma, header) as a table of text."""

import csv
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from fedweave.datasets.check import refuse

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

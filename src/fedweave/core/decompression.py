"""Small files that would fill the memory, what reading a damaged archive raises, and text that other programs write, as
views of one long string.
"""

import lzma
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_PLAIN = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type without views, also of the words that a dictionary holds."""
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, plain_type(kind.value_type), kind.ordered)
    return _PLAIN.get(kind, kind)


def plain(table: pa.Table) -> pa.Table:
    """The table with every column of its `plain_type`; dictionaries of views become strings."""
    for at, field in enumerate(table.schema):
        kind, column = plain_type(field.type), table.column(at)
        if kind == field.type:
            continue
        if pa.types.is_dictionary(kind):  # Arrow casts no dictionary of views
            combined = column.unify_dictionaries().combine_chunks()
            column, kind = combined.dictionary.cast(kind.value_type).take(combined.indices), kind.value_type
        table = table.set_column(at, field.name, column.cast(kind))
    return table


MOST, RATIO = 1 << 31, 2000  # bytes of a table in a file that is smaller by more than this factor
MOST_UNPACKED, RATIO_UNPACKED = 1 << 30, 200  # of an archive
MOST_IN_LISTS = 1 << 26  # bytes of lists in a table, in columns that are never read, in a file smaller by that ratio
LONG = 4096  # bytes of a word that a table should not hold many times
# Encodings of text that cannot be read as a dictionary; in the first a word is what differs from the one before it.
PREFIXED, NO_DICTIONARY = "DELTA_BYTE_ARRAY", ("DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY")
AT_ONCE = 1 << 16  # rows
ARCHIVE_FAULTS = (
    *(OSError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, SyntaxError, NotImplementedError),
    *(MemoryError, RuntimeError, TypeError, KeyError, ValueError),
)
TABLE_FAULTS = (pa.ArrowException, OSError, UnicodeError, MemoryError)


class DecompressionBomb(Exception):
    """Says why a file would fill the memory."""


class Nested(Exception):
    """A column of a Parquet file holds text in lists, or structures; their size is unknown until they are read.

    column: its name. kind: what it holds.
    """

    def __init__(self, column: str, kind: str) -> None:
        super().__init__(f"column {column!r} holds {kind}")


def read_parquet(source: object, size: int) -> pa.Table:
    """The table in a Parquet file of `size` bytes, in one piece; see `parquet_groups`."""
    return pa.concat_tables(parquet_groups(source, size))


def parquet_groups(source: object, size: int) -> Iterator[pa.Table]:
    """The row groups of a Parquet file of `size` bytes, read in this thread only: another thread that still holds
    `source` when Python ends would abort the process. Text becomes plain strings, also from columns of `views`. A file
    without rows gives one table without rows.

    A word that is stored once but repeated a million times is counted before it is expanded.

    Raises:
        DecompressionBomb: see `fault`.
        Nested: a column holds text in lists, or structures.
        One of `TABLE_FAULTS`: the file is damaged.
    """
    held = pq.ParquetFile(source, pre_buffer=False)
    schema = held.schema_arrow
    if why := fault(held.metadata, size):
        raise DecompressionBomb(why)
    for column in schema:
        if pa.types.is_nested(column.type) and any(word in str(column.type) for word in ("string", "binary", "struct")):
            raise Nested(column.name, str(column.type))
    plain = _encoded(held.metadata, NO_DICTIONARY)
    words = [column.name for column in schema if _is_text(column.type) and column.name not in plain]
    _check_prefixed(held, sorted(_encoded(held.metadata, (PREFIXED,))), size)
    whole = pa.schema([column.with_type(plain_type(column.type)) for column in schema], schema.metadata)
    file, much = pq.ParquetFile(source, pre_buffer=False, read_dictionary=words), 0
    if not file.num_row_groups:
        yield whole.empty_table()
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, use_threads=False)
        table.validate(full=True)
        much += sum(map(_written_out, table.columns))
        if much > MOST and much > RATIO * size:
            raise DecompressionBomb(f"its {size:,} bytes hold {much:,} bytes of text")
        yield table.cast(whole)


def fault(held: pq.FileMetaData, size: int) -> str:
    """Why a Parquet file of `size` bytes would fill the memory, by its metadata `held`; "" if it would not.

    Ledgers of honest runs shrink by a factor of several hundred.
    """
    groups = [held.row_group(at) for at in range(held.num_row_groups)]
    unpacked = sum(group.total_byte_size for group in groups)
    much = max(8 * held.num_rows * held.num_columns, unpacked)
    if much > MOST and much > RATIO * size:
        return f"its {size:,} bytes hold {held.num_rows:,} rows"
    listed = [at for at in range(held.num_columns) if held.schema.column(at).max_repetition_level > 0]
    values = sum(group.column(at).num_values for group in groups for at in listed)
    if 8 * values > MOST_IN_LISTS and 8 * values > RATIO_UNPACKED * size:
        return f"its {size:,} bytes hold {held.num_rows:,} rows with {values:,} values in lists"
    return ""


def check_archive(source: Path | BinaryIO, size: int) -> None:
    """Raise DecompressionBomb if a zip archive of `size` bytes would fill the memory."""
    if not zipfile.is_zipfile(source):
        return
    with zipfile.ZipFile(source) as held:
        unpacked = sum(entry.file_size for entry in held.infolist())
    if unpacked > most_of(size):
        raise DecompressionBomb(f"its {size:,} bytes would unpack to {unpacked:,}")


def most_of(size: int) -> int:
    """How many bytes a compressed file of `size` may unpack to."""
    return max(MOST_UNPACKED, RATIO_UNPACKED * size)


def _encoded(held: pq.FileMetaData, encodings: tuple[str, ...]) -> set[str]:
    """The columns of a Parquet file that use one of the encodings."""
    groups = (held.row_group(at) for at in range(held.num_row_groups))
    chunks = (group.column(at) for group in groups for at in range(group.num_columns))
    return {chunk.path_in_schema for chunk in chunks if set(encodings) & set(chunk.encodings)}


def _check_prefixed(held: pq.ParquetFile, columns: list[str], size: int) -> None:
    """Raise DecompressionBomb if the words of `columns` would fill the memory.

    Each word is stored as its difference from the one before, so no word is longer than the stored bytes. They are
    counted a few rows at a time."""
    much = 0
    for at in range(held.num_row_groups) if columns else ():
        rows = max(1, min(AT_ONCE, MOST // max(1, held.metadata.row_group(at).total_byte_size)))
        for batch in held.iter_batches(rows, [at], columns, use_threads=False):
            much += batch.nbytes
            if much > MOST and much > RATIO * size:
                raise DecompressionBomb(f"its {size:,} bytes hold more than {MOST:,} bytes of text")


def _is_text(kind: pa.DataType) -> bool:
    return any(
        is_kind(kind)
        for is_kind in (
            *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
            *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
        )
    )


def _written_out(column: pa.ChunkedArray) -> int:
    """Bytes of the words of a column if each row stored its word; 0 where all words are short."""
    if not pa.types.is_dictionary(column.type) or not _is_text(column.type.value_type):
        return 0
    lengths = [pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in column.chunks]
    longest = max((pc.max(each).as_py() or 0 for each in lengths), default=0)
    return sum(pc.sum(each).as_py() or 0 for each in lengths) if longest > LONG else 0

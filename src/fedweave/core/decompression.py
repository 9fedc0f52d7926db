"""Compressed files that would fill the memory: Parquet tables and zip archives are measured before they are expanded.

Also the exceptions that reading a damaged archive or table raises.
"""

import lzma
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fedweave.core.arrow_types import plain, plain_type


class Limit(NamedTuple):
    """How much memory a Parquet file may take: `floor` bytes, or `ratio` times its size if that is more.

    number, word: bytes that reading takes for a cell of either. long: words with more bytes than this are counted in
    addition, once for each row.
    """

    floor: int
    ratio: int
    number: int
    word: int
    long: int

    def allows(self, needed: int, size: int) -> bool:
        """Whether files of `size` bytes may take `needed` bytes of memory."""
        return needed <= max(self.floor, self.ratio * size)


# Ledgers of honest runs shrink by a factor of several hundred, so only repeated long words tell a bomb from them.
OF_RUNS = Limit(1 << 31, 2000, 8, 8, 4096)
# Bytes for each cell at the peak of reading a user's folder: it becomes float64 beside float32, or text beside its
# position. A cell with information takes more than a twentieth of a byte of its file.
OF_TABLES = Limit(1 << 30, 400, 24, 48, 0)
MAX_UNPACKED = 1 << 30  # bytes of an archive, or if that is more:
MAX_RATIO = 200  # times its size
MAX_IN_LISTS = 1 << 26  # bytes of lists in a table, if they are also `MAX_RATIO` times the size of the file
PREFIXED = "DELTA_BYTE_ARRAY"  # an encoding of text that stores how a word differs from the one before it
NO_DICTIONARY = (PREFIXED, "DELTA_LENGTH_BYTE_ARRAY")  # encodings of text that cannot be read as a dictionary
MAX_BATCH = 1 << 16  # rows read at once
ARCHIVE_FAULTS = (
    *(OSError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, SyntaxError, NotImplementedError),
    *(MemoryError, RuntimeError, TypeError, KeyError, ValueError),
)
TABLE_FAULTS = (pa.ArrowException, OSError, UnicodeError, MemoryError)


class DecompressionBomb(Exception):
    """A file would fill the memory; its text states why."""


class Nested(Exception):
    """A column of a Parquet file holds text in lists, or structures; their size is unknown until they are read.

    column: its name. kind: what it holds.
    """

    def __init__(self, column: str, kind: str) -> None:
        super().__init__(f"column {column!r} holds {kind}")


def read_parquet(source: object, size: int) -> pa.Table:
    """A user's table in a Parquet file of `size` bytes, in one piece; see `parquet_groups`."""
    return plain(pa.concat_tables(parquet_groups(source, size, OF_TABLES)))


def parquet_cost(path: Path) -> int:
    """Bytes of memory that reading a user's table takes, by its file's metadata.

    Raises:
        One of `TABLE_FAULTS`: the file is damaged.
    """
    return _cost(pq.ParquetFile(path).metadata, OF_TABLES)


def parquet_groups(source: object, size: int, limit: Limit = OF_RUNS) -> Iterator[pa.Table]:
    """The row groups of a Parquet file of `size` bytes; of a file without rows, one empty table.

    Text becomes plain strings, also from columns of views. A word that is stored once but repeated a million times is
    counted before it is expanded.

    Raises:
        DecompressionBomb: it would take more memory than `limit` allows.
        Nested: a column holds text in lists, or structures.
        One of `TABLE_FAULTS`: the file is damaged.
    """
    # One thread reads: another one that still has `source` open when Python ends would abort the process.
    first = pq.ParquetFile(source, pre_buffer=False)
    metadata = first.metadata
    schema = first.schema_arrow
    _check_metadata(metadata, size, limit)
    for column in schema:
        if pa.types.is_nested(column.type) and any(word in str(column.type) for word in ("string", "binary", "struct")):
            raise Nested(column.name, str(column.type))
    # Each word once, as a dictionary, if its encoding allows it; words stored by their differences are counted here.
    no_dictionary = _columns_with(metadata, NO_DICTIONARY)
    words = [column.name for column in schema if _is_text(column.type) and column.name not in no_dictionary]
    _check_prefixed(first, sorted(_columns_with(metadata, (PREFIXED,))), size, limit)

    result = pa.schema([column.with_type(plain_type(column.type)) for column in schema], schema.metadata)
    file = pq.ParquetFile(source, pre_buffer=False, read_dictionary=words)
    needed = _cost(metadata, limit)
    if not file.num_row_groups:
        yield result.empty_table()
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, use_threads=False)
        table.validate(full=True)
        needed += sum(_text_size(column, limit.long) for column in table.columns)
        if not limit.allows(needed, size):
            raise DecompressionBomb(f"its {size:,} bytes would take {needed:,} bytes of memory, most of it for text")
        yield table.cast(result)


def _check_metadata(metadata: pq.FileMetaData, size: int, limit: Limit) -> None:
    """Raise DecompressionBomb if a Parquet file of `size` bytes would fill the memory, by its metadata."""
    needed = _cost(metadata, limit)
    if not limit.allows(needed, size):
        raise DecompressionBomb(
            f"its {size:,} bytes hold {metadata.num_rows:,} rows of {metadata.num_columns:,} columns, which would take "
            f"{needed:,} bytes of memory"
        )
    values = 0
    for at in range(metadata.num_columns):
        if metadata.schema.column(at).max_repetition_level > 0:  # a column of lists
            values += sum(metadata.row_group(group).column(at).num_values for group in range(metadata.num_row_groups))
    if 8 * values > MAX_IN_LISTS and 8 * values > MAX_RATIO * size:
        raise DecompressionBomb(f"its {size:,} bytes hold {metadata.num_rows:,} rows with {values:,} values in lists")


def _cost(metadata: pq.FileMetaData, limit: Limit) -> int:
    """Bytes of memory that reading a Parquet file takes by its metadata, without words that rows share."""
    kinds = [metadata.schema.column(at).physical_type for at in range(metadata.num_columns)]
    words = kinds.count("BYTE_ARRAY")
    unpacked: int = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    cells: int = metadata.num_rows * (limit.word * words + limit.number * (len(kinds) - words))
    return max(cells, unpacked)


def check_archive(source: Path | BinaryIO, size: int) -> None:
    """Raise DecompressionBomb if a zip archive of `size` bytes would fill the memory."""
    if not zipfile.is_zipfile(source):
        return
    with zipfile.ZipFile(source) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > max_unpacked(size):
        raise DecompressionBomb(f"its {size:,} bytes would unpack to {unpacked:,}")


def max_unpacked(size: int) -> int:
    """How many bytes a compressed file of `size` bytes may unpack to."""
    return max(MAX_UNPACKED, MAX_RATIO * size)


def _columns_with(metadata: pq.FileMetaData, encodings: tuple[str, ...]) -> set[str]:
    """The columns of a Parquet file that use one of the encodings."""
    columns = set()
    for group in range(metadata.num_row_groups):
        for at in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(at)
            if not set(encodings).isdisjoint(chunk.encodings):
                columns.add(chunk.path_in_schema)
    return columns


def _check_prefixed(file: pq.ParquetFile, columns: list[str], size: int, limit: Limit) -> None:
    """Raise DecompressionBomb if the words of `columns` would fill the memory.

    Each word is stored as its difference from the one before, so no word is longer than the stored bytes. They are
    counted a few rows at a time.
    """
    if not columns:
        return
    needed = 0
    for group in range(file.num_row_groups):
        rows = max(1, min(MAX_BATCH, OF_RUNS.floor // max(1, file.metadata.row_group(group).total_byte_size)))
        for batch in file.iter_batches(rows, [group], columns, use_threads=False):
            needed += batch.nbytes
            if not limit.allows(needed, size):
                raise DecompressionBomb(f"its {size:,} bytes hold more than {limit.floor:,} bytes of text")


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())


def _text_size(column: pa.ChunkedArray, long: int) -> int:
    """Bytes of the words of a column if each row stored its word; 0 where none is longer than `long` bytes."""
    if not pa.types.is_dictionary(column.type) or not _is_text(column.type.value_type):
        return 0
    lengths = [pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in column.chunks]
    longest = max((pc.max(each).as_py() or 0 for each in lengths), default=0)
    return sum(pc.sum(each).as_py() or 0 for each in lengths) if longest > long else 0

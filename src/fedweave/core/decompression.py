"""Compressed files that would fill the memory: Parquet tables and zip archives are measured before they are expanded.

Also the exceptions that reading a damaged archive or table raises.
"""

import lzma
import zipfile
import zlib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fedweave.core.arrow_types import plain_type


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
    metadata, schema = first.metadata, first.schema_arrow
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]

    # 1. What the metadata states: cells, and values in lists.
    needed = parquet_cost(metadata, limit)
    if not limit.allows(needed, size):
        raise DecompressionBomb(
            f"its {size:,} bytes hold {metadata.num_rows:,} rows of {metadata.num_columns:,} columns, which would take "
            f"{needed:,} bytes of memory"
        )
    lists = [at for at in range(metadata.num_columns) if metadata.schema.column(at).max_repetition_level > 0]
    values = sum(group.column(at).num_values for group, at in product(groups, lists))
    if 8 * values > max(MAX_IN_LISTS, MAX_RATIO * size):
        raise DecompressionBomb(f"its {size:,} bytes hold {metadata.num_rows:,} rows with {values:,} values in lists")
    for column in schema:
        if pa.types.is_nested(column.type) and any(word in str(column.type) for word in ("string", "binary", "struct")):
            raise Nested(column.name, str(column.type))

    # 2. Words that are stored as their difference from the one before, so that none is longer than the stored bytes.
    # They are counted a few rows at a time.
    no_dictionary, prefixed = set[str](), set[str]()
    for group, at in product(groups, range(metadata.num_columns)):
        chunk = group.column(at)
        if not set(NO_DICTIONARY).isdisjoint(chunk.encodings):
            no_dictionary.add(chunk.path_in_schema)
        if PREFIXED in chunk.encodings:
            prefixed.add(chunk.path_in_schema)
    text = 0
    for number, group in enumerate(groups if prefixed else []):
        rows = max(1, min(MAX_BATCH, OF_RUNS.floor // max(1, group.total_byte_size)))
        for batch in first.iter_batches(rows, [number], sorted(prefixed), use_threads=False):
            text += batch.nbytes
            if not limit.allows(text, size):
                raise DecompressionBomb(f"its {size:,} bytes hold more than {limit.floor:,} bytes of text")

    # 3. Other words, each once, as a dictionary.
    words = [column.name for column in schema if _is_text(column.type) and column.name not in no_dictionary]
    result = pa.schema([column.with_type(plain_type(column.type)) for column in schema], schema.metadata)
    file = pq.ParquetFile(source, pre_buffer=False, read_dictionary=words)
    if not groups:
        yield result.empty_table()
    for number in range(len(groups)):
        table = file.read_row_group(number, use_threads=False)
        table.validate(full=True)
        for column in table.columns:
            if not pa.types.is_dictionary(column.type) or not _is_text(column.type.value_type):
                continue
            # the words of the column if each row stored its word, where one is long
            lengths = [pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in column.chunks]
            longest = max((pc.max(each).as_py() or 0 for each in lengths), default=0)
            if longest > limit.long:
                needed += sum(pc.sum(each).as_py() or 0 for each in lengths)
        if not limit.allows(needed, size):
            raise DecompressionBomb(f"its {size:,} bytes would take {needed:,} bytes of memory, most of it for text")
        yield table.cast(result)


def parquet_cost(metadata: pq.FileMetaData, limit: Limit = OF_TABLES) -> int:
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


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())

"""Small files that would fill the memory, what reading a damaged archive raises, and columns of types that other
programs write: text as views of one long string, extension types.
"""

import json
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
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
    """The table with every column of its `plain_type`; dictionaries of views become strings, and extension types what
    `_without_extension` says."""
    for at, field in enumerate(table.schema):
        if (extension := _extension(field)) is not None:
            column = _without_extension(table.column(at), *extension)
            table = table.set_column(at, field.name, column)
            continue
        kind, column = plain_type(field.type), table.column(at)
        if kind == field.type:
            continue
        if pa.types.is_dictionary(kind):  # Arrow casts no dictionary of views
            combined = column.unify_dictionaries().combine_chunks()
            column, kind = combined.dictionary.cast(kind.value_type).take(combined.indices), kind.value_type
        table = table.set_column(at, field.name, column.cast(kind))
    return table


_NAME, _ABOUT = b"ARROW:extension:name", b"ARROW:extension:metadata"
_STORED = ("arrow.json", "arrow.fixed_shape_tensor", "arrow.bool8")  # which mean what their storage says
# NumPy's units of pandas' periods, whose numbers count from 1970; in quarters of a year and in weeks from Monday below.
_PERIODS = {"M": "M", "D": "D", "h": "h", "min": "m", "s": "s", "ms": "ms", "us": "us", "ns": "ns"}
_PERIODS |= {"Y-DEC": "Y", "A-DEC": "Y", "H": "h", "T": "m", "S": "s", "L": "ms", "U": "us", "N": "ns"}
_MONTHS_OF_QUARTER, _DAYS_OF_WEEK, _FIRST_WEEK = 3, 7, -10  # week 1 begins on day -3, the Monday before 1970


def _extension(field: pa.Field) -> tuple[str, bytes] | None:
    """The name and the description of a column's extension type, whether or not a program that knows it is imported;
    None for other types, and for those that this module has made opaque."""
    if isinstance(field.type, pa.OpaqueType):
        return None
    if isinstance(field.type, pa.BaseExtensionType):
        of_program = isinstance(field.type, pa.ExtensionType)  # Arrow's types describe themselves otherwise
        return field.type.extension_name, field.type.__arrow_ext_serialize__() if of_program else b""
    about = field.metadata or {}
    return (about[_NAME].decode(), about.get(_ABOUT, b"")) if _NAME in about else None


def _without_extension(column: pa.ChunkedArray, name: str, about: bytes) -> pa.ChunkedArray:
    """The column of an extension type as what it means: pandas' periods as times at which they begin. One whose meaning
    is not known here becomes opaque: its storage alone would say something else."""
    extension = isinstance(column.type, pa.BaseExtensionType)
    storage = pa.chunked_array(
        [chunk.storage if extension else chunk for chunk in column.chunks],
        column.type.storage_type if extension else column.type,
    )
    if name in _STORED:
        return storage.cast(pa.bool_()) if name == "arrow.bool8" else storage
    freq = json.loads(about or b"{}").get("freq") if name == "pandas.period" else None
    if freq in _PERIODS or freq in ("Q-DEC", "W-SUN"):
        cells = storage.combine_chunks()
        numbers = cells.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        if freq == "Q-DEC":
            begin = (numbers * _MONTHS_OF_QUARTER).astype("datetime64[M]")
        elif freq == "W-SUN":
            begin = (numbers * _DAYS_OF_WEEK + _FIRST_WEEK).astype("datetime64[D]")
        else:
            begin = numbers.astype(f"datetime64[{_PERIODS[freq]}]")
        unit = "ns" if freq in ("ns", "N") else "us"
        times = pa.array(begin.astype(f"datetime64[{unit}]"), pa.timestamp(unit))
        return pa.chunked_array([pc.if_else(cells.is_valid(), times, None)])
    opaque = pa.opaque(storage.type, name, "")
    return pa.chunked_array([pa.ExtensionArray.from_storage(opaque, chunk) for chunk in storage.chunks], opaque)


class Limit(NamedTuple):
    """How much memory a Parquet file may take: `floor` bytes, or `ratio` times its size if that is more. number, word:
    bytes that reading takes for a cell of either; a word's letters count beside it, if it is longer than `long`."""

    floor: int
    ratio: int
    number: int
    word: int
    long: int

    def allows(self, needed: int, size: int) -> bool:
        """Whether files of `size` bytes may take `needed` bytes of memory."""
        return needed <= max(self.floor, self.ratio * size)


# Ledgers of honest runs shrink by a factor of several hundred. Their long words alone may be repeated to fill memory.
OF_RUNS = Limit(1 << 31, 2000, 8, 8, 4096)
# Of a user's tables, whose cells become float64 beside float32, or text beside their places: measured at the peak of
# reading a folder. A cell that says something takes more than a twentieth of a byte of its file.
OF_TABLES = Limit(1 << 30, 400, 24, 48, 0)
MOST_UNPACKED, RATIO_UNPACKED = 1 << 30, 200  # of an archive
MOST_IN_LISTS = 1 << 26  # bytes of lists in a table, in columns that are never read, in a file smaller by that ratio
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
    """A user's table in a Parquet file of `size` bytes, in one piece; see `parquet_groups`."""
    return plain(pa.concat_tables(parquet_groups(source, size, OF_TABLES)))


def parquet_cost(path: Path) -> int:
    """Bytes of memory that reading a user's table takes, by its file's metadata.

    Raises:
        One of `TABLE_FAULTS`: the file is damaged.
    """
    return _cost(pq.ParquetFile(path).metadata, OF_TABLES)


def parquet_groups(source: object, size: int, limit: Limit = OF_RUNS) -> Iterator[pa.Table]:
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
    if why := fault(held.metadata, size, limit):
        raise DecompressionBomb(why)
    for column in schema:
        if pa.types.is_nested(column.type) and any(word in str(column.type) for word in ("string", "binary", "struct")):
            raise Nested(column.name, str(column.type))
    plain = _encoded(held.metadata, NO_DICTIONARY)
    words = [column.name for column in schema if _is_text(column.type) and column.name not in plain]
    _check_prefixed(held, sorted(_encoded(held.metadata, (PREFIXED,))), size, limit)
    whole = pa.schema([column.with_type(plain_type(column.type)) for column in schema], schema.metadata)
    file, much = pq.ParquetFile(source, pre_buffer=False, read_dictionary=words), _cost(held.metadata, limit)
    if not file.num_row_groups:
        yield whole.empty_table()
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, use_threads=False)
        table.validate(full=True)
        much += sum(_written_out(column, limit.long) for column in table.columns)
        if not limit.allows(much, size):
            raise DecompressionBomb(f"its {size:,} bytes would take {much:,} bytes of memory, most of it for text")
        yield table.cast(whole)


def fault(held: pq.FileMetaData, size: int, limit: Limit) -> str:
    """Why a Parquet file of `size` bytes would fill the memory, by its metadata `held`; "" if it would not."""
    much = _cost(held, limit)
    if not limit.allows(much, size):
        table = f"{held.num_rows:,} rows of {held.num_columns:,} columns"
        return f"its {size:,} bytes hold {table}, which would take {much:,} bytes of memory"
    groups = [held.row_group(at) for at in range(held.num_row_groups)]
    listed = [at for at in range(held.num_columns) if held.schema.column(at).max_repetition_level > 0]
    values = sum(group.column(at).num_values for group in groups for at in listed)
    if 8 * values > MOST_IN_LISTS and 8 * values > RATIO_UNPACKED * size:
        return f"its {size:,} bytes hold {held.num_rows:,} rows with {values:,} values in lists"
    return ""


def _cost(held: pq.FileMetaData, limit: Limit) -> int:
    """Bytes of memory that reading a Parquet file takes by its metadata, without words that rows share."""
    kinds = [held.schema.column(at).physical_type for at in range(held.num_columns)]
    words = sum(kind == "BYTE_ARRAY" for kind in kinds)
    unpacked: int = sum(held.row_group(at).total_byte_size for at in range(held.num_row_groups))
    cells: int = held.num_rows * (limit.word * words + limit.number * (len(kinds) - words))
    return max(cells, unpacked)


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


def _check_prefixed(held: pq.ParquetFile, columns: list[str], size: int, limit: Limit) -> None:
    """Raise DecompressionBomb if the words of `columns` would fill the memory.

    Each word is stored as its difference from the one before, so no word is longer than the stored bytes. They are
    counted a few rows at a time."""
    much = 0
    for at in range(held.num_row_groups) if columns else ():
        rows = max(1, min(AT_ONCE, OF_RUNS.floor // max(1, held.metadata.row_group(at).total_byte_size)))
        for batch in held.iter_batches(rows, [at], columns, use_threads=False):
            much += batch.nbytes
            if not limit.allows(much, size):
                raise DecompressionBomb(f"its {size:,} bytes hold more than {limit.floor:,} bytes of text")


def _is_text(kind: pa.DataType) -> bool:
    return any(
        is_kind(kind)
        for is_kind in (
            *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
            *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
        )
    )


def _written_out(column: pa.ChunkedArray, long: int) -> int:
    """Bytes of the words of a column if each row stored its word; 0 where none is longer than `long` bytes."""
    if not pa.types.is_dictionary(column.type) or not _is_text(column.type.value_type):
        return 0
    lengths = [pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in column.chunks]
    longest = max((pc.max(each).as_py() or 0 for each in lengths), default=0)
    return sum(pc.sum(each).as_py() or 0 for each in lengths) if longest > long else 0

"""Arrow columns of types that other programs write, as plain ones: text as views of one string, extension types."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_PLAIN = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type without views, also of the words that a dictionary holds."""
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, plain_type(kind.value_type), kind.ordered)
    return _PLAIN.get(kind, kind)


def plain(table: pa.Table) -> pa.Table:
    """The table with every column of its `plain_type`.

    Dictionaries of views become strings. Pandas' periods become the times at which they begin, and other extension
    types see `_without_extension`.
    """
    for at, field in enumerate(table.schema):
        column = table.column(at)
        kind = plain_type(field.type)
        # 1. The name and the description of an extension type, also if no library that defines it is imported; none of
        # those that this module has made opaque.
        name, description, metadata = "", b"", field.metadata or {}
        if isinstance(field.type, pa.BaseExtensionType) and not isinstance(field.type, pa.OpaqueType):
            name = field.type.extension_name
            # Arrow's own extension types have no description of this form
            description = field.type.__arrow_ext_serialize__() if isinstance(field.type, pa.ExtensionType) else b""
        elif _NAME in metadata and not isinstance(field.type, pa.OpaqueType):
            name, description = metadata[_NAME].decode(), metadata.get(_DESCRIPTION, b"")
        # 2. The column without it, or without views.
        if name:
            table = table.set_column(at, field.name, _without_extension(column, name, description))
        elif kind == field.type:
            continue
        elif pa.types.is_dictionary(kind):  # Arrow cannot cast a dictionary of views
            combined = column.unify_dictionaries().combine_chunks()
            words = combined.dictionary.cast(kind.value_type)
            table = table.set_column(at, field.name, words.take(combined.indices))
        else:
            table = table.set_column(at, field.name, column.cast(kind))
    return table


_NAME, _DESCRIPTION = b"ARROW:extension:name", b"ARROW:extension:metadata"
_STORED = ("arrow.json", "arrow.fixed_shape_tensor", "arrow.bool8")  # which mean what their storage says
# NumPy's units of pandas' periods, whose numbers count from 1970; in quarters of a year and in weeks from Monday below.
_PERIODS = {"M": "M", "D": "D", "h": "h", "min": "m", "s": "s", "ms": "ms", "us": "us", "ns": "ns"}
_PERIODS |= {"Y-DEC": "Y", "A-DEC": "Y", "H": "h", "T": "m", "S": "s", "L": "ms", "U": "us", "N": "ns"}
_MONTHS_OF_QUARTER, _DAYS_OF_WEEK, _FIRST_WEEK = 3, 7, -10  # week 1 begins on day -3, the Monday before 1970


def _without_extension(column: pa.ChunkedArray, name: str, description: bytes) -> pa.ChunkedArray:
    """The column of an extension type as what it means; one of an unknown type becomes opaque."""
    storage = column
    if isinstance(column.type, pa.BaseExtensionType):
        storage = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    if name in _STORED:
        return storage.cast(pa.bool_()) if name == "arrow.bool8" else storage
    freq = json.loads(description or b"{}").get("freq") if name == "pandas.period" else None
    if freq not in (*_PERIODS, "Q-DEC", "W-SUN"):
        # the storage of a type that is unknown here, read as plain numbers or text, would mean something else
        opaque = pa.opaque(storage.type, name, "")
        return pa.chunked_array([pa.ExtensionArray.from_storage(opaque, chunk) for chunk in storage.chunks], opaque)
    # the times at which pandas' periods begin, from their numbers
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

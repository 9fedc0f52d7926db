"""Text as Arrow's usual strings: other programs hand it over, and write it, as views of one long string."""

import pyarrow as pa

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
            own = column.unify_dictionaries().combine_chunks()
            column, kind = own.dictionary.cast(kind.value_type).take(own.indices), kind.value_type
        table = table.set_column(at, field.name, column.cast(kind))
    return table

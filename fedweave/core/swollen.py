"""Small files that would fill the memory."""

from typing import Any

MOST, RATIO = 1 << 31, 2000  # bytes of a table in a file that is smaller by more than this factor


def swollen(held: Any, size: int) -> str:
    """Why a Parquet file of `size` bytes, of which `held` are the metadata, would fill the memory; "" if it would not.

    Ledgers of honest runs shrink by a factor of several hundred.
    """
    much = 8 * held.num_rows * held.num_columns
    return f"its {size:,} bytes hold {held.num_rows:,} rows" if much > MOST and much > RATIO * size else ""

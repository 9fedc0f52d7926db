"""Columns that number the rows of a table. They have no information about the examples."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.graph_arrays import Matrix, dense
from fedweave.datasets.cells import NUMERIC
from fedweave.datasets.table import WHOLE, Table

PANDAS = "__index_level_"  # so begin the names of row indexes that pandas writes to Parquet
UNNAMED = r"Unnamed: 0(\.\d+)*"  # what it calls them that it reads from CSV, where they come first and have no name
MIN_ROWS = 20  # rows: of fewer, numbers may well be all different and close together
MIN_SHARE = 0.9  # the least share of steps of one, where several tables stand one below the other
MANY = 5_000  # rows, which tell numbers of any size from row numbers
HEAD = 200  # rows that are enough to distinguish most columns from row numbers
WHOLE_STEPS = 0.2  # how far from whole numbers of steps gaps may be


def is_index(table: Table, column: str) -> bool:
    """Whether a column without a name of its own is a row index: whole numbers that number the rows or are all
    different, or text that is; one that pandas names so in Parquet always is."""
    if column.startswith(PANDAS):
        return True
    if not re.fullmatch(UNNAMED, column) and (column.strip() or column != table.columns[0]):
        return False
    try:
        cells = table.data[column].combine_chunks().cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    if len(cells) == 0 or cells.null_count:
        return False
    different = len(cells.unique()) == len(cells)
    if pc.all(pc.match_substring_regex(cells, WHOLE)).as_py():
        return different or numbers_rows(np.array(cells.to_pylist(), np.float64))
    return different and not pc.any(pc.match_substring_regex(cells, NUMERIC)).as_py()


def numbers_rows(values: np.ndarray) -> bool:
    """Whether values [n] number the rows, perhaps scaled: all different and without large gaps in any order, in steps
    of one except for a few, or whole numbers that only rise."""
    if len(values) < MIN_ROWS:
        return False
    # If the first rows are ruled out, all are.
    for some in (values[:MANY], values) if len(values) > MANY else (values,):
        different_values = np.unique(some).astype(np.float64)
        if len(different_values) == 1:
            continue
        gaps = np.diff(different_values)
        step, blur = gaps.min(), 8 * float(np.finfo(np.float32).eps) * np.abs(different_values).max()
        if blur > WHOLE_STEPS * step:
            return False
    if len(different_values) == 1 or (np.abs(gaps / step - np.round(gaps / step)) > WHOLE_STEPS).any():
        return False
    different = len(different_values) == len(values)
    steps = np.diff(values.astype(np.float64)) / step
    rising = (steps > 0).all() and not (different_values % 1).any()
    dense = (different_values[-1] - different_values[0]) / step < 2 * len(values)
    return bool(different and (dense or rising)) or float((np.abs(steps - 1) < WHOLE_STEPS).mean()) >= MIN_SHARE


def row_numbers(x: Matrix) -> np.ndarray:
    """int64, the columns of features x [n, d] that number the rows."""
    if x.shape[0] < MIN_ROWS:
        return np.zeros(0, np.int64)
    changing = np.flatnonzero((np.diff(dense(x[:HEAD]), axis=0) != 0).mean(0) >= MIN_SHARE)
    return np.array([at for at in changing if numbers_rows(dense(x[:, [at]]).ravel())], np.int64)

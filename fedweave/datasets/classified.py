"""What all data sets of a user's tables have in common: classes, and columns under names of their own."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.datasets.check import first, refuse, refuse_rows
from fedweave.datasets.features import check_normalise
from fedweave.datasets.naming import check_naming, named
from fedweave.datasets.numerals import among, labels_in, refuse_numerals, refuse_stray
from fedweave.datasets.table import WHOLE, Table, find, read
from fedweave.errors import ConfigError


@dataclass(frozen=True)
class Classified:
    """What all data sets of a user's tables have in common.

    normalise: how features are scaled: none, row, binary, scale, standard or minmax (docs/data-format.md).
    classes:   number of classes when labels are numbers; None is the largest label + 1.
    labels:    class names in order when labels are names; None is those present, sorted. Sites that train together must
               all give the same `classes` or `labels`, since one site may lack a class.
    sens_feature: allow a feature column that says the same as the column sens.
    columns:   what columns with names of their own mean, such as {label = "diagnosis", sens = "sex"}.
    ignore:    columns that do not count.
    """

    normalise: str = "none"
    classes: int | None = None
    labels: tuple[str, ...] | None = None
    sens_feature: bool = False
    columns: dict[str, str] | None = None
    ignore: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_normalise(self.normalise)
        check_naming(self.columns or {}, self.ignore or ())
        if self.classes is not None and self.labels is not None:
            raise ConfigError("folder: give classes (labels are numbers) or labels (labels are names), not both.")
        if self.classes is not None and self.classes < 1:
            raise ConfigError(f"folder: classes = {self.classes} is not allowed; it must be at least 1.")
        if self.labels is not None and not 0 < len(self.labels) == len(set(self.labels)):
            raise ConfigError(f"folder: labels = {list(self.labels)} is empty or names a class twice.")

    def tables(self, folder: Path, *stems: str, lacking: bool = False) -> list[Table]:
        """The tables `stems` in a folder, columns called by what they mean.

        lacking: whether columns that are named may be in none of the tables.

        Raises:
            DataError: a file is missing or refused, or a column that is named is in none.
        """
        return self.named(folder, *(read(find(folder, stem)) for stem in stems), lacking=lacking)

    def named(self, root: Path, *tables: Table, lacking: bool = False) -> list[Table]:
        """The tables with columns called by what they mean (`naming.named`)."""
        columns, ignore = self.columns or {}, self.ignore or ()
        if lacking:
            here = {name for table in tables for name in table.columns}
            columns = {meaning: own for meaning, own in columns.items() if own in here}
            ignore = tuple(name for name in ignore if name in here)
        return named(tables, root, columns, ignore)

    def names_of(self, table: Table) -> tuple[str, ...]:
        """What the classes are called; () where labels are numbers."""
        if self.labels or "label" not in table.columns:
            return self.labels or ()
        present = table.texts("label").drop_null().unique()
        whole = pc.all(pc.match_substring_regex(present, WHOLE)).as_py()
        return () if whole is not False else tuple(sorted(present.to_pylist()))

    def labels_of(self, table: Table, labelled: bool = True) -> tuple[np.ndarray, int]:
        """Classes int64 [rows], -1 where a label is missing, and how many classes there are; without `labelled`, all
        may be missing.

        Raises:
            DataError: a label is not one of the configured ones; names file and row.
        """
        there = labelled or "label" in table.columns
        cells = labels_in(table, "labels") if there else pa.nulls(table.rows, pa.string())
        present = cells.drop_null()
        if len(present) == 0 and not labelled:
            return np.full(table.rows, -1), self.classes or len(self.labels or ())
        if len(present) == 0:
            own = (self.columns or {}).get("label", "label")
            refuse(table.path, f"column {own} is empty in every row", "Label at least one row.")
        whole = pc.match_substring_regex(present, WHOLE)
        if self.labels is None:
            if pc.all(whole).as_py():
                return self._numbered(table)
            table.refuse_gaps("label", "labels")
            table.refuse_blanks("label", "labels")
        if self.classes is not None:
            table.whole("label", empty="unlabelled")  # says which label is no number
        if self.labels is None:
            refuse_numerals(table, "labels")
        if self.labels is None and pc.any(whole).as_py():
            names = present.filter(pc.invert(whole))
            refuse(
                table.path, f"some labels are numbers, others are names ({names[0]})", "Use one kind in column label."
            )
        classes = pa.array(self.labels or sorted(present.unique().to_pylist()), pa.string())
        y = among(cells, classes)
        unknown, allowed = (
            y.is_null().to_numpy(False) & cells.is_valid().to_numpy(False),
            ", ".join(classes.to_pylist()),
        )
        remedy = "Correct it or add it to labels."
        refuse_rows(table, unknown, lambda row: f"label {cells[row].as_py()!r} is none of {allowed}", remedy)
        return y.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64), len(classes)

    def _numbered(self, table: Table) -> tuple[np.ndarray, int]:
        y = table.whole("label", empty="unlabelled")
        if self.classes is None:
            refuse_stray(y, lambda row, what: table.refuse_at(row, what, "Number the classes from 0, without gaps."))
            return y, int(y.max()) + 1
        if (row := first(y >= self.classes)) is not None:
            what = f"label {y[row]} is not in 0..{self.classes - 1}"
            table.refuse_at(row, what, "Correct it or raise classes.")
        return y, self.classes

"""What all data sets of a user's tables have in common: classes, and columns under names of their own."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.datasets.check import first, refuse
from fedweave.datasets.edges import check_loops
from fedweave.datasets.features import check_normalise
from fedweave.datasets.naming import check_naming, named
from fedweave.datasets.numerals import labels_in, refuse_numerals, refuse_stray
from fedweave.datasets.table import WHOLE, Table, find, meant_empty, read
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
    unlabelled: a word, or several, that stands in the examples' labels for an empty cell, such as "unknown".
    groups:    names of the sensitive groups in order when sens is text; None is those present, sorted.
    loops:     edges of a node with itself: "refuse", "drop", or "keep" where edges carry something.
    """

    normalise: str = "none"
    classes: int | None = None
    labels: tuple[str, ...] | None = None
    sens_feature: bool = False
    columns: dict[str, str] | None = None
    ignore: tuple[str, ...] | None = None
    unlabelled: str | tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    loops: str = "refuse"

    def __post_init__(self) -> None:
        check_normalise(self.normalise)
        check_naming(self.columns or {}, self.ignore or ())
        if self.classes is not None and self.labels is not None:
            raise ConfigError(
                "folder: give classes (labels are numbers) or labels (labels are names), not both.",
                code="config.conflict",
            )
        if self.classes is not None and self.classes < 1:
            raise ConfigError(f"folder: classes = {self.classes} is not allowed; it must be at least 1.")
        if self.labels is not None and not 0 < len(self.labels) == len(set(self.labels)):
            raise ConfigError(f"folder: labels = {list(self.labels)} is empty or names a class twice.")
        if self.groups is not None and not 0 < len(self.groups) == len(set(self.groups)):
            raise ConfigError(f"folder: groups = {list(self.groups)} is empty or names a value twice.")
        if both := set(self.labels or ()) & set(self._unlabelled):
            raise ConfigError(
                f"folder: {min(both)!r} is in labels, so that it is a class, and in unlabelled.", code="config.conflict"
            )
        check_loops(self.loops, getattr(self, "carries", False))

    @property
    def _unlabelled(self) -> tuple[str, ...]:
        return (self.unlabelled,) if isinstance(self.unlabelled, str) else self.unlabelled or ()

    def tables(self, folder: Path, *stems: str, lacking: bool = False) -> list[Table]:
        """The tables `stems` in a folder, columns called by what they mean.

        lacking: whether columns that are named may be in none of the tables.

        Raises:
            DataError: a file is missing or refused, or a column that is named is in none.
        """
        return self.named(folder, *(read(find(folder, stem)) for stem in stems), lacking=lacking)

    def named(self, root: Path, *tables: Table, lacking: bool = False) -> list[Table]:
        """The tables, that of the examples first, with columns called by what they mean (`naming.named`)."""
        of_examples, *others = named(tables, root, self.columns or {}, self.ignore or (), lacking)
        if "label" in of_examples.columns:
            of_examples = of_examples.emptied("label", self._unlabelled)
        return [of_examples, *others]

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
            what = f"some labels are numbers, others are names ({names[0]})"
            refuse(table.path, what, f"Use one kind in column label. {meant_empty(names[0].as_py())}")
        classes = self.labels or tuple(sorted(present.unique().to_pylist()))
        odd = sorted(set(present.unique().to_pylist()) - set(classes))
        remedy = f"Correct it or add it to labels. {meant_empty(*odd[:1])}"
        return table.among("label", cells, classes, remedy), len(classes)

    def _numbered(self, table: Table) -> tuple[np.ndarray, int]:
        y = table.whole("label", empty="unlabelled")
        if self.classes is None:
            refuse_stray(y, lambda row, what: table.refuse_at(row, what, "Number the classes from 0, without gaps."))
            return y, int(y.max()) + 1
        if (row := first(y >= self.classes)) is not None:
            what = f"label {y[row]} is not in 0..{self.classes - 1}"
            table.refuse_at(row, what, "Correct it or raise classes.")
        return y, self.classes

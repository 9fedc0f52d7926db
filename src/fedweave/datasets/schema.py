"""What all data sets of a user's tables have in common: the settings, the names of columns, and the labels."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.target import LABELS, is_labeled
from fedweave.datasets.check import first, refuse
from fedweave.datasets.column_names import check_naming, rename_columns
from fedweave.datasets.columns import AUTO
from fedweave.datasets.labels import labels_in, refuse_numerals, refuse_several, refuse_stray
from fedweave.datasets.settings import TableSettings
from fedweave.datasets.table import WHOLE, Table, Tables, remedy_for_gaps
from fedweave.datasets.table_files import find, read
from fedweave.datasets.targets import Targeted
from fedweave.errors import ConfigError, DataError, Faults

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Classified(TableSettings, Targeted):
    """The common part of all data sets from a user's tables.

    favorable: the class, by name or number, whose prediction is the favorable one where groups of people are
               compared; it becomes class 1 of the two. None is the second of `labels`, without these by alphabet.
    """

    stems: ClassVar[tuple[str, ...]] = ("nodes", "edges")  # of the files, in the order of `Tables`

    favorable: str | int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_naming(self.columns or {}, self.ignore or ())
        if not self.by_class:
            self._check_targets()
        if self.classes is not None and self.labels is not None:
            message = "data: give classes (labels are numbers) or labels (labels are names), not both."
            raise ConfigError(message, code="config.conflict")
        if self.labels is not None and not 0 < len(self.labels) == len(set(self.labels)):
            raise ConfigError(f"data: labels = {list(self.labels)} is empty or names a class twice.")
        if self.favorable is not None:
            name = str(self.favorable)
            if self.classes is not None and (self.classes != 2 or name not in ("0", "1")):
                raise ConfigError(
                    f"data.favorable = {name!r}: classes are the numbers 0 to {self.classes - 1}. The favorable class "
                    "is one of two: give 0 or 1.",
                    code="config.no-class",
                )
            if self.labels is not None and (len(self.labels) != 2 or name != self.labels[1]):
                raise ConfigError(
                    f"data.favorable = {name!r}: data.labels = {list(self.labels)} has another order. The favorable "
                    "class is the second of two: correct labels, and leave favorable out.",
                    code="config.conflict",
                )
        lists: dict[str, str | tuple[str, ...] | None] = {"groups": self.groups}
        lists |= {f"categories.{column}": names for column, names in (self.categories or {}).items()}
        for key, names in lists.items():
            if isinstance(names, str) and names != AUTO:
                raise ConfigError(
                    f'data.{key} = "{names}": is not a list. List all values, or set "{AUTO}" for those in training.',
                    code="config.value",
                )
            if names is not None and not 0 < len(names) == len(set(names)):
                raise ConfigError(f"data: {key} = {list(names)} is empty or names a value twice.")
        for name in sorted(set(self.labels or ()) & set(self._words_without_label)):
            raise ConfigError(
                f"data: {name!r} is in labels, so that it is a class, and in unlabeled.", code="config.conflict"
            )
        if self.loops == "keep" and not self.has_edge_attributes:
            raise ConfigError(
                "loops = 'keep': edges without attributes have no loops. Name edge attributes in [data], or 'drop' "
                "loops.",
                code="config.loops",
            )

    def _check_targets(self) -> None:
        """Reject settings of classes, or conflicting settings of the targets' columns."""
        of_classes: dict[str, object] = {"classes": self.classes, "favorable": self.favorable, "labels": self.labels}
        names_targets = self.target == LABELS and self.targets is None  # then `labels` are their names
        if names_targets:
            del of_classes["labels"]
        for name, value in of_classes.items():
            if value is not None:
                message = f'data.{name}: is of classes, and data.target = "{self.target}". Leave it out.'
                raise ConfigError(message, code="config.conflict")
        if names_targets and self.labels is None:
            message = 'data.targets: is lacking; target = "labels" needs the columns of the labels. Name them in order.'
            raise ConfigError(message, code="config.missing")
        for name in self.targets or ():
            if name in (self.categories or {}) or name in (self.ignore or ()):
                raise ConfigError(
                    f"data.targets: {name!r} is a feature in data.categories, or left out in data.ignore. Name it "
                    "once.",
                    code="config.conflict",
                )

    def with_targets(self, examples: Table) -> Self:
        """These settings; where `labels` are columns of the examples' table, as targets of several labels."""
        if self.labels is None or "label" in examples.columns or self.targets is not None or self.by_number:
            return self
        columns = self.target == LABELS or set(self.labels) <= set(examples.columns)
        return replace(self, target=LABELS, targets=self.labels, labels=None) if columns else self

    @property
    def target_columns(self) -> tuple[str, ...]:
        """The columns of examples with the targets."""
        return self.targets or ("label",)

    def _class_order(self, table: Table) -> tuple[str, ...] | None:
        """The class names in order: `labels`, or two with `favorable` as the second; None where neither is set, or
        where `favorable` is class 1 of numbers."""
        if self.labels is not None or self.favorable is None:
            return self.labels
        name, labels = str(self.favorable), table.texts("label").drop_null().unique()
        whole = pc.all(pc.match_substring_regex(labels, WHOLE)).as_py()
        present = sorted({one.partition(".")[0] for one in labels.to_pylist()} if whole else labels.to_pylist())
        if name not in present or len(present) != 2:
            what = f"data.favorable = {name!r} is not one of two classes; the classes are {', '.join(present)}"
            refuse(table.path, what, "Name one of two classes.", "no-class")
        if whole and name == "1" and present[0] == "0":
            return None
        return (*(set(present) - {name}), name)

    @property
    def _words_without_label(self) -> tuple[str, ...]:
        return (self.unlabeled,) if isinstance(self.unlabeled, str) else self.unlabeled or ()

    @property
    def has_edge_attributes(self) -> bool:
        """Whether anything but who is joined to whom counts of edges."""
        return False

    @property
    def of_edges(self) -> bool:
        """Whether edges are the examples."""
        return False

    @property
    def of_links(self) -> bool:
        """Whether links are predicted, which needs no features of nodes."""
        return False

    def examples(self, tables: Tables) -> Table:
        """The table of the examples."""
        return tables.graphs or (tables.edges if self.of_edges else tables.nodes)

    def tables(self, folder: Path, lacking: bool = False) -> Tables:
        """The tables in a folder, columns called by what they mean.

        lacking: whether columns in settings may be in none of the tables.
        """
        return self.rename_columns(folder, Tables(*(read(find(folder, stem)) for stem in self.stems)), lacking)

    def rename_columns(self, root: Path, tables: Tables, lacking: bool = False) -> Tables:
        """The tables with columns called by what they mean (`rename_columns`)."""
        # The first table has the examples.
        examples = self.examples(tables)
        kinds = [kind for kind, table in tables._asdict().items() if table is not None and table is not examples]
        order = [kind for kind, table in tables._asdict().items() if table is examples] + kinds
        ordered = [getattr(tables, kind) for kind in order]
        result = rename_columns(ordered, root, self.columns or {}, self.ignore or (), lacking)
        for name in self.with_targets(result[0]).target_columns:
            if name in result[0].columns:
                result[0] = result[0].clear_cells(name, self._words_without_label)
        return tables._replace(**dict(zip(order, result, strict=True)))

    def names_of(self, table: Table) -> tuple[str, ...]:
        """The names of the classes; () where labels are numbers."""
        if not self.by_class:
            return ()
        if "label" not in table.columns:
            return self.labels or ()
        names = self._class_order(table)
        if names:
            return names
        present = table.texts("label").drop_null().unique()
        whole = pc.all(pc.match_substring_regex(present, WHOLE)).as_py()
        return () if whole is not False else tuple(sorted(present.to_pylist()))

    def labels_of(self, table: Table, labelled: bool = True) -> tuple[np.ndarray, int]:
        """Classes int64 [rows], -1 where a label is missing, and how many classes there are; or numbers or labels
        [rows, t] (`core.target`), and 0. Without `labelled`, all may be missing."""
        if not self.by_class:
            faults, values = Faults(DataError), list[np.ndarray]()
            for name in self.target_columns:  # without `labelled`, an absent column has only gaps
                with faults:
                    has_column = labelled or name in table.columns
                    values.append(
                        self.column(table.targets(name) if has_column else np.full(table.rows, np.nan), name, table)
                    )
            faults.refuse()
            y = self.join(values)
            if labelled and not is_labeled(y).any():
                what = f"{', '.join(self.target_columns)}: empty in every row"
                refuse(table.path, what, "Give at least one row a value.", "target")
            return y, 0
        has_column = labelled or "label" in table.columns
        cells = labels_in(table, "labels") if has_column else pa.nulls(table.rows, pa.string())
        present = cells.drop_null()
        if len(present) == 0 and not labelled:
            return np.full(table.rows, -1), self.classes or len(self.labels or ())
        if len(present) == 0:
            column = (self.columns or {}).get("label", "label")
            refuse(table.path, f"column {column} is empty in every row", "Label at least one row.")
        whole, classes = pc.match_substring_regex(present, WHOLE), self._class_order(table)
        if classes is None and pc.all(whole).as_py():
            y = table.whole("label", empty="unlabeled")
            if self.classes is None:
                remedy = "Number the classes from 0, without gaps."
                refuse_stray(y, lambda row, what: table.refuse_at(row, what, remedy))
                return y, int(y.max()) + 1
            row = first(y >= self.classes)
            if row is not None:
                what = f"label {y[row]} is not in 0..{self.classes - 1}"
                table.refuse_at(row, what, "Correct it or raise classes.")
            return y, self.classes
        if classes is None:
            table.refuse_gaps("label", "labels")
            table.refuse_blanks("label", "labels")
            if self.classes is not None:
                table.whole("label", empty="unlabeled")  # its error names the label that is not a number
            refuse_several(table, "labels")
            refuse_numerals(table, "labels")
            names = present.filter(pc.invert(whole))
            if len(names) < len(present):
                what = f"some labels are numbers, others are names ({names[0]})"
                refuse(table.path, what, f"Use one kind in column label. {remedy_for_gaps(names[0].as_py())}")
            classes = tuple(sorted(present.unique().to_pylist()))
        unknown = sorted(set(present.unique().to_pylist()) - set(classes))
        remedy = f"Correct it or add it to labels. {remedy_for_gaps(*unknown[:1])}"
        return table.among("label", cells, classes, remedy), len(classes)

"""Targets of a user's examples, for all forms of data: a class, numbers, or several yes-or-no labels
(`core.target`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedweave.core.target import CLASS, LABELS, NUMBER, scale_of
from fedweave.core.types import Record
from fedweave.datasets.check import Rows, refuse, refuse_rows
from fedweave.datasets.settings import CommonSettings
from fedweave.errors import ConfigError

CODE = "target"  # data.target: what a target's cell holds is none
ALL = "all"
_SAY = 'If numbers are predicted: [data] target = "number"; several yes-or-no labels: target = "labels".'


@dataclass(frozen=True)
class Targeted(CommonSettings):
    """The targets of the examples."""

    def __post_init__(self) -> None:
        if self.targets is not None and not 0 < len(self.targets) == len(set(self.targets)):
            message = f"data.targets = {list(self.targets)}: is empty or names a column twice. Name each once."
            raise ConfigError(message, code="config.value")
        if self.target == CLASS and self.targets is not None:
            raise ConfigError(
                'data.targets: names columns, and target = "class" has one, label. Set data.target = "number" or '
                '"labels".',
                code="config.conflict",
            )

    @property
    def by_class(self) -> bool:
        """Whether a class is predicted."""
        return self.target == CLASS

    @property
    def by_number(self) -> bool:
        """Whether numbers are predicted."""
        return self.target == NUMBER

    def refuse_unless_classes(self, what: str) -> None:
        """Refuse numbers or labels in data that has none."""
        if not self.by_class:
            raise ConfigError(
                f'data.target = "{self.target}": {what} has classes. Leave target out.', code="config.target"
            )

    def column(self, values: np.ndarray, name: str, rows: Rows) -> np.ndarray:
        """One target's values float64 [e], NaN at gaps, as they are."""
        with np.errstate(invalid="ignore"):
            bad, what, remedy = np.isinf(values), "is not finite", "Correct it, or leave the cell empty for a gap."
            if self.target == LABELS:
                bad, what = ~(np.isnan(values) | np.isin(values, (0, 1))), "is not 0 or 1"
                remedy = "Write 1 for yes, 0 for no and nothing for a gap; " + 'if it measures: target = "number".'
            elif self.target_log and not bad.any():
                bad, what = values <= 0, "has no logarithm"
                remedy = "Logarithms are of positive numbers: correct it, or set data.target_log = false."
        refuse_rows(rows, bad, lambda row: f"{name!r} is {values[row]:g}, which {what}", remedy, CODE)
        return values

    def join(self, columns: Sequence[np.ndarray]) -> np.ndarray:
        """The targets' values, each float64 [e] with NaN at gaps, in the form of `Dataset.y`."""
        values = np.stack(columns, 1).astype(np.float64)
        return values if self.target == NUMBER else np.where(np.isnan(values), -1, values).astype(np.int64)

    def of_array(self, y: np.ndarray, key: str, where: str | Path, called: Sequence[str] = ()) -> np.ndarray:
        """An array of numbers or labels [e] or [e, t], with NaN or, of labels, -1 at gaps, in the form of `Dataset.y`.

        called: the names of its columns; `targets` lists the columns that count.
        """
        if y.dtype.kind not in "biuf" or y.ndim not in (1, 2):
            what = f"{key} is {y.dtype} {list(y.shape)}"
            refuse(where, what, f"Give numbers [e], or [e, t] with a column for each target, as {key}.", CODE)
        values = y.reshape(len(y), -1).astype(np.float64)
        if self.targets is not None and called:
            for name in self.targets:
                if name not in called:
                    what = f"{key} has no column {name!r}, which data.targets names"
                    refuse(where, what, f"There are {', '.join(called)}.", "column-named")
            values = values[:, [list(called).index(name) for name in self.targets]]
        names = self.names_of_array(called) or [str(at) for at in range(values.shape[1])]
        if len(names) != values.shape[1]:
            what = f"{key} has {values.shape[1]} columns, and data.targets names {len(names)}"
            refuse(where, what, "Name each column, in order.", "column-named")
        if self.target == LABELS:
            values = np.where(values == -1, np.nan, values)
        rows = _ArrayRows(Path(where))
        return self.join([self.column(y, f"{key} {name}", rows) for y, name in zip(values.T, names, strict=True)])

    def names_of_array(self, columns: Sequence[str]) -> tuple[str, ...]:
        """The names of the targets of an array whose columns have these names; () without."""
        return tuple(columns) if self.targets is None else self.targets

    def fields(self, y: np.ndarray, names: Sequence[str]) -> Record:
        """The fields of a `Dataset` for targets `y` in its form; {} of classes."""
        if self.by_class:
            return {}
        about: Record = {"y": y, "classes": 0, "labels": (), "targets": tuple(names)}
        if self.target == NUMBER:
            scale = scale_of(y, self.target_log, how="none")
            about |= {"target_scale": scale, "target_scaling": self.target_normalize}
        return about

    def refuse_other(self, y: np.ndarray, key: str, where: str | Path) -> None:
        """Reject numbers, or several columns, where classes are expected."""
        if self.by_class and (y.ndim == 2 or y.dtype.kind == "f"):
            form = f"is {y.dtype}, not int64" if y.dtype.kind == "f" else f"has shape {y.shape}, not (any)"
            refuse(where, f"{key} {form}", f"Store classes as whole numbers [e], {key}.astype('int64'). {_SAY}", CODE)


class _ArrayRows(NamedTuple):
    """The rows of an array, as errors name them."""

    where: Path

    def place(self, row: int) -> tuple[Path, int]:
        return self.where, row

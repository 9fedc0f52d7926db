"""The range of a value that leaves a client, so that its receiver can reject what no honest sender sends. Ranges of
settings are in `core.bounds`."""

import math
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

LARGEST_COUNT = 1 << 32  # examples of one client


@dataclass(frozen=True)
class Whole:
    """Whole numbers from `least` to `most`, by default counts of a client's examples."""

    least: int = 0
    most: int = LARGEST_COUNT

    def fault(self, path: str, leaf: object) -> str:
        """What is wrong with the `leaf` at `path`; empty if nothing is."""
        values = _values(leaf)
        if values is None or not bool((values == values.round()).all()):
            return f"{path} is not of whole numbers"
        return _outside(path, values, float(self.least), float(self.most))


@dataclass(frozen=True)
class Real:
    """Numbers from `least` to `most`, by default all non-negative ones, such as losses and norms."""

    least: float = 0.0
    most: float = math.inf

    def fault(self, path: str, leaf: object) -> str:
        """What is wrong with the `leaf` at `path`; empty if nothing is."""
        values = _values(leaf)
        return f"{path} is not of numbers" if values is None else _outside(path, values, self.least, self.most)


ANY = Real(-math.inf)


@dataclass(frozen=True)
class Pairs:
    """Additive pairs [S, 2, …] of a sum and a count (`metrics.classification`), by the name of the metric.

    A count is whole. A sum is not negative and, except for `mean` metrics, not above its count. `pairs` metrics count
    pairs of examples.
    """

    mean: tuple[str, ...] = ("loss", "squared", "absolute")
    pairs: tuple[str, ...] = ("auc", "group_auc")

    def fault(self, path: str, leaf: object) -> str:
        """What is wrong with the `leaf` at `path`; empty if nothing is."""
        values, name = _values(leaf), path.rpartition("/")[2]
        if values is None or values.dim() < 2 or values.shape[1] != 2:
            return f"{path} is not of pairs of a sum and a count"
        total, count = values.unbind(1)
        most = LARGEST_COUNT**2 if name in self.pairs else 2 * LARGEST_COUNT
        if fault := Whole(0, most).fault(f"the count of {path}", count) or _outside(f"the sum of {path}", total, 0.0):
            return fault
        allowed = torch.where(count > 0, math.inf, 0.0) if name in self.mean else count
        return f"{path} counts more than there is" if bool((total > allowed).any()) else ""


Range: TypeAlias = Whole | Real | Pairs


def _values(leaf: object) -> Tensor | None:
    """A leaf as float64 on the host, with int64 beyond 2^53 rounded; None if it is a string."""
    return None if isinstance(leaf, str) else torch.as_tensor(leaf, device="cpu").double()


def _outside(path: str, values: Tensor, least: float, most: float = math.inf) -> str:
    """A sentence on `values` beyond the limits; "" if there are none. Infinite values are always beyond."""
    inside = (values >= least) & (values <= most) & values.isfinite()
    if bool(inside.all()):
        return ""
    worst, limits = float(values[~inside][0]), f"at least {least:g}" if most == math.inf else f"{least:g} to {most:g}"
    return f"{path} is {worst:g}, which is not {limits}"

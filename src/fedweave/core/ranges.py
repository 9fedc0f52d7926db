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
    """Whole numbers from `minimum` to `maximum`, by default counts of a client's examples."""

    minimum: int = 0
    maximum: int = LARGEST_COUNT

    def fault(self, path: str, leaf: object) -> str:
        """What is wrong with the `leaf` at `path`; empty if nothing is."""
        values = _values(leaf)
        if values is None or not bool((values == values.round()).all()):
            return f"{path} is not of whole numbers"
        return _limit_fault(path, values, float(self.minimum), float(self.maximum))


@dataclass(frozen=True)
class Real:
    """Numbers from `minimum` to `maximum`, by default all non-negative ones, such as losses and norms."""

    minimum: float = 0.0
    maximum: float = math.inf

    def fault(self, path: str, leaf: object) -> str:
        values = _values(leaf)
        if values is None:
            return f"{path} is not of numbers"
        return _limit_fault(path, values, self.minimum, self.maximum)


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
        values, name = _values(leaf), path.rpartition("/")[2]
        if values is None or values.dim() < 2 or values.shape[1] != 2:
            return f"{path} is not of pairs of a sum and a count"
        total, count = values.unbind(1)  # [S, …] each
        max_count = LARGEST_COUNT**2 if name in self.pairs else 2 * LARGEST_COUNT
        fault = Whole(0, max_count).fault(f"the count of {path}", count)
        fault = fault or Real().fault(f"the sum of {path}", total)
        if fault:
            return fault
        allowed = torch.where(count > 0, math.inf, 0.0) if name in self.mean else count
        return f"{path} counts more than there is" if bool((total > allowed).any()) else ""


Range: TypeAlias = Whole | Real | Pairs


def _values(leaf: object) -> Tensor | None:
    """A leaf as float64 on the host, with int64 beyond 2^53 rounded; None if it is a string."""
    return None if isinstance(leaf, str) else torch.as_tensor(leaf, device="cpu").double()


def _limit_fault(path: str, values: Tensor, minimum: float, maximum: float) -> str:
    """A sentence on `values` beyond the limits; "" if there are none. Infinite values are always beyond."""
    inside = (values >= minimum) & (values <= maximum) & values.isfinite()
    if bool(inside.all()):
        return ""
    limits = f"at least {minimum:g}" if maximum == math.inf else f"{minimum:g} to {maximum:g}"
    return f"{path} is {float(values[~inside][0]):g}, which is not {limits}"

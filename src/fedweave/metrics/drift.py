"""Distances between two histograms of one column: whether new data differs from the data of training."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedweave.core.edge_attributes import format_date

BINS = 20  # of numbers with more different values than that
FLOOR = 1e-4  # of the share of a bin that is empty on one side
CHANCE = 0.05  # how often any of all columns passes the bound of chance without drift


@dataclass(frozen=True)
class Histogram:
    """How often a column had which values.

    name:   what it is called. of: "node", "edge" or "score".
    kind:   "number", or "date" in days since 1970, with bins between `edges`: up to the first one, then up to each next
            one, then above the last; or "category", with a bin for each of `values` and a last one for none of them.
    counts: of each bin.
    """

    name: str
    of: str
    kind: Literal["number", "date", "category"]
    counts: tuple[int, ...]
    edges: tuple[float, ...] = ()
    values: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """How many values are counted."""
        return sum(self.counts)

    def bin_name(self, at: int) -> str:
        """A bin in words."""
        if self.kind == "category":
            return [*self.values, "none of these"][at]
        if not self.edges:
            return "any"
        edges = [format_date(edge) if self.kind == "date" else f"{edge:.4g}" for edge in self.edges]
        if at == 0:
            return f"up to {edges[0]}"
        if at == len(edges):
            return f"above {edges[-1]}"
        return f"{edges[at - 1]} to {edges[at]}"

    def count(self, values: np.ndarray) -> tuple[int, ...]:
        """The counts of numbers [m], or of places int64 [m] among the categories, -1 for none."""
        if self.kind == "category":
            places = np.where((values >= 0) & (values < len(self.values)), values, len(self.values))
            return tuple(np.bincount(places, minlength=len(self.values) + 1).tolist())
        return tuple(np.bincount(np.searchsorted(self.edges, values), minlength=len(self.edges) + 1).tolist())


def of_numbers(name: str, of: str, values: np.ndarray, kind: Literal["number", "date"] = "number") -> Histogram:
    """The histogram of numbers, or dates, [n]. Edges are halfway between neighboring values, so that rounding moves
    none: between all of up to `BINS` different values, else near the quantiles."""
    distinct = np.unique(values)
    upper = np.arange(1, len(distinct))
    if len(distinct) > BINS:
        quantiles = np.quantile(values, np.arange(1, BINS) / BINS, method="inverted_cdf")
        upper = np.unique(np.searchsorted(distinct, quantiles, side="right"))
        upper = upper[upper < len(distinct)]
    edges = tuple(((distinct[upper - 1] + distinct[upper]) / 2).tolist())
    empty = Histogram(name, of, kind, (), edges)
    return replace(empty, counts=empty.count(values))


def of_categories(name: str, of: str, values: Sequence[str], places: np.ndarray) -> Histogram:
    """The histogram of places int64 [n] among the categories, -1 for none."""
    empty = Histogram(name, of, "category", (), values=tuple(values))
    return Histogram(name, of, "category", empty.count(places), values=tuple(values))


def stability_index(before: Sequence[int], now: Sequence[int]) -> float:
    """The population stability index Σ (q − p) ln(q / p) over bins with shares p before and q now (Siddiqi, Credit Risk
    Scorecards, 2006); NaN without values. The share of a bin that is empty counts as `FLOOR`."""
    counts = np.array([before, now], np.float64)  # [2, bins]
    if not counts.sum(1).all():
        return math.nan
    shares = np.where(counts > 0, counts / counts.sum(1, keepdims=True), FLOOR)
    p, q = shares[:, counts.any(0)]
    return float(((q - p) * np.log(q / p)).sum())


def kolmogorov_smirnov(before: Sequence[int], now: Sequence[int]) -> float:
    """The largest distance of the two distribution functions at the edges of the bins; NaN without values."""
    counts = np.array([before, now], np.float64)  # [2, bins]
    if not counts.sum(1).all():
        return math.nan
    p, q = np.cumsum(counts, 1) / counts.sum(1, keepdims=True)
    return float(np.abs(p - q).max())


def by_chance(before: Sequence[int], now: Sequence[int], columns: int) -> float:
    """What the stability index stays below by chance: without drift, one of all `columns` exceeds its bound in `CHANCE`
    of cases, because the index is near (1/n + 1/m) χ² with a degree of freedom for each bin but one (Yurdakul and
    Naranjo, Journal of Risk Model Validation 2020)."""
    from scipy.stats import chi2  # half a second, which every process would spend

    n, m = sum(before), sum(now)
    bins = sum(one + other > 0 for one, other in zip(before, now, strict=True))
    if not n or not m or bins < 2:
        return 0.0
    return float(chi2.ppf(1 - CHANCE / max(columns, 1), bins - 1) * (1 / n + 1 / m))

"""Whether who brings more gets more (FairGraphFL, section 4.1 "Metrics"; Xu et al. 2021, section 5)."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy import stats

from fedweave.errors import DataError


class Correlation(NamedTuple):
    """Pearson's correlation and its 95 % interval by Fisher's transformation; NaN where it is not defined: of fewer
    than two pairs or where one side is constant, the interval of fewer than four."""

    value: float
    low: float
    high: float


def pearson(alone: np.ndarray, together: np.ndarray) -> Correlation:
    """Of P clients' accuracies by training `alone` and `together`; clients where either is NaN are left out.

    Raises:
        DataError: lengths differ.
    """
    one, other = np.asarray(alone, np.float64), np.asarray(together, np.float64)
    if one.shape != other.shape or one.ndim != 1:
        raise DataError(
            f"accuracies alone {one.shape} and together {other.shape}; give one of each per client.",
            code="data.lengths",
        )
    defined = ~(np.isnan(one) | np.isnan(other))
    one, other = one[defined], other[defined]
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return Correlation(np.nan, np.nan, np.nan)
    found = stats.pearsonr(one, other)
    if len(one) < 4:
        return Correlation(float(found.statistic), np.nan, np.nan)
    interval = found.confidence_interval(0.95)
    return Correlation(float(found.statistic), float(interval.low), float(interval.high))


def per_group(paid: Mapping[str, float]) -> dict[str, float]:
    """Mean of what the clients of each quality are paid, by the names of `partition.graphs.Perturbed`: "low-0" is of
    "low". {} where names are no such."""
    groups: dict[str, list[float]] = {}
    for client, own in paid.items():
        groups.setdefault(client.rpartition("-")[0], []).append(own)
    if not set(groups) <= {"low", "medium", "high"}:
        return {}
    return {name: float(np.mean(groups[name])) for name in ("low", "medium", "high") if name in groups}

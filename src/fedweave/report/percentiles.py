"""Many members in few numbers: percentiles of what each has, and how many differ by more than the noise of their test
examples."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedweave.metrics.judging import PLAIN
from fedweave.report.cells import MOST, Cell, number, signed
from fedweave.report.reading import Run

SHOWN = (5, 10, 50, 90)
HEADS = tuple(f"{at} %" for at in SHOWN)
MANY = 3 * MOST  # members above which percentiles say more than rows
NOISE = (
    "Beyond noise is a member whose accuracy differs by more than its number of test examples explains: Agresti and "
    "Caffo's 95 % interval of the two accuracies' difference leaves out 0. By chance alone up to one in forty does so "
    "either way."
)
_NORMAL = 1.959963984540054  # 97.5 % of a normal distribution lie below it


def percentiles(values: Sequence[float]) -> list[float]:
    """Of values, at `SHOWN`."""
    found: list[float] = np.percentile(np.array(values), SHOWN).tolist()
    return found


def cells(values: Sequence[float], differences: bool = False) -> tuple[Cell, ...]:
    """Their percentiles; differences: with a sign."""
    return tuple(Cell(signed(one) if differences else number(one), repr(one)) for one in percentiles(values))


def beyond_noise(run: Run, other: Run) -> tuple[int, int] | None:
    """How many members' test accuracies in `run` are above those in `other`, and how many below, by more than noise;
    None where another metric judges, or nobody knows how many test examples members have."""
    if run.judged != PLAIN or run.partition is None:
        return None
    tested = dict(zip(run.partition["client"].to_pylist(), run.partition["test"].to_pylist(), strict=True))
    ways = [
        differs(own, before, tested[client])
        for client, own, before in _both(run.clients(PLAIN), other.clients(PLAIN))
        if tested.get(client)
    ]
    return (ways.count(1), ways.count(-1)) if ways else None


def _both(one: Mapping[str, float], other: Mapping[str, float]) -> list[tuple[str, float, float]]:
    return [(client, value, other[client]) for client, value in one.items() if client in other]


def differs(one: float, other: float, tested: int) -> int:
    """1 if a share of `tested` examples is surely above another of as many, -1 if it is below, else 0.

    Agresti and Caffo 2000, "Simple and effective confidence intervals for proportions and differences of proportions
    result from adding two successes and two failures". That both shares are of the same examples makes it cautious.
    """
    high, low = ((share * tested + 1) / (tested + 2) for share in (one, other))
    half = _NORMAL * math.sqrt((high * (1 - high) + low * (1 - low)) / (tested + 2))
    return int(high - low > half) - int(low - high > half)

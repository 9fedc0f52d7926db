"""Many members in few numbers: percentiles of their values, and how many differ by more than the noise of their test
examples."""

import math
from collections.abc import Sequence

import numpy as np

from fedweave.experiment.runs.reading import Run
from fedweave.metrics.selection import PLAIN
from fedweave.reports.cells import MAX_ROWS, Cell, number, signed

PERCENTS = (5, 10, 50, 90)
PERCENTILE_HEADS = tuple(f"{percent} %" for percent in PERCENTS)
MANY = 3 * MAX_ROWS  # members above which percentiles say more than rows
NOISE_NOTE = (
    "Beyond noise is a member whose accuracy differs by more than its number of test examples explains: Agresti and "
    "Caffo's 95 % interval of the two accuracies' difference leaves out 0. By chance alone up to one in forty does so "
    "either way."
)
_NORMAL = 1.959963984540054  # 97.5 % of a normal distribution lie below it


def percentile_cells(values: Sequence[float], differences: bool = False) -> tuple[Cell, ...]:
    """Cells of the percentiles `PERCENTS` of values; differences: with a sign."""
    form = signed if differences else number
    return tuple(Cell(form(value), repr(value)) for value in np.percentile(np.array(values), PERCENTS).tolist())


def count_beyond_noise(run: Run, other: Run) -> tuple[int, int] | None:
    """How many members' test accuracies in `run` are above their accuracies in `other`, and how many below, beyond
    noise.

    Returns None where accuracy is not the selection metric, or members' numbers of test examples are not known.
    """
    if run.selection_metric != PLAIN or run.partition is None:
        return None
    test_sizes = dict(zip(run.partition["client"].to_pylist(), run.partition["test"].to_pylist(), strict=True))
    accuracies_in_other = other.clients(PLAIN)
    signs = []
    for client, accuracy in run.clients(PLAIN).items():
        if client in accuracies_in_other and test_sizes.get(client):
            signs.append(difference_sign(accuracy, accuracies_in_other[client], test_sizes[client]))
    return (signs.count(1), signs.count(-1)) if signs else None


def difference_sign(share: float, other_share: float, examples: int) -> int:
    """1 if one share of `examples` test examples is above another beyond noise, -1 if it is below, else 0.

    Agresti and Caffo 2000, "Simple and effective confidence intervals for proportions and differences of proportions
    result from adding two successes and two failures". Both shares are of the same examples, which makes it cautious.
    """
    # one success and one failure are added to each
    adjusted = (share * examples + 1) / (examples + 2)
    adjusted_other = (other_share * examples + 1) / (examples + 2)
    variance = (adjusted * (1 - adjusted) + adjusted_other * (1 - adjusted_other)) / (examples + 2)
    half_width = _NORMAL * math.sqrt(variance)
    return int(adjusted - adjusted_other > half_width) - int(adjusted_other - adjusted > half_width)

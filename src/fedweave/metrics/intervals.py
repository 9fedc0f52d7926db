"""Split-conformal prediction intervals of numbers (Lei et al. 2018, "Distribution-free predictive inference for
regression", algorithm 2): p ± q, where q is the (1 − α)(1 + 1/n) quantile of |y − p| on n validation examples. If
examples are exchangeable, one lies inside with probability at least 1 − α."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedweave.core.graph import VAL
from fedweave.core.target import from_scale

INTERVALS = "intervals"  # prefix of all names in a summary
HALF_WIDTH = f"{INTERVALS}/half_width"  # "intervals/half_width/0": q of the first number
BINS = 4096  # of |y − p|, evenly in its logarithm
_LOW, _HIGH = -48, 80  # powers of two: smaller errors are in the first bin, larger ones in the last
BIN_ERROR = 2.0 ** ((_HIGH - _LOW) / BINS) - 1  # a bin's width over its lower edge


def half_width(errors: np.ndarray, share: float) -> float:
    """q, the ⌈(n + 1) `share`⌉-th smallest of n errors |y − p|; inf where n is too small for that."""
    place = math.ceil((len(errors) + 1) * share - 1e-9)
    return float(np.sort(errors)[place - 1]) if 0 < place <= len(errors) else math.inf


def intervals(clients: Sequence[tuple[np.ndarray, np.ndarray]], share: float) -> dict[str, np.ndarray]:
    """The intervals of one model over all clients, float64 [3] each; {} with too few validation examples.

    "intervals/half_width/0", …:  q of every number.
    "intervals/width":            mean width.
    "intervals/coverage":         on each split, the mean over clients of the share of examples inside.
    "intervals/worst_coverage":   on each split, the lowest such share of a client.
    "intervals/nominal":          `share`.
    "intervals/least_coverage":   a coverage below it is not chance.

    clients: |y − p| [e, t], NaN where it is unknown, and masks bool [3, e] of each. share: to be covered.
    """
    errors = np.concatenate([error[masks[VAL]] for error, masks in clients])
    q = np.array([half_width(column[~np.isnan(column)], share) for column in errors.T])
    if not np.isfinite(q).all():
        return {}
    inside = np.full((len(clients), 3), math.nan)  # share of known errors up to q
    examples = np.zeros((len(clients), 3), np.int64)
    for client, (error, masks) in enumerate(clients):
        for split, mask in enumerate(masks):
            known = ~np.isnan(error[mask])
            if known.any():
                inside[client, split] = (error[mask] <= q)[known].mean()
            examples[client, split] = known.any(1).sum()
    defined = ~np.isnan(inside)
    count = defined.sum(0)
    mean = np.where(defined, inside, 0).sum(0) / np.where(count > 0, count, np.nan)
    worst = np.where(count > 0, np.where(defined, inside, np.inf).min(0), np.nan)
    parts = np.where(examples > 0, 1 / np.maximum(examples, 1), 0).sum(0) / np.maximum(count, 1) ** 2
    coverage = {f"{INTERVALS}/coverage": mean, f"{INTERVALS}/worst_coverage": worst}
    return _entries(q, coverage, share, parts, examples[:, VAL].sum())


def intervals_of_counts(counts: np.ndarray, share: float) -> dict[str, np.ndarray]:
    """`intervals` from sums of clients' `histograms` [3, t, BINS]. "intervals/coverage" is the share of all examples,
    up to the border of a bin. "intervals/bin_error" is the largest excess of the width, as a share of the width."""
    q = np.empty(counts.shape[1])
    for at, column in enumerate(counts[VAL]):
        place = math.ceil((column.sum() + 1) * share - 1e-9)
        bin_ = int(np.searchsorted(np.cumsum(column), place))
        if bin_ >= BINS - 1:  # too few errors, or q is beyond the last bin
            return {}
        q[at] = 2.0 ** (_LOW + (bin_ + 1) * (_HIGH - _LOW) / BINS)  # the bin's upper edge, at most `BIN_ERROR` too wide
    upper = 2.0 ** (_LOW + (np.arange(BINS) + 1) * (_HIGH - _LOW) / BINS)
    inside = (counts * (upper <= q[:, None])).sum((1, 2))
    total = counts.sum((1, 2))
    covered = inside / np.where(total > 0, total, np.nan)
    examples = total / counts.shape[1]
    coverage = {f"{INTERVALS}/coverage": covered, f"{INTERVALS}/bin_error": np.full(3, BIN_ERROR)}
    return _entries(q, coverage, share, 1 / np.maximum(examples, 1), int(examples[VAL]))


def _entries(
    q: np.ndarray, coverage: dict[str, np.ndarray], share: float, parts: np.ndarray, calibration: int
) -> dict[str, np.ndarray]:
    """The entries of `intervals`. parts: [3], the variance of a coverage, divided by the variance of one example.
    calibration: the number of validation examples.

    Intervals of exchangeable examples exceed "least_coverage" with a probability of 97.5 %, by the normal
    approximation."""
    entries = {f"{HALF_WIDTH}/{at}": np.full(3, value) for at, value in enumerate(q)}
    entries |= {f"{INTERVALS}/width": np.full(3, 2 * q.mean())} | coverage
    least = share - 1.96 * np.sqrt(share * (1 - share) * (parts + 1 / max(calibration, 1)))
    return entries | {f"{INTERVALS}/nominal": np.full(3, share), f"{INTERVALS}/least_coverage": least}


def histograms(outputs: Tensor, y: Tensor, masks: Tensor, scale: Tensor | None) -> Tensor:
    """How many of one client's errors |y − p| are in each bin, float64 [S, t, BINS]; arguments as for `numbers.counts`.
    Works under `torch.func.vmap`."""
    has_value = ~y.isnan()
    error = (from_scale(outputs, scale) - torch.where(has_value, y, 0.0)).abs()
    place = ((error.log2() - _LOW) * (BINS / (_HIGH - _LOW))).floor().clamp(0, BINS - 1).long()  # [n, t]
    known = (masks[:, :, None] & has_value).to(torch.float64).mT  # [S, t, n]
    zeros = torch.zeros(*known.shape[:2], BINS, dtype=torch.float64, device=y.device)
    return zeros.scatter_add(2, place.mT.expand(known.shape), known)

"""Ranks of scores within sets of examples, for many rows at once, by one sort of each row.

A row has the scores of n examples for one class. Each example belongs to at most one of S sets (training, validation,
test), and counts among the examples of its set only.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedweave.ops.batching import Batch, Constant, Dims, over_clients
from fedweave.ops.tape import kernel

ALERTS = 100  # one of this many examples is an alert
GRID = 2.0**-30  # what is added up is rounded to it; then sums below 2^23 are exact, and equal in any order
_CHUNK = 1 << 15  # scores that are ranked at once on a CPU: they stay in its cache
_SCORE_BITS = 33  # of a key: 32 for the score, and one that says whether the example is positive


def on_grid(values: Tensor) -> Tensor:
    """Values rounded to `GRID`, so that their sum is equal in any order."""
    return torch.round(values / GRID) * GRID


@kernel
def _rank_sums(score: Tensor, truth: Tensor, sets: Tensor, count: int, alerted: bool) -> Tensor:
    def sums(score: Tensor, truth: Tensor, sets: Tensor) -> Tensor:
        return _rank_sums_of_rows(score, truth, sets, count, alerted)

    return _by_rows(sums, score, truth, sets)


@kernel
def _average_ranks(values: Tensor, sets: Tensor) -> Tensor:
    return _by_rows(_average_ranks_of_rows, values, sets)


def _by_rows(function: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """The function of rows [r, n] of each operand [..., n], some rows at a time on a CPU."""
    *shape, n = operands[0].shape
    rows = [operand.reshape(math.prod(shape), n) for operand in operands]
    step = len(rows[0]) if operands[0].device.type != "cpu" else max(1, _CHUNK // max(1, n))
    results = [function(*chunk) for chunk in zip(*(each.split(max(1, step)) for each in rows), strict=True)]
    result: Tensor = torch.cat(results).unflatten(0, shape)
    return result


def _rank_sums_of_rows(score: Tensor, truth: Tensor, sets: Tensor, count: int, alerted: bool) -> Tensor:
    """See `RankSums`; all arguments [r, n]."""
    # 1. Sort numbers that hold set, score and truth, so that nothing has to be looked up by the order afterwards.
    key = ascending((sets << _SCORE_BITS) | (_order_number(score) << 1) | truth)
    positive, value = key & 1, key >> 1
    first, after = _ties(value)  # [r, n]
    edges = (torch.arange(count + 1, device=key.device) << _SCORE_BITS).expand(len(key), -1).contiguous()
    bounds = torch.searchsorted(key, edges)  # [r, S + 1], where each set begins

    def sum_sets(values: Tensor) -> Tensor:
        before = torch.nn.functional.pad(values.cumsum(-1), (1, 0))  # [r, n + 1]
        return before.gather(-1, bounds).diff(dim=-1)  # [r, S]

    # 2. Positions in the row less where the set begins are ranks within the set.
    total, positives = bounds.diff(dim=-1), sum_sets(positive)
    doubled = sum_sets(positive * (first + after)) - 2 * bounds[:, :-1] * positives - positives**2
    sums = [total.double(), positives.double(), doubled.double() / 2]
    if alerted:
        of_set = (key >> _SCORE_BITS).clamp(max=count - 1)
        start, size = bounds.gather(-1, of_set), total.gather(-1, of_set)  # [r, n]
        not_lower = start + size - first  # examples of the set that score no lower
        before = torch.nn.functional.pad(positive.cumsum(-1), (1, 0))
        hits = before.gather(-1, start + size) - before.gather(-1, first)  # positives among these
        precision = hits / not_lower.clamp(min=1).double()
        alerts = (size + ALERTS - 1) // ALERTS
        equal = after - first
        probability = ((alerts - (start + size - after)) / equal.double()).clamp(0, 1)  # that it is an alert
        sums += [sum_sets(on_grid(positive * precision)), sum_sets(on_grid(positive * probability))]
    return torch.stack(sums, -1)


def _average_ranks_of_rows(values: Tensor, sets: Tensor) -> Tensor:
    """See `AverageRanks`; both [r, n]."""
    key = (sets << _SCORE_BITS) | (_order_number(values) << 1)
    order = _argsort(key)
    ordered = key.gather(-1, order)
    first, after = _ties(ordered)
    start = torch.searchsorted(ordered, ordered >> _SCORE_BITS << _SCORE_BITS)  # [r, n], where the set begins
    ranks = (first + after + 1).double() / 2 - start
    return torch.empty_like(ranks).scatter(-1, order, ranks)


def _order_number(score: Tensor) -> Tensor:
    """int64 in [0, 2^32) that orders each row's scores [r, n] as they are, equal ones equally."""
    if score.dtype == torch.float32:
        bits = (score + 0.0).view(torch.int32)  # -0.0 + 0.0 is 0.0
        return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() + 2**31  # of negative numbers all bits but the sign turn
    order = _argsort(score)
    ascending = score.gather(-1, order)
    differs = torch.nn.functional.pad(ascending[:, 1:] != ascending[:, :-1], (1, 0))
    return torch.empty_like(order).scatter(-1, order, differs.cumsum(-1))


def _ties(value: Tensor) -> tuple[Tensor, Tensor]:
    """Where the equal neighbors of each place of rows [r, n] begin, and where they end: int64 [r, n] each."""
    differs, n = value[:, 1:] != value[:, :-1], value.shape[-1]
    place = torch.arange(n, device=value.device)
    first = torch.where(torch.nn.functional.pad(differs, (1, 0), value=True), place, 0)
    after = torch.where(torch.nn.functional.pad(differs, (0, 1), value=True), place + 1, n)
    if value.device.type != "cpu":
        return first.cummax(-1).values, after.flip(-1).cummin(-1).values.flip(-1)
    np.maximum.accumulate(first.numpy(), -1, out=first.numpy())  # 7 times as fast as torch's
    backward = after.numpy()[:, ::-1]
    np.minimum.accumulate(backward, -1, out=backward)
    return first, after


def ascending(keys: Tensor) -> Tensor:
    """Each row in ascending order. On a CPU by NumPy, which is several times as fast as torch."""
    return keys.sort(-1).values if keys.device.type != "cpu" else torch.from_numpy(np.sort(keys.numpy(), -1))


def _argsort(keys: Tensor) -> Tensor:
    return keys.argsort(-1) if keys.device.type != "cpu" else torch.from_numpy(np.argsort(keys.numpy(), -1))


class RankSums(Constant):
    """Numbers of each of `count` sets S: float64 [c, S, 3], or [c, S, 5] if `alerted`.

    They are the set's examples, its positives P, and their statistic U of Mann and Whitney; then, summed over the
    positives, the precision among all examples that score at least as high, and how many are among the hundredth of
    highest score (`ALERTS`), where of equal scores at the border each counts by its chance to be among them.

    score [c, n]; truth bool [c, n]; sets int64 [c, n], the number of each example's set, S if it is in none.
    """

    @staticmethod
    def forward(score: Tensor, truth: Tensor, sets: Tensor, count: int, alerted: bool) -> Tensor:
        return _rank_sums(score, truth, sets, count, alerted)

    @staticmethod
    def vmap(
        info: Batch, in_dims: Dims, score: Tensor, truth: Tensor, sets: Tensor, count: int, alerted: bool
    ) -> tuple[Tensor, int]:
        return RankSums.apply(*over_clients(info.batch_size, in_dims, score, truth, sets), count, alerted), 0


class AverageRanks(Constant):
    """float64 [c, n]: the rank from 1 of each value [c, n] within its set, ties averaged; sets int64 [c, n]."""

    @staticmethod
    def forward(values: Tensor, sets: Tensor) -> Tensor:
        return _average_ranks(values, sets)

    @staticmethod
    def vmap(info: Batch, in_dims: Dims, *operands: Tensor) -> tuple[Tensor, int]:
        return AverageRanks.apply(*over_clients(info.batch_size, in_dims, *operands)), 0

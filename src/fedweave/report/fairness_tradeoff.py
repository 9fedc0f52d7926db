"""Which of several runs is fairer, between members and between groups of people, and at what price."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fedweave.errors import listed
from fedweave.metrics.judging import WORDS
from fedweave.report.cells import Cell, Table, differences, interval, signed
from fedweave.report.groups import alike
from fedweave.report.reading import Group, judged_alike

VERDICTS = ("between members", "between groups of people")
_GAPS = ("groups/global/sp", "groups/global/eo")
_BYTES = ("bytes_up", "bytes_down", "bytes_peer")

Found = Mapping[Any, float]  # by seed


def tradeoff(groups: Sequence[Group]) -> Table:
    """For each group of runs but the first: whether it is fairer than the first one, and what that costs, in the metric
    that judges; no row where these are different ones, or no fairness was measured."""
    metric = judged_alike(groups)
    first, *others = groups
    rows = [row for other in others if metric and (row := _row(first, other, metric))]
    kept = [name for name in dict.fromkeys(name for row in rows for name in row) if any(row[name].text for row in rows)]
    words = ("run", *VERDICTS)
    kept = [name for name in kept if name in words] + [name for name in kept if name not in words]
    cells = tuple(tuple(row[name] for name in kept) for row in rows)
    return Table(tuple(kept), cells, words=sum(name in words for name in kept))


def _row(first: Group, other: Group, metric: str) -> dict[str, Cell]:
    named, worst = WORDS[metric], f"fairness/worst_{metric}"
    same = listed([group.label for group in (other, first) if alike(group)], " and ")
    void = f"none: the gaps of one class for nearly everybody say nothing ({same})" if same else ""
    lowest, gaps = (other.by_seed(worst), first.by_seed(worst)), (_gaps(other), _gaps(first))
    verdicts = [_verdict(*lowest, more=1), _verdict(*gaps, more=-1, void=void)]
    if not any(verdicts):
        return {}
    prices = {f"global/{metric}": f"{named}, all test examples", f"local/{metric}": f"{named}, mean of members"}
    price = {words: _difference(other.by_seed(name), first.by_seed(name)) for name, words in prices.items()}
    return {
        "run": Cell(other.label),
        **{name: Cell(verdict) for name, verdict in zip(VERDICTS, verdicts, strict=True)},
        f"worst-off member's {named}": _difference(*lowest),
        "SP + EO": _difference(*gaps),
        **price,
        "bytes": Cell(_traffic(other, first)),
    }


def _verdict(one: Found, other: Found, more: int, void: str = "") -> str:
    """What a paired test says; "" where nothing was measured. more: the sign of what is better. void: in place of the
    verdict, where there can be none."""
    found = differences(one, other)
    if not found:
        return ""
    low, high = interval(found)
    if void:
        return void
    if low is None or high is None:
        return "not known: one seed"
    if low <= 0 <= high:
        return "no significant difference"
    return "fairer" if (low > 0) == (more > 0) else "less fair"


def _difference(one: Found, other: Found) -> Cell:
    found = differences(one, other)
    if not found:
        return Cell("")
    low, high = interval(found)
    mean = statistics.fmean(found)
    between = "" if low is None or high is None else f"{signed(low)} to {signed(high)}"
    return Cell(signed(mean), repr(mean), between)


def _gaps(group: Group) -> Found:
    """SP + EO."""
    sp, eo = (group.by_seed(name) for name in _GAPS)
    return {seed: sp[seed] + eo[seed] for seed in sp if seed in eo}


def _traffic(one: Group, other: Group) -> str:
    """How many times the bytes of one group's mean run the other's has."""
    mine, theirs = (
        sum(sum(group.by_seed(name).values()) for name in _BYTES) / len(group.runs) for group in (one, other)
    )
    if not theirs:
        return ""
    if mine / theirs < 0.001:
        return "less than a thousandth"
    return "as many" if 0.99 < mine / theirs < 1.01 else f"{mine / theirs:.2f} times"

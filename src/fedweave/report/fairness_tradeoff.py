"""Which of several runs is fairer, between members and between groups of people, and at what price."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fedweave.errors import listed
from fedweave.metrics.judging import WORDS
from fedweave.metrics.paired import differences, interval
from fedweave.report.groups import alike
from fedweave.report.reading import Group, judged_alike

_GAPS = ("groups/global/sp", "groups/global/eo")
_BYTES = ("bytes_up", "bytes_down", "bytes_peer")

Found = Mapping[Any, float]  # by seed


def sentences(groups: Sequence[Group]) -> list[str]:
    """For each group of runs but the first: whether it is fairer than the first one, and what that costs, in the metric
    that judges; none where these are different ones."""
    if not (metric := judged_alike(groups)):
        return []
    first, *others = groups
    return [sentence for other in others if (sentence := _sentence(first, other, metric))]


def _sentence(first: Group, other: Group, metric: str) -> str:
    named, worst = WORDS[metric], f"fairness/worst_{metric}"
    same = listed([group.label for group in (other, first) if alike(group)], " and ")
    void = f"none, for the gaps of one class for nearly everybody say nothing ({same})" if same else ""
    fair = [
        _told("Between members", f"the worst-off member's {named}", other.by_seed(worst), first.by_seed(worst), 1),
        _told("Between groups of people", "SP + EO", _gaps(other), _gaps(first), -1, void),
    ]
    if not any(fair):
        return ""
    prices = {f"global/{metric}": f"{named} on all test examples", f"local/{metric}": f"mean {named} of members"}
    price = [_difference(words, other.by_seed(name), first.by_seed(name)) for name, words in prices.items()]
    paid = ", ".join(filter(None, [next(filter(None, price), ""), _traffic(other, first)])) or "unknown"
    return f"{other.label} compared with {first.label}. {' '.join(filter(None, fair))} At the same time: {paid}."


def _told(between: str, name: str, one: Found, other: Found, more: int, void: str = "") -> str:
    """A verdict and what it rests on; "" where nothing was measured. more: the sign of what is better. void: in place
    of the verdict, where there can be none."""
    found = differences(one, other)
    if not found:
        return ""
    low, high = interval(found)
    if void:
        verdict = void
    elif low is None or high is None:
        verdict = "one seed, which proves nothing"
    elif low <= 0 <= high:
        verdict = "no significant difference"
    else:
        verdict = "fairer" if (low > 0) == (more > 0) else "less fair"
    return f"{between}: {verdict} ({_difference(name, one, other)})."


def _difference(name: str, one: Found, other: Found) -> str:
    found = differences(one, other)
    if not found:
        return ""
    low, high = interval(found)
    between = "" if low is None or high is None else f", 95 % interval {_rounded(low)} to {_rounded(high)}"
    return f"{name} {_rounded(statistics.fmean(found))}{between}"


def _rounded(value: float) -> str:
    return f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")


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
        return "less than a thousandth of the bytes"
    return "as many bytes" if 0.99 < mine / theirs < 1.01 else f"{mine / theirs:.3g} times the bytes"

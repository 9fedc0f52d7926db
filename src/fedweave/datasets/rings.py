"""Rings of accounts that pass money on: who of a ring pays whom, and at which of its stages."""

from typing import NamedTuple

import numpy as np

KINDS = ("fan_in", "fan_out", "cycle", "layering")
FAN_IN, FAN_OUT, CYCLE, LAYERING = range(len(KINDS))
MIN_MEMBERS = 3  # members of a ring
_MAX_MEMBERS = 9
DAYS_BETWEEN = 20.0  # days between the beginnings of two runs of a ring
MAX_DAYS = 3 * DAYS_BETWEEN + 18  # days that a ring may take


class Rings(NamedTuple):
    """R rings with S members altogether, who stand one ring after the other, and their M payments.

    kind:   int64 [R], a place in `KINDS`.
    size:   int64 [R], members.
    ring:   int64 [S], each member's ring.
    layer:  int64 [S], where the money is on its way: 0 at a chain's origin. Members of one layer share a bank.
    source, target: int64 [M], members.
    stage:  int64 [M], from 0: a payment of a later stage is later; all of a fan are of stage 0.
    """

    kind: np.ndarray
    size: np.ndarray
    ring: np.ndarray
    layer: np.ndarray
    source: np.ndarray
    target: np.ndarray
    stage: np.ndarray


def draw_rings(members: int, rng: np.random.Generator) -> Rings:
    """Rings of all kinds with exactly `members` members, at least `MIN_MEMBERS`; the last is a fan-in of the rest."""
    count = members // MIN_MEMBERS + 1
    kind = rng.integers(len(KINDS), size=count)
    size = rng.integers(MIN_MEMBERS, _MAX_MEMBERS + 1, count)
    size = np.where(kind == LAYERING, 2 + 2 * rng.integers(1, 4, count), size)
    whole = int(np.searchsorted(size.cumsum(), members - MIN_MEMBERS, "right"))
    rest = members - int(size[:whole].sum())
    kind, size = np.append(kind[:whole], FAN_IN), np.append(size[:whole], rest)
    ring, place = _repeat(size)
    source, target, stage = _payments(kind, size)
    return Rings(kind, size, ring, _layer(kind[ring], size[ring], place), source, target, stage)


def _repeat(size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int64 [sum]: which of the groups of `size` each of their members is in, and its place there."""
    group = np.repeat(np.arange(len(size)), size)
    return group, np.arange(len(group)) - (size.cumsum() - size)[group]


def _layer(kind: np.ndarray, size: np.ndarray, place: np.ndarray) -> np.ndarray:
    width = (size - 2) // 2
    chain = np.where(place == 0, 0, np.where(place <= width, 1, np.where(place <= 2 * width, 2, 3)))
    return np.where(kind == LAYERING, chain, place)


def _payments(kind: np.ndarray, size: np.ndarray) -> np.ndarray:
    """int64 [3, M]: source, target and stage of the payments, kind by kind of rings."""
    first = size.cumsum() - size

    def of(which: int, count: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rings = np.flatnonzero(kind == which)
        group, place = _repeat(count[rings])
        return first[rings][group], size[rings][group], place

    hub, many, place = of(FAN_IN, size - 1)
    fan_in = hub + 1 + place, hub, np.zeros_like(hub)
    hub, many, place = of(FAN_OUT, size - 1)
    fan_out = hub, hub + 1 + place, np.zeros_like(hub)
    hub, many, place = of(CYCLE, size)
    cycle = hub + place, hub + (place + 1) % many, place
    hub, many, place = of(LAYERING, size // 2 * 3 - 3)  # three payments along each strand
    width = (many - 2) // 2
    stage, strand = place // width, place % width
    source = np.where(stage == 0, 0, 1 + strand + (stage - 1) * width)
    target = np.where(stage == 2, many - 1, 1 + strand + stage * width)
    return np.concatenate([fan_in, fan_out, cycle, (hub + source, hub + target, stage)], 1)


def place(rings: Rings, bank: np.ndarray, used: np.ndarray, spanning: float, rng: np.random.Generator) -> np.ndarray:
    """int64 [S]: the account that each member has, of accounts at `bank` int64 [n] those that are not `used` bool [n].

    spanning: share of the rings whose layers are at one bank after the other; all of another ring are at one.
    An account occurs twice only where a bank has fewer accounts than a ring needs.
    """
    banks = int(bank.max()) + 1
    home = rng.integers(banks, size=len(rings.size))
    spans = rng.random(len(rings.size)) < spanning
    at = (home[rings.ring] + spans[rings.ring] * rings.layer) % banks
    free = rng.permutation(np.flatnonzero(~used))
    free = free[np.argsort(bank[free], kind="stable")]
    supply, demand = np.bincount(bank[free], minlength=banks), np.bincount(at, minlength=banks)
    order = np.argsort(at, kind="stable")
    account = np.empty(len(at), np.int64)
    account[order] = free[(supply.cumsum() - supply)[at[order]] + _repeat(demand)[1] % supply[at[order]]]
    return account


def times(
    rings: Rings, runs: np.ndarray, days: float, pace: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """(payment int64, time float64), one entry for each payment of each of a ring's `runs` int64 [R].

    Times are days from 0 to `days`; in a run a later stage is later, by up to two `pace` days, and a run begins
    `DAYS_BETWEEN` days after the one before.
    """
    of_payment = rings.ring[rings.source]
    payment, run = _repeat(runs[of_payment])
    ring = of_payment[payment]
    gap = rng.uniform(0.1, 1, len(runs)) * pace
    length = (runs - 1) * DAYS_BETWEEN + _MAX_MEMBERS * gap
    start = rng.random(len(runs)) * (days - length)
    within = rings.stage[payment] + rng.uniform(0, 0.99, len(payment))
    return payment, start[ring] + run * DAYS_BETWEEN + within * gap[ring]

"""Changes of a site's policy while a job runs.

If the owner tightens a rule during a run, it holds from the next request on. If the owner loosens a rule, it holds from
the next job on."""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fedweave.sites.flare.policy import covers
from fedweave.sites.flare.policy_names import read_checked
from fedweave.sites.flare.sitefile import SITE_FILE, Rules

T = TypeVar("T")


class PolicyFile:
    """The policy in a site's folder, read again whenever its file has changed."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SITE_FILE
        self._seen = self._mark()

    def news(self) -> Rules | None:
        """The present rules, if the file has changed since the last call; else None."""
        mark = self._mark()
        if mark == self._seen:
            return None
        rules = read_checked(self._path)[1]
        self._seen = mark
        return rules

    def _mark(self) -> tuple[int, ...]:
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return ()
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


def stricter(before: Rules, now: Rules) -> Rules:
    """Rules that forbid what `before` or `now` forbids. Rules that a site checks when a job begins (`algorithms`,
    `parts`, `files`, `members`, `lost`, `releases`) are taken from `now`; the caller checks the job against the first
    four again."""
    values = {name: combine(vars(before)[name], vars(now)[name]) for name, combine in _STRICTER.items()}
    return replace(now, **values)


def rule_changes(before: Rules, now: Rules) -> tuple[list[str], list[str]]:
    """The names of the tightened rules, and the names of the rules that are loosened in whole or in part."""
    was, new, both = vars(before), vars(now), vars(stricter(before, now))
    differing = [field.name for field in fields(Rules) if was[field.name] != new[field.name]]
    tightened = [name for name in differing if name not in _STRICTER or both[name] != was[name]]
    return tightened, [name for name in differing if name in _STRICTER and both[name] != new[name]]


def _both(before: Iterable[T], now: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys((*before, *now)))


def _common(before: Iterable[str], now: Iterable[str]) -> tuple[str, ...]:
    """The keys that both lists cover."""
    both = dict[str, None]()
    for keys, prefixes in ((now, before), (before, now)):
        for key in keys:
            if any(covers(prefix, key) for prefix in prefixes):
                both[key] = None
    return tuple(both)


def _min(before: float | None, now: float | None) -> float | None:
    if before is None or now is None:
        return now if before is None else before
    return min(before, now)


def _of_each(
    choose: Callable[[float, float], float], before: Mapping[str, float], now: Mapping[str, float]
) -> dict[str, float]:
    """The bounds of both, chosen by `choose` (`min` or `max`) where both have one."""
    return {**before, **now} | {key: choose(before[key], now[key]) for key in before.keys() & now.keys()}


def _stricter_exchange(before: bool | int, now: bool | int) -> bool | int:
    """False, or the larger minimum number of nodes in a sum."""
    return max(before, now) if before and now else False


_STRICTER: dict[str, Callable[..., Any]] = (
    dict.fromkeys(("deny", "secure_sum"), _both)
    | dict.fromkeys(("unbounded", "measures"), _common)
    | dict.fromkeys(("mixup", "noise"), partial(_of_each, max))
    | dict.fromkeys(("partial_sums", "repeats", "true_labels"), operator.and_)
    | dict.fromkeys(("epsilon", "delta", "bytes", "max_ids", "max_change", "score_epsilon", "evaluations"), _min)
    | dict.fromkeys(("min_nodes", "min_sites", "min_summed", "min_difference", "round_scores"), max)
    | {"calls": partial(_of_each, min), "exchange": _stricter_exchange}
)

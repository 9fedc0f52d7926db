"""Changes of a site's policy while a job runs.

If the owner tightens a rule during a run, it holds from the next request on. If the owner loosens a rule, it holds from
the next job on."""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fedweave.sites.flare.policy import covers
from fedweave.sites.flare.policy_names import read_checked
from fedweave.sites.flare.sitefile import SITE_FILE, Releases, Rules, Way, way_of

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


@dataclass(frozen=True)
class RuleChange:
    """A rule with another value, as text. It can be tightened in one part and loosened in another; neither if no value
    of the rule is stricter (`Way.NEITHER`)."""

    name: str
    before: str
    after: str
    tightened: bool
    loosened: bool

    def __str__(self) -> str:
        ways = ["tightened"] * self.tightened + ["loosened"] * self.loosened
        return f"{self.name} {' and '.join(ways) or 'changed'}: {self.before} → {self.after}"


def stricter(before: Rules, now: Rules) -> Rules:
    """Rules that forbid what `before` or `now` forbids. Rules that a site checks when a job begins (`algorithms`,
    `parts`, `files`, `members`, `lost`, `releases`) are taken from `now`; the caller checks the job against the first
    four again."""
    names = [rule.name for rule in fields(Rules) if rule.name not in _WHEN_A_JOB_BEGINS]
    return replace(now, **{name: _stricter_value(name, before, now) for name in names})


def rule_changes(before: Rules, now: Rules) -> list[RuleChange]:
    """The rules that differ, and which way."""
    changes = list[RuleChange]()
    for rule in fields(Rules):
        was, new = vars(before)[rule.name], vars(now)[rule.name]
        if _same(was, new):
            continue
        both, has_way = _stricter_value(rule.name, before, now), way_of(rule.name) is not Way.NEITHER
        ways = has_way and not _same(both, was), has_way and not _same(both, new)
        changes.append(RuleChange(rule.name, value_text(was), value_text(new), *ways))
    return changes


def value_text(setting: object) -> str:
    """The value of a rule in words."""
    if isinstance(setting, dict):
        return ", ".join(f"{key} = {value}" for key, value in setting.items()) or "not set"
    if isinstance(setting, list | tuple):
        return ", ".join(map(str, setting)) or "not set"
    if setting is None:
        return "not set"
    if isinstance(setting, bool):
        return "yes" if setting else "no"
    return f"{setting:,}" if isinstance(setting, int) else str(setting)


def _same(one: object, other: object) -> bool:
    """Whether two values of a rule are the same; lists in any order."""
    return set(one) == set(other) if isinstance(one, tuple) and isinstance(other, tuple) else one == other


def _stricter_value(name: str, before: Rules, now: Rules) -> Any:
    """The value of a rule that forbids what either value forbids, by the rule's way and type."""
    default, way, combine = _DEFAULTS[name], way_of(name), _SPECIAL.get(name)
    if way is Way.NEITHER:
        return vars(now)[name]
    if combine is None and isinstance(default, tuple):
        combine = _common if way is Way.ALLOWS else _both
    elif combine is None and isinstance(default, dict):
        combine = partial(_of_each, min if way is Way.ALLOWS else max)
    elif combine is None:
        combine = max if way is Way.DEMANDS else operator.and_ if isinstance(default, bool) else _min
    return combine(vars(before)[name], vars(now)[name])


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


def _common_names(before: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, ...]:
    """What both lists name; an empty one names everything."""
    return tuple(name for name in now if name in before) if before and now else before or now


def _common_entries(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """The entries that both have; an empty one has every entry."""
    return dict(before.items() & now.items()) if before and now else dict(before or now)


def _stricter_release(before: Releases, now: Releases) -> Releases:
    return "same-files" if "same-files" in (before, now) else now


_DEFAULTS = vars(Rules())
_WHEN_A_JOB_BEGINS = ("algorithms", "parts", "files", "members", "lost", "releases")
# Rules of which neither the way nor the type says how two values hold together.
_SPECIAL: dict[str, Callable[..., Any]] = {
    "algorithms": _common_names,
    "members": _common_entries,
    "releases": _stricter_release,
    "exchange": _stricter_exchange,
}

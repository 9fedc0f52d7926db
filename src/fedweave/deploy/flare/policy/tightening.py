"""A site's policy that its owner changes while a run is under way: what is tightened holds from the next call on, what
is loosened from the next job on."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fedweave.deploy.flare.policy.keys import read_checked
from fedweave.deploy.flare.policy.policy import covers
from fedweave.deploy.flare.site.sitefile import SITE_FILE, Rules


class PolicyFile:
    """The policy in a site's folder, looked at again whenever its file has changed."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SITE_FILE
        self._seen = self._mark()

    def news(self) -> Rules | None:
        """The rules as they are now, if the file has changed since the last look; else None.

        Raises:
            ConfigError: the file is gone, or is not valid any more: what its owner wants cannot be known.
        """
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
    """Rules that forbid what either forbids. What is judged as a job begins (`algorithms`, `parts`, `files`, `members`)
    is that of `now`, by which a job has to be judged again; `lost` is of entries that are looked for then alone."""
    found = {name: combine(getattr(before, name), getattr(now, name)) for name, combine in _STRICTER.items()}
    return replace(now, **found)


def changed(before: Rules, now: Rules) -> tuple[list[str], list[str]]:
    """The names of the rules that are tightened, and of those that are loosened in whole or in part."""
    odd = [own.name for own in fields(Rules) if getattr(before, own.name) != getattr(now, own.name)]
    both = stricter(before, now)
    tightened = [name for name in odd if name not in _STRICTER or getattr(both, name) != getattr(before, name)]
    return tightened, [name for name in odd if name in _STRICTER and getattr(both, name) != getattr(now, name)]


def _both(before: Iterable[Any], now: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys((*before, *now)))


def _common(before: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, ...]:
    """The keys that are, or are below, one of either."""
    kept = [key for key in now if any(covers(own, key) for own in before)]
    return _both(kept, [key for key in before if any(covers(own, key) for own in now)])


def _least(before: Any, now: Any) -> Any:
    return min((own for own in (before, now) if own is not None), default=None)


def _of_each(choose: Callable[..., Any]) -> Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]:
    def combine(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
        return {key: choose(before.get(key, now.get(key)), now.get(key, before.get(key))) for key in _both(before, now)}

    return combine


def _all(before: bool, now: bool) -> bool:
    return before and now


def _fewest(before: bool | int, now: bool | int) -> bool | int:
    """Nothing, or only sums of as many nodes as both ask for."""
    return max(before, now) if before and now else False


_STRICTER: dict[str, Callable[[Any, Any], Any]] = (
    dict.fromkeys(("deny", "secure_sum"), _both)
    | dict.fromkeys(("unbounded", "measures"), _common)
    | dict.fromkeys(("mixup", "noise"), _of_each(max))
    | dict.fromkeys(("partial_sums", "repeats", "true_labels"), _all)
    | dict.fromkeys(("epsilon", "delta", "bytes", "max_ids", "max_change", "score_epsilon", "evaluations"), _least)
    | dict.fromkeys(("min_nodes", "min_sites", "min_summed", "round_scores"), max)
    | {"calls": _of_each(min), "exchange": _fewest}
)

"""Which algorithms can run so that the server sees no message of a single member: the table of
docs/guarantees-sums.md, as the registry and what steps declare have it.

    python -m tests.security.summed          # prints the table
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from fedweave.algorithms import ALGORITHMS, GROUPS
from fedweave.algorithms.parts import SecureSum
from fedweave.core.algorithm import calls_of, capabilities
from fedweave.core.federation import Step, step_info
from fedweave.core.mechanism import SecureSum as Sum
from fedweave.errors import ConfigError
from tests.contract.federations import algorithm

HEAD = ("algorithms", "set", "seen of a member in training", "seen of a member's scores")
WAYS: dict[str, dict[str, Any]] = {
    '`parts = ["secure_sum"]`': {"parts": (SecureSum(),)},
    "`secure_sum = true`": {"secure_sum": True},
}
NOTHING, SUMMED = "nothing", 'nothing with `scores = "sum"`'


def seen(steps: tuple[Step, ...]) -> list[str]:
    """The declared keys that the server gets from these steps of each client by itself."""
    declared = [(key, sends) for step in dict.fromkeys(steps) for key, sends in step_info(step).sends.items()]
    return sorted({key for key, sends in declared if not any(isinstance(one, Sum) for one in sends.mechanisms)})


@cache
def summed(name: str) -> tuple[str, str, str, str] | None:
    """The row of an algorithm; None where it takes no secure sum, or has one client alone."""
    if capabilities(ALGORITHMS[name]).pooled:
        return None
    for how, settings in WAYS.items():
        try:
            calls = calls_of(algorithm(name, **settings), name, 5)
        except ConfigError:
            continue
        try:
            algorithm(name, **settings, scores="sum")
            scores = SUMMED
        except ConfigError:
            scores = _keys(seen(calls.evaluation))
        return f"`{name}`", how, _keys(seen((*calls.setup, *calls.round))), scores
    return None


def rows() -> Iterator[tuple[str, ...]]:
    """Of all algorithms that take one, in the order in which they are listed."""
    names = dict.fromkeys(name for group in GROUPS.values() for name in group)
    yield from filter(None, map(summed, names))


def table() -> str:
    """In Markdown, with a row for the algorithms of which the server sees the same."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, *shown in rows():
        names.setdefault(tuple(shown), []).append(name)
    lines = [HEAD, ("---",) * len(HEAD), *((", ".join(group), *shown) for shown, group in names.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def refused() -> list[str]:
    """The algorithms of several clients that take none."""
    return [name for name, kind in ALGORITHMS.items() if not capabilities(kind).pooled and summed(name) is None]


def _keys(keys: list[str]) -> str:
    return ", ".join(dict.fromkeys(f"`{key.split('/')[0]}`" for key in keys)) or NOTHING


if __name__ == "__main__":
    print(table())
    print(*refused())

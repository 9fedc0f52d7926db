"""A site's policy, enforced on the site before anything is sent."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from fedweave.core.ledger import Entry
from fedweave.core.tree import Tree
from fedweave.engines.flare.sitefile import Rules
from fedweave.errors import FedweaveError

_NUMBER = r"([0-9.]+(?:e[+-]?[0-9]+)?)"
_MIXUP, _NOISE, _EPSILON = (re.compile(pattern + _NUMBER) for pattern in (r"mixup of ", r"noise of sigma ", r"ε ?= ?"))


class PolicyViolation(FedweaveError):
    """The site's policy forbids a message; names the rule, never a value of the message."""


@dataclass
class Spent:
    """What has left the site over all runs: bytes, and ε by basic composition."""

    bytes: int = 0
    epsilon: float = 0.0

    def add(self, entry: Entry) -> None:
        """Count an entry of one of the site's journals."""
        self.bytes += entry.size * len(entry.clients)
        self.epsilon += _epsilon({key.split("/")[0]: mechanism for key, _, _, mechanism, _ in entry.keys})


def check_algorithm(rules: Rules, name: str) -> None:
    """Refuse a job whose algorithm is not allowed.

    Raises:
        PolicyViolation: names it and those that are.
    """
    if rules.algorithms and name not in rules.algorithms:
        raise PolicyViolation(f"policy.algorithms: {name} is not among {', '.join(rules.algorithms)}")


def check_reply(rules: Rules, spent: Spent, reply: Tree, size: int, mechanisms: Mapping[str, str]) -> None:
    """Refuse to send `reply`, of `size` bytes when serialised, unless every rule allows it.

    mechanisms: {key: what the step did to protect it}, in the ledger's words.

    Raises:
        PolicyViolation: names the rule and the key.
    """
    if denied := [key for key in reply if key in rules.deny]:
        raise PolicyViolation(f"policy.deny: {', '.join(denied)} may not leave")
    for rule, pattern in (("mixup", _MIXUP), ("noise", _NOISE)):
        for key, least in getattr(rules, rule).items():
            got = _found(pattern, mechanisms.get(key, "none"))
            if key in reply and (got is None or got < least):
                raise PolicyViolation(
                    f"policy.{rule}: {key} needs at least {least:g}, the algorithm applies "
                    f"{mechanisms.get(key, 'none')!r}"
                )
    if rules.bytes is not None and spent.bytes + size > rules.bytes:
        raise PolicyViolation(f"policy.bytes: {spent.bytes} have left and {size} more would exceed {rules.bytes}")
    cost = _epsilon({key: mechanisms.get(key, "none") for key in reply})
    if rules.epsilon is not None and spent.epsilon + cost > rules.epsilon:
        raise PolicyViolation(f"policy.epsilon: ε = {spent.epsilon:g} is spent, {cost:g} more exceed {rules.epsilon:g}")


def _epsilon(mechanisms: Mapping[str, str]) -> float:
    return sum(_found(_EPSILON, mechanism) or 0.0 for mechanism in mechanisms.values())


def _found(pattern: re.Pattern[str], mechanism: str) -> float | None:
    match = pattern.search(mechanism)
    return float(match.group(1)) if match else None

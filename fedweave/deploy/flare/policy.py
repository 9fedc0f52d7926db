"""A site's policy, enforced on the site before anything is sent."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from fedweave.core.ledger import Entry
from fedweave.core.tree import Tree
from fedweave.deploy.flare.sitefile import Rules
from fedweave.errors import FedweaveError
from fedweave.privacy.gaussian import epsilon

_NUMBER = r"([0-9.]+(?:e[+-]?[0-9]+)?)"
_MIXUP, _NOISE, _EPSILON, _MU = (
    re.compile(pattern + _NUMBER) for pattern in (r"mixup of ", r"noise of sigma ", r"ε ?= ?", r"μ ?= ?")
)
_SECURE = "secure sum"  # totals, "ε is …", are not counted: they stand for messages that were
DELTA = 1e-5  # of the ε of Gaussian noise


class PolicyViolation(FedweaveError):
    """The site's policy forbids a message; names the rule, never a value of the message."""


@dataclass
class Spent:
    """What has left the site over all runs: bytes and privacy. Messages that state an ε add it up; those that state the
    μ of Gaussian noise add its square, which composes exactly (Dong, Roth and Su 2022, corollary 3.3)."""

    bytes: int = 0
    stated: float = 0.0
    squared: float = 0.0

    @property
    def epsilon(self) -> float:
        """ε of everything, at δ = `DELTA`."""
        return self.stated + (epsilon(math.sqrt(self.squared), DELTA) if self.squared else 0.0)

    def add(self, entry: Entry) -> None:
        """Count an entry of one of the site's journals."""
        mechanisms = {key.split("/")[0]: mechanism for key, _, _, mechanism, _ in entry.keys}
        after = self.after(entry.size * len(entry.clients), mechanisms)
        self.bytes, self.stated, self.squared = after.bytes, after.stated, after.squared

    def after(self, size: int, mechanisms: Mapping[str, str]) -> "Spent":
        """What will have left after one more message of `size` bytes with these `mechanisms` by key."""
        stated = sum(_found(_EPSILON, mechanism) or 0.0 for mechanism in mechanisms.values())
        squared = sum((_found(_MU, mechanism) or 0.0) ** 2 for mechanism in mechanisms.values())
        return Spent(self.bytes + size, self.stated + stated, self.squared + squared)


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
    for key in rules.secure_sum:
        if key in reply and _SECURE not in mechanisms.get(key, "none"):
            raise PolicyViolation(
                f"policy.secure_sum: {key} may only leave in a secure sum, the algorithm applies "
                f"{mechanisms.get(key, 'none')!r}"
            )
    after = spent.after(size, {key: mechanisms.get(key, "none") for key in reply})
    if rules.bytes is not None and after.bytes > rules.bytes:
        raise PolicyViolation(f"policy.bytes: {spent.bytes} have left and {size} more would exceed {rules.bytes}")
    if rules.epsilon is not None and after.epsilon > rules.epsilon:
        more = after.epsilon - spent.epsilon
        raise PolicyViolation(f"policy.epsilon: ε = {spent.epsilon:g} is spent, {more:g} more exceed {rules.epsilon:g}")


def _found(pattern: re.Pattern[str], mechanism: str) -> float | None:
    match = pattern.search(mechanism)
    return float(match.group(1)) if match else None

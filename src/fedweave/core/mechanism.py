"""What protects a value before it leaves its client, as a dataclass: its fields, its cost, and a form for files.

Several mechanisms of one key are a tuple in the order in which they are applied: clipped, then noised, then put into a
secure sum. `short` is a mechanism's name without its settings, "" for one that refers to another key. Nothing here
knows tensors; the code that applies a mechanism is elsewhere, mostly in `fedweave.privacy`.
"""

import dataclasses
import json
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple, TypeAlias

from fedweave.core.text import counted
from fedweave.errors import FedweaveError


@dataclass(frozen=True)
class Cost:
    """The most that a receiver may learn about one record; the costs of several releases of it add up.

    epsilon:    ε of pure differential privacy (basic composition).
    squared_mu: μ² of Gaussian differential privacy, which composes exactly (Dong, Roth and Su 2022, "Gaussian
                Differential Privacy", corollary 3.3).
    unbounded:  how many releases have no known bound. A single one leaves the total without a bound.

    `privacy.gaussian.total_epsilon` combines the first two into one ε.
    """

    epsilon: float = 0.0
    squared_mu: float = 0.0
    unbounded: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.epsilon + other.epsilon, self.squared_mu + other.squared_mu, self.unbounded + other.unbounded)

    def __mul__(self, times: int) -> "Cost":
        return Cost(self.epsilon * times, self.squared_mu * times, self.unbounded * times)


UNBOUNDED = Cost(unbounded=1)
AGAIN = "again"  # a release, see `LDP`


@dataclass(frozen=True)
class Mixup:
    """Every row that leaves is the mean of at least `least` records. Bounds no ε. (As in all mechanisms, `cost` is that
    of one release.)"""

    short: ClassVar[str] = "mixup"
    least: int

    def __post_init__(self) -> None:
        _check("least", self.least, 1)

    def __str__(self) -> str:
        return f"mixup of {self.least} or more"

    def cost(self) -> Cost:
        return UNBOUNDED


@dataclass(frozen=True)
class Clipped:
    """Scaled down to the L2 norm `norm` at most. Bounds influence and no ε."""

    short: ClassVar[str] = "clipped"
    norm: float

    def __post_init__(self) -> None:
        _check("norm", self.norm)

    def __str__(self) -> str:
        return f"clipped to L2 norm {self.norm:g}"

    def cost(self) -> Cost:
        return UNBOUNDED


@dataclass(frozen=True)
class Gaussian:
    """Every number gets noise of the standard deviation `sigma`.

    sensitivity: the most, in L2 norm, by which replacing a record changes what leaves; None if nothing limits it, and
                 then there is no ε.
    per:         what a record is: "row", "node", "client".
    delta:       δ of the stated ε.
    release:     see `LDP`.
    """

    short: ClassVar[str] = "Gaussian noise"
    sigma: float
    sensitivity: float | None = None
    per: str = "row"
    delta: float = 1e-5
    release: str = ""

    def __post_init__(self) -> None:
        _check("sigma", self.sigma)
        if self.sensitivity is not None:
            _check("sensitivity", self.sensitivity)
        _check("delta", self.delta)
        if self.delta >= 1:
            raise ValueError(f"delta is {self.delta}; it must lie between 0 and 1, such as 1e-5")
        _check_words(self.per, self.release)

    def __str__(self) -> str:
        bound = "" if self.mu is None else f" (μ = {self.mu:.4g} per {self.per})"
        return f"Gaussian noise of sigma {self.sigma:g}{bound}{_once(self.release)}"

    @property
    def mu(self) -> float | None:
        """μ of one release (Gaussian differential privacy)."""
        return None if self.sensitivity is None else self.sensitivity / self.sigma

    def cost(self) -> Cost:
        return UNBOUNDED if self.mu is None else Cost(squared_mu=self.mu * self.mu)


@dataclass(frozen=True)
class LDP:
    """ε-local differential privacy: for any two values of a record, every output is at most e^ε times as likely for one
    as for the other.

    epsilon: ε of everything that leaves about one record in one release.
    per:     what a record is: "node", "pair of nodes".
    release: the entry of `Client.state` that holds a value which is drawn once and sent again at no further cost
             (permanent randomized response, Erlingsson et al. 2014, "RAPPOR"). A new draw is noticed by it and counted
             again. Empty: every message has a new draw.
             `AGAIN`: the message itself has left before, and costs nothing more.
    one_draw: whether all keys that declare this very mechanism are functions of one draw, which counts once; else each
              key counts.
    """

    short: ClassVar[str] = "local differential privacy"
    epsilon: float
    per: str
    release: str = ""
    one_draw: bool = False

    def __post_init__(self) -> None:
        _check("epsilon", self.epsilon)
        _check_words(self.per, self.release)

    def __str__(self) -> str:
        return f"local differential privacy, ε = {self.epsilon:g} per {self.per}{_once(self.release)}"

    def cost(self) -> Cost:
        return Cost(epsilon=self.epsilon)


SLOTS = 16  # secure sums for which sites agree on keys at once


@dataclass(frozen=True)
class SecureSum:
    """Encoded as masked integers (`privacy.secure_sum`), so that the receiver learns only their sum over clients. The
    process that runs the step masks its reply. Bounds no ε.

    least:    the fewest clients in the sum; it also covers more than half of all clients.
    everyone: whether the sum covers all clients.
    bits:     size of an integer, 32 or 64. fraction: its binary digits behind the point.
    accomplices: of P clients, c that may help the receiver: the sum covers more than (P + c) / 2.
    """

    short: ClassVar[str] = "secure sum"
    least: int = 2
    everyone: bool = False
    bits: int = 32
    fraction: int = 16
    accomplices: int = 0

    def __post_init__(self) -> None:
        _check("least", self.least, 2)
        _check("fraction", self.fraction, 0)
        _check("accomplices", self.accomplices, 0)
        if self.bits not in (32, 64) or self.fraction > self.bits - 2 or not isinstance(self.everyone, bool):
            raise ValueError(f"bits is {self.bits!r} and fraction {self.fraction}; words have 32 or 64 bits")

    def __str__(self) -> str:
        against = f", against {counted(self.accomplices, 'accomplice')}" if self.accomplices else ""
        of = "all clients" if self.everyone else f"{self.least} clients or more{against}"
        return f"secure sum of {of}, so the receiver learns only the sum"

    def min_terms(self, clients: int) -> int:
        """The fewest terms that a sum may have in a federation of this many clients."""
        if self.everyone:
            return clients
        return max(self.least, min(clients, (clients + self.accomplices) // 2 + 1))

    def cost(self) -> Cost:
        return UNBOUNDED


@dataclass(frozen=True)
class Derived:
    """A function of what leaves, protected, in the same message under the key `of`; it costs nothing more."""

    short: ClassVar[str] = ""
    of: str

    def __post_init__(self) -> None:
        if not isinstance(self.of, str) or not self.of:
            raise ValueError(f"of is {self.of!r}; it names the other key")

    def __str__(self) -> str:
        return f"a function of what leaves as {self.of}, protected as that is"

    def cost(self) -> Cost:
        """The cost of one release, in addition to the cost of `of`."""
        return Cost()


Mechanism: TypeAlias = Mixup | Clipped | Gaussian | LDP | SecureSum | Derived
Mechanisms: TypeAlias = tuple[Mechanism, ...]
KINDS: dict[str, type[Mechanism]] = {
    "mixup": Mixup,
    "clipped": Clipped,
    "gaussian": Gaussian,
    "ldp": LDP,
    "secure_sum": SecureSum,
    "derived": Derived,
}
_NAMES = {kind: name for name, kind in KINDS.items()}


class Applied(NamedTuple):
    """The mechanisms of the part of a message under one declared key; () for none."""

    key: str
    mechanisms: Mechanisms

    def __str__(self) -> str:
        """The line for ledgers and pages."""
        return ", ".join(map(str, self.mechanisms)) or "none"

    def text(self) -> str | None:
        """The form for files, which `read_applied` undoes; None without mechanisms."""
        if not self.mechanisms:
            return None
        plain = [{"kind": _NAMES[type(one)], **dataclasses.asdict(one)} for one in self.mechanisms]
        return json.dumps({"key": self.key, "mechanisms": plain}, ensure_ascii=False)


@lru_cache(maxsize=1024)
def read_applied(text: str) -> Applied:
    """Undo `Applied.text`.

    Raises:
        FedweaveError: the text does not have this form: a mechanism or field is unknown, absent or out of range.
    """
    try:
        record = json.loads(text)
        if not isinstance(record, dict) or record.keys() != {"key", "mechanisms"}:
            raise ValueError("it is not {key, mechanisms}")
        key, listed = record["key"], record["mechanisms"]
        if not isinstance(key, str) or not isinstance(listed, list) or not listed:
            raise ValueError("its key is not a word, or its mechanisms are not a list")
        return Applied(key, tuple(map(_mechanism, listed)))
    except (ValueError, TypeError, RecursionError) as error:
        raise FedweaveError(
            f"{text!r} states no mechanism that is known here: {error}. Use the version of fedweave that wrote it.",
            code="mechanism.unknown",
        ) from error


@dataclass(frozen=True)
class PrivacyAccount:
    """The total cost of one holder's releases, and which of them cost nothing more when they are sent again."""

    cost: Cost = Cost()
    released: frozenset[tuple[str, Mechanism]] = frozenset()

    def after(self, applied: Applied, times: int = 1) -> "PrivacyAccount":
        """The account after a release that was sent `times` times.

        Each of several bounding mechanisms is counted, although one would do.
        """
        bounding = [mechanism for mechanism in applied.mechanisms if mechanism.cost() != UNBOUNDED]
        if not bounding:
            return dataclasses.replace(self, cost=self.cost + UNBOUNDED * times)
        cost, released = self.cost, self.released
        for mechanism in bounding:
            release = release_of(mechanism)
            if release == AGAIN:
                continue
            if not release:
                cost += mechanism.cost() * times
                continue
            one_draw = isinstance(mechanism, LDP) and mechanism.one_draw  # of all keys
            at = ("" if one_draw else applied.key, mechanism)
            if at not in released:
                cost, released = cost + mechanism.cost(), released | {at}
        return PrivacyAccount(cost, released)


def release_of(mechanism: Mechanism) -> str:
    """The mechanism's release id, see `LDP`; empty if every message has a new draw."""
    return mechanism.release if isinstance(mechanism, Gaussian | LDP) else ""


def _mechanism(record: object) -> Mechanism:
    if not isinstance(record, dict):
        raise ValueError(f"{record!r} is not a mechanism")
    fields = dict(record)
    kind = fields.pop("kind", None)
    if kind not in KINDS:
        raise ValueError(f"the kind {kind!r} is not one of {', '.join(KINDS)}")
    return KINDS[kind](**fields)


def _check(name: str, value: float, minimum: int | None = None) -> None:
    """Raise ValueError unless `value` is finite and positive or, with `minimum`, a whole number of at least that."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if minimum is not None:
        if not whole or value < minimum:
            raise ValueError(f"{name} is {value!r}; it must be a whole number of at least {minimum}")
    elif not (whole or isinstance(value, float)) or not 0 < value <= sys.float_info.max:
        raise ValueError(f"{name} is {value!r}; it must be a positive number")


def _check_words(per: object, release: object) -> None:
    if not isinstance(per, str) or not per or not isinstance(release, str):
        raise ValueError(f"per is {per!r} and release {release!r}; both are words, and per says what a record is")


def _once(release: str) -> str:
    if release == AGAIN:
        return ", sent again as it was"
    return ", drawn once" if release else ""

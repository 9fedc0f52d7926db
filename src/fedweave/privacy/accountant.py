"""Privacy cost of the mechanisms in a run's ledger: the ε that they bound, added up over the run."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.mechanism import LDP, Applied, Gaussian, PrivacyAccount, read_applied
from fedweave.core.text import counted
from fedweave.core.types import Record

WEAK, VOID = 10, 100  # an ε above WEAK protects little, above VOID practically nothing
_MESSAGE = ["client", "direction", "step", "round", "call", "applied"]


@dataclass(frozen=True)
class Bound:
    """Total cost of the messages that a client sent about one record under differential privacy, or the largest total
    of all clients.

    per:      the kind of record.
    epsilon:  the total ε, at δ = `delta`, which is None if no noise needs one.
    messages: number of messages; the largest number of any client.
    """

    per: str
    epsilon: float
    delta: float | None
    messages: int

    def __str__(self) -> str:
        """A sentence with the bound."""
        at_delta = "" if self.delta is None else f" at δ = {self.delta:g}"
        after = counted(self.messages, "message")
        cost = f"ε = {self.epsilon:.4g}{at_delta} after {after}"
        return f"Differential privacy of what was noised, per {self.per}: {cost}."

    @property
    def remark(self) -> str:
        """The strength of this ε in words: "" if it protects."""
        if self.epsilon <= WEAK:
            return ""
        return "protects practically nothing" if self.epsilon > VOID else "protects little"


def remarks(epsilon_bounds: Iterable[Bound]) -> list[str]:
    """A sentence if any of the bounds protects little; [] if all protect."""
    worst = max((bound.epsilon for bound in epsilon_bounds), default=0.0)
    if worst <= WEAK:
        return []
    odds = f"{float(f'{math.exp(worst):.2g}'):,.0f}" if worst <= 20 else f"10^{math.floor(worst / math.log(10))}"
    return [
        f"An ε above {WEAK} protects little, and one above {VOID} practically nothing: at ε = {worst:.4g} what was "
        f"sent may be {odds} times as likely with a record as without it."
    ]


def bounds(*ledgers: pa.Table) -> list[Bound]:
    """The largest bound of any client for each kind of record, from the ledgers of one run or of several runs; [] if no
    mechanism states a cost.

    Bounds of several clients on one record are not added up. Mechanisms without a bound do not count.
    """
    largest: dict[str, Bound] = {}
    for bound in chain.from_iterable(of_members(*ledgers).values()):
        max_bound = largest.get(bound.per, bound)
        epsilon, messages = max(max_bound.epsilon, bound.epsilon), max(max_bound.messages, bound.messages)
        largest[bound.per] = replace(max_bound, epsilon=epsilon, messages=messages)
    return list(largest.values())


def of_members(*ledgers: pa.Table) -> dict[str, list[Bound]]:
    """{client: its total bounds, one for each kind of record}, only of clients that sent a message under differential
    privacy. A run draws permanent noise once, and the next run draws it again."""
    accounts: dict[tuple[str, str], PrivacyAccount] = defaultdict(PrivacyAccount)
    times: dict[tuple[str, str], int] = defaultdict(int)
    deltas: dict[str, float] = {}
    for ledger in ledgers:
        for at in accounts:  # a new run
            accounts[at] = replace(accounts[at], released=frozenset())
        for row in _messages(ledger):
            applied = read_applied(row["applied"])
            for per, mechanisms in _by_unit(applied).items():
                at = per, row["client"]
                accounts[at] = accounts[at].after(Applied(applied.key, mechanisms), row["times"])
                times[at] += row["times"]
                for noise in mechanisms:
                    if isinstance(noise, Gaussian):
                        deltas[per] = min(noise.delta, deltas.get(per, noise.delta))
    if not accounts:
        return {}
    from fedweave.privacy.gaussian import total_epsilon  # imports torch, which ledgers without noise need not

    by_client: dict[str, list[Bound]] = defaultdict(list)
    for (per, client), account in accounts.items():
        delta = deltas.get(per)
        bound = Bound(per, total_epsilon(account.cost, delta or 1e-5), delta, times[per, client])
        by_client[client].append(bound)
    return dict(by_client)


def over_rounds(ledger: pa.Table) -> dict[str, dict[int, float]]:
    """{kind of record: {round: ε of all messages up to the round}}, for the client with the highest cost."""
    from fedweave.privacy.gaussian import total_epsilon  # imports torch, which ledgers without noise need not

    accounts: dict[tuple[str, str], PrivacyAccount] = defaultdict(PrivacyAccount)
    deltas: dict[str, float] = {}
    curves: dict[str, dict[int, float]] = defaultdict(dict)
    for row in _messages(ledger, by_round=True):
        applied = read_applied(row["applied"])
        for per, values in _by_unit(applied).items():
            at = per, row["client"]
            accounts[at] = accounts[at].after(Applied(applied.key, values), row["times"])
            for noise in values:
                if isinstance(noise, Gaussian):
                    deltas[per] = min(noise.delta, deltas.get(per, 1.0))
            delta = deltas.get(per, 1e-5)
            so_far = max(curves[per].values(), default=0.0)
            curves[per][row["round"]] = max(total_epsilon(accounts[at].cost, delta), so_far)
    return {per: dict(values) for per, values in curves.items()}


def states_bound(text: str | None) -> bool:
    """Whether an `applied` of the ledger bounds an ε."""
    return text is not None and bool(_by_unit(read_applied(text)))


def _by_unit(applied: Applied) -> dict[str, tuple[Gaussian | LDP, ...]]:
    """The mechanisms that bound an ε, by their kind of record."""
    by_unit: dict[str, tuple[Gaussian | LDP, ...]] = {}
    for mechanism in applied.mechanisms:
        if isinstance(mechanism, Gaussian | LDP) and not mechanism.cost().unbounded:
            by_unit[mechanism.per] = (*by_unit.get(mechanism.per, ()), mechanism)
    return by_unit


def _messages(ledger: pa.Table, by_round: bool = False) -> list[Record]:
    """{"client", "applied", "times"}: number of messages of each client with the same mechanisms; with `by_round` for
    each "round", in order.

    A message has a row for each leaf. A message to several peers has these rows for each peer, and a repeated round has
    all its rows again.
    """
    released = ledger.filter(pc.is_valid(ledger["applied"])).select([*_MESSAGE, "key", "to"])
    for at, field in enumerate(released.schema):
        if pa.types.is_dictionary(field.type):
            released = released.set_column(at, field.name, released[at].cast(field.type.value_type))
    rows = released.group_by([*_MESSAGE, "key", "to"]).aggregate([([], "count_all")])
    messages = rows.group_by(_MESSAGE).aggregate([("count_all", "max")])
    kinds = ["client", "applied", *(["round"] if by_round else [])]
    sums = messages.group_by(kinds).aggregate([("count_all_max", "sum")])
    result: list[Record] = sums.sort_by("round").to_pylist() if by_round else sums.to_pylist()
    for row in result:
        row["times"] = row.pop("count_all_max_sum")
    return result

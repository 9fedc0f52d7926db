"""What the mechanisms in a run's ledger come to: the ε that they bound, added up over the run."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.mechanism import LDP, Account, Applied, Gaussian, read_applied

_MESSAGE = ["client", "direction", "step", "round", "call", "applied"]


@dataclass(frozen=True)
class Bound:
    """What clients sent of one record under differential privacy, added up for the client that sent most.

    per:      what a record is.
    epsilon:  the ε of it all, at δ = `delta`, which is None where no noise needs one.
    messages: how many; most of any client.
    """

    per: str
    epsilon: float
    delta: float | None
    messages: int

    def __str__(self) -> str:
        """A sentence."""
        at = "" if self.delta is None else f" at δ = {self.delta:g}"
        often = "1 message" if self.messages == 1 else f"{self.messages:,} messages"
        return f"Differential privacy of what was noised, per {self.per}: ε = {self.epsilon:.4g}{at} after {often}."


def bounds(ledger: pa.Table) -> list[Bound]:
    """One for each kind of record in a ledger's table; none where nothing states a cost.

    What several clients hold of one record is not added up. Other mechanisms bound nothing and are not in it.
    """
    accounts: dict[tuple[str, str], Account] = defaultdict(Account)
    times: dict[tuple[str, str], int] = defaultdict(int)
    deltas: dict[str, float] = {}
    for row in _messages(ledger):
        applied = read_applied(row["applied"])
        for per, own in _by_unit(applied).items():
            at = per, row["client"]
            accounts[at] = accounts[at].after(Applied(applied.key, own), row["times"])
            times[at] += row["times"]
            for noise in own:
                if isinstance(noise, Gaussian):
                    deltas[per] = min(noise.delta, deltas.get(per, noise.delta))
    units = dict.fromkeys(per for per, _ in accounts)
    return [_bound(per, deltas.get(per), accounts, times) for per in units]


def states_bound(text: str | None) -> bool:
    """Whether an `applied` of the ledger bounds an ε."""
    return text is not None and bool(_by_unit(read_applied(text)))


def _bound(per: str, delta: float | None, accounts: dict[Any, Account], times: dict[Any, int]) -> Bound:
    from fedweave.privacy.gaussian import total_epsilon  # imports torch, which ledgers without noise need not

    mine = [at for at in accounts if at[0] == per]
    most = max(total_epsilon(accounts[at].cost, delta or 1e-5) for at in mine)
    return Bound(per, most, delta, max(times[at] for at in mine))


def _by_unit(applied: Applied) -> dict[str, tuple[Gaussian | LDP, ...]]:
    """The mechanisms that bound an ε, by what they call a record."""
    found: dict[str, tuple[Gaussian | LDP, ...]] = {}
    for own in applied.mechanisms:
        if isinstance(own, Gaussian | LDP) and not own.cost().unbounded:
            found[own.per] = (*found.get(own.per, ()), own)
    return found


def _messages(ledger: pa.Table) -> list[dict[str, Any]]:
    """{"client", "applied", "times"}: how often each client sent something with the same mechanisms.

    A message has a row for each leaf, one that went to several peers one for each of them, and a round that was done
    again has all of them again.
    """
    some = ledger.filter(pc.is_valid(ledger["applied"])).select([*_MESSAGE, "key", "to"])
    plain = some.cast(pa.schema([field.with_type(_value_type(field.type)) for field in some.schema]))
    rows = plain.group_by([*_MESSAGE, "key", "to"]).aggregate([([], "count_all")])
    messages = rows.group_by(_MESSAGE).aggregate([("count_all", "max")])
    sums = messages.group_by(["client", "applied"]).aggregate([("count_all_max", "sum")])
    return [
        {"client": row["client"], "applied": row["applied"], "times": row["count_all_max_sum"]}
        for row in sums.to_pylist()
    ]


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind

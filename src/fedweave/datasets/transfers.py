"""Transfers between accounts of several banks, of any size, with planted rings of accounts that launder money: who of
a ring pays whom, and at which of its stages.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import Field

from fedweave.core.bounds import Count, Fraction
from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.random import generator
from fedweave.core.settings import Settings
from fedweave.datasets.base import Dataset, to_undirected
from fedweave.datasets.check import check_settings
from fedweave.datasets.edges import as_edges
from fedweave.datasets.lookup import AbsentData
from fedweave.errors import ConfigError

KINDS = ("fan_in", "fan_out", "cycle", "layering")
FAN_IN, FAN_OUT, CYCLE, LAYERING = range(len(KINDS))
MIN_MEMBERS = 3  # members of a ring
_MAX_MEMBERS = 9
DAYS_BETWEEN = 20.0  # days between the beginnings of two runs of a ring
MAX_DAYS = 3 * DAYS_BETWEEN + 18  # days that a ring may take
PRESETS = {  # accounts, transfers, share of frauds
    "banks": (30_000, 150_000, 0.01),
    "small": (600, 3_000, 0.05),
    "large": (1_000_000, 10_000_000, 0.0005),
}
CLASSES, OF_TRANSFERS = ("honest", "fraud"), ("ordinary", "laundering")
CUSTOMERS, CHANNELS = ("private", "business", "merchant"), ("transfer", "instant", "card", "foreign")
SHARES = (0.6, 0.2, 0.2)  # of the transfers, by time, that are of train, val and test
_OF_CUSTOMERS = ((0.85, 0.12, 0.03), (0.78, 0.2, 0.02))  # honest, frauds
_OF_CHANNELS = ((0.5, 0.25, 0.2, 0.05), (0.38, 0.42, 0.05, 0.15))  # ordinary, laundering
_AGE, _TURNOVER, _AMOUNT = (6.8, 0.9), (9.5, 1.1), (4.6, 1.2)  # means and deviations of logarithms
_LARGE = 0.03  # of the ordinary transfers are large for an account, such as for a car
_EPOCH = np.datetime64("2024-01-01", "us")
Columns = tuple[np.ndarray, ...]  # of transfers: source, target, amount, channel, time


class Draw(NamedTuple):
    """One draw: n accounts, and M transfers in order of time.

    bank, customer: int64 [n]. age: float64 [n], days. turnover: float64 [n], declared, a year. fraud: bool [n].
    source, target: int64 [M]. amount: float64 [M]. channel: int64 [M]. time: float64 [M], days.
    laundering: bool [M], whether it is a ring's.
    """

    bank: np.ndarray
    customer: np.ndarray
    age: np.ndarray
    turnover: np.ndarray
    fraud: np.ndarray
    source: np.ndarray
    target: np.ndarray
    amount: np.ndarray
    channel: np.ndarray
    time: np.ndarray
    laundering: np.ndarray


@dataclass(frozen=True)
class Transfers(Settings):
    """Accounts of several banks and the transfers between them; some belong to rings that launder money.

    Rings are fan-ins, fan-outs, cycles and layered chains; all their members are frauds, who also pay and are paid as
    others do. Groups of honest accounts pay each other in the same shapes. Frauds tend to have young accounts, and
    laundered amounts to be large for the account, in haste and at any hour; no single feature gives them away.
    `task` decides whether examples are accounts (`y`), whose owners are banks, or transfers, which have labels
    (`carried.y`) and a split by time (`carried.split`) of their own: the first .6, the next .2 and the last .2.

    preset:    values of settings that you leave out: "banks" (30,000 accounts, 150,000 transfers, 1 % frauds),
               "small" (600, 3,000, 5 %) or "large" (1 million, 10 million, .05 %).
    accounts:  number of accounts.
    transfers: number of transfers, including the transfers of rings.
    fraud:     share of accounts that are in rings.
    banks:     number of banks, which have equal numbers of accounts.
    crossing:  share of the ordinary transfers that go to another bank.
    spanning:  share of the rings whose members are at several banks.
    decoys:    members of honest groups for each fraud.
    days:      days that the transfers take.
    task:      what is classified: "nodes", the accounts, or "edges", the transfers.
    """

    preset: str = "banks"
    accounts: int | None = None
    transfers: int | None = None
    fraud: float | None = None
    banks: Count = 3
    crossing: Fraction = 0.3
    spanning: Fraction = 0.6
    decoys: Annotated[float, Field(ge=0, le=3)] = 2.0
    days: Annotated[float, Field(gt=MAX_DAYS)] = 180.0
    task: Literal["nodes", "edges"] = "nodes"

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ConfigError(
                f"preset = {self.preset!r}: there is none. Choose one of {', '.join(PRESETS)}.", code="config.value"
            )
        accounts, transfers, frauds = self.sizes
        settings = vars(self) | {"accounts": accounts, "transfers": transfers, "fraud": frauds / accounts}
        rules = (
            (self.banks <= accounts / 10, "banks", f"at least 1, and a tenth of {accounts:,} accounts"),
            (accounts < 2**31, "accounts", "below 2^31"),
            (MIN_MEMBERS <= frauds <= accounts / 5, "fraud", f"{MIN_MEMBERS} accounts or more, up to a fifth"),
            (transfers >= 5 * (1 + self.decoys) * frauds, "transfers", "5 or more for each member of a group"),
        )
        check_settings(settings, rules)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(accounts, transfers, frauds)."""
        accounts, transfers, fraud = PRESETS[self.preset]
        accounts = accounts if self.accounts is None else self.accounts
        transfers = transfers if self.transfers is None else self.transfers
        return accounts, transfers, round((fraud if self.fraud is None else self.fraud) * accounts)

    def load(self, root: Path | None, seed: int) -> Dataset:
        """One draw for `seed`; `root` must be None.

        Raises:
            ConfigError: a bank has fewer accounts than rings have members there.
        """
        if root is not None:
            raise AbsentData("transfers")
        draw = self.draw(seed)
        ends = np.stack([draw.source, draw.target])
        hour = np.cos(2 * np.pi * draw.time)
        kinds = [draw.channel == channel for channel in range(len(CHANNELS))]
        features = np.stack([_scale(draw.amount, _AMOUNT), hour, *kinds], 1, dtype=np.float32)
        split = np.searchsorted(np.cumsum(SHARES[:-1]), (np.arange(len(hour)) + 0.5) / len(hour))
        customers = [draw.customer == customer for customer in range(len(CUSTOMERS))]
        data = Dataset(
            name="transfers",
            x=np.stack([_scale(draw.age, _AGE), _scale(draw.turnover, _TURNOVER), *customers], 1, dtype=np.float32),
            edges=to_undirected(ends, len(draw.bank)),
            y=draw.fraud.astype(np.int64),
            classes=2,
            columns=("log age", "log turnover", *CUSTOMERS),
            labels=CLASSES,
            owner=draw.bank,
            owners=_names(self.banks),
            edge_attrs=EdgeAttributes(
                ends,
                directed=True,
                features=features,
                time=draw.time,
                columns=("log amount", "night", *CHANNELS),
                y=draw.laundering.astype(np.int64),
                split=split,
            ),
        )
        return as_edges(data, OF_TRANSFERS) if self.task == "edges" else data

    def tables(self, seed: int) -> tuple[pa.Table, pa.Table]:
        """The data as tables of a bank: accounts (id, bank, customer, age in days, turnover, label) and
        transfers (source, target, amount, channel, date, kind), in order of time."""
        draw = self.draw(seed)
        accounts = {
            "id": np.arange(len(draw.bank)),
            "bank": _words(draw.bank, _names(self.banks)),
            "customer": _words(draw.customer, CUSTOMERS),
            "age": draw.age.round(),
            "turnover": draw.turnover.round(),
            "label": _words(draw.fraud, CLASSES),
        }
        transfers = {
            "source": draw.source,
            "target": draw.target,
            "amount": draw.amount.round(2),
            "channel": _words(draw.channel, CHANNELS),
            "date": _EPOCH + (draw.time * 86_400).astype("timedelta64[s]"),
            "kind": _words(draw.laundering, OF_TRANSFERS),
        }
        return pa.table(accounts), pa.table(transfers)

    def draw(self, seed: int) -> Draw:
        """The random draw that `load` and `tables` share."""
        accounts, transfers, frauds = self.sizes
        rng = generator(seed, "transfers accounts")
        bank = rng.permutation(np.arange(accounts) % self.banks)
        fraud = np.zeros(accounts, bool)
        members, paid = self._group(bank, frauds, fraud, generator(seed, "transfers rings"))
        fraud[members] = True
        if fraud.sum() < frauds:
            message = f"transfers: banks = {self.banks} have too few accounts for {frauds} frauds; set fewer."
            raise ConfigError(message, code="config.pairs")
        customer = (rng.random((accounts, 1)) > np.cumsum(_OF_CUSTOMERS, 1)[fraud.astype(int), :-1]).sum(1)
        wealth = rng.standard_normal(accounts) + 0.8 * (customer > 0) - 0.2 * fraud
        age = rng.standard_normal(accounts) - 1.2 * fraud
        parts = [paid]
        decoys = round(self.decoys * frauds)
        if decoys:
            rng = generator(seed, "transfers decoys")
            parts.append(self._group(bank, max(decoys, MIN_MEMBERS), fraud, rng, launder=False)[1])
        # Ordinary transfers, of amounts that go with the payer's wealth, mostly by day.
        count = transfers - sum(len(part[0]) for part in parts)
        rng = generator(seed, "transfers ordinary")
        source, target = _pairs(bank, customer, self.crossing, count, rng)
        log_amount = rng.normal(_AMOUNT[0], 1.1, count) + 0.5 * wealth[source]
        amount = np.exp(log_amount + 2.2 * (rng.random(count) < _LARGE))
        channel = (rng.random((count, 1)) > np.cumsum(_OF_CHANNELS[0])[:-1]).sum(1)
        time = np.floor(rng.random(count) * np.floor(self.days)) + rng.normal(14, 4, count) % 24 / 24
        parts.append((source, target, amount, channel, time))
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        columns.append(np.arange(transfers) < len(paid[0]))  # whether it launders money
        order = np.argsort(columns[-2], kind="stable")
        age, turnover = np.exp(_AGE[0] + _AGE[1] * age), np.exp(_TURNOVER[0] + _TURNOVER[1] * wealth)
        return Draw(bank, customer, age, turnover, fraud, *(values[order] for values in columns))

    def _group(
        self, bank: np.ndarray, members: int, used: np.ndarray, rng: np.random.Generator, launder: bool = True
    ) -> tuple[np.ndarray, Columns]:
        """Accounts int64 [S] of rings of `members` members, and their transfers, which launder money if `launder`, or
        else belong to honest groups."""
        rings = draw_rings(members, rng)
        account = place(rings, bank, used, self.spanning, rng)
        payment, time = times(rings, rng.integers(2, 5, len(rings.size)), self.days, 1 + (not launder), rng)
        base = rng.normal(_AMOUNT[0] + (1.8 if launder else 0.6), 0.7, len(rings.size))[rings.ring[rings.source]]
        amount = np.exp((base - 0.06 * rings.stage)[payment] + rng.normal(0, 0.2, len(payment)))
        channel = rng.choice(len(CHANNELS), len(payment), p=_OF_CHANNELS[launder])
        return account, (account[rings.source][payment], account[rings.target][payment], amount, channel, time)


def _pairs(
    bank: np.ndarray, customer: np.ndarray, crossing: float, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Source and target int64 [count] of ordinary transfers: few accounts pay or are paid much, and two fifths of the
    transfers repeat another."""
    banks, fresh = int(bank.max()) + 1, count - count * 2 // 5
    accounts = np.bincount(bank, minlength=banks)
    first = accounts.cumsum() - accounts

    def among(favored: str, at: np.ndarray) -> np.ndarray:
        order = np.lexsort((rng.random(len(bank)), customer != CUSTOMERS.index(favored), bank))
        rank = (rng.random(len(at)) ** 2 * accounts[at]).astype(np.int64)
        return np.asarray(order[first[at] + rank])

    home = rng.choice(banks, fresh, p=accounts / accounts.sum())
    away = (home + rng.integers(1, max(banks, 2), fresh)) % banks
    source, target = among("business", home), among("merchant", np.where(rng.random(fresh) < crossing, away, home))
    pairs = np.stack([source, target])[:, source != target]
    different = pairs.shape[1]
    repeat = np.append(np.arange(different), rng.integers(different, size=count - different))
    source, target = pairs[:, repeat]
    return source, target


def _scale(values: np.ndarray, by: tuple[float, float]) -> np.ndarray:
    return np.asarray((np.log(values) - by[0]) / by[1])


def _names(banks: int) -> tuple[str, ...]:
    return tuple(f"bank-{number:0{len(str(banks))}}" for number in range(1, banks + 1))


def _words(numbers: np.ndarray, names: tuple[str, ...]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int32)), pa.array(names)).cast(pa.string())


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

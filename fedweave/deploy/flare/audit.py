"""What a site's journals say to its owner: what was asked, what left, what it cost, and what was refused."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedweave.core.ledger import Entry, Line
from fedweave.core.mechanism import Account, Applied, read_applied
from fedweave.deploy.flare.accounts import NO_RUN
from fedweave.deploy.flare.journal import Records, journals, read
from fedweave.deploy.flare.policy import Spent
from fedweave.deploy.flare.sitefile import SITE_FILE, Rules, read_site_file
from fedweave.errors import UserError
from fedweave.privacy.gaussian import total_epsilon

_NOTHING = "nothing"  # left, but that the step was done


@dataclass
class Release:
    """All that left under one key of a step's replies to the same receivers.

    to: "server", or names of peers. times: messages. account: what they cost.
    """

    step: str
    to: str
    key: str
    mechanism: str
    reveals: str
    times: int = 0
    bytes: int = 0
    account: Account = field(default_factory=Account)


@dataclass(frozen=True)
class Run:
    """What a site's journal says of one run. joined, aligned, refused: its notes (`journal.Journal.note`). damaged:
    lines that cannot be read."""

    name: str
    joined: tuple[dict[str, Any], ...]
    aligned: tuple[dict[str, Any], ...]
    refused: tuple[dict[str, Any], ...]
    releases: tuple[Release, ...]
    damaged: int


@dataclass(frozen=True)
class Audit:
    """All runs of a site, and what has left it altogether. delta: δ of the site's policy, at which costs are stated."""

    runs: tuple[Run, ...]
    spent: Spent
    delta: float


def audit(folder: Path) -> Audit:
    """What the journals of the site in `folder` hold.

    Raises:
        UserError: there are none, or its site.toml is not valid. FedweaveError: one is of a later version of fedweave.
    """
    found = {path.stem: read(path) for path in journals(folder)}
    if not found:
        raise UserError(f"{folder} holds no journal: give the folder of a site that has taken part in a run.")
    spent = Spent.of(entry for records in found.values() for entry in records.entries)
    rules = read_site_file(folder / SITE_FILE)[1] if (folder / SITE_FILE).exists() else Rules()
    return Audit(tuple(_run(name, records) for name, records in found.items()), spent, rules.delta)


def spelt(account: Account, delta: float) -> str:
    """What releases cost at that δ, in words."""
    bounded = account.cost.epsilon or account.cost.squared_mu
    words = [f"ε = {total_epsilon(account.cost, delta):.4g}"] if bounded else []
    return " and ".join([*words, *(["no bound"] if account.cost.unbounded else [])]) or "nothing"


def _run(name: str, records: Records) -> Run:
    def notes(kind: str) -> tuple[dict[str, Any], ...]:
        return tuple(note for note in records.notes if note["note"] == kind)

    title = "outside of any run" if name == NO_RUN else name
    told = (notes("joined"), notes("aligned"), notes("refused"))
    return Run(title, *told, tuple(_releases(records.entries)), len(records.damaged))


def _releases(entries: Iterable[Entry]) -> list[Release]:
    found: dict[tuple[str, ...], Release] = {}
    for entry in entries:
        to, times = ", ".join(dict.fromkeys(entry.to)) or "server", len(entry.clients)
        noted: set[tuple[str, ...]] = set()
        for line in entry.keys or (Line(_NOTHING, "", 0, ""),):
            own = _applied(line)
            place = (entry.step, to, own.key, line.mechanism)
            release = found.setdefault(place, Release(entry.step, to, own.key, line.mechanism, line.reveals))
            release.bytes += line.bytes * times
            if place not in noted:
                release.times += times
                release.account = release.account.after(own, times) if entry.keys else release.account
            noted.add(place)
    return list(found.values())


def _applied(line: Line) -> Applied:
    return Applied(line.key.split("/")[0], ()) if line.applied is None else read_applied(line.applied)

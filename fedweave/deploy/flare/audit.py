"""What a site's journals say to its owner: what was asked, what left, what it cost, and what was refused."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedweave.core.ledger import Ledger
from fedweave.deploy.flare.accounts import NO_RUN
from fedweave.deploy.flare.journal import Records, journals, read
from fedweave.deploy.flare.policy import Spent
from fedweave.deploy.flare.sitefile import SITE_FILE, Rules, read_site_file
from fedweave.errors import UserError
from fedweave.report.flows import Flow, flows


@dataclass(frozen=True)
class Run:
    """What a site's journal says of one run. joined, lists, aligned, refused: its notes (`journal.Journal.note`).
    flows: what left. damaged: lines that cannot be read."""

    name: str
    joined: tuple[dict[str, Any], ...]
    lists: tuple[dict[str, Any], ...]
    aligned: tuple[dict[str, Any], ...]
    refused: tuple[dict[str, Any], ...]
    flows: tuple[Flow, ...]
    damaged: int


@dataclass(frozen=True)
class Audit:
    """All runs of a site, and what has left it altogether, also as a ledger (`core.ledger.SCHEMA`). delta: δ of the
    site's policy, at which costs are stated."""

    runs: tuple[Run, ...]
    spent: Spent
    delta: float
    ledger: pa.Table


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
    runs = tuple(_run(name, records) for name, records in found.items())
    return Audit(runs, spent, rules.delta, _table(found.values()))


def _run(name: str, records: Records) -> Run:
    def notes(kind: str) -> tuple[dict[str, Any], ...]:
        return tuple(note for note in records.notes if note["note"] == kind)

    title = "outside of any run" if name == NO_RUN else name
    told = (notes("joined"), notes("lists"), notes("aligned"), notes("refused"))
    return Run(title, *told, tuple(flows(_table([records]))), len(records.damaged))


def _table(records: Iterable[Records]) -> pa.Table:
    ledger = Ledger()
    for one in records:
        for entry in one.entries:
            ledger.add(entry)
    return ledger.table()

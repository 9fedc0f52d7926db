"""The chain of a site's accounts: every entry of its journals, whatever the run, names the hash of the one before, so
that none can be taken away unnoticed but the last ones; and who else knows the last one's (`Heads`).
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fedweave.deploy.flare.policy import PolicyViolation
from fedweave.deploy.flare.requests import FORBIDDEN, Join, Request
from fedweave.deploy.flare.sitefile import HEAD
from fedweave.experiment.runs.files import read, write

HEADS = "heads.json"  # in the folder of the server or of a site
_HEAD = re.compile(HEAD)


class Head(NamedTuple):
    """An entry of a chain: its number, from 1 on, and its hash; the one before the first is `Head()`."""

    number: int = 0
    hash: str = ""

    def __str__(self) -> str:
        return f"{self.number}:{self.hash}"

    @classmethod
    def read(cls, text: str) -> "Head":
        """Undo `str`.

        Raises:
            ValueError: it is not of that form.
        """
        found = _HEAD.fullmatch(text)
        if found is None:
            raise ValueError(f"{text[:60]!r} is no number and hash of an entry")
        return cls(int(found[1]), found[2])

    @classmethod
    def of(cls, number: int, line: bytes) -> "Head":
        """Of an entry, as its line in a journal says it."""
        return cls(number, hashlib.blake2b(line, digest_size=16).hexdigest())


class ChainEntry(NamedTuple):
    """An entry of a journal in its chain, and the hash of the entry before."""

    own: Head
    before: str


class Chain:
    """What is known of a site's chain. lost: the entries that its owner accepts not to have any more.

    head: the last entry, or of those lost, if they go further.
    """

    def __init__(self, lost: Iterable[str] = ()) -> None:
        self._lost, self._links = {Head.read(text) for text in lost}, dict[int, ChainEntry]()
        self.head = max(self._lost, default=Head())

    def add(self, links: Iterable[ChainEntry]) -> None:
        """Take up entries, in any order.

        Raises:
            PolicyViolation: there are two of one number.
        """
        for link in links:
            if self._links.setdefault(link.own.number, link) != link:
                raise PolicyViolation(
                    f"policy.lost: the site's journals hold two entries {link.own.number}, as where a copy of ledgers/ "
                    "was put in the place of a later one; bring back the ledgers that were there"
                )
            self.head = max(self.head, link.own)

    def after(self, line: bytes) -> None:
        """Take up the entry after the last, as its line says it."""
        self.add([ChainEntry(Head.of(self.head.number + 1, line), self.head.hash)])

    def check(self, told: str = "") -> None:
        """Refuse to go on where an entry has gone, or the last one that the server has `told` of is not there.

        Raises:
            PolicyViolation: says which, and what the owner can do.
        """
        wanted = [Head(own.number - 1, before) for own, before in self._links.values()]
        wanted += [Head.read(told)] if told else []
        gone = sorted({head for head in wanted if head != self._at(head.number)} - self._lost)
        if gone:
            named = ", ".join(f'"{head}"' for head in gone[:20])
            raise PolicyViolation(
                f"policy.lost: entry {gone[-1].number} of the site's accounts, or what it was, is not in its ledgers/ "
                "any more. Bring them back as they were; or accept that nothing counts what has left, and say so: "
                f"policy.lost = [{named}]"
            )

    def _at(self, number: int) -> Head:
        return self._links[number].own if number in self._links else Head()


class Heads:
    """The last entries of sites' chains, as the sites told them: {site: `Head`} in a file, or for as long as this
    lasts."""

    def __init__(self, path: Path | None = None) -> None:
        self._path, self._known = path, dict[str, Head]()
        self._merge()

    def plain(self, sites: Iterable[str]) -> dict[str, str]:
        """Those of `sites`, for the wire."""
        return {site: str(self._known[site]) for site in sites if site in self._known}

    def note(self, told: Mapping[str, str]) -> None:
        """Keep what sites told of themselves, where it is further than before."""
        later = {site: head for site, text in told.items() if (head := Head.read(text)) > self._known.get(site, Head())}
        if later:
            self._known |= later
            self._merge()  # what another job of the same machine has heard meanwhile
            if self._path is not None:
                plain = json.dumps({site: str(head) for site, head in self._known.items()})
                write(self._path, lambda file: file.write(plain.encode()))

    def _merge(self) -> None:
        if self._path is None or not self._path.exists():
            return
        for site, text in heads_in(read(self._path).decode(errors="replace")).items():
            self._known[site] = max(self._known.get(site, Head()), Head.read(text))


def told_heads(folder: Path, name: str, own: Head, asked: Request) -> str:
    """What the site `name` answers of accounts: its `own` last entry; when it joins, also what it knew of others'."""
    if not isinstance(asked, Join):
        return json.dumps({name: str(own)})
    known, others = Heads(folder / HEADS), [site for site in asked.sites if site != name]
    told = known.plain(others)
    known.note({site: asked.heads[site] for site in others if site in asked.heads})
    return json.dumps(told | {name: str(own)})


def heads_in(text: str) -> dict[str, str]:
    """{site: its last entry} as a site or a file says it; {} where it says nothing of that form."""
    with suppress(ValueError, RecursionError):
        found = json.loads(text)
        if isinstance(found, dict):
            return {site: head for site, head in found.items() if isinstance(head, str) and _HEAD.fullmatch(head)}
    return {}


def behind(told: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """{site: why} of the sites whose accounts end before an entry that another knows of.

    told: of each site what it says of itself, and of the others.
    """
    found = dict[str, str]()
    ends = {site: Head.read(heads[site]) for site, heads in told.items() if site in heads}
    for witness, heads in told.items():
        for site, known in ((site, Head.read(text)) for site, text in heads.items()):
            if site in ends and ends[site].number < known.number:
                found[site] = (
                    f"{FORBIDDEN}: policy.lost: its accounts end at entry {ends[site].number}, and {witness} knows of "
                    f"{known.number}; its owner brings back its ledgers/, or accepts that it has gone: "
                    f'policy.lost = ["{known}"]'
                )
    return found

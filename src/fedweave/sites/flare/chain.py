"""The chain of a site's accounts. Every journal entry of every run contains the hash of the entry before it, so that
only the last entries can be removed unnoticed. Others therefore know the hash of the last entry, too (`Heads`).
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fedweave.experiment.runs.files import read, write
from fedweave.sites.flare.policy import PolicyViolation
from fedweave.sites.flare.requests import FORBIDDEN, Join, Request
from fedweave.sites.flare.sitefile import HEAD

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
        """Undo `str`."""
        match = _HEAD.fullmatch(text)
        if match is None:
            raise ValueError(f"{text[:60]!r} is not a number and hash of an entry")
        return cls(int(match[1]), match[2])

    @classmethod
    def of(cls, number: int, line: bytes) -> "Head":
        """The head for an entry with this `number` and this `line` in a journal."""
        return cls(number, hashlib.blake2b(line, digest_size=16).hexdigest())


class ChainEntry(NamedTuple):
    """An entry of a journal in its chain, and the hash of the entry before."""

    head: Head
    before: str


class Chain:
    """The known entries of a site's chain. lost: entries that are gone, and whose loss the owner accepts.

    head: the last entry, or the last lost one if that has a higher number.
    """

    def __init__(self, lost: Iterable[str] = ()) -> None:
        self._lost, self._links = {Head.read(text) for text in lost}, dict[int, ChainEntry]()
        self.head = max(self._lost, default=Head())

    def add(self, links: Iterable[ChainEntry]) -> None:
        """Add entries, in any order.

        Raises:
            PolicyViolation: two entries have one number.
        """
        for link in links:
            if self._links.setdefault(link.head.number, link) != link:
                raise PolicyViolation(
                    f"policy.lost: the site's journals hold two entries {link.head.number}. An old copy of ledgers/ "
                    "may have replaced a later one. Restore the later ledgers/"
                )
            self.head = max(self.head, link.head)

    def after(self, line: bytes) -> None:
        """Add the entry with this `line` after the last one."""
        self.add([ChainEntry(Head.of(self.head.number + 1, line), self.head.hash)])

    def check(self, last: str = "") -> None:
        """Raise an error if an entry is missing, also the `last` one that the server knows of ("" if it knows none)."""
        expected = [Head(head.number - 1, before) for head, before in self._links.values()]
        expected += [Head.read(last)] if last else []
        gone = sorted({head for head in expected if head != self._at(head.number)} - self._lost)
        if gone:
            named = ", ".join(f'"{head}"' for head in gone[:20])
            raise PolicyViolation(
                f"policy.lost: entry {gone[-1].number} of the site's accounts, or what it was, is not in its ledgers/ "
                "any more. Bring them back as they were; or accept that nothing counts what has left, and say so: "
                f"policy.lost = [{named}]"
            )

    def _at(self, number: int) -> Head:
        return self._links[number].head if number in self._links else Head()


class Heads:
    """The last entries of sites' chains, as the sites reported them: {site: `Head`}. path: the file that keeps them;
    None keeps them in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self._path, self._known = path, dict[str, Head]()
        self._merge()

    def plain(self, sites: Iterable[str]) -> dict[str, str]:
        """{site: its last entry, as text for a message} for the `sites` that are known."""
        return {site: str(self._known[site]) for site in sites if site in self._known}

    def note(self, heads: Mapping[str, str]) -> None:
        """Keep the last entries that sites report of themselves, if they are later than the known ones."""
        read_heads = {site: Head.read(text) for site, text in heads.items()}
        later = {site: head for site, head in read_heads.items() if head > self._known.get(site, Head())}
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


def report_heads(folder: Path, name: str, last: Head, request: Request) -> str:
    """The last entries that the site `name` reports, as JSON: its `last` one and, when it joins, the other sites' that
    it knew."""
    if not isinstance(request, Join):
        return json.dumps({name: str(last)})
    known, peers = Heads(folder / HEADS), [site for site in request.sites if site != name]
    before = known.plain(peers)
    known.note({site: request.heads[site] for site in peers if site in request.heads})
    return json.dumps(before | {name: str(last)})


def heads_in(text: str) -> dict[str, str]:
    """{site: its last entry} in the JSON of a site or a file; {} if the text is not of that form."""
    with suppress(ValueError, RecursionError):
        heads = json.loads(text)
        if isinstance(heads, dict):
            return {site: head for site, head in heads.items() if isinstance(head, str) and _HEAD.fullmatch(head)}
    return {}


def behind(reports: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """{site: why} for the sites whose accounts end before an entry that another site knows.

    reports: {site: {site: last entry}}, the last entries that each site reports, its own and others'.
    """
    reasons = dict[str, str]()
    ends = {site: Head.read(heads[site]) for site, heads in reports.items() if site in heads}
    for witness, heads in reports.items():
        for site, known in ((site, Head.read(text)) for site, text in heads.items()):
            if site in ends and ends[site].number < known.number:
                reasons[site] = (
                    f"{FORBIDDEN}: policy.lost: its accounts end at entry {ends[site].number}, and {witness} knows of "
                    f"{known.number}; its owner brings back its ledgers/, or accepts that it has gone: "
                    f'policy.lost = ["{known}"]'
                )
    return reasons

"""Parcels between sites: parcels for a step, the receipts that the server gets instead, and the other notes with a
site's reply.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from fedweave.core.federation import Sent, StepInfo
from fedweave.core.ledger_columns import Entry
from fedweave.core.mechanism import AGAIN, LDP, Gaussian, Mechanism
from fedweave.core.tree import Tree
from fedweave.core.types import Record
from fedweave.engines.messages import peer_messages
from fedweave.errors import FedweaveError
from fedweave.sites.flare.inspection import Inspector

_MAX_NOTE = 1 << 20  # characters of a note
_MAX_NUMBER = 1 << 53  # of bytes, and of versions
# Keys of a note.
VERSION, SUM_OF, SCORED, WRITTEN, REPEATED = "(data)", "(heard)", "(scores)", "(written)", "(again)"
WITHHELD = "(withheld)"  # the fields that the site's policy keeps out of a report
UNFINISHED = "(unfinished)"  # the site needs further requests to finish what it was asked for


def resend_info(info: StepInfo) -> StepInfo:
    """The declaration of a reply that leaves once more, with the noise that it had the first time."""
    sends = dict(info.sends)
    for key, spec in info.sends.items():
        mechanisms = list[Mechanism]()
        for one in spec.mechanisms:
            is_fresh = isinstance(one, Gaussian | LDP) and not one.release
            mechanisms.append(replace(one, release=AGAIN) if is_fresh else one)  # type: ignore[arg-type]
        if mechanisms:
            sends[key] = replace(spec, mechanism=tuple(mechanisms))
    return replace(info, sends=sends)


class Post(Protocol):
    """Sends parcels to peers, sealed so that only the receiver can read them."""

    def __call__(self, peers: Sequence[str], label: str, blob: bytes, seconds: float) -> dict[str, str]:
        """Deliver a blob with its label within `seconds`; returns {peer: why} for the peers that did not accept it."""


@dataclass(frozen=True)
class Relayed(Sent):
    """The server's record of parcels that it relayed. again: number of earlier calls of the step in the round."""

    again: int

    def plain(self, chosen: Sequence[str]) -> Record:
        """The record for a request to the `chosen` sites."""
        sources = {site: self.sources[site] for site in chosen}
        return {"step": self.step, "again": self.again, "sources": sources, "clients": self.clients}


class Receipt(NamedTuple):
    """What the server learns about a delivery: key, shape and bytes of each leaf, the total bytes, and {peer: why} for
    the peers that it did not reach."""

    keys: tuple[tuple[str, str, int], ...]
    size: int
    lost: Mapping[str, str]

    @classmethod
    def of(cls, entry: Entry, lost: Mapping[str, str]) -> "Receipt":
        """The receipt for an `entry` of the site's own ledger."""
        return cls(tuple((key, shape, size) for key, shape, size, *_ in entry.keys), entry.size, lost)

    def note(self) -> str:
        """The receipt as text for a message."""
        return json.dumps(self._asdict())

    @classmethod
    def read(cls, note: str, info: StepInfo, peers: Sequence[str]) -> "Receipt":
        """Undo `note`."""
        try:
            fields = _parse(note)
            keys = tuple((str(key), str(shape), int(size)) for key, shape, size in fields["keys"])
            receipt = cls(keys, int(fields["size"]), {p: str(why)[:200] for p, why in fields["lost"].items()})
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise FedweaveError(
                f"its receipt is not of fedweave's form ({type(error).__name__})", code="peer.receipt"
            ) from error
        sizes = [size for *_, size in receipt.keys]
        valid_sizes = min(sizes, default=0) >= 0 and sum(sizes) <= receipt.size < _MAX_NUMBER
        if not valid_sizes or not set(receipt.lost) <= set(peers):
            raise FedweaveError("its receipt contradicts itself", code="peer.receipt")
        undeclared = [key for key, *_ in receipt.keys if info.covering(key) is None]
        if undeclared:
            raise FedweaveError(
                f"its receipt names {undeclared[:5]}, which the step does not declare", code="peer.receipt"
            )
        return receipt


class Inbox:
    """A site's parcels, unopened until a step needs them, and the site's own last parcel of each step.

    A later parcel of the same sender and step replaces an earlier one, so that no peer can fill the memory.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._inspector = limit, Inspector(limit)
        self._parcels: dict[tuple[str, str], tuple[tuple[int, int], bytes]] = {}
        self._replies: dict[str, tuple[tuple[int, int], Tree]] = {}

    def note_reply(self, step: str, call: tuple[int, int], reply: Tree) -> None:
        """Remember what the site sends in `call` (round, occurrence) of `step`."""
        self._replies[step] = call, reply

    def accept(self, sender: str, step: str, call: tuple[int, int], blob: bytes) -> None:
        """Keep a parcel."""
        if len(blob) > self._limit:
            raise FedweaveError(f"{len(blob)} bytes exceed the limit of {self._limit} (engine.reply_mb)")
        self._parcels[sender, step] = call, blob

    def open(
        self, step: str, info: StepInfo, call: tuple[int, int], sources: Sequence[str], here: Sequence[str]
    ) -> tuple[Tree, dict[str, str], dict[str, str]]:
        """The part of a message from those `sources` that are `here`; {peer: "missing" or "refused"} for the peers here
        without a usable parcel; and {peer: why} for the refused ones.

        The site compares a parcel with its own reply of the same call, as the server compares replies with each other.
        """
        last_call, reply = self._replies.get(step, (None, {}))
        if last_call != call:
            raise FedweaveError(f"the site is to receive what {step} sent in a call in which it sent nothing itself")
        peers = [peer for peer in sources if peer in here]
        blobs = dict[str, bytes]()
        for peer in peers:
            of_call, blob = self._parcels.get((peer, step), (None, b""))
            if of_call == call:
                blobs[peer] = blob
        trees, refused = self._inspector.accept(step, info, {}, blobs, like=reply)
        faults = {peer: "refused" if peer in blobs else "missing" for peer in peers if peer not in trees}
        return peer_messages(reply, sources, trees), faults, refused


def read_note(note: str) -> Record:
    """The note with a site's reply, by key (`VERSION` and so on); {} for a note of another form."""
    with suppress(ValueError):
        return _parse(note)
    return {}


def read_faults(note: str, peers: Sequence[str]) -> dict[str, str]:
    """{peer: "missing" or "refused"}, a site's report about its `peers`."""
    entries = read_note(note).items()
    return {peer: what for peer, what in entries if peer in peers and what in ("missing", "refused")}


def read_version(note: str, before: int) -> int:
    """The version of a site's data in its note (`VERSION`), which can only rise; `before` for a note without one."""
    version = read_note(note).get(VERSION, before)
    return version if isinstance(version, int) and before < version < _MAX_NUMBER else before


def _parse(note: str) -> Record:
    if len(note) > _MAX_NOTE:
        raise ValueError(f"{len(note)} characters")
    try:
        record = json.loads(note)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(record, dict):
        raise ValueError("it is not a table")
    return record


class DataVersions:
    """The versions of data that sites reported after steps that replaced data (`Federation.replace_data`). The server
    knows no version of the other sites' data."""

    def __init__(self) -> None:
        self._now, self._before = dict[str, int](), dict[str, int]()

    def begin(self) -> None:
        """Note that a round starts."""
        self._before = dict(self._now)

    def note(self, notes: Mapping[str, str]) -> None:
        """Read the versions from the notes with the sites' replies."""
        self._now |= {site: read_version(note, self._now.get(site, 0)) for site, note in notes.items()}

    def plain(self, before: bool = False) -> Tree:
        """The versions for a checkpoint; with `before`, the versions when the present round started."""
        return {site: {"version": version} for site, version in (self._before if before else self._now).items()}

    def restore(self, tree: Tree) -> None:
        """Continue with the versions of a checkpoint."""
        self._now = {site: int(entry["version"]) for site, entry in tree.items()}

"""What passes from site to site: parcels on their way to a step, the receipt that the server gets instead, and whatever
else a site notes beside its reply."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fedweave.core.federation import Sent, StepInfo
from fedweave.core.ledger import Entry
from fedweave.core.records import Record
from fedweave.core.tree import Tree
from fedweave.deploy.flare.server.inspection import Inspector
from fedweave.engines.messages import peer_messages
from fedweave.errors import FedweaveError

_LONGEST = 1 << 20  # characters of a note
_MOST = 1 << 53  # bytes, versions
VERSION, HEARD, SCORED, WRITTEN = "(data)", "(heard)", "(scores)", "(written)"  # keys of a note


class Post(Protocol):
    """Carries parcels to peers, sealed so that nobody on the way can read them."""

    def __call__(self, peers: Sequence[str], label: str, blob: bytes, seconds: float) -> dict[str, str]:
        """Deliver a blob under its label within `seconds`; {peer: why} of those that did not take it."""
        ...


@dataclass(frozen=True)
class Relayed(Sent):
    """What a server knows of parcels that it relayed. again: how often the step ran in the round before."""

    again: int

    def plain(self, chosen: Sequence[str]) -> Record:
        """What the `chosen` sites need to know of it."""
        of = {site: self.sources[site] for site in chosen}
        return {"step": self.step, "again": self.again, "sources": of, "clients": self.clients}


class Receipt(NamedTuple):
    """What the server learns of a delivery: key, shape and bytes of each leaf, bytes of the whole, and {peer: why} of
    those that it did not reach."""

    keys: tuple[tuple[str, str, int], ...]
    size: int
    lost: Mapping[str, str]

    @classmethod
    def of(cls, entry: Entry, lost: Mapping[str, str]) -> "Receipt":
        """From the site's own ledger."""
        return cls(tuple((key, shape, size) for key, shape, size, *_ in entry.keys), entry.size, lost)

    def note(self) -> str:
        """For the wire."""
        return json.dumps(self._asdict())

    @classmethod
    def read(cls, note: str, info: StepInfo, peers: Sequence[str]) -> "Receipt":
        """Undo `note`.

        Raises:
            FedweaveError: it is not of this form, or names keys that the step does not declare.
        """
        try:
            given = _parsed(note)
            keys = tuple((str(key), str(shape), int(size)) for key, shape, size in given["keys"])
            receipt = cls(keys, int(given["size"]), {p: str(why)[:200] for p, why in given["lost"].items()})
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise FedweaveError(
                f"its receipt is not of fedweave's form ({type(error).__name__})", code="peer.receipt"
            ) from error
        sizes = [size for *_, size in receipt.keys]
        if not sum(sizes) <= receipt.size < _MOST or min(sizes, default=0) < 0 or not set(receipt.lost) <= set(peers):
            raise FedweaveError("its receipt contradicts itself", code="peer.receipt")
        if undeclared := [key for key, *_ in receipt.keys if info.covering(key) is None]:
            raise FedweaveError(
                f"its receipt names {undeclared[:5]}, which the step does not declare", code="peer.receipt"
            )
        return receipt


class Inbox:
    """A site's parcels, unopened until the step that wants them, and what the site itself sent last.

    A later parcel of the same sender and step replaces an earlier one, so that no peer can fill the memory.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._inspector = limit, Inspector(limit)
        self._parcels: dict[tuple[str, str], tuple[tuple[int, int], bytes]] = {}
        self._own: dict[str, tuple[tuple[int, int], Tree]] = {}

    def note_own(self, step: str, call: tuple[int, int], reply: Tree) -> None:
        """Remember what the site sends in `call` (round, occurrence) of `step`."""
        self._own[step] = call, reply

    def put(self, sender: str, step: str, call: tuple[int, int], blob: bytes) -> None:
        """Keep a parcel.

        Raises:
            FedweaveError: it exceeds the limit.
        """
        if len(blob) > self._limit:
            raise FedweaveError(f"{len(blob)} bytes exceed the limit of {self._limit} (engine.reply_mb)")
        self._parcels[sender, step] = call, blob

    def open(
        self, step: str, info: StepInfo, call: tuple[int, int], sources: Sequence[str], here: Sequence[str]
    ) -> tuple[Tree, dict[str, str], dict[str, str]]:
        """The part of a message that `sources` sent, as far as they are `here`; {peer: "missing" or "refused"} of those
        who are but left nothing of use, and {peer: why} of the refused.

        A parcel is held against what the site itself sent, as the server holds replies against each other.

        Raises:
            FedweaveError: the site did not send in that call.
        """
        made, own = self._own.get(step, (None, {}))
        if made != call:
            raise FedweaveError(f"the site is to receive what {step} sent in a call in which it sent nothing itself")
        parcels = {peer: self._parcels.get((peer, step)) for peer in sources if peer in here}
        blobs = {peer: parcel[1] for peer, parcel in parcels.items() if parcel is not None and parcel[0] == call}
        trees, refused = self._inspector.accept(step, info, {}, blobs, like=own)
        faults = {peer: "refused" if peer in blobs else "missing" for peer in parcels if peer not in trees}
        return peer_messages(own, sources, trees), faults, refused


def read_note(note: str) -> Record:
    """What a site notes beside its reply, by key (`VERSION` and so on); {} from a note of another form."""
    with suppress(ValueError):
        return _parsed(note)
    return {}


def read_faults(note: str, peers: Sequence[str]) -> dict[str, str]:
    """{peer: "missing" or "refused"} as a site says it of `peers`."""
    told = read_note(note).items()
    return {peer: what for peer, what in told if peer in peers and what in ("missing", "refused")}


def read_version(note: str, before: int) -> int:
    """The version of a site's data that it notes (`VERSION`), which can only rise; `before` from a note without one."""
    version = read_note(note).get(VERSION, before)
    return version if isinstance(version, int) and before < version < _MOST else before


def _parsed(note: str) -> Record:
    if len(note) > _LONGEST:
        raise ValueError(f"{len(note)} characters")
    try:
        found = json.loads(note)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("it is no table")
    return found


class DataVersions:
    """The versions that sites told after steps that made data (`Flare.replace_data`); of other sites none is known."""

    def __init__(self) -> None:
        self._now, self._before = dict[str, int](), dict[str, int]()

    def begin(self) -> None:
        """A round starts."""
        self._before = dict(self._now)

    def note(self, notes: Mapping[str, str]) -> None:
        """Read what came with the sites' replies."""
        self._now |= {site: read_version(note, self._now.get(site, 0)) for site, note in notes.items()}

    def plain(self, before: bool = False) -> Tree:
        """For a checkpoint; `before`: as they were when the round under way started."""
        return {site: {"version": version} for site, version in (self._before if before else self._now).items()}

    def restore(self, tree: Tree) -> None:
        """Continue with those of a checkpoint."""
        self._now = {site: int(kept["version"]) for site, kept in tree.items()}

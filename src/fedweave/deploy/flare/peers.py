"""Parcels between sites: parcels for a step, the receipts that the server gets instead, and the other notes with a
site's reply.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import median_low
from typing import NamedTuple, Protocol

from torch import Tensor

from fedweave.core.federation import Sent, StepInfo
from fedweave.core.ledger_columns import Entry
from fedweave.core.mechanism import AGAIN, LDP, Gaussian, Mechanism
from fedweave.core.tree import Tree, decode, leaves, not_finite, numbers
from fedweave.core.types import Record
from fedweave.deploy.flare.folder import fields
from fedweave.engines.calls import check_declared
from fedweave.engines.messages import peer_messages
from fedweave.errors import NOT_FINITE, FedweaveError, ReplyRefused
from fedweave.ops.touched import Sparsified

# ----------------------------------------------------------------------------------------------------
# The server's checks of a reply on arrival, and the faults of sites.


Structure = tuple[tuple[str, str], ...]
FAR = 1e6  # a factor between numbers of one site and of others beyond which a model is useless


class Inspector:
    """Checks replies; remembers the structure that most replies to each step had."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[str, Structure] = {}
        self._usual: dict[tuple[str, str], float] = {}

    def accept(
        self,
        step: str,
        info: StepInfo,
        sent: Mapping[str, Tree],
        blobs: Mapping[str, bytes],
        like: Tree | None = None,
    ) -> tuple[dict[str, Tree], dict[str, str]]:
        """The usable replies {site: tree}, and {site: reason} for the rejected ones.

        A reply must be in the documented encoding and within the size limit, hold declared names only, be finite, and
        have the ranges and forms that the step declares (`Sends.within`, `Sends.like`). Unless the step is ragged,
        leaves that are also in the message `sent` must have the same shape and dtype there. All other leaves must have
        the same form as in `like` or, without `like`, as at most other sites. The number of rows may differ if the step
        declares one row per node. If no reply has the message's shapes, the step changes them, and only the other sites
        count. Numbers without a declared range must not exceed the usual size at other sites (or in `like`) by more
        than the factor `FAR`.
        """
        good: dict[str, Tree] = {}
        refused: dict[str, str] = {}
        for site, blob in blobs.items():
            try:
                tree = self._read(step, info, blob)
                if fault := _beyond(info, sent.get(site, {}), tree):
                    raise ReplyRefused(fault)
                good[site] = tree
            except ReplyRefused as error:
                refused[site] = f"its reply was refused: {error}"
        changed = {} if info.ragged else {site: _changes(sent.get(site, {}), good[site]) for site in good}
        if len(good) == 1 or not all(changed.values()):
            for site in [site for site, what in changed.items() if what]:
                del good[site]
                refused[site] = f"its reply was refused: {changed[site]}"
        forms = {site: _structure(tree, info) for site, tree in good.items()}
        common = self._settle(step, forms) if like is None else _structure(like, info)
        for site, form in forms.items():
            if common is None or form != common:
                del good[site]
                refused[site] = f"its reply was refused: {_difference(form, common)}"
        for site, fault in self._far(step, info, good, like).items():
            del good[site]
            refused[site] = f"its reply was refused: {fault}"
        return good, refused

    def _read(self, step: str, info: StepInfo, blob: bytes) -> Tree:
        if len(blob) > self._limit:
            raise ReplyRefused(f"{len(blob)} bytes exceed the limit of {self._limit} (engine.reply_mb)")
        tree = decode(blob, self._limit)
        check_declared(step, info, (path for path, _ in leaves(tree)))
        if path := not_finite(tree):
            raise ReplyRefused(f"{path} {NOT_FINITE}")
        return tree

    def _settle(self, step: str, forms: Mapping[str, Structure]) -> Structure | None:
        """The structure that replies of `step` must have; None if there is no majority.

        Several replies determine it by majority. A single reply is compared with the structure from before.
        """
        if forms and (len(forms) > 1 or step not in self._known):
            (form, votes), *_ = Counter(forms.values()).most_common(1)
            if 2 * votes > len(forms):
                self._known[step] = form
        return self._known.get(step)

    def _far(self, step: str, info: StepInfo, trees: Mapping[str, Tree], like: Tree | None) -> dict[str, str]:
        """{site: the fault} for the sites whose numbers are much larger than at other sites.

        The usual size is the lower median of all, at least 1. A single reply is compared with the last usual size.
        """
        sizes = {site: _largest(tree, info) for site, tree in trees.items()}
        known = [] if like is None else [_largest(like, info)]
        faults: dict[str, str] = {}
        for key in {key for magnitudes in sizes.values() for key in magnitudes}:
            usual = median_low([magnitudes.get(key, 0.0) for magnitudes in (*sizes.values(), *known)])
            if len(sizes) + len(known) == 1:
                usual = self._usual.get((step, key), usual)
            limit = FAR * max(1.0, usual)
            far = {site: magnitudes[key] for site, magnitudes in sizes.items() if magnitudes.get(key, 0.0) > limit}
            faults |= {site: f"{key} reaches {most:g}, where {usual:g} is usual" for site, most in far.items()}
            self._usual[step, key] = usual
        return faults


def _changes(message: Tree, reply: Tree) -> str:
    """The first leaf of a reply with another shape or dtype than the message's leaf of the same name; "" if none
    has."""
    sent = {path: leaf for path, leaf in leaves(message) if isinstance(leaf, Tensor)}
    forms = ((path, _form(leaf), _form(sent[path])) for path, leaf in leaves(reply) if path in sent)
    return next((f"{path} is {form}, not {like}" for path, form, like in forms if form != like), "")


def _beyond(info: StepInfo, message: Tree, reply: Tree) -> str:
    """The first leaf of a reply outside its declared range, or not of its declared form; "" if there is none."""
    sent = {path: leaf for path, leaf in leaves(message) if isinstance(leaf, Tensor | Sparsified)}
    for path, leaf in leaves(reply):
        key = info.covering(path) or path
        spec = info.sends[key]
        if spec.within is not None and (fault := spec.within.fault(path, leaf)):
            return fault
        model = sent.get(spec.like + path.removeprefix(key)) if spec.like else None
        if model is not None and key in info.sums and leaf.shape == model.shape:
            continue  # masked integers instead of numbers
        if model is not None and _form(leaf) != (form := _form(model)):
            return f"{path} is {_form(leaf)}, not {form}"
    return ""


def _largest(tree: Tree, info: StepInfo) -> dict[str, float]:
    """{declared key without a range: the largest magnitude of its floating-point numbers}."""
    maxima: dict[str, float] = {}
    for path, leaf in numbers(tree):
        key = info.covering(path) or path
        if leaf.numel() and not info.sends[key].within:
            least, most = leaf.aminmax()
            maxima[key] = max(maxima.get(key, 0.0), -float(least), float(most))
    return maxima


def _structure(tree: Tree, info: StepInfo) -> Structure:
    nodes = {path for path, _ in leaves(tree) if path.split("/")[0] in info.per_node}
    return tuple((path, _form(leaf, info.ragged, path in nodes)) for path, leaf in leaves(tree))


def _form(leaf: object, ragged: bool = False, per_node: bool = False) -> str:
    if not isinstance(leaf, Tensor | Sparsified):
        return type(leaf).__name__
    shape = f"{len(leaf.shape)}-d" if ragged else str(list(leaf.shape))
    if per_node and not ragged:
        shape = f"[nodes{''.join(f', {size}' for size in leaf.shape[1:])}]" if len(leaf.shape) else "0-d"
    return f"{shape} {str(leaf.dtype).removeprefix('torch.')}"


def _difference(form: Structure, common: Structure | None) -> str:
    if common is None:
        return "the sites disagree on its structure, and no majority settles it"
    ours, theirs = dict(form), dict(common)
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    parts = [f"{name} is {ours.get(name, 'absent')}, not {theirs.get(name, 'absent')}" for name in names[:3]]
    return "; ".join(parts) or "its keys are in another order"


class SiteFaults:
    """Counts of faults, each (site, "missing" | "refused" | "late"), since the last call of `taken`."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self.reasons: dict[str, str] = {}  # why each site was last missing
        self._log = logging.getLogger("fedweave.server")

    def note(self, round: int, missing: Mapping[str, str], refused: Mapping[str, str]) -> None:
        """Count faults of one call. missing: {site: why} for the sites without a usable reply. refused: the sites among
        these that sent an unusable one."""
        self._counts.update((site, "missing") for site in missing)
        self._counts.update((site, "refused") for site in refused)
        for site, why in {**missing, **refused}.items():
            if site in refused or self.reasons.get(site) != why:  # log a missing site once, not at every call
                more = fields("left-out", round=round, site=site, reason=why)
                self._log.warning("round %d: %s is left out: %s", round, site, why, extra=more)
        self.reasons |= missing

    def update(self, faults: Mapping[tuple[str, str], int] | Iterable[tuple[str, str]]) -> None:
        """Count more faults without a reason: once each, or by the numbers in `faults`."""
        self._counts.update(faults)

    def taken(self) -> dict[tuple[str, str], int]:
        """The count of each fault. Resets all counts to zero."""
        counts, self._counts = dict(self._counts), Counter()
        return counts


_LONGEST = 1 << 20  # characters of a note
_MOST = 1 << 53  # bytes, versions
# Keys of a note.
VERSION, HEARD, SCORED, WRITTEN, REPEATED = "(data)", "(heard)", "(scores)", "(written)", "(again)"


def sent_again(info: StepInfo) -> StepInfo:
    """The declaration of a reply that leaves once more, with the noise that it had the first time."""

    def released(mechanism: Mechanism) -> Mechanism:
        fresh = isinstance(mechanism, Gaussian | LDP) and not mechanism.release
        return replace(mechanism, release=AGAIN) if fresh else mechanism  # type: ignore[arg-type]

    noised = {key: spec for key, spec in info.sends.items() if spec.mechanisms}
    replacements = {key: replace(spec, mechanism=tuple(map(released, spec.mechanisms))) for key, spec in noised.items()}
    return replace(info, sends={**info.sends, **replacements})


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
        """Undo `note`.

        Raises:
            FedweaveError: the note is not of this form, or names keys that the step does not declare.
        """
        try:
            fields = _parsed(note)
            keys = tuple((str(key), str(shape), int(size)) for key, shape, size in fields["keys"])
            receipt = cls(keys, int(fields["size"]), {p: str(why)[:200] for p, why in fields["lost"].items()})
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
    """A site's parcels, unopened until a step needs them, and the site's own last parcel of each step.

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
        """The part of a message from those `sources` that are `here`; {peer: "missing" or "refused"} for the peers here
        without a usable parcel; and {peer: why} for the refused ones.

        The site compares a parcel with its own reply of the same call, as the server compares replies with each other.

        Raises:
            FedweaveError: the site did not send in that call.
        """
        last_call, reply = self._own.get(step, (None, {}))
        if last_call != call:
            raise FedweaveError(f"the site is to receive what {step} sent in a call in which it sent nothing itself")
        parcels = {peer: self._parcels.get((peer, step)) for peer in sources if peer in here}
        blobs = {peer: parcel[1] for peer, parcel in parcels.items() if parcel is not None and parcel[0] == call}
        trees, refused = self._inspector.accept(step, info, {}, blobs, like=reply)
        faults = {peer: "refused" if peer in blobs else "missing" for peer in parcels if peer not in trees}
        return peer_messages(reply, sources, trees), faults, refused


def read_note(note: str) -> Record:
    """The note with a site's reply, by key (`VERSION` and so on); {} for a note of another form."""
    with suppress(ValueError):
        return _parsed(note)
    return {}


def read_faults(note: str, peers: Sequence[str]) -> dict[str, str]:
    """{peer: "missing" or "refused"}, a site's report about its `peers`."""
    entries = read_note(note).items()
    return {peer: what for peer, what in entries if peer in peers and what in ("missing", "refused")}


def read_version(note: str, before: int) -> int:
    """The version of a site's data in its note (`VERSION`), which can only rise; `before` for a note without one."""
    version = read_note(note).get(VERSION, before)
    return version if isinstance(version, int) and before < version < _MOST else before


def _parsed(note: str) -> Record:
    if len(note) > _LONGEST:
        raise ValueError(f"{len(note)} characters")
    try:
        record = json.loads(note)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(record, dict):
        raise ValueError("it is no table")
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

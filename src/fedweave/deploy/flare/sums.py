"""Secure aggregation between sites: a site masks its terms, and the server has sites agree on keys and opens sums."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedweave.core.federation import StepInfo
from fedweave.core.ledger import Ledger
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree, leaves, nest
from fedweave.core.types import Record, Values
from fedweave.deploy.flare.folder import fields
from fedweave.deploy.flare.journal import Journal, last_epoch
from fedweave.deploy.flare.peers import HEARD, read_note
from fedweave.deploy.flare.requests import Add, Agree, Open, StepRequest
from fedweave.engines.messages import INFO, SEED, SHARE, fingerprint
from fedweave.errors import CallRefused, ClientsMissing, FedweaveError, told_diverged
from fedweave.privacy.aggregation import (
    Advert,
    Answers,
    Participant,
    SumGroup,
    Use,
    advert_bytes,
    subtract_masks,
    survivor_bytes,
)
from fedweave.privacy.identity import Authority, check_signed, read_identity
from fedweave.privacy.secure_sum import BEYOND, FixedPoint, has_diverged

# ----------------------------------------------------------------------------------------------------
# A site's part in secure aggregation: `privacy.aggregation` on trees, requests and the site's journal.


class Masking:
    """The secure aggregations of one job at one site.

    folder: the site's folder. ledger: the run's journal, which also notes the epochs. members: see `sitefile.Rules`.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        run: str,
        sites: Sequence[str],
        ledger: Journal,
        members: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.members = members
        self._folder, self._name, self._run, self._sites, self._ledger = folder, name, run, tuple(sites), ledger
        self._last, self._log = last_epoch(ledger), logging.getLogger(f"fedweave.site.{name}")
        self._participant: Participant | None = None

    def agree(self, request: Agree, info: StepInfo, message: Tree) -> Tree:
        """Advertise the keys of a new epoch, or deal shares to the sites that have advertised theirs.

        info: the declaration of the step whose replies the epoch adds up.

        Raises:
            CallRefused: the epoch is not new, or the request is out of turn.
        """
        if request.kind == "advertise":
            if request.epoch <= self._last:
                raise CallRefused(f"secure sum: epoch {request.epoch} is not after {self._last}, the last one")
            group = SumGroup(self._run, request.epoch, self._sites, needed(info, request.step, self._sites))
            self._ledger.note("epoch", epoch=request.epoch)
            self._last = request.epoch
            self._participant = Participant(self._name, read_identity(self._folder, self.members), group)
            return advert_tree(self._participant.advertise())
        shares = self._of(request.epoch).share({site: read_advert(tree) for site, tree in message["adverts"].items()})
        group = self._of(request.epoch).group
        here = [site for site in group.sites if site in message["adverts"]]
        rows = [shares.get(site, [bytes(SHARE)] * group.slots) for site in here]
        return {"shares": torch.stack([torch.stack([tensor(letter) for letter in row]) for row in rows])}

    def masked(self, request: StepRequest | Add, info: StepInfo, heard: str, reply: Tree) -> Tree:
        """The reply with its terms of sums masked. heard: the fingerprint of the messages on which it depends
        (`Memory.heard`).

        Raises:
            CallRefused: the sum is not prepared, or would have too few terms. FedweaveError: a term has no integers of
                the declared size.
        """
        paths = sorted(path for path, _ in leaves(reply) if info.covering(path) in info.sums)
        if not paths:
            return reply
        if request.sum is None:
            raise CallRefused(f"{', '.join(paths[:3])} may leave in a secure sum alone, and the server names none")
        participant = self._of(request.sum.epoch)
        if participant.group.needed != needed(info, request.step, self._sites):
            raise CallRefused(
                f"secure sum: epoch {request.sum.epoch} was agreed on for sums of another number of sites"
            )
        flat = dict(leaves(reply))
        for path in paths:
            words = FixedPoint.of(info.sums[str(info.covering(path))])
            if not isinstance(flat[path], Tensor) or flat[path].dtype != words.dtype:
                raise FedweaveError(f"{path} must hold integers of {words.bits} bits: it is declared in a secure sum")
            if has_diverged(flat[path]):
                raise FedweaveError(told_diverged(path), code="diverged")
            flat[path] = flat[path].contiguous().clone()
        self._note_cut(request, int(flat.get(BEYOND, 0)), _numbers(flat, paths, info))
        use = Use(request.sum.slot, (request.round, request.step, request.again), tuple(request.sum.peers), heard)
        participant.mask(use, [unsigned(flat[path]) for path in paths])
        return nest(flat)

    def _note_cut(self, request: StepRequest | Add, cut: int, values: int) -> None:
        """Note for the site's owner only how many of its numbers were cut to the bound of the sum."""
        if cut:
            self._ledger.note("cut", round=request.round, step=request.step, cut=cut, values=values)
            text = "round %d: %d of %d values of %s were cut to the bound of the secure sum"
            more = fields("cut", round=request.round, step=request.step, cut=cut, values=values)
            self._log.warning(text, request.round, cut, values, request.step, extra=more)

    def open(self, request: Open, message: Tree) -> Tree:
        """Sign the list of sites in a sum, or reveal the shares that open it."""
        participant = self._of(request.epoch)
        if request.kind == "survivors":
            return {"signature": tensor(participant.sign(request.slot, request.survivors))}
        signatures, letters = (
            {site: data(leaf) for site, leaf in message.get(key, {}).items()} for key in ("signatures", "letters")
        )
        answers = participant.reveal(request.slot, signatures, letters)
        rows = [answers.shares.get(site, {}).get(self._name, bytes(SEED)) for site in request.peers]
        return {"mask": tensor(answers.mask[self._name]), "shares": torch.stack([tensor(row) for row in rows])}

    def _of(self, epoch: int) -> Participant:
        if self._participant is None or self._participant.group.epoch != epoch:
            raise CallRefused(f"secure sum: the site has advertised no keys of epoch {epoch} in this job")
        return self._participant


def _numbers(flat: Mapping[str, Tensor], paths: Sequence[str], info: StepInfo) -> int:
    """The number of real numbers in a sum; integers without a fraction are counts."""
    return sum(flat[path].numel() for path in paths if info.sums[str(info.covering(path))].fraction)


def needed(info: StepInfo, step: str, sites: Sequence[str]) -> int:
    """The minimum number of sites in the secure aggregations of a step. sites: all sites of the run.

    Raises:
        CallRefused: the step declares no sum.
    """
    if not info.sums:
        raise CallRefused(f"secure sum: nothing that {step} sends is in one")
    return max(sum_spec.needed(len(sites)) for sum_spec in info.sums.values())


def tensor(blob: bytes) -> Tensor:
    """Bytes as a leaf."""
    return torch.frombuffer(bytearray(blob), dtype=torch.uint8)


def data(leaf: object) -> bytes:
    """Undo `tensor`."""
    if not isinstance(leaf, Tensor) or leaf.dtype != torch.uint8:
        raise CallRefused("secure sum: a field that must hold bytes does not")
    return leaf.contiguous().cpu().numpy().tobytes()


def unsigned(words: Tensor) -> np.ndarray:
    """A view of int32 or int64 integers as unsigned ones, in the same memory."""
    return words.cpu().numpy().view(np.uint32 if words.dtype == torch.int32 else np.uint64)


def advert_tree(advert: Advert) -> Tree:
    """An advertisement as a tree for a message."""
    keys = torch.stack([tensor(key) for key in advert.keys])
    return {"certificate": tensor(advert.certificate), "keys": keys, "signature": tensor(advert.signature)}


def read_advert(tree: Tree) -> Advert:
    """Undo `advert_tree`.

    Raises:
        CallRefused: the tree is not of this form.
    """
    try:
        keys = tuple(data(row) for row in tree["keys"])
        return Advert(data(tree["certificate"]), keys, data(tree["signature"]))
    except (KeyError, TypeError) as error:
        raise CallRefused("secure sum: an advertisement is not of fedweave's form") from error


def read_answers(site: str, tree: Tree, peers: Sequence[str]) -> Answers:
    """A site's revealed mask and shares; a share that is all zeros is absent."""
    shares = {peer: data(row) for peer, row in zip(peers, tree["shares"], strict=True)}
    held = {peer: {site: share} for peer, share in shares.items() if any(share)}
    return Answers({site: data(tree["mask"])}, held)


Ask: TypeAlias = Callable[[str, StepInfo, Record, Mapping[str, Tree]], Replies]
_NOTHING: Tree = {}
NO_KEYS = "it has agreed on no keys for secure sums"


@dataclass
class Sums:
    """The secure aggregations of one job at the server.

    ask: makes one exchange from its name, the replies' declaration, the request and {site: message}. sites: all sites
    of the run. root: the authority, if the server knows it; the server then drops wrongly signed messages, which would
    make all other sites refuse. ledger: the run's ledger; a `Journal` also notes the last epoch, so that the next one
    is later even if the clock was set back.
    """

    ask: Ask
    sites: tuple[str, ...]
    run: str = ""
    root: Authority | None = None
    ledger: Ledger = field(default_factory=Ledger)
    _group: SumGroup | None = None
    _adverts: dict[str, Advert] = field(default_factory=dict)
    _letters: dict[str, torch.Tensor] = field(default_factory=dict)
    _used: int = 0

    def prepare(self, step: str, info: StepInfo, here: Sequence[str]) -> Record:
        """The field "sum" in the request of a step: the sites in the sum, the epoch and the slot.

        Sites agree on new keys when the slots are used up, or when a called site has no keys.

        Raises:
            ClientsMissing: too few of the sites that are `here` have keys.
        """
        least = needed(info, step, self.sites)
        group = self._group
        fits = group is not None and group.needed == least and self._used < group.slots
        if not fits or not set(here) <= set(self._letters):
            group = self._agree(step, least, here)
        self._used += 1
        peers = [site for site in here if site in self._letters]
        if group is None or len(peers) < least:
            raise ClientsMissing(step, self._missing(here), least, len(here))
        return {"epoch": group.epoch, "slot": self._used - 1, "peers": peers}

    def _missing(self, here: Sequence[str]) -> dict[str, str]:
        absent = [site for site in self.sites if site not in here]
        return dict.fromkeys(absent, "it is not there") | dict.fromkeys(
            [site for site in here if site not in self._letters], NO_KEYS
        )

    def _agree(self, step: str, least: int, here: Sequence[str]) -> SumGroup:
        """Rounds 0 and 1 of figure 4 in Bonawitz et al. 2017."""
        journal = self.ledger if isinstance(self.ledger, Journal) else None
        last = self._group.epoch if self._group is not None else last_epoch(journal) if journal is not None else -1
        group = self._group = SumGroup(self.run, max(last + 1, time.time_ns() // 1_000_000), self.sites, least)
        if journal is not None:
            journal.note("epoch", epoch=group.epoch)
        self._used, self._letters = 0, {}
        request = {"step": step, "epoch": group.epoch}
        adverts = self.ask("advertise", INFO["advertise"], request, dict.fromkeys(here, _NOTHING))
        self._adverts = {site: value for site in adverts.clients if (value := self._advert(site, adverts[site], group))}
        if len(self._adverts) < least:
            raise ClientsMissing(step, self._missing(here) | adverts.missing, least, len(here))
        message = {"adverts": {site: adverts[site] for site in self._adverts}}
        replies = self.ask("share", INFO["share"], request, dict.fromkeys(self._adverts, message))
        form = (len(self._adverts), group.slots, SHARE)
        shares = {site: replies[site].get("shares") for site in replies.clients}
        self._letters = {site: value for site, value in shares.items() if value is not None and _is_bytes(value, form)}
        return group

    def _advert(self, site: str, tree: Tree, group: SumGroup) -> Advert | None:
        """A site's advertisement; None if its signature is not valid."""
        with suppress(CallRefused):
            advert = read_advert(tree)
            if len(advert.keys) == group.slots + 1:
                check_signed(
                    site, advert.certificate, advert.signature, advert_bytes(group, site, advert.keys), self.root
                )
                return advert
        return None

    def _signature(self, site: str, tree: Tree, message: bytes) -> bool:
        """Whether a site has signed the list of survivors."""
        with suppress(CallRefused):
            check_signed(site, self._adverts[site].certificate, data(tree.get("signature")), message, self.root)
            return True
        return False

    def opened(
        self,
        step: str,
        info: StepInfo,
        request: Values,
        replies: Replies,
        heard: Tree,
        notes: Mapping[str, str],
    ) -> Replies:
        """The replies, unmasked so that their `total` is the sum of the terms. A single reply still reveals nothing.

        request: the request for the terms, with the result of `prepare` as "sum". heard: the message that all sites got
        with it. notes: {site: its note}, with the fingerprint of the messages on which its term depends
        (`Memory.heard`).

        Raises:
            ClientsMissing: too few sites are left. FedweaveError: the revealed shares do not fit together, or sites got
                different messages.
        """
        group = self._group
        if group is None or len(replies) < group.needed:
            least = needed(info, step, self.sites)
            raise ClientsMissing(step, dict(replies.missing), least, len(replies) + len(replies.missing))
        survivors = list(replies.clients)
        fingerprints = {site: str(read_note(notes[site]).get(HEARD, "")) for site in survivors}
        made_of = fingerprint(heard) if info.stateless else _alike(step, fingerprints)
        sum, where = request["sum"], (request["round"], step, request["again"])
        about = {key: sum[key] for key in ("epoch", "slot", "peers")} | {"survivors": survivors}
        signed = self.ask("survivors", INFO["survivors"], about, dict.fromkeys(survivors, _NOTHING))
        use = Use(sum["slot"], where, tuple(sum["peers"]), made_of)
        message = survivor_bytes(group, use, survivors)
        good = [site for site in signed.clients if self._signature(site, signed[site], message)]
        signatures = {site: signed[site]["signature"] for site in good}
        if len(signatures) < group.needed:
            raise ClientsMissing(step, signed.missing, group.needed, len(survivors))
        letters = {site: self._letters_to(site, sum) for site in signatures}
        reveals = self.ask(
            "reveal",
            INFO["reveal"],
            about,
            {site: {"signatures": signatures, "letters": letters[site]} for site in signatures},
        )
        good = [site for site in reveals.clients if _is_bytes(reveals[site].get("shares"), (len(sum["peers"]), SEED))]
        if len(good) < group.needed and reveals.missing:  # an outage at the last exchange, too: the run can wait
            raise ClientsMissing(step, reveals.missing, group.needed, len(signatures))
        answers = [read_answers(site, reveals[site], sum["peers"]) for site in good]
        first = replies[survivors[0]]
        paths = sorted(path for path, _ in leaves(first) if info.covering(path) in info.sums)
        flat = dict(leaves(first)) | {path: dict(leaves(first))[path].clone() for path in paths}
        subtract_masks([unsigned(flat[path]) for path in paths], group, use, survivors, answers, self._adverts)
        trees = {site: replies[site] for site in survivors} | {survivors[0]: nest(flat)}
        return Replies.of(trees, replies.missing, info.sums)

    def _letters_to(self, site: str, sum: Values) -> Tree:
        """The sealed shares of one slot that the other sites sent for one site."""
        at = list(self._adverts).index(site)
        return {peer: self._letters[peer][at, sum["slot"]] for peer in sum["peers"] if peer != site}


def _alike(step: str, heard: Mapping[str, str]) -> str:
    """The fingerprint of messages that all sites have reported.

    Raises:
        FedweaveError: the sites report different fingerprints.
    """
    first, *_ = heard
    if odd := [site for site in heard if heard[site] != heard[first]]:
        raise FedweaveError(
            f"{step} is in a secure sum, but {', '.join(odd)} got other messages than {first}, now or in an earlier "
            "round, so that the sum cannot be opened. Send all sites the same messages from the first round on: start "
            "a new run.",
            code="sum.told-differently",
        )
    return heard[first]


def _is_bytes(leaf: object, form: tuple[int, ...]) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dtype == torch.uint8 and leaf.shape == form

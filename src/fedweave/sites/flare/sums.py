"""Secure aggregation at the server: it has the sites agree on keys, and opens the sums of their masked terms."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from fedweave.core.federation import StepInfo
from fedweave.core.ledger import Ledger
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree, leaves, nest
from fedweave.core.types import Record, Values
from fedweave.engines.sum_messages import INFO, SEED, SHARE, fingerprint
from fedweave.errors import CallRefused, ClientsMissing, FedweaveError
from fedweave.sites.flare.journal import Journal, last_epoch
from fedweave.sites.flare.masking import as_unsigned, data, min_terms, read_advert
from fedweave.sites.flare.peers import SUM_OF, read_note
from fedweave.sites.protocols.aggregation import (
    Advert,
    Answers,
    SumGroup,
    Use,
    advert_bytes,
    subtract_masks,
    survivor_bytes,
)
from fedweave.sites.protocols.identity import Authority, check_signed


def read_answers(site: str, tree: Tree, peers: Sequence[str]) -> Answers:
    """A site's revealed mask and shares; a share that is all zeros is absent."""
    shares = {peer: data(row) for peer, row in zip(peers, tree["shares"], strict=True)}
    shares_of = {peer: {site: share} for peer, share in shares.items() if any(share)}
    return Answers({site: data(tree["mask"])}, shares_of)


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
        minimum = min_terms(info, step, self.sites)
        group = self._group
        fits = group is not None and group.needed == minimum and self._used < group.slots
        if not fits or not set(here) <= set(self._letters):
            group = self._agree(step, minimum, here)
        self._used += 1
        peers = [site for site in here if site in self._letters]
        if group is None or len(peers) < minimum:
            raise ClientsMissing(step, self._missing(here), minimum, len(here))
        return {"epoch": group.epoch, "slot": self._used - 1, "peers": peers}

    def _missing(self, here: Sequence[str]) -> dict[str, str]:
        absent = [site for site in self.sites if site not in here]
        return dict.fromkeys(absent, "it is not there") | dict.fromkeys(
            [site for site in here if site not in self._letters], NO_KEYS
        )

    def _agree(self, step: str, minimum: int, here: Sequence[str]) -> SumGroup:
        """Rounds 0 and 1 of figure 4 in Bonawitz et al. 2017."""
        journal = self.ledger if isinstance(self.ledger, Journal) else None
        last = -1 if journal is None else last_epoch(journal)
        if self._group is not None:
            last = self._group.epoch
        group = self._group = SumGroup(self.run, max(last + 1, time.time_ns() // 1_000_000), self.sites, minimum)
        if journal is not None:
            journal.note("epoch", epoch=group.epoch)
        self._used, self._letters = 0, {}
        request = {"step": step, "epoch": group.epoch}
        adverts = self.ask("advertise", INFO["advertise"], request, dict.fromkeys(here, _NOTHING))
        values = {site: self._advert(site, adverts[site], group) for site in adverts.clients}
        self._adverts = {site: value for site, value in values.items() if value is not None}
        if len(self._adverts) < minimum:
            raise ClientsMissing(step, self._missing(here) | adverts.missing, minimum, len(here))
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

    def open_sum(
        self,
        step: str,
        info: StepInfo,
        request: Values,
        replies: Replies,
        broadcast: Tree,
        notes: Mapping[str, str],
    ) -> Replies:
        """The replies, unmasked so that their `total` is the sum of the terms. A single reply still reveals nothing.

        request: the request for the terms, with the result of `prepare` as "sum". broadcast: the message that all sites
        got with it. notes: {site: its note}, with the fingerprint of the messages on which its term depends
        (`Memory.message_digest`).

        Raises:
            ClientsMissing: too few sites are left. FedweaveError: the revealed shares do not fit together, or sites got
                different messages.
        """
        group = self._group
        if group is None or len(replies) < group.needed:
            minimum = min_terms(info, step, self.sites)
            raise ClientsMissing(step, dict(replies.missing), minimum, len(replies) + len(replies.missing))
        survivors = list(replies.clients)
        fingerprints = {site: str(read_note(notes[site]).get(SUM_OF, "")) for site in survivors}
        made_of = fingerprint(broadcast) if info.stateless else _common_fingerprint(step, fingerprints)
        sum, where = request["sum"], (request["round"], step, request["again"])
        about = {key: sum[key] for key in ("epoch", "slot", "peers")} | {"survivors": survivors}
        signed = self.ask("survivors", INFO["survivors"], about, dict.fromkeys(survivors, _NOTHING))
        use = Use(sum["slot"], where, tuple(sum["peers"]), made_of)
        message = survivor_bytes(group, use, survivors)
        good = [site for site in signed.clients if self._signature(site, signed[site], message)]
        signatures = {site: signed[site]["signature"] for site in good}
        if len(signatures) < group.needed:
            raise ClientsMissing(step, signed.missing, group.needed, len(survivors))
        order = list(self._adverts)
        messages = dict[str, Tree]()  # the signatures, and the sealed shares that the other sites sent for each site
        for site in signatures:
            at = order.index(site)
            letters = {peer: self._letters[peer][at, sum["slot"]] for peer in sum["peers"] if peer != site}
            messages[site] = {"signatures": signatures, "letters": letters}
        reveals = self.ask("reveal", INFO["reveal"], about, messages)
        good = [site for site in reveals.clients if _is_bytes(reveals[site].get("shares"), (len(sum["peers"]), SEED))]
        if len(good) < group.needed and reveals.missing:  # an outage at the last exchange, too: the run can wait
            raise ClientsMissing(step, reveals.missing, group.needed, len(signatures))
        answers = [read_answers(site, reveals[site], sum["peers"]) for site in good]
        first = replies[survivors[0]]
        paths = sorted(path for path, _ in leaves(first) if info.covering(path) in info.sums)
        flat = dict(leaves(first)) | {path: dict(leaves(first))[path].clone() for path in paths}
        subtract_masks([as_unsigned(flat[path]) for path in paths], group, use, survivors, answers, self._adverts)
        trees = {site: replies[site] for site in survivors} | {survivors[0]: nest(flat)}
        return Replies.of(trees, replies.missing, info.sums)


def _common_fingerprint(step: str, fingerprints: Mapping[str, str]) -> str:
    """The fingerprint of messages that all sites have reported.

    Raises:
        FedweaveError: the sites report different fingerprints.
    """
    first, *_ = fingerprints
    differing = [site for site in fingerprints if fingerprints[site] != fingerprints[first]]
    if differing:
        raise FedweaveError(
            f"{step} is in a secure sum, but {', '.join(differing)} got other messages than {first}, now or in an "
            "earlier round, so that the sum cannot be opened. Send all sites the same messages from the first round "
            "on: start a new run.",
            code="sum.told-differently",
        )
    return fingerprints[first]


def _is_bytes(leaf: object, form: tuple[int, ...]) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dtype == torch.uint8 and leaf.shape == form

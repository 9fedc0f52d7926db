"""The server's part in secure sums: it has sites agree on keys, and opens what they have masked."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from fedweave.core.federation import StepInfo
from fedweave.core.ledger import Ledger
from fedweave.core.portions import Batch, as_row
from fedweave.core.records import Record, Values
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree, leaves, map_leaves, nest
from fedweave.deploy.flare.sums.masking import data, needed, read_advert, read_answers, unsigned
from fedweave.deploy.flare.wire.journal import Journal, last_epoch
from fedweave.deploy.flare.wire.peers import HEARD, read_note
from fedweave.engines.summing import INFO, SEED, SHARE, fingerprint
from fedweave.errors import CallRefused, ClientsMissing, FedweaveError
from fedweave.privacy.aggregation import Advert, Authority, Group, Use, advertised, check_signed, leftover, survived

Ask: TypeAlias = Callable[[str, StepInfo, Record, Mapping[str, Tree]], Replies]
_NOTHING: Tree = {}
NO_KEYS = "it has agreed on no keys for secure sums"


@dataclass
class Sums:
    """The secure sums of one job.

    ask: one exchange: its name, what may be replied, the request and {site: message}. sites: all of the run. root: the
    authority, if the server knows it: what a site has not signed would make all others refuse. ledger: of the run;
    where it is kept, it remembers the last epoch, after which the next one is even if the clock was set back.
    """

    ask: Ask
    sites: tuple[str, ...]
    run: str = ""
    root: Authority | None = None
    ledger: Ledger = field(default_factory=Ledger)
    _group: Group | None = None
    _adverts: dict[str, Advert] = field(default_factory=dict)
    _letters: dict[str, torch.Tensor] = field(default_factory=dict)
    _used: int = 0

    def prepare(self, step: str, info: StepInfo, here: Sequence[str]) -> Record:
        """What the request of a step says of the sum of its replies: which sites it is of, and which slot is theirs.

        Sites agree on new keys when the slots are used up, or when one that is called has none.

        Raises:
            ClientsMissing: too few of those that are `here` have keys.
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

    def _agree(self, step: str, least: int, here: Sequence[str]) -> Group:
        """Rounds 0 and 1 of figure 4 in Bonawitz et al. 2017."""
        kept = self.ledger if isinstance(self.ledger, Journal) else None
        last = self._group.epoch if self._group is not None else last_epoch(kept) if kept is not None else -1
        group = self._group = Group(self.run, max(last + 1, time.time_ns() // 1_000_000), self.sites, least)
        if kept is not None:
            kept.note("epoch", epoch=group.epoch)
        self._used, self._letters = 0, {}
        request = {"step": step, "epoch": group.epoch}
        told = self.ask("advertise", INFO["advertise"], request, dict.fromkeys(here, _NOTHING))
        self._adverts = {site: own for site in told.clients if (own := self._advert(site, told[site], group))}
        if len(self._adverts) < least:
            raise ClientsMissing(step, self._missing(here) | told.missing, least, len(here))
        message = {"adverts": {site: told[site] for site in self._adverts}}
        dealt = self.ask("share", INFO["share"], request, dict.fromkeys(self._adverts, message))
        form = (len(self._adverts), group.slots, SHARE)
        shares = {site: dealt[site].get("shares") for site in dealt.clients}
        self._letters = {site: own for site, own in shares.items() if own is not None and _is_bytes(own, form)}
        return group

    def _advert(self, site: str, tree: Tree, group: Group) -> Advert | None:
        """What a site has advertised; None if it has not signed it."""
        with suppress(CallRefused):
            own = read_advert(tree)
            if len(own.keys) == group.slots + 1:
                check_signed(site, own.certificate, own.signature, advertised(group, site, own.keys), self.root)
                return own
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
        """The replies such that their `total` is the sum of the terms; no single one says anything.

        request: of the terms, with what `prepare` gave as "sum". heard: what all were told with it. notes: of each
        site, which says what its term was made of (`Memory.heard`).

        Raises:
            ClientsMissing: too few are left. FedweaveError: what sites revealed does not belong together, or they were
                told other things.
        """
        group = self._group
        if group is None or len(replies) < group.needed:
            least = needed(info, step, self.sites)
            raise ClientsMissing(step, dict(replies.missing), least, len(replies) + len(replies.missing))
        survivors = list(replies.clients)
        said = {site: str(read_note(notes[site]).get(HEARD, "")) for site in survivors}
        made_of = fingerprint(heard) if info.stateless else _alike(step, said)
        sum, where = request["sum"], (request["round"], step, request["again"])
        about = {key: sum[key] for key in ("epoch", "slot", "peers")} | {"survivors": survivors}
        signed = self.ask("survivors", INFO["survivors"], about, dict.fromkeys(survivors, _NOTHING))
        use = Use(sum["slot"], where, tuple(sum["peers"]), made_of)
        message = survived(group, use, survivors)
        good = [site for site in signed.clients if self._signature(site, signed[site], message)]
        signatures = {site: signed[site]["signature"] for site in good}
        if len(signatures) < group.needed:
            raise ClientsMissing(step, signed.missing, group.needed, len(survivors))
        letters = {site: self._letters_to(site, sum) for site in signatures}
        told = self.ask(
            "reveal",
            INFO["reveal"],
            about,
            {site: {"signatures": signatures, "letters": letters[site]} for site in signatures},
        )
        good = [site for site in told.clients if _is_bytes(told[site].get("shares"), (len(sum["peers"]), SEED))]
        answers = [read_answers(site, told[site], sum["peers"]) for site in good]
        first = replies[survivors[0]]
        paths = sorted(path for path, _ in leaves(first) if info.covering(path) in info.sums)
        flat = dict(leaves(first)) | {path: dict(leaves(first))[path].clone() for path in paths}
        leftover([unsigned(flat[path]) for path in paths], group, use, survivors, answers, self._adverts)
        trees = [nest(flat), *(replies[site] for site in survivors[1:])]
        batches = [Batch((at,), map_leaves(as_row, tree)) for at, tree in enumerate(trees)]
        return Replies(survivors, batches, replies.missing, info.sums)

    def _letters_to(self, site: str, sum: Values) -> Tree:
        """What the other sites have sealed for one, of one slot."""
        at = list(self._adverts).index(site)
        return {peer: self._letters[peer][at, sum["slot"]] for peer in sum["peers"] if peer != site}


def _alike(step: str, heard: Mapping[str, str]) -> str:
    """What all sites heard."""
    first, *_ = heard
    if odd := [site for site in heard if heard[site] != heard[first]]:
        raise FedweaveError(
            f"{step} is in a secure sum, but {', '.join(odd)} were told other things than {first}, now or before, so "
            "that nobody can open it. All must be told the same, from the first round on; start the run anew.",
            code="sum.told-differently",
        )
    return heard[first]


def _is_bytes(leaf: object, form: tuple[int, ...]) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dtype == torch.uint8 and leaf.shape == form

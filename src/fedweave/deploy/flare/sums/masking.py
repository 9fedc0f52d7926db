"""A site's part in secure sums: `privacy.aggregation` on trees, requests and the site's journal."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from fedweave.core.federation import StepInfo
from fedweave.core.tree import Tree, leaves, nest
from fedweave.deploy.flare.wire.journal import Journal, last_epoch
from fedweave.deploy.flare.wire.requests import Add, Agree, Call, Open
from fedweave.engines.summing import SEED, SHARE
from fedweave.errors import CallRefused, FedweaveError, told_diverged
from fedweave.privacy.aggregation import Advert, Answers, Group, Participant, Use, read_identity
from fedweave.privacy.secure_sum import BEYOND, FixedPoint, diverged


class Masking:
    """The secure sums of one job at one site.

    folder: the site's. ledger: of the run; it remembers which epochs there have been. members: see `sitefile.Rules`.
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

    def agree(self, asked: Agree, info: StepInfo, told: Tree) -> Tree:
        """Advertise the keys of a new epoch, or deal shares to those who have.

        info: of the step that the epoch's sums are for.

        Raises:
            CallRefused: the epoch has been before, or what is asked is out of turn.
        """
        if asked.kind == "advertise":
            if asked.epoch <= self._last:
                raise CallRefused(f"secure sum: epoch {asked.epoch} is not after {self._last}, the last one")
            group = Group(self._run, asked.epoch, self._sites, needed(info, asked.step, self._sites))
            self._ledger.note("epoch", epoch=asked.epoch)
            self._last = asked.epoch
            self._participant = Participant(self._name, read_identity(self._folder, self.members), group)
            return advert_tree(self._participant.advertise())
        dealt = self._of(asked.epoch).share({site: read_advert(tree) for site, tree in told["adverts"].items()})
        group = self._of(asked.epoch).group
        here = [site for site in group.sites if site in told["adverts"]]
        rows = [dealt.get(site, [bytes(SHARE)] * group.slots) for site in here]
        return {"shares": torch.stack([torch.stack([tensor(letter) for letter in row]) for row in rows])}

    def masked(self, asked: Call | Add, info: StepInfo, heard: str, reply: Tree) -> Tree:
        """The reply with what it has for a sum masked; heard: the fingerprint of what it was made of (`Memory.heard`).

        Raises:
            CallRefused: the sum is not prepared, or would be of too few. FedweaveError: what is to be added up are no
                words of the declared size.
        """
        paths = sorted(path for path, _ in leaves(reply) if info.covering(path) in info.sums)
        if not paths:
            return reply
        if asked.sum is None:
            raise CallRefused(f"{', '.join(paths[:3])} may leave in a secure sum alone, and the server names none")
        participant = self._of(asked.sum.epoch)
        if participant.group.needed != needed(info, asked.step, self._sites):
            raise CallRefused(f"secure sum: epoch {asked.sum.epoch} was agreed on for sums of another number of sites")
        flat = dict(leaves(reply))
        for path in paths:
            words = FixedPoint.of(info.sums[str(info.covering(path))])
            if not isinstance(flat[path], Tensor) or flat[path].dtype != words.dtype:
                raise FedweaveError(f"{path} is to be words of {words.bits} bits, for it is declared in a secure sum")
            if diverged(flat[path]):
                raise FedweaveError(told_diverged(path), code="diverged")
            flat[path] = flat[path].contiguous().clone()
        self._tell_cut(asked, int(flat.get(BEYOND, 0)), _numbers(flat, paths, info))
        use = Use(asked.sum.slot, (asked.round, asked.step, asked.again), tuple(asked.sum.peers), heard)
        participant.mask(use, [unsigned(flat[path]) for path in paths])
        return nest(flat)

    def _tell_cut(self, asked: Call | Add, cut: int, values: int) -> None:
        """Say at the site, and to nobody else, how many of its numbers a sum has not as they were."""
        if cut:
            self._ledger.note("cut", round=asked.round, step=asked.step, cut=cut, values=values)
            told = "round %d: %d of %d values of %s were cut to the bound of the secure sum"
            self._log.warning(told, asked.round, cut, values, asked.step)

    def open(self, asked: Open, told: Tree) -> Tree:
        """Sign whose terms a sum has, or reveal what opens it."""
        participant = self._of(asked.epoch)
        if asked.kind == "survivors":
            return {"signature": tensor(participant.sign(asked.slot, asked.survivors))}
        signatures, letters = (
            {site: data(leaf) for site, leaf in told.get(key, {}).items()} for key in ("signatures", "letters")
        )
        answers = participant.reveal(asked.slot, signatures, letters)
        rows = [answers.shares.get(site, {}).get(self._name, bytes(SEED)) for site in asked.peers]
        return {"mask": tensor(answers.mask[self._name]), "shares": torch.stack([tensor(row) for row in rows])}

    def _of(self, epoch: int) -> Participant:
        if self._participant is None or self._participant.group.epoch != epoch:
            raise CallRefused(f"secure sum: the site has advertised no keys of epoch {epoch} in this job")
        return self._participant


def _numbers(flat: Mapping[str, Tensor], paths: Sequence[str], info: StepInfo) -> int:
    """How many real numbers a sum is of; words without a fraction are counts."""
    return sum(flat[path].numel() for path in paths if info.sums[str(info.covering(path))].fraction)


def needed(info: StepInfo, step: str, sites: Sequence[str]) -> int:
    """Of how many of all sites the sums of a step are at least.

    Raises:
        CallRefused: nothing of it is in a sum.
    """
    if not info.sums:
        raise CallRefused(f"secure sum: nothing that {step} sends is in one")
    return max(own.needed(len(sites)) for own in info.sums.values())


def tensor(blob: bytes) -> Tensor:
    """Bytes as a leaf."""
    return torch.frombuffer(bytearray(blob), dtype=torch.uint8)


def data(leaf: object) -> bytes:
    """Undo `tensor`."""
    if not isinstance(leaf, Tensor) or leaf.dtype != torch.uint8:
        raise CallRefused("secure sum: what is to be bytes is none")
    return leaf.contiguous().cpu().numpy().tobytes()


def unsigned(words: Tensor) -> np.ndarray:
    """int32 or int64 words as unsigned ones, in the same memory."""
    return words.cpu().numpy().view(np.uint32 if words.dtype == torch.int32 else np.uint64)


def advert_tree(advert: Advert) -> Tree:
    """For the wire."""
    keys = torch.stack([tensor(key) for key in advert.keys])
    return {"certificate": tensor(advert.certificate), "keys": keys, "signature": tensor(advert.signature)}


def read_advert(tree: Tree) -> Advert:
    """Undo `advert_tree`.

    Raises:
        CallRefused: it is not of this form.
    """
    try:
        keys = tuple(data(row) for row in tree["keys"])
        return Advert(data(tree["certificate"]), keys, data(tree["signature"]))
    except (KeyError, TypeError) as error:
        raise CallRefused("secure sum: an advertisement is not of fedweave's form") from error


def read_answers(site: str, tree: Tree, peers: Sequence[str]) -> Answers:
    """What a site revealed; a share of zeros alone is none."""
    shares = {peer: data(row) for peer, row in zip(peers, tree["shares"], strict=True)}
    return Answers({site: data(tree["mask"])}, _held(shares, site))


def _held(shares: Mapping[str, bytes], holder: str) -> dict[str, dict[str, bytes]]:
    return {peer: {holder: share} for peer, share in shares.items() if any(share)}

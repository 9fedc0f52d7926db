"""A site's part in secure aggregation: `protocols.aggregation` on trees, requests and the site's journal."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from fedweave.core.federation import StepInfo
from fedweave.core.tree import Tree, leaves, nest
from fedweave.engines.sum_messages import SEED, SHARE
from fedweave.errors import CallRefused, FedweaveError, diverged_message
from fedweave.privacy.secure_sum import BEYOND, FixedPoint, has_diverged
from fedweave.sites.flare.folder import fields
from fedweave.sites.flare.journal import Journal, last_epoch
from fedweave.sites.flare.requests import Add, Agree, Open, StepRequest
from fedweave.sites.protocols.aggregation import Advert, Participant, SumGroup, Use
from fedweave.sites.protocols.identity import read_identity


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
        """
        if request.kind == "advertise":
            if request.epoch <= self._last:
                raise CallRefused(f"secure sum: epoch {request.epoch} is not after {self._last}, the last one")
            group = SumGroup(self._run, request.epoch, self._sites, min_terms(info, request.step, self._sites))
            self._ledger.note("epoch", epoch=request.epoch)
            self._last = request.epoch
            self._participant = Participant(self._name, read_identity(self._folder, self.members), group)
            return advert_tree(self._participant.advertise())
        shares = self._of(request.epoch).share({site: read_advert(tree) for site, tree in message["adverts"].items()})
        group = self._of(request.epoch).group
        here = [site for site in group.sites if site in message["adverts"]]
        rows = [shares.get(site, [bytes(SHARE)] * group.slots) for site in here]
        letters = [torch.stack(list(map(tensor, row))) for row in rows]
        return {"shares": torch.stack(letters)}  # [sites, slots, bytes of a share]

    def mask_reply(self, request: StepRequest | Add, info: StepInfo, digest: str, reply: Tree) -> Tree:
        """The reply with its terms of sums masked. digest: the fingerprint of the messages on which it depends
        (`Memory.message_digest`)."""
        paths = sorted(path for path, _ in leaves(reply) if info.covering(path) in info.sums)
        if not paths:
            return reply
        if request.sum is None:
            raise CallRefused(f"{', '.join(paths[:3])} may leave in a secure sum alone, and the server names none")
        participant = self._of(request.sum.epoch)
        if participant.group.needed != min_terms(info, request.step, self._sites):
            raise CallRefused(
                f"secure sum: epoch {request.sum.epoch} was agreed on for sums of another number of sites"
            )
        flat = dict(leaves(reply))
        for path in paths:
            words = FixedPoint.of(info.sums[str(info.covering(path))])
            if not isinstance(flat[path], Tensor) or flat[path].dtype != words.dtype:
                raise FedweaveError(f"{path} must hold integers of {words.bits} bits: it is declared in a secure sum")
            if has_diverged(flat[path]):
                raise FedweaveError(diverged_message(path), code="diverged")
            flat[path] = flat[path].contiguous().clone()
        cut = int(flat.get(BEYOND, 0))
        if cut:  # noted for the site's owner only: how many of its numbers were cut to the bound of the sum
            # integers without a fraction are counts
            values = sum(flat[path].numel() for path in paths if info.sums[str(info.covering(path))].fraction)
            about = {"round": request.round, "step": request.step, "cut": cut, "values": values}
            self._ledger.note("cut", **about)
            text = "round %d: %d of %d values of %s were cut to the bound of the secure sum"
            self._log.warning(text, request.round, cut, values, request.step, extra=fields("cut", **about))
        use = Use(request.sum.slot, (request.round, request.step, request.again), tuple(request.sum.peers), digest)
        participant.mask(use, [as_unsigned(flat[path]) for path in paths])
        return nest(flat)

    def open(self, request: Open, message: Tree) -> Tree:
        """Sign the list of sites in a sum, or reveal the shares that open it."""
        participant = self._of(request.epoch)
        if request.kind == "survivors":
            return {"signature": tensor(participant.sign(request.slot, request.survivors))}
        signatures = {site: data(leaf) for site, leaf in message.get("signatures", {}).items()}
        letters = {site: data(leaf) for site, leaf in message.get("letters", {}).items()}
        answers = participant.reveal(request.slot, signatures, letters)
        rows = [answers.shares.get(site, {}).get(self._name, bytes(SEED)) for site in request.peers]
        return {"mask": tensor(answers.mask[self._name]), "shares": torch.stack([tensor(row) for row in rows])}

    def _of(self, epoch: int) -> Participant:
        if self._participant is None or self._participant.group.epoch != epoch:
            raise CallRefused(f"secure sum: the site has advertised no keys of epoch {epoch} in this job")
        return self._participant


def min_terms(info: StepInfo, step: str, sites: Sequence[str]) -> int:
    """The minimum number of sites in the secure aggregations of a step. sites: all sites of the run."""
    if not info.sums:
        raise CallRefused(f"secure sum: nothing that {step} sends is in one")
    return max(sum_spec.min_terms(len(sites)) for sum_spec in info.sums.values())


def tensor(blob: bytes) -> Tensor:
    """Bytes as a leaf."""
    return torch.frombuffer(bytearray(blob), dtype=torch.uint8)


def data(leaf: object) -> bytes:
    """Undo `tensor`."""
    if not isinstance(leaf, Tensor) or leaf.dtype != torch.uint8:
        raise CallRefused("secure sum: a field that must hold bytes does not")
    return leaf.contiguous().cpu().numpy().tobytes()


def as_unsigned(words: Tensor) -> np.ndarray:
    """A view of int32 or int64 integers as unsigned ones, in the same memory."""
    return words.cpu().numpy().view(np.uint32 if words.dtype == torch.int32 else np.uint64)


def advert_tree(advert: Advert) -> Tree:
    """An advertisement as a tree for a message."""
    keys = torch.stack([tensor(key) for key in advert.keys])  # [slots + 1, 32]
    return {"certificate": tensor(advert.certificate), "keys": keys, "signature": tensor(advert.signature)}


def read_advert(tree: Tree) -> Advert:
    """Undo `advert_tree`."""
    try:
        keys = tuple(data(row) for row in tree["keys"])
        return Advert(data(tree["certificate"]), keys, data(tree["signature"]))
    except (KeyError, TypeError) as error:
        raise CallRefused("secure sum: an advertisement is not of fedweave's form") from error

"""Updates in fewer bytes: only the largest entries, and few bits for each. Ledgers and messages between sites hold the
packed update; the server unpacks it before any other step.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedweave.algorithms.parts.part import Context, Part
from fedweave.core import random
from fedweave.core.bounds import Share
from fedweave.core.replies import Replies, ReplyBatch
from fedweave.core.tree import Tree, leaves, map_leaves, nest, sub
from fedweave.errors import ReplyRefused

UPDATE = "update"


@dataclass(frozen=True)
class Packing:
    """The form in which a client sends an update, leaf by leaf.

    share: share of the entries that the client sends, the largest; 1 for all. bits: bits of each entry; 0 for the full
           dtype.
    """

    share: float = 1.0
    bits: int = 0

    @property
    def levels(self) -> int:
        return (1 << self.bits - 1) - 1

    def max_entries(self, count: int) -> int:
        """The number of entries that a client sends of `count`."""
        return math.ceil(self.share * count)

    # --- at a client

    def pack_leaf(self, leaf: Tensor) -> Tree:
        """{"at": places int32 [k]} if `share` is below 1, and {"values": [k]} or {"codes": uint8, "scale"} of the
        entries."""
        flat, packed = leaf.flatten(), Tree()
        if self.share < 1:
            at = flat.abs().topk(self.max_entries(flat.numel()), sorted=False).indices.sort().values
            packed["at"], flat = at.int(), flat.gather(0, at)
        if not self.bits:
            return packed | {"values": flat}
        scale = flat.abs().amax()
        whole = torch.round(flat / torch.where(scale > 0, scale, 1) * self.levels)
        codes = (whole + self.levels).to(torch.uint8)
        if self.bits == 4:
            codes = torch.nn.functional.pad(codes, (0, codes.numel() % 2)).view(-1, 2)
            codes = codes[:, 0] * 16 + codes[:, 1]
        return packed | {"codes": codes, "scale": scale}

    # --- at the server

    def unpack_leaf(self, packed: Mapping[str, Tensor], like: Tensor) -> Tensor:
        """The leaves [P, …] of P clients from the stacked results of `pack_leaf`; like: one client's leaf.

        Raises:
            ReplyRefused: they have another form.
        """
        count, length = like.numel(), self.max_entries(like.numel())
        clients = len(next(iter(packed.values())))
        # 1. Check what the clients sent.
        expected: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        if self.share < 1:
            expected["at"] = (clients, length), torch.int32
        if self.bits:
            expected["codes"] = (clients, -(-length * self.bits // 8)), torch.uint8
            expected["scale"] = (clients,), like.dtype
        else:
            expected["values"] = (clients, length), like.dtype
        actual = {name: (tuple(leaf.shape), leaf.dtype) for name, leaf in packed.items()}
        if actual != expected:
            raise ReplyRefused(f"an update is not packed as top_k and quantize pack it: {actual}, not {expected}")
        if self.share < 1 and not bool(((packed["at"] >= 0) & (packed["at"] < count)).all()):
            raise ReplyRefused("an update is packed with places outside of the weights")
        # 2. Unpack it.
        if self.bits:
            codes = packed["codes"]
            if self.bits == 4:
                codes = torch.stack([codes // 16, codes % 16], -1).flatten(1)[:, :length]
            scale = packed["scale"][:, None]
            values = (codes.to(like.dtype) - self.levels) * (scale / self.levels)  # [clients, length]
        else:
            values = packed["values"]
        if self.share < 1:
            at = packed["at"].long()
            values = torch.zeros(clients, count, dtype=like.dtype, device=values.device).scatter(1, at, values)
        return values.view(clients, *like.shape)

    # --- whole updates

    def pack(self, update: Tree) -> Tree:
        return map_leaves(self.pack_leaf, update)

    def unpack(self, replies: Replies, like: Tree) -> Replies:
        """The replies with unpacked updates.

        Raises:
            ReplyRefused: some are of another form.
        """
        if not len(replies):
            return replies
        rest = {path: replies.stack(path) for path in replies.paths if not path.startswith(f"{UPDATE}/")}
        updates = {}
        for path, leaf in leaves(like):
            packed = {}
            for name in ("at", "values", "codes", "scale"):
                key = f"{UPDATE}/{path}/{name}"
                if key in replies.paths:
                    packed[name] = replies.stack(key)
            updates[f"{UPDATE}/{path}"] = self.unpack_leaf(packed, leaf)
        return Replies(replies.clients, [ReplyBatch(tuple(range(len(replies))), nest(rest | updates))], replies.missing)


class Packs(Part):
    """A part that decides the form in which clients send updates."""

    def into(self, packing: Packing) -> Packing:
        """The packing with this part's settings."""
        raise NotImplementedError


@dataclass(frozen=True)
class TopK(Packs):
    """Clients send only the largest entries of each layer's update. The client keeps the rest and adds it to its next
    update (Stich, Cordonnier and Jaggi 2018, "Sparsified SGD with memory", algorithm 1).

    keep: share of the entries that clients send, above 0.
    """

    keep: Share = 0.1
    recorded = True
    rounds_vary = True

    def into(self, packing: Packing) -> Packing:
        return replace(packing, share=self.keep)

    def release(self, ctx: Context, update: Tree) -> Tree:
        whole = map_leaves(torch.add, update, ctx.memory_or_zeros("left", like=update))
        largest = map_leaves(self.keep_largest, whole)
        ctx.keep({"left": sub(whole, largest)})
        return largest

    def keep_largest(self, leaf: Tensor) -> Tensor:
        """The largest entries of a leaf, 0 elsewhere."""
        flat = leaf.flatten()
        at = flat.abs().topk(Packing(self.keep).max_entries(flat.numel()), sorted=False).indices
        return torch.zeros_like(flat).scatter(0, at, flat.gather(0, at)).view(leaf.shape)


@dataclass(frozen=True)
class Quantize(Packs):
    """Clients send each entry of an update in few bits, as a multiple of scale / L from −scale to scale. Stochastic
    rounding to the two nearest multiples is unbiased (Alistarh et al. 2017, "QSGD", section 3.1, with the largest size
    of a layer as its scale).

    bits: 8 with L = 127, or 4 with L = 7.
    """

    bits: Literal[8, 4] = 8
    recorded = True

    def into(self, packing: Packing) -> Packing:
        return replace(packing, bits=self.bits)

    def release(self, ctx: Context, update: Tree) -> Tree:
        key = random.fold(ctx.client.key, "quantize")
        whole = leaves(map_leaves(torch.clone, update))
        return nest({path: self.round_leaf(leaf, random.fold(key, path)) for path, leaf in whole})

    def round_leaf(self, leaf: Tensor, key: Tensor) -> Tensor:
        """⌊x L / scale + u⌋ scale / L with u uniform in [0, 1)."""
        levels = Packing(bits=self.bits).levels
        scale = leaf.abs().amax()
        u = random.uniform(key, tuple(leaf.shape)).to(leaf.dtype)
        whole = torch.floor(leaf / torch.where(scale > 0, scale, 1) * levels + u).clamp(-levels, levels)
        return whole * (scale / levels)


def packing_of(parts: Mapping[str, Part]) -> Packing | None:
    """The form in which clients send updates with these parts; None for plain updates."""
    packing = Packing()
    for part in parts.values():
        if isinstance(part, Packs):
            packing = part.into(packing)
    return packing if packing != Packing() else None

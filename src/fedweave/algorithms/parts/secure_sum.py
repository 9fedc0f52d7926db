"""FedAvg by secure aggregation: Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving machine
learning"."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedweave.algorithms.parts.part import Context, Part, Protection
from fedweave.core import mechanism
from fedweave.core.algorithm import Round
from fedweave.core.federation import Client, Federation, Sends, Step, on_client
from fedweave.core.graph import TRAIN
from fedweave.core.tree import Tree, leaves, map_leaves
from fedweave.privacy.secure_sum import BEYOND, FixedPoint, cut_counts, tallied, tells_beyond

_MOST = 1 << 40  # examples of a client; the sum of 2^23 clients fits
_LEAST = 2.0**-10  # of N, as which a client counts at least


@dataclass(frozen=True)
class InSum(Part):
    """What leaves a client is masked so that only the sum over all who sent can be opened (`SecureSum`): the form that
    parts have in common which add up `terms` of their own.

    bound:    every number is cut to ±bound.
    fraction: binary digits of a masked integer behind the point.
    bits:     bits of a masked integer, 32 or 64.
    everyone: each sum covers all clients.
    least:    fewest clients of a sum without `everyone`.
    accomplices: without `everyone`: c of P clients may work with the server; the sum covers more than (P + c) / 2.
    """

    bound: float = 1.0
    fraction: int = 24
    bits: Literal[32, 64] = 32
    everyone: bool = True
    least: int = 2
    accomplices: int = 1

    def __post_init__(self) -> None:
        if not self.bound > 0:
            raise ValueError(f"bound is {self.bound}; it must be positive")
        self._words  # noqa: B018  refuse words that there are not

    @property
    def _words(self) -> FixedPoint:
        return FixedPoint.of(self._masked)

    @property
    def _masked(self) -> mechanism.SecureSum:
        against = 0 if self.everyone else self.accomplices
        return mechanism.SecureSum(self.least, self.everyone, self.bits, self.fraction, against)

    @property
    def protection(self) -> Protection:
        """The sum; clients may remember something if everyone is in each."""
        return Protection(self._masked, hides=True, stateless=not self.everyone)

    def terms(self, ctx: Context, update: Tree) -> Tree:
        """What is added up, before it is cut to the bound; float64."""
        raise NotImplementedError

    def release(self, ctx: Context, update: Tree) -> Tree:
        """Words of the terms."""
        words, terms = self._words, self.terms(ctx, update)
        most = words.word(self.bound)
        ctx.said[BEYOND] = torch.stack([words.beyond(leaf, most) for _, leaf in leaves(terms)]).sum()
        return map_leaves(lambda leaf: words.encode(leaf, most), terms)

    def beyond(self, ctx: Context) -> Tree:
        """{"beyond": how many numbers were cut to the bound}."""
        return {BEYOND: ctx.said[BEYOND]}

    def weigh(self, state: Tree, round: Round) -> None:
        """Nobody knows: it is in the sum."""
        return None

    def update(self, state: Tree, round: Round) -> Tree:
        """How many numbers were cut so far."""
        values = sum(leaf.numel() for _, leaf in leaves(round.w)) * len(round.at)
        return state | {"cut": tallied(state.get("cut"), round.replies.total(BEYOND), values, self.bound)}

    def measures(self, state: Tree) -> Mapping[str, Tensor | float]:
        """{"secure_sum/cut": how many numbers were cut to the bound} and what belongs to it; {} if none was."""
        return cut_counts(state.get("cut"))


@dataclass(frozen=True)
class SecureSum(InSum):
    """The server learns the mean of the updates, and no single client's. Between organizations what leaves is masked so
    that only the sum over all who sent can be opened (`privacy.aggregation`); the simulation adds up the same words.

    A client sends n_i / N · Δ_i in words and n_i, which stays in the sum too; N is Σ n_i over all clients, computed
    by a secure sum before the first round, so that words keep their precision whatever the clients' sizes. The server
    divides by the share of N that replied. N is the server's word; were it huge, all words but the largest client's
    would be 0. So a client counts as if it had N / 1024 examples at least, and N at most. If nobody has an example,
    the mean is 0. Parts that look at single clients' updates or reports cannot be combined with it; parts that
    protect an update come before it.

    With `everyone`, each sum covers all clients: none may be missing, and they may remember what they were told before,
    because a client that was told something else masks its terms differently, and the sum cannot be opened. Without it,
    a sum goes on with those who replied. Then a term depends only on the present message and the client's data, and an
    optimizer starts afresh in each round; and a server may ask for two sums, one of all and one without a client, whose
    difference is near that client's update.

    bound:    every number of n_i / N · Δ_i, or Δ_i, is cut to ±bound; how many were, the sum says, too.
    fraction: binary digits of a masked integer behind the point.
    bits:     bits of a masked integer, 32 or 64.
    everyone: each sum covers all clients.
    least:    fewest clients of a sum without `everyone`.
    accomplices: without `everyone`: c of P clients may work with the server; the sum covers more than (P + c) / 2.
    weights:  clients count by "size", n_i training examples, or "equal".
    """

    weights: Literal["size", "equal"] = "size"

    @property
    def sends(self) -> Mapping[str, Sends | str]:  # type: ignore[override]
        """The number of examples and of what was cut to the bound, in the sum."""
        hidden = replace(self._masked, bits=64, fraction=0)
        reveals = "nothing by itself; with the others' the number of all training examples"
        counted = {"n": Sends(reveals, hidden)} if self.weights == "size" else {}
        return counted | tells_beyond("update", self._masked)

    @property
    def setup(self) -> tuple[Step, ...]:
        """N is added up once."""
        return (self.count,) if self.weights == "size" else ()

    def init(self, fed: Federation, w: Tree) -> Tree:
        """N; refuses words that could overflow."""
        self._words.check(self.bound, len(fed.clients), "secure_sum")
        return {"n": fed.map(self.count).total("n")} if self.weights == "size" else {}

    @on_client(sends=lambda self: {"n": self.sends["n"]})
    def count(self, client: Client, message: Tree) -> Tree:
        """{"n": training examples}."""
        return {"n": client.graph.masks[TRAIN].sum().clamp(max=_MOST)}

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, Tree]:
        """N."""
        return ({"n": state["n"]} if self.weights == "size" else {}), {}

    def terms(self, ctx: Context, update: Tree) -> Tree:
        """What is added up, before it is cut to the bound: n_i / N · Δ_i, or Δ_i; float64."""
        share = torch.ones((), dtype=torch.float64, device=ctx.client.graph.device)
        if self.weights == "size":
            share = _share(ctx)
        return map_leaves(lambda leaf: share * leaf.double(), update)

    def report(self, ctx: Context) -> Tree:
        """{"n": training examples, as many as its share of N stands for, "beyond": how many numbers were cut to the
        bound}, in the sum."""
        counted = {}
        if self.weights == "size":
            counted["n"] = (_share(ctx) * _sent_count(ctx)).round().clamp(max=_MOST).to(torch.int64)
        return counted | self.beyond(ctx)

    def aggregate(self, state: Tree, round: Round) -> Tree:
        """Σ n_i Δ_i / Σ n_i over those who replied, or their plain mean."""
        count = torch.tensor(len(round.at), dtype=torch.float64, device=round.at.device)
        if self.weights == "size":
            count = round.replies.total("n").double() / state["n"].clamp(min=1).double()
        total = round.replies.total("update")
        return map_leaves(
            lambda words, w: (self._words.decode(words, torch.float64) / count.clamp(min=1e-30)).to(w.dtype),
            total,
            round.w,
        )


def _sent_count(ctx: Context) -> Tensor:
    return torch.as_tensor(ctx.given["n"], device=ctx.client.graph.device).clamp(min=1).double()


def _share(ctx: Context) -> Tensor:
    """n_i / N, within what a client with examples counts as; 0 without any."""
    share = (ctx.examples.double() / _sent_count(ctx)).clamp(_LEAST, 1.0)
    return torch.where(ctx.examples > 0, share, torch.zeros_like(share))

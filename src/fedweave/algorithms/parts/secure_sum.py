"""FedAvg by secure aggregation: Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving machine
learning"."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedweave.algorithms.parts.part import (
    Context,
    JoinsSum,
    Needs,
    OwnCount,
    Part,
    Protection,
    copied,
    counts_itself,
)
from fedweave.algorithms.parts.weights import BySize, Uniform
from fedweave.core import mechanism
from fedweave.core.algorithm import COUNTED, Round
from fedweave.core.bounds import CountOrNone, Positive
from fedweave.core.federation import Client, Federation, Sends, Step, on_client
from fedweave.core.tree import Tree, leaves, map_leaves
from fedweave.privacy.secure_sum import BEYOND, FixedPoint, cut_counts, tallied, beyond_declaration

_MOST = 1 << 40  # examples of a client; the sum of 2^23 clients fits
_LEAST = 2.0**-10  # of N, as which a client counts at least
_ALONE = "nothing by itself; with the others' "


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

    bound: Positive = 1.0
    fraction: CountOrNone = 24
    bits: Literal[32, 64] = 32
    everyone: bool = True
    least: Annotated[int, Field(ge=2)] = 2
    accomplices: CountOrNone = 1

    def __post_init__(self) -> None:
        self._words  # noqa: B018  refuse words that there are not

    @property
    def _words(self) -> FixedPoint:
        return FixedPoint.of(self.masked)

    @property
    def masked(self) -> mechanism.SecureSum:
        """The form of the sum."""
        against = 0 if self.everyone else self.accomplices
        return mechanism.SecureSum(self.least, self.everyone, self.bits, self.fraction, against)

    @property
    def protection(self) -> Protection:
        """The sum; clients may remember something if everyone is in each."""
        return Protection(self.masked, hides=True, stateless=not self.everyone)

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

    def update(self, state: Tree, round: Round) -> Tree:
        """How many numbers were cut so far."""
        values = sum(leaf.numel() for _, leaf in leaves(self.added(round))) * len(round.at)
        return state | {"cut": tallied(state.get("cut"), round.replies.total(BEYOND), values, self.bound)}

    def added(self, round: Round) -> Tree:
        """A tree of as many numbers as a client adds."""
        return round.w

    def measures(self, state: Tree) -> Mapping[str, Tensor | float]:
        """{"secure_sum/cut": how many numbers were cut to the bound} and what belongs to it; {} if none was."""
        return cut_counts(state.get("cut"))


@dataclass(frozen=True)
class SecureSum(InSum):
    """The server learns the mean of the updates, and no single client's. Between organizations what leaves is masked so
    that only the sum over all who sent can be opened (`privacy.aggregation`); the simulation adds up the same words.

    Updates count as they do without the sum, by n_i / Σ n_k of the part that decides it (`part.OwnCount`), such as
    `by_size`. A client sends n_i / N · Δ_i in words and n_i, which stays in the sum too; N is Σ n_i over all clients,
    computed by a secure sum before the first round, so that words keep their precision whatever the clients' sizes. The
    server divides by the share of N that replied. N is the server's word; were it huge, all words but the largest
    client's would be 0. So a client counts as if its n_i were N / 1024 at least, and N at most. If nobody counts, the
    mean is 0. Where all n_i are 1, nothing is counted. What else parts report is in the same sum if its mean is all
    that the server needs (`Part.means`). Parts that look at single clients' updates or reports cannot be combined with
    it; parts that protect an update come before it.

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
    weights:  where no other part decides how clients count: by "size", n_i training examples, or "equal".
    """

    weights: Literal["size", "equal"] = "size"
    weighing: ClassVar[OwnCount | None] = None  # the part that decides how clients count, known to `joined_in_sums`

    @property
    def needs(self) -> Needs:
        """Clients that count alike, if it says so."""
        return Needs(alike=self.weights == "equal")

    @property
    def weigher(self) -> OwnCount:
        """Which part says how clients count."""
        return self.weighing or (BySize() if self.weights == "size" else Uniform())

    @property
    def sends(self) -> Mapping[str, Sends | str]:  # type: ignore[override]
        """By how much the client counts, and what was cut to the bound, in the sum."""
        hidden = replace(self.masked, bits=64, fraction=0)
        reveals = f"{_ALONE}{self.weigher.counted}"
        counted = {"n": Sends(reveals, hidden)} if self.weigher.counted else {}
        return counted | beyond_declaration("update", self.masked)

    def declared(self, part: Part) -> dict[str, Sends]:
        """What leaves of another part's report: its means, in the sum."""
        means = {key: sends for key, sends in part.sends.items() if isinstance(sends, Sends) and sends.mean}
        return {
            key: Sends(f"{_ALONE}the mean of: {sends.reveals}", self.masked, like=sends.like)
            for key, sends in means.items()
        }

    @property
    def setup(self) -> tuple[Step, ...]:
        """N is added up once."""
        return (self.count,) if self.weigher.counted else ()

    def init(self, fed: Federation, w: Tree) -> Tree:
        """N; refuses words that could overflow."""
        self._words.check(self.bound, len(fed.clients), "secure_sum")
        return {"n": fed.map(self.count).total("n")} if self.weigher.counted else {}

    @on_client(sends=lambda self: {"n": self.sends["n"]})
    def count(self, client: Client, message: Tree) -> Tree:
        """{"n": by how much the client counts}."""
        return {"n": self.weigher.counts(client.graph).clamp(max=_MOST)}

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, Tree]:
        """N."""
        return ({"n": state["n"]} if self.weigher.counted else {}), {}

    def terms(self, ctx: Context, update: Tree) -> Tree:
        """What is added up, before it is cut to the bound: n_i / N · Δ_i, or Δ_i; float64."""
        scaled = self.weigher.scaled(ctx.at(type(self.weigher).__name__))
        share = self._share(ctx) if scaled is None else self._share(ctx) * scaled
        return map_leaves(lambda leaf: share * leaf.double(), update)

    def hidden(self, ctx: Context, report: Tree) -> Tree:
        """Words of what another part reports for its mean, as of an update."""
        words, share = self._words, self._share(ctx)
        most, terms = words.word(self.bound), map_leaves(lambda leaf: share * leaf.double(), report)
        ctx.said[BEYOND] = sum((words.beyond(leaf, most) for _, leaf in leaves(terms)), ctx.said[BEYOND])
        return map_leaves(lambda leaf: words.encode(leaf, most), terms)

    def report(self, ctx: Context) -> Tree:
        """{"n": by how much the client counts, as much as its share of N stands for, "beyond": how many numbers were
        cut to the bound}, in the sum."""
        counted = {}
        if self.weigher.counted:
            counted["n"] = (self._share(ctx) * _sent_count(ctx)).round().clamp(max=_MOST).to(torch.int64)
        return counted | self.beyond(ctx)

    def opened(self, state: Tree, round: Round, reported: Mapping[str, Sends]) -> Tree:
        """{key: mean} of what parts `reported` in the sum, of the weights' dtypes where it is like these and else
        float64; and by how much all count together."""
        replied = torch.tensor(len(round.at), device=round.at.device)
        n = round.replies.total("n") if self.weigher.counted else replied
        means = {key: self._mean(state, round, key, n) for key in reported}
        like_w = {key: _like(mean, round.w) for key, mean in means.items() if reported[key].like == "w"}
        return means | like_w | {COUNTED: n}

    def aggregate(self, state: Tree, round: Round) -> Tree:
        """Σ n_i Δ_i / Σ n_i over those who replied."""
        mean, factor = self._mean(state, round, "update", round.opened[COUNTED]), self.weigher.rescaled(round)
        return _like(mean if factor is None else map_leaves(lambda leaf: leaf * factor, mean), round.w)

    def added(self, round: Round) -> Tree:
        """An update, and what else is in the sum."""
        return {"update": round.w} | {key: mean for key, mean in round.opened.items() if key != COUNTED}

    def _mean(self, state: Tree, round: Round, key: str, n: Tensor) -> Tree:
        """Of what was added up as `key`; n: by how much those who replied count."""
        count = n.double() / (state["n"].clamp(min=1).double() if self.weigher.counted else 1)
        total = {key: round.replies.total(key)}
        mean: Tree = map_leaves(lambda words: self._words.decode(words, torch.float64) / count.clamp(min=1e-30), total)[
            key
        ]
        return mean

    def _share(self, ctx: Context) -> Tensor:
        """n_i / N, within what a client that counts does; 0 of others, and 1 where nothing is counted."""
        if not self.weigher.counted:
            return torch.ones((), dtype=torch.float64, device=ctx.client.graph.device)
        n = self.weigher.counts(ctx.client.graph)
        share = (n.double() / _sent_count(ctx)).clamp(_LEAST, 1.0)
        return torch.where(n > 0, share, torch.zeros_like(share))


def joined_in(among: Sequence[Part], parts: Sequence[Part]) -> tuple[Part, ...]:
    """Parts as they are among others, or each other: where one of these is a `SecureSum`, it adds up what the parts
    send."""
    sums = next((part for part in among if isinstance(part, SecureSum)), None)
    if sums is None:
        return tuple(parts)
    weigher = next((part for part in among if isinstance(part, OwnCount) and counts_itself(part)), None)
    joined = (part.joined(sums.masked) if isinstance(part, JoinsSum) else part for part in parts)
    return tuple(copied(part, weighing=weigher) if part is sums else part for part in joined)


def _like(tree: Tree, w: Tree) -> Tree:
    return map_leaves(lambda leaf, like: leaf.to(like.dtype), tree, w)


def _sent_count(ctx: Context) -> Tensor:
    return torch.as_tensor(ctx.given["n"], device=ctx.client.graph.device).clamp(min=1).double()

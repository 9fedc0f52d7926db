"""FedAvg by secure aggregation: Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving machine
learning"."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedweave.algorithms.parts.needs import Needs, Protection
from fedweave.algorithms.parts.part import Context, OwnCount, Part, copy_part, counts_itself
from fedweave.algorithms.parts.weights import BySize, Uniform
from fedweave.core import mechanism
from fedweave.core.algorithm import COUNTED, Round
from fedweave.core.bounds import CountOrNone, Positive
from fedweave.core.federation import Client, Federation, Sends, Step, on_client
from fedweave.core.tree import Tree, leaves, map_leaves
from fedweave.privacy.secure_sum import BEYOND, FixedPoint, beyond_declaration, cut_counts, update_tally

_MAX_COUNT = 1 << 40  # examples of a client; the sum of 2^23 clients fits
_MIN_SHARE = 2.0**-10  # of N, as which a client counts at least
_ALONE = "nothing by itself; with the others' "


@dataclass(frozen=True)
class InSum(Part):
    """The base of parts that send their `terms` by secure aggregation: clients mask them, and the server can open only
    the sum over the clients that replied (`SecureSum`).

    bound:    every number is cut to ±bound.
    fraction: binary digits of a masked integer behind the point.
    bits:     bits of a masked integer, 32 or 64.
    require_all: each sum covers all clients.
    minimum:  fewest clients of a sum without `require_all`.
    accomplices: without `require_all`: c of P clients may work with the server; the sum covers more than (P + c) / 2.
    """

    bound: Positive = 1.0
    fraction: CountOrNone = 24
    bits: Literal[32, 64] = 32
    require_all: bool = True
    minimum: Annotated[int, Field(ge=2)] = 2
    accomplices: CountOrNone = 1

    def __post_init__(self) -> None:
        self._words  # noqa: B018  raises an error if there is no such form of masked integers

    @property
    def _words(self) -> FixedPoint:
        return FixedPoint.of(self.sum_form)

    @property
    def sum_form(self) -> mechanism.SecureSum:
        against = 0 if self.require_all else self.accomplices
        return mechanism.SecureSum(self.minimum, self.require_all, self.bits, self.fraction, against)

    @property
    def protection(self) -> Protection:
        # Clients may keep values from round to round if each sum covers everyone.
        return Protection(self.sum_form, hides=True, stateless=not self.require_all)

    def terms(self, ctx: Context, update: Tree) -> Tree:
        """The numbers to add up, before they are cut to the bound; float64."""
        raise NotImplementedError

    def release(self, ctx: Context, update: Tree) -> Tree:
        words, terms = self._words, self.terms(ctx, update)
        limit = words.word(self.bound)
        ctx.notes[BEYOND] = torch.stack([words.beyond(leaf, limit) for _, leaf in leaves(terms)]).sum()
        return map_leaves(lambda leaf: words.encode(leaf, limit), terms)

    def beyond(self, ctx: Context) -> Tree:
        """{"beyond": how many numbers were cut to the bound}."""
        return {BEYOND: ctx.notes[BEYOND]}

    def update(self, state: Tree, round: Round) -> Tree:
        values = sum(leaf.numel() for _, leaf in leaves(self.summands(round))) * len(round.at)
        return state | {"cut": update_tally(state.get("cut"), round.replies.total(BEYOND), values, self.bound)}

    def summands(self, round: Round) -> Tree:
        """A tree with one element for each number that a client adds."""
        return round.w

    def measures(self, state: Tree) -> Mapping[str, Tensor | float]:
        """{"secure_sum/cut": how many numbers were cut to the bound} and related counts; {} if none was."""
        return cut_counts(state.get("cut"))


@dataclass(frozen=True)
class SecureSum(InSum):
    """Secure aggregation: the server learns the mean of the updates, and no single client's update. Between
    organizations, sites mask what they send so that only the sum over the sites that replied can be opened
    (`privacy.aggregation`). The simulation adds up the same integers without masks.

    The part that decides the weights n_i / Σ n_k of updates (`part.OwnCount`), such as `by_size`, works as without
    secure aggregation. A client sends n_i / N · Δ_i as integers, and n_i, which only the sum reveals. N is Σ n_i over
    all clients, computed by secure aggregation before the first round. So the integers keep their precision for all
    sizes of clients. The server divides by the share of N that replied. The clients receive N from the server. If the
    server sent a huge N, all integers but the largest client's would be 0. So a client counts with n_i between N / 1024
    and N. If no client counts, the mean is 0. If all n_i are 1, clients count nothing. Other reports of parts are in
    the same sum if the server needs only their mean (`Sends.mean`). Parts that read single clients' updates or reports
    cannot be combined with it. Parts that protect an update come before it.

    With `require_all`, each sum covers all clients, and none may be missing. Clients may then keep values of earlier
    messages: a client that received a different message masks its terms differently, and the sum cannot be opened.
    Without `require_all`, a sum covers the clients that replied. Then a term depends only on the present message and
    the client's data, and an optimizer starts afresh in each round. A server may then ask for two sums, with and
    without a client; their difference is near that client's update.

    bound:    every number of n_i / N · Δ_i, or Δ_i, is cut to ±bound; the sum also reveals how many were cut.
    fraction: binary digits of a masked integer behind the point.
    bits:     bits of a masked integer, 32 or 64.
    require_all: each sum covers all clients.
    minimum:  fewest clients of a sum without `require_all`.
    accomplices: without `require_all`: c of P clients may work with the server; the sum covers more than (P + c) / 2.
    weights:  weights of updates if no other part decides them: "size", n_i training examples, or "equal".
    """

    weights: Literal["size", "equal"] = "size"
    recorded = True
    rounds_vary = True
    weighing: ClassVar[OwnCount | None] = None  # the part that decides how clients count; `join_secure_sum` sets it

    @property
    def needs(self) -> Needs:
        return Needs(alike=self.weights == "equal")

    @property
    def weigher(self) -> OwnCount:
        return self.weighing or (BySize() if self.weights == "size" else Uniform())

    @property
    def sends(self) -> Mapping[str, Sends | str]:  # type: ignore[override]
        hidden = replace(self.sum_form, bits=64, fraction=0)
        reveals = f"{_ALONE}{self.weigher.counted}"
        counted = {"n": Sends(reveals, hidden)} if self.weigher.counted else {}
        return counted | beyond_declaration("update", self.sum_form)

    def declare(self, part: Part) -> dict[str, Sends]:
        """The declarations of the means in another part's report, which leave in the sum."""
        declarations = {}
        for key, sends in part.sends.items():
            if isinstance(sends, Sends) and sends.mean:
                reveals = f"{_ALONE}the mean of: {sends.reveals}"
                declarations[key] = Sends(reveals, self.sum_form, like=sends.like)
        return declarations

    @property
    def setup(self) -> tuple[Step, ...]:
        return (self.count,) if self.weigher.counted else ()

    def init(self, fed: Federation, w: Tree) -> Tree:
        self._words.check(self.bound, len(fed.clients), "secure_sum")  # raises an error if integers could overflow
        return {"n": fed.map(self.count).total("n")} if self.weigher.counted else {}

    @on_client(sends=lambda self: {"n": self.sends["n"]})
    def count(self, client: Client, message: Tree) -> Tree:
        """{"n": the client's count n_i}."""
        return {"n": self.weigher.counts(client.graph).clamp(max=_MAX_COUNT)}

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, Tree]:
        return ({"n": state["n"]} if self.weigher.counted else {}), {}

    def terms(self, ctx: Context, update: Tree) -> Tree:
        """The numbers to add up, before they are cut to the bound: n_i / N · Δ_i, or Δ_i; float64."""
        share = self._share(ctx)
        factor = self.weigher.scale(ctx.at(type(self.weigher).__name__))
        if factor is not None:
            share = share * factor
        return map_leaves(lambda leaf: share * leaf.double(), update)

    def hide(self, ctx: Context, report: Tree) -> Tree:
        """Another part's report as integers to mask, weighted like an update."""
        words, share = self._words, self._share(ctx)
        limit, terms = words.word(self.bound), map_leaves(lambda leaf: share * leaf.double(), report)
        ctx.notes[BEYOND] = sum((words.beyond(leaf, limit) for _, leaf in leaves(terms)), ctx.notes[BEYOND])
        return map_leaves(lambda leaf: words.encode(leaf, limit), terms)

    def report(self, ctx: Context) -> Tree:
        """{"n": the client's share of N as a count, "beyond": how many numbers were cut to the bound}, in the sum."""
        counted = {}
        if self.weigher.counted:
            counted["n"] = (self._share(ctx) * _sent_count(ctx)).round().clamp(max=_MAX_COUNT).to(torch.int64)
        return counted | self.beyond(ctx)

    def open_means(self, state: Tree, round: Round, reported: Mapping[str, Sends]) -> Tree:
        """{key: mean} of the parts' reports in the sum, and the total count. A mean in the form of the weights has
        their dtypes, others are float64."""
        replied = torch.tensor(len(round.at), device=round.at.device)
        n = round.replies.total("n") if self.weigher.counted else replied
        means: Tree = {COUNTED: n}
        for key, sends in reported.items():
            mean = self._mean(state, round, key, n)
            means[key] = _cast(mean, round.w) if sends.like == "w" else mean
        return means

    def aggregate(self, state: Tree, round: Round) -> Tree:
        """Σ n_i Δ_i / Σ n_i over the clients that replied."""
        mean = self._mean(state, round, "update", round.opened[COUNTED])
        factor = self.weigher.rescale(round)
        if factor is not None:
            mean = map_leaves(lambda leaf: leaf * factor, mean)
        return _cast(mean, round.w)

    def summands(self, round: Round) -> Tree:
        return {"update": round.w} | {key: mean for key, mean in round.opened.items() if key != COUNTED}

    def _mean(self, state: Tree, round: Round, key: str, n: Tensor) -> Tree:
        """The mean of the values that were added up as `key`; n: the total count of the clients that replied."""
        count = n.double() / (state["n"].clamp(min=1).double() if self.weigher.counted else 1)
        count = count.clamp(min=1e-30)
        total = {key: round.replies.total(key)}  # a tree, also if the values are one tensor
        mean: Tree = map_leaves(lambda words: self._words.decode(words, torch.float64) / count, total)[key]
        return mean

    def _share(self, ctx: Context) -> Tensor:
        """n_i / N, at least 1 / 1024 and at most 1; 0 if n_i is 0, and 1 if clients count nothing."""
        if not self.weigher.counted:
            return torch.ones((), dtype=torch.float64, device=ctx.client.graph.device)
        n = self.weigher.counts(ctx.client.graph)
        share = (n.double() / _sent_count(ctx)).clamp(_MIN_SHARE, 1.0)
        return torch.where(n > 0, share, torch.zeros_like(share))


def join_secure_sum(among: Sequence[Part], parts: Sequence[Part]) -> tuple[Part, ...]:
    """The `parts` as they work next to the parts `among`: if one of these is a `SecureSum`, it adds up what the parts
    send."""
    sums = next((part for part in among if isinstance(part, SecureSum)), None)
    if sums is None:
        return tuple(parts)
    weigher = next((part for part in among if isinstance(part, OwnCount) and counts_itself(part)), None)
    joined = [part.join_sum(sums.sum_form) for part in parts]
    return tuple(copy_part(part, weighing=weigher) if part is sums else part for part in joined)


def _cast(tree: Tree, w: Tree) -> Tree:
    """The tree with the dtypes of the weights."""
    return map_leaves(lambda leaf, like: leaf.to(like.dtype), tree, w)


def _sent_count(ctx: Context) -> Tensor:
    return torch.as_tensor(ctx.downloaded["n"], device=ctx.client.graph.device).clamp(min=1).double()

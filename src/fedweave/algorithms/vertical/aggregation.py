"""The server's aggregation and what undoes it (Zhang et al. 2023, GLASU, sections 3.1 and 3.3).

`AGGREGATIONS` holds the two of the paper. M clients, each with a representation [n, h] of the same n nodes; `at` int64
scalar is a client's place among them (None where only the mean is taken), `share` scalar is 1/M.

Representations are protected row by row before they leave (`RowRelease`), and the ledger says how.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.federation import Client, Sends
from fedweave.core.mechanism import SecureSum
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree, nest
from fedweave.errors import FedweaveError
from fedweave.ops.rows import gather_rows
from fedweave.privacy.gaussian import GaussianRows
from fedweave.privacy.secure_sum import BEYOND, FixedPoint, even_share, tallied, tells_beyond
from fedweave.sampling.neighbourhoods import located

SUM = SecureSum(everyone=True)  # nobody can be left out of an aggregate
WORDS = FixedPoint.of(SUM)
ROWS = "h"  # the key of representations in a reply
PREDICTIONS = "h/predictions"  # of those whose last mean is the logits; what a policy says of `ROWS` is said of it, too


@dataclass(frozen=True)
class RowRelease:
    """What protects representations [n, h] before they leave: clipping and noise row by row (`rows`), then, if
    `masked`, encoding as words of a secure sum (`privacy.secure_sum`), which whoever runs the step masks. They leave
    under `key`."""

    rows: GaussianRows
    masked: bool
    key: str = ROWS

    def noised(self, client: Client, h: Tensor, nodes: Tensor | None = None) -> Tensor:
        """h [n, h] clipped and noised; of `nodes` int64 [n], all nodes where None. A node that appears several times
        leaves as one row: the mean of several rows, each with its own noise, would have less noise."""
        sent = self.rows.apply(h, random.fold(client.secret, "h"))
        if nodes is None or not self.rows.sigma:
            return sent
        return gather_rows(sent, located(nodes, nodes, len(client.graph.y)))

    def sent(self, client: Client, h: Tensor) -> Tree:
        """{key: `noised` representations as they are sent}: words, int32, with how many of them were cut; or as they
        are."""
        return in_words(WORDS, self.key, h, client.state["share"]) if self.masked else nest({self.key: h})

    def sends(self, what: str) -> Mapping[str, Sends]:
        """The declaration of the key that, sent in the open, is `what`."""
        masked = (SUM,) if self.masked else ()
        reveals = f"nothing by itself; with all other clients' the mean of: {what}" if self.masked else what
        cut = tells_beyond(self.key, SUM) if self.masked else {}
        return {self.key: Sends(reveals, self.rows.mechanisms + masked)} | cut


def in_words(words: FixedPoint, key: str, value: Tensor, share: Tensor) -> Tree:
    """{key: `value` in words of a sum of 1 / `share` clients, "beyond": how many elements that cuts}."""
    most = even_share(words, share)
    return nest({key: words.encode(value, most), BEYOND: words.beyond(value, most)})


@dataclass(frozen=True)
class Mean:
    """H = (1/M) Σ_m H+_m, [n, h]."""

    wider = False

    def aggregate(self, replies: Replies, key: str, dtype: torch.dtype) -> Tensor:
        """At the server; `dtype` is that of the representations."""
        alike = torch.full((len(replies),), 1 / len(replies), dtype=torch.float64, device=replies.device)
        result: Tensor = replies.weighted_sum(key, alike)
        return result

    def tallied(self, state: Tree, replies: Replies, total: Tensor, words: FixedPoint) -> Tree:
        """The server's `state` with how many numbers a secure sum has cut; without one as it is."""
        return state

    def extract(self, whole: Tensor, own: Tensor, at: Tensor | None, share: Tensor) -> Tensor:
        """H_{-m} = H - H+_m / M (section 3.3)."""
        return whole - share * own

    def join(self, others: Tensor, own: Tensor, at: Tensor | None, share: Tensor) -> Tensor:
        """H = H_{-m} + H+_m / M."""
        return others + share * own

    def back(self, gradient: Tensor, at: Tensor | None, share: Tensor, width: int) -> Tensor:
        """The gradient in H+_m [n, width] from that in H: 1/M of it (section 3.1)."""
        return share * gradient


@dataclass(frozen=True)
class SecureMean(Mean):
    """The mean of representations that leave in a secure sum (`privacy.secure_sum`)."""

    def aggregate(self, replies: Replies, key: str, dtype: torch.dtype) -> Tensor:
        """At the server, which sees the sum alone."""
        return WORDS.decode(replies.total(key), dtype) / len(replies)

    def tallied(self, state: Tree, replies: Replies, total: Tensor, words: FixedPoint) -> Tree:
        """With "cut" (`privacy.secure_sum.tallied`); total: of the sum, words: that it is of."""
        bound = float(even_share(words, torch.tensor(1 / len(replies), device=total.device))) * 2.0**-words.fraction
        now = tallied(state.get("cut"), replies.total(BEYOND), total.numel() * len(replies), bound)
        return state | {"cut": now}


@dataclass(frozen=True)
class Concat:
    """H = [H+_1 | … | H+_M], [n, M h]; never a secure sum."""

    wider = True

    def aggregate(self, replies: Replies, key: str, dtype: torch.dtype) -> Tensor:
        """At the server; `dtype` is that of the representations."""
        return replies.stack(key).movedim(0, 1).flatten(1)

    def tallied(self, state: Tree, replies: Replies, total: Tensor, words: FixedPoint) -> Tree:
        """As it is."""
        return state

    def extract(self, whole: Tensor, own: Tensor, at: Tensor | None, share: Tensor) -> Tensor:
        """H_{-m}: H with zeros for client m's block."""
        blocks: Tensor = whole.unflatten(1, (-1, own.shape[1]))
        return (blocks * ~_mine(blocks, at)).flatten(1)

    def join(self, others: Tensor, own: Tensor, at: Tensor | None, share: Tensor) -> Tensor:
        """H: H_{-m} with H+_m for client m's block."""
        blocks: Tensor = others.unflatten(1, (-1, own.shape[1]))
        return (blocks + own[:, None] * _mine(blocks, at)).flatten(1)

    def back(self, gradient: Tensor, at: Tensor | None, share: Tensor, width: int) -> Tensor:
        """The gradient in H+_m [n, width] from that in H: client m's block (section 3.1)."""
        blocks: Tensor = gradient.unflatten(1, (-1, width))
        return (blocks * _mine(blocks, at)).sum(1)


def _mine(blocks: Tensor, at: Any) -> Tensor:
    """bool [M, 1]: which of the M blocks is the client's."""
    return torch.eq(torch.arange(blocks.shape[1], device=blocks.device), at)[:, None]


AGGREGATIONS: dict[str, Mean | Concat] = {"mean": Mean(), "concat": Concat()}


def union(replies: Replies, count: int) -> Tensor:
    """∪_m S_m of `count` nodes, sorted, int64, with its first repeated up to a multiple of 64; a party sends one
    row, as often, of a node that stands there again. Waits for the replies' device, once.

    Raises:
        FedweaveError: a client names a node that there is not; at every client its row would be missing.
    """
    lists = [reply["nodes"] for reply in replies]
    told = torch.cat(lists).cpu().long()
    nodes = told.unique()
    if len(nodes) and (nodes[0] < 0 or nodes[-1] >= count):
        named = zip(replies.clients, told.split([*map(len, lists)]), strict=True)
        odd = [client for client, own in named if bool(((own < 0) | (own >= count)).any())]
        said = f"{odd} sampled nodes that are not 0 to {count - 1}. See what runs there."
        raise FedweaveError(said, code="call.sampled-nodes")
    return torch.cat([nodes, nodes[:1].expand(-len(nodes) % 64)]).to(replies.device)


def check_finite(sums: Sequence[Tensor]) -> None:
    """Refuse aggregates that are not finite, by their sums, float64 scalars, which tell it: a device is waited for
    once, after the last call that needs them.

    Raises:
        FedweaveError: one is not.
    """
    if sums and not torch.stack([*sums]).isfinite().all():
        said = "training diverged: a client's representations are not finite. Lower algorithm.lr."
        raise FedweaveError(said, code="diverged")

"""The server's aggregation and its inverse (Zhang et al. 2023, GLASU, sections 3.1 and 3.3).

`AGGREGATIONS` holds the paper's two kinds. Each of M clients has a representation [n, h] of the same n nodes; `at`
int64 scalar is a client's place among them (None for the mean), `share` scalar is 1/M. Clients protect representations
row by row before they leave (`RowRelease`), and the ledger states how.
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
from fedweave.ops.tape import without_tape
from fedweave.privacy.gaussian import GaussianRows
from fedweave.privacy.secure_sum import BEYOND, FixedPoint, beyond_declaration, even_share, update_tally
from fedweave.sampling.neighborhoods import find_places

SUM = SecureSum(everyone=True)  # no client can be left out of an aggregate
WORDS = FixedPoint.of(SUM)
ROWS = "h"  # the key of representations in a reply
PREDICTIONS = "h/predictions"  # the key if the last mean is the logits; a policy for `ROWS` applies to it too


@dataclass(frozen=True)
class RowRelease:
    """The protection of representations [n, h] before they leave under `key`: clipping and noise row by row (`rows`),
    then, if `masked`, encoding as integers (`privacy.secure_sum`), which the engine or the site masks."""

    rows: GaussianRows
    masked: bool
    key: str = ROWS

    def add_noise(self, client: Client, h: Tensor, nodes: Tensor | None = None) -> Tensor:
        """h [n, h] clipped and noised; nodes: int64 [n], None for all nodes. Repeated nodes get the same noised row:
        the mean of several rows with different noise would have less noise."""
        noisy = self.rows.apply(h, random.fold(client.secret, "h"))
        if nodes is None or not self.rows.sigma:
            return noisy
        return gather_rows(noisy, find_places(nodes, nodes, len(client.graph.y)))

    def encode(self, client: Client, h: Tensor) -> Tree:
        """{key: noisy representations to send}; if `masked`, as integers, int32, with the number of cut ones."""
        return in_words(WORDS, self.key, h, client.state["share"]) if self.masked else nest({self.key: h})

    def sends(self, what: str) -> Mapping[str, Sends]:
        """The declaration of the key; what: what it reveals without secure aggregation."""
        if not self.masked:
            return {self.key: Sends(what, self.rows.mechanisms)}
        reveals = f"nothing by itself; with all other clients' the mean of: {what}"
        return {self.key: Sends(reveals, (*self.rows.mechanisms, SUM))} | beyond_declaration(self.key, SUM)


def in_words(words: FixedPoint, key: str, value: Tensor, share: Tensor) -> Tree:
    """{key: `value` as integers for a sum over 1 / `share` clients, "beyond": number of cut elements}."""
    bound = even_share(words, share)
    return nest({key: words.encode(value, bound), BEYOND: words.beyond(value, bound)})


def tally_cut(state: Tree, replies: Replies, total: Tensor, words: FixedPoint) -> Tree:
    """The server's `state` with "cut", how many values secure aggregation has cut (`secure_sum.update_tally`); total:
    the opened sum, words: its fixed-point form."""
    bound = float(even_share(words, torch.tensor(1 / len(replies), device=total.device))) * 2.0**-words.fraction
    return state | {"cut": update_tally(state.get("cut"), replies.total(BEYOND), total.numel() * len(replies), bound)}


@dataclass(frozen=True)
class Mean:
    """H = (1/M) Σ_m H+_m, [n, h]."""

    wider = False

    def aggregate(self, replies: Replies, key: str, dtype: torch.dtype) -> Tensor:
        """The aggregate, at the server; dtype: the dtype of the representations."""
        equal = torch.full((len(replies),), 1 / len(replies), dtype=torch.float64, device=replies.device)
        result: Tensor = replies.weighted_sum(key, equal)
        return result

    def extract(self, whole: Tensor, term: Tensor, at: Tensor | None, share: Tensor) -> Tensor:
        """H_{-m} = H - H+_m / M (section 3.3)."""
        return whole - share * term

    def join(self, rest: Tensor, term: Tensor, at: Tensor | None, share: Tensor) -> Tensor:
        """H = H_{-m} + H+_m / M."""
        return rest + share * term

    def back(self, gradient: Tensor, at: Tensor | None, share: Tensor, width: int) -> Tensor:
        """The gradient with respect to H+_m [n, width] from the gradient with respect to H: 1/M of it (section 3.1)."""
        return share * gradient


@dataclass(frozen=True)
class SecureMean(Mean):
    """The mean of representations by secure aggregation (`privacy.secure_sum`)."""

    def aggregate(self, replies: Replies, key: str, dtype: torch.dtype) -> Tensor:
        return WORDS.decode(replies.total(key), dtype) / len(replies)


@dataclass(frozen=True)
class Concat:
    """H = [H+_1 | … | H+_M], [n, M h]; never by secure aggregation."""

    wider = True

    def aggregate(self, replies: Replies, key: str, dtype: torch.dtype) -> Tensor:
        return replies.stack(key).movedim(0, 1).flatten(1)

    def extract(self, whole: Tensor, term: Tensor, at: Tensor | None, share: Tensor) -> Tensor:
        """H_{-m}: H with zeros for client m's block."""
        blocks: Tensor = whole.unflatten(1, (-1, term.shape[1]))
        return (blocks * ~_client_block(blocks, at)).flatten(1)

    def join(self, rest: Tensor, term: Tensor, at: Tensor | None, share: Tensor) -> Tensor:
        """H: H_{-m} with H+_m for client m's block."""
        blocks: Tensor = rest.unflatten(1, (-1, term.shape[1]))
        return (blocks + term[:, None] * _client_block(blocks, at)).flatten(1)

    def back(self, gradient: Tensor, at: Tensor | None, share: Tensor, width: int) -> Tensor:
        """The gradient with respect to H+_m [n, width] from the gradient with respect to H: client m's block (section
        3.1)."""
        blocks: Tensor = gradient.unflatten(1, (-1, width))
        return (blocks * _client_block(blocks, at)).sum(1)


def _client_block(blocks: Tensor, at: Any) -> Tensor:
    """bool [M, 1]: the client's block among the M blocks."""
    return torch.eq(torch.arange(blocks.shape[1], device=blocks.device), at)[:, None]


AGGREGATIONS: dict[str, Mean | Concat] = {"mean": Mean(), "concat": Concat()}


def union(replies: Replies, count: int) -> Tensor:
    """∪_m S_m of `count` nodes, sorted, int64, padded with its first node to a multiple of 64; a party sends the same
    row for repeated nodes. Waits for the replies' device, once."""
    lists = [reply["nodes"] for reply in replies]
    sent = torch.cat(lists).cpu().long()
    nodes = sent.unique()
    if len(nodes) and (nodes[0] < 0 or nodes[-1] >= count):
        faulty = []
        for client, ids in zip(replies.clients, sent.split([*map(len, lists)]), strict=True):
            if bool(((ids < 0) | (ids >= count)).any()):
                faulty.append(client)
        message = f"{faulty} sampled nodes outside of 0 to {count - 1}. Check the software at these clients."
        raise FedweaveError(message, code="call.sampled-nodes")
    return torch.cat([nodes, nodes[:1].expand(-len(nodes) % 64)]).to(replies.device)


def check_finite(sums: Sequence[Tensor]) -> None:
    """Check that aggregates are finite by their sums, float64 scalars. Waits for the device once, after the last call
    that needs them. A round that is recorded as a whole is checked when it is recorded
    (`parts.checks.is_not_finite`)."""
    with without_tape():
        if sums and not torch.stack([*sums]).isfinite().all():
            message = "training diverged: a client's representations are not finite. Lower algorithm.lr."
            raise FedweaveError(message, code="diverged")

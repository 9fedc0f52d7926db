"""What protects representations before they leave a client, and what the ledger says about it."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedweave.core import random
from fedweave.core.federation import Client, Sends
from fedweave.core.mechanism import SecureSum
from fedweave.core.tree import Tree
from fedweave.ops.rows import gather_rows
from fedweave.privacy.gaussian import GaussianRows
from fedweave.privacy.secure_sum import BEYOND, FixedPoint, even_share, tells_beyond
from fedweave.sampling.neighbourhoods import located

SUM = SecureSum(everyone=True)  # nobody can be left out of an aggregate
WORDS = FixedPoint.of(SUM)


@dataclass(frozen=True)
class RowRelease:
    """What protects representations [n, h] before they leave: clipping and noise row by row (`rows`), then, if
    `masked`, encoding as words of a secure sum (`privacy.secure_sum`), which whoever runs the step masks."""

    rows: GaussianRows
    masked: bool

    def noised(self, client: Client, h: Tensor, nodes: Tensor | None = None) -> Tensor:
        """h [n, h] clipped and noised; of `nodes` int64 [n], all nodes where None. A node that appears several times
        leaves as one row: the mean of several rows, each with its own noise, would have less noise."""
        sent = self.rows.apply(h, random.fold(client.secret, "h"))
        if nodes is None or not self.rows.sigma:
            return sent
        return gather_rows(sent, located(nodes, nodes, len(client.graph.y)))

    def sent(self, client: Client, h: Tensor) -> Tree:
        """{"h": `noised` representations as they are sent}: words, int32, with how many of them were cut; or as they
        are."""
        return in_words(WORDS, "h", h, client.state["share"]) if self.masked else {"h": h}

    def sends(self, what: str) -> Mapping[str, Sends]:
        """The declaration of "h" that, sent in the open, is `what`."""
        masked = (SUM,) if self.masked else ()
        reveals = f"nothing by itself; with all other clients' the mean of: {what}" if self.masked else what
        return {"h": Sends(reveals, self.rows.mechanisms + masked)} | (tells_beyond("h", SUM) if self.masked else {})


def in_words(words: FixedPoint, key: str, value: Tensor, share: Tensor) -> Tree:
    """{key: `value` in words of a sum of 1 / `share` clients, "beyond": how many elements that cuts}."""
    most = even_share(words, share)
    return {key: words.encode(value, most), BEYOND: words.beyond(value, most)}

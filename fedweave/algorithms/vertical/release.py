"""What is done to representations before they leave a client, what the ledger says of it, how clients agree on it."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedweave.core import random
from fedweave.core.federation import Client, Federation, Sends, Step
from fedweave.core.mechanism import SecureSum
from fedweave.core.tree import Tree
from fedweave.errors import UserError
from fedweave.privacy import secure_sum
from fedweave.privacy.gaussian import GaussianRows


@dataclass(frozen=True)
class RowRelease:
    """What is done to representations [n, h] before they leave: clipped and noised row by row (`rows`), then, if
    `masked`, masked for a secure sum (`privacy.secure_sum`).

    A masked client's state holds "given" and "got", int64 [turns], the mask seeds that it sent and received, and
    "sums", int64 scalar, the number of sums so far.
    """

    rows: GaussianRows
    masked: bool

    def noised(self, client: Client, h: Tensor) -> Tensor:
        """h [n, h] clipped and noised."""
        return self.rows.apply(h, random.fold(client.secret, "h"))

    def sealed(self, client: Client, h: Tensor) -> Tensor:
        """`noised` representations as they are sent: masked, or as they are."""
        if not self.masked:
            return h
        state = client.state
        state["sums"] = state["sums"] + 1
        return secure_sum.seal(h, state["share"], state["given"], state["got"], state["sums"])

    def send_mask_seed(self, client: Client) -> Tree:
        """Send a mask seed to another client (`secure_sum.receivers`)."""
        own = random.fold(client.secret, "sum")
        client.state["given"] = _appended(client.state.get("given"), own)
        return {"secret": own}

    def store_mask_seed(self, client: Client, message: Tree) -> Tree:
        """Store the mask seed that another client sent."""
        own = message["received"]["0"]["secret"]
        client.state["got"] = _appended(client.state.get("got"), own)
        client.state["sums"] = torch.zeros_like(own)
        return {}

    def agree(self, fed: Federation, send_mask_seed: Step, store_mask_seed: Step) -> None:
        """Exchange mask seeds between all clients, if the sums are masked.

        Raises:
            UserError: there is one client alone, whose own term the sum would be.
        """
        if not self.masked:
            return
        if len(fed.clients) < 2:
            raise UserError("secure_sum = true needs at least two clients: the sum of one is what it would hide.")
        for turn in range(1, self.turns(len(fed.clients)) + 1):
            given = fed.send(send_mask_seed, to=secure_sum.receivers(fed.clients, turn))
            fed.map(store_mask_seed, received=given)

    def turns(self, clients: int) -> int:
        """How many mask seeds a client gives."""
        return secure_sum.turns(clients) if self.masked else 0

    def sends(self, what: str) -> Mapping[str, Sends]:
        """The declaration of "h" that, sent in the open, is `what`."""
        masked = (SecureSum(),) if self.masked else ()
        reveals = f"nothing by itself; with all other clients' the mean of: {what}" if self.masked else what
        return {"h": Sends(reveals, self.rows.mechanisms + masked)}


def _appended(secrets: Tensor | None, own: Tensor) -> Tensor:
    return own[None] if secrets is None else torch.cat([secrets, own[None]])

"""What differs between the clients of one call, as tensors with one row each."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedweave.core.portions import row_of
from fedweave.core.tree import Tree, device_of, map_stored


@dataclass(frozen=True)
class Stacked:
    """A tree with leaves [P, …] (tensors or `Sparsified`), row i for `clients[i]`."""

    clients: tuple[str, ...]
    tree: Tree

    def one(self, client: str) -> Tree:
        """The part of one client."""
        row = self.clients.index(client)
        return map_stored(lambda leaf: row_of(leaf, row), self.tree)

    def of(self, clients: Sequence[str]) -> Tree:
        """The rows of some clients, in their order."""
        if tuple(clients) == self.clients:
            return self.tree
        place = {client: row for row, client in enumerate(self.clients)}
        at = torch.tensor([place[client] for client in clients], device=device_of(self.tree))
        return map_stored(lambda leaf: row_of(leaf, at), self.tree)

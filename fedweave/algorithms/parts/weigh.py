"""How much each client's weights count."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fedweave.core.federation import Client
from fedweave.core.graph import TRAIN
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree


class Weigh(Protocol):
    """How much each client's weights count."""

    @property
    def sends(self) -> Mapping[str, str]:
        """What `report` sends, and what it reveals."""
        ...

    def report(self, client: Client) -> Tree:
        """What the client adds to its reply for this purpose, declared in `sends`."""
        ...

    def weights(self, replies: Replies) -> Tensor:
        """float [P], in the replies' order, summing to 1."""
        ...


@dataclass(frozen=True)
class BySize:
    """n_i / Σ n_k with n_i training nodes (McMahan et al. 2017)."""

    sends: ClassVar[Mapping[str, str]] = {"n": "number of training nodes"}

    def report(self, client: Client) -> Tree:
        """{"n": training nodes}."""
        return {"n": client.graph.masks[TRAIN].sum()}

    def weights(self, replies: Replies) -> Tensor:
        """Proportional to n; uniform if no client has a training node."""
        n = replies.stack("n").double()
        return n / n.sum() if n.sum() > 0 else torch.full_like(n, 1 / len(n))


@dataclass(frozen=True)
class Uniform:
    """1 / P, the plain mean that the code of FedEgo, FedSage, FedGCN and F2GNN takes."""

    sends: ClassVar[Mapping[str, str]] = {}

    def report(self, client: Client) -> Tree:
        """Nothing."""
        return {}

    def weights(self, replies: Replies) -> Tensor:
        """All equal."""
        return torch.full((len(replies),), 1 / len(replies), dtype=torch.float64)

"""What a part's hooks see at the server once the clients replied."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedweave.core.graph import Graph
from fedweave.core.model import Model
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree, leaves, nest

Thing = TypeVar("Thing")


@dataclass(frozen=True)
class Round:
    """What a part's hooks see at the server after the clients replied.

    replies: of the P clients that did. at: int64 [P], their places among all clients. w: the global weights before or,
    if every client has its own weights, what the P clients received, leaves [P, …] ({} if that is a reward).
    model: that of the algorithm. held: what the server itself holds (`Federation.held`). factors: float64 [P], what
    updates are multiplied by before they count (`limit`). weights: float64 [P] or [P, P], what `weigh` gave. delta: the
    joint update: what `aggregate` gave, else their weighted sum. value: float64 [P], what `value` gave. Those that are
    not known yet are None.
    """

    replies: Replies
    at: Tensor
    w: Tree
    model: Model
    held: Mapping[str, Graph] = field(default_factory=dict)
    factors: Tensor | None = None
    weights: Any = None
    delta: Any = None
    value: Any = None
    _made: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)  # kept by `replace`

    def once(self, name: Hashable, make: Callable[[], Thing]) -> Thing:
        """`make()`, made once for all hooks that ask for it by this name."""
        if name not in self._made:
            self._made[name] = make()
        found: Thing = self._made[name]
        return found

    @property
    def updates(self) -> Tensor:
        """The released updates of all shared weights, float64 [P, D]."""
        sent = self.once("updates", lambda: self.replies.matrix("update"))
        factors = self.factors
        return sent if factors is None else self.once("limited", lambda: factors[:, None] * sent)

    def update(self, path: str) -> Tensor:
        """One leaf of them, [P, …]."""
        leaf = self.replies.stack(f"update/{path}")
        return leaf if self.factors is None else leaf * self.factors.to(leaf.dtype).view(-1, *[1] * (leaf.dim() - 1))

    @cached_property
    def trained(self) -> Tree:
        """w + Δ_i, the shared weights that the clients' updates lead to: leaves [P, …]."""
        return nest({path: leaf + self.update(path) for path, leaf in leaves(self.w)})

    def mixed(self, own: Tree) -> Tree:
        """Every client's weights, leaves [N, …], after the round: w_i ← Σ_j weights[i, j] (w_j + Δ_j) for its P
        clients."""
        trained = dict(leaves(self.trained))

        def mix(path: str, leaf: Tensor) -> Tensor:
            now = torch.tensordot(self.weights, trained[path].double(), 1)
            return leaf.index_copy(0, self.at, now.to(leaf.dtype))

        return nest({path: mix(path, leaf) for path, leaf in leaves(own)})

    def weighted(self) -> Tree:
        """Σ_i weights_i Δ_i."""
        result: Tree = self.replies.weighted_sum(
            "update", self.weights if self.factors is None else self.weights * self.factors
        )
        return result

    def mean(self, key: str) -> float:
        """The mean over clients of what they report as `key`, weighted as their updates are."""
        alike = self.weights is None or self.weights.dim() > 1
        share = torch.ones_like(self.at) if alike else self.weights
        return float(share.double() @ self.replies.stack(key).double() / share.double().sum())

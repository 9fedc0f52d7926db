"""The exchangeable parts of the FedAvg family.

What a client trains for (`objective`), where it starts (`start`), how replies are weighed (`weigh`), what it does to its
weights before they leave (`release`), and what it gets back (`reward`). Each part is a frozen dataclass; an algorithm of
the family is a choice of five.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.core import model as models
from fedweave.core.federation import Client
from fedweave.core.replies import Replies
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree, map_leaves


class Objective(Protocol):
    """A term of the local objective; terms add up.

    `loss` (weights, model, graph, key) -> scalar depends on data; `penalty` (leaf of the weights, the same leaf of the
    received weights, state) -> scalar is a sum over elements. Either may be None. `init` and `update` are the server's
    state of the term, which travels with the weights.
    """

    loss: Any
    penalty: Any
    needs_loss: bool  # whether `update` wants the clients' mean loss, which they then send

    def init(self) -> Tree:
        """The term's state before the first round."""
        ...

    def update(self, state: Tree, mean_loss: float) -> Tree:
        """Its state after a round whose clients' training losses average `mean_loss`."""
        ...


class _Stateless:
    def init(self) -> Tree:
        """No state."""
        return {}

    def update(self, state: Tree, mean_loss: float) -> Tree:
        """No state."""
        return state


@dataclass(frozen=True)
class CrossEntropy(_Stateless):
    """Mean cross-entropy over the client's training nodes."""

    penalty = None
    needs_loss = False

    def loss(self, w: Tree, model: Model, graph: Graph, key: Tensor) -> Tensor:
        """Scalar; 0 at a client without training nodes."""
        logits = models.apply(model, w, graph, key)
        mask = graph.masks[TRAIN].to(logits.dtype)
        # `gather` rather than F.cross_entropy, which has no batching rule and falls back to a slow decomposition
        per_node = -F.log_softmax(logits, dim=-1).gather(-1, graph.y.clamp(min=0)[:, None])[:, 0]
        return (per_node * mask).sum() / mask.sum().clamp(min=1)


@dataclass(frozen=True)
class Proximal:
    """FedProx's term μ/2 ‖w − w_t‖² (Li et al. 2020, eq. 2).

    adaptive: μ moves over {.001, .01, .1, 1}: up by ten when the mean training loss rose since the last round, down by
        ten when it fell. FedEgo (section 5.2) names the grid and "the fluctuation of the loss"; the last round's loss as
        threshold is our reading.
    """

    mu: float = 0.01
    adaptive: bool = False
    loss = None

    def __post_init__(self) -> None:
        if self.mu < 0:
            raise ValueError(f"mu is {self.mu}; it must not be negative")

    @property
    def needs_loss(self) -> bool:
        """Only to adapt."""
        return self.adaptive

    def init(self) -> Tree:
        """μ, and the last loss when it adapts."""
        return {"mu": self.mu, "last": float("inf")} if self.adaptive else {"mu": self.mu}

    def update(self, state: Tree, mean_loss: float) -> Tree:
        """μ for the next round."""
        if not self.adaptive:
            return state
        if state["last"] == float("inf"):
            return {"mu": state["mu"], "last": mean_loss}
        factor = 10.0 if mean_loss > state["last"] else 0.1
        return {"mu": min(max(state["mu"] * factor, 0.001), 1.0), "last": mean_loss}

    def penalty(self, w: Tensor, received: Tensor, state: Tree) -> Tensor:
        """μ/2 Σ (w − w_t)² over one leaf."""
        return 0.5 * state["mu"] * ((w - received) ** 2).sum()


class Start(Protocol):
    """Where local training starts, and which model a client is judged by."""

    def begin(self, client: Client, received: Tree) -> Tree:
        """The weights that training starts from."""
        ...

    def keep(self, client: Client, trained: Tree) -> None:
        """Note in the client's state what the next start needs."""
        ...


@dataclass(frozen=True)
class GlobalStart:
    """Every client starts from the global weights (McMahan et al. 2017, algorithm 1)."""

    def begin(self, client: Client, received: Tree) -> Tree:
        """The received weights."""
        return received

    def keep(self, client: Client, trained: Tree) -> None:
        """Nothing."""


@dataclass(frozen=True)
class MixedStart:
    """Every client starts from α w + (1 − α) w_i, its own last weights w_i mixed with the global ones (a fixed personal
    mix, as FedEgo's fixed λ); at its first call from the global weights."""

    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha is {self.alpha}; it must be between 0 and 1")

    def begin(self, client: Client, received: Tree) -> Tree:
        """The mix."""
        if "w" not in client.state:
            return received
        return map_leaves(lambda w, own: self.alpha * w + (1 - self.alpha) * own, received, client.state["w"])

    def keep(self, client: Client, trained: Tree) -> None:
        """The trained weights."""
        client.state["w"] = trained


class Weigh(Protocol):
    """How much each client's weights count."""

    sends: Mapping[str, str]

    def report(self, client: Client) -> Tree:
        """What the client adds to its reply for this purpose, declared in `sends`."""
        ...

    def weights(self, replies: Replies) -> Tensor:
        """float [P], in the replies' order, summing to 1."""
        ...


@dataclass(frozen=True)
class BySize:
    """n_i / Σ n_k with n_i training nodes (McMahan et al. 2017)."""

    sends = {"n": "number of training nodes"}  # noqa: RUF012

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

    sends = {}  # noqa: RUF012

    def report(self, client: Client) -> Tree:
        """Nothing."""
        return {}

    def weights(self, replies: Replies) -> Tensor:
        """All equal."""
        return torch.full((len(replies),), 1 / len(replies), dtype=torch.float64)


class Release(Protocol):
    """What a client does to its weights before they leave it; `mechanism` is the ledger's word for it."""

    mechanism: str

    def apply(self, client: Client, received: Tree, trained: Tree) -> Tree:
        """The weights that leave."""
        ...


@dataclass(frozen=True)
class Plain:
    """The trained weights as they are."""

    mechanism = "none"

    def apply(self, client: Client, received: Tree, trained: Tree) -> Tree:
        """Unchanged."""
        return trained


@dataclass(frozen=True)
class Clip:
    """The update Δ = w − w_t scaled down to L2 norm `norm` at most, so that no client moves the model further (the first
    half of McMahan et al. 2018, algorithm 1; without noise it gives no privacy guarantee)."""

    norm: float = 1.0

    def __post_init__(self) -> None:
        if self.norm <= 0:
            raise ValueError(f"norm is {self.norm}; it must be positive")

    @property
    def mechanism(self) -> str:
        """As the ledger names it."""
        return f"clipped to L2 norm {self.norm:g}"

    def apply(self, client: Client, received: Tree, trained: Tree) -> Tree:
        """w_t + Δ · min(1, norm / ‖Δ‖₂), the norm over all weights together."""
        delta = map_leaves(lambda after, before: after - before, trained, received)
        squares: list[Tensor] = []
        map_leaves(lambda d: squares.append((d**2).sum()), delta)
        scale = (self.norm / torch.stack(squares).sum().sqrt().clamp(min=1e-12)).clamp(max=1.0)
        return map_leaves(lambda before, d: before + scale * d, received, delta)


class Reward(Protocol):
    """What each client gets at the start of a round."""

    def shared(self, state: Tree) -> Tree:
        """The part of the message that all clients get."""
        ...

    def each(self, state: Tree, clients: Sequence[str]) -> dict[str, Tree] | None:
        """The part that differs between clients, or None."""
        ...


@dataclass(frozen=True)
class SameForAll:
    """Everyone gets the global weights."""

    def shared(self, state: Tree) -> Tree:
        """{"w": global weights}."""
        return {"w": state["w"]}

    def each(self, state: Tree, clients: Sequence[str]) -> dict[str, Tree] | None:
        """Nothing of their own."""
        return None


PARTS: dict[str, dict[str, type]] = {
    "objective": {"cross_entropy": CrossEntropy, "proximal": Proximal},
    "start": {"global": GlobalStart, "mixed": MixedStart},
    "weigh": {"size": BySize, "uniform": Uniform},
    "release": {"plain": Plain, "clip": Clip},
    "reward": {"same": SameForAll},
}

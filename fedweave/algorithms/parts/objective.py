"""What a client trains for: terms of the local objective."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree
from fedweave.learn import cross_entropy


class Objective(Protocol):
    """A term of the local objective; terms add up.

    `init` and `update` are the server's state of the term, which travels with the weights.
    """

    @property
    def loss(self) -> Callable[[Tree, Model, Graph, Tensor, Tree], Tensor] | None:
        """(weights, model, graph, key, what was drawn for the step) -> scalar that depends on data, or None."""
        ...

    @property
    def penalty(self) -> Callable[[Tensor, Tensor, Tree], Tensor] | None:
        """(leaf of the weights, that leaf of the received weights, state) -> a sum over elements, or None."""
        ...

    @property
    def needs_loss(self) -> bool:
        """Whether `update` wants the clients' mean loss, which they then send."""
        ...

    def check(self, model: Model) -> None:
        """Raise a ValueError if the term cannot be computed with this model."""
        ...

    def draw_steps(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        """What `loss` wants drawn beforehand, leaves [steps, …]; {} if nothing."""
        ...

    def init(self) -> Tree:
        """The term's state before the first round."""
        ...

    def update(self, state: Tree, loss: float, last: float) -> Tree:
        """Its state after a round whose clients' training losses average `loss`, those of the round before `last`."""
        ...


class Stateless:
    """A term that needs no state, draws nothing and suits every model."""

    def check(self, model: Model) -> None:
        """Every model will do."""

    def draw_steps(self, model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
        """Nothing."""
        return {}

    def init(self) -> Tree:
        """No state."""
        return {}

    def update(self, state: Tree, loss: float, last: float) -> Tree:
        """No state."""
        return state


@dataclass(frozen=True)
class CrossEntropy(Stateless):
    """Mean cross-entropy over the client's training nodes."""

    penalty = None
    needs_loss = False

    def loss(self, w: Tree, model: Model, graph: Graph, key: Tensor, minibatch: Tree | None = None) -> Tensor:
        """Scalar; 0 at a client without training nodes."""
        logits = models.apply(model, w, graph, key)
        return cross_entropy(logits, graph.y.clamp(min=0), graph.masks[TRAIN].to(logits.dtype))


@dataclass(frozen=True)
class Proximal(Stateless):
    """FedProx's term μ/2 ‖w − w_t‖² (Li et al. 2020, eq. 2).

    mu:       its strength.
    adaptive: μ moves over {.001, .01, .1, 1}: up by ten when the mean training loss rose since the last round, down by
        ten when it fell. FedEgo (section 5.2) names the grid and "the fluctuation of the loss"; the last round's loss
        as threshold is our reading.
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
        """μ, a tensor: a number that changes would be a new computation to record (`ops.recording`)."""
        return {"mu": torch.tensor(self.mu, dtype=torch.float64)}

    def update(self, state: Tree, loss: float, last: float) -> Tree:
        """μ for the next round; unchanged after the first, whose `last` is NaN."""
        if not self.adaptive or loss == last or math.isnan(last):
            return state
        return {"mu": (state["mu"] * (10.0 if loss > last else 0.1)).clamp(0.001, 1.0)}

    def penalty(self, w: Tensor, received: Tensor, state: Tree) -> Tensor:
        """μ/2 Σ (w − w_t)² over one leaf."""
        return 0.5 * state["mu"] * ((w - received) ** 2).sum()


def draw(terms: tuple[Objective, ...], model: Model, graph: Graph, key: Tensor, steps: int) -> Tree:
    """{number of the term: what it wants drawn for each step}."""
    return {str(i): term.draw_steps(model, graph, random.fold(key, "drawn", i), steps) for i, term in enumerate(terms)}


def loss(terms: tuple[Objective, ...], w: Tree, model: Model, graph: Graph, key: Tensor, args: Tree) -> Tensor:
    """Sum of the terms that depend on data; `args["minibatch"]` is one step's part of `draw`."""
    minibatch = args.get("minibatch", {})
    values = [
        term.loss(w, model, graph, key, minibatch.get(str(i), {}))
        for i, term in enumerate(terms)
        if term.loss is not None
    ]
    return sum(values[1:], values[0])

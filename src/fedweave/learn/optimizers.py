"""Optimizers as values: what they remember is a tree of its own, and torch's fused kernels do the arithmetic."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedweave.core.tree import Tree, device_of, leaves, map_leaves, nest
from fedweave.ops.touched import materialize

Moments = Mapping[str, list[Tensor]]  # {name: one tensor for each weight}


class Optimizer(Protocol):
    """How weights move along gradients.

    Its state is {name: a tree like the weights for each of `moments`, "steps": int64 scalar}, {} without moments, where
    the weights lie.
    """

    @property
    def moments(self) -> tuple[str, ...]:
        """Names of the trees like the weights that the state holds, all zero at first."""
        ...

    def init(self, w: Tree) -> Tree:
        """The state before the first step."""
        ...

    def update(self, w: Tree, gradient: Tree, state: Tree) -> tuple[Tree, Tree]:
        """The weights and the state after one step; what is given stays as it is. On clients, use `fit`."""
        ...

    def move(self, weights: list[Tensor], gradients: list[Tensor], moments: Moments, steps: list[Tensor]) -> None:
        """One step on lists of contiguous tensors, in place; `steps`: float32 scalars, this step's number from 1, one
        for each weight."""
        ...


class _Values:
    """What all optimizers do alike."""

    def init(self: Optimizer, w: Tree) -> Tree:
        """The state before the first step."""
        if not self.moments:
            return {}
        return {name: map_leaves(torch.zeros_like, w) for name in self.moments} | {"steps": _none(w)}

    def update(self: Optimizer, w: Tree, gradient: Tree, state: Tree) -> tuple[Tree, Tree]:
        """The weights and the state after one step; what is given stays as it is. On clients, use `fit`."""
        after, moments = _copied(w), {name: _copied(state[name]) for name in self.moments}
        gradients, steps = _copied(gradient), (state["steps"] if state else _none(w)) + 1
        self.move(
            list(after.values()),
            [gradients[path] for path in after],
            {name: [tree[path] for path in after] for name, tree in moments.items()},
            [steps.float()] * len(after),
        )
        return nest(after), {name: nest(tree) for name, tree in moments.items()} | ({"steps": steps} if moments else {})


def _none(w: Tree) -> Tensor:
    """No steps yet."""
    return torch.zeros((), dtype=torch.int64, device=device_of(w))


def _copied(tree: Tree) -> dict[str, Tensor]:
    return {path: materialize(leaf).clone(memory_format=torch.contiguous_format) for path, leaf in leaves(tree)}


@dataclass(frozen=True)
class Adam(_Values):
    """Adam with L2 in the gradient (Kingma and Ba 2015, algorithm 1).

    lr:           α.
    weight_decay: λ in g + λ w.
    betas:        β_1 and β_2.
    eps:          ε.
    """

    lr: float = 0.01
    weight_decay: float = 5e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    @property
    def moments(self) -> tuple[str, ...]:
        """The means of gradients and of their squares."""
        return "m", "v"

    def move(self, weights: list[Tensor], gradients: list[Tensor], moments: Moments, steps: list[Tensor]) -> None:
        """One step in place (see `Optimizer`)."""
        beta1, beta2 = self.betas
        torch._fused_adam_(
            weights, gradients, moments["m"], moments["v"], [], steps, lr=self.lr, beta1=beta1, beta2=beta2,
            weight_decay=self.weight_decay, eps=self.eps, amsgrad=False, maximize=False,
        )  # fmt: skip


@dataclass(frozen=True)
class Sgd(_Values):
    """Stochastic gradient descent with L2 in the gradient and heavy-ball momentum, as torch.optim.SGD has it.

    lr:           learning rate.
    weight_decay: λ in g + λ w.
    momentum:     μ in b ← μ b + g, w ← w − lr b; 0 keeps no state.
    """

    lr: float = 0.1
    weight_decay: float = 0.0
    momentum: float = 0.0

    @property
    def moments(self) -> tuple[str, ...]:
        """The momentum, if there is any."""
        return ("momentum",) if self.momentum else ()

    def move(self, weights: list[Tensor], gradients: list[Tensor], moments: Moments, steps: list[Tensor]) -> None:
        """One step in place (see `Optimizer`)."""
        torch._fused_sgd_(
            weights, gradients, moments.get("momentum", []), lr=self.lr, weight_decay=self.weight_decay,
            momentum=self.momentum, dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
        )  # fmt: skip


MOST_STEPS = 1_000_000_000  # of a round: more take years, and where they are listed, more memory than there is
OPTIMIZERS: dict[str, Callable[[float, float], Optimizer]] = {"adam": Adam, "sgd": Sgd}


def check_training(lr: float, weight_decay: float, **counts: int) -> None:
    """Refuse impossible training parameters with a ValueError that names them; `counts` are of steps or epochs."""
    for name, count in counts.items():
        if not 1 <= count <= MOST_STEPS:
            raise ValueError(f"{name} is {count}; it must be at least 1, and at most {MOST_STEPS:,}")
    if not 0 < lr < math.inf:
        raise ValueError(f"lr is {lr}; it must be positive and finite")
    if not 0 <= weight_decay < math.inf:
        raise ValueError(f"weight_decay is {weight_decay}; it must be finite and not negative")

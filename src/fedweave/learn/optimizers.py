"""Optimizers as values: their state is a separate tree, and torch's fused kernels do the arithmetic."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from fedweave.core.tree import Tree, device_of, leaves, map_leaves, nest
from fedweave.ops.touched_rows import materialize

Tensors: TypeAlias = list[Tensor]  # one for each weight
Moments: TypeAlias = Mapping[str, Tensors]
Rate: TypeAlias = Tensor | None


class Optimizer(ABC):
    """The rule by which weights move along gradients.

    Its state is {name: a tree like the weights for each of `moments`, "steps": int64 scalar} on the device of the
    weights, or {} without moments.
    """

    @property
    @abstractmethod
    def moments(self) -> tuple[str, ...]:
        """Names of the trees like the weights that the state holds, all zero at first."""

    @abstractmethod
    def move(self, weights: Tensors, gradients: Tensors, moments: Moments, steps: Tensors, rate: Rate = None) -> None:
        """One step on lists of contiguous tensors, in place; `steps`: float32 scalars, this step's number from 1, one
        for each weight; rate: a schedule's factor of the learning rate, scalar; 1 if None."""

    def init(self, w: Tree) -> Tree:
        """The state before the first step."""
        if not self.moments:
            return {}
        return {name: map_leaves(torch.zeros_like, w) for name in self.moments} | {"steps": _zero_steps(w)}

    def update(self, w: Tree, gradient: Tree, state: Tree) -> tuple[Tree, Tree]:
        """The weights and the state after one step; the arguments are not changed. On clients, use `fit`."""
        paths = [path for path, _ in leaves(w)]
        weights, gradients = _copy(w, paths), _copy(gradient, paths)
        moments = {name: _copy(state[name], paths) for name in self.moments}
        steps = (state["steps"] if state else _zero_steps(w)) + 1
        self.move(weights, gradients, moments, [steps.float()] * len(weights))
        state_after: Tree = {name: nest(dict(zip(paths, moment, strict=True))) for name, moment in moments.items()}
        if moments:
            state_after["steps"] = steps
        return nest(dict(zip(paths, weights, strict=True))), state_after


def _zero_steps(w: Tree) -> Tensor:
    return torch.zeros((), dtype=torch.int64, device=device_of(w))


def _copy(tree: Tree, paths: list[str]) -> Tensors:
    """Contiguous copies of the leaves at `paths`."""
    flat = dict(leaves(tree))
    return [materialize(flat[path]).clone(memory_format=torch.contiguous_format) for path in paths]


def _learning_rate(lr: float, rate: Tensor | None) -> float | Tensor:
    """The learning rate of a step. A kernel reads a tensor's value when it runs, so that recordings hold no rate."""
    if rate is None:
        return lr
    scaled = lr * rate
    return scaled if scaled.device.type == "cpu" else scaled.float()  # fused kernels on accelerators need float32


@dataclass(frozen=True)
class Adam(Optimizer):
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
    _kernel: ClassVar[Callable[..., None]] = staticmethod(torch._fused_adam_)

    @property
    def moments(self) -> tuple[str, ...]:
        return "m", "v"  # the means of gradients and of their squares

    def move(self, weights: Tensors, gradients: Tensors, moments: Moments, steps: Tensors, rate: Rate = None) -> None:
        beta1, beta2 = self.betas
        self._kernel(
            weights, gradients, moments["m"], moments["v"], [], steps, lr=_learning_rate(self.lr, rate), beta1=beta1,
            beta2=beta2, weight_decay=self.weight_decay, eps=self.eps, amsgrad=False, maximize=False,
        )  # fmt: skip


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with weight decay outside the gradient (Loshchilov and Hutter 2019, algorithm 2):
    w ← w − lr (m̂ / (√v̂ + ε) + λ w).

    lr, betas, eps: as in `Adam`.
    weight_decay:   λ.
    """

    _kernel: ClassVar[Callable[..., None]] = staticmethod(torch._fused_adamw_)


@dataclass(frozen=True)
class Sgd(Optimizer):
    """Stochastic gradient descent with L2 in the gradient and heavy-ball momentum, as in torch.optim.SGD.

    lr:           learning rate.
    weight_decay: λ in g + λ w.
    momentum:     μ in b ← μ b + g, w ← w − lr b; 0 keeps no state.
    nesterov:     whether w ← w − lr (g + μ b) instead.

    Raises:
        ValueError: Nesterov's step without momentum.
    """

    lr: float = 0.1
    weight_decay: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov = True: Nesterov's step needs a local_momentum above 0. Set it")

    @property
    def moments(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    def move(self, weights: Tensors, gradients: Tensors, moments: Moments, steps: Tensors, rate: Rate = None) -> None:
        torch._fused_sgd_(
            weights, gradients, moments.get("momentum", []), lr=_learning_rate(self.lr, rate),
            weight_decay=self.weight_decay, momentum=self.momentum, dampening=0.0, nesterov=self.nesterov,
            maximize=False, is_first_step=False,
        )  # fmt: skip


@dataclass(frozen=True)
class _Elementwise(Optimizer):
    """Optimizers without fused kernels in torch: L2 in the gradient, then w ← w − lr d.

    lr:           learning rate.
    weight_decay: λ in g + λ w.
    """

    lr: float = 0.01
    weight_decay: float = 0.0

    def direction(self, gradients: Tensors, moments: Moments) -> Tensors:
        """d, in new tensors; moments are changed in place."""
        raise NotImplementedError

    def move(self, weights: Tensors, gradients: Tensors, moments: Moments, steps: Tensors, rate: Rate = None) -> None:
        if self.weight_decay:
            gradients = list(torch._foreach_add(gradients, weights, alpha=self.weight_decay))
        direction = self.direction(gradients, moments)
        torch._foreach_mul_(direction, _learning_rate(self.lr, rate))
        torch._foreach_sub_(weights, direction)


@dataclass(frozen=True)
class RmsProp(_Elementwise):
    """RMSprop (Hinton 2012, lecture 6e) with L2 in the gradient, as in torch.optim.RMSprop: v ← α v + (1 − α) g²,
    d = g / (√v + ε), with momentum replaced by b ← μ b + d, and w ← w − lr d.

    momentum: μ; 0 keeps no b.
    alpha:    α.
    eps:      ε.
    """

    momentum: float = 0.0
    alpha: float = 0.99
    eps: float = 1e-8

    @property
    def moments(self) -> tuple[str, ...]:
        return ("v", "momentum") if self.momentum else ("v",)

    def direction(self, gradients: Tensors, moments: Moments) -> Tensors:
        torch._foreach_mul_(moments["v"], self.alpha)
        torch._foreach_addcmul_(moments["v"], gradients, gradients, 1 - self.alpha)
        direction = _divide(gradients, moments["v"], self.eps)
        if self.momentum:
            torch._foreach_mul_(moments["momentum"], self.momentum)
            torch._foreach_add_(moments["momentum"], direction)
            direction = list(torch._foreach_mul(moments["momentum"], 1.0))
        return direction


@dataclass(frozen=True)
class Adagrad(_Elementwise):
    """Adagrad (Duchi, Hazan and Singer 2011) with L2 in the gradient, as in torch.optim.Adagrad:
    v ← v + g², w ← w − lr g / (√v + ε).

    eps:      ε.
    """

    eps: float = 1e-10

    @property
    def moments(self) -> tuple[str, ...]:
        return ("v",)  # the sum of the gradients' squares

    def direction(self, gradients: Tensors, moments: Moments) -> Tensors:
        torch._foreach_addcmul_(moments["v"], gradients, gradients)
        return _divide(gradients, moments["v"], self.eps)


def _divide(gradients: Tensors, squares: Tensors, eps: float) -> Tensors:
    """g / (√v + ε)."""
    denominators = list(torch._foreach_sqrt(squares))
    torch._foreach_add_(denominators, eps)
    return list(torch._foreach_div(gradients, denominators))


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adam": Adam,
    "adamw": AdamW,
    "sgd": Sgd,
    "rmsprop": RmsProp,
    "adagrad": Adagrad,
}


def optimizer_of(
    name: str,
    lr: float,
    weight_decay: float,
    momentum: float = 0.0,
    nesterov: bool = False,
    betas: tuple[float, float] = (0.9, 0.999),
) -> Optimizer:
    """The optimizer `name` of `OPTIMIZERS`, with the settings that it has.

    Raises:
        ValueError: a setting that the optimizer does not have differs from its default.
    """
    settings: dict[str, object] = {}
    for setting, value, default in (
        ("momentum", momentum, 0.0),
        ("nesterov", nesterov, False),
        ("betas", tuple(betas), (0.9, 0.999)),
    ):
        kinds = [kind for kind, optimizer in OPTIMIZERS.items() if setting in optimizer.__dataclass_fields__]  # type: ignore[attr-defined]
        if name in kinds:
            settings[setting] = value
        elif value != default:
            key = "local_momentum" if setting == "momentum" else setting
            raise ValueError(f"{key} = {value}: {name} has none. Leave it out, or take {', '.join(kinds)}")
    return OPTIMIZERS[name](lr, weight_decay, **settings)

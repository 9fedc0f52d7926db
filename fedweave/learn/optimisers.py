"""Optimisers of local training, on torch's fused kernels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Optimiser = Callable[[Sequence[Tensor]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Adam:
    """Adam with L2 in the gradient (Kingma and Ba 2015), fresh at each `fit`."""

    lr: float = 0.01
    weight_decay: float = 5e-4

    def __call__(self, tensors: Sequence[Tensor]) -> torch.optim.Optimizer:
        """A torch optimiser over `tensors`."""
        return torch.optim.Adam(tensors, lr=self.lr, weight_decay=self.weight_decay, fused=True)


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with L2 in the gradient, without momentum."""

    lr: float = 0.1
    weight_decay: float = 0.0

    def __call__(self, tensors: Sequence[Tensor]) -> torch.optim.Optimizer:
        """A torch optimiser over `tensors`."""
        return torch.optim.SGD(tensors, lr=self.lr, weight_decay=self.weight_decay, fused=True)


OPTIMISERS: dict[str, Callable[[float, float], Optimiser]] = {"adam": Adam, "sgd": Sgd}


def check_training(lr: float, weight_decay: float, **counts: int) -> None:
    """Refuse impossible training parameters with a ValueError that names them; `counts` are of steps or epochs."""
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} is {count}; it must be at least 1")
    if not lr > 0:
        raise ValueError(f"lr is {lr}; it must be positive")
    if weight_decay < 0:
        raise ValueError(f"weight_decay is {weight_decay}; it must not be negative")

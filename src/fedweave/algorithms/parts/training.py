"""How a client trains: the settings that all algorithms with local training share."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from fedweave.core.model import Model
from fedweave.learn import OPTIMISERS, Optimiser, check_training

OptimizerName = Literal["adam", "sgd"]
OptimizerState = Literal["kept", "fresh"]


@dataclass(frozen=True)
class Training:
    """A model and how it is trained locally.

    local_steps:     optimiser steps per round. optimizer, lr, weight_decay: of these.
    optimizer_state: "kept" from round to round, or "fresh" in each.
    """

    model: Model
    local_steps: int
    optimizer: OptimizerName
    lr: float
    weight_decay: float
    optimizer_state: OptimizerState

    def __post_init__(self) -> None:
        check_training(self.lr, self.weight_decay, local_steps=self.local_steps)

    @cached_property
    def optimiser(self) -> Optimiser:
        """The optimiser."""
        return OPTIMISERS[self.optimizer](self.lr, self.weight_decay)

    @property
    def reach(self) -> float:
        """How far a gradient of 1 carries a weight in a round of plain gradient descent."""
        return self.local_steps * self.lr

    @property
    def kept(self) -> bool:
        """Whether the optimiser's state lasts."""
        return self.optimizer_state == "kept"

"""How a client trains: the settings that all algorithms with local training share."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

from fedweave.core.model import Model
from fedweave.learn import OPTIMISERS, ClassLoss, Optimiser, check_training

OptimizerName = Literal["adam", "sgd"]
OptimizerState = Literal["kept", "fresh"]
COUNTS = "ClassCounts"  # the part that sends how many training examples of each "classes" all clients have
ClassWeights = Literal["none", "balanced"] | tuple[float, ...] | dict[str, float]


class WeighsClasses(Protocol):
    """An algorithm with the settings of a `ClassLoss`."""

    @property
    def class_weight(self) -> ClassWeights:
        """Of the cross-entropy."""
        ...

    @property
    def focal(self) -> float:
        """Of the focal loss."""
        ...

    @property
    def logit_adjustment(self) -> float:
        """Of the logits."""
        ...


def weighing(algorithm: WeighsClasses) -> ClassLoss:
    """How an algorithm weighs classes."""
    return ClassLoss(algorithm.class_weight, algorithm.focal, algorithm.logit_adjustment)


@dataclass(frozen=True)
class Training:
    """A model and how it is trained locally.

    local_steps:     optimiser steps per round. optimizer, lr, weight_decay: of these.
    optimizer_state: "kept" from round to round, or "fresh" in each.
    loss:            of the classes, which all cross-entropies are.
    """

    model: Model
    local_steps: int
    optimizer: OptimizerName
    lr: float
    weight_decay: float
    optimizer_state: OptimizerState
    loss: ClassLoss = field(default_factory=ClassLoss)

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

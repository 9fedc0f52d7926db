"""How a client trains: the settings that all algorithms with local training share."""

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Literal

from torch import Tensor

from fedweave.core import model as models
from fedweave.core.algorithm import Algorithm
from fedweave.core.bounds import NonNegative
from fedweave.core.model import Model
from fedweave.learn import Criterion, Optimizer, optimizer_of

OptimizerName = Literal["adam", "adamw", "sgd", "rmsprop", "adagrad"]
OptimizerState = Literal["kept", "fresh"]
ClassWeights = Literal["none", "balanced"] | tuple[NonNegative, ...] | dict[str, NonNegative]


def default_weight_decay(links: bool) -> float:
    """The weight decay of local training without a setting; links: whether links are the examples."""
    return 0.0 if links else 5e-4


# The names of parts whose downloads the local training reads.
COUNTS = "ClassCounts"  # sends "classes", the number of training examples of each class at all clients together
RATE = "RateSchedule"  # sends "rate", the factor of lr in this round
BATCHES = "LocalEpochs"  # sends "batches", the largest number of mini-batches of any client


def criterion_of(algorithm: Algorithm) -> Criterion:
    """How an algorithm weighs classes and errors."""
    return Criterion(
        algorithm.class_weight,
        algorithm.focal,
        algorithm.logit_adjustment,
        algorithm.number_loss,
        algorithm.quantile,
    )


def batches(count: Tensor, batch: int) -> Tensor:
    """Number of mini-batches for `count` examples: ⌈count / batch⌉, int64."""
    return -(-count // batch)


@dataclass(frozen=True)
class Training:
    """A model and the settings of its local training.

    local_steps: optimizer steps per round. optimizer, lr, weight_decay, local_momentum, nesterov, betas: the optimizer.
    optimizer_state: "kept" keeps the optimizer's state from round to round, "fresh" starts each round without it.
    loss:            how all cross-entropies weigh classes and errors.
    local_epochs:    passes over the training examples instead of local_steps; 0 takes local_steps.
    batch_size:      training examples per step; 0 for all.
    clip_gradient:   largest norm of a step's gradient; 0 for no limit.

    Raises:
        ValueError: a setting is out of range, or settings do not go together.
    """

    model: Model
    local_steps: int
    optimizer: OptimizerName
    lr: float
    weight_decay: float
    optimizer_state: OptimizerState
    loss: Criterion = field(default_factory=Criterion)
    local_epochs: int = 0
    batch_size: int = 0
    clip_gradient: float = 0.0
    local_momentum: float = 0.0
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)

    def __post_init__(self) -> None:
        if self.local_epochs and self.batch_size and self.keeps_state and self.update_rule.moments:
            raise ValueError(
                f"optimizer_state = {self.optimizer_state!r}: with local_epochs = {self.local_epochs} and batch_size = "
                f"{self.batch_size} clients take different numbers of steps, so their optimizers cannot keep their "
                "states. Set optimizer_state = 'fresh'"
            )

    @classmethod
    def of(cls, algorithm: Algorithm, model: Model) -> "Training":
        names = [entry.name for entry in fields(cls) if entry.name not in ("model", "loss")]
        settings = {name: getattr(algorithm, name) for name in names}
        if settings["weight_decay"] is None:
            settings["weight_decay"] = default_weight_decay(models.example(model) == "link")
        return cls(model, loss=criterion_of(algorithm), **settings)

    @cached_property
    def update_rule(self) -> Optimizer:
        return optimizer_of(self.optimizer, self.lr, self.weight_decay, self.local_momentum, self.nesterov, self.betas)

    @property
    def steps(self) -> int:
        """Steps of a round if all clients take the same number: `local_steps`, or epochs of one step each."""
        return self.local_epochs if self.local_epochs and not self.batch_size else self.local_steps

    @property
    def reach(self) -> float:
        """How far a round's steps carry a constant gradient."""
        return self.steps * self.lr

    @property
    def keeps_state(self) -> bool:
        return self.optimizer_state == "kept"

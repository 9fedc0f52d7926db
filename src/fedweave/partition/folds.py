"""Folds of the clients' training examples, and data in which one of them has no labels: what a model says of examples
whose labels it did not learn."""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from pydantic import Field

from fedweave.core import random
from fedweave.core.graph import TRAIN
from fedweave.core.settings import Settings
from fedweave.core.target import CLASS, is_labeled, missing_like
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError
from fedweave.partition.base import Part, Partition


@dataclass(frozen=True)
class Fold(Settings):
    """The section [fold]: training without the labels of one fold of the training examples. These stay in the graph,
    without a label and in no split, so that nothing is trained, weighted or scaled by their labels.

    of:     number of folds. Each client's training examples are dealt to them by the run's seed, evenly in each class.
    number: the fold whose labels are withheld, from 1.
    """

    of: Annotated[int, Field(ge=2)] = 5
    number: Annotated[int, Field(ge=1)] = 1

    def __post_init__(self) -> None:
        if self.number > self.of:
            raise ConfigError(
                f"fold.number = {self.number}: there are {self.of} folds (fold.of). Set 1 to {self.of}.",
                code="config.value",
            )

    def withhold(self, data: Dataset, partition: Partition, seed: int) -> tuple[Dataset, Partition]:
        """The data and the partition without the labels of this fold, which no client and no server has any more."""
        withheld = folds_of(data, partition, self.of, seed) == self.number  # [e]
        rows = withheld if data.y.ndim == 1 else withheld[:, None]
        evaluation = partition.evaluation_part
        changed = replace(
            partition,
            parts=tuple(_without_labels(part, withheld) for part in partition.parts),
            held={role: _without_labels(part, withheld) for role, part in partition.held.items()},
            evaluation_part=None if evaluation is None else _without_labels(evaluation, withheld),
        )
        return replace(data, y=np.where(rows, missing_like(data.y), data.y)), changed


def folds_of(data: Dataset, partition: Partition, count: int, seed: int) -> np.ndarray:
    """int64 [e]: the fold of each example that some client trains on, from 1 to `count`; 0 for all others.

    Each client's examples are dealt in random order, class by class, so that a client's folds have equal sizes and
    shares of each class, to one example. An example of several clients has the fold that the first one gives it."""
    result, rng = np.zeros(data.examples, np.int64), random.generator(seed, "folds")
    labeled = is_labeled(data.y)
    for part in partition.parts:
        trained = part.examples[part.masks[TRAIN]]
        examples = rng.permutation(trained[labeled[trained] & (result[trained] == 0)])
        if data.target == CLASS:
            examples = examples[np.argsort(data.y[examples], kind="stable")]
        result[examples] = (np.arange(len(examples)) + rng.integers(count)) % count + 1
    return result


def _without_labels(part: Part, withheld: np.ndarray) -> Part:
    """A part whose examples `withheld` bool [e] are in no split."""
    return replace(part, masks=part.masks & ~withheld[part.examples])

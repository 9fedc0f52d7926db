"""What `Partition` promises, looked at where a partition comes from outside the package."""

import numpy as np

from fedweave.core.graph import SPLITS, TRAIN
from fedweave.datasets.base import Dataset
from fedweave.errors import ConfigError
from fedweave.partition.base import Part, Partition


def check(found: object, data: Dataset, name: str) -> Partition:
    """Return `found` if the parts' examples and masks and the global test are as `Partition` has them; `name` is the
    plug-in's.

    Raises:
        ConfigError: it does not; names the client and what is wrong.
    """
    if not isinstance(found, Partition) or not found.parts:
        raise ConfigError(f"partition {name!r}: cut returned {type(found).__name__}, not a Partition with parts.")
    for client, part in enumerate(found.parts):
        if fault := _fault(part, data):
            raise ConfigError(f"partition {name!r}: client {client}: {fault}.")
    if found.test is not None:
        if fault := _of_numbers(found.test, data.examples):
            raise ConfigError(f"partition {name!r}: test {fault}.")
        trained = [part.examples[part.masks[TRAIN]] for part in found.parts]
        if np.isin(np.concatenate(trained), found.test).any():
            raise ConfigError(f"partition {name!r}: a client trains on the global test.")
    return found


def _fault(part: object, data: Dataset) -> str:
    if not isinstance(part, Part):
        return f"it is {type(part).__name__}, not a Part"
    for what, numbers, most in (
        ("nodes", part.nodes, data.nodes),
        ("graphs", part.graphs, data.examples),
        ("carried", part.carried, data.examples),
    ):
        if numbers is not None and (fault := _of_numbers(numbers, most)):
            return f"{what} {fault}"
    masks, size = np.asarray(part.masks), len(part.examples)
    if masks.dtype != np.bool_ or masks.shape != (len(SPLITS), size):
        return f"masks are {masks.dtype} {list(masks.shape)}, not bool {[len(SPLITS), size]}"
    if (masks.sum(0) > 1).any():
        return "an example is in two of train, val and test"
    return "an example without a label is in a split" if masks[:, data.y[part.examples] < 0].any() else ""


def _of_numbers(numbers: object, most: int) -> str:
    """What is wrong with sorted, distinct numbers below `most`; "" if nothing is."""
    if not isinstance(numbers, np.ndarray) or numbers.dtype != np.int64 or numbers.ndim != 1:
        return "are not int64 [n]"
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < most:
        return f"are not all in 0..{most - 1}"
    return "" if (np.diff(numbers) > 0).all() else "are not rising"

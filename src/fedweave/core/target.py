"""What a model predicts for an example: one of several classes, numbers, or several yes-or-no labels; numbers and
labels may have gaps. The form of `y` shows which, in a `Dataset` and in a `Graph`:

"class":  int64 [e], -1 without a label.
"number": float64 [e, t], NaN where a number is missing.
"labels": int64 [e, t], 0 or 1, -1 where a label is missing.
"""

import numpy as np
import torch
from torch import Tensor

from fedweave.core.types import CLASS as CLASS
from fedweave.core.types import LABELS as LABELS
from fedweave.core.types import NOUNS as NOUNS
from fedweave.core.types import NUMBER as NUMBER
from fedweave.core.types import Kind as Kind

SHIFT, DIVISOR, LOG = 0, 1, 2  # rows of a scale, float64 [3, t]


def kind_of(y: "np.ndarray | Tensor") -> Kind:
    """The kind of target, by the form of `y`."""
    if y.ndim == 1:
        return CLASS
    floating = y.dtype.is_floating_point if isinstance(y, Tensor) else y.dtype.kind == "f"
    return NUMBER if floating else LABELS


def where_known(y: np.ndarray) -> np.ndarray:
    """bool, of the shape of `y`: where there is a label or a number."""
    known: np.ndarray = np.asarray(~np.isnan(y) if kind_of(y) == NUMBER else y >= 0)
    return known


def is_labeled(y: np.ndarray) -> np.ndarray:
    """bool [e]: which examples have a label, or at least one of several."""
    known = where_known(y)
    result: np.ndarray = known if known.ndim == 1 else np.asarray(known.any(1))
    return result


def missing_like(y: np.ndarray) -> np.ndarray:
    """An array of the shape of `y` in which all labels are missing."""
    return np.full_like(y, np.nan if kind_of(y) == NUMBER else -1)


def scale_of(y: np.ndarray, log: bool = False, how: str = "standard") -> np.ndarray:
    """float64 [3, t], the scale of numbers [m, t]: a model's outputs are these numbers, shifted and divided.

    The rows are the mean of the known numbers, their deviation, and `log`: whether both are of the numbers' logarithms.
    A column without numbers has mean 0; one with a deviation of 0 has deviation 1. With `how` = "none" all have 0 and
    1."""
    scale = np.zeros((3, y.shape[1]))
    scale[DIVISOR], scale[LOG] = 1.0, float(log)
    if how == "none":
        return scale
    values = np.log(y) if log else y
    for column, numbers in enumerate(values.T):
        known = numbers[np.isfinite(numbers)]
        if len(known):
            scale[SHIFT, column] = known.mean()
        if len(known) > 1 and known.std() > 0:
            scale[DIVISOR, column] = known.std()
    return scale


def to_scale(y: Tensor, scale: Tensor) -> Tensor:
    """Numbers [e, t] in units of `scale` [3, t], as a model's outputs are; NaN where they are missing."""
    values = torch.where(scale[LOG] > 0, torch.log(torch.where(scale[LOG] > 0, y, 1.0)), y)
    return (values - scale[SHIFT]) / scale[DIVISOR]


def from_scale(outputs: Tensor, scale: Tensor | None) -> Tensor:
    """A model's outputs [e, t] in the data's units, float64: the inverse of `to_scale`; unchanged without a scale."""
    if scale is None:
        return outputs.to(torch.float64)
    values = outputs.to(torch.float64) * scale[DIVISOR] + scale[SHIFT]
    return torch.where(scale[LOG] > 0, torch.exp(torch.where(scale[LOG] > 0, values, 0.0)), values)

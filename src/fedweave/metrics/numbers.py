"""Metrics of predicted numbers as additive sums, in the data's units: adding them over clients gives the error, R² and
Pearson's correlation of all examples together. Ranks are compared only within a client, so Spearman's correlation over
several clients is the mean of theirs, weighted by their numbers.

Several numbers per example, t of them, are evaluated one by one; a metric is the mean over them, as in scikit-learn's
`multioutput="uniform_average"`.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedweave.core.graph import TEST, TRAIN
from fedweave.core.target import from_scale, to_scale
from fedweave.core.tree import Tree
from fedweave.core.types import Record, Values
from fedweave.metrics.classification import average_ranks, mean_of_classes, ratio
from fedweave.metrics.rank_sums import on_grid
from fedweave.metrics.selection import NRMSE, RMSE, RMSE_OF_MEAN

ALWAYS = ("loss", "squared")  # always in the result of `counts`
COUNTED = (*ALWAYS, "absolute", "moments", "spearman", "group_errors")  # the last one only with `sens`
Y, P, YY, PP, YP = range(5)  # rows of "moments"
_CONSTANT = 1e-12  # a smaller share of the sum of squares is rounding, no spread
_PER_TARGET = (RMSE, "mae", "r2", "pearson", "spearman")


def counts(
    outputs: Tensor,
    y: Tensor,
    masks: Tensor,
    scale: Tensor | None,
    sensitive: Tensor | None = None,
    whole: bool = True,
    ranks: bool = True,
) -> Tree:
    """One client's additive counts for every metric, for S sets of examples.

    outputs [n, t], in units of `scale` [3, t] (`core.target`); y float64 [n, t], NaN where unknown; masks bool
    [S, n]; sensitive int64 [n]. Returns float64, over the known numbers, of errors e = p − y in the data's units:

    "loss" [S, 2]:        sum of squared errors in units of `scale`, and how many.
    "squared" [S, 2, t]:  per number sum of e², and how many.
    "absolute" [S, 2, t]: sum of |e|, and how many.
    "moments" [S, 5, t]:  sums of y, p, y², p² and y p.
    "spearman" [S, 2, t]: Spearman's correlation times how many, and how many, 0 where it is not defined.
    "group_errors" [S, 3, 2, t]: with `sensitive`, by group, sums of |e| and e, and how many.

    With `whole=False` everything from "absolute" on is left out, with `ranks=False` "spearman". Works under
    `torch.func.vmap`.
    """
    has_value = ~y.isnan()
    known = masks[:, :, None] & has_value  # [S, n, t]
    y = torch.where(has_value, y, 0.0)
    p = from_scale(outputs, scale)
    count = known.to(torch.float64).sum(1)
    in_units = outputs.to(torch.float64) - (y if scale is None else to_scale(y, scale))

    def total(values: Tensor) -> Tensor:
        return torch.where(known, values, 0.0).sum(1)

    losses = torch.where(has_value, on_grid(in_units.square()), 0.0)
    pairs = {
        "loss": torch.stack([total(losses).sum(-1), count.sum(-1)], 1),
        "squared": torch.stack([total((p - y).square()), count], 1),
    }
    if not whole:
        return pairs
    pairs |= {
        "absolute": torch.stack([total((p - y).abs()), count], 1),
        "moments": torch.stack([total(values) for values in (y, p, y * y, p * p, y * p)], 1),
    }
    if ranks:
        pairs["spearman"] = _spearman(y, p, known.mT, count)
    if sensitive is not None:
        is_group = sensitive[:, None] == torch.arange(2, device=sensitive.device)  # [n, 2]
        group = is_group[None, :, :, None] & known[:, :, None]  # [S, n, 2, t]
        errors = (p - y)[:, None]  # [n, 1, t]
        sums = [torch.where(group, values, 0.0).sum(1) for values in (errors.abs(), errors, torch.ones_like(errors))]
        pairs["group_errors"] = torch.stack(sums, 1)
    return pairs


def _spearman(y: Tensor, p: Tensor, known: Tensor, count: Tensor) -> Tensor:
    """The pairs "spearman": known bool [S, t, n], and their count [S, t]."""
    divisor = count.clamp(min=1)

    def center_ranks(values: Tensor) -> Tensor:
        ranks = torch.where(known, average_ranks(values, known), 0.0)
        return torch.where(known, ranks - (ranks.sum(-1) / divisor)[..., None], 0.0)

    one, other = center_ranks(y), center_ranks(p)  # [S, t, n]
    spread = (one.square().sum(-1) * other.square().sum(-1)).sqrt()
    defined = (spread > 0).to(torch.float64)
    correlation = (one * other).sum(-1) / torch.where(spread > 0, spread, 1.0)
    return torch.stack([correlation * count * defined, count * defined], 1)


def per_target(pairs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The metrics of `counts`' pairs, merged or not, with any leading axes, of each number [..., t]. NaN where there is
    nothing to count, or the spread in a divisor is 0. Metrics without pairs are left out.

    "rmse", "mae":  root of the mean squared, and mean absolute error.
    "r2":           1 − Σ(y − p)² / Σ(y − mean y)².
    "nrmse":        the RMSE over the standard deviation of y.
    "pearson":      Pearson's correlation of y and p. "spearman": Spearman's, the mean over clients.
    """
    if "squared" not in pairs:
        return {}
    squared, n = pairs["squared"].unbind(-2)
    out = {RMSE: _ratio(squared, n).sqrt()}
    if "absolute" in pairs:
        out["mae"] = _ratio(*pairs["absolute"].unbind(-2))
    if "moments" in pairs:
        y, p, yy, pp, yp = pairs["moments"].unbind(-2)
        spread, of_p = _spread(y, yy, n), _spread(p, pp, n)
        out["r2"] = 1 - _ratio(squared, spread)
        out[NRMSE] = _ratio(squared, spread).sqrt()
        together = yp - y * p / n.clamp(min=1)
        out["pearson"] = _ratio(together, (spread * of_p).sqrt()).clamp(-1, 1)
    if "spearman" in pairs:
        out["spearman"] = _ratio(*pairs["spearman"].unbind(-2))
    return out


def values(pairs: Values) -> Record:
    """The metrics of `counts`' pairs, merged or not, with any leading axes: "loss" and the metrics of `per_target`,
    averaged over the numbers; a float or a NumPy array for each."""
    metrics = {name: value.numpy() for name, value in _values(_tensors(pairs)).items()}
    return {name: value if value.ndim else float(value) for name, value in metrics.items()}


def means(pairs: Tree) -> Tree:
    """`values` of one client's `counts`, float64 [S, 2] each: the value and 1, or zeros where it is not defined. Sums
    of them over clients give means. Works under `vmap`."""
    out = {}
    for name, value in _values(pairs).items():
        out[name] = torch.stack([value.nan_to_num(0.0), (~value.isnan()).to(torch.float64)], 1)
    return out


def of_each(pairs: Values) -> dict[str, float]:
    """{"rmse/0", "r2/0", …: …} of every number, from pairs of one set; {} without them."""
    metrics = per_target(_tensors(pairs))
    out = {}
    for name in _PER_TARGET:
        for at, value in enumerate(metrics.get(name, ())):
            out[f"{name}/{at}"] = float(value)
    return out


def train_means(pairs: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """The mean [..., t] of the training examples, NaN without any; None where it is unknown. pairs: with the axes
    [..., 3, …]."""
    if "moments" not in pairs:
        return None
    return ratio(pairs["moments"][..., TRAIN, Y, :], pairs["squared"][..., TRAIN, 1, :])


def references(pairs: Mapping[str, np.ndarray], mean: np.ndarray) -> dict[str, np.ndarray]:
    """{"rmse_of_mean": the RMSE of always predicting `mean` [..., t], for every set, float64 [..., S]}."""
    y, yy, n = pairs["moments"][..., Y, :], pairs["moments"][..., YY, :], pairs["squared"][..., 1, :]
    m = np.broadcast_to(mean[..., None, :], y.shape)
    errors = np.maximum(yy - 2 * m * y + n * m * m, 0)
    return {RMSE_OF_MEAN: mean_of_classes(np.sqrt(ratio(errors, n)))}


def between_groups(pairs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """{"groups/…": by group and as group 1 minus group 0, the mean absolute error "mae" and the mean error "bias" of
    predictions}, averaged over the numbers; {} without counts by group."""
    if "group_errors" not in pairs:
        return {}
    absolute, error, n = np.moveaxis(pairs["group_errors"], -3, 0)  # [..., 2, t]
    metrics: dict[str, np.ndarray] = {}
    for name, total in (("mae", absolute), ("bias", error)):
        group0, group1 = np.moveaxis(mean_of_classes(ratio(total, n)), -1, 0)
        metrics[f"groups/{name}_group0"] = group0
        metrics[f"groups/{name}_group1"] = group1
        metrics[f"groups/{name}_signed"] = group1 - group0
    return metrics


def personal(pairs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """{"global_test/rmse": RMSE of every client's own model on the global test set, float64 [P]}, {} without pairs."""
    if "squared" not in pairs:
        return {}
    return {f"global_test/{RMSE}": mean_of_classes(np.sqrt(ratio(*np.moveaxis(pairs["squared"][:, TEST], 1, 0))))}


def _values(pairs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    out = {}
    if "loss" in pairs:
        out["loss"] = _ratio(*pairs["loss"].unbind(-1))
    return out | {name: each.nanmean(-1) for name, each in per_target(pairs).items()}


def _tensors(pairs: Values) -> dict[str, Tensor]:
    return {name: torch.as_tensor(np.asarray(value, np.float64), device="cpu") for name, value in pairs.items()}


def _spread(total: Tensor, squares: Tensor, n: Tensor) -> Tensor:
    """Σ (v − mean v)², 0 where it is only rounding."""
    spread = squares - total.square() / n.clamp(min=1)
    return torch.where(spread > _CONSTANT * squares, spread, 0.0)


def _ratio(total: Tensor, count: Tensor) -> Tensor:
    return torch.where(count > 0, total / torch.where(count > 0, count, 1.0), math.nan)

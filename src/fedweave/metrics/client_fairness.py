"""How evenly a model serves the clients (FairGFL, section VII-A "Metrics"), and whether larger contributors gain more
(FairGraphFL, section 4.1 "Metrics"; Xu et al. 2021, section 5).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from fedweave.errors import DataError
from fedweave.metrics.selection import PLAIN, lower


def client_fairness(
    losses: np.ndarray, accuracies: np.ndarray, train_losses: np.ndarray, clients: Sequence[str], metric: str = PLAIN
) -> tuple[dict[str, float], dict[str, str]]:
    """The spread over P clients of their test losses F [P] (>= 0, nats) and test accuracies A [P], with the worst and
    the best client. FairGFL defines fairness by the spread of training losses [P], which is added. If a model memorizes
    its training examples, these losses are even, also where test losses are not.

    "fairness/test_loss_variance": 1/P sum (F_i - mean F)^2.
    "fairness/test_loss_entropy": -sum s_i log s_i in nats with s_i = F_i / sum F; between 0 and log P, its value for
        equal losses (also for all zero).
    "fairness/accuracy_deviation": square root of 1/P sum (A_i - mean A)^2.
    "fairness/worst_accuracy", "fairness/best_accuracy".
    "fairness/undefined_clients": number of clients whose loss or accuracy is NaN (no test examples, or diverged).
        The numbers leave out clients where their own input is NaN; without any left they are NaN.
    "fairness/train_loss_variance", "fairness/train_loss_entropy": as above, of the training losses.

    Returns these and {"fairness/worst_client", "fairness/best_client"}: the first client of lowest and of highest
    accuracy, empty if none is defined. metric: the metric that A is, which replaces "accuracy" in the names.

    Raises:
        DataError: lengths differ, or a loss is negative.
    """
    loss, accuracy, trained = (np.asarray(series, np.float64) for series in (losses, accuracies, train_losses))
    if not loss.shape == accuracy.shape == trained.shape == (len(clients),):
        raise DataError(
            f"{len(clients)} clients, losses {loss.shape}, accuracies {accuracy.shape} and training losses "
            f"{trained.shape}; give one of each per client.",
            code="data.lengths",
        )
    for series in (loss, trained):
        negative = np.flatnonzero(series < 0)
        if len(negative):
            raise DataError(
                f"client {clients[negative[0]]!r} has the loss {series[negative[0]]}; the entropy needs losses >= 0.",
                code="data.loss",
            )
    defined = np.flatnonzero(~np.isnan(accuracy))
    names: dict[str, str] = {}
    worst = best = np.nan
    if len(defined):
        ends = defined[accuracy[defined].argmin()], defined[accuracy[defined].argmax()]
        worst_client, best_client = ends[::-1] if lower(metric) else ends
        worst, best = accuracy[worst_client], accuracy[best_client]
        names = {"fairness/worst_client": clients[worst_client], "fairness/best_client": clients[best_client]}
    tested, memorized = loss[~np.isnan(loss)], trained[~np.isnan(trained)]
    return {
        "fairness/test_loss_variance": variance(tested),
        "fairness/test_loss_entropy": entropy(tested),
        f"fairness/{metric}_deviation": float(np.sqrt(variance(accuracy[defined]))),
        f"fairness/worst_{metric}": float(worst),
        f"fairness/best_{metric}": float(best),
        "fairness/undefined_clients": float((np.isnan(loss) | np.isnan(accuracy)).sum()),
        "fairness/train_loss_variance": variance(memorized),
        "fairness/train_loss_entropy": entropy(memorized),
    }, names


def variance(losses: np.ndarray) -> float:
    """Population variance of losses [P]; NaN if there are none or one is infinite."""
    return float(np.var(losses)) if len(losses) and np.isfinite(losses).all() else np.nan


def entropy(losses: np.ndarray) -> float:
    """Entropy in nats of losses [P] >= 0 as shares of their sum; NaN if there are none or one is infinite."""
    if not len(losses) or not np.isfinite(losses).all():
        return np.nan
    shares = losses / losses.max() if losses.max() > 0 else np.ones_like(losses)  # first scaled: sums cannot overflow
    return float(torch.special.entr(torch.from_numpy(shares / shares.sum())).sum())  # without importing scipy.special


class Correlation(NamedTuple):
    """Pearson's correlation and its 95 % interval by Fisher's transformation. NaN with fewer than two pairs or where
    one side is constant; the interval is NaN with fewer than four."""

    value: float
    low: float
    high: float


def pearson(local: np.ndarray, together: np.ndarray) -> Correlation:
    """The correlation of P clients' accuracies, `local` training against training `together`; without clients where
    one of them is NaN.

    Raises:
        DataError: lengths differ.
    """
    one, other = np.asarray(local, np.float64), np.asarray(together, np.float64)
    if one.shape != other.shape or one.ndim != 1:
        raise DataError(
            f"accuracies alone {one.shape} and together {other.shape}; give one of each per client.",
            code="data.lengths",
        )
    defined = ~(np.isnan(one) | np.isnan(other))
    one, other = one[defined], other[defined]
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return Correlation(np.nan, np.nan, np.nan)
    from scipy.stats import pearsonr  # takes half a second to import

    result = pearsonr(one, other)
    if len(one) < 4:
        return Correlation(float(result.statistic), np.nan, np.nan)
    interval = result.confidence_interval(0.95)
    return Correlation(float(result.statistic), float(interval.low), float(interval.high))


def per_group(paid: Mapping[str, float]) -> dict[str, float]:
    """The mean pay of the clients of each quality, by the names of `partition.graphs.Perturbed`: "low-0" has quality
    "low". {} where clients have other names."""
    groups: dict[str, list[float]] = {}
    for client, pay in paid.items():
        groups.setdefault(client.rpartition("-")[0], []).append(pay)
    if not set(groups) <= {"low", "medium", "high"}:
        return {}
    return {name: float(np.mean(groups[name])) for name in ("low", "medium", "high") if name in groups}

"""How evenly a model serves the clients (FairGFL, section VII-A "Metrics")."""

from collections.abc import Sequence

import numpy as np
from scipy.special import entr

from fedweave.errors import DataError


def client_fairness(
    losses: np.ndarray, accuracies: np.ndarray, clients: Sequence[str]
) -> tuple[dict[str, float], dict[str, str]]:
    """Spread over P clients of their losses F [P] (>= 0, nats) and accuracies [P], and who is worst and best.

    "fairness/loss_variance": 1/P sum (F_i - mean F)^2.
    "fairness/loss_entropy": -sum s_i log s_i in nats with s_i = F_i / sum F; between 0 and log P, its value for equal
        losses (also for all zero).
    "fairness/worst_accuracy", "fairness/best_accuracy".
    "fairness/undefined_clients": number of clients whose loss or accuracy is NaN (no nodes to judge by, or diverged).
        The numbers above leave out clients where their own input is NaN; without any left they are NaN.

    Returns these and {"fairness/worst_client", "fairness/best_client"}: the first client of lowest and of highest
    accuracy, empty if none is defined.

    Raises:
        DataError: lengths differ, or a loss is negative.
    """
    loss, accuracy = np.asarray(losses, np.float64), np.asarray(accuracies, np.float64)
    if not loss.shape == accuracy.shape == (len(clients),):
        raise DataError(
            f"{len(clients)} clients, losses {loss.shape} and accuracies {accuracy.shape}; give one of each per client."
        )
    negative = np.flatnonzero(loss < 0)
    if len(negative):
        raise DataError(
            f"client {clients[negative[0]]!r} has the loss {loss[negative[0]]}; the entropy needs all losses >= 0."
        )
    left_out = np.isnan(loss) | np.isnan(accuracy)
    judged = np.flatnonzero(~np.isnan(accuracy))
    names: dict[str, str] = {}
    worst = best = np.nan
    if len(judged):
        low, high = judged[accuracy[judged].argmin()], judged[accuracy[judged].argmax()]
        worst, best = accuracy[low], accuracy[high]
        names = {"fairness/worst_client": clients[low], "fairness/best_client": clients[high]}
    spread = loss[~np.isnan(loss)]
    return {
        "fairness/loss_variance": variance(spread),
        "fairness/loss_entropy": entropy(spread),
        "fairness/worst_accuracy": float(worst),
        "fairness/best_accuracy": float(best),
        "fairness/undefined_clients": float(left_out.sum()),
    }, names


def variance(losses: np.ndarray) -> float:
    """Population variance of losses [P]; NaN if there are none or one is infinite."""
    return float(np.var(losses)) if len(losses) and np.isfinite(losses).all() else np.nan


def entropy(losses: np.ndarray) -> float:
    """Entropy in nats of losses [P] >= 0 as shares of their sum; NaN if there are none or one is infinite."""
    if not len(losses) or not np.isfinite(losses).all():
        return np.nan
    shares = losses / losses.max() if losses.max() > 0 else np.ones_like(losses)  # first scaled: sums cannot overflow
    return float(entr(shares / shares.sum()).sum())

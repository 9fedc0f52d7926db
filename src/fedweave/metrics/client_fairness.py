"""How evenly a model serves the clients (FairGFL, section VII-A "Metrics")."""

from collections.abc import Sequence

import numpy as np
from scipy.special import entr

from fedweave.errors import DataError


def client_fairness(
    losses: np.ndarray, accuracies: np.ndarray, train_losses: np.ndarray, clients: Sequence[str]
) -> tuple[dict[str, float], dict[str, str]]:
    """Spread over P clients of their test losses F [P] (>= 0, nats) and test accuracies A [P], and who is worst and
    best; beside it the spread of their training losses [P], by which FairGFL defines fairness. A model that memorises
    its training examples is even in the latter at every client, however it serves them.

    "fairness/test_loss_variance": 1/P sum (F_i - mean F)^2.
    "fairness/test_loss_entropy": -sum s_i log s_i in nats with s_i = F_i / sum F; between 0 and log P, its value for
        equal losses (also for all zero).
    "fairness/accuracy_deviation": square root of 1/P sum (A_i - mean A)^2.
    "fairness/worst_accuracy", "fairness/best_accuracy".
    "fairness/undefined_clients": number of clients whose loss or accuracy is NaN (no nodes to judge by, or diverged).
        The numbers leave out clients where their own input is NaN; without any left they are NaN.
    "fairness/train_loss_variance", "fairness/train_loss_entropy": as above, of the training losses.

    Returns these and {"fairness/worst_client", "fairness/best_client"}: the first client of lowest and of highest
    accuracy, empty if none is defined.

    Raises:
        DataError: lengths differ, or a loss is negative.
    """
    loss, accuracy, trained = (np.asarray(given, np.float64) for given in (losses, accuracies, train_losses))
    if not loss.shape == accuracy.shape == trained.shape == (len(clients),):
        raise DataError(
            f"{len(clients)} clients, losses {loss.shape}, accuracies {accuracy.shape} and training losses "
            f"{trained.shape}; give one of each per client.",
            code="data.lengths",
        )
    for of_clients in (loss, trained):
        _check_losses(of_clients, clients)
    judged = np.flatnonzero(~np.isnan(accuracy))
    names: dict[str, str] = {}
    worst = best = np.nan
    if len(judged):
        low, high = judged[accuracy[judged].argmin()], judged[accuracy[judged].argmax()]
        worst, best = accuracy[low], accuracy[high]
        names = {"fairness/worst_client": clients[low], "fairness/best_client": clients[high]}
    tested, memorised = (of_clients[~np.isnan(of_clients)] for of_clients in (loss, trained))
    return {
        "fairness/test_loss_variance": variance(tested),
        "fairness/test_loss_entropy": entropy(tested),
        "fairness/accuracy_deviation": float(np.sqrt(variance(accuracy[judged]))),
        "fairness/worst_accuracy": float(worst),
        "fairness/best_accuracy": float(best),
        "fairness/undefined_clients": float((np.isnan(loss) | np.isnan(accuracy)).sum()),
        "fairness/train_loss_variance": variance(memorised),
        "fairness/train_loss_entropy": entropy(memorised),
    }, names


def _check_losses(losses: np.ndarray, clients: Sequence[str]) -> None:
    negative = np.flatnonzero(losses < 0)
    if len(negative):
        raise DataError(
            f"client {clients[negative[0]]!r} has the loss {losses[negative[0]]}; the entropy needs all losses >= 0.",
            code="data.loss",
        )


def variance(losses: np.ndarray) -> float:
    """Population variance of losses [P]; NaN if there are none or one is infinite."""
    return float(np.var(losses)) if len(losses) and np.isfinite(losses).all() else np.nan


def entropy(losses: np.ndarray) -> float:
    """Entropy in nats of losses [P] >= 0 as shares of their sum; NaN if there are none or one is infinite."""
    if not len(losses) or not np.isfinite(losses).all():
        return np.nan
    shares = losses / losses.max() if losses.max() > 0 else np.ones_like(losses)  # first scaled: sums cannot overflow
    return float(entr(shares / shares.sum()).sum())

"""How servers weigh clients by the fairness that they report."""

from typing import Literal, get_args

import torch
from torch import Tensor

from fedweave.errors import ConfigError

Prefer = Literal["fair", "as_printed", "script"]


def f2gnn_weights(balances: Tensor, gaps: Tensor, lam: float, tau: float, prefer: Prefer = "fair") -> Tensor:
    """γ [P] of F²GNN (eq. 4), float64, sums to 1: softmax((λ γ_E + γ_F) / τ) with γ_E = softmax(B).

    balances: float [P] group balance scores B. gaps: float [P] |ΔSP| + |ΔEO| of the clients' models. lam: λ.
    tau:      temperature τ > 0; at 4 all weights are nearly equal.
    prefer:   γ_F = exp(softmax(-gaps)) with "fair"; exp(softmax(gaps)) "as_printed", which favours unfair clients;
              softmax(1 / (gaps + 1e-5)) with "script".

    Raises:
        ConfigError: `prefer` is unknown, or tau is not above 0.
    """
    if prefer not in get_args(Prefer):
        raise ConfigError(f"prefer = {prefer!r} is not known; choose one of {', '.join(get_args(Prefer))}.")
    if not tau > 0:
        raise ConfigError(f"tau = {tau} must be above 0; below 0.1 the weights differ, at 4 they are nearly equal.")
    balances, gaps = balances.double(), gaps.double()
    if prefer == "script":
        fairness = torch.softmax(1 / (gaps + 1e-5), 0)
    else:
        fairness = torch.softmax(gaps if prefer == "as_printed" else -gaps, 0).exp()
    return torch.softmax((lam * torch.softmax(balances, 0) + fairness) / tau, 0)


def fairfed_weights(omega: Tensor, deviation: Tensor, beta: float) -> Tensor:
    """ω [P] of FairFed after a round (Ezzeldin et al. 2023, eq. 6), float64, sums to 1.

    ω_k <- ω_k - β (Δ_k - mean Δ), negative values set to 0, then normalised. The sum of the ω is positive: before
    negative values are set to 0 it is that of the last round.

    omega: float [P] of the last round. deviation: float [P] Δ, see `fairfed_deviation`. beta: β >= 0.
    """
    after = (omega.double() - beta * (deviation.double() - deviation.double().mean())).clamp(min=0)
    return after / after.sum()


def fairfed_deviation(gaps: Tensor, gap: Tensor, accuracies: Tensor, accuracy: Tensor) -> Tensor:
    """Δ [P] of FairFed (eq. 6), float64: |F_k - F| between the clients' signed gaps F [P] and the gap over all, or
    |Acc_k - Acc| where a client's gap is undefined (NaN), all for the global model that the clients received."""
    unfair = (gaps.double() - gap).abs()
    return torch.where(unfair.isnan(), (accuracies.double() - accuracy).abs(), unfair)

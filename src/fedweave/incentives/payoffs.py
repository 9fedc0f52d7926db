"""Division of a budget: FairGraphFL's payoffs and the schemes it is compared with. All numbers are float64."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedweave.errors import ConfigError, UserError
from fedweave.incentives.shapley import Value, leave_one_out, shapley

ROUNDING = 1e-5  # share of the summands that may remain in a sum of 0: gains come from float32 scores


class Payoffs(NamedTuple):
    """Pay of N agents.

    pay: float64 [N], summing to the budget; negative is a fine. compensation: float64 [N], the part μ_i of the pay for
    late contributions, on the same scale.
    """

    pay: Tensor
    compensation: Tensor


def payoffs(r: Tensor, before: Tensor, budget: float = 1.0) -> Payoffs:
    """FairGraphFL's payoffs of a round (Eqs. 5 to 7): `raw_payoffs`, scaled to sum to `budget`; zeros if their sum is
    not positive. Does not wait for a device.

    r:      values float64 [N] of this round t.
    before: mean float64 [N] over the rounds 1 to t - 1, without the start value r⁰; r itself in the first round.
    """
    raw = raw_payoffs(r, before)
    total = raw.pay.sum()
    pay = torch.where(total > 0, raw.pay / total * budget, 0.0)
    return Payoffs(pay, torch.where(total > 0, raw.compensation / total * budget, 0.0))


def raw_payoffs(r: Tensor, before: Tensor) -> Payoffs:
    """Pay before it is scaled to a budget (Eqs. 5 and 6). A value r_i < 0 is a fine of that amount. Any other agent is
    paid r_i + μ_i, with the compensation μ_i = max(r_i - before_i, 0)."""
    compensation = torch.where(r < 0, 0.0, (r - before).relu())
    return Payoffs(r + compensation, compensation)


def data_volume(sizes: Tensor) -> Value:
    """The value function Φ(S) = log(1 + Σ_{i in S} |D_i|) of data sizes [N]."""
    sizes = sizes.double()
    return lambda masks: torch.log1p(masks.double() @ sizes)


SCHEMES: dict[str, Callable[[Value, int, np.random.Generator | None], Tensor]] = {
    "equal": lambda value, players, rng: torch.ones(players, dtype=torch.float64, device="cpu"),
    "union": lambda value, players, rng: leave_one_out(value, players),
    "individual": lambda value, players, rng: value(torch.eye(players, dtype=torch.bool, device="cpu")).double(),
    "shapley": lambda value, players, rng: shapley(value, players, rng).values,
}


def shares(scheme: str, value: Value, players: int, rng: np.random.Generator | None = None) -> Tensor:
    """Shares of a budget, float64 [N], summing to 1.

    scheme: "equal", 1 / N each; or in proportion to "union", v(all) - v(all but i), "individual", v({i}), or
            "shapley", the Shapley value, which needs a generator for more than 12 players (`shapley.shapley`).
    value:  the value function, such as `data_volume`.
    """
    if scheme not in SCHEMES:
        raise ConfigError(f"no payoff scheme {scheme!r}; there are {', '.join(SCHEMES)}.", code="config.unknown-name")
    raw = SCHEMES[scheme](value, players, rng)
    if not divisible(raw):
        raise UserError(
            f"{scheme!r} gives {raw.tolist()}, which sum to {float(raw.sum())}; a budget needs a positive sum. Choose "
            "'equal', or measure more rounds.",
            code="user.no-positive-sum",
        )
    return raw / raw.sum()


def proportions(raw: Tensor) -> Tensor:
    """Shares of a budget in proportion to `raw` [N]; NaN if `raw` cannot divide a budget."""
    return raw / raw.sum() if divisible(raw) else torch.full_like(raw, torch.nan)


def limit_shares(shares: Tensor, sizes: Tensor, cap: float) -> Tensor:
    """Shares of a budget [N], each at most `cap` times the share by size, float64 [N] that sum to 1.

    The excess goes to the other members in proportion to their shares. If only members without a share are below their
    cap, it is divided among them by size.
    """
    if cap < 1:
        raise UserError(f"the cap is {cap:g}; it must be at least 1.", code="user.cap")
    shares, max_shares = shares.double(), cap * sizes.double() / sizes.double().sum()
    result, full = torch.minimum(shares, max_shares), shares >= max_shares
    excess = 1 - float(result.sum())
    while excess > 1e-12:  # a member at its cap stays there: at most N times
        weight = torch.where(full, 0.0, shares)
        if not bool(weight.any()):
            weight = torch.where(full, 0.0, max_shares)
        grown = result + excess * weight / weight.sum()
        full = full | (grown >= max_shares)
        result = torch.minimum(grown, max_shares)
        excess = 1 - float(result.sum())
    return result


def impartial_shares(gains: Tensor) -> Tensor:
    """Shares of a budget by members' measurements, float64 [N] that sum to 1: the impartial division of de
    Clippel, Moulin and Tideman 2008, "Impartial division of a dollar".

    Each of N members has 1 / N of the budget to divide among the others, in proportion to the gains above 0 that it
    measured of them, equally if there are none. So nothing that a member reports changes its own share, and k members
    together decide on k / N of the budget.

    gains: [N, N], row v has the gains by every member's update that member v measured; its own does not count.
    """
    count = len(gains)
    if count == 1:
        return torch.ones(1, dtype=torch.float64, device=gains.device)
    not_self = 1 - torch.eye(count, dtype=torch.float64, device=gains.device)
    positive = gains.double().relu() * not_self  # [N, N]
    total = positive.sum(1, keepdim=True)
    parts = torch.where(total > 0, positive / torch.where(total > 0, total, 1.0), not_self / (count - 1))
    return parts.mean(0)


def divisible(raw: Tensor) -> bool:
    """Whether a budget can be divided in proportion to `raw` [N]: its sum is positive beyond rounding errors."""
    return bool(raw.sum() > ROUNDING * raw.abs().sum())

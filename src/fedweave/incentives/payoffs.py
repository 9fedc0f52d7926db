"""How a budget is divided: FairGraphFL's payoffs and the schemes it is compared with. Everything in float64."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedweave.errors import ConfigError, UserError
from fedweave.incentives.shapley import Value, leave_one_out, shapley

ROUNDING = 1e-5  # share of what is summed that may be left of a sum of 0: gains are of float32 scores


class Payoffs(NamedTuple):
    """pay: float64 [N], summing to the budget; negative is a fine. compensation: float64 [N], the part μ_i of it that
    is for late contributions, on the same scale."""

    pay: Tensor
    compensation: Tensor


def unscaled(r: Tensor, before: Tensor) -> Payoffs:
    """Pay before it is scaled to a budget (Eqs. 5 and 6): r_i < 0, or r_i + μ_i with μ_i = max(r_i - before_i, 0), and
    the μ_i in it; r, before: float64 [N]."""
    late = torch.where(r < 0, 0.0, (r - before).relu())
    return Payoffs(r + late, late)


def payoffs(r: Tensor, before: Tensor | None = None, budget: float = 1.0) -> Payoffs:
    """FairGraphFL's payoffs of a round (Eqs. 5 to 7).

    A value r_i < 0 is a fine of that much; another agent is paid r_i + μ_i, with μ_i = max(r_i - mean of its values in
    the rounds before, 0). All are scaled to sum to `budget`.

    r:      values [N] of this round t.
    before: mean [N] over the rounds 1 to t - 1 (without the start value r⁰); None in the first round, where μ = 0.

    Raises:
        UserError: the sum before scaling is not positive (it is at least Σ r_i, which `values.updated` makes 1), or the
            budget is negative.
    """
    if not 0 <= budget < float("inf"):
        raise UserError(f"the budget is {budget}; it must be at least 0.", code="user.budget")
    r = r.double()
    before = r if before is None else before.double()
    total = unscaled(r, before).pay.sum()
    if not total > 0:
        raise UserError(
            f"values {r.tolist()} sum to {float(total)}; a budget can be divided by a positive sum only.",
            code="user.no-positive-sum",
        )
    return paid(r, before, budget)


def paid(r: Tensor, before: Tensor, budget: float) -> Payoffs:
    """`payoffs` of float64 [N], zeros where the sum before scaling is not positive; nobody waits for a device."""
    found = unscaled(r, before)
    total = found.pay.sum()
    return Payoffs(*(torch.where(total > 0, own / total * budget, 0.0) for own in found))


def data_volume(sizes: Tensor) -> Value:
    """The value function Φ(S) = log(1 + Σ_{i in S} |D_i|) of data sizes [N]."""
    sizes = sizes.double()
    return lambda masks: torch.log1p(masks.double() @ sizes)


def _equal(value: Value, players: int, rng: np.random.Generator | None) -> Tensor:
    return torch.ones(players, dtype=torch.float64, device="cpu")


def _union(value: Value, players: int, rng: np.random.Generator | None) -> Tensor:
    return leave_one_out(value, players)


def _individual(value: Value, players: int, rng: np.random.Generator | None) -> Tensor:
    return value(torch.eye(players, dtype=torch.bool, device="cpu")).double()


def _shapley(value: Value, players: int, rng: np.random.Generator | None) -> Tensor:
    return shapley(value, players, rng).values


SCHEMES: dict[str, Callable[[Value, int, np.random.Generator | None], Tensor]] = {
    "equal": _equal,
    "union": _union,
    "individual": _individual,
    "shapley": _shapley,
}


def shares(scheme: str, value: Value, players: int, rng: np.random.Generator | None = None) -> Tensor:
    """Shares of a budget, float64 [N], summing to 1.

    scheme: "equal", 1 / N each; or in proportion to "union", v(everyone) - v(everyone but i), "individual", v({i}), or
            "shapley", the Shapley value, which takes a generator for more than 12 players (`shapley.shapley`).
    value:  the value function, such as `data_volume`.

    Raises:
        ConfigError: no such scheme.
        UserError: what is to be proportional to does not sum to more than 0; what the scheme's function raises.
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


def divided(raw: Tensor) -> Tensor:
    """Shares of a budget in proportion to `raw` [N]; NaN where they cannot divide one."""
    return raw / raw.sum() if divisible(raw) else torch.full_like(raw, torch.nan)


def divisible(raw: Tensor) -> bool:
    """Whether a budget can be divided in proportion to `raw` [N]: its sum is positive beyond rounding errors."""
    return bool(raw.sum() > ROUNDING * raw.abs().sum())

"""Shapley values of any value function, exact or estimated from permutations, and leave-one-out. All numbers are
float64.

A value function takes coalitions, bool [c, N] on the host with a row for each, and returns their values, float64 [c],
on any device. The functions here pass all coalitions in as few calls as possible, so that they can be evaluated as a
batch.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedweave.errors import UserError

MAX_EXACT = 12  # players, 4,096 coalitions
Value = Callable[[Tensor], Tensor]


class Estimate(NamedTuple):
    """values: float64 [N]. error: float64 [N], their standard error, 0 where exact. coalitions: number of coalitions
    that were evaluated."""

    values: Tensor
    error: Tensor
    coalitions: int


def shapley(value: Value, players: int, rng: np.random.Generator | None = None, permutations: int = 1000) -> Estimate:
    """Exact values for at most 12 players, an estimate from random permutations above."""
    if players <= MAX_EXACT:
        return exact(value, players)
    if rng is None:
        raise UserError(
            f"exact Shapley values are for at most {MAX_EXACT} players, here are {players}; give a generator (rng) "
            "for an estimate from random permutations.",
            code="user.exact",
        )
    return permutation_shapley(value, players, rng, permutations)


def exact(value: Value, players: int) -> Estimate:
    """Eq. 3 of FairGraphFL (Shapley 1953): phi_i = sum over S without i of |S|! (N - |S| - 1)! / N! (v(S + i) - v(S)).

    `value` is called once, with all 2^N coalitions; player i is in row c where bit i of c is set.
    """
    if not 1 <= players <= MAX_EXACT:
        raise UserError(
            f"exact Shapley values of {players} players would take 2^{players} coalitions; `exact` takes 1 to "
            f"{MAX_EXACT} players. Use `permutation_shapley` for more.",
            code="user.exact",
        )
    all_coalitions = coalitions(players)
    worth = _values(value, all_coalitions)  # [2^N]
    share = [1 / (players * math.comb(players - 1, size)) for size in range(players)]
    weight = torch.tensor(share, dtype=torch.float64, device="cpu")[coalitions(players - 1).sum(1)]
    cube = worth.reshape([2] * players)  # dimension j is player N - 1 - j
    by_player = []
    for i in range(players):
        gain = (cube.select(-1 - i, 1) - cube.select(-1 - i, 0)).reshape(-1)  # of joining each coalition without i
        by_player.append((weight * gain).sum())
    values = torch.stack(by_player)
    return Estimate(values, torch.zeros_like(values), len(all_coalitions))


def coalitions(players: int) -> Tensor:
    """bool [2^N, N]: all coalitions, player i in row c where bit i of c is set."""
    rows, columns = (torch.arange(count, device="cpu") for count in (2**players, players))
    return (rows[:, None] >> columns & 1).bool()


def permutation_shapley(
    value: Value,
    players: int,
    rng: np.random.Generator,
    permutations: int = 1000,
    antithetic: bool = True,
    batch: int = 4096,
) -> Estimate:
    """The mean gain that each player brings over random orders of joining (Castro et al. 2009), with standard error.

    permutations: number of orders, M. The distinct coalitions among their (N + 1) M prefixes are evaluated, at most
                  `batch` at a time.
    antithetic:   draw M / 2 orders and add each reversed; the error is then of the mean over pairs.

    Efficiency holds exactly for each order and so for the estimate.
    """
    min_permutations = 4 if antithetic else 2
    if players < 1 or permutations < min_permutations or (antithetic and permutations % 2):
        raise UserError(
            f"{permutations} permutations of {players} players; a standard error takes at least 1 player and "
            f"{min_permutations} permutations{', an even number' if antithetic else ''}."
        )
    draws = permutations // 2 if antithetic else permutations
    orders = rng.permuted(np.tile(np.arange(players), (draws, 1)), axis=1)
    if antithetic:
        orders = np.concatenate([orders, orders[:, ::-1]])
    place = np.empty_like(orders)
    np.put_along_axis(place, orders, np.arange(players)[None], axis=1)
    prefixes = (place[:, None, :] < np.arange(players + 1)[:, None]).reshape(-1, players)
    _, first, which = np.unique(np.packbits(prefixes, axis=1), axis=0, return_index=True, return_inverse=True)
    distinct = torch.from_numpy(prefixes[first])
    worth = torch.cat([_values(value, part) for part in distinct.split(batch)]).numpy()
    gains = np.diff(worth[which.reshape(len(orders), players + 1)], axis=1)
    by_player = torch.from_numpy(np.take_along_axis(gains, place, axis=1))
    if antithetic:
        by_player = by_player.reshape(2, draws, players).mean(0)
    return Estimate(by_player.mean(0), by_player.std(0) / math.sqrt(draws), len(distinct))


def leave_one_out(value: Value, players: int) -> Tensor:
    """float64 [N]: v(everyone) - v(everyone but i), from one call of `value` with N + 1 coalitions."""
    if players < 1:
        raise UserError(f"{players} players; leave-one-out takes at least 1.")
    without = ~torch.eye(players, dtype=torch.bool, device="cpu")
    worth = _values(value, torch.cat([without.new_ones(1, players), without]))
    return worth[0] - worth[1:]


def _values(value: Value, masks: Tensor) -> Tensor:
    """The values of the coalitions, float64 on the CPU, checked."""
    worth = value(masks).detach().to("cpu", torch.float64)
    if worth.shape != (len(masks),):
        raise UserError(
            f"the value function returned {tuple(worth.shape)} for {len(masks)} coalitions; one number each."
        )
    wrong = torch.nonzero(~worth.isfinite())
    if len(wrong):
        row = int(wrong[0])
        members = masks[row].nonzero().flatten().tolist()
        raise UserError(f"the value of coalition {members} is {float(worth[row])}; it must be a finite number.")
    return worth

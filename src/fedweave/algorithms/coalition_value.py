"""What every client brought to a round, by trying models: what the global model would be if only some had taken part,
on all clients' test examples, with hits counted in a secure sum (coalitions' gains as in `incentives.shapley`).

Unlike a cosine, such values know how long updates are and whether the model gets better. The server has single updates,
so nothing may hide these; it learns of the tries their sums alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedweave.algorithms.parts import Needs, Part, Round
from fedweave.core.federation import Federation
from fedweave.core.tree import Tree
from fedweave.incentives.shapley import MOST_EXACT, exact, leave_one_out, mixing, sampled

_NAMES = ("shapley", "shapley_error", "leave_one_out")


@dataclass(frozen=True)
class CoalitionValue(Part):
    """Shapley and leave-one-out values of each client's part in a round: by how much the share of all clients' test
    examples that the model gets right is larger with its update. Coalitions' hits are counted in a secure sum.

    every:        rounds from one valuation to the next.
    exact:        up to so many clients all 2^N coalitions are tried; with more, those that orders of joining ask for.
    permutations: orders that are drawn then, an even number.
    """

    every: int = 1
    exact: int = 8
    permutations: int = 32
    needs = Needs(one_model=True, everyone=True)

    def __post_init__(self) -> None:
        if self.every < 1 or not 1 <= self.exact <= MOST_EXACT:
            raise ValueError(f"every is {self.every} and exact {self.exact}; at least 1, and from 1 to {MOST_EXACT}")
        if self.permutations < 4 or self.permutations % 2:
            raise ValueError(f"permutations is {self.permutations}; an even number from 4 on")

    def init(self, fed: Federation, w: Tree) -> Tree:
        """Nobody was valued yet."""
        unknown = torch.full((len(fed.clients),), torch.nan, dtype=torch.float64, device=fed.device)
        return {"round": 0, "key": int(fed.key("coalitions")) & (2**63 - 1)} | dict.fromkeys(_NAMES, unknown)

    def due(self, round: int) -> bool:
        """Whether a round, counted from 1, ends with a valuation."""
        return round % self.every == 0

    def queries(self, clients: int) -> int:
        """How many models a valuation tries, at most: distinct coalitions among prefixes of orders, and all but one."""
        return 2**clients if clients <= self.exact else self.permutations * (clients - 1) + clients + 2

    def tried(self, state: Tree, round: Round, share: Callable[[Tree], Tensor]) -> Tree:
        """The values of the round; NaN of one that is not `due`."""
        number, unknown = state["round"] + 1, torch.full_like(state["shapley"], torch.nan)
        measures = dict.fromkeys(_NAMES, unknown)
        if self.due(number):
            value, players = _once(round, share), len(round.at)
            if players <= self.exact:
                estimate = exact(value, players)
            else:
                estimate = sampled(value, players, np.random.default_rng([state["key"], number]), self.permutations)
            values = (estimate.values, estimate.error, leave_one_out(value, players))
            measures = {
                name: unknown.index_copy(0, round.at, column.to(unknown))
                for name, column in zip(_NAMES, values, strict=True)
            }
        return {"round": number, "key": state["key"]} | measures

    def measures(self, state: Tree) -> dict[str, Tensor]:
        """{"shapley", "shapley_error": its standard error, 0 where exact, "leave_one_out"}."""
        return {name: state[name] for name in _NAMES}


def _once(round: Round, share: Callable[[Tree], Tensor]) -> Callable[[Tensor], Tensor]:
    """The value function that tries no coalition twice."""
    mixed, known = mixing(round), dict[tuple[bool, ...], float]()

    def value(masks: Tensor) -> Tensor:
        rows = [tuple(row) for row in masks.tolist()]
        if new := [row for row in dict.fromkeys(rows) if row not in known]:
            worth = share(mixed(torch.tensor(new, device=round.at.device)))
            known.update(zip(new, worth.tolist(), strict=True))
        return torch.tensor([known[row] for row in rows], dtype=torch.float64, device="cpu")

    return value

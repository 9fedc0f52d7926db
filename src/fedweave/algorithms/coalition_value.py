"""The value of every client in a round, by trying models: clients evaluate the global models of coalitions on their
test examples, and secure aggregation adds up the hits (gains of coalitions as in `incentives.shapley`).

Unlike a cosine, such values depend on the length of updates and on the model's accuracy. The server reads single
updates, so no part may hide them; of the evaluations it learns only sums.

A client may report false counts. So all updates of the round together decide the order of coalitions, and no client
knows it before it has sent its own update. A round with impossible counts has no values (`FAULTS`). A client that
recognizes its own update in the models can still claim all of its examples for coalitions with it, and none for the
others: `most_gain` bounds its gain (docs/contributions.md).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedweave.algorithms.parts import Needs, Part, Round
from fedweave.core.bounds import Count, Fraction
from fedweave.core.federation import Federation
from fedweave.core.tree import Tree, add, map_leaves
from fedweave.incentives.shapley import (
    COPIED,
    FAULT,
    FAULTS,
    JOINT,
    MOST_EXACT,
    WEIGHT,
    copies,
    exact,
    leave_one_out,
    mixing,
    sampled,
)

_NAMES = ("shapley", "shapley_error", "leave_one_out")


@dataclass(frozen=True)
class CoalitionValue(Part):
    """Shapley and leave-one-out values of each client in a round: the gain in the global model's accuracy on all
    clients' test examples by its update. Secure aggregation adds up the coalitions' hits.

    every:        rounds from one valuation to the next.
    exact:        largest number of clients with which all 2^N coalitions are tried; with more clients, only prefixes of
                  sampled orders.
    permutations: number of sampled orders, even.
    most_gain:    largest distance of a coalition's accuracy from the accuracies before and after the round; larger
                  distances are cut to it. It bounds the gain of a client with false counts; 1 for no bound.
    """

    every: Count = 1
    exact: Annotated[int, Field(ge=1, le=MOST_EXACT)] = 8
    permutations: Annotated[int, Field(ge=4, multiple_of=2)] = 32
    most_gain: Fraction = 1.0
    needs = Needs(one_model=True, all_clients=True, classes=True)

    def init(self, fed: Federation, w: Tree) -> Tree:
        """The state without any values."""
        nothing = torch.zeros(len(fed.clients), dtype=torch.float64, device=fed.device)
        state = {"round": 0, "key": int(fed.key("coalitions")) & (2**63 - 1), "pooled": fed.test is None}
        state |= {"tried": 0, "right": -1, "examples": -1, "fault": 0}
        return state | dict.fromkeys((*_NAMES, WEIGHT, COPIED), nothing)

    def due(self, round: int) -> bool:
        """Whether a round, counted from 1, ends with a valuation."""
        return round % self.every == 0

    def queries(self, clients: int) -> int:
        """The largest number of models in a valuation: distinct coalitions among prefixes of orders, and all but
        one."""
        return 2**clients if clients <= self.exact else self.permutations * (clients - 1) + clients + 2

    def tried(self, state: Tree, round: Round, try_out: Callable[[Tree], tuple[Tensor, Tensor]]) -> Tree:
        """The values of a round that is `due`, and in "fault" why they are invalid. "tried" is the last such round;
        "right" is the number of "examples" that the model gets right after it."""
        number, nothing = state["round"] + 1, torch.zeros_like(state["shapley"])
        if not self.due(number):
            return state | {"round": number}
        count, players = _Coalitions(round, try_out, _order_rng(round, number)), len(round.at)

        def value(masks: Tensor) -> Tensor:
            shares = count(masks)
            ends = count(torch.tensor([[False] * players, [True] * players], device=masks.device))
            return shares.clamp(min=float(ends.min()) - self.most_gain, max=float(ends.max()) + self.most_gain)

        if players <= self.exact:
            estimate = exact(value, players)
        else:
            estimate = sampled(value, players, np.random.default_rng([state["key"], number]), self.permutations)
        values = (estimate.values, estimate.error, leave_one_out(value, players))
        examples = count.examples[0] if state["examples"] < 0 else state["examples"]
        before = state["right"] if state["tried"] == number - 1 else -1
        copied = nothing - 1
        for one, other in copies(round.updates):
            copied[round.at[other]] = float(round.at[one])
        now = {COPIED: copied, "round": number, "tried": number, "right": count.right(True), "examples": examples}
        return (
            state
            | now
            | {"fault": count.fault(examples, before)}
            | {
                name: nothing.index_copy(0, round.at, column.to(nothing))
                for name, column in zip((*_NAMES, WEIGHT), (*values, round.weights), strict=True)
            }
        )

    def warns(self, state: Tree) -> dict[str, Tensor]:
        """The reason why the round has no values, if its counts are impossible."""
        now = state["tried"] == state["round"]
        sentence = (
            "coalition_value: {}; no member gets a value for this round. A member counts wrong or reports false counts"
        )
        return {
            sentence.format(fault): torch.tensor(now and state["fault"] == at, device="cpu")
            for at, fault in enumerate(FAULTS)
            if fault
        }

    def measures(self, state: Tree) -> dict[str, Tensor]:
        """{"shapley", "shapley_error": its standard error, 0 if exact, "leave_one_out", "coalition_weight": each
        update's weight in the mean}, NaN if the round has no values. "coalition_fault" if its counts are impossible;
        else "coalition_joint", the accuracy of the model after the round, if evaluations use the same examples.
        "coalition_copied": for a client whose update is nearly another client's, the place of that client."""
        valued, like = state["tried"] == state["round"] > 0, state["shapley"]
        holds = valued and not state["fault"]
        columns = {name: state[name] if holds else torch.full_like(like, torch.nan) for name in (*_NAMES, WEIGHT)}
        if valued and bool((state[COPIED] >= 0).any()):
            columns[COPIED] = torch.where(state[COPIED] >= 0, state[COPIED], torch.nan)
        if valued and not holds:
            columns[FAULT] = torch.full_like(like, float(state["fault"]))
        elif valued and state["pooled"]:
            columns[JOINT] = torch.full_like(like, state["right"] / state["examples"])
        return columns


def _order_rng(round: Round, number: int) -> np.random.Generator:
    """A generator seeded by all updates, so that no client knows it before it has sent its update."""
    digest = sha256(np.ascontiguousarray(round.updates.double().cpu().numpy()).tobytes()).digest()
    return np.random.default_rng([number, *digest])


class _Coalitions:
    """The accuracies of the models of a round's coalitions on all test examples; each is tried once, in an order drawn
    by `rng`.

    examples: the number of test examples, once for each message.
    """

    def __init__(
        self, round: Round, try_out: Callable[[Tree], tuple[Tensor, Tensor]], rng: np.random.Generator
    ) -> None:
        self._mixed, self._round, self._try_out, self._rng = mixing(round), round, try_out, rng
        self._hits, self.examples = dict[tuple[bool, ...], int](), list[int]()

    def __call__(self, masks: Tensor) -> Tensor:
        """Shares, float64 [c], of coalitions bool [c, P]."""
        rows = [tuple(row) for row in masks.tolist()]
        if new := [row for row in dict.fromkeys(rows) if row not in self._hits]:
            masks_to_try = [new[at] for at in self._rng.permutation(len(new))]
            right, examples = self._try_out(self._models(masks_to_try))
            self._hits.update(zip(masks_to_try, right.tolist(), strict=True))
            self.examples += examples.tolist()
        counts = torch.tensor([self._hits[row] for row in rows], dtype=torch.float64, device="cpu")
        return counts / max(self.examples[0], 1)

    def _models(self, coalitions: Sequence[tuple[bool, ...]]) -> Tree:
        """Leaves [c, …]; the coalition of all clients has exactly the model after the round."""
        many = self._mixed(torch.tensor(coalitions, device=self._round.at.device))
        if (everyone := (True,) * len(self._round.at)) not in coalitions:
            return many
        at = torch.tensor([coalitions.index(everyone)], device=self._round.at.device)
        after = add(self._round.w, self._round.delta)
        result: Tree = map_leaves(lambda leaf, new: leaf.index_copy(0, at, new[None].to(leaf.dtype)), many, after)
        return result

    def right(self, everyone: bool) -> int:
        """The number of examples that the model after the round gets right, or the model before it."""
        return self._hits[(everyone,) * len(self._round.at)]

    def fault(self, examples: int, before: int) -> int:
        """The index in `FAULTS` of an impossible count, 0 if there is none; examples: their number the first time;
        before: the number that the round's first model got right after the round before, -1 if unknown."""
        if examples < 1:
            return 1
        if any(count != examples for count in self.examples):
            return 3
        if not all(0 <= hits <= examples for hits in self._hits.values()):
            return 2
        return 4 if before not in (-1, self.right(False)) else 0

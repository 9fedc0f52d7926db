"""The value of every client in a round, by trying models: clients evaluate models on their test examples, and secure
aggregation adds up the hits. `CoalitionValue` tries the global models of coalitions (gains as in `incentives.shapley`),
`ValidatedValue` the model of each update by itself.

Unlike a cosine, such values depend on the length of updates and on the model's accuracy. The server reads single
updates, so no part may hide them; of the evaluations it learns only sums.

A client may report false counts. So all updates of the round together decide the order of coalitions, and no client
knows it before it has sent its own update. A round with impossible counts has no values (`FAULTS`). A client that
recognizes its own update in the models can still claim all of its examples for coalitions with it, and none for the
others: `most_gain` bounds its gain (docs/contributions.md).
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.func import vmap

from fedweave.algorithms.parts import Needs, Part, Round
from fedweave.algorithms.parts.part import TryOut
from fedweave.core import model as models
from fedweave.core.bounds import Count, Fraction
from fedweave.core.federation import Federation
from fedweave.core.tree import Tree, add, map_leaves, ravel
from fedweave.errors import ConfigError
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


@dataclass(frozen=True)
class TriedValue(Part):
    """Values of a round's clients from the numbers of examples that models with their updates get right.

    A subclass has its name as a `part`, and `names` what `values_of` returns.

    every: rounds from one valuation to the next.
    """

    every: Count = 1
    part: ClassVar[str] = ""
    names: ClassVar[tuple[str, ...]] = ()
    needs = Needs(data=("classes",), models=("global",), all_clients=True)

    @abstractmethod
    def queries(self, clients: int) -> int:
        """The largest number of models in a valuation."""

    @abstractmethod
    def values_of(self, round: Round, state: Tree, count: "_Coalitions") -> tuple[Tensor, ...]:
        """Float64 [P] for each of `names`, of the round's clients; state: the part's, before the round."""

    def init(self, fed: Federation, w: Tree) -> Tree:
        """The state without any values.

        "round": rounds so far. "key": seed of the sampled orders. "pooled": whether the evaluations of a run count the
        same examples. "last": the last global update. Of the last valuation: "tried", its round; "right" and
        "examples", what the model after it gets right, and of how many; "fault", the place in `FAULTS`; and [N], a
        number for each client, its values by `names`, weight in the mean, and `COPIED`.
        """
        nothing = torch.zeros(len(fed.clients), dtype=torch.float64, device=fed.device)
        state: Tree = {"round": 0, "key": int(fed.key("coalitions")) & (2**63 - 1), "pooled": fed.test is None}
        state |= {"tried": 0, "right": -1, "examples": -1, "fault": 0, "last": torch.zeros_like(ravel(w))}
        return state | dict.fromkeys((*self.names, WEIGHT, COPIED), nothing)

    def due(self, round: int) -> bool:
        """Whether a round, counted from 1, ends with a valuation."""
        return round % self.every == 0

    def tried(self, state: Tree, round: Round, try_out: TryOut) -> Tree:
        """The values of a round that is `due`, and in "fault" why they are invalid. "tried" is the last such round;
        "right" is the number of "examples" that the model gets right after it."""
        number, nothing = state["round"] + 1, torch.zeros_like(state[WEIGHT])
        after = state | {"last": ravel(round.delta), "round": number}
        if not self.due(number):
            return after
        count = _Coalitions(self.round_to_try(round), self.counter(round, try_out), _order_rng(round, number))
        values = self.values_of(round, state, count)
        examples = count.examples[0] if state["examples"] < 0 else state["examples"]
        before = state["right"] if state["tried"] == number - 1 else -1
        copied = nothing - 1  # -1: copies nothing
        for one, other in copies(round.updates, state["last"]):
            if other < 0:
                copied[round.at[one]] = len(copied)
            else:
                copied[round.at[other]] = float(round.at[one])
        columns = {
            name: nothing.index_copy(0, round.at, column.to(nothing))
            for name, column in zip((*self.names, WEIGHT), (*values, round.weights), strict=True)
        }
        counts = {"tried": number, "right": count.right(True), "examples": examples}
        return after | counts | columns | {COPIED: copied, "fault": count.fault(examples, before)}

    def round_to_try(self, round: Round) -> Round:
        """The round whose updates the tried models have."""
        return round

    def counter(self, round: Round, try_out: TryOut) -> TryOut:
        """Who counts the examples that models get right: all clients."""
        return try_out

    def warns(self, state: Tree) -> dict[str, Tensor]:
        """The reason why the round has no values, if its counts are impossible."""
        now = state["tried"] == state["round"]
        sentence = (
            self.part + ": {}; no member gets a value for this round. A member counts wrong or reports false counts"
        )
        return {
            sentence.format(fault): torch.tensor(now and state["fault"] == at, device="cpu")
            for at, fault in enumerate(FAULTS)
            if fault
        }

    def measures(self, state: Tree) -> dict[str, Tensor]:
        """The values by name, and "coalition_weight", each update's weight in the mean; NaN if the round has no values.
        "coalition_fault" if its counts are impossible; else "coalition_joint", the accuracy of the model after the
        round, if evaluations use the same examples. "coalition_copied": for a client whose update is nearly another
        client's, the place of that client; the number of clients if it is nearly the last global update."""
        valued, like = state["tried"] == state["round"] > 0, state[WEIGHT]
        holds = valued and not state["fault"]
        columns = {name: state[name] if holds else torch.full_like(like, torch.nan) for name in (*self.names, WEIGHT)}
        if valued and bool((state[COPIED] >= 0).any()):
            columns[COPIED] = torch.where(state[COPIED] >= 0, state[COPIED], torch.nan)
        if valued and not holds:
            columns[FAULT] = torch.full_like(like, float(state["fault"]))
        elif valued and state["pooled"]:
            columns[JOINT] = torch.full_like(like, state["right"] / state["examples"])
        return columns


@dataclass(frozen=True)
class CoalitionValue(TriedValue):
    """Shapley and leave-one-out values of each client in a round: the gain in the global model's accuracy on all
    clients' test examples by its update. Secure aggregation adds up the coalitions' hits.

    every:        rounds from one valuation to the next.
    exact:        largest number of clients with which all 2^N coalitions are tried; with more clients, only prefixes of
                  sampled orders.
    permutations: number of sampled orders, even.
    most_gain:    largest distance of a coalition's accuracy from the accuracies before and after the round; larger
                  distances are cut to it. It bounds the gain of a client with false counts; 1 for no bound.
    """

    exact: Annotated[int, Field(ge=1, le=MOST_EXACT)] = 8
    permutations: Annotated[int, Field(ge=4, multiple_of=2)] = 32
    most_gain: Fraction = 1.0
    part: ClassVar = "coalition_value"
    names: ClassVar = ("shapley", "shapley_error", "leave_one_out")

    def queries(self, clients: int) -> int:
        """Distinct coalitions among prefixes of orders, and all but one."""
        return 2**clients if clients <= self.exact else self.permutations * (clients - 1) + clients + 2

    def values_of(self, round: Round, state: Tree, count: "_Coalitions") -> tuple[Tensor, ...]:
        """Shapley values, their standard errors (0 if exact), leave-one-out."""
        players = len(round.at)

        def value(masks: Tensor) -> Tensor:
            return _cut(count, masks, players, self.most_gain)

        if players <= self.exact:
            estimate = exact(value, players)
        else:
            estimate = sampled(
                value, players, np.random.default_rng([state["key"], state["round"] + 1]), self.permutations
            )
        return estimate.values, estimate.error, leave_one_out(value, players)


@dataclass(frozen=True)
class ValidatedValue(TriedValue):
    """The effect of each update on validation examples: the accuracy of the round's model plus this update by itself,
    scaled to the median length of the round's updates, minus the accuracy before. An update that is nearly another
    client's, or nearly the last global update (`incentives.shapley.COPY`), has value 0, as has the copied one.

    A round tries N + 2 models, where `CoalitionValue` tries 2^N. The length of an update has no effect on its value in
    the round. It needs a part that limits lengths, such as `norm_bound`: a long update would move the model, and with
    it the values of later rounds.

    every:     rounds from one valuation to the next.
    on:        whose examples count: all "members'" test examples, which secure aggregation adds up, or the validation
               examples of the "server".
    most_gain: largest distance of a tried model's accuracy from the accuracies before and after the round; larger
               distances are cut to it. It bounds the gain of a client with false counts; 1 for no bound.
    """

    on: Literal["members", "server"] = "members"
    most_gain: Fraction = 1.0
    part: ClassVar = "validated_value"
    names: ClassVar = ("validated",)
    needs = replace(TriedValue.needs, decided=("limit",))

    def init(self, fed: Federation, w: Tree) -> Tree:
        """The state without any values.

        Raises:
            ConfigError: on = "server", and the server holds no validation examples.
        """
        if self.on == "server" and "validation" not in fed.held:
            raise ConfigError(
                'validated_value.on = "server": the server holds no validation examples. Set partition.server_val (of '
                'the partition graphs_iid), or on = "members".',
                code="config.server-val",
            )
        state = super().init(fed, w)
        return state | {"pooled": state["pooled"] and self.on == "members"}

    def queries(self, clients: int) -> int:
        """Each client's, and the models before and after the round; none if the server counts."""
        return clients + 2 if self.on == "members" else 0

    def values_of(self, round: Round, state: Tree, count: "_Coalitions") -> tuple[Tensor, ...]:
        """Gains in accuracy, 0 for copies and what they copy."""
        players = len(round.at)
        single = torch.eye(players, dtype=torch.bool, device="cpu")
        ends = torch.tensor([[False] * players, [True] * players], device="cpu")
        count(torch.cat([single, ends]))  # in one message
        gains = _cut(count, single, players, self.most_gain) - count(ends[:1])
        alike = {at for pair in copies(round.updates, state["last"]) for at in pair if at >= 0}
        gains[sorted(alike)] = 0.0
        return (gains,)

    def round_to_try(self, round: Round) -> Round:
        """The round with all updates of one length and equal weights, so that a coalition of one client is its
        update."""
        norms = round.updates.norm(dim=1)
        moved = norms[norms > 0]
        length = moved.median() if len(moved) else norms.new_zeros(())
        factors = length / norms.clamp(min=1e-30) * (1.0 if round.factors is None else round.factors)
        return replace(round, factors=factors, weights=torch.full_like(norms, 1 / len(norms)))

    def counter(self, round: Round, try_out: TryOut) -> TryOut:
        """All clients, or the server for its own examples."""
        if self.on == "members":
            return try_out
        graph = round.held["validation"]

        def right(many: Tree) -> tuple[Tensor, Tensor]:
            def hits(w: Tree) -> Tensor:
                result: Tensor = ((models.infer(round.model, w, graph).argmax(-1) == graph.y) & (graph.y >= 0)).sum()
                return result

            return vmap(hits, chunk_size=32)(many), (graph.y >= 0).sum()[None]

        return right


def _cut(count: "_Coalitions", masks: Tensor, players: int, most_gain: float) -> Tensor:
    """The accuracies of coalitions, at most `most_gain` outside the accuracies before and after the round."""
    shares = count(masks)
    ends = count(torch.tensor([[False] * players, [True] * players], device=masks.device))
    return shares.clamp(min=float(ends.min()) - most_gain, max=float(ends.max()) + most_gain)


def _order_rng(round: Round, number: int) -> np.random.Generator:
    """A generator seeded by all updates, so that no client knows it before it has sent its update."""
    digest = sha256(np.ascontiguousarray(round.updates.double().cpu().numpy()).tobytes()).digest()
    return np.random.default_rng([number, *digest])


class _Coalitions:
    """The accuracies of the models of a round's coalitions on all test examples; each is tried once, in an order drawn
    by `rng`.

    examples: the number of test examples, once for each message.
    """

    def __init__(self, round: Round, try_out: TryOut, rng: np.random.Generator) -> None:
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

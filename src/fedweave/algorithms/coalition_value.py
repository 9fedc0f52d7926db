"""The value of every client in a round, by trying models: clients measure models on their test examples, by the metric
that selects in the run. `CoalitionValue` tries the global models of coalitions (gains as in `incentives.coalitions`),
`ValidatedValue` the model of each single update.

Unlike a cosine, such values depend on the length of updates and on how good the model is. The server reads single
updates, so no part may hide them.

A client may report false counts. So the server stores on whose examples each value was measured, and pay divides by
these values in such a way that nothing that a client reports changes its own share
(`incentives.payoffs.impartial_shares`).
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedweave.algorithms.parts import Needs, Part, Round
from fedweave.algorithms.parts.part import Trial, TryOut
from fedweave.algorithms.trials import tried_pairs
from fedweave.core.bounds import Count
from fedweave.core.federation import Federation
from fedweave.core.tree import Tree, add, map_leaves, ravel
from fedweave.errors import ConfigError
from fedweave.incentives.coalitions import COPIED, WEIGHT, coalition_models, copies, measured_by
from fedweave.incentives.rules import SIZE
from fedweave.incentives.shapley import MAX_EXACT, Value, exact, leave_one_out, permutation_shapley
from fedweave.metrics import classification


@dataclass(frozen=True)
class TriedValue(Part):
    """Values of a round's clients from what models with their updates reach on test examples.

    A subclass has in `names` what `values_of` returns; pay follows from the first.

    every: rounds from one valuation to the next.
    """

    every: Count = 1
    names: ClassVar[tuple[str, ...]] = ()
    needs = Needs(data=("classes",), models=("global",), all_clients=True)

    @abstractmethod
    def queries(self, clients: int) -> int:
        """The largest number of models in a valuation."""

    @abstractmethod
    def values_of(self, round: Round, state: Tree, value: Value) -> tuple[Tensor, ...]:
        """Float64 [P] for each of `names`, of the round's clients, on the examples of one client or of all; value: what
        coalitions reach there. state: the part's, before the round."""

    @abstractmethod
    def coalitions(self, round: Round, state: Tree) -> Tensor:
        """The coalitions bool [c, P] whose models are tried first, in one go."""

    @property
    def by_clients(self) -> bool:
        """Whether clients measure, and not the server."""
        return True

    def init(self, fed: Federation, w: Tree) -> Tree:
        """The state without any values.

        "round": rounds so far. "key": seed of the sampled orders. "last": the last global update. Of the last
        valuation: "tried", its round; and [N], a number for each client, its values by `names`, weight in the mean, and
        `COPIED`; and "by", [N, N], the first of the values on the examples of each client, a row each.
        """
        count = len(fed.clients)
        zeros = torch.zeros(count, dtype=torch.float64, device=fed.device)
        state: Tree = {"round": 0, "key": int(fed.key("coalitions")) & (2**63 - 1)}
        state |= {"tried": 0, "last": torch.zeros_like(ravel(w))}
        if self.by_clients:
            state["by"] = zeros.new_zeros(count, count)
        return state | dict.fromkeys((*self.names, WEIGHT, COPIED), zeros)

    def due(self, round: int) -> bool:
        """Whether a round, counted from 1, ends with a valuation."""
        return round % self.every == 0

    def try_models(self, state: Tree, round: Round, try_out: TryOut) -> Tree:
        """The values of a round that is `due`; "tried" is the last such round."""
        number, zeros = state["round"] + 1, torch.zeros_like(state[WEIGHT])  # [N]
        after = state | {"last": ravel(round.delta), "round": number}
        if not self.due(number):
            return after
        # 1. Values on all examples, and on those of each client.
        trials = _Trials(self.round_to_try(round), self.counter(round, try_out))
        trials.try_out(self.coalitions(round, state))
        values = self.values_of(round, state, trials.value)
        for name, column in zip((*self.names, WEIGHT), (*values, round.weights), strict=True):
            after[name] = zeros.index_copy(0, round.at, column.to(zeros))
        if self.by_clients:
            rows = list[Tensor]()
            for client in range(len(zeros)):
                first, *_ = self.values_of(round, state, partial(trials.value, client=client))
                rows.append(first)
            after["by"] = torch.zeros_like(state["by"]).index_copy(1, round.at, torch.stack(rows).to(zeros))
        # 2. Which updates are copies; -1: of nothing.
        copied = zeros - 1
        for one, other in copies(round.updates, state["last"]):
            if other < 0:
                copied[round.at[one]] = len(copied)
            else:
                copied[round.at[other]] = float(round.at[one])
        return after | {"tried": number, COPIED: copied}

    def round_to_try(self, round: Round) -> Round:
        return round

    def counter(self, round: Round, try_out: TryOut) -> TryOut:
        return try_out

    def measures(self, state: Tree) -> dict[str, Tensor]:
        """The values by name, the first of them also on the examples of each client (`measured_by`), and
        "coalition_weight", each update's weight in the mean; NaN if the round has no values. "coalition_copied": for a
        client whose update is nearly another client's, the place of that client; the number of clients if it is nearly
        the last global update."""
        columns = {name: state[name] for name in (*self.names, WEIGHT)}
        if self.by_clients:
            columns |= {measured_by(self.names[0], client): row for client, row in enumerate(state["by"])}
        if not state["tried"] == state["round"] > 0:
            return {name: torch.full_like(column, torch.nan) for name, column in columns.items()}
        if bool((state[COPIED] >= 0).any()):
            columns[COPIED] = torch.where(state[COPIED] >= 0, state[COPIED], torch.nan)
        return columns


@dataclass(frozen=True)
class CoalitionValue(TriedValue):
    """Shapley and leave-one-out values of each client in a round: what its update adds to the global model, by the
    metric that selects in the run, on the test examples of each client and of all.

    every:        rounds from one valuation to the next.
    exact:        largest number of clients with which all 2^N coalitions are tried; with more clients, only prefixes of
                  sampled orders.
    permutations: number of sampled orders, even.
    """

    exact: Annotated[int, Field(ge=1, le=MAX_EXACT)] = 8
    permutations: Annotated[int, Field(ge=4, multiple_of=2)] = 32
    names: ClassVar = ("shapley", "shapley_error", "leave_one_out")
    needs = replace(TriedValue.needs, measures=("shapley", SIZE))

    def queries(self, clients: int) -> int:
        return 2**clients if clients <= self.exact else self.permutations * (clients - 1) + clients + 2

    def coalitions(self, round: Round, state: Tree) -> Tensor:
        return torch.zeros(0, len(round.at), dtype=torch.bool, device="cpu")

    def values_of(self, round: Round, state: Tree, value: Value) -> tuple[Tensor, ...]:
        players = len(round.at)
        if players <= self.exact:
            estimate = exact(value, players)
        else:
            estimate = permutation_shapley(
                value, players, np.random.default_rng([state["key"], state["round"] + 1]), self.permutations
            )
        return estimate.values, estimate.error, leave_one_out(value, players)


@dataclass(frozen=True)
class ValidatedValue(TriedValue):
    """The effect of each single update: what the round's model plus this update, scaled to the median length of the
    round's updates, reaches by the metric that selects in the run, minus what the model before reaches. An update that
    is nearly another client's, or nearly the last global update (`incentives.coalitions.COPY`), has value 0, as has the
    copied one.

    A round tries N + 1 models, where `CoalitionValue` tries 2^N. The length of an update has no effect on its value in
    the round. It needs a part that limits lengths, such as `norm_bound`: a long update would move the model, and with
    it the values of later rounds.

    every: rounds from one valuation to the next.
    on:    whose examples count: the "members'" test examples, or the validation examples of the "server".
    """

    on: Literal["members", "server"] = "members"
    names: ClassVar = ("validated",)
    needs = replace(TriedValue.needs, decided=("limit",), measures=("validated", SIZE))

    @property
    def by_clients(self) -> bool:
        return self.on == "members"

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
        return super().init(fed, w)

    def queries(self, clients: int) -> int:
        """Each client's, and the model before the round; none if the server counts."""
        return clients + 1 if self.by_clients else 0

    def coalitions(self, round: Round, state: Tree) -> Tensor:
        """Each single client, and the empty coalition."""
        players = len(round.at)
        return torch.cat([torch.eye(players, device="cpu"), torch.zeros(1, players, device="cpu")]).bool()

    def values_of(self, round: Round, state: Tree, value: Value) -> tuple[Tensor, ...]:
        """Gains, 0 for copies and what they copy."""
        *alone, before = value(self.coalitions(round, state))
        gains = torch.stack(alone) - before
        for one, other in copies(round.updates, state["last"]):
            gains[one] = 0.0
            if other >= 0:
                gains[other] = 0.0
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
        if self.by_clients:
            return try_out
        graph = round.held["validation"]
        all_labeled = graph._replace(masks=(graph.y >= 0).expand_as(graph.masks))

        def by_server(many: Tree) -> Trial:
            tried = tried_pairs(round.model, many, all_labeled)
            pairs = {name: pair[None].cpu().numpy() for name, pair in tried.items()}  # [1, c, 2, …]
            labels = np.bincount(graph.y[graph.y >= 0].cpu().numpy(), minlength=pairs["f1"].shape[-1])
            return Trial(pairs, labels)

        return by_server


class _Trials:
    """What the models of a round's coalitions reach on the examples of each client and of all together; each model is
    tried once."""

    def __init__(self, round: Round, try_out: TryOut) -> None:
        self._mixed, self._round, self._try_out = coalition_models(round), round, try_out
        self._place, self._pairs = dict[tuple[bool, ...], int](), dict[str, np.ndarray]()
        self._metric, self._positive = "", 1

    def value(self, masks: Tensor, client: int | None = None) -> Tensor:
        """What coalitions bool [c, P] reach, float64 [c]: on the examples of the client with this place, or on those of
        all; 0 where the metric is not defined there, so that all coalitions are equal."""
        self.try_out(masks)
        rows = [self._place[tuple(row)] for row in masks.tolist()]
        pairs = dict[str, np.ndarray]()
        for name, pair in self._pairs.items():
            columns = pair[:, rows]  # [V, c, 2, …]
            pairs[name] = columns.sum(0) if client is None else columns[client]
        reached = np.asarray(classification.values(pairs, self._positive)[self._metric])
        return torch.from_numpy(np.nan_to_num(reached.clip(0, 1)))  # as all these metrics are, whatever is reported

    def try_out(self, masks: Tensor) -> None:
        """Have the models of coalitions bool [c, P] tried, unless they were."""
        rows = [tuple(row) for row in masks.tolist()]
        new = [row for row in dict.fromkeys(rows) if row not in self._place]
        if not new:
            return
        trial = self._try_out(self._models_of(new))
        self._metric, self._positive = self._round.selection(trial.labels)
        before = self._pairs or {name: pair[:, :0] for name, pair in trial.pairs.items()}
        self._pairs = {name: np.concatenate([before[name], pair], 1) for name, pair in trial.pairs.items()}
        self._place |= {row: len(self._place) + at for at, row in enumerate(new)}

    def _models_of(self, coalitions: Sequence[tuple[bool, ...]]) -> Tree:
        """The coalitions' models, leaves [c, …]; that of all clients is exactly the model after the round."""
        many = self._mixed(torch.tensor(coalitions, device=self._round.at.device))
        all_clients = (True,) * len(self._round.at)
        if all_clients not in coalitions:
            return many
        at = torch.tensor([coalitions.index(all_clients)], device=self._round.at.device)
        after = add(self._round.w, self._round.delta)
        result: Tree = map_leaves(lambda leaf, new: leaf.index_copy(0, at, new[None].to(leaf.dtype)), many, after)
        return result

"""An ordered list of parts as one: their names, and who decides what."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NoReturn

import numpy as np
import torch
from torch import Tensor

from fedweave.algorithms.participation import places
from fedweave.algorithms.parts import objective
from fedweave.algorithms.parts.conflicts import called, check, mechanisms, of_algorithm, shown
from fedweave.algorithms.parts.links import LinkPrediction
from fedweave.algorithms.parts.objective import BatchCrossEntropy, CrossEntropy
from fedweave.algorithms.parts.packing import Packing, packing_of
from fedweave.algorithms.parts.part import (
    KEEP,
    ChangesData,
    Context,
    FollowsData,
    Part,
    ScoresMore,
    TellsPeers,
    Trains,
    TriesModels,
    Warns,
    has,
    is_recorded,
)
from fedweave.algorithms.parts.secure_sum import SecureSum
from fedweave.core.algorithm import Round
from fedweave.core.federation import Federation, Sends, Step
from fedweave.core.graph import Graph, GraphArrays, graph_arrays
from fedweave.core.mechanism import Mechanism
from fedweave.core.model import Model
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree, add, is_statistic, leaves, map_leaves, nest, not_finite
from fedweave.errors import ConfigError, FedweaveError, told_diverged, told_of_part
from fedweave.learn import Fit, compute_on_server
from fedweave.partition.client_data import Precompute

UPDATE = "change of the model weights by local training"
GLOBAL = "the joint model's weights, which all members' updates have gone into"
MIXED = "weights that the server mixed for this client from several members'"
INIT = "a random number, from which all clients draw the same first weights"
REPLIED = "client that replied"

_log = logging.getLogger(__name__)


class Composition(dict[str, Part]):
    """{name in messages and states: part}: the class's name, numbered if a class has several parts.

    Raises:
        ValueError: they do not go together (`conflicts.check`).
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__()
        self._noted: set[str] = set()  # parts whose weights were noted to be more than a mean
        for part in parts:
            name, count = type(part).__name__, sum(type(other) is type(part) for other in self.values())
            self[f"{name}{count + 1}" if count else name] = part
        check(shown(self))

    @classmethod
    def of(
        cls, parts: Sequence[Part], defaults: Mapping[str, Part], example: str = "node", batch: int = 0
    ) -> "Composition":
        """`parts`, and for each of the hooks `defaults` that none of them has, its part; unless one of them trains on
        the examples' classes, the cross-entropy, of a `batch` of examples if that is not 0, or, where the `example` is
        a "link", what draws pairs that are none.

        Raises:
            ValueError: a batch is asked for, and another part says what a step is of.
        """
        teachers = [part for part in parts if part.needs.supervised]
        whole: Part = LinkPrediction() if example == "link" else CrossEntropy()
        usual = BatchCrossEntropy(batch) if batch else whole
        if batch and (teachers or example == "link"):
            name = called((*teachers, whole)[0])
            raise ValueError(f"batch_size is {batch}, and {name} says what a step is of; leave batch_size out")
        supervised = () if teachers else (usual,)
        missing = [part for hook, part in defaults.items() if not any(has(other, hook) for other in parts)]
        return cls((*supervised, *missing, *parts))

    def owner(self, hook: str) -> str:
        """The name of the part that decides `hook`, "" if none does."""
        return next((name for name, part in self.items() if has(part, hook)), "")

    def begun(self, fed: Federation, w: Tree) -> Tree:
        """{part: its state} before the first round.

        Raises:
            ConfigError: a part gives no tree.
        """
        return {name: objective.state_of(f"{name}.init", part.init(fed, w)) for name, part in self.items()}

    def remembered(self, hook: Literal["observe", "update"], memory: Tree, round: Round) -> Tree:
        """{part: its state} as a hook of the server leaves it; memory: as it was.

        Raises:
            ConfigError: a part gives no tree.
        """
        return {
            name: objective.state_of(
                f"{name}.{hook}", (part.observe if hook == "observe" else part.update)(memory[name], round)
            )
            for name, part in self.items()
        }

    def joint(self, memory: Tree, round: Round) -> Tree:
        """The joint update: what the owner of `aggregate` makes of the updates, else their weighted sum; {} where no
        weights are shared.

        Raises:
            ConfigError: its owner gives something else than a change of the weights.
        """
        if not round.w:
            return {}
        if not (owner := self.owner("aggregate")):
            weighted: Tree = round.weighted()
            return weighted
        update = self[owner].aggregate(memory[owner], round)
        return objective.alike(f"{owner}.aggregate", "the joint update", update, round.w)

    def value(self, memory: Tree, round: Round) -> Tensor | None:
        """What each client's update is worth, float64 [P]; None if no part decides it.

        Raises:
            ConfigError: its owner gives something else.
        """
        if not (owner := self.owner("value")):
            return None
        return objective.numbers(f"{owner}.value", self[owner].value(memory[owner], round), len(round.at), REPLIED)

    def weights(self, memory: Tree, round: Round) -> Tensor | None:
        """The updates' weights, float64 [P] or [P, P], as the owner of `weigh` decides; None if only the part that
        makes the joint update knows them. Notes, once, if the weights of a user's own part sum to more than a mean's.

        Raises:
            FedweaveError: what a client sent is not finite; names it. ConfigError: they are no finite numbers of that
                shape; names the part.
        """
        if self.sums or not (owner := self.owner("weigh")):
            return None
        weights, count = self[owner].weigh(memory[owner], round), len(round.at)
        if weights is None and self.owner("aggregate"):
            return None
        if not isinstance(weights, Tensor) or weights.shape not in ((count,), (count, count)):
            self._refuse_weights(owner, count)
        foreign = not type(self[owner]).__module__.startswith("fedweave.")  # FairGFL's sum to more on purpose
        if not self.recorded:
            self.check_finite(weights, round.replies, foreign)
        if foreign and (most := float(weights.sum(-1).max())) > 1.001:
            self._note_large(owner, most)
        return weights

    def check_finite(self, weights: Tensor, replies: Replies, waiting: bool = False) -> None:
        """Refuse weights that are not finite, as `weights` does; after all is decided, where that is `recorded`."""
        if objective.odd(weights, waiting):
            self._refuse_diverged(replies)
            self._refuse_weights(self.owner("weigh"), len(replies))

    def _refuse_weights(self, owner: str, count: int) -> NoReturn:
        message = f"{owner}.weigh: is to give {count} finite weights, one of each {REPLIED}"
        raise ConfigError(message, code="config.weighing")

    def _refuse_diverged(self, replies: Replies) -> None:
        """Name the client whose update is not finite or, where updates are, the part whose report is not."""
        odd = {client: path for client in replies.clients if (path := not_finite(replies[client]))}
        for client, path in sorted(odd.items(), key=lambda item: not item[1].startswith("update")):
            for name, part in self.items():
                if any(f"{path}/".startswith(f"{key}/") for key in part.sends):
                    message = told_of_part(name, f"what it reports as {path!r} at {client!r}")
                    raise FedweaveError(message, code="diverged")
            raise FedweaveError(told_diverged(f"{path} of {client!r}"), code="diverged")

    def factors(self, memory: Tree, round: Round) -> Tensor | None:
        """Factors of the updates before aggregation, float64 [P]; None if no part limits them.

        Raises:
            ConfigError: a part gives something else.
        """
        limits = [
            objective.numbers(f"{name}.limit", part.limit(memory[name], round), len(round.at), REPLIED)
            for name, part in self.items()
            if has(part, "limit")
        ]
        return torch.stack(limits).prod(0) if limits else None

    def of_client(
        self, hook: Literal["receive", "start", "judged"], ctx: Context, default: Callable[[Context], Tree]
    ) -> Tree:
        """The weights that the owner of a hook of the client decides."""
        if not (owner := self.owner(hook)):
            return default(ctx)
        part = self[owner]
        return {"receive": part.receive, "start": part.start, "judged": part.judged}[hook](ctx.at(owner))

    def trained(self, ctx: Context) -> Fit:
        """What local training leaves: what the owner of `train` makes of it, else `local_steps` steps.

        Raises:
            ConfigError: its owner gives something else.
        """
        owner = self.owner("train")
        if not isinstance(part := self.get(owner), Trains):
            inputs, state = ctx.sent, ctx.optimizer_state
            return ctx.objective.fit(ctx.start, ctx.client, ctx.client.key, inputs, anchor=ctx.received, state=state)
        result = part.train(ctx.at(owner))
        if not isinstance(result, Fit):
            raise ConfigError(
                f"{owner}.train: is to give a Fit, as ctx.objective.fit does; it gives {type(result).__name__}"
            )
        objective.alike(f"{owner}.train", "the trained weights", result.w, ctx.start)
        return result

    def downloads(self, memory: Tree, at: Tensor, asked: Collection[str]) -> tuple[Tree, Tree, Tree]:
        """({part: what all clients get}, {part: what each gets, [P, …]}, {"w": each one's reward}) of those parts that
        are `asked`, without those that send nothing (see `Part.download`).

        Raises:
            ConfigError: a part sends something else.
        """
        shared, each, rewards = dict[str, Tree](), dict[str, Tree](), dict[str, Tree]()
        for name in (name for name in self if name in asked):
            result, rewarded = self[name].download(memory[name], at), name == self.owner("receive")
            to_all, to_each, *reward = objective.download(f"{name}.download", result, len(at), rewarded)
            shared |= {name: to_all} if to_all else {}
            each |= {name: to_each} if to_each else {}
            rewards |= {"w": reward[0]} if reward else {}
        return shared, each, rewards

    def apply_release(self, name: str, ctx: Context, update: Tree) -> Tree:
        """An update as a part's `release` leaves it.

        Raises:
            ConfigError: it has other leaves or shapes.
        """
        if not has(self[name], "release"):
            return update
        result = self[name].release(ctx.at(name), update)
        return objective.alike(f"{name}.release", "the update", result, update, dtypes=False)  # words are integers

    def reports(self, ctx: Context) -> Tree:
        """What all parts report; in a secure sum, that in words."""
        reply, sums = Tree(), self.sums
        for name, part in self.items():
            report = {} if name == sums else self._reported(name, ctx)
            means = {key: report[key] for key in self._sum.declared(part) if key in report} if sums else {}
            reply |= self._sum.hidden(ctx.at(sums), means) if means else {} if sums else report
        return reply | (self._reported(sums, ctx) if sums else {})

    @property
    def sums(self) -> str:
        """The name of the part that adds up what leaves in a secure sum; "" if there is none."""
        return next((name for name, part in self.items() if isinstance(part, SecureSum)), "")

    @property
    def _sum(self) -> SecureSum:
        return next(part for part in self.values() if isinstance(part, SecureSum))

    def opened(self, memory: Tree, round: Round) -> Tree:
        """What a secure sum says besides the joint update; {} without one."""
        if not self.sums:
            return {}
        declared = {key: sends for part in self.values() for key, sends in self._sum.declared(part).items()}
        return self._sum.opened(memory[self.sums], round, declared)

    def _reported(self, name: str, ctx: Context) -> Tree:
        """What a part reports.

        Raises:
            ConfigError: it is no tree.
        """
        report = self[name].report(ctx.at(name))
        if not isinstance(report, dict):
            raise ConfigError(f"{name}.report: is to give a tree, {{key: tensor}}; it gives {type(report).__name__}")
        return report

    def changed(self, ctx: Context) -> GraphArrays:
        """The client's data as the parts that change it leave it, and all parts told of it.

        Raises:
            ValueError: a part adds nodes or takes some away.
        """
        data = graph_arrays(ctx.client.graph)
        nodes = np.zeros(data.x.shape[0], bool)
        for name, part in self.items():
            if not isinstance(part, ChangesData):
                continue
            data, now = part.changes(ctx.at(name), data)
            if data.x.shape[0] != len(nodes) or now.shape != nodes.shape:
                raise ValueError(f"{name} changes the number of nodes; parts may change what nodes have alone")
            nodes = nodes | now
        missing = ctx.client.graph.nodes - len(nodes)
        padded = torch.from_numpy(np.pad(nodes, (0, missing))).to(ctx.client.graph.device)
        for name, part in self.items():
            if isinstance(part, FollowsData):
                part.changed(ctx.at(name), padded)
        return data

    def check_forgotten(self, state: Tree) -> None:
        """Refuse a part that keeps something at a client where a part's updates are to be `stateless`.

        Raises:
            ConfigError: names both.
        """
        forgetful = next((name for name, part in self.items() if part.protection.stateless), None)
        if forgetful and (keeps := [name for name in self if name in state]):
            raise ConfigError(
                f"parts: {called(self[keeps[0]])} keeps something at clients, and {called(self[forgetful])} with "
                "everyone = false is of what they make of the present message alone; set everyone = true"
                + of_algorithm(self, (keeps[0], forgetful))
            )

    @cached_property
    def recorded(self) -> bool:
        """Whether all that parts decide at the server is recorded as one (`Part.recorded`), where that is more than one
        weighted mean."""
        more = self.personal or any(has(part, hook) for part in self.values() for hook in ("update", "step"))
        return more and all(map(is_recorded, self.values()))

    @property
    def teller(self) -> str:
        """The part by which clients tell each other something of each new model; "" if none does."""
        return next((name for name, part in self.items() if isinstance(part, TellsPeers)), "")

    @property
    def tells(self) -> dict[str, Sends | str]:
        """What peers learn by it."""
        part = self.get(self.teller)
        return dict(part.tells) if isinstance(part, TellsPeers) else {}

    def parcels(self, ctx: Context, model: Model, w: Tree) -> Tree:
        """What each peer of the client gets."""
        part = self[self.teller]
        return part.tell(ctx.at(self.teller), model, w) if isinstance(part, TellsPeers) else {}

    def heard(self, ctx: Context, received: Sequence[Tree], present: Tensor) -> None:
        """Have the part keep what peers sent."""
        if isinstance(part := self[self.teller], TellsPeers):
            part.hear(ctx.at(self.teller), received, present)

    @property
    def score_sends(self) -> dict[str, Sends | str]:
        """What else is told where models are judged."""
        scorers = (part for part in self.values() if isinstance(part, ScoresMore))
        return {key: meaning for part in scorers for key, meaning in part.score_sends.items()}

    def more_scores(self, ctx: Context, model: Model, w: Tree) -> Tree:
        """What parts have measured of the weights that the client uses."""
        scorers = ((name, part) for name, part in self.items() if isinstance(part, ScoresMore))
        return {k: v for name, part in scorers for k, v in part.more_scores(ctx.at(name), model, w).items()}

    @cached_property
    def changes(self) -> bool:
        """Whether clients' data changes from round to round."""
        return any(isinstance(part, ChangesData) for part in self.values())

    def measures(self, memory: Tree, clients: int) -> dict[str, Tensor]:
        """What the parts know about each client, by name; a name that several parts use is prefixed by the part's.

        Raises:
            ConfigError: a part has not one number of each.
        """
        by_part = {
            name: objective.of_clients(f"{name}.measures", part.measures(memory[name]), clients)
            for name, part in self.items()
        }
        uses = Counter(key for measured in by_part.values() for key in measured)
        return {
            f"{name}.{key}" if uses[key] > 1 else key: values
            for name, measured in by_part.items()
            for key, values in measured.items()
        }

    def counts(self, memory: Tree) -> dict[str, float]:
        """What the parts know about all clients together, by name."""
        items = (item for name, part in self.items() for item in part.measures(memory[name]).items())
        return {key: number for key, number in items if not isinstance(number, Tensor)}

    def pairs(self, memory: Tree) -> dict[str, Tensor]:
        """What the parts know of every two clients, by name."""
        items = (item for name, part in self.items() for item in part.measures(memory[name]).items())
        return {key: matrix for key, matrix in items if isinstance(matrix, Tensor) and matrix.dim() == 2}

    def layers(self, model: Model, own: bool = True) -> Model:
        """The model as the parts have it used (see `Part.layers`)."""
        for part in self.values():
            model = part.layers(model, own)
        return model

    @property
    def judging(self) -> list[str]:
        """The parts that must send clients their `download` to have models judged or used: those that themselves decide
        which model that is, and all where it is trained for use (`Needs.tunes`). What is for training does not go down
        again."""
        if self.tunes:
            return list(self)
        return [name for name in self if name in (self.owner("receive"), self.owner("judged") or self.owner("start"))]

    @property
    def tunes(self) -> bool:
        """Whether clients train the received weights for use."""
        judge = self.owner("judged")
        return bool(judge) and self[judge].needs.tunes

    @property
    def judges_received(self) -> bool:
        """Whether they use the received weights, trained anew or as they are, as far as the parts decide."""
        return self.uses_received or self.tunes

    @property
    def uses_received(self) -> bool:
        """Whether clients use the received weights as they are, as far as the parts decide."""
        judge = self.owner("judged")
        return self[judge].needs.judged_global if judge else not (self.owner("receive") or self.owner("start"))

    @property
    def setup(self) -> tuple[Step, ...]:
        """The steps that the parts run before the first round."""
        return tuple(step for part in self.values() for step in part.setup)

    def tried(self, memory: Tree, round: Round, try_out: "TryOut") -> Tree:
        """{part: its state} once those that have clients try models have done so."""
        return memory | {name: part.tried(memory[name], round, try_out) for name, part in self._trying}

    def queries(self, clients: int, rounds: Sequence[int] | None = None) -> int:
        """How many models clients try at most in these rounds, counted from 1; None: in the one with most."""
        trials = [(part.due, part.queries(clients)) for _, part in self._trying]
        return sum(count * (1 if rounds is None else sum(map(due, rounds))) for due, count in trials)

    @property
    def _trying(self) -> list[tuple[str, TriesModels]]:
        return [(name, part) for name, part in self.items() if isinstance(part, TriesModels)]

    @property
    def most_rounds(self) -> int | None:
        """How many rounds a run may have; None if no part limits them."""
        known = [most for part in self.values() if (most := part.protection.most_rounds) is not None]
        return min(known, default=None)

    @cached_property
    def private(self) -> tuple[str, ...]:
        """Patterns of the weights that never leave their client."""
        return tuple(pattern for part in self.values() for pattern in part.needs.private)

    @cached_property
    def personal(self) -> bool:
        """Whether every client has weights of its own, so that there is no global model."""
        return any(part.needs.personal for part in self.values())

    def _note_large(self, owner: str, total: float) -> None:
        if owner not in self._noted:
            self._noted.add(owner)
            _log.warning(
                "note: %s.weigh gives weights that sum to %.4g, so that a round goes that much further than the mean "
                "of updates; divide them by their sum if that is not meant",
                owner,
                total,
            )

    @property
    def finders(self) -> tuple[Precompute, ...]:
        """What looks for what parts ask for, each once."""
        return tuple(dict.fromkeys(finder for part in self.values() if (finder := part.needs.finder)))

    @property
    def sends(self) -> dict[str, Sends | str]:
        """What the parts report, and what it reveals."""
        others = [part for name, part in self.items() if name != self.sums]
        by_part = [self._sum.declared(part) if self.sums else part.sends for part in others]
        by_part += [self._sum.sends] if self.sums else []
        return {key: meaning for sends in by_part for key, meaning in sends.items()}

    @property
    def client_learns(self) -> dict[str, str]:
        """What a client learns from what a round sends it."""
        reward = self.owner("receive")
        whole = "; ".join(_of_keys("", self[reward]).values()) if reward else MIXED if self.personal else GLOBAL
        texts = {
            key: text for name, part in self.items() if name != reward for key, text in _of_keys(name, part).items()
        }
        keep = "that the model is to be kept for the client's owner"
        return {"w": whole, "init": INIT, KEEP: keep} | texts | {f"each/{name}": text for name, text in texts.items()}

    @property
    def released(self) -> dict[str, Sends]:
        """What leaves a client as its update, and how that is protected."""
        reveals = next((text for part in self.values() if (text := part.protection.becomes)), UPDATE)
        if any(part.protection.hides for part in self.values()):
            reveals = f"nothing by itself; with the others' the mean of: {reveals}"
        return {"update": Sends(reveals, self.mechanism, like="" if self.packing else "w")}

    @cached_property
    def packing(self) -> Packing | None:
        """How updates travel; None as they are."""
        return packing_of(self)

    @property
    def mechanism(self) -> tuple[Mechanism, ...]:
        """What protects an update, in the order in which it is applied."""
        return tuple(mechanism for part in self.values() for mechanism in mechanisms(part))


def _of_keys(name: str, part: Part) -> dict[str, str]:
    """{path in messages: what the client learns from it} of a part's `client_learns`."""
    if isinstance(part.client_learns, str):
        return {name: part.client_learns} if part.client_learns else {}
    return {f"{name}/{key}": text for key, text in part.client_learns.items()}


# ----------------------------------------------------------------------------------------------------
# What the server of the FedAvg family makes of a round's replies, as its parts decide.


TryOut = Callable[[Tree], tuple[Tensor, Tensor]]  # see `TriesModels.tried`


@dataclass(frozen=True, eq=False)
class ServerHooks:
    """The parts' hooks at the server, in the order of a round; of parts that say so they are recorded as one."""

    composed: Composition
    model: Model

    def downloads(self, state: Tree, at: Tensor, fed: Federation, asked: Collection[str]) -> tuple[Tree, Tree, Tree]:
        """What the clients at these places get of the parts that are `asked` (`Composition.downloads`)."""
        inputs: Tree = {
            "parts": {name: memory for name, memory in memory_of(self.composed, state).items() if name in asked}
        }
        if not (self.composed.recorded and asked and self.composed.owner("receive")):  # other parts send what they have
            return self.composed.downloads(inputs["parts"], at, asked)
        with fed.recording():
            result: tuple[Tree, Tree, Tree] = compute_on_server(
                self._downloads, inputs | {"at": at}, names=tuple(asked)
            )
        return result

    def _downloads(self, inputs: Tree) -> tuple[Tree, Tree, Tree]:
        return self.composed.downloads(inputs["parts"], inputs["at"], inputs["parts"])

    def after(self, state: Tree, replies: Replies, fed: Federation, try_out: TryOut) -> Tree:
        """What a round changes of the server's state: {"w" or "own": weights, "parts": the parts' states}."""
        at, here = places(fed, replies.clients), replies.here() if self.composed.recorded else None
        if here is None:
            after, _ = self._decided(state, replies, at, fed.held, try_out)
        else:
            with fed.recording():
                after = compute_on_server(self._recorded, {"state": state, "replies": here, "at": at})
            if (weights := after.pop("weights", None)) is not None:
                self.composed.check_finite(weights, replies)
        self._warn(after["parts"])
        return after

    def _recorded(self, inputs: Tree) -> Tree:
        replies = Replies.from_here(inputs["replies"])
        after, round = self._decided(inputs["state"], replies, inputs["at"])
        return after | ({} if round.weights is None else {"weights": round.weights})

    def _decided(
        self,
        state: Tree,
        replies: Replies,
        at: Tensor,
        held: Mapping[str, Graph] | None = None,
        try_out: TryOut | None = None,
    ) -> tuple[Tree, Round]:
        """`after`, and the round as parts saw it; at: the places of those who replied."""
        parts, memory = self.composed, memory_of(self.composed, state)
        w = map_leaves(lambda leaf: leaf[at], state["own"]) if "own" in state else state.get("w", {})
        round = Round(replies, at, w, self.model, held or {})
        memory = parts.remembered("observe", memory, round)
        round = replace(round, factors=parts.factors(memory, round))
        round = replace(round, weights=parts.weights(memory, round), opened=parts.opened(memory, round))
        if not parts.personal:
            round = replace(round, delta=parts.joint(memory, round))
        round = replace(round, value=parts.value(memory, round))
        memory = parts.remembered("update", memory, round)
        if try_out is not None:
            memory = parts.tried(memory, round, try_out)
        after, memory = self._stepped(state, round, memory)
        return after | {"parts": memory}, round

    def _stepped(self, state: Tree, round: Round, memory: Tree) -> tuple[Tree, Tree]:
        """The weights after a round, and the parts' states with that of the server's optimizer.

        Raises:
            ConfigError: its owner gives something else.
        """
        if self.composed.personal:
            return {"own": round.mixed(state["own"])} if "own" in state else {}, memory
        owner = self.composed.owner("step")
        if not owner:
            return {"w": add(round.w, round.delta)}, memory
        result = self.composed[owner].step(memory[owner], round.w, round.delta)
        if not (isinstance(result, tuple) and len(result) == 2 and all(isinstance(tree, dict) for tree in result)):
            message = "is to give two trees, the new weights and its memory for the next round"
            raise ConfigError(f"{owner}.step: {message}", code="config.step")
        shapes = [{path: leaf.shape for path, leaf in leaves(tree)} for tree in (result[0], round.w)]
        if shapes[0] != shapes[1]:
            message = "the new weights are to have the leaves and shapes of those that it gets"
            raise ConfigError(f"{owner}.step: {message}", code="config.step")
        mean = dict(leaves(add(round.w, round.delta)))  # where running statistics go, whatever the server's optimizer
        w = {path: mean[path] if is_statistic(path) else leaf for path, leaf in leaves(result[0])}
        return {"w": nest(w)}, memory | {owner: objective.state_of(f"{owner}.step", result[1])}

    def _warn(self, memory: Tree) -> None:
        """Warn of what parts say after a round; a device is waited for once."""
        parts = {name: part for name, part in self.composed.items() if isinstance(part, Warns)}
        flags = {
            sentence: there for name, part in parts.items() for sentence, there in part.warns(memory[name]).items()
        }
        for sentence, there in zip(flags, torch.stack([*flags.values()]).tolist() if flags else (), strict=True):
            if there:
                _log.warning(sentence)


def memory_of(parts: Composition, state: Tree) -> Tree:
    """{part: its state} in the server's."""
    return {name: state.get("parts", {}).get(name, {}) for name in parts}

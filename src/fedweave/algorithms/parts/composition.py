"""An ordered list of parts as one: their names, and which part decides which hook."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Literal, NoReturn

import numpy as np
import torch
from torch import Tensor

from fedweave.algorithms.parts import objective
from fedweave.algorithms.parts.conflicts import check, mechanisms
from fedweave.algorithms.parts.context import KEEP, Context
from fedweave.algorithms.parts.links import LinkPrediction
from fedweave.algorithms.parts.names import by_name, part_name, preset_note
from fedweave.algorithms.parts.objective import BatchCrossEntropy, CrossEntropy
from fedweave.algorithms.parts.packing import Packing, packing_of
from fedweave.algorithms.parts.part import (
    ChangesData,
    FollowsData,
    Part,
    ScoresMore,
    SendsToPeers,
    Trains,
    TriesModels,
    TryOut,
    Warns,
    has,
    is_traced,
)
from fedweave.algorithms.parts.sampled import GraphCrossEntropy
from fedweave.algorithms.parts.secure_sum import SecureSum
from fedweave.core import model as models
from fedweave.core.algorithm import Round
from fedweave.core.federation import Federation, Sends, Step
from fedweave.core.graph_arrays import GraphArrays, graph_arrays
from fedweave.core.mechanism import Mechanism
from fedweave.core.model import Model
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree, not_finite
from fedweave.errors import ConfigError, FedweaveError, diverged_message, part_diverged_message
from fedweave.learn import Fit
from fedweave.ops.tape import without_tape
from fedweave.partition.precompute import Precompute
from fedweave.sampling.graphs import GraphBatches

UPDATE = "change of the model weights by local training"
GLOBAL = "the global model's weights, computed from all members' updates"
MIXED = "weights that the server mixed for this client from several members'"
INIT = "a random number, from which all clients draw the same first weights"
REPLIED = "client that replied"

_log = logging.getLogger(__name__)


class Composition(dict[str, Part]):
    """{name in messages and states: part}: the class name, numbered if a class has several parts.

    Raises:
        ValueError: the parts cannot be combined (`conflicts.check`).
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__()
        self._noted: set[str] = set()  # parts with a note that their weights sum to more than 1
        for part in parts:
            name, count = type(part).__name__, sum(type(other) is type(part) for other in self.values())
            self[f"{name}{count + 1}" if count else name] = part
        check(by_name(self))

    @classmethod
    def of(
        cls, parts: Sequence[Part], defaults: Mapping[str, Part], model: Model = (), batch: int = 0
    ) -> "Composition":
        """`parts` and the default parts that they lack: a part for each hook in `defaults` that no part has, and a loss
        unless a part trains on the examples' classes. The loss is the cross-entropy, on a `batch` of examples if that
        is not 0, or `LinkPrediction` if the model predicts links. A batch of small graphs leaves out the other graphs
        if the model can.

        Raises:
            ValueError: `batch` is not 0, but another part decides the examples of a step.
        """
        teachers = [part for part in parts if part.needs.supervised]
        links = models.example(model) == "link"
        whole: Part = LinkPrediction() if links else CrossEntropy()
        default = (GraphCrossEntropy if GraphBatches.suits(model) else BatchCrossEntropy)(batch) if batch else whole
        if batch and (teachers or links):
            name = part_name((*teachers, whole)[0])
            raise ValueError(f"batch_size is {batch}, but {name} decides the examples of a step; leave batch_size out")
        supervised = () if teachers else (default,)
        missing = [part for hook, part in defaults.items() if not any(has(other, hook) for other in parts)]
        return cls((*supervised, *missing, *parts))

    def owner(self, hook: str) -> str:
        """The name of the part that decides `hook`, "" if none does."""
        return next((name for name, part in self.items() if has(part, hook)), "")

    def init(self, fed: Federation, w: Tree) -> Tree:
        """{part: its state} before the first round.

        Raises:
            ConfigError: a part returns no tree.
        """
        return {name: objective.state_of(f"{name}.init", part.init(fed, w)) for name, part in self.items()}

    def advance(self, hook: Literal["observe", "update"], memory: Tree, round: Round) -> Tree:
        """{part: its state} after a hook of the server; memory: the states before.

        Raises:
            ConfigError: a part returns no tree.
        """
        states = Tree()
        for name, part in self.items():
            run = part.observe if hook == "observe" else part.update
            states[name] = objective.state_of(f"{name}.{hook}", run(memory[name], round))
        return states

    def joint(self, memory: Tree, round: Round) -> Tree:
        """The joint update, from the owner of `aggregate` or as the weighted sum; {} if no weights are shared.

        Raises:
            ConfigError: its owner returns something else than a change of the weights.
        """
        if not round.w:
            return {}
        owner = self.owner("aggregate")
        if not owner:
            weighted: Tree = round.weighted()
            return weighted
        update = self[owner].aggregate(memory[owner], round)
        return objective.alike(f"{owner}.aggregate", "the joint update", update, round.w)

    def value(self, memory: Tree, round: Round) -> Tensor | None:
        """The value of each client's update, float64 [P]; None if no part decides it.

        Raises:
            ConfigError: its owner returns something else.
        """
        owner = self.owner("value")
        if not owner:
            return None
        return objective.numbers(f"{owner}.value", self[owner].value(memory[owner], round), len(round.at), REPLIED)

    def weights(self, memory: Tree, round: Round) -> Tensor | None:
        """The updates' weights, float64 [P] or [P, P], from the owner of `weigh`; None if only the owner of `aggregate`
        knows them. Logs a note, once, if the weights of a user's own part sum to more than 1.

        Raises:
            FedweaveError: a client sent values that are not finite. ConfigError: the weights are no finite numbers of
                that shape.
        """
        owner = self.owner("weigh")
        if self.sums or not owner:  # with secure aggregation the weights are inside the sum
            return None
        weights = self[owner].weigh(memory[owner], round)
        count = len(round.at)
        if weights is None and self.owner("aggregate"):
            return None
        if not isinstance(weights, Tensor) or weights.shape not in ((count,), (count, count)):
            self._refuse_weights(owner, count)
        foreign = not type(self[owner]).__module__.startswith("fedweave.")  # FairGFL's sum to more on purpose
        if not self.recorded:
            self.check_finite(weights, round.replies, foreign)
        if foreign:
            with without_tape():
                largest_sum = float(weights.sum(-1).max())
            if largest_sum > 1.001:
                self._note_large(owner, largest_sum)
        return weights

    def check_finite(self, weights: Tensor, replies: Replies, waiting: bool = False) -> None:
        """Raise the errors of `weights` if weights are not finite; with traced hooks, after the whole round."""
        if objective.odd(weights, waiting):
            self._refuse_diverged(replies)
            self._refuse_weights(self.owner("weigh"), len(replies))

    def _refuse_weights(self, owner: str, count: int) -> NoReturn:
        message = f"{owner}.weigh: is to give {count} finite weights, one of each {REPLIED}"
        raise ConfigError(message, code="config.weighing")

    def _refuse_diverged(self, replies: Replies) -> None:
        """Raise an error with the client whose update is not finite, or with the part whose report is not finite."""
        odd = {client: path for client in replies.clients if (path := not_finite(replies[client]))}
        for client, path in sorted(odd.items(), key=lambda item: not item[1].startswith("update")):
            for name, part in self.items():
                if any(f"{path}/".startswith(f"{key}/") for key in part.sends):
                    message = part_diverged_message(name, f"what it reports as {path!r} at {client!r}")
                    raise FedweaveError(message, code="diverged")
            raise FedweaveError(diverged_message(f"{path} of {client!r}"), code="diverged")

    def factors(self, memory: Tree, round: Round) -> Tensor | None:
        """Factors of the updates before aggregation, float64 [P]; None if no part limits them.

        Raises:
            ConfigError: a part returns something else.
        """
        limits = [
            objective.numbers(f"{name}.limit", part.limit(memory[name], round), len(round.at), REPLIED)
            for name, part in self.items()
            if has(part, "limit")
        ]
        return torch.stack(limits).prod(0) if limits else None

    def of_client(
        self, hook: Literal["receive", "start", "personalize"], ctx: Context, default: Callable[[Context], Tree]
    ) -> Tree:
        """The weights from the owner of a hook at the client, or from `default`."""
        owner = self.owner(hook)
        if not owner:
            return default(ctx)
        part = self[owner]
        return {"receive": part.receive, "start": part.start, "personalize": part.personalize}[hook](ctx.at(owner))

    def train(self, ctx: Context) -> Fit:
        """The result of local training, by the owner of `train` or with `local_steps` steps.

        Raises:
            ConfigError: its owner returns something else.
        """
        owner = self.owner("train")
        part = self.get(owner)
        if not isinstance(part, Trains):
            inputs, state = ctx.sent, ctx.optimizer_state
            return ctx.objective.fit(ctx.start, ctx.client, ctx.client.key, inputs, anchor=ctx.received, state=state)
        result = part.train(ctx.at(owner))
        if not isinstance(result, Fit):
            raise ConfigError(
                f"{owner}.train: is to give a Fit, as ctx.objective.fit does; it gives {type(result).__name__}"
            )
        objective.alike(f"{owner}.train", "the trained weights", result.w, ctx.start)
        return result

    def downloads(self, memory: Tree, at: Tensor, names: Collection[str]) -> tuple[Tree, Tree, Tree]:
        """({part: tree for all clients}, {part: tree with a row for each, [P, …]}, {"w": each client's weights}) of the
        parts in `names`, without empty trees (see `Part.download`).

        Raises:
            ConfigError: a part's download has another form.
        """
        shared, each, rewards = dict[str, Tree](), dict[str, Tree](), dict[str, Tree]()
        for name in (name for name in self if name in names):
            result, rewarded = self[name].download(memory[name], at), name == self.owner("receive")
            to_all, to_each, *reward = objective.download(f"{name}.download", result, len(at), rewarded)
            shared |= {name: to_all} if to_all else {}
            each |= {name: to_each} if to_each else {}
            rewards |= {"w": reward[0]} if reward else {}
        return shared, each, rewards

    def apply_release(self, name: str, ctx: Context, update: Tree) -> Tree:
        """An update after a part's `release`.

        Raises:
            ConfigError: it has other leaves or shapes.
        """
        if not has(self[name], "release"):
            return update
        result = self[name].release(ctx.at(name), update)
        return objective.alike(f"{name}.release", "the update", result, update, dtypes=False)  # or integers

    def reports(self, ctx: Context) -> Tree:
        """The reports of all parts; with secure aggregation, as masked integers."""
        reply, sums = Tree(), self.sums
        for name, part in self.items():
            report = {} if name == sums else self._reported(name, ctx)
            means = {key: report[key] for key in self._sum.declared(part) if key in report} if sums else {}
            reply |= self._sum.hidden(ctx.at(sums), means) if means else {} if sums else report
        return reply | (self._reported(sums, ctx) if sums else {})

    @property
    def sums(self) -> str:
        """The name of the `SecureSum` part; "" if there is none."""
        return next((name for name, part in self.items() if isinstance(part, SecureSum)), "")

    @property
    def _sum(self) -> SecureSum:
        return next(part for part in self.values() if isinstance(part, SecureSum))

    def opened(self, memory: Tree, round: Round) -> Tree:
        """The results of secure aggregation other than the joint update; {} without it."""
        if not self.sums:
            return {}
        declared = {key: sends for part in self.values() for key, sends in self._sum.declared(part).items()}
        return self._sum.opened(memory[self.sums], round, declared)

    def _reported(self, name: str, ctx: Context) -> Tree:
        """A part's report.

        Raises:
            ConfigError: it is no tree.
        """
        report = self[name].report(ctx.at(name))
        if not isinstance(report, dict):
            raise ConfigError(f"{name}.report: is to give a tree, {{key: tensor}}; it gives {type(report).__name__}")
        return report

    def changed(self, ctx: Context) -> GraphArrays:
        """The client's data after all parts that change it; notifies the parts that follow its changes.

        Raises:
            ValueError: a part changes the number of nodes.
        """
        data = graph_arrays(ctx.client.graph)
        nodes = np.zeros(data.x.shape[0], bool)
        for name, part in self.items():
            if not isinstance(part, ChangesData):
                continue
            data, now = part.changes(ctx.at(name), data)
            if data.x.shape[0] != len(nodes) or now.shape != nodes.shape:
                raise ValueError(f"{name} changes the number of nodes; parts may only change the nodes' data")
            nodes = nodes | now
        missing = ctx.client.graph.nodes - len(nodes)
        padded = torch.from_numpy(np.pad(nodes, (0, missing))).to(ctx.client.graph.device)
        for name, part in self.items():
            if isinstance(part, FollowsData):
                part.changed(ctx.at(name), padded)
        return data

    def check_forgotten(self, state: Tree) -> None:
        """Check that no part keeps values at a client if another part needs `stateless` updates.

        Raises:
            ConfigError: a part does; the message contains both.
        """
        forgetful = next((name for name, part in self.items() if part.protection.stateless), None)
        keeps = [name for name in self if name in state]
        if forgetful and keeps:
            raise ConfigError(
                f"parts: {part_name(self[keeps[0]])} keeps values at clients, but {part_name(self[forgetful])} with "
                "require_all = false needs updates from the present message only; set require_all = true"
                + preset_note(self, (keeps[0], forgetful))
            )

    @cached_property
    def recorded(self) -> bool:
        """Whether all hooks at the server are traced as one (`Part.recorded`); False if they are only one weighted
        mean."""
        more = self.personal or any(has(part, hook) for part in self.values() for hook in ("update", "step"))
        return more and all(map(is_traced, self.values()))

    @property
    def teller(self) -> str:
        """The name of the part with which clients send each other values for each new model; "" if there is none."""
        return next((name for name, part in self.items() if isinstance(part, SendsToPeers)), "")

    @property
    def sends_to_peers(self) -> dict[str, Sends | str]:
        """The declarations of the values that clients send to peers."""
        part = self.get(self.teller)
        return dict(part.sends_to_peers) if isinstance(part, SendsToPeers) else {}

    def parcels(self, ctx: Context, model: Model, w: Tree) -> Tree:
        """The client's messages to its peers."""
        part = self[self.teller]
        return part.tell(ctx.at(self.teller), model, w) if isinstance(part, SendsToPeers) else {}

    def hear(self, ctx: Context, received: Sequence[Tree], present: Tensor) -> None:
        """Let the part keep the peers' messages."""
        part = self[self.teller]
        if isinstance(part, SendsToPeers):
            part.hear(ctx.at(self.teller), received, present)

    @property
    def score_sends(self) -> dict[str, Sends | str]:
        """The declarations of the parts' additional measurements in an evaluation."""
        scorers = (part for part in self.values() if isinstance(part, ScoresMore))
        return {key: meaning for part in scorers for key, meaning in part.score_sends.items()}

    def more_scores(self, ctx: Context, model: Model, w: Tree) -> Tree:
        """The parts' additional measurements of the weights that the client uses."""
        scorers = ((name, part) for name, part in self.items() if isinstance(part, ScoresMore))
        return {k: v for name, part in scorers for k, v in part.more_scores(ctx.at(name), model, w).items()}

    @cached_property
    def changes(self) -> bool:
        """Whether clients' data changes from round to round."""
        return any(isinstance(part, ChangesData) for part in self.values())

    def measures(self, memory: Tree, clients: int) -> dict[str, Tensor]:
        """{name: a value per client} from the parts' measures; a name that several parts use gets the part's name as
        prefix.

        Raises:
            ConfigError: a part does not have one number per client.
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

    def warnings(self, memory: Tree) -> list[str]:
        """The parts' warnings after a round; waits for the device once."""
        parts = {name: part for name, part in self.items() if isinstance(part, Warns)}
        flags = dict[str, Tensor]()
        for name, part in parts.items():
            flags |= part.warns(memory[name])
        applied = torch.stack([*flags.values()]).tolist() if flags else ()
        return [sentence for sentence, applies in zip(flags, applied, strict=True) if applies]

    def counts(self, memory: Tree) -> dict[str, float]:
        """{name: number for all clients together} from the parts' measures."""
        items = (item for name, part in self.items() for item in part.measures(memory[name]).items())
        return {key: number for key, number in items if not isinstance(number, Tensor)}

    def pairs(self, memory: Tree) -> dict[str, Tensor]:
        """{name: values for every two clients} from the parts' measures."""
        items = (item for name, part in self.items() for item in part.measures(memory[name]).items())
        return {key: matrix for key, matrix in items if isinstance(matrix, Tensor) and matrix.dim() == 2}

    def layers(self, model: Model, on_clients: bool = True) -> Model:
        """The model's layers after all parts (see `Part.layers`)."""
        for part in self.values():
            model = part.layers(model, on_clients)
        return model

    @property
    def judging(self) -> list[str]:
        """The parts that must send their `download` before clients evaluate or use models: the parts that decide which
        model a client uses, or all parts if clients train it for use (`Needs.personalizes`). Downloads for training are
        not sent again."""
        if self.tunes:
            return list(self)
        return [
            name for name in self if name in (self.owner("receive"), self.owner("personalize") or self.owner("start"))
        ]

    @property
    def tunes(self) -> bool:
        """Whether clients train the received weights for use."""
        judge = self.owner("personalize")
        return bool(judge) and self[judge].needs.personalizes == "tuned"

    @property
    def evaluates_received(self) -> bool:
        """Whether clients use the received weights, as they are or after further training, as far as the parts
        decide."""
        return self.uses_received or self.tunes

    @property
    def uses_received(self) -> bool:
        """Whether clients use the received weights as they are, as far as the parts decide."""
        judge = self.owner("personalize")
        if judge:
            return self[judge].needs.personalizes == "received"
        return not (self.owner("receive") or self.owner("start"))

    @property
    def setup(self) -> tuple[Step, ...]:
        """The steps that the parts run before the first round."""
        return tuple(step for part in self.values() for step in part.setup)

    def tried(self, memory: Tree, round: Round, try_out: TryOut) -> Tree:
        """{part: its state} after clients tried models."""
        return memory | {name: part.tried(memory[name], round, try_out) for name, part in self._trying}

    def queries(self, clients: int, rounds: Sequence[int] | None = None) -> int:
        """The largest number of models that clients try in these rounds, counted from 1; None: in the round with the
        most."""
        trials = [(part.due, part.queries(clients)) for _, part in self._trying]
        return sum(count * (1 if rounds is None else sum(map(due, rounds))) for due, count in trials)

    @property
    def _trying(self) -> list[tuple[str, TriesModels]]:
        return [(name, part) for name, part in self.items() if isinstance(part, TriesModels)]

    @property
    def most_rounds(self) -> int | None:
        """The largest number of rounds of a run; None if no part limits it."""
        known = [most for part in self.values() if (most := part.protection.most_rounds) is not None]
        return min(known, default=None)

    @cached_property
    def private(self) -> tuple[str, ...]:
        """Patterns of the weights that never leave their client."""
        return tuple(pattern for part in self.values() for pattern in part.needs.private)

    @cached_property
    def personal(self) -> bool:
        """Whether every client gets different weights, so that there is no global model."""
        return any("personal" in part.needs.models for part in self.values())

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
        """The precomputations of client features that parts need, each once."""
        return tuple(dict.fromkeys(finder for part in self.values() if (finder := part.needs.finder)))

    @property
    def sends(self) -> dict[str, Sends | str]:
        """{key of the parts' reports: what it reveals}."""
        others = [part for name, part in self.items() if name != self.sums]
        by_part = [self._sum.declared(part) if self.sums else part.sends for part in others]
        by_part += [self._sum.sends] if self.sums else []
        return {key: meaning for sends in by_part for key, meaning in sends.items()}

    @property
    def client_learns(self) -> dict[str, str]:
        """{key of a round's message: what a client learns from it}."""
        reward = self.owner("receive")
        whole = "; ".join(_of_keys("", self[reward]).values()) if reward else MIXED if self.personal else GLOBAL
        texts = {
            key: text for name, part in self.items() if name != reward for key, text in _of_keys(name, part).items()
        }
        keep = "that the model is to be kept for the client's owner"
        return {"w": whole, "init": INIT, KEEP: keep} | texts | {f"each/{name}": text for name, text in texts.items()}

    @property
    def released(self) -> dict[str, Sends]:
        """The declaration of a client's update, with its protection."""
        reveals = next((text for part in self.values() if (text := part.protection.becomes)), UPDATE)
        if any(part.protection.hides for part in self.values()):
            reveals = f"nothing by itself; with the others' the mean of: {reveals}"
        return {"update": Sends(reveals, self.mechanism, like="" if self.packing else "w")}

    @cached_property
    def packing(self) -> Packing | None:
        """The form in which clients send updates; None for plain updates."""
        return packing_of(self)

    @property
    def mechanism(self) -> tuple[Mechanism, ...]:
        """The mechanisms that protect an update, in the order of their application."""
        return tuple(mechanism for part in self.values() for mechanism in mechanisms(part))


def _of_keys(name: str, part: Part) -> dict[str, str]:
    """{path in messages: what the client learns from it} of a part's `client_learns`."""
    if isinstance(part.client_learns, str):
        return {name: part.client_learns} if part.client_learns else {}
    return {f"{name}/{key}": text for key, text in part.client_learns.items()}

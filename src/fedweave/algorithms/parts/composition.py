"""An ordered list of parts as one: their names, and which part decides which hook."""

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Literal, NoReturn

import numpy as np
import torch
from torch import Tensor

from fedweave.algorithms.parts.checks import (
    check_download,
    check_leaves,
    check_measures,
    check_numbers,
    check_tree,
    is_not_finite,
)
from fedweave.algorithms.parts.conflicts import check, mechanisms
from fedweave.algorithms.parts.cross_entropy import BatchCrossEntropy, CrossEntropy, GraphCrossEntropy
from fedweave.algorithms.parts.links import LinkPrediction
from fedweave.algorithms.parts.names import by_name, part_name, preset_note
from fedweave.algorithms.parts.packing import Packing, packing_of
from fedweave.algorithms.parts.part import KEEP, Context, Part, TryOut, has
from fedweave.algorithms.parts.secure_sum import SecureSum
from fedweave.core import model as models
from fedweave.core.algorithm import Round, is_recorded
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
# Hooks of a round at the server.
AT_SERVER = ("download", "observe", "limit", "weigh", "aggregate", "value", "update", "step", "try_models")

_log = logging.getLogger(__name__)


class Composition(dict[str, Part]):
    """{name in messages and states: part}: the class name, numbered if a class has several parts.

    Its methods raise a ConfigError that names the part if what a hook returns has another form (`parts.checks`).

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
        supervised = [part for part in parts if part.needs.supervised]
        loss: tuple[Part, ...] = ()
        if not supervised:
            if models.example(model) == "link":
                loss = (LinkPrediction(),)
            elif not batch:
                loss = (CrossEntropy(),)
            elif GraphBatches.suits(model):
                loss = (GraphCrossEntropy(batch),)
            else:
                loss = (BatchCrossEntropy(batch),)
        if batch and (supervised or isinstance(loss[0], LinkPrediction)):
            name = part_name((*supervised, *loss)[0])
            raise ValueError(f"batch_size is {batch}, but {name} decides the examples of a step; leave batch_size out")
        missing = [part for hook, part in defaults.items() if not any(has(other, hook) for other in parts)]
        return cls((*loss, *missing, *parts))

    def owner(self, hook: str) -> str:
        """The name of the part that decides `hook`, "" if none does."""
        return next((name for name, part in self.items() if has(part, hook)), "")

    # --- declarations

    @property
    def setup(self) -> tuple[Step, ...]:
        steps = list[Step]()
        for part in self.values():
            steps += part.setup
        return tuple(steps)

    @property
    def finders(self) -> tuple[Precompute, ...]:
        finders = [part.needs.finder for part in self.values()]
        return tuple(finder for finder in dict.fromkeys(finders) if finder)

    def layers(self, model: Model, on_clients: bool = True) -> Model:
        """The model's layers after all parts (see `Part.layers`)."""
        for part in self.values():
            model = part.layers(model, on_clients)
        return model

    @property
    def max_rounds(self) -> int | None:
        limits = [part.protection.max_rounds for part in self.values()]
        return min((limit for limit in limits if limit is not None), default=None)

    @cached_property
    def private(self) -> tuple[str, ...]:
        """Patterns of the weights that never leave their client."""
        patterns = list[str]()
        for part in self.values():
            patterns += part.needs.private
        return tuple(patterns)

    @cached_property
    def personal(self) -> bool:
        """Whether every client gets different weights, so that there is no global model."""
        return any("personal" in part.needs.models for part in self.values())

    @cached_property
    def changes(self) -> bool:
        """Whether clients' data changes from round to round."""
        return bool(self.owner("changes"))

    @cached_property
    def recorded(self) -> bool:
        """Whether all hooks at the server are traced as one (`Part.recorded`); False if they are only one weighted
        mean."""
        if not (self.personal or self.owner("update") or self.owner("step")):
            return False
        at_server = [part for part in self.values() if any(has(part, hook) for hook in AT_SERVER)]
        return all(is_recorded(part) and not part.rounds_vary for part in at_server)

    @property
    def peer_part(self) -> str:
        """The name of the part with which clients send each other values for each new model; "" if there is none."""
        return self.owner("tell_peers")

    @cached_property
    def secure_sum(self) -> SecureSum | None:
        """The part for secure aggregation."""
        return next((part for part in self.values() if isinstance(part, SecureSum)), None)

    @property
    def sends(self) -> dict[str, Sends | str]:
        """{key of the parts' reports: what it reveals}."""
        sends = dict[str, Sends | str]()
        for part in self.values():
            if part is not self.secure_sum:
                sends |= self.secure_sum.declare(part) if self.secure_sum else part.sends
        if self.secure_sum:
            sends |= self.secure_sum.sends
        return sends

    @property
    def score_sends(self) -> dict[str, Sends | str]:
        """{key of what the parts add to an evaluation: what it reveals}."""
        sends = dict[str, Sends | str]()
        for part in self.values():
            sends |= part.score_sends
        return sends

    @property
    def client_learns(self) -> dict[str, str]:
        """{key of a round's message: what a client learns from it}."""
        reward = self.owner("receive")
        weights = MIXED if self.personal else GLOBAL
        if reward:
            weights = "; ".join(_learns_by_key("", self[reward]).values())
        texts = dict[str, str]()
        for name, part in self.items():
            if name != reward:
                texts |= _learns_by_key(name, part)
        keep = "that the model is to be kept for the client's owner"
        each = {f"each/{path}": text for path, text in texts.items()}
        return {"w": weights, "init": INIT, KEEP: keep} | texts | each

    @property
    def released(self) -> dict[str, Sends]:
        """The declaration of a client's update, with its protection."""
        replacements = [part.protection.becomes for part in self.values() if part.protection.becomes]
        reveals = replacements[0] if replacements else UPDATE
        if any(part.protection.hides for part in self.values()):
            reveals = f"nothing by itself; with the others' the mean of: {reveals}"
        return {"update": Sends(reveals, self.mechanism, like="" if self.packing else "w")}

    @property
    def mechanism(self) -> tuple[Mechanism, ...]:
        """The mechanisms that protect an update, in the order of their application."""
        result = list[Mechanism]()
        for part in self.values():
            result += mechanisms(part)
        return tuple(result)

    @cached_property
    def packing(self) -> Packing | None:
        """The form in which clients send updates; None for plain updates."""
        return packing_of(self)

    # --- server

    def init(self, fed: Federation, w: Tree) -> Tree:
        """{part: its state} before the first round."""
        states = Tree()
        for name, part in self.items():
            states[name] = check_tree(f"{name}.init", "the part's state", part.init(fed, w))
        return states

    def first_weights(self, model: Model, states: Tree, w: Tree) -> Tree:
        """The weights that training starts from; each part changes those of the part before it."""
        for name, part in self.items():
            w = part.first_weights(model, states.get(name, {}), w)
        return w

    def downloads(self, memory: Tree, at: Tensor, names: Collection[str]) -> tuple[Tree, Tree, Tree]:
        """({part: tree for all clients}, {part: tree with a row for each, [P, …]}, {"w": each client's weights}) of the
        parts in `names`, without empty trees (see `Part.download`)."""
        shared, each, rewards = dict[str, Tree](), dict[str, Tree](), dict[str, Tree]()
        for name, part in self.items():
            if name not in names:
                continue
            sends_weights = name == self.owner("receive")
            trees = check_download(f"{name}.download", part.download(memory[name], at), len(at), sends_weights)
            if trees[0]:
                shared[name] = trees[0]
            if trees[1]:
                each[name] = trees[1]
            if sends_weights:
                rewards["w"] = trees[2]
        return shared, each, rewards

    def advance(self, hook: Literal["observe", "update"], memory: Tree, round: Round) -> Tree:
        """{part: its state} after a hook of the server; memory: the states before."""
        states = Tree()
        for name, part in self.items():
            run = part.observe if hook == "observe" else part.update
            states[name] = check_tree(f"{name}.{hook}", "the part's state", run(memory[name], round))
        return states

    def factors(self, memory: Tree, round: Round) -> Tensor | None:
        """Factors of the updates before aggregation, float64 [P]; None if no part limits them."""
        limits = []
        for name, part in self.items():
            if has(part, "limit"):
                limit = part.limit(memory[name], round)
                limits.append(check_numbers(f"{name}.limit", limit, len(round.at), REPLIED))
        return torch.stack(limits).prod(0) if limits else None

    def weights(self, memory: Tree, round: Round) -> Tensor | None:
        """The updates' weights, float64 [P] or [P, P], from the owner of `weigh`; None if only the owner of `aggregate`
        knows them. Logs a note, once, if the weights of a user's own part sum to more than 1.

        Raises:
            FedweaveError: a client sent values that are not finite. ConfigError: the weights are not finite numbers of
                that shape.
        """
        owner = self.owner("weigh")
        if self.secure_sum or not owner:  # with secure aggregation the weights are inside the sum
            return None
        weights = self[owner].weigh(memory[owner], round)
        count = len(round.at)
        if weights is None and self.owner("aggregate"):
            return None
        if not isinstance(weights, Tensor) or weights.shape not in ((count,), (count, count)):
            self._raise_weights(owner, count)
        users_part = not type(self[owner]).__module__.startswith("fedweave.")  # FairGFL's sum to more on purpose
        if not self.recorded:
            self.check_finite(weights, round.replies, users_part)
        if users_part:
            with without_tape():
                total = float(weights.sum(-1).max())
            if total > 1.001 and owner not in self._noted:
                self._noted.add(owner)
                _log.warning(
                    "note: %s.weigh gives weights that sum to %.4g, so that a round goes that much further than the "
                    "mean of updates; divide them by their sum if that is not meant",
                    owner,
                    total,
                )
        return weights

    def check_finite(self, weights: Tensor, replies: Replies, waiting: bool = False) -> None:
        """Raise the errors of `weights` if weights are not finite, with the client whose update is not finite, or the
        part whose report is not; with traced hooks, after the whole round."""
        if not is_not_finite(weights, waiting):
            return
        faults = []
        for client in replies.clients:
            path = not_finite(replies[client])
            if path:
                faults.append((client, path))
        faults.sort(key=lambda fault: not fault[1].startswith("update"))  # updates first
        for client, path in faults:
            for name, part in self.items():
                if any(f"{path}/".startswith(f"{key}/") for key in part.sends):
                    message = part_diverged_message(name, f"what it reports as {path!r} at {client!r}")
                    raise FedweaveError(message, code="diverged")
            raise FedweaveError(diverged_message(f"{path} of {client!r}"), code="diverged")
        self._raise_weights(self.owner("weigh"), len(replies))

    def _raise_weights(self, owner: str, count: int) -> NoReturn:
        message = f"{owner}.weigh: is to give {count} finite weights, one of each {REPLIED}"
        raise ConfigError(message, code="config.weighing")

    def open_sums(self, memory: Tree, round: Round) -> Tree:
        """The results of secure aggregation other than the joint update; {} without it."""
        if not self.secure_sum:
            return {}
        declared = dict[str, Sends]()
        for part in self.values():
            declared |= self.secure_sum.declare(part)
        return self.secure_sum.open_means(memory[self._sum_name], round, declared)

    def joint(self, memory: Tree, round: Round) -> Tree:
        """The joint update, from the owner of `aggregate` or as the weighted sum; {} if no weights are shared."""
        if not round.w:
            return {}
        owner = self.owner("aggregate")
        if not owner:
            weighted: Tree = round.weighted()
            return weighted
        update = self[owner].aggregate(memory[owner], round)
        return check_leaves(f"{owner}.aggregate", "the joint update", update, round.w)

    def value(self, memory: Tree, round: Round) -> Tensor | None:
        """The value of each client's update, float64 [P]; None if no part decides it."""
        owner = self.owner("value")
        if not owner:
            return None
        return check_numbers(f"{owner}.value", self[owner].value(memory[owner], round), len(round.at), REPLIED)

    def try_models(self, memory: Tree, round: Round, try_out: TryOut) -> Tree:
        """{part: its state} after clients tried models."""
        owner = self.owner("try_models")
        if not owner:
            return memory
        return memory | {owner: self[owner].try_models(memory[owner], round, try_out)}

    def queries(self, clients: int, rounds: Sequence[int] | None = None) -> int:
        """The largest number of models that clients try in these rounds, counted from 1; None: in the round with the
        most."""
        owner = self.owner("try_models")
        if not owner:
            return 0
        trials = 1 if rounds is None else sum(map(self[owner].due, rounds))
        return trials * self[owner].queries(clients)

    # --- client

    @property
    def _sum_name(self) -> str:
        return next(name for name, part in self.items() if part is self.secure_sum)

    def change_data(self, ctx: Context) -> GraphArrays:
        """The client's data after all parts that change it; notifies the parts that follow its changes.

        Raises:
            ValueError: a part changes the number of nodes.
        """
        data = graph_arrays(ctx.client.graph)
        nodes = np.zeros(data.x.shape[0], bool)
        for name, part in self.items():
            if not has(part, "changes"):
                continue
            data, changed = part.changes(ctx.at(name), data)
            if data.x.shape[0] != len(nodes) or changed.shape != nodes.shape:
                raise ValueError(f"{name} changes the number of nodes; parts may only change the nodes' data")
            nodes = nodes | changed
        missing = ctx.client.graph.nodes - len(nodes)
        padded = torch.from_numpy(np.pad(nodes, (0, missing))).to(ctx.client.graph.device)
        for name, part in self.items():
            part.follow_changes(ctx.at(name), padded)
        return data

    def train(self, ctx: Context) -> Fit:
        """The result of local training, by the owner of `train` or with `local_steps` steps."""
        owner = self.owner("train")
        if not owner:
            inputs, state = ctx.sent, ctx.optimizer_state
            return ctx.objective.fit(ctx.start, ctx.client, ctx.client.key, inputs, anchor=ctx.received, state=state)
        result = self[owner].train(ctx.at(owner))
        if not isinstance(result, Fit):
            raise ConfigError(
                f"{owner}.train: is to give a Fit, as ctx.objective.fit does; it gives {type(result).__name__}"
            )
        check_leaves(f"{owner}.train", "the trained weights", result.w, ctx.start)
        return result

    def release(self, ctx: Context, update: Tree) -> tuple[Tree, Tree | None]:
        """The update after all parts' `release`; and as it was before the first part that masks it, None if no other
        part changed it."""
        visible = None
        for name, part in self.items():
            if has(part, "release"):
                result = part.release(ctx.at(name), update)
                # A release may give other dtypes, such as integers.
                update = check_leaves(f"{name}.release", "the update", result, update, dtypes=False)
                if not part.protection.hides:
                    visible = update
        return update, visible

    def reports(self, ctx: Context) -> Tree:
        """The reports of all parts; with secure aggregation, as masked integers."""
        reply = Tree()
        for name, part in self.items():
            if part is self.secure_sum:
                continue
            report = self._report(name, ctx)
            if not self.secure_sum:
                reply |= report
                continue
            means = {key: report[key] for key in self.secure_sum.declare(part) if key in report}
            if means:
                reply |= self.secure_sum.hide(ctx.at(self._sum_name), means)
        if self.secure_sum:  # the last, because it counts what was cut in the others' reports
            reply |= self._report(self._sum_name, ctx)
        return reply

    def _report(self, name: str, ctx: Context) -> Tree:
        report = self[name].report(ctx.at(name))
        if not isinstance(report, dict):
            raise ConfigError(f"{name}.report: is to give a tree, {{key: tensor}}; it gives {type(report).__name__}")
        return report

    def check_memory(self, state: Tree) -> None:
        """Check that no part keeps values in a client's `state` if another part needs `stateless` updates.

        Raises:
            ConfigError: a part does; the message contains both.
        """
        stateless = [name for name, part in self.items() if part.protection.stateless]
        keeping = [name for name in self if name in state]
        if stateless and keeping:
            raise ConfigError(
                f"parts: {part_name(self[keeping[0]])} keeps values at clients, but {part_name(self[stateless[0]])} "
                "with require_all = false needs updates from the present message only; set require_all = true"
                + preset_note(self, (keeping[0], stateless[0]))
            )

    # --- evaluation

    @property
    def tunes(self) -> bool:
        """Whether clients train the received weights for use."""
        owner = self.owner("personalize")
        return bool(owner) and self[owner].needs.personalizes == "tuned"

    @property
    def uses_received(self) -> bool:
        """Whether clients use the received weights as they are, as far as the parts decide."""
        owner = self.owner("personalize")
        if owner:
            return self[owner].needs.personalizes == "received"
        return not (self.owner("receive") or self.owner("start"))

    @property
    def evaluation_parts(self) -> list[str]:
        """The parts that must send their `download` before clients evaluate or use models: the parts that decide which
        model a client uses, or all parts if clients train it for use (`Needs.personalizes`). Downloads for training are
        not sent again."""
        if self.tunes:
            return list(self)
        owners = (self.owner("receive"), self.owner("personalize") or self.owner("start"))
        return [name for name in self if name in owners]

    def measures(self, memory: Tree, clients: int) -> dict[str, Tensor]:
        """{name: a value per client} from the parts' measures; a name that several parts use gets the part's name as
        prefix."""
        by_part, uses = dict[str, dict[str, Tensor]](), Counter[str]()
        for name, part in self.items():
            by_part[name] = check_measures(f"{name}.measures", part.measures(memory[name]), clients)
            uses.update(by_part[name].keys())
        measures = {}
        for name, measured in by_part.items():
            for key, values in measured.items():
                measures[f"{name}.{key}" if uses[key] > 1 else key] = values
        return measures

    def counts(self, memory: Tree) -> dict[str, float]:
        """{name: number for all clients together} from the parts' measures."""
        numbers = dict[str, float]()
        for name, part in self.items():
            for key, measured in part.measures(memory[name]).items():
                if not isinstance(measured, Tensor):
                    numbers[key] = measured
        return numbers

    def pairs(self, memory: Tree) -> dict[str, Tensor]:
        """{name: values for every two clients} from the parts' measures."""
        matrices = dict[str, Tensor]()
        for name, part in self.items():
            for key, measured in part.measures(memory[name]).items():
                if isinstance(measured, Tensor) and measured.dim() == 2:
                    matrices[key] = measured
        return matrices

    def warnings(self, memory: Tree) -> list[str]:
        """The parts' warnings after a round; waits for the device once."""
        flags = dict[str, Tensor]()
        for name, part in self.items():
            flags |= part.warns(memory[name])
        if not flags:
            return []
        applies = torch.stack([*flags.values()]).tolist()
        return [sentence for sentence, flag in zip(flags, applies, strict=True) if flag]


def _learns_by_key(name: str, part: Part) -> dict[str, str]:
    """{path in messages: what the client learns from it} of a part's `client_learns`."""
    if isinstance(part.client_learns, str):
        return {name: part.client_learns} if part.client_learns else {}
    return {f"{name}/{key}": text for key, text in part.client_learns.items()}

"""A site's memory of a run between calls, on its disk, and the order in which it accepts calls."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedweave.algorithms.scoring import AT_ONCE
from fedweave.core.algorithm import Calls
from fedweave.core.federation import Step, StepInfo, step_name
from fedweave.core.tree import Tree, decode, encode, leaves, map_leaves, not_finite
from fedweave.core.types import EVALUATION, PREDICTION, SETUP, TRAINING
from fedweave.deploy.flare.folder import private_folder
from fedweave.deploy.flare.policy import PolicyViolation
from fedweave.deploy.flare.requests import StepRequest
from fedweave.engines.messages import fingerprint
from fedweave.errors import NOT_FINITE, CallRefused
from fedweave.experiment.rounds import evaluated
from fedweave.experiment.runs.files import write
from fedweave.ops.touched import materialize


class Store:
    """A tree after the last call, and the earlier trees before each round to which a resuming server may go back. No
    leaf in the files is sparse.

    name: name of the tree's file. before: prefix of the earlier trees' files. lasting: False keeps changes in memory
    only, for a job whose changes end with it.
    """

    def __init__(self, folder: Path, name: str = "state", before: str = "before-", lasting: bool = True) -> None:
        self._folder, self._prefix, self._lasting = folder, before, lasting
        private_folder(folder)
        self._state = folder / f"{name}.safetensors"
        self.tree: Tree = decode(self._state.read_bytes(), filled=0) if self._state.exists() else {}
        self._round = max(self._rounds(), default=-1)

    def enter(self, round: int, saved: int) -> None:
        """Note that a call of `round` has come, and that the server holds a checkpoint of round `saved`."""
        if not self._lasting:
            return
        if round != self._round:
            self._link(self._before(round))
            self._round = round
        for number in self._rounds():
            if number <= saved:
                self._before(number).unlink()

    def keep(self, tree: Tree) -> None:
        """Store the state after a call."""
        self.tree = tree
        if not self._lasting:
            return
        if tree or self._state.exists():
            blob = encode(map_leaves(lambda leaf: leaf, tree))
            write(self._state, lambda file: file.write(blob))

    def go_back(self, round: int) -> None:
        """Continue from the state after `round`."""
        later = sorted(number for number in self._rounds() if number > round)
        if later:
            blob = self._before(later[0]).read_bytes()
            self.keep(decode(blob, filled=0) if blob else {})
        for number in later if self._lasting else ():
            self._before(number).unlink()
        self._round = max(self._rounds(), default=-1)

    def _link(self, path: Path) -> None:
        """Give the current state a second name. `write` replaces the first file, so that the second keeps its
        content."""
        path.unlink(missing_ok=True)
        if self._state.exists():
            os.link(self._state, path)
        else:
            path.touch()

    def _before(self, round: int) -> Path:
        return self._folder / f"{self._prefix}{round}"

    def _rounds(self) -> list[int]:
        names = (path.name.removeprefix(self._prefix) for path in self._folder.glob(f"{self._prefix}*"))
        return [int(name) for name in names if name.isdecimal()]


_PAST = "past"
_NOTHING = hashlib.sha256(b"").hexdigest()  # before the first message


class Memory:
    """A site's state in one run.

    folder: the run's folder at the site. lasting: whether changes outlast the job; False for prediction, which starts
    from the state after some round and must not change the state of training. chained: whether the run has secure
    aggregations whose terms depend on the state, and so on all messages that led to it. labelled: the steps that the
    server does not call at clients without labels (`core.algorithm.Calls`).
    """

    chained = False
    labelled: frozenset[str] = frozenset()

    def __init__(self, folder: Path, lasting: bool) -> None:
        self._state = Store(folder, lasting=lasting)
        self._messages = Store(folder, "told", "told-before-", lasting)  # file names of run folders

    def begun(self, info: StepInfo) -> Tree:
        """A copy of the state for a step, which may change it; {} for a stateless step."""
        return {} if info.stateless else map_leaves(lambda leaf: leaf, self._state.tree)

    def heard(self, step: str, message: Tree, info: StepInfo) -> str:
        """The fingerprint of all messages on which a step's reply and state depend: the present message and, unless the
        step is `stateless`, the messages that led to the state. "" if no secure aggregation needs it.

        An empty message to a step in `labelled` does not change the fingerprint: sites without labels have no such
        call, and the fingerprints of all sites must be equal.
        """
        if info.stateless:
            return fingerprint(message)
        if not self.chained:
            return ""
        past = bytes(self._messages.tree[_PAST].tolist()).hex() if self._messages.tree else _NOTHING
        if step in self.labelled and not any(leaves(message)):
            return past
        return hashlib.sha256(f"{past} {step} {fingerprint(message)}".encode()).hexdigest()

    def keep(self, state: Tree, heard: str, info: StepInfo) -> None:
        """Store the state after a call, unless the step is `apart`. If the step changed the state or the data, also
        store the fingerprint `heard`."""
        if info.apart:
            return
        if self.chained and (info.replaces_data or not _same(dict(leaves(self._state.tree)), dict(leaves(state)))):
            past = torch.tensor(list(bytes.fromhex(heard)), dtype=torch.uint8, device="cpu")
            self._messages.keep({_PAST: past})  # before the state: after a crash no state is without its fingerprint
        self._state.keep(state)

    def enter(self, round: int, saved: int) -> None:
        """Note that a call of `round` has come, and that the server holds a checkpoint of round `saved`."""
        for store in (self._state, self._messages) if self.chained else (self._state,):
            store.enter(round, saved)

    def go_back(self, round: int) -> None:
        """Continue from the state after `round`."""
        for store in (self._state, self._messages):
            store.go_back(round)


def _same(one: Tree, other: Tree) -> bool:
    return one.keys() == other.keys() and all(
        leaf is other[path] or (not isinstance(leaf, Tensor) and leaf == other[path]) for path, leaf in one.items()
    )


_LEFT = ".left"


class Noised(NamedTuple):
    """A reply with noise, and the site's state after it. left: whether it has left, and is counted."""

    reply: Tree
    state: Tree
    left: bool


class NoisedReplies:
    """The replies of a run with noise, as they were noised the first time, and the states after them. A round that is
    asked for again, because another site was lost, gets the same reply: fresh noise would cost ε again.

    folder: the run's folder at the site. A file's name has the round, and a hash of the call and of all that its reply
    depends on.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "noised"

    def name(self, call: StepRequest, *depends: Tree | str) -> str:
        """The name of the reply to a `call`. depends: message, state and data."""
        about = [call.step, str(call.again), *(one if isinstance(one, str) else fingerprint(one) for one in depends)]
        return f"{call.round}-{hashlib.sha256(json.dumps(about).encode()).hexdigest()}"

    def read(self, name: str) -> Noised | None:
        """The reply of that name; None if the call is new."""
        for path, left in ((self._folder / f"{name}{_LEFT}", True), (self._folder / name, False)):
            if path.exists():
                tree = decode(path.read_bytes(), filled=0)
                return Noised(tree.get("reply", {}), tree.get("state", {}), left)
        return None

    def keep(self, name: str, reply: Tree, state: Tree) -> None:
        """Store a reply before it leaves."""
        blob = encode(map_leaves(lambda leaf: leaf, {"reply": reply, "state": state}))
        write(private_folder(self._folder) / name, lambda file: file.write(blob))

    def mark_left(self, name: str) -> None:
        """Note that the ledger has an entry of the reply. If the process ends before, the next one counts it again."""
        path = self._folder / name
        if path.exists():
            path.rename(f"{path}{_LEFT}")

    def drop(self, saved: int) -> None:
        """Remove the replies of rounds up to `saved`, which no job repeats."""
        for path in self._folder.glob("*-*"):
            if int(path.name.partition("-")[0]) <= saved:
                path.unlink()

    def last_round(self) -> int:
        """The last round with a reply; -1 without one."""
        return max((int(path.name.partition("-")[0]) for path in self._folder.glob("*-*")), default=-1)


class Order:
    """A job's progress through the calls of its algorithm.

    Every call has a place in its round, by the occurrence of its step. Places only rise, so that no call comes twice or
    out of order. The server may leave a site out of some calls. Set-up is round 0, evaluation the end of a round.

    calls: the calls of the site's own algorithm. after: the round after which the job continues, -1 for none. rounds:
    number of rounds. every: how often the model is evaluated (`rounds.evaluated`). predict: whether the job predicts
    with a finished run's models after the round `after`. most: the number of models that may be tried in given rounds.
    """

    def __init__(
        self,
        calls: Calls,
        after: int,
        rounds: int,
        predict: bool = False,
        every: int = 1,
        most: Callable[[Sequence[int]], int] = lambda rounds: 0,
    ) -> None:
        self._setup, self._round = _names(calls.setup), _names((*calls.round, *calls.evaluation))
        self._training = len(calls.round)
        self._predicted = _names(calls.prediction) if predict else None
        self._first, self._last = (after, after) if predict else (after + 1, rounds)
        self._every, self._reached = every, (self._first, -1)
        self._most, self._tried = most, (self._first, 0)

    def admit(self, step: str, round: int, again: int) -> None:
        """Note that a call of `step` in `round` has come, after `again` earlier ones in this round.

        Raises:
            CallRefused: the call is out of order; names the calls that are due.
        """
        due = self._due(round)
        places = [place for place, name in enumerate(due) if name == step]
        here = (round, places[again] if again < len(places) else -1)
        if not self._first <= round <= self._last or here[1] < 0 or here <= self._reached:
            raise CallRefused(
                f"{step}, occurrence {again + 1} in round {round}, is out of the algorithm's order: {self._expected()}"
            )
        self._reached = here

    def count_tried(self, models: int) -> None:
        """Note that the last admitted call tried this number of `models`.

        Raises:
            CallRefused: the number exceeds the limit of one message, or the round's total exceeds the number of models
                that the algorithm tries.
        """
        round = self._reached[0]
        most, total = self._most([round]), models + (self._tried[1] if self._tried[0] == round else 0)
        if models > AT_ONCE or total > most:
            raise CallRefused(
                f"models to try in round {round}: {total} so far, {models} of them in one message; the algorithm tries "
                f"{most} in it, and {AT_ONCE} at once"
            )
        self._tried = round, total

    @property
    def round(self) -> int:
        """The round of the last admitted call."""
        return self._reached[0]

    @property
    def purpose(self) -> str:
        """The purpose of the last admitted call: prediction, set-up, training or evaluation."""
        round, place = self._reached
        if self._predicted is not None:
            return PREDICTION
        return SETUP if round == 0 else TRAINING if place < self._training else EVALUATION

    def _due(self, round: int) -> tuple[str, ...]:
        if self._predicted is not None:
            return self._predicted
        if not round:
            return self._setup
        return self._round if evaluated(round, self._last, self._every) else self._round[: self._training]

    def _expected(self) -> str:
        round, place = self._reached
        rest = list(dict.fromkeys(self._due(round)[place + 1 :]))
        words = [f"{' or '.join(rest)} in round {round}"] if rest else []
        if round < self._last:
            words.append(f"a later round, up to {self._last}")
        return f"expected is {', or '.join(words)}" if words else "nothing more is expected in this job"


def _names(steps: tuple[Step, ...]) -> tuple[str, ...]:
    return tuple(map(step_name, steps))


# ----------------------------------------------------------------------------------------------------
# Checks of a message before a step sees it.


# Keys of the store: paths and steps in JSON, and the numbers by place among the paths.
_PATHS, _STEPS, _LAST = "paths", "steps", "last"


class Downloads:
    """The last numbers of each path in a run's messages to any step. A site keeps them if its policy bounds the change
    to the next message. If the run goes back to an earlier round, the site still compares with the last message that
    came: otherwise the server could choose the message to compare with, and the bound would not hold.

    folder: the run's folder. bound: the largest L2 norm of a change; None keeps nothing. apart: whether messages are
    compared only with messages to the same step, because steps get representations of different lists of nodes under
    the same path. lasting: see `Store`.
    """

    def __init__(self, folder: Path, bound: float | None, apart: bool = False, lasting: bool = True) -> None:
        self._folder, self._apart, self._lasting = folder, apart, lasting
        self._store: Store | None = None
        self.tighten(bound)

    def tighten(self, bound: float | None) -> None:
        """Set the bound from the next message on. If there was no bound before, that message is the first to compare
        with."""
        self._bound = bound
        if bound is not None and self._store is None:
            self._store = Store(self._folder, "download", "download-before-", self._lasting)

    def check(self, step: str, message: Tree) -> None:
        """Refuse a message to `step` that is not finite, or that differs too much from the messages before.

        Raises:
            CallRefused: names the leaf. PolicyViolation: names the bound.
        """
        if path := not_finite(message):
            raise CallRefused(f"{path} of what {step} is sent {NOT_FINITE}")
        if self._store is None or self._bound is None:
            return
        steps, last = self._read(self._store.tree)
        within = f"{step}/" if self._apart else ""
        now = {within + path: leaf for path, leaf in compared(message).items()}
        moved = change(last, now, {within + path for path, _ in leaves(message)})
        if step in steps and set(steps[step]) != now.keys():
            moved = torch.inf
        if moved > self._bound:
            raise PolicyViolation(
                f"policy.max_change: what {step} is sent has changed by {moved:.4g} since the run's last message with "
                f"the same keys, and {self._bound:g} is allowed"
            )
        steps[step] = [*now]
        last |= now
        numbers = {str(place): leaf for place, leaf in enumerate(last.values())}
        self._store.keep({_PATHS: json.dumps([*last]), _STEPS: json.dumps(steps), _LAST: numbers})

    @staticmethod
    def _read(tree: Tree) -> tuple[dict[str, list[str]], dict[str, Tensor]]:
        """The paths of each step's last message, and each path's last numbers."""
        if not tree:
            return {}, {}
        paths, numbers = json.loads(tree[_PATHS]), tree.get(_LAST, {})
        return json.loads(tree[_STEPS]), {path: numbers[str(place)] for place, path in enumerate(paths)}


def compared(message: Tree) -> dict[str, Tensor]:
    """{path: numbers} of a message to compare: all floating-point leaves, and the integer leaves under the same first
    key as one of these, because they could be weights, too."""
    pairs = ((path, leaf) for path, leaf in leaves(message) if not isinstance(leaf, str))
    tensors = {path: torch.as_tensor(materialize(leaf), device="cpu") for path, leaf in pairs}
    heads = {path.split("/")[0] for path, leaf in tensors.items() if leaf.is_floating_point()}
    return {path: leaf for path, leaf in tensors.items() if path.split("/")[0] in heads}


def change(before: dict[str, Tensor], after: dict[str, Tensor], there: set[str]) -> float:
    """L2 norm of the change of all numbers that were in the message before. Infinite if a path that is still `there`
    has another shape, or no numbers to compare any more."""
    both = before.keys() & there
    if any(path not in after or after[path].shape != before[path].shape for path in both):
        return torch.inf
    squares = [((after[path].double() - before[path].double()) ** 2).sum() for path in sorted(both)]
    return float(sum(squares) ** 0.5) if squares else 0.0

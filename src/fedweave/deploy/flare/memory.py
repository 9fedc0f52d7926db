"""What a site remembers of a run from call to call, on its disk, and the order in which it answers calls."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedweave.algorithms.scoring import AT_ONCE
from fedweave.core.algorithm import Calls
from fedweave.core.federation import Step, StepInfo, step_name
from fedweave.core.tree import Tree, decode, encode, leaves, map_leaves, not_finite
from fedweave.core.types import EVALUATION, PREDICTION, SETUP, TRAINING
from fedweave.deploy.flare.folder import private_folder
from fedweave.deploy.flare.policy import PolicyViolation
from fedweave.engines.messages import fingerprint
from fedweave.errors import NOT_FINITE, CallRefused
from fedweave.experiment.rounds import evaluated
from fedweave.experiment.runs.files import write
from fedweave.ops.touched import materialize


class Store:
    """A tree after the last call, and as it was before each round that a resuming server may go back to; no leaf in its
    files is sparse.

    name: of the tree's file. before: begins the names of the earlier ones. lasting: False leaves the disk as it is, for
    a job whose changes are to end with it.
    """

    def __init__(self, folder: Path, name: str = "state", before: str = "before-", lasting: bool = True) -> None:
        self._folder, self._prefix, self._lasting = folder, before, lasting
        private_folder(folder)
        self._state = folder / f"{name}.safetensors"
        self.tree: Tree = decode(self._state.read_bytes(), filled=0) if self._state.exists() else {}
        self._round = max(self._rounds(), default=-1)

    def enter(self, round: int, saved: int) -> None:
        """A call of `round` has come, and the server holds a checkpoint of round `saved`."""
        if not self._lasting:
            return
        if round != self._round:
            self._link(self._before(round))
            self._round = round
        for number in self._rounds():
            if number <= saved:
                self._before(number).unlink()

    def keep(self, tree: Tree) -> None:
        """The state after a call."""
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
        """A second name for the current state; `write` replaces the first one, so that this one keeps its content."""
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

    folder: of the run at the site. lasting: what calls make of it outlasts the job; it does not where a run's models
    predict, from the state after some round, which leaves all that training goes on from. chained: the run has secure
    sums whose terms depend on the state, and so on what it was made of. labelled: the steps that are not called at
    clients without labels (`core.algorithm.Calls`).
    """

    chained = False
    labelled: frozenset[str] = frozenset()

    def __init__(self, folder: Path, lasting: bool) -> None:
        self._state = Store(folder, lasting=lasting)
        self._told = Store(folder, "told", "told-before-", lasting)

    def begun(self, info: StepInfo) -> Tree:
        """The state that a step finds, for it to change."""
        return {} if info.stateless else map_leaves(lambda leaf: leaf, self._state.tree)

    def heard(self, step: str, message: Tree, info: StepInfo) -> str:
        """The fingerprint of what a step makes its reply and state of besides the site's own data: the message and,
        unless it is `stateless`, those that made the state; "" where no secure sum needs it. One of `labelled` that is
        told nothing adds nothing: sites without labels have no such call, and all must have heard the same."""
        if info.stateless:
            return fingerprint(message)
        if not self.chained:
            return ""
        past = bytes(self._told.tree[_PAST].tolist()).hex() if self._told.tree else _NOTHING
        if step in self.labelled and not any(leaves(message)):
            return past
        return hashlib.sha256(f"{past} {step} {fingerprint(message)}".encode()).hexdigest()

    def keep(self, state: Tree, heard: str, info: StepInfo) -> None:
        """The state after a call, unless that is `apart`. What the step `heard` counts if it changed the state, or the
        data."""
        if info.apart:
            return
        if self.chained and (info.replaces_data or not _same(dict(leaves(self._state.tree)), dict(leaves(state)))):
            past = torch.tensor(list(bytes.fromhex(heard)), dtype=torch.uint8, device="cpu")
            self._told.keep({_PAST: past})  # first: no state outlives a process without what made it
        self._state.keep(state)

    def enter(self, round: int, saved: int) -> None:
        """A call of `round` has come, and the server holds a checkpoint of round `saved`."""
        for store in (self._state, self._told) if self.chained else (self._state,):
            store.enter(round, saved)

    def go_back(self, round: int) -> None:
        """Continue from what there was after `round`."""
        for store in (self._state, self._told):
            store.go_back(round)


def _same(one: Tree, other: Tree) -> bool:
    return one.keys() == other.keys() and all(
        leaf is other[path] or (not isinstance(leaf, Tensor) and leaf == other[path]) for path, leaf in one.items()
    )


class Order:
    """How far a job has come among the calls that its algorithm makes.

    Every call has a place in its round, the occurrence of its step there, and places only rise: no call comes twice, or
    after what follows it. A site may be left out of some. Set-up is round 0, evaluation the end of a round.

    calls: those of the site's own algorithm. after: the round whose state the job continues from, -1 for none. rounds:
    how many there are. every: in which of them there are evaluations (`rounds.evaluated`). predict: the job has a
    finished run's models predict, which are those after that round. most: how many models are tried in some rounds.
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
        """Note that the `again`-th further call of `step` in `round` has come.

        Raises:
            CallRefused: it is not its turn; names what is due.
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
        """Note that so many models were tried in the call that was admitted last.

        Raises:
            CallRefused: these are more than a message has, or with those before more than the algorithm tries in a
                round.
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
        """The round of the call that was admitted last."""
        return self._reached[0]

    @property
    def purpose(self) -> str:
        """What the call is for that was admitted last."""
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
# What a site checks of a message before a step sees it.


# Of the store: names in JSON, and the numbers by place among the paths.
_PATHS, _STEPS, _LAST = "paths", "steps", "last"


class Downloads:
    """The last numbers of each path in a run's messages, whatever step they were for, kept where the policy bounds how
    much the next ones may differ. They are the last that came, also where the run goes on from an earlier round: a
    server that could choose what its messages are compared with would be bound by nothing.

    folder: of the run. bound: the largest L2 norm of a change; None keeps nothing. apart: steps get representations of
    other lists of nodes under the same path, so that each step's messages are compared among themselves.
    lasting: see `Store`.
    """

    def __init__(self, folder: Path, bound: float | None, apart: bool = False, lasting: bool = True) -> None:
        self._folder, self._apart, self._lasting = folder, apart, lasting
        self._store: Store | None = None
        self.tighten(bound)

    def tighten(self, bound: float | None) -> None:
        """Bound messages so, from the next one on; where none was bounded yet, that is the first to compare with."""
        self._bound = bound
        if bound is not None and self._store is None:
            self._store = Store(self._folder, "download", "download-before-", self._lasting)

    def check(self, step: str, message: Tree) -> None:
        """Refuse a message of `step` that is not finite, or too far from those before.

        Raises:
            CallRefused: names the leaf. PolicyViolation: names the bound.
        """
        if path := not_finite(message):
            raise CallRefused(f"{path} of what {step} is sent {NOT_FINITE}")
        if self._store is None or self._bound is None:
            return
        steps, last = self._kept(self._store.tree)
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
    def _kept(tree: Tree) -> tuple[dict[str, list[str]], dict[str, Tensor]]:
        """The paths of each step's last message, and each path's last numbers."""
        if not tree:
            return {}, {}
        paths, numbers = json.loads(tree[_PATHS]), tree.get(_LAST, {})
        return json.loads(tree[_STEPS]), {path: numbers[str(place)] for place, path in enumerate(paths)}


def compared(message: Tree) -> dict[str, Tensor]:
    """{path: numbers} of a message: those that are floating-point, and whole ones beside such under the same first key,
    which could be weights as well."""
    pairs = ((path, leaf) for path, leaf in leaves(message) if not isinstance(leaf, str))
    tensors = {path: torch.as_tensor(materialize(leaf), device="cpu") for path, leaf in pairs}
    heads = {path.split("/")[0] for path, leaf in tensors.items() if leaf.is_floating_point()}
    return {path: leaf for path, leaf in tensors.items() if path.split("/")[0] in heads}


def change(before: dict[str, Tensor], after: dict[str, Tensor], there: set[str]) -> float:
    """L2 norm of the change of all numbers that had been before; infinite where one has another shape, or is no such
    number any more, though its path is `there`."""
    both = before.keys() & there
    if any(path not in after or after[path].shape != before[path].shape for path in both):
        return torch.inf
    squares = [((after[path].double() - before[path].double()) ** 2).sum() for path in sorted(both)]
    return float(sum(squares) ** 0.5) if squares else 0.0

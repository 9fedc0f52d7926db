"""What a site remembers of a run from call to call: its state, and as one fingerprint the messages that made it."""

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from fedweave.core.federation import StepInfo
from fedweave.core.tree import Tree, leaves, map_leaves
from fedweave.deploy.flare.store import Store
from fedweave.engines.summing import fingerprint

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
        """The state after a call. What the step `heard` counts if it changed the state, or the data."""
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

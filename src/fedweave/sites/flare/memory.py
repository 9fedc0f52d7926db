"""A site's memory of a run between calls, on its disk, and the order in which it accepts calls."""

import hashlib
import json
import os
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedweave.core.federation import StepInfo
from fedweave.core.tree import Tree, decode, encode, leaves, map_leaves
from fedweave.engines.sum_messages import fingerprint
from fedweave.experiment.runs.files import write
from fedweave.sites.flare.folder import private_folder
from fedweave.sites.flare.requests import StepRequest


class Store:
    """A tree after the last call, and the earlier trees before each round to which a resuming server may go back. No
    leaf in the files is sparse.

    name: name of the tree's file. before: prefix of the earlier trees' files. persistent: False keeps changes in memory
    only, for a job whose changes end with it.
    """

    def __init__(self, folder: Path, name: str = "state", before: str = "before-", persistent: bool = True) -> None:
        self._folder, self._prefix, self._persistent = folder, before, persistent
        private_folder(folder)
        self._state = folder / f"{name}.safetensors"
        self.tree: Tree = decode(self._state.read_bytes(), filled=0) if self._state.exists() else {}
        self._round = max(self._rounds(), default=-1)

    def enter(self, round: int, saved: int) -> None:
        """Note that a call of `round` has come, and that the server holds a checkpoint of round `saved`."""
        if not self._persistent:
            return
        if round != self._round:
            # A second name for the present state. `write` replaces the first file, so the second keeps its content.
            path = self._before(round)
            path.unlink(missing_ok=True)
            if self._state.exists():
                os.link(self._state, path)
            else:
                path.touch()
            self._round = round
        for number in self._rounds():
            if number <= saved:
                self._before(number).unlink()

    def keep(self, tree: Tree) -> None:
        """Store the state after a call."""
        self.tree = tree
        if not self._persistent:
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
        for number in later if self._persistent else ():
            self._before(number).unlink()
        self._round = max(self._rounds(), default=-1)

    def _before(self, round: int) -> Path:
        return self._folder / f"{self._prefix}{round}"

    def _rounds(self) -> list[int]:
        names = (path.name.removeprefix(self._prefix) for path in self._folder.glob(f"{self._prefix}*"))
        return [int(name) for name in names if name.isdecimal()]


_PAST = "past"
_NOTHING = hashlib.sha256(b"").hexdigest()  # before the first message


class Memory:
    """A site's state in one run.

    folder: the run's folder at the site. persistent: whether changes outlast the job; False for prediction, which
    starts from the state after some round and must not change the state of training. chained: whether the run has
    secure aggregations whose terms depend on the state, and so on all messages that led to it. labelled: the steps that
    the server does not call at clients without labels (`core.algorithm.Calls`).
    """

    chained = False
    labelled: frozenset[str] = frozenset()

    def __init__(self, folder: Path, persistent: bool) -> None:
        self._state = Store(folder, persistent=persistent)
        self._messages = Store(folder, "told", "told-before-", persistent)  # file names of run folders

    def state_for(self, info: StepInfo) -> Tree:
        """A copy of the state for a step, which may change it; {} for a stateless step."""
        return {} if info.stateless else map_leaves(lambda leaf: leaf, self._state.tree)

    def message_digest(self, step: str, message: Tree, info: StepInfo) -> str:
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

    def keep(self, state: Tree, message_digest: str, info: StepInfo) -> None:
        """Store the state after a call, unless the step is `apart`. If the step changed the state or the data, also
        store the fingerprint `message_digest`."""
        if info.apart:
            return
        before, after = dict(leaves(self._state.tree)), dict(leaves(state))
        changed = info.replaces_data or before.keys() != after.keys()
        if self.chained and not changed:
            for path, leaf in before.items():
                # Equal tensors count as changed: comparing them would take as long as writing them.
                changed |= leaf is not after[path] and (isinstance(leaf, Tensor) or leaf != after[path])
        if self.chained and changed:
            past = torch.tensor(list(bytes.fromhex(message_digest)), dtype=torch.uint8, device="cpu")
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


_SENT = ".left"


class Noised(NamedTuple):
    """A reply with noise, and the site's state after it. sent: whether it has left the site, and is counted."""

    reply: Tree
    state: Tree
    sent: bool


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
        for path, sent in ((self._folder / f"{name}{_SENT}", True), (self._folder / name, False)):
            if path.exists():
                tree = decode(path.read_bytes(), filled=0)
                return Noised(tree.get("reply", {}), tree.get("state", {}), sent)
        return None

    def keep(self, name: str, reply: Tree, state: Tree) -> None:
        """Store a reply before it leaves."""
        blob = encode(map_leaves(lambda leaf: leaf, {"reply": reply, "state": state}))
        write(private_folder(self._folder) / name, lambda file: file.write(blob))

    def mark_sent(self, name: str) -> None:
        """Note that the ledger has an entry of the reply. If the process ends before, the next one counts it again."""
        path = self._folder / name
        if path.exists():
            path.rename(f"{path}{_SENT}")

    def drop(self, saved: int) -> None:
        """Remove the replies of rounds up to `saved`, which no job repeats."""
        for path in self._folder.glob("*-*"):
            if int(path.name.partition("-")[0]) <= saved:
                path.unlink()

    def last_round(self) -> int:
        """The last round with a reply; -1 without one."""
        return max((int(path.name.partition("-")[0]) for path in self._folder.glob("*-*")), default=-1)

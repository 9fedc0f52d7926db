"""A site's private state of a run and the data that its steps made, on the site's disk: both survive the death of any
process, and never leave."""

import os
from pathlib import Path

from fedweave.core.tree import Tree, decode, encode, map_leaves
from fedweave.deploy.flare.private import private_folder
from fedweave.runs.files import write


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

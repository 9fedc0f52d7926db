"""What each client gets back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fedweave.core.tree import Tree


class Reward(Protocol):
    """What each client gets at the start of a round."""

    def shared(self, state: Tree) -> Tree:
        """The part of the message that all clients get."""
        ...

    def each(self, state: Tree, clients: Sequence[str]) -> dict[str, Tree] | None:
        """The part that differs between clients, or None."""
        ...


@dataclass(frozen=True)
class SameForAll:
    """Everyone gets the global weights."""

    def shared(self, state: Tree) -> Tree:
        """{"w": global weights}."""
        return {"w": state["w"]}

    def each(self, state: Tree, clients: Sequence[str]) -> dict[str, Tree] | None:
        """Nothing of their own."""
        return None

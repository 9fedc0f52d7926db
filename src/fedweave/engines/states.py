"""Clients' private states, stored stacked as the last batch left them, ready for the next one.

Leaves of a stack are tensors [P, …], partly stored ones (`TouchedRows`: `rest` [F, …], `rows` [P, m], `values`
[P, m, …]), which last while the same clients are called together, and numbers and strings that all share.

Replies and states share no memory with each other (`MemoryIsolation`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedweave.core.federation import Step
from fedweave.core.portions import row_of
from fedweave.core.tree import Tree, clone, leaves, nest
from fedweave.ops.memory import address, writes
from fedweave.ops.touched import TouchedRows


class MemoryIsolation:
    """Copies what shares memory with anything returned before, so that replies and states are independent."""

    def __init__(self, others: Sequence[object]) -> None:
        self._taken = {address(tensor) for tensor in others if isinstance(tensor, Tensor)}

    def copy(self, leaf: object) -> Any:
        """`leaf` if nothing else holds its memory, else a copy; what all clients share is repeated for each."""
        if not isinstance(leaf, Tensor):
            return leaf
        place = address(leaf)
        if place in self._taken or (leaf.dim() and 0 in leaf.stride() and leaf.numel()):
            leaf = leaf.detach().clone(memory_format=torch.contiguous_format)
            place = address(leaf)
        self._taken.add(place)
        return leaf


Group = tuple[str, ...]


class States:
    """{client: its state}, where clients of one batch share stacked tensors."""

    def __init__(self) -> None:
        self._stacks: dict[int, tuple[Group, Tree]] = {}
        self._home: dict[str, tuple[int, int]] = {}  # a number, since a tuple of clients is hashed anew each time
        self._next = 0

    def copy(self) -> "States":
        """A second store that later `put`s do not reach."""
        other = States()
        other._stacks, other._home, other._next = dict(self._stacks), dict(self._home), self._next
        return other

    def put(self, group: Group, stacked: Tree) -> None:
        """Store the states of `group`, stacked."""
        if self.together(group):
            self._stacks[self._home[group[0]][0]] = group, stacked
            return
        left = {self._home[client][0] for client in group if client in self._home}
        self._home.update({client: (self._next, row) for row, client in enumerate(group)})
        self._stacks[self._next], self._next = (group, stacked), self._next + 1
        for old in left:
            if all(self._home[client][0] != old for client in self._stacks[old][0]):
                del self._stacks[old]

    def one(self, client: str) -> Tree:
        """A copy of one client's state; {} before the first call."""
        if client not in self._home:
            return {}
        stack, row = self._home[client]
        return clone(nest({path: row_of(leaf, row) for path, leaf in leaves(self._stacks[stack][1])}))

    def many(self, group: Group, copy: bool = True) -> Tree:
        """The states of `group`, stacked; they must agree as in `split`. Copied or, if no stacking is needed, as they
        are stored."""
        if self.together(group):  # partly stored leaves cannot be changed in place and need no copy
            flat = leaves(self._stacks[self._home[group[0]][0]][1])
            return nest({path: leaf.clone() if copy and isinstance(leaf, Tensor) else leaf for path, leaf in flat})
        flats = [dict(leaves(self.one(client))) for client in group]
        return nest({path: _stack([flat[path] for flat in flats]) for path in flats[0]})

    def together(self, group: Group) -> bool:
        """Whether the states of `group` were put together."""
        homes = {self._home.get(client, (None, 0))[0] for client in group}
        return len(homes) == 1 and all(home is not None and self._stacks[home][0] == group for home in homes)

    def split(self, group: Group) -> list[Group]:
        """`group` in parts whose clients' states agree in structure, shapes and numbers, so that they can be stacked.

        They differ when only some clients have been called before.
        """
        parts: dict[object, list[str]] = {}
        if len({self._home.get(client, (None, 0))[0] for client in group}) == 1:
            return [group]
        for client in group:
            parts.setdefault(self._kind(client), []).append(client)
        return [tuple(part) for part in parts.values()]

    def _kind(self, client: str) -> tuple[object, ...]:
        if client not in self._home:
            return ()
        stack, row = self._home[client]
        flat = ((path, row_of(leaf, row)) for path, leaf in leaves(self._stacks[stack][1]))
        return tuple(
            (path, (leaf.shape, leaf.dtype) if isinstance(leaf, Tensor | TouchedRows) else leaf) for path, leaf in flat
        )

    def dump(self) -> Tree:
        """{client: state} of all clients that hold one."""
        return {client: state for client in self._home if (state := self.one(client))}


class Readers:
    """Steps that were observed to change no tensor of their states in place. Other steps get a copy, so that a step
    that fails leaves the states unchanged."""

    def __init__(self) -> None:
        self._steps: set[Step] = set()

    def __contains__(self, step: Step) -> bool:
        return step in self._steps

    def note(self, step: Step, states: Tree, before: list[int]) -> None:
        """Check whether the states that a step was given still have the versions that they had `before`."""
        if self.versions(states) == before:
            self._steps.add(step)
        else:
            self._steps.discard(step)

    @staticmethod
    def versions(states: Tree) -> list[int]:
        """Counters that rise when a tensor is changed in place."""
        return [writes(leaf) for _, leaf in leaves(states) if isinstance(leaf, Tensor)]


def _stack(values: list[Any]) -> Any:
    return torch.stack(values) if isinstance(values[0], Tensor) else values[0]

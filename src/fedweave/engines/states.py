"""Clients' private states, stored stacked as the last batch returned them, ready for the next one.

Clients that a later call separates from their batch have a row each in a `RowStore`. Its large leaves are in
memory-mapped files, which take no memory until they are read.

Leaves of a stack are tensors [P, …], partly stored ones (`TouchedRows`: `rest` [F, …], `rows` [P, m], `values`
[P, m, …]), which last while the same clients are called together, and numbers and strings that all share.

Replies and states share no memory with each other (`MemoryIsolation`).
"""

import json
import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from fedweave.core.federation import Step
from fedweave.core.replies import as_row, row_of
from fedweave.core.stacked import MANY, RowStream, is_stacked, read_whole, rows_at_once, stacked_tree
from fedweave.core.tree import Tree, clone, leaves, nest, to
from fedweave.errors import DiskFull
from fedweave.ops.identity import address, writes
from fedweave.ops.touched_rows import TouchedRows, materialize_stacked, move_leaf

_IN_MEMORY = 256 << 20  # bytes of one leaf; a larger leaf is in a file
_LOADED = 1 << 20  # bytes of an array; `map_large_array` puts a larger array into a file
_FIRST = 64  # first number of rows


class RowStore:
    """Rows of stacked leaves on the host; a row belongs to its client for good.

    like: {path: a stacked leaf} with the rows' shapes and dtypes; numbers and strings are equal in all rows.
    leaves: the same leaves with room for more rows.
    """

    def __init__(self, like: Mapping[str, Any]) -> None:
        self.leaves: dict[str, Any] = dict(like)
        self._rows: dict[str, int] = {}
        self._grow(_FIRST, 0)

    def put(self, clients: Sequence[str], leaves: Mapping[str, Any], rows: Sequence[int] | None = None) -> list[int]:
        """Store some `rows` of stacked leaves (None: all), one for each client; returns their row numbers here.

        Raises:
            DiskFull: there is no room for the file.
        """
        rows_before = len(self._rows)
        at = [self._rows.setdefault(client, len(self._rows)) for client in clients]
        if len(self._rows) > self._room:
            self._grow(max(2 * self._room, len(self._rows)), rows_before)
        places = torch.tensor(at, device="cpu")
        chosen = None if rows is None else torch.tensor(rows, device="cpu")
        for path, leaf in leaves.items():
            if isinstance(leaf, Tensor):
                selected = leaf if chosen is None else leaf.index_select(0, chosen.to(leaf.device))
                self.leaves[path].index_copy_(0, places, selected.to("cpu"))
        return at

    def _grow(self, room: int, rows_before: int) -> None:
        self._room = room
        for path, leaf in self.leaves.items():
            if isinstance(leaf, Tensor):
                self.leaves[path] = empty_rows((room, *leaf.shape[1:]), leaf.dtype)
                self.leaves[path][:rows_before] = leaf[:rows_before]


def empty_rows(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """An empty tensor on the host; a large one is in a file without a name, which disappears with the tensor.

    Raises:
        DiskFull: there is no room for the file.
    """
    size = math.prod(shape) * dtype.itemsize
    if size <= _IN_MEMORY:
        return torch.empty(shape, dtype=dtype, device="cpu")
    with _space(size, "states of clients that are not called") as file:
        mapped = np.memmap(file, np.uint8, "r+", shape=(size,))
    return torch.from_numpy(mapped).view(dtype).view(*shape)


def map_large_array(array: np.ndarray) -> np.ndarray:
    """An array that is rarely read; a large one is in a file without a name, and memory has its recently read parts.

    Raises:
        DiskFull: there is no room for the file.
    """
    if array.nbytes <= _LOADED:
        return array
    with _space(array.nbytes, "the data of a run on workers") as file:
        array.tofile(file)
        file.flush()
        return np.asarray(np.memmap(file, array.dtype, "c", shape=array.shape))


@contextmanager
def _space(size: int, what: str) -> Iterator[IO[bytes]]:
    """A file without a name with room for `size` bytes."""
    with tempfile.TemporaryFile() as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size) if hasattr(os, "posix_fallocate") else file.truncate(size)
        except OSError as error:
            raise DiskFull(
                f"{size / 1e9:.1f} GB for {what} cannot be written to {tempfile.gettempdir()}: "
                f"{error.strerror}. Free space there, or name another place by the environment variable TMPDIR."
            ) from error
        yield file


class MemoryIsolation:
    """Copies tensors that share memory with anything returned before, so that replies and states are independent.

    values: what was returned before; values that are not tensors are ignored.
    dense: also copies tensors with gaps in memory, which do not occur in copies out of a capture (`ops.captures`).
    Otherwise their strides would make a computation look like another one, which is recorded again.
    """

    def __init__(self, values: Sequence[object], dense: bool = False) -> None:
        self._dense = dense
        self._addresses = {address(value) for value in values if isinstance(value, Tensor)}

    def copy(self, leaf: object) -> Any:
        """`leaf` if no other tensor has its memory, else a copy; a value shared by all clients is repeated for each."""
        if not isinstance(leaf, Tensor):
            return leaf
        place = address(leaf)
        expanded = 0 in leaf.stride() and leaf.numel()
        if place in self._addresses or expanded or (self._dense and not leaf.is_contiguous()):
            leaf = leaf.detach().clone(memory_format=torch.contiguous_format)
            place = address(leaf)
        self._addresses.add(place)
        return leaf


Group = tuple[str, ...]
Leaves = dict[str, Any]  # {path: a stacked leaf}


class States:
    """{client: its state}, where clients of one batch share stacked tensors. device: device of returned states."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)
        self._stacks: dict[int, tuple[Group, Leaves]] = {}
        self._whole: frozenset[int] = frozenset()  # stacks that still have all their clients
        self._stores: dict[int, RowStore] = {}
        self._tables: dict[object, int] = {}  # kind of leaves -> number of the store in `_stores`
        self._store_sizes: dict[int, int] = {}  # store -> number of clients in it
        self._home: dict[str, tuple[int, int]] = {}  # numbers, because hashing a tuple of clients each time is slow
        self._next = 0

    def copy(self) -> "States":
        """A second store, unaffected by later `put`s, if `put`s into the copy are only of single clients."""
        other = States()
        for name, value in vars(self).items():
            setattr(other, name, value.copy() if isinstance(value, dict) else value)
        return other

    def put(self, group: Group, stacked: Leaves) -> None:
        """Store the states of `group`, stacked."""
        if self.together(group):
            self._stacks[self._home[group[0]][0]] = group, stacked
            return
        departures = Counter(self._home[client][0] for client in group if client in self._home)
        self._home.update({client: (self._next, row) for row, client in enumerate(group)})
        self._stacks[self._next] = group, stacked
        self._whole = (self._whole | {self._next}).difference(departures)
        self._next += 1
        for home, count in departures.items():
            if home in self._stacks:
                self._split_stack(home)
            else:
                self._shrink_store(home, count)

    def load(self, states: Tree) -> None:
        """Store {client: its state}, or stacked states, of clients without a state."""
        if is_stacked(states):
            for group in states["alike"].values():
                clients = tuple(json.loads(group["clients"]))
                self._store_rows(clients, dict(leaves(read_whole(group["rows"]))), range(len(clients)), clients)
            return
        for client, state in states.items():
            self._store_rows((client,), {path: as_row(leaf) for path, leaf in leaves(state)}, [0])

    def _split_stack(self, home: int) -> None:
        """After some clients have moved from a stack, move the remaining rows to a `RowStore`, or drop the stack."""
        group, stacked = self._stacks[home]
        flat = {path: _by_client(leaf) for path, leaf in stacked.items()}
        rows = [row for row, client in enumerate(group) if self._home[client] == (home, row)]
        if rows and any(isinstance(leaf, TouchedRows) for leaf in flat.values()):
            return  # its clients share most of their rows
        del self._stacks[home]
        if rows:
            self._store_rows([group[row] for row in rows], flat, rows, group if 2 * len(rows) > len(group) else ())

    def _store_rows(self, clients: Sequence[str], flat: Leaves, rows: Sequence[int], whole: Group = ()) -> None:
        """Store some `rows` of stacked leaves in a `RowStore`. whole: the clients of all rows, to write all rows
        unselected; rows of clients whose states are elsewhere are never read."""
        kind = self._kind(flat)
        if kind not in self._tables:
            self._tables[kind] = self._next
            self._stores[self._next], self._store_sizes[self._next] = RowStore(flat), 0
            self._next += 1
        home = self._tables[kind]
        if whole:
            store_rows = self._stores[home].put(whole, flat)
            at = [store_rows[row] for row in rows]
        else:
            at = self._stores[home].put(clients, flat, rows)
        self._home.update({client: (home, row) for client, row in zip(clients, at, strict=True)})
        self._store_sizes[home] += len(clients)

    def _shrink_store(self, home: int, count: int) -> None:
        """Count clients that have moved from a store; drop the store after the last one."""
        self._store_sizes[home] -= count
        if not self._store_sizes[home]:
            del self._store_sizes[home], self._stores[home]
            self._tables = {kind: table for kind, table in self._tables.items() if table != home}

    def one(self, client: str) -> Tree:
        """A copy of one client's state; {} before the first call."""
        if client not in self._home:
            return {}
        home, row = self._home[client]
        return clone(to(nest({path: row_of(leaf, row) for path, leaf in self._leaves(home).items()}), self._device))

    def many(self, group: Group, copy: bool = True) -> Leaves:
        """The states of `group`, stacked; they must agree as in `split`. They are copied, or returned as stored if no
        stacking is needed and `copy` is false."""
        if self.together(group):  # partly stored leaves cannot be changed in place and need no copy
            flat = self._leaves(self._home[group[0]][0])
            return {path: leaf.clone() if copy and isinstance(leaf, Tensor) else leaf for path, leaf in flat.items()}
        rows: dict[int, list[int]] = {}
        places: dict[int, list[int]] = {}
        for place, client in enumerate(group):
            home, row = self._home.get(client, (-1, 0))
            rows.setdefault(home, []).append(row)
            places.setdefault(home, []).append(place)

        # 1. rows of the stack with most of the clients, at all places
        largest, *remaining = sorted(rows, key=lambda home: -len(rows[home]))
        base = [rows[largest][0]] * len(group)
        for place, row in zip(places[largest], rows[largest], strict=True):
            base[place] = row
        base_rows = _index(base)
        result = {path: self._rows(leaf, base_rows) for path, leaf in self._leaves(largest).items()}

        # 2. rows of other stacks, copied to their places
        for home in remaining:
            flat, home_rows, at = self._leaves(home), _index(rows[home]), _index(places[home], self._device)
            for path, whole in result.items():
                if isinstance(whole, Tensor):
                    whole.index_copy_(0, at, self._rows(flat[path], home_rows))
        return result

    def _rows(self, leaf: Any, rows: Tensor) -> Any:
        """Some rows of a stacked leaf, in new memory on the device; a value that all clients share is returned."""
        if not isinstance(leaf, Tensor | TouchedRows):
            return leaf
        return move_leaf(materialize_stacked(row_of(leaf, rows.to(leaf.device))), self._device)

    def together(self, group: Group) -> bool:
        """Whether the states of `group` were stored together, and no client has been stored elsewhere since."""
        home, _ = self._home.get(group[0], (-1, 0))
        return home in self._whole and (self._stacks[home][0] is group or self._stacks[home][0] == group)

    def knows(self, group: Group) -> bool:
        """Whether any client of `group` has a state."""
        return any(client in self._home for client in group)

    def split(self, group: Group) -> list[Group]:
        """`group` in parts whose clients' states agree in structure, shapes and numbers, so that they can be stacked.

        They differ when only some clients have been called before.
        """
        if self.together(group):
            return [group]
        homes = [self._home.get(client, (-1, 0))[0] for client in group]
        if len(set(homes)) == 1:
            return [group]
        kinds = {home: self._kind(self._leaves(home)) for home in set(homes)}
        parts: dict[object, list[str]] = {}
        for client, home in zip(group, homes, strict=True):
            parts.setdefault(kinds[home], []).append(client)
        return [self._sort_by_counts(part) for part in parts.values()]

    def _sort_by_counts(self, part: list[str]) -> Group:
        """Clients of one kind, sorted so that clients with equal counts, such as optimizer steps, are adjacent: these
        can move at once (`learn.fitting`). Accelerators skip this, because reading values would wait."""
        if self._device.type != "cpu":
            return tuple(part)
        at: dict[int, dict[str, int]] = {}
        for client in part:
            home, row = self._home.get(client, (-1, 0))
            at.setdefault(home, {})[client] = row
        counts: dict[str, list[int]] = {client: [] for client in part}
        for home, rows in at.items():
            index = _index(rows.values())
            flat = [_by_client(leaf) for leaf in self._leaves(home).values()]
            for leaf in flat:
                if isinstance(leaf, Tensor) and leaf.dtype == torch.int64 and leaf.dim() == 1:  # one number per client
                    for client, count in zip(rows, leaf[index].tolist(), strict=True):
                        counts[client].append(count)
        return tuple(sorted(part, key=counts.__getitem__))

    def _leaves(self, home: int) -> Leaves:
        """The leaves of a stack or store; {} for clients without a state."""
        if home in self._stores:
            return self._stores[home].leaves
        return self._stacks[home][1] if home in self._stacks else {}

    @staticmethod
    def _kind(flat: Leaves) -> tuple[object, ...]:
        return tuple((path, _form(leaf)) for path, leaf in flat.items())

    def dump(self) -> Tree:
        """{client: state} of all clients with a state; states in one stack are copied at once."""
        clients_by_home, states = dict[int, list[str]](), dict[str, Tree]()
        for client, (home, _) in self._home.items():
            clients_by_home.setdefault(home, []).append(client)
        for home, clients in clients_by_home.items():
            rows = _index(self._home[client][1] for client in clients)
            whole = {path: self._rows(leaf, rows) for path, leaf in self._leaves(home).items()}
            for at, client in enumerate(clients):
                states[client] = nest({path: row_of(leaf, at) for path, leaf in whole.items()})
        return {client: states[client] for client in self._home if states[client]}

    def stacked(self, clients: Sequence[str]) -> Tree:
        """The states of those `clients` that have one, as stacked states (`core.stacked`) if there are many; their rows
        are read later, before the next `put`."""
        rows_by_home = dict[int, dict[str, int]]()
        for client in clients:
            home, row = self._home.get(client, (-1, 0))
            if self._leaves(home):
                rows_by_home.setdefault(home, {})[client] = row
        order = [client for client in clients if self._home.get(client, (-1, 0))[0] in rows_by_home]
        if len(order) < MANY:
            states = self.dump()
            return {client: states[client] for client in order}
        homes_by_form = dict[object, list[int]]()
        for home in rows_by_home:
            form = tuple((path, type(leaf), _form(leaf)) for path, leaf in self._leaves(home).items())
            homes_by_form.setdefault(form, []).append(home)
        groups = []
        for homes in homes_by_form.values():
            parts = [(self._leaves(home), list(rows_by_home[home].values())) for home in homes]
            streams = {path: self._stream(path, parts) for path in parts[0][0]}
            groups.append(([client for home in homes for client in rows_by_home[home]], streams))
        return stacked_tree(order, groups)

    def _stream(self, path: str, parts: Sequence[tuple[Leaves, list[int]]]) -> Any:
        """A leaf of clients with one form: (leaves of a stack or store, rows in it) for each of their places."""
        first = parts[0][0][path]
        if not isinstance(first, Tensor | TouchedRows):
            return first
        of_one = first.shape if isinstance(first, TouchedRows) else first.shape[1:]
        shape = (sum(len(rows) for _, rows in parts), *of_one)

        def pieces() -> Iterator[Tensor]:
            step = rows_at_once(shape, first.dtype)
            for flat, rows in parts:
                for start in range(0, len(rows), step):
                    yield self._rows(flat[path], _index(rows[start : start + step]))

        return RowStream(shape, first.dtype, pieces)


def _index(rows: Iterable[int], device: torch.device | str = "cpu") -> Tensor:
    return torch.tensor([*rows], dtype=torch.int64, device=device)


def _by_client(leaf: Any) -> Any:
    """A stacked leaf; a number that all clients share gets a row for each client."""
    return materialize_stacked(leaf) if isinstance(leaf, TouchedRows) and not leaf.rest.dim() else leaf


def _form(leaf: Any) -> object:
    """Shape and dtype of a client's part of a stacked leaf; any other value itself."""
    if isinstance(leaf, TouchedRows):
        return leaf.shape, leaf.dtype
    return (leaf.shape[1:], leaf.dtype) if isinstance(leaf, Tensor) else leaf


class Readers:
    """Steps that were observed to change no tensor of their states in place. Other steps get a copy, so that a step
    that fails leaves the states unchanged."""

    def __init__(self) -> None:
        self._steps: set[Step] = set()

    def __contains__(self, step: Step) -> bool:
        return step in self._steps

    def note(self, step: Step, states: Leaves, before: list[int]) -> None:
        """Check whether the input states of a step still have the versions that they had `before`."""
        if self.versions(states) == before:
            self._steps.add(step)
        else:
            self._steps.discard(step)

    @staticmethod
    def versions(states: Leaves) -> list[int]:
        """Counters that rise when a tensor is changed in place."""
        return [writes(leaf) for leaf in states.values() if isinstance(leaf, Tensor)]

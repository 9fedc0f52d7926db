"""States of many clients as one tree, which is read and written piece by piece.

A checkpoint of 100,000 clients has a million leaves. Written one by one they take minutes, and copied they take the
memory of all states again. So clients whose states have one form are stacked: {"order": all clients, "alike": {number:
{"clients": its clients, "rows": their states as one tree with leaves [clients, …]}}}. A stacked leaf is a `RowStream`,
whose rows are read while the file is written (`write_tree`).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from fedweave.core.tree import Leaf, Tree, leaves, map_stored, nest, wire_form
from fedweave.ops.sparsified import Sparsified
from fedweave.ops.touched_rows import TouchedRows, materialize

MANY = 64  # number of clients from which on their states are stacked
_PIECE = 16 << 20  # bytes of the rows that are read together
_NAMES = {  # of dtypes, in safetensors
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
ClientLeaves = Mapping[str, Any]  # {path: a leaf of one client's state, or of several, stacked}


class RowStream(NamedTuple):
    """A tensor of which only some rows at a time are in memory. pieces: its rows in order, tensors [some, …]."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: Callable[[], Iterator[Tensor]]

    def whole(self) -> Tensor:
        """The tensor."""
        return torch.cat([*self.pieces()])


def rows_at_once(shape: Sequence[int], dtype: torch.dtype) -> int:
    """How many rows of such a tensor [clients, …] are read together."""
    return max(1, _PIECE // max(1, torch.Size(shape[1:]).numel() * dtype.itemsize))


def form_of(leaf: Leaf) -> object:
    """What stacked leaves of clients have in common: shape and dtype, or the value itself if it is not a tensor."""
    if isinstance(leaf, Tensor | TouchedRows | Sparsified):
        return leaf.shape, leaf.dtype
    return type(leaf), leaf


def stacked_tree(order: Sequence[str], groups: Iterable[tuple[Sequence[str], ClientLeaves]]) -> Tree:
    """The tree of stacked states: all clients, and for each form its clients and their leaves by path."""
    alike = Tree()
    for number, (clients, rows) in enumerate(groups):
        alike[str(number)] = {"clients": json.dumps([*clients]), "rows": nest(dict(rows))}
    return {"order": json.dumps([*order]), "alike": alike}


def is_stacked(states: Tree) -> bool:
    """Whether a tree has stacked states; the state of a client whose name is "order" is a tree."""
    return isinstance(states.get("order"), str)


def stack_states(states: Tree) -> Tree:
    """{client: its state} as stacked states, if there are many clients."""
    if len(states) < MANY or is_stacked(states):
        return states
    by_form: dict[object, dict[str, ClientLeaves]] = {}
    for client, state in states.items():
        values = dict(leaves(state))
        form = tuple((path, form_of(leaf)) for path, leaf in values.items())
        by_form.setdefault(form, {})[client] = values
    groups = []
    for clients in by_form.values():
        first = next(iter(clients.values()))
        rows = {path: _stack([values[path] for values in clients.values()]) for path in first}
        groups.append(([*clients], rows))
    return stacked_tree([*states], groups)


def _stack(client_leaves: list[Any]) -> Any:
    first = materialize(client_leaves[0])
    if not isinstance(first, Tensor):
        return first
    shape = (len(client_leaves), *first.shape)

    def pieces() -> Iterator[Tensor]:
        step = rows_at_once(shape, first.dtype)
        for start in range(0, len(client_leaves), step):
            yield torch.stack([materialize(leaf) for leaf in client_leaves[start : start + step]])

    return RowStream(shape, first.dtype, pieces)


def check_states(states: Tree) -> None:
    """Check states that may be stacked and are from elsewhere.

    Raises:
        ValueError, TypeError, LookupError: their parts do not fit.
    """
    if not is_stacked(states):
        return
    names = list[str]()
    for group in states["alike"].values():
        clients = json.loads(group["clients"])
        for path, leaf in leaves(group["rows"]):
            if isinstance(leaf, Tensor) and leaf.shape[:1] != (len(clients),):
                raise ValueError(f"{path} has the shape {[*leaf.shape]} for {len(clients)} clients")
        names += clients
    if sorted(names) != sorted(json.loads(states["order"])):
        raise ValueError("the clients of its states are not those that it lists")


def unstack_states(states: Tree) -> Tree:
    """{client: its state}, of states that may be stacked."""
    if not is_stacked(states):
        return states
    result: Tree = {}
    for group in states["alike"].values():
        clients, stacks = json.loads(group["clients"]), dict(leaves(group["rows"]))
        columns = [leaf.unbind() if isinstance(leaf, Tensor) else [leaf] * len(clients) for leaf in stacks.values()]
        for client, *row in zip(clients, *columns, strict=True):
            result[client] = nest(dict(zip(stacks, row, strict=True)))
    return {client: result[client] for client in json.loads(states["order"])}


def read_whole(tree: Tree) -> Tree:
    """The tree with its `RowStream` leaves in memory."""
    return map_stored(lambda leaf: leaf.whole() if isinstance(leaf, RowStream) else leaf, tree)


def write_tree(file: BinaryIO, tree: Tree) -> None:
    """Write a tree to a new file as `core.tree.with_digest(encode(tree))` has it, for `decode`.

    `RowStream` leaves are read as they are written, so that a small part of the file is in memory. The digest, which is
    in the header, is written last.

    Raises:
        ReplyRefused: the tree has a leaf that it cannot have.
    """
    streams = {path: leaf for path, leaf in leaves(tree) if isinstance(leaf, RowStream)}
    rest, python = wire_form(map_stored(lambda leaf: "" if isinstance(leaf, RowStream) else leaf, tree))
    tensors: dict[str, Tensor | RowStream] = {**rest, **streams}
    for path in streams:
        del python[path]
    header: dict[str, Any] = {"__metadata__": {"python": json.dumps(python, sort_keys=True)}}
    order, end = sorted(tensors, key=lambda path: (-tensors[path].dtype.itemsize, path)), 0
    for path in order:
        leaf = tensors[path]
        start, end = end, end + torch.Size(leaf.shape).numel() * leaf.dtype.itemsize
        header[path] = {"dtype": _NAMES[leaf.dtype], "shape": [*leaf.shape], "data_offsets": [start, end]}
    digest = sha256(json.dumps(header, sort_keys=True).encode())
    header["__metadata__"]["digest"] = placeholder = "0" * 2 * digest.digest_size
    words = json.dumps(header).encode()
    words += b" " * (-len(words) % 8)  # tensors stay aligned
    file.write(len(words).to_bytes(8, "little") + words)
    for path in order:
        leaf = tensors[path]
        for piece in leaf.pieces() if isinstance(leaf, RowStream) else [leaf]:
            content = piece.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
            digest.update(content)
            file.write(content)
    file.seek(8 + words.index(f'"digest": "{placeholder}"'.encode()) + len('"digest": "'))
    file.write(digest.hexdigest().encode())

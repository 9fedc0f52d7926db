"""Clients' replies to one call, and sums over them that depend neither on the order nor on the grouping of clients.

An executor returns replies as portions (`Portion`): those of several clients at once, in this process (`ReplyBatch`) or
in another. `Joint` makes one of several portions, `Replies` brings them into client order for the server, and `Stacked`
holds values that differ between clients on their way to them. At the end: the members of a client that holds the data
of all of them, each scored on its own.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, Protocol, Self, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.core.sizes import size_classes
from fedweave.core.tree import Leaf, Tree, device_of, leaves, map_leaves, map_stored, nest
from fedweave.errors import FedweaveError, listed
from fedweave.ops.sparsified import Sparsified
from fedweave.ops.tape import constant
from fedweave.ops.touched_rows import TouchedRows, materialize_stacked

Sums: TypeAlias = Callable[[], dict[str, Tensor]]  # waits for sums, by path, in tensors of their own


class Portion(Protocol):
    """Replies of some clients, in this process or with the executor that ran the step.

    at: the clients' positions among all that were called. paths: the leaves that each of them replied.
    """

    @property
    def at(self) -> tuple[int, ...]:
        """The clients' positions."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the leaves of each reply."""

    def one(self, row: int) -> Tree:
        """The reply of the client at `at[row]`."""

    def stack(self, path: str) -> Tensor:
        """A leaf of all its clients, [P, …]."""

    def weighted_sum(self, paths: Sequence[str], weights: Tensor) -> Sums:
        """Begin to compute Σ_i weights[i] · leaf_i in float64 at each path; weights: float64 [P]."""

    def total(self, paths: Sequence[str]) -> Sums:
        """Begin to compute Σ_i leaf_i of masked integers at each path, int64, modulo their size."""

    def dtype(self, path: str) -> torch.dtype:
        """The dtype of a leaf."""

    @property
    def device(self) -> torch.device:
        """Where its sums and stacks lie."""


class ReplyBatch:
    """Replies that are in this process: `at` as in `Portion`, `tree` with leaves stacked [len(at), …] (numbers and
    strings as they are: equal for all of the batch)."""

    def __init__(self, at: tuple[int, ...], tree: Tree) -> None:
        self.at, self.flat, self.device = at, dict(leaves(tree)), device_of(tree)
        self.paths = tuple(self.flat)

    @classmethod
    def of(cls, at: int, reply: Tree) -> Self:
        """One client's reply."""
        return cls((at,), map_leaves(as_row, reply))

    def one(self, row: int) -> Tree:
        return nest({path: row_of(leaf, row) for path, leaf in self.flat.items()})

    def stack(self, path: str) -> Tensor:
        return _stack(self.flat[path], len(self.at), self.device)

    def weighted_sum(self, paths: Sequence[str], weights: Tensor) -> Sums:
        sums: dict[str, Tensor] = {}
        if self.device.type != "cpu":  # one product of all plain tensors, as many launches take longer than the sums
            plain = dict[str, Tensor]()
            for path in paths:
                leaf = self.flat[path]
                if isinstance(leaf, Tensor) and leaf.dtype.is_floating_point:
                    plain[path] = leaf.reshape(len(weights), -1)
            sizes = [rows.shape[1] for rows in plain.values()]
            if 0 < sum(sizes) * len(weights) <= _MAX_AT_ONCE:
                totals = weights @ torch.cat([*plain.values()], 1).double()  # [n]
                for path, total in zip(plain, totals.split(sizes), strict=True):
                    sums[path] = total.view(self.flat[path].shape[1:])
        for path in paths:
            if path not in sums:
                sums[path] = _weighted_sum(self.flat[path], weights, self.device)
        return lambda: sums

    def total(self, paths: Sequence[str]) -> Sums:
        sums = {path: self.stack(path).sum(0, dtype=torch.int64) for path in paths}
        return lambda: sums

    def dtype(self, path: str) -> torch.dtype:
        leaf = self.flat[path]
        if isinstance(leaf, Tensor | TouchedRows | Sparsified):
            return leaf.dtype
        return torch.float64 if isinstance(leaf, float) else torch.int64


class Joint:
    """Several portions as one; the clients of a portion follow the clients of the one before."""

    def __init__(self, portions: Sequence[Portion]) -> None:
        self._portions = tuple(portions)
        self.at = tuple(chain.from_iterable(portion.at for portion in portions))
        self.paths = portions[0].paths if portions else ()
        self.device = portions[0].device if portions else torch.device("cpu")

    @cached_property
    def _rows(self) -> list[tuple[Portion, int]]:
        rows = list[tuple[Portion, int]]()
        for portion in self._portions:
            rows += [(portion, row) for row in range(len(portion.at))]
        return rows

    def one(self, row: int) -> Tree:
        portion, position = self._rows[row]
        return portion.one(position)

    def stack(self, path: str, padding: float | None = None) -> Tensor:
        """See `Portion`. padding: the value behind the entries of clients that have fewer.

        Raises:
            FedweaveError: the clients' shapes differ.
        """
        parts = [portion.stack(path) for portion in self._portions]
        if len(parts) == 1:
            return parts[0]
        if padding is not None:
            length = max(part.shape[1] for part in parts)
            trailing = (0, 0) * (parts[0].dim() - 2)  # `F.pad` counts axes from the last one
            parts = [F.pad(part, (*trailing, 0, length - part.shape[1]), value=padding) for part in parts]
        if len({part.shape[1:] for part in parts}) > 1:
            shapes = sorted({str(list(part.shape[1:])) for part in parts})
            raise FedweaveError(
                f"replies differ in shape at {path!r}: {', '.join(shapes)}; iterate over them instead.",
                code="reply.shapes",
            )
        return torch.cat(parts)

    def weighted_sum(self, paths: Sequence[str], weights: Tensor) -> Sums:
        parts = weights.split([len(portion.at) for portion in self._portions])
        return _add([portion.weighted_sum(paths, part) for portion, part in zip(self._portions, parts, strict=True)])

    def total(self, paths: Sequence[str]) -> Sums:
        return _add([portion.total(paths) for portion in self._portions])

    def dtype(self, path: str) -> torch.dtype:
        return self._portions[0].dtype(path)


def _add(sums: Sequence[Sums]) -> Sums:
    """Add partial sums in their order, once they are waited for."""

    def wait() -> dict[str, Tensor]:
        totals, *rest = [partial_sum() for partial_sum in sums]
        for partial in rest:
            for path, total in totals.items():
                total += partial[path]
        return totals

    return wait


_MAX_AT_ONCE = 1 << 27  # elements that one product sums


def _chunk_size(device: torch.device) -> int:
    """Elements converted to float64 at a time."""
    # 8 MB stay in a CPU's cache; an eighth of it takes 50 % longer, and much larger chunks are mapped again each time.
    # An accelerator needs more to be used fully.
    return 1 << 20 if device.type == "cpu" else 1 << 26


def _weighted_sum(leaf: Leaf, weights: Tensor, device: torch.device) -> Tensor:
    """Σ_i w_i · leaf_i in float64."""
    if isinstance(leaf, TouchedRows):  # client i's row where it touched it, else the shared row
        total = torch.zeros(leaf.shape, dtype=torch.float64, device=device)
        touched = total.new_zeros(len(total) + 1, *total.shape[1:])  # the last row collects padding
        covered = total.new_zeros(len(total) + 1)
        clients = max(1, _chunk_size(leaf.device) // max(1, leaf.values[0].numel()))  # at a time
        for start in range(0, len(weights), clients):
            chunk = slice(start, start + clients)
            w, rows = weights[chunk], leaf.rows[chunk]
            values = leaf.values[chunk].double() * w.view(-1, *[1] * (leaf.values.dim() - 1))
            touched.index_add_(0, rows.reshape(-1), values.flatten(0, 1))
            covered.index_add_(0, rows.reshape(-1), w.repeat_interleave(rows.shape[1]))
        untouched = (weights.sum() - covered[:-1]).view(-1, *[1] * (total.dim() - 1))
        return total + touched[:-1] + untouched * leaf.rest.double()
    leaf = _stack(leaf, len(weights), device)
    total = torch.zeros(leaf.shape[1:], dtype=torch.float64, device=device)
    flat = leaf.reshape(len(weights), -1)  # [P, n]
    out = total.reshape(-1)  # [n], a view
    width = max(1, _chunk_size(device) // len(weights))
    for start in range(0, flat.shape[1], width):
        out[start : start + width] = weights @ flat[:, start : start + width].double()
    return total


def row_of(leaf: Leaf, row: int | Tensor) -> Leaf:
    """One client's part of a stacked leaf; of tensors, also several clients' parts (int64 [P])."""
    if isinstance(leaf, TouchedRows):
        return TouchedRows(leaf.rest, leaf.rows[row], leaf.values[row])
    if isinstance(leaf, Sparsified):
        return Sparsified(leaf.dense[row])
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.index_select(0, row) if isinstance(row, Tensor) else leaf[row]  # four times as fast as indexing


def as_row(leaf: Leaf) -> Leaf:
    """A leaf of one client as a stacked one; undone by `row_of`."""
    return leaf[None] if isinstance(leaf, Tensor) else leaf


def _stack(leaf: object, count: int, device: torch.device) -> Tensor:
    if isinstance(leaf, TouchedRows):
        result: Tensor = materialize_stacked(leaf)
        return result
    if isinstance(leaf, Tensor):
        return leaf
    return torch.tensor([leaf] * count, dtype=torch.float64 if isinstance(leaf, float) else None, device=device)


@lru_cache(maxsize=64)
def _rows(clients: tuple[str, ...], all_clients: tuple[str, ...], device: torch.device) -> Tensor:
    """int64 [P], the places of clients; cached because most rounds need the same ones on the device."""
    place = {client: row for row, client in enumerate(all_clients)}
    return constant(torch.tensor([place[client] for client in clients], device=device))


@dataclass(frozen=True)
class Stacked:
    """A tree with leaves [P, …] (tensors or `Sparsified`), row i for `clients[i]`."""

    clients: tuple[str, ...]
    tree: Tree

    def one(self, client: str) -> Tree:
        """The part of one client."""
        row = self.clients.index(client)
        return map_stored(lambda leaf: row_of(leaf, row), self.tree)

    def of(self, clients: Sequence[str]) -> Tree:
        """The rows of some clients, in their order."""
        if tuple(clients) == self.clients:
            return self.tree
        at = _rows(tuple(clients), self.clients, device_of(self.tree))
        return map_stored(lambda leaf: row_of(leaf, at), self.tree)


class Replies:
    """Replies in client order, which does not depend on the order of arrival.

    clients: ids of those who replied. missing: {id: reason} of those who did not. sums: declared keys whose sum is all
    that the server learns (`core.mechanism.SecureSum`): only `total` returns it.
    """

    def __init__(
        self,
        clients: Sequence[str],
        portions: Sequence[Portion],
        missing: Mapping[str, str],
        sums: Collection[str] = (),
    ) -> None:
        self.clients = tuple(clients)
        self.missing = dict(missing)
        self._sums = tuple(sums)
        self._portions = portions
        self._all = Joint(portions)

    @classmethod
    def of(cls, replies: Mapping[str, Tree], missing: Mapping[str, str], sums: Collection[str] = ()) -> Self:
        """{client: its reply}, in client order, as replies."""
        batches = [ReplyBatch.of(at, tree) for at, tree in enumerate(replies.values())]
        return cls(list(replies), batches, missing, sums)

    @cached_property
    def _row(self) -> dict[str, int]:
        return {self.clients[at]: row for row, at in enumerate(self._all.at)}

    @cached_property
    def _order(self) -> tuple[Tensor, Tensor] | None:
        """The client of each reply, int64 [P], and the reply of each client; None where replies are in client order."""
        return _client_order(self._all.at, self._all.device)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the leaves of each reply."""
        return self._all.paths

    @property
    def readable(self) -> list[str]:
        """The paths that the server may read for each client."""
        return [path for path in self.paths if not self._in_secure_sum(path)]

    @property
    def device(self) -> torch.device:
        """Where the replies lie."""
        return self._all.device

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[Tree]:
        return (self[client] for client in self.clients)

    def __getitem__(self, client: str) -> Tree:
        """One client's reply, without the keys that only `total` returns.

        Raises:
            FedweaveError: that client did not reply.
        """
        if client not in self._row:
            raise FedweaveError(
                f"client {client!r} did not reply; these {len(self):,} did: {listed(self.clients)}.",
                code="reply.no-client",
            )
        tree = self._all.one(self._row[client])
        if not self._sums:
            return tree
        return nest({path: leaf for path, leaf in leaves(tree) if not self._in_secure_sum(path)})

    def as_tree(self) -> Tree | None:
        """All replies as a tree of tensors, so that what the server computes from them can be traced (`from_tree`).

        None if a reply is in another process or in a secure sum, or a leaf is a number or a string.
        """
        batches = self.batches()
        if not batches:
            return None
        for batch in batches:
            if not all(isinstance(leaf, Tensor) for leaf in batch.flat.values()):
                return None
        order = {} if self._order is None else {"at": self._order[0], "order": self._order[1]}
        return {"replied": {str(at): nest(batch.flat) for at, batch in enumerate(batches)}, "places": order}

    def batches(self) -> list[ReplyBatch] | None:
        """The replies as batches of this process; None where some are in another process, or in a secure sum."""
        batches = [portion for portion in self._portions if isinstance(portion, ReplyBatch)]
        return None if self._sums or len(batches) < len(self._portions) else batches

    @classmethod
    def from_tree(cls, tree: Tree) -> Self:
        """Undo `as_tree`; the clients have no names."""
        portions: list[Portion] = []
        count = 0
        for replied in tree["replied"].values():
            size = len(next(leaf for _, leaf in leaves(replied)))
            portions.append(ReplyBatch(tuple(range(count, count + size)), replied))
            count += size
        replies = cls([""] * count, portions, {})
        replies._order = tuple(tree["places"].values()) or None
        return replies

    def stack(self, path: str, padding: float | None = None) -> Tensor:
        """One leaf of all clients, [P, …] in client order. padding: the value behind entries of those that have fewer.

        Raises:
            FedweaveError: there is no such leaf, or the clients' shapes differ; iterate over the replies instead.
        """
        below = self._paths(path)
        if path not in below:
            raise FedweaveError(
                f"{path!r} is a tree of {', '.join(below)}: stack one of these, or take its mean with "
                f"`weighted_sum({path!r}, weights)`."
            )
        stacked = self._all.stack(path, padding)
        return stacked.clone() if self._order is None else stacked[self._order[1]]

    def total(self, key: str) -> Any:
        """Σ_i reply_i[key] of masked integers, int32 or int64, modulo their size: a subtree or leaf, in the shapes of
        one client.

        Raises:
            FedweaveError: no reply has that key.
        """
        totals = self._all.total(self._paths(key, secret=True))()
        return _below(key, {path: total.to(self._all.dtype(path)) for path, total in totals.items()})

    def matrix(self, key: str) -> Tensor:
        """All leaves at or under `key`, raveled as `core.tree.ravel` does: float64 [P, D], in client order.

        Raises:
            FedweaveError: as `stack`.
        """
        return torch.cat([self.stack(path).reshape(len(self), -1).double() for path in sorted(self._paths(key))], 1)

    def weighted_sum(self, key: str, weights: Tensor) -> Any:
        """Σ_i weights[i] · reply_i[key], a subtree or leaf of tensors; weights [P] in client order.

        The sum is accumulated in float64, where the replies lie, and then rounded. So the order and grouping of clients
        do not change it, nor whether replies store rows that a client never touched (`TouchedRows`).
        """
        weights = weights.to(self.device, torch.float64)
        if weights.shape != (len(self),):
            raise FedweaveError(f"{len(self)} clients replied, but the weights have the shape {list(weights.shape)}.")
        if self._order is not None:
            weights = weights[self._order[0]]
        totals = self._all.weighted_sum(self._paths(key), weights)()
        for path, total in totals.items():
            dtype = self._all.dtype(path)
            # Sums of equal float32 numbers with rational weights often end exactly between two float32 numbers, where
            # the last bit of the sum, hence the grouping, would decide. A nudge far below float32's resolution decides.
            if dtype == torch.float32:
                total = total * (1 + 2.0**-40)
            totals[path] = total.to(dtype) if dtype.is_floating_point else total
        return _below(key, totals)

    def _in_secure_sum(self, path: str) -> bool:
        return any(f"{path}/".startswith(f"{key}/") for key in self._sums)

    def _paths(self, key: str, secret: bool = False) -> list[str]:
        """The leaves at or under `key`. secret: also those whose sum alone the server learns."""
        paths = [path for path in self.paths if path == key or path.startswith(f"{key}/")]
        if not secret and any(map(self._in_secure_sum, paths)):
            raise FedweaveError(
                f"{key!r} is in a secure sum: the server knows only its `total`, no single client's. Use `total`.",
                code="reply.no-key",
            )
        if not paths:
            raise FedweaveError(
                f"the replies have no {key!r}; they have {', '.join(self.paths) or 'nothing'}.", code="reply.no-key"
            )
        return paths


def _below(key: str, flat: dict[str, Tensor]) -> Any:
    """The leaf at `key`, or the tree of the leaves under it."""
    if key in flat:
        return flat[key]
    return nest({path.removeprefix(f"{key}/"): leaf for path, leaf in flat.items()})


@lru_cache(maxsize=16)
def _client_order(at: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor] | None:
    """See `Replies._order`; cached because most rounds need the same ones on the device."""
    order = sorted(range(len(at)), key=at.__getitem__)
    if order == [*range(len(at))]:
        return None
    return constant(torch.tensor(at, device=device)), constant(torch.tensor(order, device=device))


def on_host(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """The tensors as arrays; all tensors of one type come from a device in one piece."""
    if all(tensor.device.type == "cpu" for tensor in tensors.values()):
        return {name: tensor.contiguous().numpy() for name, tensor in tensors.items()}
    arrays: dict[str, np.ndarray] = {}
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors.values()):
        group = {name: tensor for name, tensor in tensors.items() if tensor.dtype == dtype}
        flat = torch.cat([tensor.reshape(-1) for tensor in group.values()])
        # torch reuses pinned memory from round to round; other memory copies slowly, and its pages come first
        host = torch.empty(flat.shape, dtype=dtype, device="cpu", pin_memory=flat.is_cuda).copy_(flat)
        parts = host.split([tensor.numel() for tensor in group.values()])
        arrays |= {name: part.view(group[name].shape).numpy() for name, part in zip(group, parts, strict=True)}
    return arrays


def members_by_size(members: Mapping[str, Tensor]) -> tuple[tuple[tuple[str, int], ...], tuple[Tensor, ...]]:
    """(member, its place among all) and, in the same order, the examples of each.

    members: {member: int64 [m], the numbers of its examples}. The examples are int64 [M, m] for the members of one
    size, padded by -1.
    """
    sizes = size_classes([len(values) for values in members.values()])
    order = sorted(range(len(members)), key=sizes.__getitem__)
    names = list(members)
    by_width: dict[int, list[Tensor]] = {}
    for at in order:
        examples = members[names[at]]
        by_width.setdefault(sizes[at], []).append(F.pad(examples, (0, sizes[at] - len(examples)), value=-1))
    return tuple((names[at], at) for at in order), tuple(torch.stack(rows) for rows in by_width.values())


def member_replies(replies: Replies, members: tuple[tuple[str, int], ...]) -> Replies:
    """The replies of all members, from the one client that holds their data.

    Its leaves [M, …] have a row for each member, in the order of `members` (`members_by_size`). Unchanged without
    members, or if the reply has no such rows.
    """
    if not members or not len(replies):
        return replies
    [client] = replies.clients
    flat = dict(leaves(replies[client]))
    if any(leaf.shape[:1] != (len(members),) or leaf.dim() < 2 for leaf in flat.values()):
        return replies
    at = tuple(place for _, place in members)
    names = [name for name, _ in sorted(members, key=itemgetter(1))]
    return Replies(names, [ReplyBatch(at, nest(flat))], {})

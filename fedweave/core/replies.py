"""What clients answered, and sums of it that depend neither on order nor on grouping."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedweave.core.tree import Tree, device_of, leaves, nest
from fedweave.errors import FedweaveError
from fedweave.ops.sparsified import Sparsified
from fedweave.ops.touched import TouchedRows, materialize_stacked


@dataclass(frozen=True)
class Batch:
    """Replies of some clients: `at` their positions among the repliers, `tree` with leaves stacked [len(at), …]
    (numbers and strings as they are: equal for all of the batch)."""

    at: tuple[int, ...]
    tree: Tree


class Replies:
    """Replies in client order, whatever order they arrived in.

    clients: ids of those who replied. missing: {id: reason} of those who did not. sums: declared keys of which the
    server learns only the sum (`core.mechanism.SecureSum`): only `total` returns it.
    """

    def __init__(
        self,
        clients: Sequence[str],
        batches: Sequence[Batch],
        missing: Mapping[str, str],
        sums: Collection[str] = (),
    ) -> None:
        self.clients, self.missing, self._sums = tuple(clients), dict(missing), tuple(sums)
        self._batches = [
            (torch.tensor(batch.at, device=device_of(batch.tree)), dict(leaves(batch.tree))) for batch in batches
        ]
        self._place = {self.clients[at]: (b, row) for b, batch in enumerate(batches) for row, at in enumerate(batch.at)}

    @property
    def device(self) -> torch.device:
        """Where they lie."""
        return self._batches[0][0].device

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[Tree]:
        return (self[client] for client in self.clients)

    def __getitem__(self, client: str) -> Tree:
        """One client's reply, without the keys that only `total` returns.

        Raises:
            FedweaveError: that client did not reply.
        """
        if client not in self._place:
            raise FedweaveError(f"client {client!r} did not reply; these did: {', '.join(self.clients)}.")
        batch, row = self._place[client]
        shown = {path: leaf for path, leaf in self._batches[batch][1].items() if not self._hidden(path)}
        return nest({path: row_of(leaf, row) for path, leaf in shown.items()})

    def stack(self, path: str) -> Tensor:
        """One leaf of all clients, [P, …] in client order.

        Raises:
            FedweaveError: there is no such leaf, or the clients' shapes differ; iterate over the replies instead.
        """
        if path not in (below := self._paths(path)):
            raise FedweaveError(
                f"{path!r} is a tree of {', '.join(below)}: stack one of these, or take its mean with "
                f"`weighted_sum({path!r}, weights)`."
            )
        parts = [_stacked(flat[path], len(at), at.device) for at, flat in self._batches]
        if len({part.shape[1:] for part in parts}) > 1:
            shapes = sorted({str(list(part.shape[1:])) for part in parts})
            raise FedweaveError(f"replies differ in shape at {path!r}: {', '.join(shapes)}; iterate over them instead.")
        order = torch.cat([at for at, _ in self._batches]).argsort()
        return torch.cat(parts)[order]

    def total(self, key: str) -> Any:
        """Σ_i reply_i[key] of words, int32 or int64, modulo their size: a subtree or leaf, in one client's shapes.

        Raises:
            FedweaveError: no reply has that key.
        """
        found = {
            path: sum(_stacked(flat[path], len(at), at.device).sum(0, dtype=torch.int64) for at, flat in self._batches)
            for path in self._paths(key, shown=False)
        }
        like = self._batches[0][1]
        flat = {path: total.to(like[path].dtype) for path, total in found.items() if isinstance(total, Tensor)}
        return flat[key] if key in flat else nest({path.removeprefix(f"{key}/"): leaf for path, leaf in flat.items()})

    def matrix(self, key: str) -> Tensor:
        """All leaves at or under `key`, raveled as `core.tree.ravel` does: float64 [P, D], in client order.

        Raises:
            FedweaveError: as `stack`.
        """
        return torch.cat([self.stack(path).reshape(len(self), -1).double() for path in sorted(self._paths(key))], 1)

    def weighted_sum(self, key: str, weights: Tensor) -> Any:
        """Σ_i weights[i] · reply_i[key], a subtree or leaf of tensors; weights [P] in client order.

        Accumulated in float64, where the replies lie, and then rounded, so that the result depends neither on the order
        or grouping of clients nor on whether rows that a client never touched are stored (`TouchedRows`).
        """
        weights = weights.double().to(self.device)
        if weights.shape != (len(self),):
            raise FedweaveError(f"{len(self)} clients replied, but the weights have the shape {list(weights.shape)}.")
        flat = {path: _weighted([(b[path], weights[at]) for at, b in self._batches]) for path in self._paths(key)}
        return flat[key] if key in flat else nest({path.removeprefix(f"{key}/"): leaf for path, leaf in flat.items()})

    def _hidden(self, path: str) -> bool:
        return any(f"{path}/".startswith(f"{key}/") for key in self._sums)

    def _paths(self, key: str, shown: bool = True) -> list[str]:
        """The leaves at or under `key`."""
        paths = [path for path in self._batches[0][1] if path == key or path.startswith(f"{key}/")]
        if shown and any(map(self._hidden, paths)):
            raise FedweaveError(f"{key!r} is in a secure sum: no client's own is known, only their `total`.")
        if not paths:
            raise FedweaveError(
                f"the replies have no {key!r}; they have {', '.join(self._batches[0][1]) or 'nothing'}."
            )
        return paths


def _piece(device: torch.device) -> int:
    """Elements converted to float64 at a time: pieces that stay in a processor's cache, so that memory is passed over
    once; on accelerators as many as use all of it."""
    return 1 << 17 if device.type == "cpu" else 1 << 26


def _weighted(parts: list[tuple[Any, Tensor]]) -> Tensor:
    like = parts[0][0]
    shape = like.shape if isinstance(like, TouchedRows) else like.shape[1:]
    total = torch.zeros(shape, dtype=torch.float64, device=like.device)
    for leaf, weights in parts:
        if isinstance(leaf, TouchedRows):
            _add_touched(total, leaf, weights)
            continue
        flat, out = leaf.reshape(len(weights), -1), total.reshape(-1)
        width = max(1, _piece(leaf.device) // len(weights))
        for start in range(0, flat.shape[1], width):
            out[start : start + width] += weights @ flat[:, start : start + width].double()
    # Sums of equal float32 numbers with rational weights often end exactly between two float32 numbers, where the last
    # bit of the sum, hence the grouping, would decide. A nudge far below float32's resolution decides instead.
    if like.dtype == torch.float32:
        total = total * (1 + 2.0**-40)
    return total.to(like.dtype) if like.dtype.is_floating_point else total


def _add_touched(total: Tensor, leaf: TouchedRows, weights: Tensor) -> None:
    """Add Σ_i w_i · (own rows where touched, the shared row elsewhere)."""
    own = total.new_zeros(len(total) + 1, *total.shape[1:])  # the last row collects padding
    covered = total.new_zeros(len(total) + 1)
    per = max(1, _piece(leaf.device) // max(1, leaf.values[0].numel()))
    for start in range(0, len(weights), per):
        w, rows = weights[start : start + per], leaf.rows[start : start + per]
        values = leaf.values[start : start + per].double() * w.view(-1, *[1] * (leaf.values.dim() - 1))
        own.index_add_(0, rows.reshape(-1), values.flatten(0, 1))
        covered.index_add_(0, rows.reshape(-1), w.repeat_interleave(rows.shape[1]))
    untouched = (weights.sum() - covered[:-1]).view(-1, *[1] * (total.dim() - 1))
    total += own[:-1] + untouched * leaf.rest.double()


def row_of(leaf: Any, row: Any) -> Any:
    """One client's part of a stacked leaf; of tensors, also several clients' parts (int64 [P])."""
    if isinstance(leaf, TouchedRows):
        return TouchedRows(leaf.rest, leaf.rows[row], leaf.values[row])
    if isinstance(leaf, Sparsified):
        return Sparsified(leaf.dense[row])
    return leaf[row] if isinstance(leaf, Tensor) else leaf


def as_row(leaf: Any) -> Any:
    """A leaf of one client as a stacked one; undone by `row_of`."""
    return leaf[None] if isinstance(leaf, Tensor) else leaf


def _stacked(leaf: Any, count: int, device: torch.device) -> Tensor:
    if isinstance(leaf, TouchedRows):
        return materialize_stacked(leaf)
    if isinstance(leaf, Tensor):
        return leaf
    return torch.tensor([leaf] * count, dtype=torch.float64 if isinstance(leaf, float) else None, device=device)

"""What clients answered, and sums of it that depend neither on order nor on grouping.

Where one client holds what all members hold, its reply is taken apart, so that each member can be scored on its own.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fedweave.core.portions import Batch, Joint, Portion, here
from fedweave.core.sizes import size_classes
from fedweave.core.tree import Tree, leaves, nest
from fedweave.errors import FedweaveError, listed


class Replies:
    """Replies in client order, whatever order they arrived in.

    clients: ids of those who replied. missing: {id: reason} of those who did not. sums: declared keys of which the
    server learns only the sum (`core.mechanism.SecureSum`): only `total` returns it.
    """

    def __init__(
        self,
        clients: Sequence[str],
        portions: Sequence[Portion],
        missing: Mapping[str, str],
        sums: Collection[str] = (),
    ) -> None:
        self.clients, self.missing, self._sums = tuple(clients), dict(missing), tuple(sums)
        self._portions, self._all = portions, Joint(portions)

    @cached_property
    def _row(self) -> dict[str, int]:
        return {self.clients[at]: row for row, at in enumerate(self._all.at)}

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor] | None:
        """Whose each reply is, int64 [P], and where each client's is; None where they are in client order."""
        return _places(self._all.at, self._all.device)

    @property
    def paths(self) -> tuple[str, ...]:
        """Of the leaves of each reply."""
        return self._all.paths

    @property
    def readable(self) -> list[str]:
        """The paths of what the server may read of each client."""
        return [path for path in self.paths if not self._hidden(path)]

    @property
    def device(self) -> torch.device:
        """Where they lie."""
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
        return nest({path: leaf for path, leaf in leaves(tree) if not self._hidden(path)}) if self._sums else tree

    def here(self) -> Tree | None:
        """All that was replied, as a tree of tensors of which a server may record what it computes (`from_here`); None
        where some of it is elsewhere, no tensor, or in a secure sum."""
        replied = here(self._portions) if self._portions and not self._sums else None
        places = dict(zip(("at", "order"), self._places or (), strict=False))
        return None if replied is None else {"replied": replied, "places": places}

    @classmethod
    def from_here(cls, tree: Tree) -> Self:
        """Undo `here`; nobody has a name."""
        portions, count = list[Portion](), 0
        for replied in tree["replied"].values():
            own = len(next(leaf for _, leaf in leaves(replied)))
            portions.append(Batch(tuple(range(count, count + own)), replied))
            count += own
        made = cls([""] * count, portions, {})
        made._places = tuple(tree["places"].values()) or None
        return made

    def stack(self, path: str, padding: float | None = None) -> Tensor:
        """One leaf of all clients, [P, …] in client order. padding: behind the entries of clients that have fewer.

        Raises:
            FedweaveError: there is no such leaf, or the clients' shapes differ; iterate over the replies instead.
        """
        if path not in (below := self._paths(path)):
            raise FedweaveError(
                f"{path!r} is a tree of {', '.join(below)}: stack one of these, or take its mean with "
                f"`weighted_sum({path!r}, weights)`."
            )
        found = self._all.stack(path, padding)
        return found.clone() if self._places is None else found[self._places[1]]

    def total(self, key: str) -> Any:
        """Σ_i reply_i[key] of words, int32 or int64, modulo their size: a subtree or leaf, in one client's shapes.

        Raises:
            FedweaveError: no reply has that key.
        """
        found = self._all.total(self._paths(key, shown=False))()
        flat = {path: total.to(self._all.dtype(path)) for path, total in found.items()}
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
        weights = weights.to(self.device, torch.float64)
        if weights.shape != (len(self),):
            raise FedweaveError(f"{len(self)} clients replied, but the weights have the shape {list(weights.shape)}.")
        found = self._all.weighted(self._paths(key), weights if self._places is None else weights[self._places[0]])()
        flat = {path: _rounded(total, self._all.dtype(path)) for path, total in found.items()}
        return flat[key] if key in flat else nest({path.removeprefix(f"{key}/"): leaf for path, leaf in flat.items()})

    def _hidden(self, path: str) -> bool:
        return any(f"{path}/".startswith(f"{key}/") for key in self._sums)

    def _paths(self, key: str, shown: bool = True) -> list[str]:
        """The leaves at or under `key`."""
        paths = [path for path in self.paths if path == key or path.startswith(f"{key}/")]
        if shown and any(map(self._hidden, paths)):
            raise FedweaveError(
                f"{key!r} is in a secure sum: no client's own is known, only their `total`.", code="reply.no-key"
            )
        if not paths:
            raise FedweaveError(
                f"the replies have no {key!r}; they have {', '.join(self.paths) or 'nothing'}.", code="reply.no-key"
            )
        return paths


@lru_cache(maxsize=16)
def _places(at: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor] | None:
    """See `Replies._places`; the same in most rounds, and not copied to a device in each."""
    order = sorted(range(len(at)), key=at.__getitem__)
    if order == [*range(len(at))]:
        return None
    return torch.tensor(at, device=device), torch.tensor(order, device=device)


def _rounded(total: Tensor, dtype: torch.dtype) -> Tensor:
    """A sum as a number of `dtype`."""
    # Sums of equal float32 numbers with rational weights often end exactly between two float32 numbers, where the last
    # bit of the sum, hence the grouping, would decide. A nudge far below float32's resolution decides instead.
    if dtype == torch.float32:
        total = total * (1 + 2.0**-40)
    return total.to(dtype) if dtype.is_floating_point else total


def on_host(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """The tensors as arrays; those of one type come from a device in one piece."""
    if all(tensor.device.type == "cpu" for tensor in tensors.values()):
        return {name: tensor.contiguous().numpy() for name, tensor in tensors.items()}
    found: dict[str, np.ndarray] = {}
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors.values()):
        own = {name: tensor for name, tensor in tensors.items() if tensor.dtype == dtype}
        flat = torch.cat([tensor.reshape(-1) for tensor in own.values()])
        # pinned, as torch keeps it from one round to the next: what is not comes slowly, and its pages are made first
        there = torch.empty(flat.shape, dtype=dtype, device="cpu", pin_memory=flat.is_cuda).copy_(flat)
        parts = there.split([tensor.numel() for tensor in own.values()])
        found |= {name: part.view(own[name].shape).numpy() for name, part in zip(own, parts, strict=True)}
    return found


def by_size(members: Mapping[str, Tensor]) -> tuple[tuple[tuple[str, int], ...], tuple[Tensor, ...]]:
    """(member, its place among all) and, in the same order, what each holds, int64 [M, m] for those of one size, padded
    by -1."""
    sizes = size_classes([len(own) for own in members.values()])
    order = sorted(range(len(members)), key=sizes.__getitem__)
    names, held = [*members], [*members.values()]
    rows = [torch.nn.functional.pad(held[at], (0, sizes[at] - len(held[at])), value=-1) for at in order]
    widths = dict.fromkeys(len(row) for row in rows)
    classes = tuple(torch.stack([row for row in rows if len(row) == width]) for width in widths)
    return tuple((names[at], at) for at in order), classes


def of_members(replies: Replies, members: tuple[tuple[str, int], ...]) -> Replies:
    """The replies of all members, from the one client's: its leaves [M, …] have a row for each, in the order of
    `members` (`by_size`). As it is where there are none, or where the reply has no such rows."""
    if not members or not len(replies):
        return replies
    [client] = replies.clients
    flat = dict(leaves(replies[client]))
    if any(leaf.shape[:1] != (len(members),) or leaf.dim() < 2 for leaf in flat.values()):
        return replies
    names = [name for name, _ in sorted(members, key=lambda own: own[1])]
    return Replies(names, [Batch(tuple(at for _, at in members), nest(flat))], {})

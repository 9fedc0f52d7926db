"""The messages of one call, checked here for every engine."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedweave.core.ledger import Counts
from fedweave.core.replies import Stacked
from fedweave.core.tree import Tree, check, clone, device_of, leaves, map_leaves, nest
from fedweave.errors import FedweaveError
from fedweave.learn import compute_on_server
from fedweave.ops.identity import writes
from fedweave.ops.sparsified import Sparsified, count_nonzero
from fedweave.ops.touched_rows import materialize

RECEIVED, PRESENT = "received", "present"  # message fields that hold what peers sent


class Messages:
    """`shared | each[client] | peers[client]` for every called client.

    each: {client: tree}, or trees stacked. peers: the results of `peer_messages`. Numbers in `each` become 0-d tensors
    (float64, int64, bool) on `device`, in every mode.

    Raises:
        FedweaveError: `each` names an unknown client, leaves out a called one, or gives clients different fields; or a
            message has a field that is reserved for peers' trees.
        ReplyRefused: a message is not a tree.
    """

    def __init__(
        self,
        step: str,
        shared: Tree | None,
        each: Mapping[str, Tree] | Stacked | None,
        called: Sequence[str],
        known: Sequence[str],
        peers: Mapping[str, Tree] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.peers, self._device = peers or {}, device
        self.shared = check(shared or {}, f"the message of {step}")
        self.rows = Stacked((), {})
        if isinstance(each, Stacked):
            check(each.tree, f"the message of {step}")
            self.rows, each = each, None
        self.each = {c: check(tree, f"the message of {step} to {c!r}") for c, tree in (each or {}).items()}
        if self.peers:
            keys = set[str]().union(self.shared, self.rows.tree, *self.each.values())
            conflicting = sorted(keys & {RECEIVED, PRESENT})
            if conflicting:
                raise FedweaveError(
                    f"the message of {step} has the keys {conflicting}, which are of what peers sent.",
                    code="call.each",
                )
        owners = self.each.keys() or set(self.rows.clients)
        if not owners:
            return
        absent = set(called) - owners
        if absent:
            raise FedweaveError(
                f"`each` of {step} has no part for {sorted(absent)}; give one to every called client or to none.",
                code="call.each",
            )
        unknown = owners - set(known)
        if unknown:
            raise FedweaveError(
                f"`each` of {step} names {sorted(unknown)}, which are not clients of this federation.", code="call.each"
            )
        paths_of_clients = set[tuple[str, ...]]()
        for tree in self.each.values():
            paths_of_clients.add(tuple(sorted(path for path, _ in leaves(tree))))
        if len(paths_of_clients) > 1:
            raise FedweaveError(
                f"`each` of {step} must give every client the same keys; it gives {sorted(paths_of_clients)}.",
                code="call.each",
            )

    def ragged(self, group: Sequence[str]) -> bool:
        """Whether the group's parts for single clients differ in shape, or hold strings, and so cannot be stacked."""
        if not self.each and not self.peers:
            return False
        shapes = set[tuple[object, ...]]()
        for client in group:
            shapes.add(tuple([_form(leaf) for _, leaf in leaves(self._client_part(client))]))
        return len(shapes) > 1 or any(str in shape for shape in shapes)

    def counts(self, clients: Sequence[str]) -> Counts | None:
        """Numbers of entries of sparse leaves in the messages to some clients; None without such leaves."""
        if self._entry_counts is None:
            return None
        paths, counts = self._entry_counts
        return Counts(paths, counts, [self._row[client] for client in clients])

    @cached_property
    def _entry_counts(self) -> tuple[tuple[str, ...], Tensor] | None:
        """The paths of sparse leaves, and the number of entries of each in each client's message, counted together."""
        sparse_leaves = {path: leaf.dense for path, leaf in leaves(self.rows.tree) if isinstance(leaf, Sparsified)}
        if not sparse_leaves:
            return None
        return tuple(sparse_leaves), compute_on_server(count_nonzero, sparse_leaves)  # [P, leaves]

    @cached_property
    def _row(self) -> dict[str, int]:
        return {client: row for row, client in enumerate(self.rows.clients)}

    def common(self) -> Tree:
        """The shared part, in new dicts."""
        return nest(self.common_leaves)

    @cached_property
    def common_leaves(self) -> dict[str, Any]:
        """{path: leaf} of the shared part."""
        return dict(leaves(self.shared))

    def down(self, client: str) -> Tree:
        """The server's message to one client, in new dicts."""
        if self.rows.clients:
            return self.common() | self.rows.one(client)
        return self.common() | _tensors(self.each.get(client, {}), self._device)

    def one(self, client: str) -> Tree:
        """One client's message, in new dicts; a peer's tree is a copy, because another client may receive it too."""
        return self.down(client) | clone(self.peers.get(client, {}))

    def stack(self, group: Sequence[str]) -> Tree:
        """The parts for single clients, stacked."""
        rows = self.rows.of(group) if self.rows.clients else {}
        if not self.each and not self.peers:
            return rows
        flats = [dict(leaves(self._client_part(client))) for client in group]
        stacks = dict[str, Tensor]()
        for path in flats[0]:
            stacks[path] = torch.stack([_tensor(flat[path], self._device) for flat in flats])  # [P, …]
        return nest(stacks) | rows

    def _client_part(self, client: str) -> Tree:
        return {**self.each.get(client, {}), **self.peers.get(client, {})}

    def versions(self) -> list[int]:
        """Counters that rise when one of the server's tensors is changed in place."""
        return list(map(writes, self._server_tensors))

    @cached_property
    def _server_tensors(self) -> list[Tensor]:
        values = list(self.common_leaves.values())
        for tree in (self.rows.tree, *self.each.values()):
            values += [leaf for _, leaf in leaves(tree)]
        return [leaf for leaf in values if isinstance(leaf, Tensor)]


def peer_messages(message: Tree, sources: Sequence[str], trees: Mapping[str, Tree]) -> Tree:
    """The peers' part of the next message of a client that itself sent `message`; `trees` are the trees that arrived
    from its peers `sources`."""
    messages = [trees[peer] if peer in trees else map_leaves(_zero, message) for peer in sources]
    device = device_of(message)
    present = torch.tensor([peer in trees for peer in sources], dtype=torch.bool, device=device)
    return {RECEIVED: {str(at): _tensors(tree, device) for at, tree in enumerate(messages)}, PRESENT: present}


def _zero(leaf: object) -> Any:
    return torch.zeros_like(leaf) if isinstance(leaf, Tensor) else type(leaf)()


def _tensors(tree: Tree, device: torch.device | str) -> Tree:
    return nest({path: leaf if isinstance(leaf, str) else _tensor(leaf, device) for path, leaf in leaves(tree)})


def _tensor(leaf: object, device: torch.device | str) -> Tensor:
    if isinstance(leaf, float):
        return torch.tensor(leaf, dtype=torch.float64, device=device)
    return torch.as_tensor(materialize(leaf), device=device)


def _form(leaf: object) -> Any:
    return str if isinstance(leaf, str) else (*getattr(leaf, "shape", ()), getattr(leaf, "dtype", type(leaf)))

"""The messages of one call, checked once for all engines' sake."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedweave.core.tree import Tree, check, full, leaves, nest
from fedweave.errors import FedweaveError


class Messages:
    """`shared | each[client]` for every called client.

    Numbers in `each` become 0-d tensors (float64, int64, bool), in every mode alike.

    Raises:
        FedweaveError: `each` names an unknown client, leaves out a called one, or gives clients different keys.
        ReplyRefused: a message is not a tree.
    """

    def __init__(
        self,
        step: str,
        shared: Tree | None,
        each: Mapping[str, Tree] | None,
        called: Sequence[str],
        known: Sequence[str],
    ) -> None:
        self.shared = check(shared or {}, f"the message of {step}")
        self.each = {c: check(tree, f"the message of {step} to {c!r}") for c, tree in (each or {}).items()}
        if not self.each:
            return
        if absent := set(called) - set(self.each):
            raise FedweaveError(
                f"`each` of {step} has no part for {sorted(absent)}; give one to every called client or to none."
            )
        if unknown := set(self.each) - set(known):
            raise FedweaveError(f"`each` of {step} names {sorted(unknown)}, which are no clients of this federation.")
        kinds = {tuple(sorted(path for path, _ in leaves(tree))) for tree in self.each.values()}
        if len(kinds) > 1:
            raise FedweaveError(f"`each` of {step} must give every client the same keys; it gives {sorted(kinds)}.")

    @property
    def ragged(self) -> bool:
        """Whether the clients' own parts differ in shape, or hold strings, and so cannot be stacked."""
        shapes = {tuple(_shape(leaf) for _, leaf in leaves(tree)) for tree in self.each.values()}
        return len(shapes) > 1 or any(str in shape for shape in shapes)

    def common(self) -> Tree:
        """The shared part, in dicts of its own."""
        return nest(dict(leaves(self.shared)))

    def one(self, client: str) -> Tree:
        """One client's message, in dicts of its own."""
        own = {
            path: leaf if isinstance(leaf, str) else _tensor(leaf) for path, leaf in leaves(self.each.get(client, {}))
        }
        return self.common() | nest(own)

    def stacked(self, group: Sequence[str]) -> Tree:
        """The clients' own parts, stacked."""
        if not self.each:
            return {}
        flats = [dict(leaves(self.each[client])) for client in group]
        return nest({path: torch.stack([_tensor(flat[path]) for flat in flats]) for path in flats[0]})

    def versions(self) -> list[int]:
        """Counters that rise when a tensor of the shared part is changed in place."""
        return [leaf._version for _, leaf in leaves(self.shared) if isinstance(leaf, Tensor)]


def _tensor(leaf: Any) -> Tensor:
    if isinstance(leaf, float):
        return torch.tensor(leaf, dtype=torch.float64)
    return torch.as_tensor(full(leaf))


def _shape(leaf: Any) -> Any:
    return str if isinstance(leaf, str) else (*getattr(leaf, "shape", ()), getattr(leaf, "dtype", type(leaf)))

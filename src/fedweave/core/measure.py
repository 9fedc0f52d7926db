"""What a ledger has to know of a tree: its size as serialised, and the form of each leaf; never a value."""

from typing import Any, NamedTuple

from fedweave.core.tree import Tree, encoded_size, leaves
from fedweave.ops.sparsified import Sparsified


class Measured(NamedTuple):
    """A tree by its form. size: bytes as serialised. parts: (path, shape and dtype in words, bytes) of each leaf."""

    size: int
    parts: tuple[tuple[str, str, int], ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """Of the leaves."""
        return tuple(path for path, _, _ in self.parts)


def measured(tree: Tree) -> Measured:
    """The form of a tree."""
    return Measured(encoded_size(tree), tuple((path, *_form(leaf)) for path, leaf in leaves(tree)))


def _form(leaf: Any) -> tuple[str, int]:
    if isinstance(leaf, Sparsified):
        kind = str(leaf.dtype).removeprefix("torch.")
        return f"{list(leaf.shape)} {kind}, sparse", leaf.count * (4 + leaf.dtype.itemsize)
    if hasattr(leaf, "shape"):
        return f"{list(leaf.shape)} {str(leaf.dtype).removeprefix('torch.')}", leaf.shape.numel() * leaf.dtype.itemsize
    return type(leaf).__name__, len(leaf.encode()) if isinstance(leaf, str) else 8

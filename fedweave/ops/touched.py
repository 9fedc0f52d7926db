"""Tensors of which each client changed only some rows in a way of its own."""

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class TouchedRows:
    """A tensor [F, ...] of which a client changed only some rows in a way of its own.

    Rows that no feature of the client touches see no data gradient, so the same elementwise update moves them at every
    client: `rest` [F, ...] holds them once for all. `rows` int64 [m] names the client's own rows (F marks padding),
    `values` [m, ...] holds them. To everything else it is the whole tensor.
    """

    def __init__(self, rest: Tensor, rows: Tensor, values: Tensor) -> None:
        self.rest, self.rows, self.values = rest, rows, values

    @property
    def shape(self) -> torch.Size:
        """Shape of the whole tensor."""
        return self.rest.shape

    @property
    def dtype(self) -> torch.dtype:
        """dtype of the whole tensor."""
        return self.rest.dtype

    def materialize(self) -> Tensor:
        """The whole tensor [F, ...]."""
        padded = torch.cat([self.rest, torch.zeros_like(self.rest[:1])])
        return padded.index_copy(0, self.rows, self.values)[:-1]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Any torch function sees the whole tensor."""
        whole = pytree.tree_map(materialize, (args, kwargs or {}), is_leaf=lambda leaf: isinstance(leaf, cls))
        return function(*whole[0], **whole[1])

    def __getattr__(self, name: str) -> Any:
        """Any tensor method is that of the whole tensor."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.materialize(), name)


def materialize(leaf: Any) -> Any:
    """The leaf itself, or the whole tensor of a partly stored one."""
    return leaf.materialize() if isinstance(leaf, TouchedRows) else leaf


pytree.register_pytree_node(
    TouchedRows,
    lambda rows: ([rows.rest, rows.rows, rows.values], None),
    lambda children, _: TouchedRows(*children),
)

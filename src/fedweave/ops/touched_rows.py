"""Tensors that each client changed in its own way in only some rows, and that are stored without the others."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedweave.ops.sparsified import Sparsified


class TouchedRows:
    """A tensor [F, ...] that a client changed in its own way in only some rows.

    Rows that no feature of the client touches have no data gradient, so the same elementwise update moves them at every
    client: `rest` [F, ...] holds them once for all. `rows` int64 [m] has the numbers of the rows that the client
    touches (F marks padding), `values` [m, ...] holds them. All other code sees the whole tensor, except that it cannot
    be changed in place. A scalar `rest`, without rows, is the same at all clients.

    matrix: the sparse matrices of a batch of clients (`ops.sparse.StackedCsr`) whose touched columns are `rows`; None
        if that is not known.
    """

    def __init__(self, rest: Tensor, rows: Tensor, values: Tensor, matrix: object = None) -> None:
        self.rest, self.rows, self.values, self.matrix = rest, rows, values, matrix

    @property
    def shape(self) -> torch.Size:
        """Shape of the whole tensor."""
        return self.rest.shape

    @property
    def dtype(self) -> torch.dtype:
        """dtype of the whole tensor."""
        return self.rest.dtype

    @property
    def device(self) -> torch.device:
        """Device of the tensor."""
        return self.rest.device

    def materialize(self) -> Tensor:
        """The whole tensor [F, ...]."""
        if not self.rest.dim():
            return self.rest
        padded = torch.cat([self.rest, torch.zeros_like(self.rest[:1])])
        return padded.index_copy(0, self.rows, self.values)[:-1]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Any torch function sees the whole tensor."""
        args, kwargs = pytree.tree_map(materialize, (args, kwargs or {}), is_leaf=lambda leaf: isinstance(leaf, cls))
        return function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Look up any tensor method on the whole tensor."""
        if name.endswith("_"):
            raise AttributeError(f"{name}: partly stored tensors cannot be changed in place; assign a new one")
        return getattr(self.materialize(), name)


# The batch dimensions of a stacked leaf, as `vmap` wants them.
STACKED: object = TouchedRows(None, 0, 0)  # type: ignore[arg-type]


def _operator(name: str) -> Any:
    return lambda self, *operands: getattr(self.materialize(), name)(*map(materialize, operands))


for _name in ("add", "sub", "mul", "truediv", "pow", "matmul"):
    setattr(TouchedRows, f"__{_name}__", _operator(f"__{_name}__"))
    setattr(TouchedRows, f"__r{_name}__", _operator(f"__r{_name}__"))
for _name in ("neg", "abs", "len", "getitem", "lt", "le", "gt", "ge", "float", "int", "bool"):
    setattr(TouchedRows, f"__{_name}__", _operator(f"__{_name}__"))


def materialize(leaf: object) -> Any:
    """The leaf itself, or the whole tensor of a leaf that is stored or sent in another form."""
    return leaf.materialize() if isinstance(leaf, TouchedRows | Sparsified) else leaf


def move_leaf(leaf: object, device: torch.device | str) -> Any:
    """A leaf on a device, in its storage form; other values are returned unchanged. A partly stored leaf that moves
    loses its reference to a batch's matrix."""
    if isinstance(leaf, TouchedRows):
        parts = [part.to(device) for part in (leaf.rest, leaf.rows, leaf.values)]
        return leaf if parts[0] is leaf.rest else TouchedRows(*parts)
    if isinstance(leaf, Sparsified):
        return Sparsified(leaf.dense.to(device))
    return leaf.to(device) if isinstance(leaf, Tensor) else leaf


def shared_scalar(value: Tensor, clients: int) -> TouchedRows:
    """A scalar that is the same at all clients of a batch, as a stacked leaf."""
    return TouchedRows(value, value.new_zeros(clients, 0, dtype=torch.int64), value.new_zeros(clients, 0))


def rows_or_zeros(tensor: Tensor, rows: Tensor) -> Tensor:
    """Rows int64 [m] (or [P, m]) of a tensor [F, ...]; the number F gives zeros: [m, ...] (or [P, m, ...])."""
    return torch.cat([tensor, torch.zeros_like(tensor[:1])])[rows]


def elementwise(function: Callable[..., Tensor], *operands: Any) -> Any:
    """`function` of leaves of one shape, element by element.

    The result is partly stored if all partly stored leaves store the same rows of the same matrix, and everything else
    that enters the result is the same for all clients.
    """
    partly = [leaf for leaf in operands if isinstance(leaf, TouchedRows)]
    first = partly[0] if partly else None
    if first is not None and all(leaf.rows is first.rows or leaf.matrix is first.matrix is not None for leaf in partly):
        rows = first.rows
        rest = function(*(leaf.rest if isinstance(leaf, TouchedRows) else leaf for leaf in operands))
        if not torch._C._functorch.is_batchedtensor(rest):
            values = [leaf.values if isinstance(leaf, TouchedRows) else rows_or_zeros(leaf, rows) for leaf in operands]
            return TouchedRows(rest, rows, function(*values), first.matrix)
    return function(*(materialize(leaf) for leaf in operands))


def total(leaf: Any) -> Tensor:
    """Sum over all elements of a leaf, a float64 scalar; float64 hides the order of summation from float32."""
    if not isinstance(leaf, TouchedRows):
        result: Tensor = leaf.sum(dtype=torch.float64)
        return result
    rest = leaf.rest.flatten(1).sum(1, dtype=torch.float64)  # [F]
    touched = leaf.values.flatten(1).sum(1, dtype=torch.float64)  # [m]
    untouched = torch.cat([rest, rest.new_zeros(1)]).index_fill(0, leaf.rows, 0)  # [F + 1]
    return untouched.sum() + (touched * (leaf.rows < len(rest))).sum()


def materialize_stacked(leaf: object) -> Any:
    """The leaf itself, or the whole tensors [P, F, ...] of P clients' partly stored leaf: `rest` [F, ...], `rows`
    [P, m], `values` [P, m, ...]."""
    if not isinstance(leaf, TouchedRows):
        return leaf
    if not leaf.rest.dim():
        return leaf.rest.expand(len(leaf.rows)).clone()
    padded = torch.cat([leaf.rest, torch.zeros_like(leaf.rest[:1])])  # [F + 1, ...]
    whole = padded.repeat(len(leaf.rows), *[1] * leaf.rest.dim())  # [P, F + 1, ...]
    whole[torch.arange(len(whole), device=whole.device)[:, None], leaf.rows] = leaf.values
    return whole[:, :-1].contiguous()


def _rebuild(children: Iterable[Any], matrix: object) -> TouchedRows:
    rest, rows, values = children
    return TouchedRows(rest, rows, values, matrix)


pytree.register_pytree_node(TouchedRows, lambda leaf: ([leaf.rest, leaf.rows, leaf.values], leaf.matrix), _rebuild)

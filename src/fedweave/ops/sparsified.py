"""Tensors that are mostly 0, and are sent without the zeros."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Sparsified:
    """A tensor that is serialized as its nonzero entries: their places in the flattened tensor (int32) and their
    values. All other code sees the tensor itself.

    dense: the tensor. count: number of its nonzero entries; None counts them when they are needed.
    """

    def __init__(self, dense: Tensor, count: int | None = None) -> None:
        self.dense, self._count = dense, count

    @property
    def shape(self) -> torch.Size:
        """Shape of the tensor."""
        return self.dense.shape

    @property
    def dtype(self) -> torch.dtype:
        """dtype of the tensor."""
        return self.dense.dtype

    @property
    def device(self) -> torch.device:
        """Device of the tensor."""
        return self.dense.device

    @property
    def count(self) -> int:
        """Number of nonzero entries, which are sent."""
        return int(torch.count_nonzero(self.dense)) if self._count is None else self._count

    @property
    def nbytes(self) -> int:
        """Bytes of `pack`."""
        return self.count * self.bytes_each

    @property
    def bytes_each(self) -> int:
        """Bytes of one entry in `pack`."""
        return 4 + self.dtype.itemsize

    def pack(self) -> Tensor:
        """Places int32 and then values of the k entries, as bytes: uint8 [k (4 + itemsize)]."""
        flat = self.dense.flatten()
        at = flat.nonzero()[:, 0]
        return torch.cat([at.int().view(torch.uint8), flat[at].view(torch.uint8)])

    @property
    def form(self) -> str:
        """The dtype and shape, which `unpack` also needs: "float32 3 4"."""
        return " ".join([str(self.dtype).removeprefix("torch."), *map(str, self.shape)])

    @staticmethod
    def bytes_of(form: str) -> int:
        """Bytes of the tensor that `unpack` makes.

        Raises:
            ValueError: a size is negative, which would lower a sum of sizes.
        """
        kind, *shape = form.split()
        if any(int(n) < 0 for n in shape):
            raise ValueError(f"there is no sparse form {form!r}")
        return math.prod(map(int, shape)) * _DTYPES[kind].itemsize

    @classmethod
    def unpack(cls, packed: Tensor, form: str) -> "Sparsified":
        """Undo `pack`. A reader of external bytes first checks `bytes_of` all leaves, because this allocates them.

        Raises:
            ValueError: the bytes do not fit the form.
        """
        kind, *shape = form.split()
        dtype, size = _DTYPES[kind], math.prod(map(int, shape))
        count, remainder = divmod(len(packed), 4 + dtype.itemsize)
        if remainder or any(int(n) < 0 for n in shape):
            raise ValueError(f"{len(packed)} bytes do not fit the sparse form {form!r}")
        at, values = packed[: 4 * count].view(torch.int32), packed[4 * count :].clone().view(dtype)
        if count and not (int(at.min()) >= 0 and int(at.max()) < size):
            raise ValueError(f"the sparse form {form!r} has places outside of the tensor")
        return cls(values.new_zeros(size).index_copy(0, at.long(), values).view([int(n) for n in shape]))

    def materialize(self) -> Tensor:
        """The tensor."""
        return self.dense

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Any torch function sees the tensor."""

        def to_dense(leaf: object) -> object:
            return leaf.dense if isinstance(leaf, cls) else leaf

        args, kwargs = pytree.tree_map(to_dense, (args, kwargs or {}), is_leaf=lambda leaf: isinstance(leaf, cls))
        return function(*args, **kwargs)


def count_nonzero(stacked: Mapping[str, Any]) -> Tensor:
    """Number of nonzero entries in each row of some dense leaves [P, …]: int64 [P, leaves]."""
    flat = [leaf.flatten(1) if leaf.dim() > 1 else leaf[:, None] for leaf in stacked.values()]
    return torch.stack([(rows != 0).sum(1) for rows in flat], 1)


pytree.register_pytree_node(Sparsified, lambda leaf: ([leaf.dense], None), lambda children, _: Sparsified(*children))

"""Which tensors share memory."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class MemoryIsolation:
    """Copies what shares memory with anything returned before, so that replies and states are independent."""

    def __init__(self, others: Sequence[object]) -> None:
        self._taken = {tensor.untyped_storage().data_ptr() for tensor in others if isinstance(tensor, Tensor)}

    def copy(self, leaf: object) -> Any:
        """`leaf` if nothing else holds its memory, else a copy; what all clients share is repeated for each."""
        if not isinstance(leaf, Tensor):
            return leaf
        place = leaf.untyped_storage().data_ptr()
        if place in self._taken or (leaf.dim() and 0 in leaf.stride() and leaf.numel()):
            leaf = leaf.detach().clone(memory_format=torch.contiguous_format)
            place = leaf.untyped_storage().data_ptr()
        self._taken.add(place)
        return leaf

"""Identity of objects and of memory; only this module of the package compares them.

Kernels' operands are identified as objects. A reply may share memory with a client's private state under any name. Only
PyTorch counts the writes into a tensor that a step received. Everything else is identified by name and version.
"""

from collections.abc import Callable, Hashable, Mapping
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from torch import Tensor

Key = TypeVar("Key", bound=Hashable)
Thing = TypeVar("Thing")
Value = TypeVar("Value")

writes: Callable[[Tensor], int] = attrgetter("_version")
"""How often a tensor was written into, through views of it too."""


class ByObject(Generic[Value]):
    """{object: value} for objects that may not be hashable; keeps the objects alive, so that their ids stay theirs."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[object, Value]] = {}

    def __contains__(self, thing: object) -> bool:
        return id(thing) in self._values

    def __getitem__(self, thing: object) -> Value:
        return self._values[id(thing)][1]

    def __setitem__(self, thing: object, value: Value) -> None:
        self._values[id(thing)] = thing, value

    def __len__(self) -> int:
        return len(self._values)


def once(make: Callable[[Thing], Value], things: Mapping[Key, Thing]) -> dict[Key, Value]:
    """{key: `make(thing)`}, where an object under several keys is made once."""
    cache = ByObject[Value]()
    for thing in things.values():
        if thing not in cache:
            cache[thing] = make(thing)
    return {key: cache[thing] for key, thing in things.items()}


class Stamp(NamedTuple):
    """A tensor and the number of writes into it at some time."""

    tensor: Tensor
    written: int

    @classmethod
    def of(cls, tensor: Tensor) -> "Stamp":
        """The tensor and its number of writes now."""
        return cls(tensor, writes(tensor))

    def fits(self, tensor: Tensor) -> bool:
        """Whether this is the same tensor, without writes since."""
        return self.tensor is tensor and self.written == writes(tensor)


def storage(tensor: Tensor) -> int:
    """A number of a tensor's storage; only the tensor and its views have it."""
    number: int = tensor.untyped_storage()._cdata
    return number


def address(tensor: Tensor) -> int:
    """The address of a tensor's storage, the same for all that share memory, also with NumPy."""
    return tensor.untyped_storage().data_ptr()

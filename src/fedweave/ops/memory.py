"""Which objects, and which memory, are the same, where just that is the question; nobody else in the package asks it.

Kernels' operands are told apart as the objects that they are, a reply may share memory with a client's private state
whatever either is called, and PyTorch alone counts who wrote into what a step was shown. Everything else is known by
name and version.
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
    """{object: value} of objects that need not be hashable; it keeps them alive, so that none takes another's place."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[object, Value]] = {}

    def __contains__(self, thing: object) -> bool:
        return id(thing) in self._kept

    def __getitem__(self, thing: object) -> Value:
        return self._kept[id(thing)][1]

    def __setitem__(self, thing: object, value: Value) -> None:
        self._kept[id(thing)] = thing, value

    def __len__(self) -> int:
        return len(self._kept)


def once(make: Callable[[Thing], Value], things: Mapping[Key, Thing]) -> dict[Key, Value]:
    """{key: `make(thing)`}, made once of what stands under several keys."""
    made = ByObject[Value]()
    for thing in things.values():
        if thing not in made:
            made[thing] = make(thing)
    return {key: made[thing] for key, thing in things.items()}


class Stamp(NamedTuple):
    """A tensor as it was at some time."""

    tensor: Tensor
    written: int

    @classmethod
    def of(cls, tensor: Tensor) -> "Stamp":
        """As it is now."""
        return cls(tensor, writes(tensor))

    def fits(self, tensor: Tensor) -> bool:
        """Whether a tensor is the same one, and nobody has written into it since."""
        return self.tensor is tensor and self.written == writes(tensor)


def storage(tensor: Tensor) -> int:
    """A number of what a tensor and its views keep their numbers in; the same for these alone."""
    number: int = tensor.untyped_storage()._cdata
    return number


def address(tensor: Tensor) -> int:
    """Where that begins, the same for all that share memory, also with NumPy."""
    return tensor.untyped_storage().data_ptr()

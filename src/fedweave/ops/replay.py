"""Recordings: the calls of a computation, compiled to one Python function that makes them again."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedweave.ops.calls import Call, Place, simplified

_BYTES_PER_CALL = 300  # of the compiled function and what it names, measured


class Derivation(NamedTuple):
    """How values are made of what a batch holds: `get(owner, *names)`, where `owner` is a value's number; the numbers
    of its parts, and their sizes."""

    get: Callable[..., object]
    owner: int
    names: tuple[object, ...]
    gives: tuple[int, ...]
    sizes: tuple[object, ...]


class Recording:
    """A computation to be played on other roots and tensors of the same sizes.

    replay: (*roots, *what is derived from them, *tensors) -> results. bytes: that it takes. changes_inputs: whether it
    writes into the tensors that it is given. pure: whether it gives the same for the same.
    """

    def __init__(
        self,
        replay: Callable[..., tuple[Tensor, ...]],
        derivations: list[Derivation],
        bytes: int,
        changes_inputs: bool,
        pure: bool,
    ) -> None:
        self._replay, self._derivations, self.bytes = replay, derivations, bytes
        self.changes_inputs, self.pure = changes_inputs, pure

    def derive(self, roots: Sequence[object]) -> tuple[list[object], Any]:
        """The roots with what is derived from them, and None; or nothing, and its sizes if they are not as recorded."""
        values, found = dict(enumerate(roots)), []
        for get, owner, names, gives, recorded in self._derivations:
            these = parts(get(values[owner], *names))
            values.update(zip(gives, these, strict=True))
            found.append(tuple(map(sizes, these)))
            if found[-1] != recorded:
                return [], tuple(found)
        return list(values.values()), None

    def play(self, values: Sequence[object], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The results, for `values` from `derive`."""
        with torch.no_grad():
            return self._replay(*values, *tensors)

    def __call__(self, roots: Sequence[object], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The results, as a part of another recording."""
        values, other = self.derive(roots)
        if other is not None:
            raise RuntimeError("a part has other sizes than when it was recorded")
        return self.play(values, tensors)


def compiled(
    calls: list[Call],
    named: dict[str, Any],
    places: list[Place],
    roots: list[int],
    derivations: list[Derivation],
    inputs: list[int],
    results: list[int],
) -> Recording:
    """A recording of `calls`, as far as the results depend on them or they write into the inputs.

    named: what the calls' lines name. places: where each value lies.
    """
    needed = _needed(simplified(calls, places, results), places, inputs, results)
    named["as_strided"] = torch.as_strided
    given = [*roots, *(number for derivation in derivations for number in derivation.gives), *inputs]
    exec("\n".join(_source(needed, given, results)), named)
    held = sum(value.nbytes for value in named.values() if isinstance(value, Tensor))
    held += sum(value.bytes for value in named.values() if isinstance(value, Recording))
    outside = {places[number].memory for number in inputs}
    changes = any(places[number].memory in outside for call in needed for number in call.writes)
    pure = all(call.pure for call in needed)
    return Recording(named["replay"], derivations, held + _BYTES_PER_CALL * len(needed), changes, pure)


def sizes(value: object) -> Any:
    """What must be alike, of a tensor, a root or something derived, wherever a recording is played."""
    if isinstance(value, Tensor):
        return value.shape, value.stride() if value.layout == torch.strided else value.layout, value.dtype, value.device
    return type(value), getattr(value, "sizes", None)


def parts(value: object) -> tuple[object, ...]:
    """What a call gives, as a tuple."""
    return tuple(value) if isinstance(value, tuple) else (value,)


def _needed(calls: list[Call], places: list[Place], inputs: list[int], results: list[int]) -> list[Call]:
    values, kept = set(results), []
    memory = {places[number].memory for number in [*results, *inputs]}
    for call in reversed(calls):
        if not values.isdisjoint(call.gives) or not memory.isdisjoint(places[number].memory for number in call.writes):
            kept.append(call)
            values |= call.reads
            memory.update(places[number].memory for number in call.reads)
    return kept[::-1]


def _source(calls: list[Call], given: list[int], results: list[int]) -> Iterator[str]:
    """The lines of the function; values are let go when nothing needs them any more."""
    last = {number: at for at, call in enumerate(calls) for number in call.reads | call.gives}
    yield f"def replay({', '.join(f'v{number}' for number in given)}):"
    for at, call in enumerate(calls):
        gone = sorted(number for number in call.reads | call.gives if last[number] == at and number not in results)
        yield f"    {call.line}" + (f"; del {', '.join(f'v{number}' for number in gone)}" if gone else "")
    yield f"    return ({''.join(f'v{number}, ' for number in results)})"

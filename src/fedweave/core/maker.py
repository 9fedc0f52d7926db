"""Which plug-in made something, and from what: a run from Python names it so, and a partition knows its data."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, runtime_checkable

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True)
class Maker:
    """plugin: what made it. given: what it was made from, such as data and a seed, in the order of the parameters."""

    plugin: object
    given: tuple[Any, ...]


@runtime_checkable
class Noted(Protocol):
    """What may say what made it."""

    maker: Maker | None


class NotedTuple(tuple[object, ...]):
    """A tuple that says what made it; a slice of it does not."""

    maker: Maker | None = None


def noted(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """The method of a plug-in, whose result says what made it."""
    signature = inspect.signature(method)

    @wraps(method)
    def made(self: S, *args: P.args, **named: P.kwargs) -> T:
        found = method(self, *args, **named)
        given = signature.bind(self, *args, **named).args[1:]
        return note(found, Maker(self, given))

    return cast(Callable[Concatenate[S, P], T], made)


def note(found: T, maker: Maker) -> T:
    """The same, which says what made it."""
    said = cast(T, NotedTuple(found)) if isinstance(found, tuple) else found
    object.__setattr__(said, "maker", maker)
    return said


def maker_of(found: object) -> Maker | None:
    """What made something; None where nobody said, as of a copy with other values."""
    return found.maker if isinstance(found, Noted) else None

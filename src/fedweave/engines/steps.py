"""The steps that may be called by name: those of an algorithm and its parts that are marked `@on_client`."""

import dataclasses
import sys
from collections.abc import Iterator

from fedweave.core.federation import Step, is_step
from fedweave.errors import CallRefused


def find_step(algorithm: object, name: str) -> Step:
    """The step that `core.federation.step_name` calls `name`.

    Raises:
        CallRefused: the algorithm has no such step; nothing else can be called over the wire.
    """
    owner, _, method = name.rpartition(".")
    places = [part for part in _parts(algorithm) if type(part).__name__ == owner]
    if not owner:
        places = [sys.modules[kind.__module__] for kind in type(algorithm).__mro__ if kind is not object]
    for place in places:
        step: Step | None = getattr(place, method, None)
        if step is not None and is_step(step):
            return step
    raise CallRefused(
        f"{type(algorithm).__name__} has no step {name!r} marked @on_client. "
        "Install the same version of fedweave on the server and on all sites."
    )


def _parts(value: object) -> Iterator[object]:
    """`value` and the dataclasses that it is made of."""
    if isinstance(value, tuple):
        for item in value:
            yield from _parts(item)
    elif dataclasses.is_dataclass(value):
        yield value
        for field in dataclasses.fields(value):
            yield from _parts(getattr(value, field.name))

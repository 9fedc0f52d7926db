"""The steps that may be called by name, those of an algorithm and its parts that are marked `@on_client`; and whether
one wrote into the data that it was shown, which only `replace_data` may change.

PyTorch counts the writes into a tensor, those through views and under `vmap` included, so that numbers are compared and
no values. What is written past PyTorch is not counted: through `tensor.numpy()` or `.data`, of which a vectorised step
can use neither. The edges are a NumPy array that cannot be written to.
"""

import dataclasses
import sys
from collections.abc import Iterator

from torch import Tensor

from fedweave.core.federation import Step, is_step
from fedweave.core.graph import Graph
from fedweave.engines.messages import Messages
from fedweave.errors import CallRefused, FedweaveError, StepFailed
from fedweave.ops.memory import writes
from fedweave.ops.sparse import Sparse


class Watched:
    """The tensors of the graphs that a step sees, and how often each was written to until now."""

    def __init__(self, graph: Graph, test: Graph | None = None) -> None:
        seen = {"graph": graph, "test": test}
        self._tensors = {name: own for role, found in seen.items() for name, own in _of(role, found)}
        self._before = [sum(map(writes, tensors)) for tensors in self._tensors.values()]

    def refuse_changes(self, step: str, whose: str, kind: type[FedweaveError] = StepFailed) -> None:
        """Raise an error of some kind if the step wrote into one of them; names the step, the tensor and `whose` it
        is."""
        for (name, tensors), before in zip(self._tensors.items(), self._before, strict=True):
            if sum(map(writes, tensors)) != before:
                raise kind(
                    f"step {step} changed client.{name} of {whose} in place, for all steps after it; change a copy "
                    "(.clone()). Data that is to stay changed is what a step that replaces_data gives "
                    "(fed.replace_data)."
                )


def _named(graph: Graph) -> Iterator[tuple[str, object]]:
    yield from graph._asdict().items()
    yield from ((f"extra[{name!r}]", own) for name, own in graph.extra.items())


def _of(role: str, found: Graph | None) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
    for name, value in _named(found) if found is not None else ():
        if isinstance(value, Tensor) and not value.is_inference():  # those have no such number, and are rare
            yield f"{role}.{name}", (value,)
        elif isinstance(value, Sparse):
            yield f"{role}.{name}", value.blocks.values


def refuse_changes(step: str, before: list[int], messages: Messages) -> None:
    """Raise if a step wrote into its message, whose `versions` were these `before`."""
    if messages.versions() != before:
        raise StepFailed(f"step {step} changed its message in place; copy the tensor first.")


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

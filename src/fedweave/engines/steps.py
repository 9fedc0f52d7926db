"""Steps that may be called by name, and how one runs on a client.

They are the methods of an algorithm and its parts that are marked `@on_client`. A step must not write into its input
data, which only `replace_data` may change. PyTorch counts the writes into a tensor, also through views and under
`vmap`, so the check compares counts instead of values. Writes past PyTorch do not count: through `tensor.numpy()` or
`.data`, which a vectorized step cannot use. The edges are a NumPy array that cannot be written to.
"""

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fedweave.core.algorithm import Algorithm
from fedweave.core.federation import DATA, Client, Step, StepInfo, is_step
from fedweave.core.graph import Graph
from fedweave.core.tree import Tree, check
from fedweave.engines.calls import check_permanent
from fedweave.engines.messages import Messages
from fedweave.errors import CallRefused, FedweaveError, ReplyRefused, StepFailed, error_place
from fedweave.ops.identity import writes
from fedweave.ops.sparse import Sparse


class WriteGuard:
    """The tensors of the graphs that a step sees, and their numbers of writes until now."""

    def __init__(self, graph: Graph, test: Graph | None = None) -> None:
        self._tensors: dict[str, tuple[Tensor, ...]] = {}
        for role, visible in (("graph", graph), ("test", test)):
            if visible is None:
                continue
            values: dict[str, object] = visible._asdict()
            values |= {f"extra[{name!r}]": value for name, value in visible.extra.items()}
            for name, value in values.items():
                if isinstance(value, Tensor) and not value.is_inference():  # inference tensors have no count
                    self._tensors[f"{role}.{name}"] = (value,)
                elif isinstance(value, Sparse):
                    self._tensors[f"{role}.{name}"] = value.blocks.values
        self._before = [sum(map(writes, tensors)) for tensors in self._tensors.values()]

    def check_unchanged(self, step: str, whose: str, kind: type[FedweaveError] = StepFailed) -> None:
        """Raise an error of class `kind` if the step wrote into a tensor; names the step, the tensor and its owner
        `whose`."""
        for (name, tensors), before in zip(self._tensors.items(), self._before, strict=True):
            if sum(map(writes, tensors)) != before:
                raise kind(
                    f"step {step} changed client.{name} of {whose} in place, for all steps after it; change a copy "
                    "(.clone()). To change data for good, use a step that replaces_data "
                    "(fed.replace_data)."
                )


def carry_out(
    step: Step,
    name: str,
    info: StepInfo,
    client: Client,
    message: Tree,
    whose: str,
    *,
    known: type[FedweaveError] = ReplyRefused,
    written: type[FedweaveError] = StepFailed,
) -> tuple[Tree, Any]:
    """Run a step on one client, and check whether it kept the rules. Returns its reply, and the new data that it hands
    over, which does not leave the client (None if there is none). The state that it leaves is in `client.state`.

    whose: the client, for errors. known: errors of a step that are raised as they are. written: the class of the error
    if the step wrote into the client's data.

    Raises:
        StepFailed: the step raised; names the client. ReplyRefused: reply or state is not a tree. FedweaveError: see
            `check_permanent`.
    """
    guard = WriteGuard(client.graph, client.test)
    try:
        with torch.no_grad():
            reply = step(client, message)
        new_data = reply.pop(DATA, None) if info.replaces_data and isinstance(reply, dict) else None
        check(reply, f"the reply of {name} from {whose}")
        check(client.state, f"the state that {name} keeps at {whose}")
        check_permanent(name, info, reply, client.state)
    except known:
        raise
    except Exception as error:
        raise StepFailed(
            f"step {name} failed on {whose}{error_place(error)}: {type(error).__name__}: {error}"
        ) from error
    guard.check_unchanged(name, whose, written)
    return reply, new_data


def check_message_unchanged(step: str, before: list[int], messages: Messages) -> None:
    """Raise an error if a step wrote into its message, whose `versions` were these `before`."""
    if messages.versions() != before:
        raise StepFailed(f"step {step} changed its message in place; copy the tensor first.")


def find_step(algorithm: object, name: str) -> Step:
    """The step whose `core.federation.step_name` is `name`.

    Raises:
        CallRefused: the algorithm has no such step; nothing else can be called over the wire.
    """
    owner, _, method = name.rpartition(".")
    if owner:
        paced = algorithm.paced if isinstance(algorithm, Algorithm) else ()  # empty at a site that is called too early
        places: list[object] = [part for part in (*_parts(algorithm), *paced) if type(part).__name__ == owner]
    else:
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
    """`value` and the dataclasses within it."""
    if isinstance(value, tuple):
        for item in value:
            yield from _parts(item)
    elif dataclasses.is_dataclass(value):
        yield value
        for field in dataclasses.fields(value):
            yield from _parts(getattr(value, field.name))

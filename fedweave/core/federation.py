"""The one primitive: `fed.map(step, …)` runs a named step on clients and returns their replies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from fedweave.core.graph import Graph
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree
from fedweave.errors import FedweaveError


@dataclass
class Client:
    """All that a step may see.

    graph:  the client's own data.
    state:  private tree, kept between calls, never leaves.
    key:    int64 scalar, reproducible randomness of this call: f(seed, round, step, client).
    secret: int64 scalar for privacy noise. Between organisations it comes from the site's own entropy; the simulation
            derives it from the seed so that runs can be repeated, and its noise protects nobody.
    test:   the global test graph that every client holds, or None.
    """

    graph: Graph
    state: Tree
    key: Tensor
    secret: Tensor
    test: Graph | None = None


Step = Callable[[Client, Tree], Tree]


@dataclass(frozen=True)
class StepInfo:
    """What a step declares: its `sends`, worked out, and whether it is `ragged` (see `on_client`)."""

    sends: Mapping[str, str]
    ragged: bool


def on_client(
    *, sends: Mapping[str, str] | Callable[[Any], Mapping[str, str]] | None = None, ragged: bool = False
) -> Callable[[Any], Any]:
    """Allow a function or method `(client, message) -> reply` to be run on clients.

    Only marked steps can be called over the wire. `sends` maps each top-level key of the reply to what the receiver
    learns from it (or computes that from the algorithm, for steps made of parts); no other key may leave the client.
    `ragged` steps have shapes that depend on data and are never vectorised.
    """

    def mark(step: Any) -> Any:
        step.on_client = (sends or {}, ragged)
        return step

    return mark


def step_name(step: Any) -> str:
    """ "FedAvg.train" for a bound method, "function" for a plain one."""
    owner = getattr(step, "__self__", None)
    return step.__name__ if owner is None else f"{type(owner).__name__}.{step.__name__}"


def step_info(step: Any) -> StepInfo:
    """The step's declaration.

    Raises:
        FedweaveError: the function is not marked with `on_client`.
    """
    declared = getattr(step, "on_client", None)
    if not isinstance(declared, tuple):
        raise FedweaveError(
            f"{step_name(step)} is not marked @on_client, so it may not run on clients. "
            "Decorate it and declare what it sends."
        )
    sends, ragged = declared
    return StepInfo(sends(getattr(step, "__self__", None)) if callable(sends) else sends, ragged)


class Federation(Protocol):
    """What an algorithm may do. An engine implements it; no algorithm knows which.

    clients: ids in client order. classes: number of classes. dtype: of weights and features. test: the global test
    graph or None.
    """

    clients: tuple[str, ...]
    classes: int
    dtype: torch.dtype
    test: Graph | None

    def map(
        self,
        step: Step,
        shared: Tree | None = None,
        each: Mapping[str, Tree] | None = None,
        clients: Sequence[str] | None = None,
        quorum: float = 1.0,
        protect: Mapping[str, str] | None = None,
    ) -> Replies:
        """Run `step` on `clients` (all if None) with the message `shared | each[client]`.

        quorum: the share of the called clients that must reply. protect: {reply key: privacy mechanism that the step
        applied}, for the ledger.

        Raises:
            ClientsMissing: fewer replied; names the absent ones.
            StepFailed: the step raised; names step and client.
            ReplyRefused: a reply is not a tree, or holds a key that the step does not declare.
        """
        ...

    def key(self, purpose: str) -> Tensor:
        """The server's randomness in this round for `purpose`."""
        ...

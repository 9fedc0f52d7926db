"""What runs steps for clients: the only thing that differs between a loop, a batch, other processes and sites."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedweave.core.federation import Step, StepInfo
from fedweave.core.ledger import Measured
from fedweave.core.portions import Portion
from fedweave.core.tree import Tree
from fedweave.engines.messages import Messages


@dataclass(frozen=True)
class Work:
    """A call as its engine hands it on: checked, numbered and with its messages.

    step, name, info: what is run; an executor in another process knows the step by its name.
    key:              the call's randomness, int64 scalar, of which each client's is made.
    messages:         of all clients that are called.
    """

    step: Step
    name: str
    info: StepInfo
    key: Tensor
    messages: Messages


class Metered(NamedTuple):
    """What a ledger has to know of clients that ran together: their positions, the form of each one's reply, and the
    seconds of each, where they share the time equally."""

    at: tuple[int, ...]
    form: Measured
    seconds: float


class Ran(NamedTuple):
    """What some clients gave; the groups have them in the order of the replies."""

    replies: Portion
    groups: tuple[Metered, ...]


class Executor(Protocol):
    """Owns clients: their graphs, private states and whatever makes running steps on them fast.

    clients: ids, in client order.
    """

    @property
    def clients(self) -> tuple[str, ...]:
        """Whom it owns."""
        ...

    @property
    def device(self) -> torch.device:
        """Where messages to it and replies from it lie."""
        ...

    @property
    def computes_on(self) -> tuple[str, ...]:
        """The devices that steps run on, as people know them."""
        ...

    def run(self, work: Work, clients: Sequence[str]) -> Iterator[Ran]:
        """Run a step on some of its clients; positions in what they reply (`Portion.at`) count in `clients`.

        Raises:
            StepFailed: it raised; names the client. ReplyRefused: a reply is no tree. DataError: new data is refused.
        """
        ...

    def snapshot(self) -> Tree:
        """{client: its private state}, in client order, of those that hold one."""
        ...

    def snapshot_data(self) -> Tree:
        """{client: the version of its data, and the data itself where it was replaced}."""
        ...

    def restore(self, tree: Tree, data: Tree) -> None:
        """Undo `snapshot` and `snapshot_data`."""
        ...

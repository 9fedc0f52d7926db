"""What runs steps for clients. Only this differs between a loop, a batch, other processes and sites."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedweave.core.federation import Step, StepInfo
from fedweave.core.ledger import MessageForm
from fedweave.core.model import Model
from fedweave.core.replies import Portion
from fedweave.core.tree import Tree
from fedweave.core.types import Ordering
from fedweave.engines.messages import Messages


@dataclass(frozen=True)
class Work:
    """A call as its engine passes it on: checked, numbered and with its messages.

    step, name, info: the step to run; an executor in another process knows the step by its name.
    key:              the call's randomness, int64 scalar, from which each client's randomness is derived.
    messages:         the messages of all called clients.
    ranks:            see `core.federation.Client`.
    """

    step: Step
    name: str
    info: StepInfo
    key: Tensor
    messages: Messages
    ranks: Ordering = "all"


class GroupResult(NamedTuple):
    """The ledger's data on clients that ran together: their positions, the form of each client's reply, and the seconds
    of each client; clients of a batch share the time equally."""

    at: tuple[int, ...]
    form: MessageForm
    seconds: float


class StepResults(NamedTuple):
    """The results of some clients; the groups list them in the order of the replies."""

    replies: Portion
    groups: tuple[GroupResult, ...]


class Executor(Protocol):
    """Owns clients: their graphs, private states and caches that make steps fast.

    clients: ids, in client order.
    """

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients that it owns."""

    @property
    def device(self) -> torch.device:
        """The device of messages to it and replies from it."""

    @property
    def computes_on(self) -> tuple[str, ...]:
        """The devices that steps run on, with their models' names."""

    def run(self, work: Work, clients: Sequence[str]) -> Iterator[StepResults]:
        """Run a step on some of its clients; positions in the replies (`Portion.at`) count in `clients`.

        Raises:
            StepFailed: the step raised; names the client. ReplyRefused: a reply is not a tree. DataError: new data is
                rejected.
        """

    def example_outputs(self, model: Model, w: Tree, clients: Sequence[str]) -> Iterable[Sequence[Tree]]:
        """The outputs of the model with weights `w` on each of these clients' examples
        (`metrics.pooled.example_outputs`), in their order; in parts as `metrics.pooled.pooled_examples` takes them."""

    def snapshot(self) -> Tree:
        """{client: its private state}, in client order, of clients that have a state."""

    def stacked_snapshot(self) -> Tree:
        """`snapshot`, possibly as stacked states (`core.stacked`), whose rows are read later, before the next step."""

    def snapshot_data(self) -> Tree:
        """{client: the version of its data, and the data itself if it was replaced}."""

    def restore(self, tree: Tree, data: Tree) -> None:
        """Undo `snapshot`, or `stacked_snapshot`, and `snapshot_data`."""

    def untrained(self) -> AbstractContextManager[None]:
        """Inside, the clients are as before the first step, and `algorithms.local.local_of` the run's algorithm may
        train them; afterwards they have their states and data back."""

"""One call of one step in this process: its randomness and declaration, what it sent, and which tensors share
memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedweave.core.federation import Sent, Step, StepInfo, step_info, step_name
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree
from fedweave.engines.calls import Keys, check_way, of_client
from fedweave.engines.messages import Messages, peer_messages
from fedweave.errors import StepFailed


@dataclass(frozen=True)
class Post(Sent):
    """What was sent, too."""

    content: Replies = field(repr=False)

    def open(self) -> dict[str, Tree]:
        """What every sender finds in its next message."""
        trees = {client: self.content[client] for client in self.clients}
        return {client: peer_messages(trees[client], self.sources[client], trees) for client in self.clients}


class Invocation:
    """One call of one step, whose replies go to the server or, with `to`, to other clients."""

    def __init__(self, step: Step, keys: Keys, way: str, to: Mapping[str, Sequence[str]] | None = None) -> None:
        self.step, self.name, self.to = step, step_name(step), to
        self._key = keys.step(self.name, keys.occurrence(self.name))
        self.info: StepInfo = step_info(step)
        check_way(self.name, self.info, way)

    def key(self, purpose: str, clients: Tensor) -> Tensor:
        """Randomness of one client, or of several at once."""
        return of_client(self._key, purpose, clients)

    def refuse_changes(self, before: list[int], messages: Messages) -> None:
        """Raise if the step wrote into the shared part of its message."""
        if messages.versions() != before:
            raise StepFailed(f"step {self.name} changed its message in place; copy the tensor first.")


class Own:
    """Copies what shares memory with anything returned before, so that replies and states are independent."""

    def __init__(self, others: Sequence[Any]) -> None:
        self._taken = {tensor.untyped_storage().data_ptr() for tensor in others if isinstance(tensor, Tensor)}

    def copy(self, leaf: Any) -> Any:
        """`leaf` if nothing else holds its memory, else a copy; what all clients share is repeated for each."""
        if not isinstance(leaf, Tensor):
            return leaf
        place = leaf.untyped_storage().data_ptr()
        if place in self._taken or (leaf.dim() and 0 in leaf.stride() and leaf.numel()):
            leaf = leaf.detach().clone(memory_format=torch.contiguous_format)
            place = leaf.untyped_storage().data_ptr()
        self._taken.add(place)
        return leaf

"""What the server of the FedAvg family makes of a round's replies, as its parts decide."""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedweave.algorithms.participation import places
from fedweave.algorithms.parts import answers
from fedweave.algorithms.parts.composition import Composition
from fedweave.algorithms.parts.part import Warns
from fedweave.core.federation import Federation
from fedweave.core.graph import Graph
from fedweave.core.model import Model
from fedweave.core.replies import Replies
from fedweave.core.round import Round
from fedweave.core.tree import Tree, add, leaves, map_leaves
from fedweave.errors import ConfigError
from fedweave.learn import alone

_log = logging.getLogger(__name__)
TryOut = Callable[[Tree], Tensor]  # see `TriesModels.tried`


@dataclass(frozen=True, eq=False)
class Server:
    """The parts' hooks at the server, in the order of a round; of parts that say so they are recorded as one."""

    composed: Composition
    model: Model

    def downloads(self, state: Tree, at: Tensor, fed: Federation, asked: Collection[str]) -> tuple[Tree, Tree, Tree]:
        """What the clients at these places get of the parts that are `asked` (`Composition.downloads`)."""
        given: Tree = {"parts": {name: own for name, own in memory_of(self.composed, state).items() if name in asked}}
        if not (self.composed.recorded and asked and self.composed.owner("receive")):  # other parts send what they have
            return self.composed.downloads(given["parts"], at, asked)
        with fed.recording():
            found: tuple[Tree, Tree, Tree] = alone(self._downloads, given | {"at": at}, names=tuple(asked))
        return found

    def _downloads(self, given: Tree) -> tuple[Tree, Tree, Tree]:
        return self.composed.downloads(given["parts"], given["at"], given["parts"])

    def after(self, state: Tree, replies: Replies, fed: Federation, try_out: TryOut) -> Tree:
        """What a round changes of the server's state: {"w" or "own": weights, "parts": the parts' states}."""
        at, here = places(fed, replies.clients), replies.here() if self.composed.recorded else None
        if here is None:
            after, _ = self._decided(state, replies, at, fed.held, try_out)
        else:
            with fed.recording():
                after = alone(self._recorded, {"state": state, "replies": here, "at": at})
            if (weights := after.pop("weights", None)) is not None:
                self.composed.check_finite(weights, replies)
        self._warn(after["parts"])
        return after

    def _recorded(self, given: Tree) -> Tree:
        replies = Replies.from_here(given["replies"])
        after, round = self._decided(given["state"], replies, given["at"])
        return after | ({} if round.weights is None else {"weights": round.weights})

    def _decided(
        self,
        state: Tree,
        replies: Replies,
        at: Tensor,
        held: Mapping[str, Graph] | None = None,
        try_out: TryOut | None = None,
    ) -> tuple[Tree, Round]:
        """`after`, and the round as parts saw it; at: the places of those who replied."""
        parts, memory = self.composed, memory_of(self.composed, state)
        w = map_leaves(lambda leaf: leaf[at], state["own"]) if "own" in state else state.get("w", {})
        round = Round(replies, at, w, self.model, held or {})
        memory = parts.remembered("observe", memory, round)
        round = replace(round, factors=parts.factors(memory, round))
        round = replace(round, weights=parts.weights(memory, round))
        if not parts.personal:
            round = replace(round, delta=parts.joint(memory, round))
        round = replace(round, value=parts.value(memory, round))
        memory = parts.remembered("update", memory, round)
        if try_out is not None:
            memory = parts.tried(memory, round, try_out)
        after, memory = self._stepped(state, round, memory)
        return after | {"parts": memory}, round

    def _stepped(self, state: Tree, round: Round, memory: Tree) -> tuple[Tree, Tree]:
        """The weights after a round, and the parts' states with that of the server's optimiser.

        Raises:
            ConfigError: its owner gives something else.
        """
        if self.composed.personal:
            return {"own": round.mixed(state["own"])} if "own" in state else {}, memory
        owner = self.composed.owner("step")
        if not owner:
            return {"w": add(round.w, round.delta)}, memory
        made = self.composed[owner].step(memory[owner], round.w, round.delta)
        if not (isinstance(made, tuple) and len(made) == 2 and all(isinstance(tree, dict) for tree in made)):
            said = "is to give two trees, the new weights and its memory for the next round"
            raise ConfigError(f"{owner}.step: {said}", code="config.step")
        shapes = [{path: leaf.shape for path, leaf in leaves(tree)} for tree in (made[0], round.w)]
        if shapes[0] != shapes[1]:
            said = "the new weights are to have the leaves and shapes of those that it gets"
            raise ConfigError(f"{owner}.step: {said}", code="config.step")
        return {"w": made[0]}, memory | {owner: answers.state_of(f"{owner}.step", made[1])}

    def _warn(self, memory: Tree) -> None:
        """Warn of what parts say after a round; a device is waited for once."""
        warning = {name: part for name, part in self.composed.items() if isinstance(part, Warns)}
        told = {said: there for name, part in warning.items() for said, there in part.warns(memory[name]).items()}
        for said, there in zip(told, torch.stack([*told.values()]).tolist() if told else (), strict=True):
            if there:
                _log.warning(said)


def memory_of(parts: Composition, state: Tree) -> Tree:
    """{part: its state} in the server's."""
    return {name: state.get("parts", {}).get(name, {}) for name in parts}

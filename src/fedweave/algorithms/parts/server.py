"""The server of the FedAvg family: from a round's replies to its new state, by the hooks of the parts."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from torch import Tensor

from fedweave.algorithms.participation import places
from fedweave.algorithms.parts import objective
from fedweave.algorithms.parts.composition import Composition
from fedweave.algorithms.parts.part import TryOut
from fedweave.core.algorithm import Round
from fedweave.core.federation import Federation
from fedweave.core.model import Model
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree, add, is_statistic, leaves, map_leaves, nest
from fedweave.errors import ConfigError
from fedweave.learn import compute_on_server


@dataclass(frozen=True, eq=False)
class ServerHooks:
    """The parts' hooks at the server, in the order of a round; traced as one if all parts support it."""

    composed: Composition
    model: Model

    def downloads(self, state: Tree, at: Tensor, fed: Federation, names: Collection[str]) -> tuple[Tree, Tree, Tree]:
        """The downloads of the parts in `names` for the clients at these places (`Composition.downloads`)."""
        inputs: Tree = {
            "parts": {name: memory for name, memory in memory_of(self.composed, state).items() if name in names}
        }
        if not (self.composed.recorded and names and self.composed.owner("receive")):  # other parts need no trace
            return self.composed.downloads(inputs["parts"], at, names)
        with fed.recording():
            result: tuple[Tree, Tree, Tree] = compute_on_server(
                self._downloads, inputs | {"at": at}, names=tuple(names)
            )
        return result

    def _downloads(self, inputs: Tree) -> tuple[Tree, Tree, Tree]:
        return self.composed.downloads(inputs["parts"], inputs["at"], inputs["parts"])

    def after(self, state: Tree, replies: Replies, fed: Federation, try_out: TryOut) -> Tree:
        """The entries of the server's state that a round changes: {"w" or "own": weights, "parts": states}."""
        at, here = places(fed, replies.clients), replies.as_tree() if self.composed.recorded else None
        if here is None:
            after, _ = self._decided(state, replies, at, fed, try_out)
        else:
            with fed.recording():
                after = compute_on_server(self._recorded, {"state": state, "replies": here, "at": at})
            if (weights := after.pop("weights", None)) is not None:
                self.composed.check_finite(weights, replies)
        return after

    def _recorded(self, inputs: Tree) -> Tree:
        replies = Replies.from_tree(inputs["replies"])
        after, round = self._decided(inputs["state"], replies, inputs["at"])
        return after | ({} if round.weights is None else {"weights": round.weights})

    def _decided(
        self,
        state: Tree,
        replies: Replies,
        at: Tensor,
        fed: Federation | None = None,
        try_out: TryOut | None = None,
    ) -> tuple[Tree, Round]:
        """`after`, and the round as the parts read it; at: the places of the clients that replied."""
        parts, memory = self.composed, memory_of(self.composed, state)
        w = map_leaves(lambda leaf: leaf[at], state["own"]) if "own" in state else state.get("w", {})
        round = Round(replies, at, w, self.model)
        if fed is not None:
            round = replace(round, held=fed.held, selection=fed.selection)
        memory = parts.advance("observe", memory, round)
        round = replace(round, factors=parts.factors(memory, round))
        round = replace(round, weights=parts.weights(memory, round), opened=parts.opened(memory, round))
        if not parts.personal:
            round = replace(round, delta=parts.joint(memory, round))
        round = replace(round, value=parts.value(memory, round))
        memory = parts.advance("update", memory, round)
        if try_out is not None:
            memory = parts.tried(memory, round, try_out)
        after, memory = self._stepped(state, round, memory)
        return after | {"parts": memory}, round

    def _stepped(self, state: Tree, round: Round, memory: Tree) -> tuple[Tree, Tree]:
        """The weights after a round, and the parts' states with the server optimizer's state.

        Raises:
            ConfigError: its owner returns something else.
        """
        if self.composed.personal:
            return {"own": round.mix(state["own"])} if "own" in state else {}, memory
        owner = self.composed.owner("step")
        if not owner:
            return {"w": add(round.w, round.delta)}, memory
        result = self.composed[owner].step(memory[owner], round.w, round.delta)
        if not (isinstance(result, tuple) and len(result) == 2 and all(isinstance(tree, dict) for tree in result)):
            message = "is to return two trees, the new weights and its memory for the next round"
            raise ConfigError(f"{owner}.step: {message}", code="config.step")
        shapes = [{path: leaf.shape for path, leaf in leaves(tree)} for tree in (result[0], round.w)]
        if shapes[0] != shapes[1]:
            message = "the new weights are to have the leaves and shapes of the weights before"
            raise ConfigError(f"{owner}.step: {message}", code="config.step")
        mean = dict(leaves(add(round.w, round.delta)))  # also with a server optimizer, statistics follow the mean
        w = {path: mean[path] if is_statistic(path) else leaf for path, leaf in leaves(result[0])}
        return {"w": nest(w)}, memory | {owner: objective.state_of(f"{owner}.step", result[1])}


def memory_of(parts: Composition, state: Tree) -> Tree:
    """{part: its state} in the server's state."""
    return {name: state.get("parts", {}).get(name, {}) for name in parts}

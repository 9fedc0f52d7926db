"""The server of the FedAvg family: from a round's replies to its new state, by the hooks of the parts."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from torch import Tensor

from fedweave.algorithms.participation import places
from fedweave.algorithms.parts.checks import check_tree
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
        memory = {name: memory for name, memory in memory_of(self.composed, state).items() if name in names}
        if not (self.composed.recorded and names and self.composed.owner("receive")):  # other parts need no trace
            return self.composed.downloads(memory, at, names)
        with fed.recording():
            inputs = {"parts": memory, "at": at}
            result: tuple[Tree, Tree, Tree] = compute_on_server(self._downloads, inputs, names=tuple(names))
        return result

    def _downloads(self, inputs: Tree) -> tuple[Tree, Tree, Tree]:
        return self.composed.downloads(inputs["parts"], inputs["at"], inputs["parts"])

    def after(self, state: Tree, replies: Replies, fed: Federation, try_out: TryOut) -> Tree:
        """The entries of the server's state that a round changes: {"w" or "own": weights, "parts": states}."""
        at = places(fed, replies.clients)
        tree = replies.as_tree() if self.composed.recorded else None
        if tree is None:
            return self._finish(state, replies, at, fed, try_out)[0]
        with fed.recording():
            after: Tree = compute_on_server(self._finish_recorded, {"state": state, "replies": tree, "at": at})
        weights = after.pop("weights", None)
        if weights is not None:
            self.composed.check_finite(weights, replies)
        return after

    def _finish_recorded(self, inputs: Tree) -> Tree:
        replies = Replies.from_tree(inputs["replies"])
        after, round = self._finish(inputs["state"], replies, inputs["at"])
        return after | ({} if round.weights is None else {"weights": round.weights})

    def _finish(
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
        # 1. How updates count, and the joint update.
        memory = parts.advance("observe", memory, round)
        round = replace(round, factors=parts.factors(memory, round))
        round = replace(round, weights=parts.weights(memory, round), opened=parts.open_sums(memory, round))
        if not parts.personal:
            round = replace(round, delta=parts.joint(memory, round))
        round = replace(round, value=parts.value(memory, round))
        # 2. What parts remember of it.
        memory = parts.advance("update", memory, round)
        if try_out is not None:
            memory = parts.try_models(memory, round, try_out)
        # 3. The new weights.
        owner = parts.owner("step")
        if parts.personal:
            after = {"own": round.mix(state["own"])} if "own" in state else {}
        elif not owner:
            after = {"w": add(round.w, round.delta)}
        else:
            result = parts[owner].step(memory[owner], round.w, round.delta)
            is_pair = isinstance(result, tuple) and len(result) == 2
            if not is_pair or not all(isinstance(tree, dict) for tree in result):
                message = "is to return two trees, the new weights and its memory for the next round"
                raise ConfigError(f"{owner}.step: {message}", code="config.step")
            w, part_state = result
            if {path: leaf.shape for path, leaf in leaves(w)} != {path: leaf.shape for path, leaf in leaves(round.w)}:
                message = "the new weights are to have the leaves and shapes of the weights before"
                raise ConfigError(f"{owner}.step: {message}", code="config.step")
            mean = dict(leaves(add(round.w, round.delta)))  # also with a server optimizer, statistics follow the mean
            after = {"w": nest({path: mean[path] if is_statistic(path) else leaf for path, leaf in leaves(w)})}
            memory = memory | {owner: check_tree(f"{owner}.step", "the part's state", part_state)}
        return after | {"parts": memory}, round


def memory_of(parts: Composition, state: Tree) -> Tree:
    """{part: its state} in the server's state."""
    return {name: state.get("parts", {}).get(name, {}) for name in parts}

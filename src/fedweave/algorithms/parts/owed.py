"""Rewards that wait for whoever has earned them."""

from torch import Tensor

from fedweave.algorithms.parts.context import Context
from fedweave.algorithms.parts.needs import Needs
from fedweave.algorithms.parts.part import Part
from fedweave.core.federation import Federation
from fedweave.core.tree import Tree, leaves, map_leaves, nest
from fedweave.ops.sparsified import Sparsified


class OwedReward(Part):
    """Clients get entries of the joint update: what each earned when it was last called, so that a client that misses a
    round loses no reward."""

    needs = Needs(decided=("value",))
    client_learns = "its reward: the largest entries of the joint update, as many as it has earned"

    def init(self, fed: Federation, w: Tree) -> Tree:
        """{"owed": leaves [N, …] like w}, nothing yet."""
        return {"owed": map_leaves(lambda leaf: leaf.new_zeros(len(fed.clients), *leaf.shape), w)}

    def download(self, state: Tree, at: Tensor) -> tuple[Tree, ...]:
        """What is owed, instead of weights."""
        return {}, {}, map_leaves(lambda owed: Sparsified(owed[at]), state["owed"])


def rewarded(ctx: Context, base: Tree) -> Tree:
    """The client's weights after the reward that it was sent, added to `base`; what is not shared is its own."""
    before = dict(leaves(base))
    return nest(dict(leaves(ctx.own)) | {path: before[path] + got for path, got in leaves(ctx.message["w"])})

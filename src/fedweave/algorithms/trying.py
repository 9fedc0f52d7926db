"""Models that all clients try on their test examples, whose hits are counted in a secure sum (`parts.TriesModels`)."""

import torch
from torch import Tensor

from fedweave.core import model as models
from fedweave.core.federation import Client, Declaration, Federation, Sends, Step
from fedweave.core.graph import TEST
from fedweave.core.mechanism import SecureSum
from fedweave.core.model import Model
from fedweave.core.tree import Tree, leaves, map_leaves

TRIED = "tried"
_COUNTED = SecureSum(everyone=True, bits=64, fraction=0)
TRIES: Declaration = {
    TRIED: Sends(
        "with the others' alone, how many of all clients' test examples each of several models gets right: an "
        "evaluation for each",
        _COUNTED,
    ),
    "examples": Sends("with the others' alone, how many test examples all clients have", _COUNTED),
}
AT_ONCE = 64  # models in one message
TOLD = {"models": "models that other members' updates have gone into, of some of them each"}


def messages(models: int) -> int:
    """How many messages at most have so many models tried, some at first and the rest after their values are known."""
    return -(-models // AT_ONCE) + 1 if models else 0


def hits(model: Model, many: Tree, client: Client) -> Tree:
    """How many of the client's test examples models with the weights `many`, leaves [c, …], get right, int64 [c], and
    how many there are."""
    graph = client.graph.at(TEST)
    mask = graph.masks[TEST]

    def one(w: Tree) -> Tensor:
        right: Tensor = models.judged_as_seen(model, w, graph).argmax(-1) == graph.y
        return (right & mask).sum()

    count = len(next(iter(leaves(many)))[1])  # one after the other: clients are stacked already
    found = [one(map_leaves(lambda leaf, at=at: leaf[at], many)) for at in range(count)]
    return {TRIED: torch.stack(found), "examples": mask.sum()}


def share_right(fed: Federation, step: Step, many: Tree) -> Tensor:
    """What share of all clients' test examples models with the weights `many`, leaves [c, …], get right, float64 [c];
    step: the one that gives `hits`."""
    count, found = len(next(iter(leaves(many)))[1]), list[Tensor]()
    for first in range(0, count, AT_ONCE):
        some = map_leaves(lambda leaf, at=first: leaf[at : at + AT_ONCE], many)
        replies = fed.map(step, {"models": some})
        found.append(replies.total(TRIED).double() / replies.total("examples"))
    return torch.cat(found)

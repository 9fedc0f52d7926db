"""Scores of which nobody learns more than their sum over clients: what is measured is additive anyway, and so are means
over clients, histograms of what orders examples, and the hits of models that all clients try (`parts.TriesModels`).
"""

from typing import Literal

import torch
from torch import Tensor

from fedweave.algorithms.scoring import pairs_of
from fedweave.core import model as models
from fedweave.core.federation import Client, Declaration, Federation, Sends, Step, on_client
from fedweave.core.graph import TEST, Graph
from fedweave.core.mechanism import SecureSum
from fedweave.core.model import Model
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree, leaves, map_leaves, nest
from fedweave.metrics.classification import means
from fedweave.metrics.histograms import MARGINS, histograms
from fedweave.privacy.secure_sum import FixedPoint

# What is added up below "own", by the binary digits behind the point; whole numbers, or halves, unless it is here.
MEAN, HISTOGRAM = "mean", "histogram"
_FRACTIONS = {"": 1, "loss": 30, "average_precision": 30, "recall_at_1": 30, "precision_at_1": 30, MEAN: 30}
_FRACTIONS |= {HISTOGRAM: 30, f"{HISTOGRAM}/{MARGINS}": 0}
_MOST = 2.0**56  # a sum of losses of 67 million, of each of 127 members; words of 64 bits hold that
SUM = "own"  # the key of what is added up


def summed(everyone: bool) -> Declaration:
    """What `sum_score` declares; everyone: whether it is of all clients in any case."""
    reveals = {
        "": "how many of all members' examples are classified right and wrong, by class and group",
        "loss": "the loss of all members' examples",
        MEAN: "the means over members of what is measured on each one's examples",
        HISTOGRAM: "how many of all members' examples of each class have which score",
    }

    def own(name: str) -> Sends:
        what = reveals.get(name.partition("/")[0], f"{name.replace('_', ' ')} of all members together")
        mechanism = SecureSum(2, everyone, _words(name).bits, _words(name).fraction, 0 if everyone else 1)
        return Sends(f"nothing by itself; with the others' {what}", mechanism)

    return {f"{SUM}/{name}".rstrip("/"): own(name) for name in _FRACTIONS}


def _words(name: str) -> FixedPoint:
    """Of what is called so below "own"."""
    while name not in _FRACTIONS:
        name = name.rpartition("/")[0]
    return FixedPoint(32 if name.endswith(MARGINS) else 64, _FRACTIONS[name])


def sum_score(model: Model, w: Tree, graph: Graph) -> Tree:
    """{"own": words} of what `measure` says of `w`, of its values on the client's own examples ("mean"), and of
    histograms of its scores ("histogram"), to be added up over clients."""
    logits = models.judged(model, w, graph)
    pairs = pairs_of(logits, graph.y, graph.masks, graph.sens)
    told = {**pairs, MEAN: means(pairs), HISTOGRAM: histograms(logits, graph.y, graph.masks)}
    return {SUM: nest({path: _words(path).encode(leaf, _most(path)) for path, leaf in leaves(told)})}


def _most(path: str) -> float:
    """The largest word."""
    return _MOST if _words(path).bits == 64 else 2.0**24


def totals(replies: Replies) -> Tree:
    """Undo `sum_score` for the sum: float64."""
    found = leaves(replies.total(SUM))
    return nest({path: _words(path).decode(words, torch.float64) for path, words in found})


class SumsScores:
    """What an algorithm has whose clients may all be judged by one model, in sums of their scores."""

    scores: Literal["each", "sum"]
    quorum: float

    @property
    def net(self) -> Model:
        """The model that clients use on their data."""
        raise NotImplementedError

    def check_scores(self, one_model: bool) -> None:
        """Refuse sums unless there is `one_model` that clients use, on data that does not change.

        Raises:
            ValueError: there is none.
        """
        if self.scores == "sum" and not one_model:
            raise ValueError(
                'scores is "sum", which is of one model that all clients use, on data that does not change; here each '
                'has one of its own, or other data in time. Set scores = "each"'
            )

    def used(self, client: Client, message: Tree) -> Tree:
        """The weights that a client uses, from what it was told."""
        raise NotImplementedError

    @on_client(sends=lambda self: summed(self.quorum >= 1), hears=lambda self: self.composed.client_learns, apart=True)
    def score_sum(self, client: Client, message: Tree) -> Tree:
        """The joint model on the client's own nodes, in words of a sum."""
        return sum_score(self.net, self.used(client, message), client.graph)


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

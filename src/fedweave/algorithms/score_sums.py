"""Scores whose sums over clients are all that the server learns.

Measurements are additive, and so are means over clients, and histograms of the values that order examples.
"""

from collections.abc import Callable
from typing import Literal

import torch

from fedweave.algorithms.scoring import pairs_of
from fedweave.core import model as models
from fedweave.core.federation import Client, Declaration, Sends, on_client
from fedweave.core.graph import Graph
from fedweave.core.mechanism import SecureSum
from fedweave.core.model import Model
from fedweave.core.replies import Replies
from fedweave.core.target import CLASS, NUMBER
from fedweave.core.tree import Tree, leaves, map_leaves, nest
from fedweave.metrics import intervals, link_ranks
from fedweave.metrics.kinds import means
from fedweave.metrics.score_histograms import MARGINS, histograms
from fedweave.metrics.selection import OF_RANKS, OF_SCORES
from fedweave.privacy.secure_sum import FixedPoint

SUM = "own"  # the key of the sums
SUMMED = "nothing by itself; with the others' "  # begins what a term reveals
MEAN, HISTOGRAM = "mean", "histogram"
# Sums of numbers in the data's units, of any size, in two integers: multiples of 256, and the rest.
HIGH, LOW, RESIDUALS, _STEP = "high", "low", "histogram/residuals", 256.0
# Binary digits behind the point of the values that are added up under "own"; others are whole numbers or halves.
_FRACTIONS = {"": 1, "loss": 30, **dict.fromkeys(OF_SCORES, 30), MEAN: 30}
_FRACTIONS |= {HISTOGRAM: 30, f"{HISTOGRAM}/{MARGINS}": 0, RESIDUALS: 0, HIGH: 0, LOW: 48}
_FRACTIONS |= dict.fromkeys(OF_RANKS, 30)
# Bounds of a client's values in 64 and in 32 bits: 64 hold a sum of losses of 67 million from each of 127 members.
_BOUND_64, _BOUND_32 = 2.0**56, 2.0**24


def sum_declaration(require_all: bool, of_links: bool = False) -> Declaration:
    """The declaration of `sum_score`; require_all: whether the sum always covers all clients. of_links: whether the
    examples are links, which are also ranked."""
    reveals = {
        "": "how many of all members' examples are classified right and wrong, by class and group",
        "loss": "the loss of all members' examples",
        MEAN: "the means over members of what is measured on each one's examples",
        HISTOGRAM: "how many of all members' examples of each class have which score",
        RESIDUALS: "how many of all members' numbers are predicted how far off",
        HIGH: "the errors of all members' numbers, and the means over members of what is measured on each one's",
        LOW: "the errors of all members' numbers, and the means over members of what is measured on each one's",
    }

    declaration = dict[str, Sends]()
    for name in _FRACTIONS:
        if name in OF_RANKS and not of_links:
            continue
        by_default = f"{name.replace('_', ' ')} of all members together"
        what = reveals.get(name) or reveals.get(name.partition("/")[0], by_default)
        form = _fixed_point(name)
        mechanism = SecureSum(2, require_all, form.bits, form.fraction, 0 if require_all else 1)
        declaration[f"{SUM}/{name}".rstrip("/")] = Sends(f"{SUMMED}{what}", mechanism)
    return declaration


def _fixed_point(name: str) -> FixedPoint:
    """The fixed-point form of the value `name` under "own"."""
    while name not in _FRACTIONS:
        name = name.rpartition("/")[0]
    return FixedPoint(32 if name.endswith((MARGINS, RESIDUALS)) else 64, _FRACTIONS[name])


def sum_score(model: Model, w: Tree, graph: Graph) -> Tree:
    """{"own": masked integers} to be added up over clients: the pairs of `measure` for `w`, the client's values
    ("mean"), and histograms of its scores ("histogram")."""
    logits = models.infer(model, w, graph)
    pairs = pairs_of(logits, graph.y, graph.masks, graph.sensitive, scale=graph.scale)
    ranked = link_ranks.rank_metrics(logits, graph, models.count_above(model, w, graph))
    pairs |= link_ranks.sum_links(ranked, graph.masks)
    values: Tree = {**pairs, MEAN: means(pairs)}
    if graph.target == CLASS:
        values[HISTOGRAM] = histograms(logits, graph.y, graph.masks)
    elif graph.target == NUMBER:
        high = map_leaves(lambda leaf: (leaf / _STEP).floor(), values)
        low = map_leaves(lambda leaf, above: leaf - above * _STEP, values, high)
        residuals = intervals.histograms(logits, graph.y, graph.masks, graph.scale)
        values = {HIGH: high, LOW: low, HISTOGRAM: {"residuals": residuals}}
    sums = Tree()
    for path, leaf in leaves(values):
        form = _fixed_point(path)
        sums[path] = form.encode(leaf, _BOUND_64 if form.bits == 64 else _BOUND_32)
    return {SUM: nest(sums)}


def totals(replies: Replies) -> Tree:
    """The sums of `sum_score` over clients, decoded: float64."""
    sums = leaves(replies.total(SUM))
    total = nest({path: _fixed_point(path).decode(words, torch.float64) for path, words in sums})
    if HIGH not in total:
        return total
    whole = map_leaves(lambda above, rest: above * _STEP + rest, total[HIGH], total[LOW])
    return whole | {HISTOGRAM: total[HISTOGRAM]}


class SumsScores:
    """A base of algorithms that can evaluate one model at all clients by sums of their scores."""

    scores: Literal["each", "sum"]
    quorum: float

    @property
    def net(self) -> Model:
        """The model that clients use on their data."""
        raise NotImplementedError

    def check_scores(self, one_model: bool) -> None:
        """Check that sums have `one_model` that all clients use, on data that does not change.

        Raises:
            ValueError: they have none.
        """
        if self.scores == "sum" and not one_model:
            raise ValueError(
                'scores is "sum", which is of one model that all clients use, on data that does not change; here each '
                'has one of its own, or other data in time. Set scores = "each"'
            )

    def used(self, client: Client, message: Tree) -> Tree:
        """The weights that a client uses, from the server's message."""
        raise NotImplementedError

    def score_or_store(self, client: Client, message: Tree, w: Tree, score: Callable[[], Tree]) -> Tree:
        raise NotImplementedError

    @on_client(
        sends=lambda self: sum_declaration(self.quorum >= 1, models.example(self.net) == "link"),
        hears=lambda self: self.composed.client_learns,
        apart=True,
    )
    def score_sum(self, client: Client, message: Tree) -> Tree:
        """Scores of the global model on the client's own nodes, as masked integers."""
        w = self.used(client, message)
        return self.score_or_store(client, message, w, lambda: sum_score(self.net, w, client.graph))

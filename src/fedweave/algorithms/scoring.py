"""Evaluation of models, shared by all algorithms."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.func import vmap

from fedweave.algorithms.parts.part import Trial
from fedweave.core import model as models
from fedweave.core.federation import Client, Declaration, Federation, Sends, Step, on_client
from fedweave.core.graph import TEST, TRAIN, Graph
from fedweave.core.mechanism import SecureSum
from fedweave.core.model import Model
from fedweave.core.ranges import ANY, Pairs, Whole
from fedweave.core.replies import Replies
from fedweave.core.target import CLASS, NUMBER, kind_of
from fedweave.core.tree import Tree, leaves, map_leaves, nest
from fedweave.learn import compute_on_server, keep_trained
from fedweave.metrics import groups, intervals, labels, links, numbers
from fedweave.metrics.classification import counts
from fedweave.metrics.kinds import always, means
from fedweave.metrics.score_histograms import MARGINS, histograms
from fedweave.metrics.selection import OF_RANKS, OF_SCORES
from fedweave.privacy.secure_sum import FixedPoint


def _of_numbers(key: str, model: str, where: str) -> Declaration:
    """The declarations of a client that predicts numbers, in addition to errors."""
    return {
        f"{key}/moments": Sends(
            f"sums over {where} of the numbers and of what {model} predicts, of their squares and of their products",
            within=ANY,
        ),
        f"{key}/spearman": Sends(f"how well {model} orders {where} by their numbers", within=ANY),
        f"{key}/group_errors": Sends(
            f"how far {model} is off on {where} of each sensitive group, upwards or downwards", within=ANY
        ),
    }


SCORES: Declaration = {
    "own": Sends(
        "the model's loss and hits on the client's examples, how well it orders them, and how many each class has",
        within=Pairs(),
    ),
    "own/classes": Sends(
        "how often the model predicts each class on the client's examples, and how many of each class it has",
        within=Whole(),
    ),
    "own/groups": Sends(
        "how many of the client's examples of each sensitive group have which label and prediction", within=Whole()
    ),
    "own/group_auc": Sends(
        "within each sensitive group of the client, how many pairs of examples the model orders correctly",
        within=Pairs(),
    ),
    "trained": Sends("the loss and hits of the client's own trained model on its examples", within=Pairs()),
    **_of_numbers("own", "the model", "the client's examples"),
    **{
        f"own/{name}": Sends(
            "how high the model ranks the client's links among drawn pairs without one", within=Pairs()
        )
        for name in OF_RANKS
    },
}
PERSONAL_SCORES: Declaration = {
    **SCORES,
    "global_test": Sends("the loss and hits of the client's own model on the global test graph", within=Pairs()),
    "global_test/classes": Sends(
        "how often the client's own model predicts each class on the global test graph, and how many of each that has",
        within=Whole(),
    ),
    "global_test/groups": Sends(
        "how many examples of the global test graph of each sensitive group have which label and prediction by the "
        "client's own model",
        within=Whole(),
    ),
    "global_test/group_auc": Sends(
        "within each sensitive group of the global test graph, how many pairs of examples the client's own model "
        "orders correctly",
        within=Pairs(),
    ),
    **_of_numbers("global_test", "the client's own model", "the global test graph"),
}


def measure(model: Model, w: Tree, graph: Graph, whole: bool = True, members: tuple[Tensor, ...] = ()) -> Tree:
    """Additive pairs [3, 2, …] per metric of `w` on the train, val and test examples of `graph`; the `whole` with the
    AUC and, where there are two classes and a sensitive attribute, with what `metrics.groups.counts` adds.

    members: see `core.federation.Client`; if there are any, the result is [M, 3, 2, …], the pairs on each member's own
             examples.
    """
    logits = models.infer(model, w, graph)
    ranked = links.of_graph(logits, graph, models.behind(model, w, graph)) if whole else {}
    if not members:
        pairs = pairs_of(logits, graph.y, graph.masks, graph.sensitive, whole, graph.scale)
        return pairs | links.sum_links(ranked, graph.masks)

    def of_rows(rows: Tensor) -> Tree:
        at = rows.clamp(min=0)
        masks = graph.masks[:, at] & (rows >= 0)
        sensitive = None if graph.sensitive is None else graph.sensitive[at]
        pairs = pairs_of(logits[at], graph.y[at], masks, sensitive, whole, graph.scale)
        return pairs | links.sum_links({name: pair[at] for name, pair in ranked.items()}, masks)

    return map_leaves(lambda *each: torch.cat(each), *(vmap(of_rows)(rows) for rows in members))


def pairs_of(
    logits: Tensor,
    y: Tensor,
    masks: Tensor,
    sensitive: Tensor | None,
    whole: bool = True,
    scale: Tensor | None = None,
) -> Tree:
    """The pairs of `measure` from a model's outputs, for the kind of targets in `y`: logits [n, c] or [n, t]; masks:
    bool [S, n]; scale: see `core.graph.Graph`."""
    if (target := kind_of(y)) != CLASS:
        if target == NUMBER:
            return numbers.counts(logits, y, masks, scale, sensitive, whole)
        return labels.counts(logits, y, masks, whole)
    pairs = counts(logits, y, masks, whole)
    if not whole or sensitive is None or logits.shape[-1] != 2:
        return pairs
    return pairs | groups.counts(logits, y, sensitive, masks)


def score(model: Model, w: Tree, client: Client, trained: Tree | None = None, remembered: bool = True) -> Tree:
    """{"own": pairs} of `w` on the client's own examples, and {"trained": pairs} there of its model right after its own
    training, by default `client.state["w"]`, without AUC and groups; all zero if it was never called to train.

    remembered: whether `trained` also holds the received weights at a client without training examples; otherwise these
                are `w`."""
    pairs = measure(model, w, client.graph, members=client.members)
    trained = client.state.get("w") if trained is None else trained
    if trained is None or trained is w:
        after = {name: pairs[name] if trained is w else torch.zeros_like(pairs[name]) for name in always(pairs)}
    else:
        after = measure(model, trained, client.graph, whole=False, members=client.members)
        if not remembered:
            after = keep_trained(client.graph.masks[TRAIN].any(), after, {name: pairs[name] for name in always(pairs)})
    return {"own": pairs, "trained": after}


def personal_score(
    model: Model,
    w: Tree,
    client: Client,
    trained: Tree | None = None,
    test_model: Model | None = None,
    remembered: bool = True,
) -> Tree:
    """`score`, and the client's own model on the global test graph where there is one, as `test_model` if that is
    another."""
    result = score(model, w, client, trained, remembered)
    if client.test is None:
        return result
    test = client.test
    if client.graph.scale is not None:  # of the client's own model's outputs
        test = test._replace(scale=client.graph.scale)
    return result | {"global_test": measure(test_model or model, w, test)}


def on_global_test(model: Model, w: Tree, fed: Federation) -> Tree | None:
    """Pairs of one global model on the global test graph; None without one."""
    if fed.test is None:
        return None
    with fed.recording():
        pairs: Tree = compute_on_server(_Measuring(model), w, fed.test)
    return pairs


@dataclass(frozen=True, repr=False)
class _Measuring:
    """`measure` of weights of one model."""

    model: Model

    def __call__(self, w: Tree, graph: Graph) -> Tree:
        return measure(self.model, w, graph)


# ----------------------------------------------------------------------------------------------------
# Scores whose sums over clients are all that the server learns. Measurements are additive, and so are means over
# clients, and histograms of the values that order examples.


# Binary digits behind the point of the values that are added up under "own"; others are whole numbers or halves.
MEAN, HISTOGRAM = "mean", "histogram"
# Sums of numbers in the data's units, of any size, in two integers: multiples of 256, and the rest.
HIGH, LOW, RESIDUALS, _STEP = "high", "low", "histogram/residuals", 256.0
_FRACTIONS = {"": 1, "loss": 30, **dict.fromkeys(OF_SCORES, 30), MEAN: 30}
_FRACTIONS |= {HISTOGRAM: 30, f"{HISTOGRAM}/{MARGINS}": 0, RESIDUALS: 0, HIGH: 0, LOW: 48}
_FRACTIONS |= dict.fromkeys(OF_RANKS, 30)
_MOST = 2.0**56  # 64 bits hold a sum of losses of 67 million from each of 127 members
SUM = "own"  # the key of the sums


def summed(everyone: bool, of_links: bool = False) -> Declaration:
    """The declaration of `sum_score`; everyone: whether the sum always covers all clients. of_links: whether the
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

    def declaration(name: str) -> Sends:
        what = reveals.get(name) or reveals.get(
            name.partition("/")[0], f"{name.replace('_', ' ')} of all members together"
        )
        mechanism = SecureSum(2, everyone, _words(name).bits, _words(name).fraction, 0 if everyone else 1)
        return Sends(f"nothing by itself; with the others' {what}", mechanism)

    return {f"{SUM}/{name}".rstrip("/"): declaration(name) for name in _FRACTIONS if of_links or name not in OF_RANKS}


def _words(name: str) -> FixedPoint:
    """The fixed-point form of the value `name` under "own"."""
    while name not in _FRACTIONS:
        name = name.rpartition("/")[0]
    return FixedPoint(32 if name.endswith((MARGINS, RESIDUALS)) else 64, _FRACTIONS[name])


def sum_score(model: Model, w: Tree, graph: Graph) -> Tree:
    """{"own": masked integers} to be added up over clients: the pairs of `measure` for `w`, the client's values
    ("mean"), and histograms of its scores ("histogram")."""
    logits = models.infer(model, w, graph)
    pairs = pairs_of(logits, graph.y, graph.masks, graph.sensitive, scale=graph.scale)
    pairs |= links.sum_links(links.of_graph(logits, graph, models.behind(model, w, graph)), graph.masks)
    values: Tree = {**pairs, MEAN: means(pairs)}
    if graph.target == CLASS:
        values[HISTOGRAM] = histograms(logits, graph.y, graph.masks)
    elif graph.target == NUMBER:
        high = map_leaves(lambda leaf: (leaf / _STEP).floor(), values)
        low = map_leaves(lambda leaf, above: leaf - above * _STEP, values, high)
        residuals = intervals.histograms(logits, graph.y, graph.masks, graph.scale)
        values = {HIGH: high, LOW: low, HISTOGRAM: {"residuals": residuals}}
    return {SUM: nest({path: _words(path).encode(leaf, _most(path)) for path, leaf in leaves(values)})}


def _most(path: str) -> float:
    """The bound of a value."""
    return _MOST if _words(path).bits == 64 else 2.0**24


def totals(replies: Replies) -> Tree:
    """The sums of `sum_score` over clients, decoded: float64."""
    sums = leaves(replies.total(SUM))
    total = nest({path: _words(path).decode(words, torch.float64) for path, words in sums})
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
        sends=lambda self: summed(self.quorum >= 1, models.example(self.net) == "link"),
        hears=lambda self: self.composed.client_learns,
        apart=True,
    )
    def score_sum(self, client: Client, message: Tree) -> Tree:
        """Scores of the global model on the client's own nodes, as masked integers."""
        w = self.used(client, message)
        return self.score_or_store(client, message, w, lambda: sum_score(self.net, w, client.graph))


# ----------------------------------------------------------------------------------------------------
# Models that all clients try on their test examples (`Part.try_models`).


TRIED, TRAINED_LABELS = "tried", "labels"
TRIES: Declaration = {
    TRIED: Sends(
        "how many of the client's test examples each of several models gets right, by class, and how well it orders "
        "them: an evaluation for each",
        within=Pairs(),
    ),
    f"{TRIED}/classes": Sends(
        "how often each of the models predicts each class on the client's test examples, and how many of each it has",
        within=Whole(),
    ),
    f"{TRIED}/{TRAINED_LABELS}": Sends("how many of the client's training examples each class has", within=Pairs()),
}
AT_ONCE = 64  # models in one message
TRIED_MODELS = {"models": "models that other members' updates have gone into, of some of them each"}


def messages(models: int) -> int:
    """The largest number of messages for clients to try `models` models, some at first and the rest after the first
    values are known."""
    return -(-models // AT_ONCE) + 1 if models else 0


def tried_pairs(model: Model, many: Tree, graph: Graph) -> Tree:
    """The pairs of `metrics.classification.counts` but the loss, on the test examples of `graph`, of models with the
    weights `many`, leaves [c, …]: {metric: float64 [c, 2, …]}."""
    graph = graph.at(TEST)

    def one(w: Tree) -> Tree:
        pairs = counts(models.infer_split(model, w, graph), graph.y, graph.masks[TEST][None])
        return {name: pair[0] for name, pair in pairs.items() if name != "loss"}

    count = len(next(iter(leaves(many)))[1])  # one model after the other, because clients are already stacked
    each = [one(map_leaves(lambda leaf, at=at: leaf[at], many)) for at in range(count)]
    return map_leaves(lambda *pairs: torch.stack(pairs), *each)


def try_models(model: Model, many: Tree, client: Client) -> Tree:
    """{"tried": the `tried_pairs` of a client, and "labels" float64 [1, 2, c], twice how many of its training examples
    each class has}."""
    pairs = tried_pairs(model, many, client.graph)
    classes = torch.arange(pairs["f1"].shape[-1], device=client.graph.y.device)
    of_class = client.graph.y[:, None] == classes
    labels = (of_class & client.graph.masks[TRAIN][:, None]).sum(0).to(torch.float64)
    return {TRIED: pairs | {TRAINED_LABELS: torch.stack([labels, labels])[None]}}


def try_out(fed: Federation, step: Step, many: Tree) -> Trial:
    """Let all clients try models with the weights `many`, leaves [c, …]; step: the client step `try_models`."""
    count, trials = len(next(iter(leaves(many)))[1]), list[Tree]()
    for first in range(0, count, AT_ONCE):
        some = map_leaves(lambda leaf, at=first: leaf[at : at + AT_ONCE], many)
        replies = fed.map(step, {"models": some})
        trials.append({path.partition("/")[2]: replies.stack(path) for path in replies.readable})
    labels = trials[0][TRAINED_LABELS][:, 0, 0].sum(0).cpu().numpy()
    pairs = {
        name: torch.cat([trial[name] for trial in trials], 1).cpu().numpy()
        for name in trials[0]
        if name != TRAINED_LABELS
    }
    return Trial(pairs, labels)

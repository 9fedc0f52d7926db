"""Evaluation of models, shared by all algorithms."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from fedweave.core import model as models
from fedweave.core.federation import Client, Declaration, Federation, Sends
from fedweave.core.graph import SPLIT_PAIRS, TRAIN, VAL, Graph
from fedweave.core.model import Model
from fedweave.core.ranges import ANY, Pairs, Whole
from fedweave.core.target import CLASS, LABELS, NUMBER, kind_of
from fedweave.core.tree import Tree, map_leaves
from fedweave.core.types import Ordering
from fedweave.learn import compute_on_server, keep_trained
from fedweave.metrics import groups, labels, link_ranks, numbers
from fedweave.metrics.classification import class_scores, counts, rank_pairs
from fedweave.metrics.kinds import always
from fedweave.metrics.selection import OF_RANKS
from fedweave.ops.rows import gather_rows


def _number_declarations(key: str, model: str, where: str) -> Declaration:
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


_RANKS = Sends("how high the model ranks the client's links among drawn pairs without one", within=Pairs())
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
    **_number_declarations("own", "the model", "the client's examples"),
    **{f"own/{name}": _RANKS for name in OF_RANKS},
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
    **_number_declarations("global_test", "the client's own model", "the global test graph"),
}


def measure(
    model: Model,
    w: Tree,
    graph: Graph,
    whole: bool = True,
    members: tuple[Tensor, ...] = (),
    ranks: Ordering = "all",
) -> Tree:
    """Additive pairs [3, 2, …] per metric of `w` on the train, val and test examples of `graph`; the `whole` with the
    AUC and, where there are two classes and a sensitive attribute, with what `metrics.groups.counts` adds.

    ranks: whether the whole includes what orders examples; "sample" is "all" where there are members.
    members: see `core.federation.Client`; if there are any, the result is [M, 3, 2, …], the pairs on each member's own
             examples.
    """
    sorts = whole and ranks != "none"
    if sorts and ranks == "sample" and not members:
        graph = graph.with_sampled_ranks
    has_candidates = SPLIT_PAIRS in graph.extra and not members
    examples = graph.in_splits if has_candidates else graph
    logits = models.infer(model, w, graph if sorts else examples)
    rows = graph.extra[SPLIT_PAIRS].clamp(min=0) if sorts and has_candidates else None
    ranked = link_ranks.rank_metrics(logits, graph, models.count_above(model, w, graph), rows) if sorts else {}
    if not members:
        if rows is not None:
            logits = gather_rows(logits, rows)
        pairs = pairs_of(logits, examples.y, examples.masks, graph.sensitive, whole, graph.scale, sorts)
        return pairs | link_ranks.sum_links(ranked, examples.masks)

    def of_rows(rows: Tensor) -> Tree:
        at = rows.clamp(min=0)
        masks = graph.masks[:, at] & (rows >= 0)
        sensitive = None if graph.sensitive is None else graph.sensitive[at]
        pairs = pairs_of(logits[at], graph.y[at], masks, sensitive, whole, graph.scale, sorts)
        return pairs | link_ranks.sum_links({name: pair[at] for name, pair in ranked.items()}, masks)

    return map_leaves(lambda *each: torch.cat(each), *(vmap(of_rows)(rows) for rows in members))


def on_validation(model: Model, w: Tree, graph: Graph) -> Tensor:
    """How good `w` is on the validation examples of `graph`, float64 scalar, the larger the better: the AUC of two
    classes or the sum of those of several labels, otherwise the loss with a minus. It is 0 without such examples, and
    -inf where outputs are not finite."""
    graph = (graph.in_splits if SPLIT_PAIRS in graph.extra else graph).at(VAL)
    logits, y, validation = models.infer_split(model, w, graph), graph.y, graph.masks[VAL][None]
    if kind_of(y) == LABELS:
        worth = _sum_of_auc(logits, y == 1, (validation[:, :, None] & (y >= 0)).mT)
    elif kind_of(y) == CLASS and logits.shape[-1] == 2:
        worth = _sum_of_auc(class_scores(logits)[:, 1:], (y == 1)[:, None], validation)
    else:
        worth = -pairs_of(logits, y, validation, None, whole=False, scale=graph.scale)["loss"][0, 0]
    return torch.where(logits.isfinite().all(), worth, -torch.inf)


def _sum_of_auc(score: Tensor, truth: Tensor, sets: Tensor) -> Tensor:
    """Over the classes of one set, 0 of a class without pairs; arguments as of `rank_pairs`."""
    right, of_all = rank_pairs(score, truth, sets, ("auc",))["auc"][0]  # [c] each
    total: Tensor = (right / of_all.clamp(min=1)).sum()
    return total


def pairs_of(
    logits: Tensor,
    y: Tensor,
    masks: Tensor,
    sensitive: Tensor | None,
    whole: bool = True,
    scale: Tensor | None = None,
    ranks: bool = True,
) -> Tree:
    """The pairs of `measure` from a model's outputs, for the kind of targets in `y`: logits [n, c] or [n, t]; masks:
    bool [S, n]; scale: see `core.graph.Graph`."""
    target = kind_of(y)
    if target == NUMBER:
        return numbers.counts(logits, y, masks, scale, sensitive, whole, ranks)
    if target != CLASS:
        return labels.counts(logits, y, masks, whole and ranks)
    pairs = counts(logits, y, masks, whole, ranks)
    if not whole or sensitive is None or logits.shape[-1] != 2:
        return pairs
    return pairs | groups.counts(logits, y, sensitive, masks, ranks)


def score_paths(graph: Graph, outputs: int) -> tuple[str, ...]:
    """The paths of `score` on such a graph, such as "own/auc"; outputs: of the model for each example."""
    logits = torch.zeros(len(graph.y), outputs, dtype=torch.float32, device=graph.y.device)
    pairs = pairs_of(logits, graph.y, graph.masks, graph.sensitive, scale=graph.scale)
    pairs |= link_ranks.rank_metrics(logits, graph, None)
    return (*(f"own/{name}" for name in pairs), *(f"trained/{name}" for name in always(pairs)))


def score(model: Model, w: Tree, client: Client, trained: Tree | None = None, remembered: bool = True) -> Tree:
    """{"own": pairs} of `w` on the client's own examples, and {"trained": pairs} there of its model right after its own
    training, by default `client.state["w"]`, without AUC and groups; all zero if it was never called to train.

    remembered: whether `trained` also holds the received weights at a client without training examples; otherwise these
                are `w`."""
    pairs = measure(model, w, client.graph, members=client.members, ranks=client.ranks)
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
    return result | {"global_test": measure(test_model or model, w, test, ranks=client.ranks)}


def on_global_test(model: Model, w: Tree, fed: Federation) -> Tree | None:
    """Pairs of one global model on the global test graph; None without one."""
    if fed.test is None:
        return None
    with fed.recording():
        pairs: Tree = compute_on_server(_Measure(model, fed.ranks), w, fed.test)
    return pairs


@dataclass(frozen=True, repr=False)
class _Measure:
    """`measure` with one model; equal for equal models, so that it is traced once for each."""

    model: Model
    ranks: Ordering

    def __call__(self, w: Tree, graph: Graph) -> Tree:
        return measure(self.model, w, graph, ranks=self.ranks)

"""How models are judged, shared by all algorithms."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from fedweave.core import model as models
from fedweave.core.federation import Client, Declaration, Federation, Sends
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.model import Model
from fedweave.core.ranges import Pairs, Whole
from fedweave.core.tree import Tree, map_leaves
from fedweave.learn import alone, where_trained
from fedweave.metrics import group_fairness
from fedweave.metrics.classification import ALWAYS, counts

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
}


def measure(model: Model, w: Tree, graph: Graph, whole: bool = True, members: tuple[Tensor, ...] = ()) -> Tree:
    """Additive pairs [3, 2, …] per metric of `w` on the train, val and test examples of `graph`; the `whole` with the
    AUC and, where there are two classes and a sensitive attribute, with what `group_fairness.counts` adds.

    members: see `core.federation.Client`; if there are any, [M, 3, 2, …], the pairs of each one's own examples.
    """
    logits = models.judged(model, w, graph)
    if not members:
        return pairs_of(logits, graph.y, graph.masks, graph.sens, whole)

    def own(rows: Tensor) -> Tree:
        at = rows.clamp(min=0)
        masks = graph.masks[:, at] & (rows >= 0)
        return pairs_of(logits[at], graph.y[at], masks, None if graph.sens is None else graph.sens[at], whole)

    return map_leaves(lambda *each: torch.cat(each), *(vmap(own)(rows) for rows in members))


def pairs_of(logits: Tensor, y: Tensor, masks: Tensor, sens: Tensor | None, whole: bool = True) -> Tree:
    """The pairs of `measure` of logits [n, c]; masks: bool [S, n]."""
    pairs = counts(logits, y, masks, whole)
    if not whole or sens is None or logits.shape[-1] != 2:
        return pairs
    return pairs | group_fairness.counts(logits, y, sens, masks)


def score(model: Model, w: Tree, client: Client, trained: Tree | None = None, remembered: bool = True) -> Tree:
    """{"own": pairs} of `w` on the client's own examples, and {"trained": pairs} there of its model right after its own
    training, by default `client.state["w"]`, without AUC and groups; all zero if it was never called to train.

    remembered: whether that is what a client without training examples has received, too; else that is `w`."""
    own = measure(model, w, client.graph, members=client.members)
    trained = client.state.get("w") if trained is None else trained
    if trained is None or trained is w:
        after = {name: own[name] if trained is w else torch.zeros_like(own[name]) for name in ALWAYS}
    else:
        after = measure(model, trained, client.graph, whole=False, members=client.members)
        if not remembered:
            after = where_trained(client.graph.masks[TRAIN].any(), after, {name: own[name] for name in ALWAYS})
    return {"own": own, "trained": after}


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
    own = score(model, w, client, trained, remembered)
    return own if client.test is None else own | {"global_test": measure(test_model or model, w, client.test)}


def on_global_test(model: Model, w: Tree, fed: Federation) -> Tree | None:
    """Pairs of one global model on the global test graph; None without one."""
    if fed.test is None:
        return None
    with fed.recording():
        found: Tree = alone(_Measuring(model), w, fed.test)
    return found


@dataclass(frozen=True, repr=False)
class _Measuring:
    """`measure` of weights of one model."""

    model: Model

    def __call__(self, w: Tree, graph: Graph) -> Tree:
        return measure(self.model, w, graph)

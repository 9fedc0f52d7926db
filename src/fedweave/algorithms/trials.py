"""Models that all clients try on their test examples (`Part.try_models`)."""

import numpy as np
import torch

from fedweave.algorithms.parts.part import Trial
from fedweave.core import model as models
from fedweave.core.federation import Client, Declaration, Federation, Sends, Step
from fedweave.core.graph import TEST, TRAIN, Graph
from fedweave.core.model import Model
from fedweave.core.ranges import Pairs, Whole
from fedweave.core.tree import Tree, leaves, map_leaves
from fedweave.metrics.classification import counts

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
    """The pairs of `metrics.classification.counts` without the loss, on the test examples of `graph`, of models with
    the weights `many`, leaves [c, …]: {metric: float64 [c, 2, …]}."""
    graph, each = graph.at(TEST), list[Tree]()
    for at in range(_count(many)):  # one model after the other, because clients are already stacked
        w = map_leaves(lambda leaf, at=at: leaf[at], many)
        pairs = counts(models.infer_split(model, w, graph), graph.y, graph.masks[TEST][None])
        each.append({name: pair[0] for name, pair in pairs.items() if name != "loss"})
    return map_leaves(lambda *pairs: torch.stack(pairs), *each)


def try_models(model: Model, many: Tree, client: Client) -> Tree:
    """{"tried": the `tried_pairs` of a client, and "labels" float64 [1, 2, c], twice how many of its training examples
    each class has}."""
    pairs = tried_pairs(model, many, client.graph)
    classes = torch.arange(pairs["f1"].shape[-1], device=client.graph.y.device)
    is_class = client.graph.y[:, None] == classes  # [n, k]
    labels = (is_class & client.graph.masks[TRAIN][:, None]).sum(0).to(torch.float64)
    return {TRIED: pairs | {TRAINED_LABELS: torch.stack([labels, labels])[None]}}


def try_out(fed: Federation, step: Step, many: Tree) -> Trial:
    """Let all clients try models with the weights `many`, leaves [c, …]; step: the client step `try_models`."""
    trials = list[Tree]()
    for first in range(0, _count(many), AT_ONCE):
        some = map_leaves(lambda leaf, first=first: leaf[first : first + AT_ONCE], many)
        replies = fed.map(step, {"models": some})
        trials.append({path.partition("/")[2]: replies.stack(path) for path in replies.readable})
    labels = trials[0][TRAINED_LABELS][:, 0, 0].sum(0).cpu().numpy()  # [k]
    pairs = dict[str, np.ndarray]()
    for name in trials[0]:
        if name != TRAINED_LABELS:
            pairs[name] = torch.cat([trial[name] for trial in trials], 1).cpu().numpy()  # [V, c, 2, …]
    return Trial(pairs, labels)


def _count(many: Tree) -> int:
    """c, the number of models with the weights `many`, leaves [c, …]."""
    return len(next(iter(leaves(many)))[1])

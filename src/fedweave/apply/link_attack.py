"""Link-membership inference: whether a pair's score reveals that a model was trained on it."""

from typing import NamedTuple

import numpy as np
import torch

from fedweave.core import model as models
from fedweave.core.algorithm import graphs_of
from fedweave.core.graph import RELATION, TEST, TRAIN
from fedweave.core.graph_arrays import graph_arrays, graph_like
from fedweave.core.tree import device_of
from fedweave.errors import UserError
from fedweave.experiment.runs.trained import Trained, chosen_models
from fedweave.privacy.attacks import separation

KNOWN = {
    "scores": "the scores that the owner's model gives, with all messages",
    "model": "the model and the features of nodes, no edge",
}


class Inferred(NamedTuple):
    """The result of an attack. knows: what the attacker has. auc: how well the attack separates training links from
    test links, 0.5 by chance. advantage: true positive rate minus false positive rate at the best threshold, 0 by
    chance."""

    knows: str
    auc: float
    advantage: float


def infer_membership(run: Trained) -> list[Inferred]:
    """Each attack of `KNOWN` on the links of all clients, by the models that they use."""
    graphs, scores, truths = graphs_of(run.built.fed), dict[str, list[np.ndarray]](), list[np.ndarray]()
    for client, w in chosen_models(run, None, "personal").items():
        graph = graphs[client].to("cpu")
        if graph.pairs is None:
            raise ValueError(f"the examples of {client} are not links")
        bare = graph_like(graph, graph_arrays(graph)._replace(edges=np.empty((2, 0), np.int64), edge_attrs=None))
        link = (graph.y == 1) & graph.masks[[TRAIN, TEST]].any(0) & (graph.pairs[RELATION] >= 0)  # [pairs]
        truths.append(graph.masks[TRAIN][link].numpy())
        for name, known in (("scores", graph), ("model", bare)):
            with torch.no_grad():
                logits = models.infer(run.net_of(client), w, known.to(device_of(w))).cpu().double()
            scores.setdefault(name, []).append((logits[link, 1] - logits[link, 0]).numpy())
    truth = np.concatenate(truths)
    if truth.all() or not truth.any():
        raise UserError(
            "the attack compares links of training with links of the test, and the run has none of one kind. Give "
            "data.ratios a share of each.",
            code="user.pairs",
        )
    results = []
    for name, each in scores.items():
        score = np.concatenate(each)
        auc, advantage, _ = separation(score[truth], score[~truth])
        results.append(Inferred(KNOWN[name], auc, advantage))
    return results

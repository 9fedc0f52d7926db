"""One client's training, written out with PyTorch's own optimizers on dense matrices, beside the algorithm's."""

import scipy.sparse as sp
import torch

from fedweave.contract.subject import ROUNDS, Subject
from fedweave.core.algorithm import Engine
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.graph_arrays import graph_arrays
from fedweave.core.tree import Tree, leaves, map_leaves, nest
from fedweave.core.types import Record, Values
from fedweave.experiment.rounds import RoundResult, train

CLIENT = "site-1"
GCN = ("0/bias", "0/weight", "1/bias", "1/weight")


class NoGcn(Exception):
    """The algorithm trains another model, or stores it elsewhere, so that there is nothing to compare with."""


def train_both(subject: Subject, settings: Values) -> tuple[Tree, Tree]:
    """The weights after `ROUNDS` rounds of an algorithm with one client, and the weights of a 2-layer GCN after equally
    many steps on that client's graph. Both start from the weights after the first round.

    settings: the algorithm's optimizer, "sgd" or "adam", with lr and weight_decay, and its `optimizer_state`.

    Raises:
        NoGcn: the algorithm's model cannot be compared.
    """
    graph = subject.graphs(torch.float64)[CLIENT]
    algorithm = subject.build(dropout=0.0, **settings)
    fed = subject.federation(dtype=torch.float64, clients={CLIENT: graph}, record="never")
    [first] = train(algorithm, fed, 1)
    w = _global_model(first, fed)
    features = len(w["0"]["weight"])
    if features != graph.x.shape[1]:
        raise NoGcn(f"its GCN reads {features} features, and the client's data has {graph.x.shape[1]}")
    moments = fed.snapshot().get(CLIENT, {}).get("optimizer")
    expected = _train_gcn(w, moments, graph, settings)
    *_, last = train(algorithm, fed, 1 + ROUNDS, 0, (1, first.state))
    return _global_model(last, fed), expected


def _train_gcn(w: Tree, moments: Tree | None, graph: Graph, settings: Values) -> Tree:
    arrays = graph_arrays(graph)
    x = torch.from_numpy(sp.csr_matrix(arrays.x).toarray())
    y, mask = torch.from_numpy(arrays.y), torch.from_numpy(arrays.masks[TRAIN].copy())
    adjacency = torch.eye(len(y), dtype=x.dtype, device=x.device)  # A + I
    adjacency[tuple(arrays.edges)] = 1
    operator = adjacency / adjacency.sum(1).outer(adjacency.sum(1)).sqrt()
    for _, leaf in leaves(w):
        leaf.requires_grad_()
    w1, b1, w2, b2 = w["0"]["weight"], w["0"]["bias"], w["1"]["weight"], w["1"]["bias"]
    optimizer = _optimizer(w, moments, settings)
    for _ in range(ROUNDS):
        if settings.get("optimizer_state") == "fresh":
            optimizer = _optimizer(w, None, settings)
        optimizer.zero_grad()
        logits = operator @ torch.relu(operator @ x @ w1 + b1) @ w2 + b2
        torch.nn.functional.cross_entropy(logits[mask], y[mask]).backward()
        optimizer.step()
    return map_leaves(lambda leaf: leaf.detach(), w)


def _optimizer(w: Tree, moments: Tree | None, settings: Values) -> torch.optim.Optimizer:
    """PyTorch's optimizer, with the client's optimizer state."""
    flat = [leaf for _, leaf in leaves(w)]
    options = {name: settings[name] for name in ("lr", "weight_decay")}
    if settings["optimizer"] == "sgd":
        return torch.optim.SGD(flat, **options)
    optimizer = torch.optim.Adam(flat, **options)
    if moments is not None:
        for layer, tensors in w.items():
            for name, leaf in tensors.items():
                past = {"exp_avg": moments["m"][layer][name], "exp_avg_sq": moments["v"][layer][name]}
                optimizer.state[leaf] = {"step": moments["steps"].float()} | past
    return optimizer


def _global_model(step: RoundResult, fed: Engine) -> Tree:
    """A copy of the global model: the server's weights, and the client's own weights if the server has none.

    Raises:
        NoGcn: the weights are not a 2-layer GCN's.
    """
    flat: Record = {}
    for tree in (fed.snapshot().get(CLIENT, {}), step.state):
        flat |= leaves(tree["w"]) if isinstance(tree.get("w"), dict) else {}
    different = sorted(flat.keys() ^ set(GCN))
    if different:
        raise NoGcn(f"the weights that the server and the client keep as 'w' are not a 2-layer GCN's: {different[0]!r}")
    return map_leaves(lambda leaf: leaf.clone(), nest(flat))

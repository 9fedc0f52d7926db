"""One client's training, written out with PyTorch's own optimisers on dense matrices."""

import scipy.sparse as sp
import torch

from fedweave.contract.subject import ROUNDS, Subject
from fedweave.core.arrays import graph_arrays
from fedweave.core.engine import Engine
from fedweave.core.graph import TRAIN, Graph
from fedweave.core.records import Record, Values
from fedweave.core.tree import Tree, leaves, map_leaves, nest
from fedweave.experiment.rounds import RoundResult, train

CLIENT = "site-1"
GCN = ("0/bias", "0/weight", "1/bias", "1/weight")


class NoGcn(Exception):
    """What an algorithm trains is another model, or kept elsewhere, so that there is nothing to compare with."""


def ordinary(subject: Subject, settings: Values) -> tuple[Tree, Tree]:
    """The weights after `ROUNDS` rounds of an algorithm with one client, and those that a 2-layer GCN has after as many
    steps on that client's graph, both from what the first round left.

    settings: of the algorithm: its optimizer, "sgd" or "adam", with lr and weight_decay, and whether its state is kept.

    Raises:
        NoGcn: what it trains cannot be compared.
    """
    graph = subject.graphs(torch.float64)[CLIENT]
    made = subject.made(dropout=0.0, **settings)
    fed = subject.federation(dtype=torch.float64, clients={CLIENT: graph}, record="never")
    [begun] = train(made, fed, 1)
    w = _held(begun, fed)
    if (read := len(w["0"]["weight"])) != graph.x.shape[1]:
        raise NoGcn(f"its GCN reads {read} features, and the client's data has {graph.x.shape[1]}")
    moments = fed.snapshot().get(CLIENT, {}).get("optimizer")
    expected = _trained(w, moments, graph, settings)
    *_, ended = train(made, fed, 1 + ROUNDS, 0, (1, begun.state))
    return _held(ended, fed), expected


def _trained(w: Tree, moments: Tree | None, graph: Graph, settings: Values) -> Tree:
    own = graph_arrays(graph)
    x, y, mask = (torch.from_numpy(part) for part in (sp.csr_matrix(own.x).toarray(), own.y, own.masks[TRAIN].copy()))
    joined = torch.eye(len(y), dtype=x.dtype, device=x.device)
    joined[tuple(own.edges)] = 1
    operator = joined / joined.sum(1).outer(joined.sum(1)).sqrt()
    (w1, b1), (w2, b2) = ([w[at][name].requires_grad_() for name in ("weight", "bias")] for at in "01")
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
    """PyTorch's, with the moments that the client kept."""
    flat = [leaf for layer in w.values() for leaf in layer.values()]
    how = {name: settings[name] for name in ("lr", "weight_decay")}
    if settings["optimizer"] == "sgd":
        return torch.optim.SGD(flat, **how)
    optimizer = torch.optim.Adam(flat, **how)
    if moments is not None:
        for layer, leaves in w.items():
            for name, leaf in leaves.items():
                past = {"exp_avg": moments["m"][layer][name], "exp_avg_sq": moments["v"][layer][name]}
                optimizer.state[leaf] = {"step": moments["steps"].float()} | past
    return optimizer


def _held(step: RoundResult, fed: Engine) -> Tree:
    """A copy of the one model: the server's weights, and the client's own where the server has none.

    Raises:
        NoGcn: these are not a 2-layer GCN's.
    """
    flat: Record = {}
    for tree in (fed.snapshot().get(CLIENT, {}), step.state):
        flat |= leaves(tree["w"]) if isinstance(tree.get("w"), dict) else {}
    if odd := sorted(flat.keys() ^ set(GCN)):
        raise NoGcn(f"the weights that the server and the client keep as 'w' are not a 2-layer GCN's: {odd[0]!r}")
    return map_leaves(lambda leaf: leaf.clone(), nest(flat))

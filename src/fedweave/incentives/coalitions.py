"""Values of coalitions of a round's clients: the gain of the model that only their updates make, on test examples."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedweave.core import model as models
from fedweave.core.algorithm import Engine, Round, graphs_of
from fedweave.core.graph import TEST, Graph
from fedweave.core.model import Model
from fedweave.core.target import CLASS
from fedweave.core.tree import Tree, leaves, nest
from fedweave.errors import UserError
from fedweave.incentives.shapley import Value
from fedweave.learn import cross_entropy
from fedweave.metrics.kinds import pairs_of, test_value
from fedweave.metrics.selection import METRICS, OF_RANKS, lower

# What a server measures of clients whose models were tried (`algorithms.coalition_value`), by its names.
WEIGHT, COPIED = "coalition_weight", "coalition_copied"
PLAIN = ("accuracy", "loss")  # of classes, computed here without counts; all others by `metrics.kinds`
_OF_MODELS = tuple(name for name, metric in METRICS.items() if metric.judges or metric.positive)
NOT_PLAIN = tuple(name for name in _OF_MODELS if name not in (*PLAIN, *OF_RANKS))
MEASURED_ON, GAINS_IN = b"measured on", b"gains in"  # metadata of a table of gains: which examples, which metric
COPY = 0.99  # cosine of two updates above which one counts as a copy of the other
BATCH = 64  # models that are evaluated at once


def measured_by(name: str, judge: int) -> str:
    """The measure `name` of each client on the test examples of the client with the place `judge`."""
    return f"{name}/by/{judge}"


def copies(updates: Tensor, last: Tensor | None = None) -> list[tuple[int, int]]:
    """(i, j) of all pairs of updates [N, D] whose cosine is above `COPY`, i < j; and (i, -1) of each update for which
    the cosine with the `last` global update [D] is above it."""
    rows = torch.nn.functional.normalize(updates.double(), dim=1, eps=1e-30)
    similar = (rows @ rows.T).triu(1) > COPY  # [N, N]
    pairs = [(i, j) for i, j in similar.nonzero().tolist()]  # tuples
    if last is not None and bool(last.any()):
        near = rows @ torch.nn.functional.normalize(last.double(), dim=0, eps=1e-30) > COPY
        pairs += [(i, -1) for i in near.nonzero().flatten().tolist()]
    return pairs


def evaluation_graphs(fed: Engine) -> tuple[str, list[Graph]]:
    """The examples of a run's "global" metrics (`metrics.measured.measure`), in words, and the graphs with them: the
    global test set or, without one, all clients' graphs, whose test examples are pooled."""
    if fed.test is not None:
        return "the global test set", [fed.test]
    graphs = [graph.to(fed.device) for graph in graphs_of(fed).values() if bool(graph.masks[TEST].any())]
    if not graphs:
        raise UserError("the run has no test examples to measure on; set a test ratio in [partition] and run it again.")
    return "all clients' test examples, pooled", graphs


def coalition_models(round: Round) -> Callable[[Tensor], Tree]:
    """The models of coalitions S of a round's clients, bool [c, P]: w_t + A Σ_{i in S} a_i Δ_i / Σ_{i in S} a_i, leaves
    [c, …], with the weights a_i. A is the sum of all a_i, which is 1 for a mean: all clients together then give the
    round's model."""
    for client, weight in zip(round.replies.clients, round.weights.tolist(), strict=True):
        if weight < 0:  # the coalition's weights could sum to 0
            raise UserError(
                f"{client}'s weight is {weight:g}; contributions are measured for weights of at least 0.",
                code="user.negative-weight",
            )
    before = dict(leaves(round.w))
    updates = {path: round.update(path).double() for path in before}
    total = round.weights.sum()

    def models_of(masks: Tensor) -> Tree:
        share = masks.to(total.device).double() * round.weights  # [c, P]
        # The coalition of nobody has shares of 0, and stays at w_t.
        share = share / share.sum(1, keepdim=True).clamp(min=1e-300) * total
        flat = {}
        for path, update in updates.items():
            flat[path] = (before[path].double() + torch.tensordot(share, update, 1)).to(before[path].dtype)
        return nest(flat)

    return models_of


def round_value(round: Round, model: Model, graphs: Sequence[Graph], metric: str, positive: int = 1) -> Value:
    """The value function of a round: the gain over w_t of the `coalition_models`, float64 [c], on the test examples of
    `graphs`.

    metric: "accuracy", "loss" (the gain is in -loss, in nats for classes) or another metric of `kinds.means`, for the
    class `positive`, with the sign turned if lower is better.

    Raises:
        UserError: a weight is negative, which a user's part may give; names the client.
    """
    models_of, graphs = coalition_models(round), [graph.at(TEST) for graph in graphs]
    sizes = [graph.masks[TEST].sum() for graph in graphs]

    def evaluate(flat: Tree) -> Tensor:
        w = nest(flat)
        if metric not in PLAIN or graphs[0].target != CLASS:
            pairs = []
            for graph in graphs:
                outputs = models.infer_split(model, w, graph)
                pairs.append(pairs_of(outputs, graph.y, graph.masks[TEST][None], graph.target, graph.scale))
            value = test_value(pairs, metric, positive)
            return -value if lower(metric) else value
        scores = []
        for graph, size in zip(graphs, sizes, strict=True):
            logits = models.infer_split(model, w, graph)  # [examples, classes]
            target, weight = graph.y.clamp(min=0), graph.masks[TEST].to(graph.x.dtype)
            if metric == "loss":
                score = -cross_entropy(logits, target, weight)
            else:
                score = ((logits.argmax(1) == target) * weight).sum() / weight.sum()
            scores.append(score * (size / sum(sizes)))
        return torch.stack(scores).sum()

    def values_of(masks: Tensor) -> Tensor:
        values = [torch.func.vmap(evaluate)(dict(leaves(models_of(part)))).double() for part in masks.split(BATCH)]
        return torch.cat(values)

    baseline = values_of(round.at.new_zeros(1, len(round.at), dtype=torch.bool))  # of the coalition of nobody
    return lambda masks: values_of(masks) - baseline

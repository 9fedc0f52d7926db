"""What coalitions of a round's clients are worth: the gain of the model that their updates alone make."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedweave.core import model as models
from fedweave.core.engine import Engine, graphs_of
from fedweave.core.graph import TEST, Graph
from fedweave.core.model import Model
from fedweave.core.round import Round
from fedweave.core.tree import Tree, leaves, nest
from fedweave.errors import UserError
from fedweave.incentives.shapley import Value
from fedweave.learn import cross_entropy
from fedweave.metrics.classification import counts, means, merge

PLAIN = ("accuracy", "loss")
ORDERING = ("macro_f1", "auc", "average_precision", "recall_at_1", "precision_at_1", "f1_positive")
BATCH = 64  # models that are judged at once
MEASURED_ON, GAINS_IN = b"measured on", b"gains in"  # metadata of a table of gains: which examples, which metric


def judging(fed: Engine) -> tuple[str, list[Graph]]:
    """On which examples "global" metrics of a run are (`metrics.measured.measure`), in words, and the graphs with them:
    the global test set's or, without one, all clients' own, whose test examples are pooled.

    Raises:
        UserError: nobody has test examples.
    """
    if fed.test is not None:
        return "the global test set", [fed.test]
    graphs = [graph.to(fed.device) for graph in graphs_of(fed).values() if bool(graph.masks[TEST].any())]
    if not graphs:
        raise UserError("the run has no test examples to measure on; set a test ratio in [partition] and run it again.")
    return "all clients' test examples, pooled", graphs


def mixing(round: Round) -> Callable[[Tensor], Tree]:
    """The models of coalitions S of a round's clients, bool [c, P]: w_t + A Σ_{i in S} a_i Δ_i / Σ_{i in S} a_i, leaves
    [c, …]; see `worth`.

    Raises:
        UserError: a weight, which may be of a user's own part, is negative; names the client.
    """
    for client, weight in zip(round.replies.clients, round.weights.tolist(), strict=True):
        if weight < 0:  # the coalition's own weights could sum to nothing
            raise UserError(
                f"{client}'s weight is {weight:g}; contributions are measured for weights of at least 0.",
                code="user.negative-weight",
            )
    moved = {path: round.update(path).double() for path, _ in leaves(round.w)}
    before = dict(leaves(round.w))
    whole = round.weights.sum()  # 1 of a mean; with all of it everyone together made the round

    def of(masks: Tensor) -> Tree:
        share = masks.to(whole.device).double() * round.weights
        share = share / share.sum(1, keepdim=True).clamp(min=1e-300) * whole
        return nest(
            {p: (before[p].double() + torch.tensordot(share, u, 1)).to(before[p].dtype) for p, u in moved.items()}
        )

    return of


def worth(round: Round, model: Model, graphs: Sequence[Graph], metric: str, positive: int = 1) -> Value:
    """The value function of a round: what coalitions S, bool [c, P], gain over w_t, float64 [c], with the model
    w_t + A Σ_{i in S} a_i Δ_i / Σ_{i in S} a_i, in "accuracy", in -"loss" (nats) or in another metric of
    `classification.values`, with the class `positive`, on the test examples of `graphs`. A is the sum of all a_i, which
    is 1 of a mean.

    round: what the server heard, with the weights a_i.

    Raises:
        UserError: a weight, which may be of a user's own part, is negative; names the client.
    """
    mixed, graphs = mixing(round), [graph.at(TEST) for graph in graphs]
    many = [graph.masks[TEST].sum() for graph in graphs]
    shares = [count / sum(many) for count in many]

    def judged(flat: Tree) -> Tensor:
        w = nest(flat)
        if metric not in PLAIN:
            return _ordering([(models.judged_as_seen(model, w, graph), graph) for graph in graphs], metric, positive)
        found = [_score(models.judged_as_seen(model, w, graph), graph, metric) for graph in graphs]
        return torch.stack([score * share for score, share in zip(found, shares, strict=True)]).sum()

    def of(masks: Tensor) -> Tensor:
        found = [torch.func.vmap(judged)(dict(leaves(mixed(part)))).double() for part in masks.split(BATCH)]
        return torch.cat(found)

    nobody = of(round.at.new_zeros(1, len(round.at), dtype=torch.bool))
    return lambda masks: of(masks) - nobody


def _ordering(found: Sequence[tuple[Tensor, Graph]], metric: str, positive: int) -> Tensor:
    """Another metric of the logits of graphs, from the pairs of all."""
    pairs = merge([counts(logits, graph.y, graph.masks[TEST][None]) for logits, graph in found])
    value: Tensor = means(pairs)[metric][0, 0]
    return value[positive] if value.dim() else value


def _score(logits: Tensor, graph: Graph, metric: str) -> Tensor:
    target, weight = graph.y.clamp(min=0), graph.masks[TEST].to(graph.x.dtype)
    if metric == "loss":
        return -cross_entropy(logits, target, weight)
    return ((logits.argmax(1) == target) * weight).sum() / weight.sum()

"""Shapley values of any value function, exact or estimated from permutations, and leave-one-out. Agents' values and the
models that they receive for them (FairGraphFL, sections 3.1 to 3.3). All numbers are float64.

A value function takes coalitions, bool [c, N] on the host with a row for each, and returns their values, float64 [c],
on any device. The functions here pass all coalitions in as few calls as possible, so that they can be evaluated as a
batch.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedweave.core import model as models
from fedweave.core.algorithm import Engine, Round, graphs_of
from fedweave.core.graph import TEST, Graph
from fedweave.core.model import Model
from fedweave.core.target import CLASS
from fedweave.core.tree import Tree, leaves, nest
from fedweave.errors import UserError
from fedweave.learn import cross_entropy
from fedweave.metrics.kinds import pairs_of, test_value
from fedweave.metrics.selection import METRICS, OF_RANKS, lower


class Updated(NamedTuple):
    """values: float64 [N], the agents' new values r^t. changed: bool scalar, False if the values could not be
    normalized and stay as they were."""

    values: Tensor
    changed: Tensor


def alignment(updates: Tensor, whole: Tensor) -> Tensor:
    """φ_i = cos(u_i, u_N) (Eq. 9), float64 [N], for updates [N, D] and the global update [D]; 0 if either is zero."""
    updates, whole = updates.double(), whole.double()
    lengths = updates.norm(dim=1) * whole.norm()
    return torch.where(lengths > 0, updates @ whole / torch.where(lengths > 0, lengths, 1.0), 0.0)


def diversity(motif: Tensor) -> Tensor:
    """d_i = k_i / K, float64 [N], the share of all agents' motifs that agent i has; 0 if no agent has a motif.

    motif: int64 [N, …], a list for each agent with −1 at padding.
    """
    return (motif >= 0).sum(1).double() / (distinct(motif) != NONE).sum().clamp(min=1)


NONE = torch.iinfo(torch.int64).max


def distinct(motif: Tensor) -> Tensor:
    """The distinct motifs of all lists, int64 [N · …] rising, padded with `NONE` to the number of all entries. `unique`
    would wait for a device to count them."""
    ordered = motif.flatten().sort().values
    first = torch.cat([ordered[:1] >= 0, (ordered[1:] != ordered[:-1]) & (ordered[1:] >= 0)])
    return torch.where(first, ordered, NONE).sort().values


# What a server measures of clients whose models were tried (`algorithms.coalition_value`), by its names.
WEIGHT, COPIED = "coalition_weight", "coalition_copied"


def measured_by(name: str, judge: int) -> str:
    """The measure `name` of each client on the test examples of the client with the place `judge`."""
    return f"{name}/by/{judge}"


COPY = 0.99  # cosine of two updates above which one counts as a copy of the other


def copies(updates: Tensor, last: Tensor | None = None) -> list[tuple[int, int]]:
    """(i, j) of all pairs of updates [N, D] whose cosine is above `COPY`, i < j; and (i, -1) of each update for which
    the cosine with the `last` global update [D] is above it."""
    rows = torch.nn.functional.normalize(updates.double(), dim=1, eps=1e-30)
    alike = (rows @ rows.T).triu(1) > COPY
    pairs = [(int(i), int(j)) for i, j in alike.nonzero().tolist()]
    if last is None or not bool(last.any()):
        return pairs
    near = rows @ torch.nn.functional.normalize(last.double(), dim=0, eps=1e-30) > COPY
    return [*pairs, *((int(i), -1) for i in near.nonzero().flatten().tolist())]


def updated(r: Tensor, phi: Tensor, diversity: Tensor, alpha1: float = 0.05, alpha2: float = 1.0) -> Updated:
    """r_i ← r_i + α1 (φ_i + α2 d_i), divided by their sum (Eq. 10); all [N].

    Dividing by a sum of zero or less would turn good agents into bad ones: then `values` stay and `changed` is False.
    """
    new = r.double() + alpha1 * (phi.double() + alpha2 * diversity.double())
    total = new.sum()
    return Updated(torch.where(total > 0, new / total, r.double()), total > 0)


def quota(r: Tensor, size: int, beta: float = 1.0) -> Tensor:
    """⌊D tanh(β r_i) / max_j tanh(β r_j)⌋ (Eq. 4), int64 [N]: number of the D = `size` entries of the global update
    that each agent receives; 0 where r_i ≤ 0.

    Raises:
        UserError: beta is not positive.
    """
    if not beta > 0:
        raise UserError(f"beta is {beta}; it must be above 0.")
    reach = torch.tanh(beta * r.double().relu())
    most = reach.max()
    share = torch.where(most > 0, reach / most, 0.0)  # first the share: the best agent's is exactly 1
    return (size * share).floor().long()


REMAINDER = 2.0**-48  # relative size of rounding errors in float64 sums


def reward(whole: Tensor, quota: Tensor) -> Tensor:
    """What each agent downloads, [N, D]: the `quota` [N] entries of `whole` [D] of largest magnitude, 0 elsewhere.

    Of equal magnitudes, the first ones count. Entries below `REMAINDER` of the largest count as 0: they remain when
    updates cancel, and depend on the order in which clients were added up.
    """
    whole = torch.where(whole.abs() < REMAINDER * whole.abs().max(), 0.0, whole)
    order = torch.argsort(whole.abs(), descending=True, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    return torch.where(rank < quota[:, None], whole, 0.0)


MOST_EXACT = 12  # players, 4,096 coalitions

Value = Callable[[Tensor], Tensor]


class Estimate(NamedTuple):
    """values: float64 [N]. error: float64 [N], their standard error, 0 where exact. coalitions: number of coalitions
    that were evaluated."""

    values: Tensor
    error: Tensor
    coalitions: int


def shapley(value: Value, players: int, rng: np.random.Generator | None = None, permutations: int = 1000) -> Estimate:
    """Exact values for at most 12 players, an estimate from random permutations above.

    Raises:
        UserError: more than 12 players and no `rng`; errors of `exact` and `sampled`.
    """
    if players <= MOST_EXACT:
        return exact(value, players)
    if rng is None:
        raise UserError(
            f"exact Shapley values are for at most {MOST_EXACT} players, here are {players}; give a generator (rng) "
            "for an estimate from random permutations.",
            code="user.exact",
        )
    return sampled(value, players, rng, permutations)


def exact(value: Value, players: int) -> Estimate:
    """Eq. 3 of FairGraphFL (Shapley 1953): phi_i = sum over S without i of |S|! (N - |S| - 1)! / N! (v(S + i) - v(S)).

    `value` is called once, with all 2^N coalitions; player i is in row c where bit i of c is set.

    Raises:
        UserError: there are no players or more than 12, or `value` returns anything but a finite number for each.
    """
    if not 1 <= players <= MOST_EXACT:
        raise UserError(
            f"exact Shapley values of {players} players would take 2^{players} coalitions; `exact` takes 1 to "
            f"{MOST_EXACT} players. Use `sampled` for more.",
            code="user.exact",
        )
    all_coalitions = coalitions(players)
    worth = _worth(value, all_coalitions)
    share = [1 / (players * math.comb(players - 1, size)) for size in range(players)]
    weight = torch.tensor(share, dtype=torch.float64, device="cpu")[coalitions(players - 1).sum(1)]
    cube = worth.reshape([2] * players)  # dimension j is player N - 1 - j
    gains = [(cube.select(-1 - i, 1) - cube.select(-1 - i, 0)).reshape(-1) for i in range(players)]
    values = torch.stack([(weight * gain).sum() for gain in gains])
    return Estimate(values, torch.zeros_like(values), len(all_coalitions))


def coalitions(players: int) -> Tensor:
    """bool [2^N, N]: all coalitions, player i in row c where bit i of c is set."""
    rows, columns = (torch.arange(count, device="cpu") for count in (2**players, players))
    return (rows[:, None] >> columns & 1).bool()


def sampled(
    value: Value,
    players: int,
    rng: np.random.Generator,
    permutations: int = 1000,
    antithetic: bool = True,
    batch: int = 4096,
) -> Estimate:
    """The mean gain that each player brings over random orders of joining (Castro et al. 2009), with standard error.

    permutations: number of orders, M. The distinct coalitions among their (N + 1) M prefixes are evaluated, at most
                  `batch` at a time.
    antithetic:   draw M / 2 orders and add each reversed; the error is then of the mean over pairs.

    Efficiency holds exactly for each order and so for the estimate.

    Raises:
        UserError: there are no players, too few permutations for an error (2, or 4 and even where antithetic), or
            `value` returns anything but a finite number for each coalition.
    """
    least = 4 if antithetic else 2
    if players < 1 or permutations < least or (antithetic and permutations % 2):
        raise UserError(
            f"{permutations} permutations of {players} players; a standard error takes at least 1 player and {least} "
            f"permutations{', an even number' if antithetic else ''}."
        )
    draws = permutations // 2 if antithetic else permutations
    orders = rng.permuted(np.tile(np.arange(players), (draws, 1)), axis=1)
    if antithetic:
        orders = np.concatenate([orders, orders[:, ::-1]])
    place = np.empty_like(orders)
    np.put_along_axis(place, orders, np.arange(players)[None], axis=1)
    prefixes = (place[:, None, :] < np.arange(players + 1)[:, None]).reshape(-1, players)
    _, first, which = np.unique(np.packbits(prefixes, axis=1), axis=0, return_index=True, return_inverse=True)
    distinct = torch.from_numpy(prefixes[first])
    worth = torch.cat([_worth(value, part) for part in distinct.split(batch)]).numpy()
    gains = np.diff(worth[which.reshape(len(orders), players + 1)], axis=1)
    by_player = torch.from_numpy(np.take_along_axis(gains, place, axis=1))
    if antithetic:
        by_player = by_player.reshape(2, draws, players).mean(0)
    return Estimate(by_player.mean(0), by_player.std(0) / math.sqrt(draws), len(distinct))


def leave_one_out(value: Value, players: int) -> Tensor:
    """float64 [N]: v(everyone) - v(everyone but i), from one call of `value` with N + 1 coalitions.

    Raises:
        UserError: there are no players, or `value` returns anything but a finite number for each coalition.
    """
    if players < 1:
        raise UserError(f"{players} players; leave-one-out takes at least 1.")
    without = ~torch.eye(players, dtype=torch.bool, device="cpu")
    worth = _worth(value, torch.cat([without.new_ones(1, players), without]))
    return worth[0] - worth[1:]


def _worth(value: Value, masks: Tensor) -> Tensor:
    """The values of the coalitions, float64 on the CPU, checked."""
    worth = value(masks).detach().to("cpu", torch.float64)
    if worth.shape != (len(masks),):
        raise UserError(
            f"the value function returned {tuple(worth.shape)} for {len(masks)} coalitions; one number each."
        )
    wrong = torch.nonzero(~worth.isfinite())
    if len(wrong):
        row = int(wrong[0])
        members = masks[row].nonzero().flatten().tolist()
        raise UserError(f"the value of coalition {members} is {float(worth[row])}; it must be a finite number.")
    return worth


CANCELED = 1e-13  # share of the squared sum of lengths; below it, only rounding errors of canceling updates remain
EQUAL = 1e-12  # share of the largest value; numbers that vary less are equal up to rounding


class GradientShapley(NamedTuple):
    """For N agents, float64 [N]: `values`, the Shapley values of ν, their standard `error` (0 where exact), and
    `cosine`, the approximation. correlation: Pearson's between values and cosine, NaN where one does not vary."""

    values: Tensor
    error: Tensor
    cosine: Tensor
    correlation: float


def gradient_shapley(
    updates: Tensor, r: Tensor, rng: np.random.Generator | None = None, permutations: int = 1000
) -> GradientShapley:
    """Shapley values (Eq. 3) of ν(S) = cos(u_S, u_N) (Eq. 8) of updates [N, D] and agents' values r [N], together with
    φ_i = cos(u_i, u_N) (Eq. 9).

    Exact for at most 12 agents, from one batch of all coalitions; above from `permutations` drawn with `rng`.

    Raises:
        UserError: there are more than 12 agents and no `rng`.
    """
    cosine = alignment(updates, r.to(updates.device, torch.float64).relu() @ updates.double()).cpu()
    values, error, _ = shapley(cosine_value(updates, r), len(updates), rng, permutations)
    return GradientShapley(values, error, cosine, correlation(values, cosine))


def cosine_value(updates: Tensor, r: Tensor) -> Value:
    """The value function ν(S) = cos(u_S, u_N) (Eq. 8) of updates [N, D] and values r [N], for coalitions [c, N].

    u_S is the ReLU(r)-weighted mean over S. ν is 0 where u_S or u_N is zero: S has no agent with a positive value, or
    updates cancel up to rounding. It uses the updates' inner products: N² numbers for any D.
    """
    updates = updates.double()
    gram = updates @ updates.T
    weights = r.to(gram).relu()
    lengths = gram.diagonal().sqrt()
    with_all = gram @ weights
    square_all = weights @ with_all

    def value(masks: Tensor) -> Tensor:
        mixed = masks.to(gram) * weights
        square = ((mixed @ gram) * mixed).sum(1)
        defined = (square > CANCELED * (mixed @ lengths) ** 2) & (square_all > CANCELED * (weights @ lengths) ** 2)
        return torch.where(defined, mixed @ with_all / torch.where(defined, square * square_all, 1.0).sqrt(), 0.0)

    return value


def correlation(one: Tensor, other: Tensor) -> float:
    """Pearson's correlation of two float64 [N]; NaN where either is constant up to rounding."""
    varies = [bool((part - part.mean()).abs().max() > EQUAL * part.abs().max()) for part in (one, other)]
    return float(torch.corrcoef(torch.stack([one, other]))[0, 1]) if all(varies) else float("nan")


# ----------------------------------------------------------------------------------------------------
# Values of coalitions of a round's clients: the gain of the model that only their updates make.


PLAIN = ("accuracy", "loss")
OTHERS = tuple(
    name for name, metric in METRICS.items() if (metric.judges or metric.positive) and name not in (*PLAIN, *OF_RANKS)
)
BATCH = 64  # models that are evaluated at once
MEASURED_ON, GAINS_IN = b"measured on", b"gains in"  # metadata of a table of gains: which examples, which metric


def judging(fed: Engine) -> tuple[str, list[Graph]]:
    """The examples of a run's "global" metrics (`metrics.measured.measure`), in words, and the graphs with them: the
    global test set or, without one, all clients' graphs, whose test examples are pooled.

    Raises:
        UserError: no client has test examples.
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
        UserError: a weight is negative, which a user's own part may give; names the client.
    """
    for client, weight in zip(round.replies.clients, round.weights.tolist(), strict=True):
        if weight < 0:  # the coalition's weights could sum to 0
            raise UserError(
                f"{client}'s weight is {weight:g}; contributions are measured for weights of at least 0.",
                code="user.negative-weight",
            )
    updates = {path: round.update(path).double() for path, _ in leaves(round.w)}
    before = dict(leaves(round.w))
    whole = round.weights.sum()  # 1 for a mean; all clients together then give the round's model

    def of(masks: Tensor) -> Tree:
        share = masks.to(whole.device).double() * round.weights
        share = share / share.sum(1, keepdim=True).clamp(min=1e-300) * whole
        return nest(
            {p: (before[p].double() + torch.tensordot(share, u, 1)).to(before[p].dtype) for p, u in updates.items()}
        )

    return of


def worth(round: Round, model: Model, graphs: Sequence[Graph], metric: str, positive: int = 1) -> Value:
    """The value function of a round: the gain over w_t of coalitions S, bool [c, P], float64 [c], on the test examples
    of `graphs`.

    A coalition's model is w_t + A Σ_{i in S} a_i Δ_i / Σ_{i in S} a_i; A is the sum of all a_i, which is 1 for a mean.
    metric: "accuracy", "loss" (the gain is in -loss, nats) or another metric of `kinds.Classes.values`, for the class
    `positive`, with the sign turned if lower is better. round: the server's view, with the weights a_i.

    Raises:
        UserError: a weight is negative, which a user's own part may give; names the client.
    """
    mixed, graphs = mixing(round), [graph.at(TEST) for graph in graphs]
    many = [graph.masks[TEST].sum() for graph in graphs]
    shares = [count / sum(many) for count in many]

    def evaluate(flat: Tree) -> Tensor:
        w = nest(flat)
        if metric not in PLAIN or graphs[0].target != CLASS:
            value = test_value(
                [_pairs(models.infer_split(model, w, graph), graph) for graph in graphs], metric, positive
            )
            return -value if lower(metric) else value
        scores = [_score(models.infer_split(model, w, graph), graph, metric) for graph in graphs]
        return torch.stack([score * share for score, share in zip(scores, shares, strict=True)]).sum()

    def of(masks: Tensor) -> Tensor:
        gains = [torch.func.vmap(evaluate)(dict(leaves(mixed(part)))).double() for part in masks.split(BATCH)]
        return torch.cat(gains)

    baseline = of(round.at.new_zeros(1, len(round.at), dtype=torch.bool))
    return lambda masks: of(masks) - baseline


def _pairs(outputs: Tensor, graph: Graph) -> Tree:
    return pairs_of(outputs, graph.y, graph.masks[TEST][None], graph.target, graph.scale)


def _score(logits: Tensor, graph: Graph, metric: str) -> Tensor:
    target, weight = graph.y.clamp(min=0), graph.masks[TEST].to(graph.x.dtype)
    if metric == "loss":
        return -cross_entropy(logits, target, weight)
    return ((logits.argmax(1) == target) * weight).sum() / weight.sum()

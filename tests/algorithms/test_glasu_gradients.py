"""What GLASU's steps compute, against whole split models written out in plain torch, in double precision."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.algorithms.glasu import GLASU
from fedweave.core import model as models
from fedweave.core.graph import TRAIN, Graph, make_graph
from fedweave.core.tree import Tree, leaves
from fedweave.engines.simulation import Simulation
from fedweave.learn import Sgd, fit
from fedweave.models import MODELS
from tests.random_graphs import replace_fields

NODES, CLASSES, HIDDEN, LAYERS, LR = 20, 3, 4, 4, 0.5
ALPHA, THETA = 0.1, 0.5
Weights = list[dict[str, Tensor]]


def parties(clients: int = 3, holders: Sequence[int] | None = None, seed: int = 0) -> dict[str, Graph]:
    """The same 20 nodes, labels and masks; features and edges of each client's own."""
    rng = np.random.default_rng(seed)
    y, masks = rng.integers(0, CLASSES, NODES), np.zeros((3, NODES), bool)
    masks[rng.integers(0, 3, NODES), np.arange(NODES)] = True
    graphs = {}
    for i in range(clients):
        pairs = np.triu(rng.random((NODES, NODES)) < 0.15, 1)
        edges = np.stack(np.nonzero(pairs | pairs.T))
        graph = make_graph(rng.normal(size=(NODES, 5)), edges, y, masks, dtype=torch.float64)
        seen = holders is None or i in holders
        graphs[f"client-{i}"] = graph if seen else replace_fields(graph, y=torch.full_like(graph.y, -1))
    return graphs


def federation(graphs: dict[str, Graph], **options: Any) -> Simulation:
    return Simulation(graphs, classes=CLASSES, **options)


def backbone(name: str = "gcnii", layers: int = LAYERS) -> Any:
    return MODELS[name](hidden=HIDDEN, layers=layers, dropout=0.0).build(5, CLASSES)


def weights(fed: Simulation) -> Weights:
    """Every client's weights, by path."""
    return [dict(leaves(state["w"])) for state in fed.snapshot().values()]


def one_round(made: GLASU, graphs: dict[str, Graph]) -> tuple[Weights, Weights]:
    """All clients' weights before and after a round."""
    fed = federation(graphs)
    fed.begin(0)
    state = made.init(fed)
    before = weights(fed)
    fed.begin(1)
    made.round(state, fed)
    return before, weights(fed)


# --- the whole split GCNII, written independently --------------------------------------------------------------------


def normalised(graph: Graph) -> Tensor:
    links = graph.edges.members[0]
    a = np.eye(len(graph.y))
    a[links.index[1], links.index[0]] = 1
    scale = 1 / np.sqrt(a.sum(1))
    return torch.tensor(scale[:, None] * a * scale)


def merged(parts: list[Tensor], how: str) -> Tensor:
    return torch.stack(parts).mean(0) if how == "mean" else torch.cat(parts, 1)


def gcnii_losses(
    w: Weights, graphs: dict[str, Graph], cuts: Sequence[int], how: str, stale: dict[int, list[Tensor]] | None = None
) -> tuple[list[Tensor], dict[int, list[Tensor]]]:
    """Each client's loss, and what every client gave to the aggregation after layer l (1, …, L). With `stale`, a client
    joins its own with the others' of that."""
    sides = list(graphs.values())
    count = len(sides)
    h = [torch.relu(g.x @ p["0/weight"] + p["0/bias"]) for g, p in zip(sides, w, strict=True)]
    origin, given = list(h), {}
    for layer in range(1, LAYERS + 1):
        beta = np.log(THETA / layer + 1)
        for m, (g, p) in enumerate(zip(sides, w, strict=True)):
            into = h[m] @ p[f"{layer}/merge"] if f"{layer}/merge" in p else h[m]
            z = (1 - ALPHA) * normalised(g) @ into + ALPHA * origin[m]
            h[m] = torch.relu((1 - beta) * z + beta * z @ p[f"{layer}/weight"])
        if layer in cuts:
            given[layer] = list(h)
            mixes = [given[layer] if stale is None else list(stale[layer]) for _ in range(count)]
            for m, mix in enumerate(mixes):
                mix[m] = given[layer][m]
            h = [merged(mix, how) for mix in mixes]
    last = LAYERS + 1
    losses = []
    for m, g in enumerate(sides):
        train = g.masks[TRAIN] & (g.y >= 0)
        logits = h[m] @ w[m][f"{last}/weight"] + w[m][f"{last}/bias"]
        losses.append(F.cross_entropy(logits[train], g.y[train]) if train.any() else logits.sum() * 0)
    return losses, given


def gradients(loss: Tensor, w: Weights) -> Weights:
    flat = [tensor for own in w for tensor in own.values()]
    made = iter(torch.autograd.grad(loss, flat, allow_unused=True, retain_graph=True))
    return [{path: _zero(next(made), tensor) for path, tensor in own.items()} for own in w]


def _zero(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient


def free(w: Weights) -> Weights:
    return [{path: tensor.clone().requires_grad_() for path, tensor in own.items()} for own in w]


def is_prediction(path: str) -> bool:
    return path.startswith(f"{LAYERS + 1}/")


def largest_gap(before: Weights, after: Weights, grads: Weights) -> float:
    """How far the steps taken are from -lr times the gradients, in units of the gradients."""
    return max(
        float(((own[path] - then[path]) / LR - slope[path]).abs().max())
        for own, then, slope in zip(before, after, grads, strict=True)
        for path in own
    )


def joint(w: Weights, graphs: dict[str, Graph], cuts: Sequence[int], how: str, holders: Sequence[int]) -> Weights:
    """Gradients of J, the mean of the holders' losses; of the prediction, which is one function in M copies, that of
    the holder's own loss."""
    leaf = free(w)
    losses, _ = gcnii_losses(leaf, graphs, cuts, how)
    whole = gradients(sum(losses[m] for m in holders) / len(holders), leaf)  # type: ignore[arg-type]
    own = [gradients(loss, leaf) for loss in losses]
    return [
        {path: own[m][m][path] if is_prediction(path) else slope for path, slope in side.items()}
        for m, side in enumerate(whole)
    ]


HOLDERS = pytest.mark.parametrize("holders", [(0, 1, 2), (0,), (1, 2)])
HOW = pytest.mark.parametrize("how", ["mean", "concat"])


@pytest.mark.often("at0-holders0-mean", "at1-holders2-concat", "at2-holders1-mean", "at3-holders1-concat")
@HOW
@HOLDERS
@pytest.mark.parametrize("at", [(4,), (2, 4), (1, 2, 3, 4), (1, 4)])
def test_exchanged_gradients_are_those_of_the_whole_split_model(how: Any, holders: Any, at: Any) -> None:
    graphs = parties(holders=holders)
    before, after = one_round(
        GLASU(backbone(), at=at, aggregation=how, batch=0, optimizer="sgd", lr=LR, backward="exchanged"), graphs
    )
    assert largest_gap(before, after, joint(before, graphs, at, how, holders)) < 1e-12


@HOW
@HOLDERS
def test_frozen_gradients_are_those_of_the_whole_split_model_with_one_exchange(how: Any, holders: Any) -> None:
    graphs = parties(holders=holders)
    before, after = one_round(GLASU(backbone(), exchanges=1, aggregation=how, batch=0, optimizer="sgd", lr=LR), graphs)
    assert largest_gap(before, after, joint(before, graphs, (4,), how, holders)) < 1e-12


@HOW
def test_frozen_gradients_take_the_others_as_constants(how: Any) -> None:
    """Algorithm 4 with K = 2; it is not the whole model's gradient, and the difference is not a rounding."""
    graphs, at = parties(), (2, 4)
    before, after = one_round(GLASU(backbone(), at=at, aggregation=how, batch=0, optimizer="sgd", lr=LR), graphs)
    leaf = free(before)
    _, given = gcnii_losses(before, graphs, at, how)
    losses, _ = gcnii_losses(leaf, graphs, at, how, stale=given)
    grads = [gradients(loss, leaf)[m] for m, loss in enumerate(losses)]
    assert largest_gap(before, after, grads) < 1e-12
    assert largest_gap(before, after, joint(before, graphs, at, how, (0, 1, 2))) > 1e-3


@pytest.mark.often("0.1-exchanged")
@pytest.mark.parametrize("backward", ["frozen", "exchanged"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_the_learning_rate_decays_after_so_many_rounds(backward: Any, weight_decay: float) -> None:
    """Three rounds with decay 1/4 after every two are two rounds with lr and one with lr / 4 from there."""
    options: dict[str, Any] = {"batch": 0, "backward": backward, "weight_decay": weight_decay}
    found = []
    for made in (
        [GLASU(backbone(), optimizer="sgd", lr=LR, decay=0.25, decay_every=2, **options)] * 3,
        [GLASU(backbone(), optimizer="sgd", lr=rate, **options) for rate in (LR, LR, LR / 4)],
    ):
        fed = federation(parties())
        fed.begin(0)
        state = made[0].init(fed)
        for number, algorithm in enumerate(made, 1):
            fed.begin(number)
            state = algorithm.round(state, fed)
        found.append(weights(fed))
    assert max(float((a[p] - b[p]).abs().max()) for a, b in zip(*found, strict=True) for p in a) < 1e-12


@pytest.mark.parametrize("holders", [(0, 1, 2), (0,)])
@pytest.mark.parametrize(("at", "backward"), [((4,), "frozen"), ((2, 4), "exchanged")])
def test_adam_is_torchs_at_each_party(at: Any, backward: Any, holders: Any) -> None:
    """Over rounds, on the whole split model's gradients, with moments that each party keeps for itself."""
    graphs, rate = parties(holders=holders), 0.02
    made = GLASU(backbone(), at=at, batch=0, lr=rate, weight_decay=0.1, backward=backward)
    assert made.optimizer == "adam"
    fed = federation(graphs)
    fed.begin(0)
    state = made.init(fed)
    now = free(weights(fed))
    sides = [torch.optim.Adam([*own.values()], rate, weight_decay=0.1) for own in now]
    for number in (1, 2, 3):
        fed.begin(number)
        state = made.round(state, fed)
        for own, slopes, side in zip(now, joint(now, graphs, at, "mean", holders), sides, strict=True):
            for path, leaf in own.items():
                leaf.grad = slopes[path]
            side.step()
        # Adam makes a step of full length of a gradient near 0, so that rounding shows.
        assert (
            max(float((a[p] - b[p].detach()).abs().max()) for a, b in zip(weights(fed), now, strict=True) for p in a)
            < 1e-6
        )
    kept = [client["optimizer"] for client in fed.snapshot().values()]
    assert [int(own["steps"]) for own in kept] == [3] * 3
    assert not torch.equal(kept[0]["m"]["0"]["weight"], kept[1]["m"]["0"]["weight"])


@HOW
@pytest.mark.parametrize("holders", [(0, 1, 2), (0,)])
def test_stale_steps_reuse_what_the_others_had(how: Any, holders: Any) -> None:
    """Q = 3 steps of algorithm 4, and of algorithm 7 where a client has no labels."""
    graphs, at = parties(holders=holders), (2, 4)
    before, after = one_round(
        GLASU(backbone(), at=at, aggregation=how, batch=0, optimizer="sgd", lr=LR, steps=3), graphs
    )
    _, given = gcnii_losses(before, graphs, at, how)
    last = [h.clone().requires_grad_() for h in [merged(given[4], how)]]
    w0 = before[0]
    train = next(iter(graphs.values())).masks[TRAIN]
    y = list(graphs.values())[holders[0]].y
    logits = last[0] @ w0[f"{LAYERS + 1}/weight"] + w0[f"{LAYERS + 1}/bias"]
    (pull,) = torch.autograd.grad(F.cross_entropy(logits[train], y[train]), last)
    now = before
    for _ in range(3):
        leaf = free(now)
        losses, mine = gcnii_losses(leaf, graphs, at, how, stale=given)
        grads = []
        for m in range(3):
            mix = list(given[4])
            mix[m] = mine[4][m]
            loss = losses[m] if m in holders else (pull * merged(mix, how)).sum()
            grads.append(gradients(loss, leaf)[m])
        now = [
            {path: own[path].detach() - LR * slope[path] for path in own}
            for own, slope in zip(leaf, grads, strict=True)
        ]
    assert max(float((a[p] - b[p]).abs().max()) for a, b in zip(after, now, strict=True) for p in a) < 1e-12


@pytest.mark.often("frozen-gcnii-concat", "frozen-gat-mean", "exchanged-gcn-mean", "exchanged-sage-mean")
@pytest.mark.parametrize(
    ("name", "how"), [("gcnii", "mean"), ("gcnii", "concat"), ("gcn", "mean"), ("gat", "mean"), ("sage", "mean")]
)
@pytest.mark.parametrize("backward", ["frozen", "exchanged"])
def test_one_client_with_every_layer_aggregated_is_the_backbone(name: str, how: Any, backward: Any) -> None:
    graphs = parties(clients=1)
    net, (graph,) = backbone(name), graphs.values()
    made = GLASU(net, exchanges=LAYERS, aggregation=how, batch=0, optimizer="sgd", lr=LR, backward=backward)
    before, after = one_round(made, graphs)

    def loss(w: Tree, graph: Graph, key: Tensor, args: Tree) -> Tensor:
        train = graph.masks[TRAIN]
        return F.cross_entropy(models.apply(net, w, graph, key)[train], graph.y[train])

    fed = federation(graphs)
    fed.begin(0)
    made.init(fed)
    w = fed.snapshot()["client-0"]["w"]
    plain, *_ = fit(loss, w, graph, torch.tensor(0), Sgd(LR), 1)
    expected = dict(leaves(plain))
    assert all(torch.equal(tensor, before[0][path]) for path, tensor in leaves(w))
    assert max(float((after[0][path] - tensor).abs().max()) for path, tensor in expected.items()) < 1e-12
    assert max(float((after[0][path] - before[0][path]).abs().max()) for path in expected) > 1e-3


@pytest.mark.often("gcnii-holders1-exchanged-concat", "gat-holders3-frozen-mean")
@HOW
@pytest.mark.parametrize("backward", ["frozen", "exchanged"])
@pytest.mark.parametrize(
    ("name", "holders"), [("gcnii", (0, 1, 2)), ("gcnii", (1,)), ("gcn", (0, 1, 2)), ("gat", (0, 1, 2))]
)
def test_sampling_everything_is_the_full_graph(name: str, how: Any, backward: Any, holders: Any) -> None:
    """A mini-batch of all train nodes with all their neighbors computes what the full graph does."""
    graphs, at = parties(holders=holders), (1, 3) if name != "gcnii" else (1, 4)
    ends = []
    for batch, fan_out in ((0, 1), (NODES, NODES)):
        made = GLASU(
            backbone(name),
            at=at,
            aggregation=how,
            batch=batch,
            fan_out=fan_out,
            optimizer="sgd",
            lr=LR,
            backward=backward,
        )
        before, after = one_round(made, graphs)
        ends.append(after)
    assert max(float((a[p] - b[p]).abs().max()) for a, b in zip(*ends, strict=True) for p in a) < 1e-12
    assert max(float((a["0/weight"] - b["0/weight"]).abs().max()) for a, b in zip(before, after, strict=True)) > 1e-6

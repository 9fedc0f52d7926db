"""Links as examples: their split, the messages that they may not be, the pairs that are none, and their scores."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedweave import datasets, models
from fedweave.algorithms import ALGORITHMS, FedAvg, Local, parts
from fedweave.algorithms.parts.links import LinkPrediction
from fedweave.core import model, random
from fedweave.core.algorithm import capabilities
from fedweave.core.candidates import Queries, count_above
from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.graph import (
    FOREIGN,
    ITEMS,
    KNOWN,
    QUERY,
    QUERY_COUNT,
    SEVERAL,
    TEST,
    TRAIN,
    VAL,
    Graph,
    make_graph,
    stack,
)
from fedweave.core.graph_arrays import graph_tree, tree_graph
from fedweave.core.link_examples import link_examples
from fedweave.core.link_hashes import hashes_of, pair_hashes, split_of
from fedweave.core.links import Links
from fedweave.datasets.base import Dataset, to_undirected
from fedweave.datasets.links import as_links
from fedweave.errors import FedweaveError
from fedweave.experiment.build import federation
from fedweave.experiment.graphs import client_graphs
from fedweave.metrics import link_ranks
from fedweave.models.edges import OnEdges
from fedweave.models.links import WIDTH, OnPairs, common_neighbors, cosine
from fedweave.partition import Louvain, Random
from fedweave.partition.client_data import pool_clients
from tests.contract.federations import state_after
from tests.refusals import refusal


def random_data(nodes: int = 60, edges: int = 240, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, nodes, (2, edges))
    x = rng.normal(size=(nodes, 5)).astype(np.float32)
    return Dataset("random", x, to_undirected(ends, nodes), rng.integers(0, 3, nodes), 3)


def dims_of(graph: Graph) -> Graph:
    leaves, spec = pytree.tree_flatten(graph)
    return pytree.tree_unflatten([0 if isinstance(leaf, Tensor) else None for leaf in leaves], spec)


def pairs_of(edges: np.ndarray) -> set[tuple[int, int]]:
    return {(int(u), int(v)) for u, v in edges.T}


# --- the split


def test_the_split_is_of_the_ends_names_alone() -> None:
    names = [f"node {number}" for number in range(2000)]
    hashes = hashes_of(names)
    first, second = np.random.default_rng(0).integers(0, 2000, (2, 20_000))
    keys = pair_hashes(hashes[first], hashes[second], None, seed=3)
    masks = split_of(keys, (0.85, 0.05, 0.1))
    assert np.array_equal(keys, pair_hashes(hashes[second], hashes[first], None, seed=3))
    assert (masks.sum(0) == 1).all()
    assert np.allclose(masks.mean(1), (0.85, 0.05, 0.1), atol=0.01)
    assert (split_of(pair_hashes(hashes[first], hashes[second], None, 4), (0.85, 0.05, 0.1)) != masks).any()
    keyed = hashes_of(names, b"secret")
    assert (keyed != hashes).all()


def test_two_members_that_know_a_pair_have_it_in_the_same_split() -> None:
    data = as_links(random_data(), Links())
    attributes = data.edge_attrs
    some, others = np.arange(0, 40), np.arange(20, 60)
    for nodes in (some, others):
        inside = np.isin(attributes.ends, nodes).all(0)
        held = replace(random_data(), x=random_data().x[nodes], y=np.zeros(len(nodes), np.int64))
        ends = np.searchsorted(nodes, attributes.ends[:, inside])
        named = replace(held, edges=to_undirected(ends, len(nodes)), ids=tuple(map(str, nodes.tolist())), classes=1)
        apart = as_links(named, Links())
        where = {pair: at for at, pair in enumerate(map(tuple, nodes[apart.edge_attrs.ends].T.tolist()))}
        for at in np.flatnonzero(inside):
            assert (apart.public[:, where[tuple(attributes.ends[:, at].tolist())]] == data.public[:, at]).all()


# --- messages


@pytest.mark.parametrize(
    "links", [Links(), Links(message="train+val"), Links(disjoint=0.3), Links(ratios=(0.4, 0.3, 0.3))]
)
def test_no_message_tells_its_own_answer(links: Links) -> None:
    data = as_links(random_data(), links)
    for graph in client_graphs(data, Random(clients=2).cut(data, 0)).values():
        link = (graph.y == 1).numpy()
        for split in (TRAIN, VAL, TEST):
            messages = pairs_of(graph.whole_edges.members[0].at(split).index)
            examples = graph.pairs[:2, torch.from_numpy(link & graph.masks[split].numpy())].numpy()
            train = pairs_of(graph.pairs[:2, torch.from_numpy(link & graph.masks[TRAIN].numpy())].numpy())
            if split != TRAIN or links.disjoint:
                assert not messages & (pairs_of(examples) | pairs_of(examples[::-1]))
            if not links.disjoint:
                assert train <= messages
        assert len(graph.masks.nonzero())


def test_a_planted_edge_gives_nothing_away() -> None:
    """Of a directed pair one direction is in training and the other in test: no message may be either."""
    ends = np.array([[0, 1, 2, 3, 4, 0], [1, 0, 3, 4, 5, 5]])
    split = np.array([0, 2, 0, 0, 0, 1])
    attributes = EdgeAttributes(ends, True, split=split)
    data = Dataset("planted", np.eye(6, dtype=np.float32), to_undirected(ends, 6), np.zeros(6, np.int64), 1)
    data = as_links(replace(data, edge_attrs=attributes), Links())
    made = link_examples(Links(), data.edge_attrs, data.public, data.node_ids)
    assert pairs_of(made.edges) == {(2, 3), (3, 2), (3, 4), (4, 3), (4, 5), (5, 4)}
    assert pairs_of(made.edge_attrs.ends) == {(2, 3), (3, 4), (4, 5)}
    cheat = pairs_of(to_undirected(data.edge_attrs.ends[:, data.public[TRAIN]], 6))
    assert cheat > pairs_of(made.edges)  # what taking the training edges as they are would tell


def test_messages_of_a_test_link_may_go_along_those_of_validation() -> None:
    data = as_links(random_data(), Links(message="train+val", ratios=(0.5, 0.25, 0.25)))
    [graph] = client_graphs(data, Random(clients=1).cut(data, 0)).values()
    member = graph.whole_edges.members[0]
    train, val, test = (pairs_of(member.at(split).index) for split in (TRAIN, VAL, TEST))
    assert train == val < test
    net = models.links.OnPairs(models.SAGE(hidden=4, dropout=0.0)).build(5)
    w = model.init(net, random.key(0))
    judged = model.infer(net, w, graph)
    for split in (VAL, TEST):
        alone = model.infer_split(net, w, graph.at(split))
        at = graph.masks[split]
        assert torch.equal(judged[at], alone[at])
        of = graph.ranks[QUERY].clamp(min=0) // 2
        candidates = (graph.ranks[QUERY] >= 0) & at[of]
        assert candidates.any()
        assert torch.equal(judged[candidates], alone[candidates])


# --- pairs that are not links


def everything(graph: Graph) -> set[tuple[int, ...]]:
    links = graph.pairs[:, graph.y == 1].numpy()
    return {(int(u), int(v), int(r)) for u, v, r in links.T} | {(int(v), int(u), int(r)) for u, v, r in links.T}


def test_pairs_that_are_no_links_are_none() -> None:
    data = as_links(random_data(), Links(rank_negatives=7))
    for graph in client_graphs(data, Random(clients=2).cut(data, 0)).values():
        there = graph.pairs[2] >= 0
        none = graph.pairs[:, there & (graph.y != 1)].T.tolist()
        assert not everything(graph) & set(map(tuple, none))
        assert all(u != v for u, v, _ in none)
        for split in (TRAIN, VAL, TEST):  # one beside each link
            assert (graph.y[graph.masks[split]] == 0).sum() == (graph.y[graph.masks[split]] == 1).sum()
        asked = torch.nonzero(graph.ranks[QUERY_COUNT] == 1)[:, 0]
        assert set(asked.tolist()) == set(torch.nonzero((graph.y == 1) & graph.masks[VAL:].any(0))[:, 0].tolist())
        assert torch.equal(
            torch.bincount(graph.ranks[QUERY][graph.ranks[QUERY] >= 0])[2 * asked], torch.full_like(asked, 7)
        )


def test_all_candidates_are_all_nodes_that_are_no_links() -> None:
    """A score for each pair of its own: the nodes that are above the link are those that no link joins to the end."""
    data = as_links(random_data(30, 80), Links(rank_negatives="all"))
    [graph] = client_graphs(data, Random(clients=1).cut(data, 0)).values()
    asked = Queries.of(graph)
    assert graph.ranks[QUERY].max() < 0  # no pair for each
    known, (stays, goes, _) = everything(graph), asked.ends
    queries = torch.nonzero(graph.ranks[QUERY_COUNT] == 1)[:, 0]
    assert sorted((asked.queries[0, asked.queries[0] >= 0] // 2).tolist()) == queries.tolist()
    for one in range(30):  # the node that scores higher than all others

        def scores(at: Tensor, nodes: Tensor, one: int = one) -> Tensor:
            return (nodes == one).float().repeat(len(at), 1)

        above = count_above(asked, scores, graph.nodes)
        for at, link in enumerate(asked.queries[0].tolist()):
            if link < 0:
                continue
            end, other = int(stays[at]), int(goes[at])
            assert {end, other} == set(graph.pairs[:2, link // 2].tolist())
            free = {v for v in range(30) if v != end and (end, v, 0) not in known}
            if one == other:
                assert above[link // 2, 0] == 0
            else:
                assert above[link // 2, 0] == (one in free) + 0.5 * len(free - {one})


def test_a_step_draws_pairs_that_are_no_links_anew() -> None:
    data = as_links(random_data(), Links())
    graphs = list(client_graphs(data, Random(clients=2).cut(data, 0)).values())
    part, net = parts.LinkPrediction(negatives=3), OnPairs(models.MLP(hidden=4)).build(5)
    alone = [part.draw(net, graph, random.key(1), 2) for graph in graphs]
    stacked = stack(graphs)
    together = vmap(lambda graph: part.draw(net, graph, random.key(1), 2), in_dims=(dims_of(stacked),))(stacked)
    for at, (graph, drawn) in enumerate(zip(graphs, alone, strict=True)):
        assert drawn["there"].sum() == 2 * 3 * (graph.masks[TRAIN] & (graph.y == 1)).sum()
        pairs = drawn["pairs"].movedim(1, -1)[drawn["there"].flatten(1)]
        assert not everything(graph) & set(map(tuple, pairs.tolist()))
        assert not torch.equal(drawn["pairs"][0], drawn["pairs"][1])
        assert all(torch.equal(together[name][at], drawn[name]) for name in drawn)


def test_a_graph_that_is_nearly_complete_gives_few_pairs_that_are_none() -> None:
    """Of 5 nodes all but one pair are joined: it is the only one that is ever drawn."""
    ends = np.array([[0, 0, 0, 0, 1, 1, 1, 2, 2], [1, 2, 3, 4, 2, 3, 4, 3, 4]])
    data = Dataset("dense", np.eye(5, dtype=np.float32), to_undirected(ends, 5), np.zeros(5, np.int64), 1)
    [graph] = client_graphs(data := as_links(data, Links()), Random(clients=1).cut(data, 0)).values()
    links, _real = LinkPrediction().links(graph)
    pairs, there = LinkPrediction().no_links(graph, links, random.key(0))
    assert {tuple(sorted(pair)) for pair in pairs[:2, there].T.tolist()} <= {(3, 4)}
    assert {tuple(sorted(pair)) for pair in graph.pairs[:2, graph.y == 0].T.tolist()} <= {(3, 4)}


@pytest.mark.parametrize("kind", ["both", "turns", "items"])
@pytest.mark.parametrize("count", [lambda sizes, most: int(sizes.max()), lambda sizes, most: most])
def test_pairs_are_drawn_place_by_place(
    kind: str, count: Callable[[Tensor, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain loop over places draws them too, whether lists are counted or, as on accelerators, have one size."""
    monkeypatch.setattr(parts.links, "common_length", count)
    rng, nodes, key = np.random.default_rng(3), 9, random.key(5)
    triples = np.unique(np.stack([*rng.integers(0, nodes, (2, 25)), rng.integers(0, 2, 25)]), axis=1)
    triples[2] *= kind != "both"
    items, codes = [4, 5, 7], sorted({(r * nodes + s) * nodes + t for s, t, r in triples.T.tolist()})
    extra = {KNOWN: torch.tensor([*codes, torch.iinfo(torch.int64).max])}
    extra |= {ITEMS: torch.tensor([*items, -1])} if kind == "items" else {}
    extra |= {SEVERAL: torch.ones(1)} if kind == "turns" else {}
    masks = np.zeros((3, nodes), bool)
    graph = make_graph(np.eye(nodes, dtype=np.float32), np.empty((2, 0), np.int64), np.zeros(nodes, np.int64), masks)
    links = torch.from_numpy(triples)
    pairs, found = LinkPrediction().no_links(graph._replace(extra=graph.extra | extra), links, key)
    head = [word % 2 == 0 for word in random.bits(random.fold(key, "head"), links.shape[1]).tolist()]
    again = 0
    for place, (source, target, relation) in enumerate(triples.T.tolist()):
        for attempt in range(parts.links.TRIES):
            drawn = random.bits(random.fold(key, attempt), 2 * place + 2)[-2:]
            first, second = ((drawn >> 1) & 0x3FFFFFFFFFFFFFFF).tolist()
            tail = items[second % 3] if kind == "items" else second % nodes
            pair = {
                "both": (first % nodes, tail),
                "turns": (first % nodes, target) if head[place] else (source, tail),
                "items": (source, tail),
            }[kind]
            free = pair[0] != pair[1] and (relation * nodes + pair[0]) * nodes + pair[1] not in codes
            if free:
                break
        again += attempt > 0
        assert pairs[:, place].tolist() == [*pair, relation]
        assert bool(found[place]) == free
    assert again > 2


# --- how links are scored


def test_ranks_of_ties_by_hand() -> None:
    """Link 0 (score 2) among 3, 2, 1 and 2: rank 1 + 1 + ½ + ½ = 3. Link 1 (score 5) among nothing better: 1."""
    score = torch.tensor([2.0, 5.0, 3.0, 2.0, 1.0, 2.0, 4.0])
    ranks = torch.tensor([[-1, -1, 0, 0, 0, 0, 2], [1, 1, 0, 0, 0, 0, 0]])
    rank, asked = link_ranks.ranks_of(score, ranks)
    assert rank[asked].tolist() == [3.0, 1.0]
    masks = torch.tensor([[False] * 7, [True] + [False] * 6, [True, True] + [False] * 5])
    pairs = link_ranks.sum_links(link_ranks.per_link(score, ranks), masks)
    assert torch.allclose(pairs["mrr"], torch.tensor([[0.0, 0.0], [1 / 3, 1.0], [4 / 3, 2.0]], dtype=torch.float64))
    assert pairs["hits_at_1"].tolist() == [[0, 0], [0, 1], [1, 2]]
    assert pairs["hits_at_3"].tolist() == [[0, 0], [1, 1], [2, 2]]


def test_mrr_is_that_of_pytorch_geometric() -> None:
    metrics = pytest.importorskip("torch_geometric.metrics")
    rng, queries, each = np.random.default_rng(0), 40, 25
    score = torch.from_numpy(rng.normal(size=queries * (1 + each)))
    query = torch.cat([torch.full((queries,), -1), 2 * torch.arange(queries).repeat_interleave(each)])
    ranks = torch.stack([query, (query < 0).long()])
    link, others = score[:queries], score[queries:].view(queries, each)
    order = torch.cat([link[:, None], others], 1).argsort(1, descending=True)  # column 0 is the link
    labels = torch.stack([torch.arange(queries), torch.zeros(queries, dtype=torch.long)])
    pairs = link_ranks.sum_links(link_ranks.per_link(score, ranks), torch.ones(1, len(score), dtype=torch.bool))
    theirs = metrics.LinkPredMRR(k=1 + each)
    theirs.update(order, labels)
    assert float(pairs["mrr"][0, 0] / pairs["mrr"][0, 1]) == pytest.approx(float(theirs.compute()), abs=1e-6)
    for most in (1, 3, 10):
        theirs = metrics.LinkPredRecall(k=most)
        theirs.update(order, labels)
        ours = pairs[f"hits_at_{most}"][0]
        assert float(ours[0] / ours[1]) == pytest.approx(float(theirs.compute()), abs=1e-6)


def test_lists_of_users_are_those_of_pytorch_geometric() -> None:
    """Of every user the 20 items with the highest scores that it has not trained on, against its test items."""
    metrics = pytest.importorskip("torch_geometric.metrics")
    users, items = 12, 70
    rng = np.random.default_rng(3)
    pairs = np.unique(np.stack([rng.integers(0, users, 200), users + rng.integers(0, items, 200)]), axis=1)
    kinds = np.repeat([1, 0], [users, items])
    data = Dataset("shop", np.eye(users + items, dtype=np.float32), to_undirected(pairs, users + items), kinds, 2)
    data = replace(data, node_labels=kinds, node_kinds=("item", "user"))
    data = as_links(data, Links(users="user", items="item", ratios=(0.6, 0.1, 0.3)))
    [graph] = client_graphs(data, Random(clients=1).cut(data, 0)).values()
    table = torch.from_numpy(rng.normal(size=(users + items, users + items)))
    pairs_of_user = graph.pairs[:2, graph.y == 0]
    assert (pairs_of_user[0] < users).all()
    assert (pairs_of_user[1] >= users).all()
    scores = table[graph.pairs[0], graph.pairs[1]]
    asked = Queries.of(graph)
    above = count_above(asked, lambda at, nodes: table[asked.ends[0][at]][:, nodes], graph.nodes)
    metrics_of_links = link_ranks.rank_metrics(torch.stack([0 * scores, scores], 1), graph, above)
    each = link_ranks.sum_links(metrics_of_links, graph.masks)
    link, lists = graph.y == 1, table[:users, users:].clone()
    train = graph.pairs[:, link & graph.masks[TRAIN]]
    lists[train[0], train[1] - users] = -torch.inf
    test = graph.pairs[:, link & graph.masks[TEST]]
    asked = torch.unique(test[0])
    labels = torch.stack([torch.searchsorted(asked, test[0]), test[1] - users])
    for name, kind in (("recall_at_20", metrics.LinkPredRecall), ("ndcg_at_20", metrics.LinkPredNDCG)):
        theirs = kind(k=20)
        theirs.update(lists[asked].argsort(1, descending=True)[:, :20], labels)
        assert float(each[name][TEST, 1]) == pytest.approx(len(asked), abs=1e-6)
        assert float(each[name][TEST, 0] / each[name][TEST, 1]) == pytest.approx(float(theirs.compute()), abs=1e-6)


def test_decoders_are_their_formulas() -> None:
    data = as_links(random_data(), Links())
    [graph] = client_graphs(data, Random(clients=1).cut(data, 0)).values()
    for decoder in ("dot", "cosine", "common_neighbors", "mlp"):
        net = OnPairs(models.GCN(hidden=6, dropout=0.0), decoder).build(5)
        w = model.init(net, random.key(0))
        h = model.apply(net[:-1], w, graph)
        product = h[graph.pairs[0]] * h[graph.pairs[1]]
        if decoder == "dot":
            expected = product.sum(1)
        elif decoder == "cosine":
            w[str(len(net) - 1)]["bias"] += 0.25
            expected = 5 * F.cosine_similarity(*h[graph.pairs[:2]]) - 3.75
        elif decoder == "common_neighbors":
            joined = nx.Graph(list(graph.whole_edges.members[0].index.T))
            joined.add_nodes_from(range(graph.nodes))
            index = nx.adamic_adar_index(joined, graph.pairs[:2].T.tolist())
            scores = [0.0 if u == v else score for u, v, score in index]  # u is v at padding
            expected = 5 * F.cosine_similarity(*h[graph.pairs[:2]]) - 4 + 2 * torch.tensor(scores).log1p()
        else:
            last = w[str(len(net) - 1)]
            inner = F.relu(product @ last["weight"] + last["bias"])
            expected = (inner @ last["weight_out"] + last["bias_out"])[:, 0]
        logits = model.apply(net, w, graph)
        assert not logits[:, 0].any()
        assert torch.allclose(logits[:, 1], expected, atol=1e-6)


def losses(score: Tensor, there: Tensor) -> dict[str, Tensor]:
    """Of links `score[:, 0]` against pairs `score[:, 1:]`, all of them there."""
    first, second = score[:, 0], score[:, 1:]
    labels = torch.cat([torch.ones_like(first), torch.zeros_like(second).flatten()])
    weight = torch.softmax(0.5 * second, 1)
    adversarial = -F.logsigmoid(2.0 + first) - (weight * F.logsigmoid(-2.0 - second)).sum(1)
    return {
        "cross_entropy": F.binary_cross_entropy_with_logits(torch.cat([first, second.flatten()]), labels),
        "bpr": -F.logsigmoid(first[:, None] - second).mean(),
        "margin": F.margin_ranking_loss(first[:, None], second, torch.ones_like(second), margin=2.0),
        "self_adversarial": adversarial.mean(),
    }


@pytest.mark.parametrize("loss", ["cross_entropy", "bpr", "margin", "self_adversarial"])
def test_losses_are_their_formulas(loss: str) -> None:
    from fedweave.algorithms.parts.part import Forward, Outputs

    data = as_links(random_data(), Links())
    [graph] = client_graphs(data, Random(clients=1).cut(data, 0)).values()
    net = OnPairs(models.MLP(hidden=4, dropout=0.0)).build(5)
    w = model.init(net, random.key(0))
    part = parts.LinkPrediction(3, loss, margin=2.0, temperature=0.5)
    drawn = {name: leaf[0] for name, leaf in part.draw(net, graph, random.key(2), 1).items()}
    links, real = LinkPrediction().links(graph)
    h = model.apply(net[:-1], w, graph)
    score = torch.cat([links, drawn["pairs"]], 1)
    score = (h[score[0]] * h[score[1]]).sum(1)
    size = len(real)
    table = torch.cat([score[:size, None], score[size:].view(size, 3)], 1)[real]
    ours = part.objective(Outputs(Forward(w, net, graph, random.key(0)), {}, drawn))
    assert float(ours) == pytest.approx(float(losses(table, real)[loss]), abs=1e-6)


# --- graphs, executors, algorithms


def test_graphs_keep_their_links() -> None:
    data = as_links(random_data(), Links(disjoint=0.2))
    graphs = list(client_graphs(data, Random(clients=2).cut(data, 0)).values())
    stacked = stack(graphs)
    for at, graph in enumerate(graphs):
        again = tree_graph(graph_tree(graph))
        assert graph.example == "link"
        for mine, other in ((again.pairs, graph.pairs), (again.ranks, graph.ranks), (again.y, graph.y)):
            assert torch.equal(mine, other)
        assert torch.equal(stacked.pairs[at], graph.pairs)
        assert torch.equal(stacked.ranks[at], graph.ranks)
        for name, extra in graph.extra.items():
            assert torch.equal(again.extra[name], extra)
            assert torch.equal(stacked.extra[name][at], extra)


@pytest.mark.parametrize(
    ("kind", "decoder"),
    [
        *((kind, "dot") for kind in (FedAvg, Local, ALGORITHMS["scaffold"], ALGORITHMS["ditto"])),
        (FedAvg, "common_neighbors"),
    ],
)
def test_the_loop_and_batches_give_the_same(kind: Callable[..., FedAvg], decoder: str) -> None:
    data = as_links(random_data(), Links())
    cut, scores = Random(clients=3).cut(data, 0), []
    for mode in ("loop", "vmap"):
        algorithm = kind(OnPairs(models.GCN(hidden=8), decoder).build(5))
        fed = federation(data, cut, algorithm, mode=mode)
        state = state_after(algorithm, fed, 2)
        evaluation = algorithm.evaluate(state, fed)
        scores.append({name: evaluation.clients.stack(f"own/{name}") for name in ("loss", "auc", "mrr")})
    for name, loop in scores[0].items():
        assert torch.allclose(loop, scores[1][name], atol=1e-4)


def test_the_union_is_judged_on_its_members_pairs() -> None:
    data = as_links(random_data(), Links())
    cut = Random(clients=2).cut(data, 0)
    graphs = list(client_graphs(data, cut).values())
    algorithm = ALGORITHMS["centralized"](OnPairs(models.GCN(hidden=8)).build(5))
    fed = federation(data, cut, algorithm)
    state = algorithm.init(fed)
    fed.begin(1)
    counted = algorithm.evaluate(state, fed).clients.stack("own/accuracy")[0, :, :, 1]
    assert counted.tolist() == [[float(graph.masks[split].sum()) for split in (TRAIN, VAL, TEST)] for graph in graphs]
    union = pool_clients(cut, data)
    assert np.array_equal(union.parts[0].masks, data.public[:, union.parts[0].examples])


def test_a_row_of_zeros_has_cosine_and_gradient_0() -> None:
    """Any other row has the cosine of its multiples, and a gradient that is orthogonal to it."""
    layer = cosine(2, 1)
    w = layer.init(random.key(0))
    rows = torch.tensor([[3.0, 4.0], [300.0, 400.0], [0.0, 0.0], [-4.0, 3.0]], requires_grad=True)
    pairs = torch.tensor([[0, 0, 0], [1, 2, 3], [0, 0, 0]])
    graph = make_graph(rows.detach().numpy(), np.zeros((2, 0), int), np.zeros(4, int), np.ones((3, 4), bool))
    scores = layer.apply(w, graph._replace(pairs=pairs), rows, None)[:, 1]
    torch.testing.assert_close(scores, torch.tensor([1.0, -4.0, -4.0]))
    [slope] = torch.autograd.grad(scores.sum(), rows)
    assert slope.isfinite().all()
    assert not slope[2].any()
    torch.testing.assert_close((slope * rows).sum(1), torch.zeros(4), atol=1e-5, rtol=0)


def test_common_neighbors_do_not_know_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """0 and 1 have the neighbor 2, which has three; 0 and 3 have 1 and 2. A foreign node has none."""
    layer = common_neighbors(2, 1)
    w = layer.init(random.key(0))
    w["scale"] -= torch.inf  # only neighbors
    w["bias"].zero_()

    def scores(*ends: tuple[int, int]) -> Tensor:
        edges = to_undirected(np.array(ends).T, 4)
        graph = make_graph(np.zeros((4, 1)), edges, np.zeros(4, int), np.ones((3, 4), bool))
        pairs = torch.tensor([[0, 0, 3, 0], [1, 3, 0, graph.nodes], [0, 0, 0, 0]])
        graph = graph._replace(pairs=pairs, extra={FOREIGN: torch.ones(1, 2)})
        return layer.apply(w, graph, torch.ones(graph.nodes, 2), None)[:, 1]

    square = ((0, 2), (1, 2), (1, 3), (2, 3))
    two = 2 * math.log1p(2 / math.log(3))
    torch.testing.assert_close(scores((0, 1), *square), torch.tensor([2 * math.log1p(1 / math.log(3)), two, two, 0.0]))
    assert float(scores(*square)[0]) == float(scores((0, 1), *square)[0])
    monkeypatch.setattr("fedweave.models.links.MAX_NEIGHBORS", 2)
    assert not scores((0, 1), *square)[0]


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "ratios": (lambda: Links(ratios=(0.9, 0.2, 0.1)), "config.value"),
    "disjoint": (lambda: Links(disjoint=1.0), "config.value"),
    "ranks": (lambda: Links(rank_negatives=-1), "config.value"),
    "users alone": (lambda: Links(users="user"), "config.value"),
    "no such kind": (lambda: as_links(random_data(), Links(users="user", items="item")), "config.links"),
    "decoder": (lambda: OnPairs(models.GCN(), "euclid").build(5), "config.value"),
    "pooling": (lambda: OnPairs(models.GCN(pool="sum")).build(5), "config.pooling"),
    "classes": (lambda: FedAvg(OnPairs(models.GCN()).build(5), parts=(parts.CrossEntropy(),)), "config.link-algorithm"),
    "contrast": (lambda: ALGORITHMS["moon"](OnPairs(models.GCN()).build(5)), "config.link-algorithm"),
    "prototypes": (lambda: ALGORITHMS["fedproto"](OnPairs(models.GCN()).build(5)), "config.link-algorithm"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    make, code = REFUSED[case]
    with refusal(code):
        make()


def test_cora(data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDWEAVE_DATA", str(data_root))
    data = as_links(datasets.load("cora"), Links())
    assert data.examples == 5278
    assert data.outputs == 2
    assert sp.issparse(data.x)
    cut = Louvain(clients=10).cut(data, 0)
    algorithm = FedAvg(OnPairs(models.GCN()).build(data.features))
    fed = federation(data, cut, algorithm)
    state = state_after(algorithm, fed, 5)
    pairs = algorithm.evaluate(state, fed).clients.stack("own/auc").sum(0)[TEST, :, 1]
    assert pairs[0] / pairs[1] > 0.75  # untrained features give less


def test_make_graph_pads_links() -> None:
    pairs = np.array([[0, 1], [1, 2], [0, 0]])
    graph = make_graph(np.eye(3), np.empty((2, 0), np.int64), np.array([1, 0]), np.ones((3, 2), bool), pairs=pairs)
    assert (graph.pairs[2] >= 0).sum() == 2


def test_a_worker_makes_the_graphs_that_one_process_makes() -> None:
    data = as_links(random_data(), Links())
    cut = Random(clients=3).cut(data, 0)
    whole = client_graphs(data, cut)
    [client, *_] = whole
    [graph] = client_graphs(data, cut, only={client}).values()
    mine, theirs = graph_tree(graph), graph_tree(whole[client])
    assert mine.keys() == theirs.keys()
    for name in ("pairs", "ranks", "y", "masks", "edges"):
        assert torch.equal(mine[name], theirs[name])
    for name, entries in mine["lists"].items():
        assert torch.equal(entries, theirs["lists"][name])


TRAIN_ON_LINKS = {
    *("local", "centralized", "fedavg", "dp_fedavg", "fedprox", "qfedavg", "fedadam", "fedavgm", "scaffold", "feddyn"),
    *(
        "feddc",
        "fedavg_ft",
        "fedper",
        "fedrep",
        "fedbn",
        "ditto",
        "apfl",
        "pfedme",
        "cgsv",
        "dw",
        "eu",
        "rffl",
        "fcfl",
        "fedpub",
    ),
    *("gcfl", "gcfl_plus", "dfedgnn", "fedyogi", "fedadagrad", "fede", "fedbuff"),
}


def test_a_head_on_a_model_without_hidden_layers_has_a_width_of_its_own() -> None:
    """As `sgc` is by default; edges as examples have such heads, too."""
    for head in (OnPairs(models.SGC(), "dot"), OnEdges(models.SGC())):
        w = model.init(head.build(5, 2), random.key(0), torch.float32)
        assert w["0"]["weight"].shape == (5, WIDTH)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains_on_links_or_refuses_them(name: str) -> None:
    data = as_links(random_data(), Links(rank_negatives=5))
    cut = Random(clients=3).cut(data, 0)

    def train() -> None:
        norm = "batch" if name == "fedbn" else "none"
        algorithm = ALGORITHMS[name](OnPairs(models.GCN(hidden=8, norm=norm), "mlp").build(5))
        fed = federation(data, cut, algorithm)
        state = algorithm.init(fed)
        fed.begin(1)
        algorithm.evaluate(algorithm.round(state, fed), fed)

    if name in TRAIN_ON_LINKS:
        assert capabilities(ALGORITHMS[name]).links
        return train()
    if capabilities(ALGORITHMS[name]).links:  # others are refused by that, before any is made
        with pytest.raises((FedweaveError, ValueError)):
            train()
    return None


@pytest.mark.slow
def test_training_reaches_what_a_plain_loop_reaches(data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch Geometric's layers and negatives, on the same split and test pairs of the undivided Cora."""
    geometric = pytest.importorskip("torch_geometric")
    monkeypatch.setenv("FEDWEAVE_DATA", str(data_root))
    data = as_links(datasets.load("cora"), Links(ratios=(0.8, 0.1, 0.1), rank_negatives=0))
    cut = Random(clients=1).cut(data, 0)
    algorithm = FedAvg(OnPairs(models.GCN()).build(data.features))
    fed = federation(data, cut, algorithm)
    state = state_after(algorithm, fed, 30)
    ours = algorithm.evaluate(state, fed).clients.stack("own/auc")[0, TEST, :, 1]

    [graph] = client_graphs(data, cut).values()
    x, edges = torch.from_numpy(data.x.toarray()), torch.from_numpy(graph.whole_edges.members[0].index.copy())
    torch.manual_seed(0)
    layers = [geometric.nn.GCNConv(x.shape[1], 64), geometric.nn.GCNConv(64, 64)]
    weights = [weight for layer in layers for weight in layer.parameters()]
    optimizer = torch.optim.Adam(weights, lr=0.01, weight_decay=5e-4)
    links = graph.pairs[:2, (graph.y == 1) & graph.masks[TRAIN]]

    def score(pairs: Tensor, training: bool) -> Tensor:
        h = layers[1](F.dropout(layers[0](x, edges).relu(), 0.5, training), edges)
        return (h[pairs[0]] * h[pairs[1]]).sum(1)

    for _ in range(90):
        others = geometric.utils.negative_sampling(edges, x.shape[0], links.shape[1])
        labels = torch.cat([torch.ones(links.shape[1]), torch.zeros(others.shape[1])])
        loss = F.binary_cross_entropy_with_logits(score(torch.cat([links, others], 1), True), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    test = graph.masks[TEST]
    with torch.no_grad():
        theirs = roc_auc_score(graph.y[test], score(graph.pairs[:2, test], False))
    assert float(ours[0] / ours[1]) == pytest.approx(theirs, abs=0.03)

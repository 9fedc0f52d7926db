"""Ranks among all nodes, by matrices: they are those of one pair at a time."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import vmap

from fedweave import models
from fedweave.core import model, random
from fedweave.core.graph import TEST, VAL, Graph, stack
from fedweave.core.links import Links
from fedweave.core.model import Model
from fedweave.core.tree import Tree
from fedweave.datasets.base import Dataset
from fedweave.datasets.links import as_links
from fedweave.experiment.graphs import client_graphs
from fedweave.experiment.shelf.pair_scores import REFERENCES, link_references
from fedweave.experiment.shelf.pairs import member_pairs
from fedweave.models import links as decoders
from fedweave.models.links import OnPairs
from fedweave.models.relations import DECODERS
from fedweave.partition import Random
from fedweave.partition.client_data import pool_clients
from fedweave.partition.edges import EdgeGroups
from tests.links.test_demands_of_links import shop
from tests.links.test_links import dims_of, random_data


def one_by_one(net: Model, w: Tree, graph: Graph, query: Tensor, members: Tensor, known: Tensor) -> float:
    """A query's candidates above its link, each as a pair of its own."""
    number, end, member = query.tolist()
    link = graph.pairs[:, number // 2].tolist()
    seen = graph.at(VAL if graph.masks[VAL, number // 2] else TEST)
    links = set(map(tuple, known[1:, known[0] == member].T.tolist()))

    def score(pair: list[int]) -> float:
        pairs = torch.tensor(pair)[:, None].expand(3, 8)
        return float(model.infer_split(net, w, seen._replace(pairs=pairs))[0, 1])

    total, own = 0.0, score(link)
    for node in members[1, members[0] == member].tolist():
        pair = [*link]
        pair[end] = node
        if pair[0] == pair[1] or tuple(pair) in links:
            continue
        other = score(pair)
        total += (other > own + 1e-6) + 0.5 * (abs(other - own) <= 1e-6)
    return total


def triples(directed: bool = True) -> Dataset:
    rng = np.random.default_rng(2)
    data = random_data(16, 60)
    ends = np.unique(rng.integers(0, 16, (2, 60)), axis=1)
    ends = ends[:, ends[0] != ends[1]]
    from fedweave.core.edge_attributes import EdgeAttributes

    relation = rng.integers(0, 3, ends.shape[1])
    data = replace(data, edge_attrs=EdgeAttributes(ends, directed, y=relation), labels=("a", "b", "c"))
    return as_links(data, Links(rank_negatives="all", ratios=(0.6, 0.2, 0.2)))


DATA: dict[str, Callable[[], Dataset]] = {
    "undirected": lambda: as_links(random_data(20, 50), Links(rank_negatives="all", ratios=(0.6, 0.2, 0.2))),
    "by split": lambda: as_links(random_data(20, 50), Links(rank_negatives="all", message="train+val")),
    "triples": triples,
    "users": shop,
}


@pytest.mark.parametrize("decoder", decoders.DECODERS)
@pytest.mark.parametrize("kind", DATA)
def test_ranks_are_those_of_single_pairs(kind: str, decoder: str) -> None:
    data = DATA[kind]()
    relations = max(1, len(data.links.relations))
    [graph] = client_graphs(data, Random(clients=1).cut(data, 0)).values()
    net = OnPairs(models.SAGE(hidden=4, layers=1, dropout=0.0), decoder, relations).build(data.features)
    w = model.init(net, random.key(3))
    above = model.count_above(net, w, graph)
    queries, members, known = (graph.extra[name] for name in graph.extra if name in OF_QUERIES)
    chosen = torch.nonzero(queries[0] >= 0)[:, 0]
    assert (above.sum(1) > 0).sum() > len(chosen) // 8
    for at in chosen[:: max(1, len(chosen) // 12)]:
        expected = one_by_one(net, w, graph, queries[:, at], members, known)
        assert float(above.view(-1)[queries[0, at]]) == expected


OF_QUERIES = ("queries of links", "candidates of members", "links that members know")


@pytest.mark.parametrize("decoder", ["dot", "cosine", "common_neighbors", "mlp", "complex"])
def test_clients_together_are_clients_one_by_one(decoder: str) -> None:
    data = triples()
    graphs = list(client_graphs(data, EdgeGroups(clients=2, by="random").cut(data, 0)).values())
    net = OnPairs(models.MLP(hidden=4, dropout=0.0), decoder, 3).build(data.features)
    w, stacked = model.init(net, random.key(1)), stack(graphs)
    together = vmap(lambda graph: model.count_above(net, w, graph), in_dims=(dims_of(stacked),))(stacked)
    for at, graph in enumerate(graphs):
        assert torch.equal(together[at], model.count_above(net, w, graph))


def test_few_scores_at_once_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    data = shop()
    [graph] = client_graphs(data, Random(clients=1).cut(data, 0)).values()
    net = OnPairs(models.MLP(hidden=4, dropout=0.0)).build(data.features)
    w = model.init(net, random.key(1))
    whole = model.count_above(net, w, graph)
    monkeypatch.setattr("fedweave.core.candidates.AT_ONCE", 1)
    assert torch.equal(model.count_above(net, w, graph), whole)


def test_a_union_has_the_ranks_of_its_members() -> None:
    """With one model, every link is ranked in the union as at its member: among that one's nodes and links."""
    data = triples()
    cut = EdgeGroups(clients=3, by="random").cut(data, 0)
    net = OnPairs(models.MLP(hidden=4, dropout=0.0), "distmult", 3).build(data.features)
    w = model.init(net, random.key(1))
    [union] = client_graphs(data, pool_clients(cut, data)).values()
    alone = [model.count_above(net, w, graph) for graph in client_graphs(data, cut).values()]
    together = model.count_above(net, w, union)
    for part, above in zip(cut.parts, alone, strict=True):
        assert torch.equal(together[part.examples], above[: len(part.examples)])
        assert above.any()


def test_references_rank_all_nodes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """`rank_negatives` as many as there are nodes are drawn as pairs, which are then all of them."""
    from fedweave.experiment.build import build
    from fedweave.experiment.config import resolve

    results = []
    for candidates in ("all", 10_000):
        document = {"data": {"name": "synthetic", "task": "links", "rank_negatives": candidates}}
        document |= {"partition": {"name": "random", "clients": 2}, "model": {"name": "gcn"}}
        built = build(resolve(document))
        results.append(link_references(built, member_pairs(built.data, built.partition)))
    assert set(results[0]) == set(results[1])
    assert len(results[0]) >= 2 * len(REFERENCES)
    for name, value in results[0].items():
        assert value == pytest.approx(results[1][name], abs=1e-9)


def test_near_is_the_score() -> None:
    rng = torch.Generator().manual_seed(0)
    for name, decoder in DECODERS.items():
        h, t = (torch.randn(5, 6, generator=rng, dtype=torch.float64) for _ in range(2))
        r = decoder.init(random.key(0), 5, 6).double()
        score = decoder.score(h[:, None], r[:, None], t[None])
        torch.testing.assert_close(decoder.near(decoder.lead(h, r), t), score, atol=1e-12, rtol=0, msg=name)
        back = decoder.near(decoder.lead(t, decoder.back(r)), h)  # [t, h], of the relation of t's row
        expected = decoder.score(h[None], r[:, None], t[:, None])
        torch.testing.assert_close(back, expected, atol=1e-12, rtol=0, msg=name)

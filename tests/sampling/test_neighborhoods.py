"""Sampled neighborhoods: laws on random graphs, and cases worked by hand."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import vmap

from fedweave.core import random
from fedweave.core.graph import Graph, make_graph, stack
from fedweave.core.tree import Tree
from fedweave.ops.rows import round_up
from fedweave.sampling.neighborhoods import Bipartite, Sampled, find_places, grow, self_hop, sort_distinct
from tests.random_graphs import dims_of, padded_alike

NODES = 30


def graph(seed: int = 0, share: float = 0.2) -> Graph:
    rng = np.random.default_rng(seed)
    pairs = np.triu(rng.random((NODES, NODES)) < share, 1)
    edges = np.stack(np.nonzero(pairs | pairs.T))
    masks = np.zeros((3, NODES), bool)
    return make_graph(rng.normal(size=(NODES, 3)), edges, np.zeros(NODES, int), masks, dtype=torch.float64)


def adjacency(g: Graph) -> np.ndarray:
    return g.edges.members[0].adjacency.toarray()


def hop_of(g: Graph, targets: Tensor, key: Tensor, fan_out: int) -> tuple[Tensor, Tree]:
    """The sources and the hop of one layer."""
    sources, _, hops = grow(g, targets, torch.tensor(len(targets)), key, [0], fan_out)
    return sources, hops["0"]


TARGETS = torch.tensor([7, 3, 29, 11, 7])  # a repeat, as in a padded list


@pytest.mark.parametrize("fan_out", [1, 3, 8])
def test_sources_are_the_targets_and_their_different_neighbors(fan_out: int) -> None:
    g = graph()
    a = adjacency(g)
    for number in range(20):
        sources, hop = hop_of(g, TARGETS, random.key(number), fan_out)
        assert sources[: len(TARGETS)].tolist() == TARGETS.tolist()
        for i, target in enumerate(TARGETS.tolist()):
            there = hop["count"][i] > 0
            seen = sources[hop["place"][i]][there].tolist()
            degree = int(a[target].sum())
            assert len(seen) == len(set(seen)) == min(fan_out, degree)
            assert all(a[target, node] for node in seen)
            assert torch.allclose(hop["count"][i].sum(), torch.tensor(float(degree), dtype=torch.float64))


@pytest.mark.slow
def test_every_neighbor_is_equally_likely() -> None:
    """A node of degree 7 and fan-out 3: each neighbor is there in 3/7 of 600 draws, within 5 standard deviations."""
    spokes = np.array([[0] * 7, [4, 8, 9, 15, 16, 23, 29]])
    edges = np.concatenate([spokes, spokes[::-1]], 1)
    g = make_graph(np.zeros((NODES, 1)), edges, np.zeros(NODES, int), np.zeros((3, NODES), bool))
    count = np.zeros(32)
    for number in range(600):
        sources, hop = hop_of(g, torch.tensor([0]), random.key(number), 3)
        count[sources[hop["place"][0]]] += 1
    assert abs(count[spokes[1]] - 600 * 3 / 7).max() < 5 * np.sqrt(600 * 3 / 7 * 4 / 7)
    assert count.sum() == 1800


def test_a_node_is_sampled_alike_in_any_list() -> None:
    g, key = graph(share=0.5), random.key(3)
    whole, hop = hop_of(g, torch.arange(NODES), key, 3)
    part, some = hop_of(g, TARGETS, key, 3)
    assert torch.equal(part[some["place"]], whole[hop["place"]][TARGETS])
    assert torch.equal(some["gcn"], hop["gcn"][TARGETS])
    other, again = hop_of(g, TARGETS, random.key(4), 3)
    assert not torch.equal(part[some["place"]], other[again["place"]])


def test_layers_grow_from_each_other() -> None:
    g, key, five = graph(), random.key(3), torch.tensor(5)
    sources, filled, hops = grow(g, TARGETS, five, key, [4, 2], 3)
    middle, part, above = grow(g, TARGETS, five, key, [4], 3)
    lowest, whole, below = grow(g, middle, part, key, [2], 3)
    assert torch.equal(sources, lowest)
    assert filled == whole
    assert torch.equal(sources[:part], middle[:part])
    for hop, alike in ((hops["4"], above["4"]), (hops["2"], below["2"])):
        assert all(torch.equal(hop[name], alike[name]) for name in ("place", "count", "gcn"))
    assert grow(g, TARGETS, five, key, [], 3) == (TARGETS, five, {})


def test_padding_changes_nothing_before_it() -> None:
    """Sources that count stand where they stand, are each named once, and no place points behind them."""
    key, five = random.key(3), torch.tensor(5)
    tight, empty_rows = graph(), graph()
    empty_rows.edges.cache.padded_size((4, 5), 100)
    a, few, hops = grow(tight, TARGETS, five, key, [4, 2], 3)
    b, many, more = grow(empty_rows, TARGETS, five, key, [4, 2], 3)
    assert len(more["2"]["gcn"]) == 128 > len(hops["2"]["gcn"]) == 32
    assert few == many
    assert torch.equal(a[:few], b[:few])
    assert len(a[:few].unique()) == few - 1  # TARGETS names 7 twice
    assert (a[few:] == 7).all()
    assert (b[few:] == 7).all()
    counts = len(grow(tight, TARGETS, five, key, [4], 3)[0].unique()) + 1
    for name in ("place", "count", "gcn"):
        assert torch.equal(hops["4"][name], more["4"][name])
        assert torch.equal(hops["2"][name][:counts], more["2"][name][:counts])
    assert max(int(hop["place"][:counts].max()) for hop in (hops["2"], more["2"])) < few


def test_all_clients_at_once_are_each_alone() -> None:
    graphs, key = [graph(i, share) for i, share in enumerate((0.1, 0.3, 0.6))], random.key(5)
    keys = torch.stack([random.fold(key, i) for i in range(3)])
    both = stack(padded_alike(graphs))
    dims = dims_of(both)
    out = vmap(lambda g, k: hop_of(g, TARGETS, k, 3), in_dims=(dims, 0))(both, keys)
    for i, g in enumerate(graphs):
        sources, hop = hop_of(g, TARGETS, keys[i], 3)
        assert torch.equal(out[0][i][out[1]["place"][i]], sources[hop["place"]])
        assert torch.equal(out[1]["gcn"][i], hop["gcn"])


@pytest.mark.parametrize("kind", ["gcn", "sum", "mean", "mean_or_self"])
def test_with_all_neighbors_the_product_is_the_full_graphs(kind: str) -> None:
    g = graph(share=0.1)
    h = torch.tensor(np.random.default_rng(1).normal(size=(len(g.y), 4)))
    sources, hop = hop_of(g, TARGETS, random.key(0), NODES)
    expected = (g.edges.operator(kind) @ h)[TARGETS]
    assert torch.allclose(Sampled(hop).operator(kind) @ h[sources], expected, atol=1e-12)


def test_few_neighbors_give_the_full_product_on_average() -> None:
    """D~^-1/2 (A + I) D~^-1/2 h from 2 of about 15 neighbors: the mean of 500 draws is within 5 standard errors."""
    g = graph(share=0.5)
    h = torch.tensor(np.random.default_rng(1).normal(size=(len(g.y), 4)))
    draws = []
    for number in range(500):
        sources, hop = hop_of(g, TARGETS[:4], random.key(number), 2)
        draws.append(Sampled(hop).operator("gcn") @ h[sources])
    many = torch.stack(draws)
    error = many.std(0) / np.sqrt(len(many))
    assert ((many.mean(0) - (g.edges.operator("gcn") @ h)[TARGETS[:4]]).abs() < 5 * error).all()
    assert (many.std(0) > 0.05).all()


def test_weights_by_hand() -> None:
    """Path 0 - 1 - 2, and 1 has two neighbors of which one is sampled: it stands for both."""
    edges = np.array([[0, 1, 1, 2], [1, 0, 2, 1]])
    g = make_graph(np.zeros((3, 1)), edges, np.zeros(3, int), np.zeros((3, 3), bool), dtype=torch.float64)
    _, hop = hop_of(g, torch.tensor([1, 0]), random.key(0), 1)
    assert torch.allclose(hop["gcn"], torch.tensor([[1 / 3, 2 / 6**0.5], [1 / 2, 1 / 6**0.5]], dtype=torch.float64))
    assert hop["count"].tolist() == [[2.0], [1.0]]
    assert self_hop(torch.tensor([4, 2]), torch.float64)["gcn"].tolist() == [[1.0], [1.0]]


def test_attention_by_hand() -> None:
    """Target 0 sees itself and source 2; the place of weight 0 is none."""
    operator = Bipartite(torch.tensor([[2, 0]]), torch.tensor([[0.5, 0.5, 0.0]]))
    source, target = torch.tensor([[1.0], [9.0], [-2.0]]), torch.tensor([[1.0]])
    values = torch.tensor([[1.0, 0.0], [5.0, 5.0], [0.0, 1.0]])
    own, other = np.exp(2.0), np.exp(-0.2)  # LeakyReLU(1 + 1), LeakyReLU(1 - 2) with slope 0.2
    out = operator.attend(source, target, values, 0.2, None, 0.0)
    assert torch.allclose(out, torch.tensor([[own, other]]).float() / (own + other))


def test_unknown_operators_are_refused() -> None:
    _, hop = hop_of(graph(), TARGETS, random.key(0), 2)
    with pytest.raises(ValueError, match="no operator 'max', only gcn, sum, mean"):
        Sampled(hop).operator("max")


def test_places_and_sizes() -> None:
    within = torch.tensor([5, 2, 9, 5])
    nodes = torch.tensor([9, 5, 2])
    assert within[find_places(nodes, within, 10)].tolist() == [9, 5, 2]
    assert sort_distinct(torch.tensor([9, 5, 9, 2]), 10, 5).tolist() == [2, 5, 9, 2, 2]
    assert sort_distinct(torch.tensor([9, 5, 9, 2]), 10, 3).tolist() == [2, 5, 9]
    assert [round_up(n, 32, 8) for n in (0, 1, 33, 255, 256, 257, 513, 1025)] == [0, 32, 64, 256, 256, 288, 576, 1152]
    padded_size = graph().edges.cache.padded_size
    assert [padded_size("a", 40), padded_size("a", 90), padded_size("a", 10), padded_size("b", 10)] == [64, 96, 96, 32]
    assert [round_up(n) for n in (0, 1, 64, 65, 255, 256, 257, 1000, 1025)] == [
        0,
        64,
        64,
        128,
        256,
        256,
        384,
        1024,
        1536,
    ]


def test_of_nodes_that_a_list_repeats_the_last_place_counts() -> None:
    """As no device promises for writes to one place."""
    assert find_places(torch.tensor([7, 3]), torch.tensor([7, 3, 7, 7]), NODES).tolist() == [3, 1]
    mine = torch.from_numpy(adjacency(graph())[5].nonzero()[0])
    again, hop = hop_of(graph(), torch.cat([mine, mine, torch.tensor([5])]), random.key(0), 50)
    seen = hop["place"][-1, : len(mine)]
    assert again[seen].tolist() == mine.tolist()
    assert seen.tolist() == list(range(len(mine), 2 * len(mine)))

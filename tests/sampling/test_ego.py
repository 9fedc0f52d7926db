"""Sampled ego-graphs: who is drawn, how they are laid out, and that message passing on them is that on trees."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.edges import Neighbors
from fedweave.core.graph import TRAIN, Graph, make_graph, stack
from fedweave.core.model import Model
from fedweave.core.tree import Tree, map_leaves
from fedweave.models import MODELS, sage
from fedweave.sampling import ego_graphs
from fedweave.sampling.ego_graphs import Egos
from tests.random_graphs import dims_of, padded_alike, random_graph, replace_fields


def undirected(*pairs: tuple[int, int]) -> np.ndarray:
    a = np.array(pairs).T.reshape(2, -1)
    return np.concatenate([a, a[::-1]], 1)


def labelled(nodes: int, edges: np.ndarray, train: int | None = None) -> Graph:
    """A graph whose first `train` nodes (all by default) train."""
    masks = np.zeros((3, nodes), bool)
    masks[TRAIN, :train] = True
    return make_graph(np.eye(nodes), edges, np.arange(nodes) % 2, masks, dtype=torch.float64)


def adjacent(graph: Graph) -> dict[int, set[int]]:
    """The neighbors of every node; a node without is its own."""
    links = graph.edges.members[0].index
    return {v: set(links[1, links[0] == v].tolist()) or {v} for v in range(len(graph.y))}


@pytest.mark.parametrize(("hops", "fan_out", "count"), [(0, 3, 1), (1, 6, 7), (2, 6, 43), (3, 2, 15), (2, 1, 3)])
def test_positions(hops: int, fan_out: int, count: int) -> None:
    assert ego_graphs.positions(hops, fan_out) == count
    nodes = Egos(4, hops, fan_out).around(labelled(5, undirected((0, 1))), random.key(0), torch.arange(4))
    assert nodes.shape == (count, 4)
    assert nodes[0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("hops", "fan_out"), [(1, 5), (2, 6), (3, 3)])
def test_children_are_neighbors_of_their_parents(hops: int, fan_out: int) -> None:
    graph = random_graph(60)
    near, centers = adjacent(graph), torch.arange(0, 60, 3)
    nodes = Egos(4, hops, fan_out).around(graph, random.key(1), centers)
    for v in range(ego_graphs.positions(hops - 1, fan_out)):
        for child in range(fan_out * v + 1, fan_out * v + fan_out + 1):
            assert all(int(c) in near[int(p)] for p, c in zip(nodes[v], nodes[child], strict=True))


def test_neighbors_are_drawn_evenly_and_independently() -> None:
    """A star with 7 leaves: its center's draws are even (chi-square), and so are pairs of them (with replacement)."""
    graph = labelled(9, undirected(*[(0, leaf) for leaf in range(1, 8)]))
    draws = Egos(1, 1, 2).around(graph, random.key(3), torch.zeros(20_000, dtype=torch.int64))[1:]
    for table in (draws[0] - 1, (draws[0] - 1) * 7 + draws[1] - 1):
        cells = 7 if table.max() < 7 else 49
        assert stats.chisquare(torch.bincount(table, minlength=cells)).pvalue > 0.001
    other = Egos(1, 1, 2).around(graph, random.key(4), torch.zeros(20_000, dtype=torch.int64))[1:]
    assert not torch.equal(draws, other)


def test_an_isolated_node_is_its_own_neighbor() -> None:
    graph = labelled(4, undirected((0, 1)))
    nodes = Egos(4, 2, 3).around(graph, random.key(0), torch.arange(4))
    assert (nodes[:, 2] == 2).all()
    assert (nodes[:, 3] == 3).all()
    assert nodes[:5, 0].tolist() == [0, 1, 1, 1, 0]
    nobody = labelled(3, np.zeros((2, 0), int))
    assert (Egos(3, 1, 2).around(nobody, random.key(0), torch.arange(3)) == torch.arange(3)).all()


class _Endless:
    """Columns as long as one likes: the neighbor at place p is p; remembers how far it was asked."""

    def __len__(self) -> int:
        return 1 << 40

    def gather(self, dim: int, at: Tensor) -> Tensor:
        return at


@pytest.mark.parametrize("degree", [1, 3, 1000, (1 << 23) + 1, (1 << 24) - 1, 1 << 24])
def test_the_ends_of_the_interval_draw_the_first_and_the_last_neighbor(degree: int) -> None:
    table = Neighbors(torch.tensor([0, 1]), torch.tensor([1, degree]), _Endless())  # type: ignore[arg-type]
    drawn = ego_graphs.children(table, torch.tensor([1]), torch.tensor([[0.0, 1 - 2.0**-24]]))
    assert drawn.tolist() == [[1, degree]]


@pytest.mark.parametrize("power", [24, 25, 26, 30])
def test_no_draw_leaves_a_huge_neighborhood(power: int) -> None:
    """Beyond 2^24 a degree has no float32 of its own."""
    degrees = torch.arange((1 << power) - 500, (1 << power) + 500)
    table = Neighbors(torch.zeros_like(degrees), degrees, _Endless())  # type: ignore[arg-type]
    largest = torch.full((1000, 1), 1 - 2.0**-24)
    drawn = ego_graphs.children(table, torch.arange(1000), largest)[:, 0]
    assert (drawn < degrees).all()
    assert (drawn > degrees - 4 * 2 ** (power - 23)).all()


def test_without_train_nodes_every_place_is_empty() -> None:
    for batch in (5, 50):
        _, real = Egos(batch).draw(labelled(8, undirected((0, 1)), 0), random.key(0), 2)
        assert not real.any()


def test_draws_are_distinct_train_nodes_and_all_come_up_equally_often() -> None:
    graph, steps = labelled(40, undirected((0, 1)), train=20), 2000
    centers, real = Egos(batch=5).draw(graph, random.key(2), steps)
    assert real.all()
    assert all(len(set(batch)) == 5 for batch in centers.tolist())
    seen = torch.bincount(centers.flatten(), minlength=40)
    assert not seen[20:].any()
    # each count is binomial(2000, 1/4); drawing without replacement makes the sum of squares smaller than chi-square's
    assert (seen[:20] - 500).abs().max() < 4.5 * (2000 * 0.25 * 0.75) ** 0.5


@pytest.mark.parametrize("train", [1, 3])
@pytest.mark.parametrize("batch", [5, 50])  # more than the padded nodes, too
def test_fewer_train_nodes_than_a_batch_leave_places_empty(train: int, batch: int) -> None:
    graph = labelled(8, undirected((0, 1)), train)
    centers, real = Egos(batch).draw(graph, random.key(0), 3)
    assert centers.shape == real.shape == (3, batch)
    for nodes, own in zip(centers, real, strict=True):
        assert sorted(nodes[own].tolist()) == list(range(min(train, batch)))


@pytest.mark.parametrize("train", [0, 1, 7, 20, 31])
@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_the_smallest_batch_is_known_before(train: int, share: float, epochs: int) -> None:
    graph = labelled(40, undirected((0, 1)), train)
    for batch, times in itertools.product((1, 6, 50), (1, 2, 5, 30)):
        egos, steps = Egos(batch, epochs=epochs, share=share), times * max(1, epochs)
        _, real = egos.draw(graph, random.key(3), steps)
        assert egos.min_examples(graph, steps) == min([size for size in real.sum(1).tolist() if size], default=0)


def one_loss(egos: Egos, w: Tree, model: Model, graph: Graph, key: Tensor) -> Tensor:
    """The loss of one mini-batch."""
    drawn = egos.batches(model, graph, key, 1)
    return egos.loss(w, model, graph, key, map_leaves(lambda leaf: leaf[0], drawn))


def net(dropout: float = 0.5, features: int = 6) -> Any:
    return MODELS["ego"](hidden=8, dropout=dropout).build(features, 3)


def test_the_loss_is_the_mean_over_real_centers_and_0_without_any() -> None:
    model = net(0.0)
    w = models.init(model, random.key(1), torch.float64)
    pair = replace_fields(random_graph(20), masks=torch.zeros(3, 32, dtype=torch.bool))
    assert one_loss(Egos(), w, model, pair, random.key(0)) == 0
    pair.masks[TRAIN, :3] = True
    small, large = (one_loss(Egos(batch, fan_out=3), w, model, _alone(pair), random.key(0)) for batch in (3, 32))
    by_hand = torch.nn.functional.cross_entropy(models.apply(model, w, _alone(pair))[:3], pair.y[:3])
    torch.testing.assert_close(torch.stack([small, large]), torch.stack([by_hand, by_hand]))


def _alone(graph: Graph) -> Graph:
    """The same nodes without edges: every ego is one node, so that sampling has no choice."""
    n = int(graph.real.sum())
    x = graph.x[:n]  # type: ignore[index]
    return make_graph(x.numpy(), np.zeros((2, 0), int), graph.y[:n].numpy(), graph.masks[:, :n].numpy(), dtype=x.dtype)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("hops", [1, 2])
def test_a_client_in_a_padded_batch_has_the_bits_of_the_client_alone(hops: int, sparse: bool) -> None:
    graphs = [random_graph(n, seed=n, sparse=sparse, dtype=torch.float32) for n in (9, 70, 33, 200)]
    graphs[1] = replace_fields(graphs[1], masks=torch.zeros_like(graphs[1].masks))
    model, egos = net(), Egos(batch=20, hops=hops, fan_out=3)
    w = models.init(model, random.key(5))
    keys = random.bits(random.key(6), len(graphs))
    together = stack(padded_alike(graphs))
    dims = dims_of(together)

    def sampled(graph: Graph, key: Tensor) -> tuple[Tensor, ...]:
        (centers,), (real,) = egos.draw(graph, key, 1)
        grads, loss = torch.func.grad_and_value(lambda w: one_loss(egos, w, model, graph, key))(w)
        flat = torch.cat([slope.flatten() for slope in pytree.tree_leaves(grads)])
        return egos.around(graph, key, centers), real, loss, flat

    batch = vmap(sampled, (dims, 0))(together, keys)
    for site, graph in enumerate(graphs):
        for ours, alone in zip(batch, sampled(graph, keys[site]), strict=True):
            assert torch.equal(ours[site], alone)
            assert alone.isfinite().all()
    assert [bool(grads.any()) for grads in batch[3]] == [True, False, True, True]


def tree(fan_out: int, hops: int) -> np.ndarray:
    """Edges from children to their parents."""
    inner = ego_graphs.positions(hops - 1, fan_out)
    children = np.arange(1, 1 + inner * fan_out)
    return np.stack([children, (children - 1) // fan_out])


@pytest.mark.parametrize(("hops", "fan_out"), [(1, 4), (2, 6), (3, 2), (2, 1)])
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("operator", ego_graphs.KINDS)
def test_an_ego_is_a_tree_of_directed_edges(hops: int, fan_out: int, share: bool, operator: str) -> None:
    """Value and gradients at the center, against the sparse matrix of a tree of 43 nodes (2 hops of 6)."""
    count, width, batch = ego_graphs.positions(hops, fan_out), 5, 3
    layers = [sage.convolution(width, width, share, operator) for _ in range(hops)]
    w = {str(i): layer.init(random.key(i)) for i, layer in enumerate(layers)}
    w = pytree.tree_map(lambda t: t.double().requires_grad_(), w)
    h = torch.randn(count, batch, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    given = h.clone().requires_grad_()
    out = models.apply(tuple(layers), w, ego_graphs.ego_graph(given.flatten(0, 1), batch, fan_out))
    assert out.shape == (batch, width)
    pull = torch.randn(batch, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    leaves = [given, *pytree.tree_leaves(w)]
    ours = torch.autograd.grad((out.sin() * pull).sum(), leaves)
    own, centers = h.clone().requires_grad_(), []
    for at in range(batch):
        nothing = np.zeros((count, 1)), np.zeros(count, int), np.zeros((3, count), bool)
        graph = make_graph(nothing[0], tree(fan_out, hops), *nothing[1:], dtype=torch.float64)
        padded = torch.nn.functional.pad(own[:, at], (0, 0, 0, len(graph.y) - count))
        centers.append(models.apply(tuple(layers), w, graph, h=padded)[0])
    plain = torch.autograd.grad((torch.stack(centers).sin() * pull).sum(), [own, *pytree.tree_leaves(w)])
    torch.testing.assert_close(out, torch.stack(centers), atol=1e-12, rtol=1e-12)
    for mine, theirs in zip(ours, plain, strict=True):
        assert theirs.any()
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-12)


def test_second_derivatives_on_egos() -> None:
    h = torch.randn(7 * 2, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64).requires_grad_()

    def means(h: Tensor) -> Tensor:
        own, mean = ego_graphs.EgoEdges(2, 2).with_means(h, "mean")
        return own.sin() * mean

    assert torch.autograd.gradcheck(means, (h,))
    assert torch.autograd.gradgradcheck(means, (h,))


def test_by_hand() -> None:
    """Positions 0..6 of an ego hold 1, 2, 4, 8, 16, 32, 64."""
    own, means = ego_graphs.EgoEdges(1, 2).with_means(2.0 ** torch.arange(7)[:, None], "mean")
    assert own[:, 0].tolist() == [1, 2, 4]
    assert means[:, 0].tolist() == [3, 12, 48]


def test_more_layers_than_rings_and_other_operators_are_refused() -> None:
    centers, one = ego_graphs.ego_graph(torch.ones(4, 3), 4, 2), ego_graphs.ego_graph(torch.ones(12, 3), 4, 2)
    with pytest.raises(ValueError, match="no ring left"):
        centers.edges.with_means(centers.x, "mean")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no operator 'gcn', only mean and mean_or_self"):
        one.edges.with_means(one.x, "gcn")  # type: ignore[arg-type]


def test_neighbors_of_all_clients() -> None:
    graphs = [labelled(4, undirected((0, 1), (0, 2))), labelled(40, undirected((5, 39), (5, 6), (5, 0)))]
    graphs = [replace_fields(graph, x=graph.x[:, :2]) for graph in graphs]  # type: ignore[index]
    together = stack(padded_alike(graphs))
    dims = dims_of(together)
    first, degree, columns = vmap(lambda graph: tuple(graph.edges.neighbors), (dims,))(together)
    for site, graph in enumerate(graphs):
        near = adjacent(graph)
        for v in range(len(graph.y)):
            held = columns[site, first[site, v] : first[site, v] + degree[site, v]].tolist()
            assert set(held or [v]) == near[v]
            assert len(held) == degree[site, v]
        assert not degree[site, len(graph.y) :].any()


def test_mean_or_self_is_the_mean_except_for_isolated_nodes() -> None:
    graph = labelled(4, undirected((0, 1), (0, 2)))
    matrix = graph.edges.operator("mean_or_self").blocks.members[0].scipy().toarray()[:4, :4]
    assert matrix.tolist() == [[0, 0.5, 0.5, 0], [1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize(
    ("train", "share", "steps"), [(50, 0.5, 12), (23, 0.9, 8), (50, 0.1, 4), (0, 0.5, 4), (64, 1.0, 4)]
)
def test_an_epoch_goes_once_through_its_share_of_the_nodes(train: int, share: float, steps: int) -> None:
    """Mini-batches of an epoch have no center in common, are as equal as can be, and together hold the share of all
    nodes, as far as nodes train and places go."""
    graph, epochs, batch = labelled(64, undirected((0, 1)), train), 4, 8
    egos = Egos(batch, 1, 2, epochs, share)
    centers, real = egos.draw(graph, random.key(1), steps)
    each = steps // epochs
    wanted = min(int(share * 64), train)
    assert int(egos.epoch(graph)) == wanted
    assert int(egos.batches_per_epoch(graph)) == -(-wanted // batch)
    seen = []
    for at in range(0, steps, each):
        of_epoch = centers[at : at + each][real[at : at + each]].tolist()
        assert len(set(of_epoch)) == len(of_epoch) == min(wanted, each * batch)
        assert all(node < train for node in of_epoch)
        sizes = real[at : at + each].sum(1)
        assert int(sizes.max() - sizes.min()) <= 1
        seen.append(sorted(of_epoch))
    assert train in (0, 23) or len({tuple(each) for each in seen}) > 1 or wanted == 64

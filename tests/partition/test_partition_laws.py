"""Laws of the four partitions on small random graphs."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from fedweave.datasets.base import Dataset
from fedweave.datasets.synthetic import Synthetic
from fedweave.partition import Dirichlet, LabelSkew, Louvain, LouvainPlus, Partition, Random
from fedweave.partition.base import Part
from fedweave.partition.communities import _pack, deal_in_turn
from tests.refusals import refusal

SMALL_SKEW = LabelSkew(clients=4, majors=2, test_nodes=20)
CUTS = [Louvain(clients=4), Louvain(clients=4, holdout=True), Dirichlet(clients=4), Random(clients=4), SMALL_SKEW]
CUTS += [
    LouvainPlus(clients=4),
    Louvain(clients=4, packing="in_turn"),
    Louvain(clients=4, packing="in_turn", holdout=True),
]
DISJOINT = [
    Louvain(clients=7),
    Louvain(clients=7, packing="in_turn"),
    Dirichlet(clients=7, min_nodes=3),
    Random(clients=7),
]


def both_ways(pairs: np.ndarray) -> np.ndarray:
    pairs = pairs[:, pairs[0] != pairs[1]]
    return np.unique(np.concatenate([pairs, pairs[::-1]], axis=1), axis=1).astype(np.int64)


def blocks(nodes: int = 400, groups: int = 8, classes: int = 5, unlabeled: float = 0.1, seed: int = 0) -> Dataset:
    """A graph of dense blocks with a few edges between them and some isolated nodes."""
    rng = np.random.default_rng(seed)
    block = np.sort(rng.integers(0, groups, nodes))
    chance = np.where(block[:, None] == block, 0.15, 0.004)
    pairs = np.stack(np.nonzero(np.triu(rng.random((nodes, nodes)) < chance, 1)))
    pairs = pairs[:, ~(np.isin(pairs, np.arange(0, nodes, 20)).any(axis=0))]
    y = np.where(rng.random(nodes) < unlabeled, -1, rng.integers(0, classes, nodes))
    public = np.arange(nodes) % 3 == np.arange(3)[:, None]
    return Dataset("blocks", np.zeros((nodes, 1), np.float32), both_ways(pairs), y, classes, None, public)


def shape(name: str, nodes: int) -> np.ndarray:
    """Edges of graphs that communities find hard."""
    every = np.arange(nodes)
    return both_ways(
        {
            "none": np.zeros((2, 0), np.int64),
            "star": np.stack([np.zeros(nodes, np.int64), every]),
            "path": np.stack([every[:-1], every[1:]]),
            "complete": np.stack(np.nonzero(np.ones((nodes, nodes)))),
            "one edge": np.array([[0], [nodes - 1]]),
            "pairs": np.stack([every, every ^ 1])[:, : nodes // 2 * 2],
        }[name]
    )


def graph(edges: np.ndarray, nodes: int) -> Dataset:
    return Dataset("hard", np.zeros((nodes, 1), np.float32), edges, np.arange(nodes) % 2, 2)


def same(one: Partition, other: Partition) -> bool:
    def equal(a: Part, b: Part) -> bool:
        return np.array_equal(a.nodes, b.nodes) and np.array_equal(a.masks, b.masks)

    return equal_tests(one.test, other.test) and all(equal(a, b) for a, b in zip(one.parts, other.parts, strict=True))


def equal_tests(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    return one is other if one is None or other is None else np.array_equal(one, other)


def kept(data: Dataset, cut: Partition) -> float:
    owner = np.full(data.nodes, -1)
    for client, part in enumerate(cut.parts):
        owner[part.nodes] = client
    return float((owner[data.edges[0]] == owner[data.edges[1]]).mean())


def sizes(cut: Partition) -> np.ndarray:
    return np.array([len(part.nodes) for part in cut.parts])


@pytest.mark.parametrize("how", CUTS)
def test_parts_are_well_formed(how: Any) -> None:
    data = blocks()
    cut = how.cut(data, 0)
    assert len(cut.parts) == how.clients
    for part in cut.parts:
        assert part.nodes.dtype == np.int64
        assert (np.diff(part.nodes) > 0).all()
        assert part.masks.shape == (3, len(part.nodes))
        assert part.masks.dtype == bool
        assert part.masks.sum(axis=0).max() == 1
        assert not part.masks[:, data.y[part.nodes] < 0].any()
        assert part.masks[0].any()
        assert cut.test is None or not np.isin(part.nodes, cut.test).any()
    if cut.test is not None:
        assert (np.diff(cut.test) > 0).all()
        assert (data.y[cut.test] >= 0).all()


@pytest.mark.parametrize("how", CUTS)
def test_same_seed_same_cut_other_seed_other_cut(how: Any) -> None:
    data = blocks()
    assert same(how.cut(data, 3), how.cut(data, 3))
    assert not same(how.cut(data, 3), how.cut(data, 4))


@pytest.mark.parametrize("how", DISJOINT)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_node_has_one_client(how: Any, seed: int) -> None:
    cut = how.cut(blocks(seed=seed), seed)
    assert np.array_equal(np.sort(np.concatenate([part.nodes for part in cut.parts])), np.arange(400))
    assert cut.test is None


@pytest.mark.parametrize("how", [Louvain(clients=6), Random(clients=6)])
def test_holders_do_not_depend_on_labels(how: Any) -> None:
    data = blocks()
    other = Dataset(data.name, data.x, data.edges, (data.y + 2) % 5, 5)
    for one, two in zip(how.cut(data, 0).parts, how.cut(other, 0).parts, strict=True):
        assert np.array_equal(one.nodes, two.nodes)


@pytest.mark.parametrize("kind", [Louvain, Dirichlet, Random, LabelSkew])
def test_public_split_is_the_published_one(kind: type) -> None:
    data = blocks()
    assert data.public is not None
    for part in kind(clients=3, use_dataset_split=True).cut(data, 0).parts:
        assert np.array_equal(part.masks, (data.public & (data.y >= 0))[:, part.nodes])


@given(nodes=st.integers(1, 200), clients=st.integers(1, 200))
@settings(deadline=None, max_examples=50)
def test_random_sizes_differ_by_at_most_one(nodes: int, clients: int) -> None:
    clients = min(nodes, clients)
    held = sizes(Random(clients=clients).cut(graph(shape("none", nodes), nodes), 0))
    assert held.sum() == nodes
    assert held.max() - held.min() <= 1


@pytest.mark.slow
@given(
    name=st.sampled_from(["none", "star", "path", "complete", "one edge", "pairs"]),
    nodes=st.integers(2, 60),
    clients=st.integers(1, 60),
    slack=st.sampled_from([0.0, 0.1, 0.5, 3.0]),
)
@settings(deadline=None, max_examples=150)
def test_louvain_sizes_on_hard_graphs(name: str, nodes: int, clients: int, slack: float) -> None:
    clients = min(nodes, clients)
    held = sizes(Louvain(clients=clients, slack=slack).cut(graph(shape(name, nodes), nodes), 0))
    assert held.sum() == nodes
    assert held.min() >= 1
    assert held.max() <= math.ceil(nodes / clients * (1 + slack) - 1e-9)


@pytest.mark.parametrize("clients", [2, 5, 8, 40, 200, 400])
def test_louvain_sizes_stay_within_the_slack(clients: int) -> None:
    held = sizes(Louvain(clients=clients).cut(blocks(), 0))
    assert held.max() <= math.ceil(400 / clients * 1.1)
    assert held.min() >= math.floor(380 / clients * 0.9)  # of the 20 isolated nodes, some clients have none


def test_louvain_finds_planted_blocks() -> None:
    clique = np.stack(np.nonzero(np.ones((10, 10))))
    edges = both_ways(np.concatenate([clique + 10 * block for block in range(6)], axis=1))
    for seed in range(3):
        cut = Louvain(clients=3, slack=0.0).cut(graph(edges, 60), seed)
        assert kept(graph(edges, 60), cut) == 1
        assert sizes(cut).tolist() == [20, 20, 20]


def test_louvain_keeps_communities_with_most_common_edges_together() -> None:
    clique = np.stack(np.nonzero(np.ones((10, 10))))
    bridges = np.array([[0, 1, 2, 3, 20, 21, 22, 23, 9], [10, 11, 12, 13, 30, 31, 32, 33, 29]])  # 0-1 and 2-3 belong
    edges = both_ways(np.concatenate([*(clique + 10 * block for block in range(4)), bridges], axis=1))
    cut = Louvain(clients=2).cut(graph(edges, 40), 0)
    assert sorted(part.nodes.tolist() for part in cut.parts) == [list(range(20)), list(range(20, 40))]


def test_louvain_beats_random_on_blocks() -> None:
    data = blocks()
    assert kept(data, Louvain(clients=8).cut(data, 0)) > 0.75 > 0.2 > kept(data, Random(clients=8).cut(data, 0))


def test_isolated_nodes_even_out_the_sizes() -> None:
    pair = np.array([[0, 1, 3], [1, 2, 4]])  # two communities of three and two nodes, five isolated nodes
    cut = Louvain(clients=5, slack=1.0).cut(graph(both_ways(pair), 10), 0)
    assert sizes(cut).tolist() == [2, 2, 2, 2, 2]


def test_nodes_without_edges_are_dealt_at_random() -> None:
    data = graph(np.zeros((2, 0), np.int64), 40)
    first, again, other = (
        [part.nodes.tolist() for part in Louvain(clients=4).cut(data, seed).parts] for seed in (0, 0, 1)
    )
    assert first == again != other


def test_a_community_goes_where_most_of_its_edges_lead_and_without_any_to_the_smallest() -> None:
    """6 nodes go to the first client and 5, without edges to these, to the second, which is smaller. Two nodes of the
    last three have an edge to node 0 and one has one to node 6: these are two edges to the first client."""
    joined = both_ways(np.array([[11, 12, 13], [0, 0, 6]]))
    links = sp.csr_matrix((np.ones(joined.shape[1]), tuple(joined)), shape=(14, 14))
    assert _pack(links, np.repeat([0, 1, 2], [6, 5, 3]), 2, 1, 14).tolist() == [0] * 6 + [1] * 5 + [0] * 3


def test_holdout_is_the_community_closest_to_an_equal_share() -> None:
    runs = np.repeat([0, 1, 2, 3], [28, 21, 16, 15])
    edges = both_ways(np.stack(np.nonzero(runs[:, None] == runs)))  # n / (P + 1) = 80 / 4 = 20
    data = graph(edges, 80)
    data.y[45] = -1
    cut = Louvain(clients=3, holdout=True).cut(data, 0)
    assert cut.test is not None
    assert cut.test.tolist() == [node for node in range(28, 49) if node != 45]
    held = np.sort(np.concatenate([part.nodes for part in cut.parts]))
    assert held.tolist() == [*range(28), *range(49, 80)]


def test_communities_dealt_in_turn_by_hand() -> None:
    """Shares of 10 of 30 nodes, 8 to 12 with the slack. The community of 13 is chopped into 8 and 5; then 8, 7, 6, 5
    and 4 nodes go to 0, 1, 2, 1 (0 would have 13) and, after it, 2."""
    labels = np.repeat([4, 0, 2, 1], [13, 6, 7, 4])
    part = deal_in_turn(labels, 3, 0.2)
    assert part[:13].tolist() == [0] * 8 + [1] * 5
    assert part[13:].tolist() == [2] * 6 + [1] * 7 + [2] * 4


def test_the_turn_is_after_the_part_that_was_dealt_to_last() -> None:
    """8, 6 and 6 nodes go to 0, 1 and 2, and 5 to 1, since 0 would have 13; so single nodes go to 2, 0, 1, 2 and 0."""
    labels = np.repeat(np.arange(9), [8, 6, 6, 5, 1, 1, 1, 1, 1])
    assert deal_in_turn(labels, 3, 0.2).tolist() == [0] * 8 + [1] * 6 + [2] * 6 + [1] * 5 + [2, 0, 1, 2, 0]


def test_bounds_that_are_whole_numbers_are_reached() -> None:
    """In floating point 10 (1 - .8) is just below 2, and 100 (1 + .15) below 115."""
    assert deal_in_turn(np.repeat(np.arange(10), 2), 2, 0.8).tolist() == [0, 0, 1, 1] * 5
    filled = deal_in_turn(np.repeat(np.arange(4), [80, 60, 35, 25]), 2, 0.15)
    assert filled.tolist() == [0] * 80 + [1] * 60 + [0] * 35 + [1] * 25


def test_a_piece_that_fits_nowhere_goes_to_the_smallest() -> None:
    assert deal_in_turn(np.repeat([0, 1, 2], [5, 4, 4]), 2, 0.1).tolist() == [0] * 5 + [1] * 8


@given(sizes=st.lists(st.integers(1, 30), min_size=1), parts=st.integers(1, 40), slack=st.floats(0, 0.99))
@settings(deadline=None)
def test_every_part_is_dealt_some_node(sizes: list[int], parts: int, slack: float) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    held = np.bincount(deal_in_turn(labels, min(parts, len(labels)), slack), minlength=min(parts, len(labels)))
    assert held.min() >= 1
    assert held.max() <= 2 * math.ceil(len(labels) / min(parts, len(labels)))


def test_slack_beyond_all_nodes_is_that_of_all_nodes() -> None:
    data = Synthetic(nodes=60).load(None, 0)
    wide, boundless = (Louvain(clients=2, slack=slack).cut(data, 0) for slack in (2.0, 1e308))
    assert [part.nodes.tolist() for part in wide.parts] == [part.nodes.tolist() for part in boundless.parts]


def test_what_the_first_in_turn_would_get_is_held_out() -> None:
    data = blocks()
    whole = Louvain(clients=5, packing="in_turn").cut(data, 0)
    held = Louvain(clients=4, packing="in_turn", holdout=True).cut(data, 0)
    assert held.test is not None
    first = whole.parts[0].nodes
    assert held.test.tolist() == first[data.y[first] >= 0].tolist()
    assert [part.nodes.tolist() for part in held.parts] == [part.nodes.tolist() for part in whole.parts[1:]]


def test_dirichlet_is_skewed_when_alpha_is_small_and_even_when_large() -> None:
    data = blocks(nodes=2000, unlabeled=0.0)

    def largest_share(alpha: float) -> float:
        parts = Dirichlet(clients=5, alpha=alpha).cut(data, 0).parts
        table = np.array([np.bincount(data.y[part.nodes], minlength=5) for part in parts])
        return float((table.max(axis=0) / table.sum(axis=0)).mean())

    assert largest_share(0.1) > 0.55
    assert largest_share(1e5) < 0.21


def test_dirichlet_shares_have_the_right_moments() -> None:
    """Shares ~ Dirichlet(a, ..., a) over P clients have mean 1/P and variance (1/P)(1 - 1/P) / (a P + 1)."""
    data = graph(shape("none", 2000), 2000)
    drawn = [Dirichlet(clients=4, alpha=2.0, min_nodes=1).cut(data, seed).parts for seed in range(200)]
    shares = np.array([[(data.y[part.nodes] == 0).mean() * len(part.nodes) / 1000 for part in cut] for cut in drawn])
    assert np.allclose(shares.mean(axis=0), 0.25, atol=0.04)
    assert shares.var() == pytest.approx(0.25 * 0.75 / 9, rel=0.2)


def test_dirichlet_spreads_unlabeled_nodes_evenly() -> None:
    data = blocks(nodes=2000, unlabeled=0.5)
    unlabeled = [(data.y[part.nodes] < 0).sum() for part in Dirichlet(clients=5, alpha=0.1).cut(data, 0).parts]
    assert max(unlabeled) - min(unlabeled) <= 1


def test_dirichlet_guarantees_min_nodes_or_says_how_to_get_them() -> None:
    data = blocks()
    for seed in range(10):
        assert sizes(Dirichlet(clients=10, alpha=0.3, min_nodes=15).cut(data, seed)).min() >= 15
    with refusal("config.draws", "alpha = 0.001", "10", "min_nodes = 30"):
        Dirichlet(clients=10, alpha=0.001, min_nodes=30).cut(data, 0)


@pytest.mark.parametrize("rate", [0.0, 0.6, 0.8, 1.0])
def test_label_skew_sizes_and_major_rate(rate: float) -> None:
    data = blocks(nodes=1000, unlabeled=0.1)
    labelled = int((data.y >= 0).sum())
    cut = LabelSkew(clients=6, majors=2, major_rate=rate, share=0.2, test_nodes=50).cut(data, 0)
    assert cut.test is not None
    assert len(cut.test) == round(0.3 * labelled)
    size = round(0.2 * labelled)
    for part in cut.parts:
        assert len(part.nodes) == size
        val = round(0.2 * size)
        assert part.masks.sum(axis=1).tolist() == [size - val - 50, val, 50]
        counts = np.bincount(data.y[part.nodes], minlength=5)
        majors = np.sort(counts)[-2:] if rate >= 0.6 else np.sort(counts)[:2]
        assert majors.sum() == round(rate * size)


def test_reserved_test_nodes_are_held_by_no_later_client() -> None:
    data = blocks(nodes=1000, unlabeled=0.1)
    skew = LabelSkew(clients=6, majors=2, share=0.4, test_nodes=80, short="fill", rest="all", reserved=True)
    parts = skew.cut(data, 0).parts
    for i, part in enumerate(parts):
        tested = part.nodes[part.masks[2]]
        assert len(tested) == 80
        assert not any(np.isin(tested, later.nodes).any() for later in parts[i + 1 :])
    assert any(
        np.isin(parts[-1].nodes[parts[-1].masks[2]], part.nodes).any() for part in parts[:-1]
    )  # but by earlier ones
    labelled = int((data.y >= 0).sum())
    left = labelled - round(0.3 * labelled) - 5 * 80  # what the last one can choose from
    assert len(parts[-1].nodes) == min(left, round(0.4 * labelled)) == left
    with refusal("config.public-split", "reserved = true", "use_dataset_split"):
        LabelSkew(reserved=True, use_dataset_split=True)


@pytest.mark.parametrize("reserved", [False, True])
def test_exclusive_no_client_trains_on_what_another_validates_or_tests_on(reserved: bool) -> None:
    data = blocks(nodes=1000, unlabeled=0.1)
    skew = LabelSkew(clients=6, majors=2, share=0.4, test_nodes=40, short="fill", rest="all", reserved=reserved)
    alike, alone = skew.cut(data, 0).parts, replace(skew, exclusive=True).cut(data, 0).parts
    judged = np.unique(np.concatenate([part.nodes[part.masks[1:].any(0)] for part in alike]))
    for before, part in zip(alike, alone, strict=True):
        assert (part.nodes == before.nodes).all()
        assert (part.masks[1:] == before.masks[1:]).all()
        train = before.nodes[before.masks[0]]
        assert np.isin(train, judged).any()  # or there would be nothing to leave out
        assert part.nodes[part.masks[0]].tolist() == np.setdiff1d(train, judged).tolist()


def test_label_skew_clients_overlap_and_differ_in_majors() -> None:
    data = blocks(nodes=1000, unlabeled=0.0)
    parts = LabelSkew(clients=8, majors=1, share=0.15, test_nodes=30).cut(data, 0).parts
    assert len({int(np.bincount(data.y[part.nodes]).argmax()) for part in parts}) > 2
    assert len(np.unique(np.concatenate([part.nodes for part in parts]))) < 8 * 150


def test_label_skew_draws_only_majors_with_enough_nodes() -> None:
    y = np.repeat([0, 1, 2], [300, 300, 20])
    data = Dataset("rare", np.zeros((620, 1)), shape("none", 620), y, 3)
    parts = LabelSkew(clients=12, majors=1, major_rate=0.8, share=0.2, test_nodes=10).cut(data, 0).parts
    majors = {int(np.bincount(y[part.nodes]).argmax()) for part in parts}
    assert majors == {0, 1}


@pytest.mark.parametrize(
    ("how", "code", "facts"),
    [
        (Random(clients=401), "config.too-few", ("clients = 401", "400 nodes", "at most 400")),
        (Louvain(clients=401), "config.too-few", ("clients = 401", "at most 400")),
        (Dirichlet(clients=100), "config.too-few", ("clients = 100", "at least 5", "at most 80")),
        (LabelSkew(), "config.no-train", ("test_nodes = 300", "at most")),
        (LabelSkew(majors=2, share=0.6, test_nodes=10), "config.majors", ("majors = 2", "5 labels", "share")),
        (LabelSkew(majors=6, test_nodes=10), "config.majors", ("majors = 6", "5 labels")),
        (LabelSkew(majors=5, test_nodes=10), "config.majors", ("majors = 5", "5 labels")),
    ],
)
def test_impossible_cuts_name_the_remedy(how: Any, code: str, facts: tuple[str, ...]) -> None:
    with refusal(code, *facts):
        how.cut(blocks(), 0)


@pytest.mark.parametrize("wrong", [{"train": 0.9}, {"test": 0.9}, {"val": 0.9}])
def test_ratios_that_sum_to_more_than_1_are_refused(wrong: dict[str, float]) -> None:
    with refusal("config.value", "train = ", "Make the sum at most 1"):
        Dirichlet(**wrong)

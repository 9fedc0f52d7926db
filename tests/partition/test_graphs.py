"""Cuts of collections of small graphs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedweave.datasets.base import Dataset, to_undirected
from fedweave.datasets.check import check
from fedweave.errors import ConfigError
from fedweave.partition import (
    Dirichlet,
    GraphsIID,
    LabelSkew,
    Louvain,
    Parties,
    Perturbed,
    Random,
    Vertical,
    cut,
    statistics,
    totals,
)
from fedweave.partition.client_data import pool_clients
from fedweave.partition.ego_networks import edges_within, labels_of
from tests.refusals import refusal


def collection(graphs: int = 200, classes: int = 2, seed: int = 0, unlabeled: float = 0.0) -> Dataset:
    """Random small graphs in order of class, with labeled nodes and edges."""
    rng = np.random.default_rng(seed)
    graph_of = np.repeat(np.arange(graphs), rng.integers(1, 9, graphs))
    n = len(graph_of)
    pairs = np.stack(np.nonzero(np.triu((graph_of[:, None] == graph_of) & (rng.random((n, n)) < 0.5), 1)))
    edges = to_undirected(pairs, n)
    kinds = (edges.min(0) + edges.max(0)) % 3
    y = np.sort(rng.integers(0, classes, graphs))
    y[rng.random(graphs) < unlabeled] = -1
    x = np.ones((n, 1), np.float32)
    data = Dataset(
        "small",
        x,
        edges,
        y,
        classes,
        graph_of=graph_of,
        node_labels=np.arange(n) % 4,
        edge_labels=kinds.astype(np.int64),
    )
    return check(data, "small")


@pytest.mark.parametrize(
    "partition", [GraphsIID(clients=4), Random(clients=4), Dirichlet(clients=4), Perturbed(clients=7)]
)
def test_clients_hold_whole_graphs_and_each_at_most_one_client(partition: object) -> None:
    data = collection(unlabeled=0.1)
    made = cut(partition, data, 0)
    held = np.concatenate([part.examples for part in made.parts])
    assert len(np.unique(held)) == len(held)
    test = np.zeros(0, int) if made.test is None else made.test
    np.testing.assert_array_equal(np.sort(np.concatenate([held, test])), np.arange(data.examples))
    for part in made.parts:
        np.testing.assert_array_equal(part.nodes, np.flatnonzero(np.isin(data.graph_of, part.examples)))
        assert part.masks.shape == (3, len(part.examples))
        assert part.masks.sum(0).max() <= 1
        assert not part.masks[:, data.y[part.examples] < 0].any()


def test_the_papers_protocol() -> None:
    data = collection()
    made = GraphsIID(clients=10).cut(data, 3)
    assert made.test is not None
    assert len(made.test) == 20
    for part in made.parts:
        assert len(part.examples) == 18
        assert part.masks.sum(1).tolist() == [16, 0, 2]
        labels = [np.bincount(data.y[part.examples[mask]], minlength=2) for mask in part.masks[[0, 2]]]
        assert abs(labels[0][0] / 16 - labels[1][0] / 2) <= 0.5 + 1e-9  # stratified up to one graph
    assert GraphsIID(global_test=0).cut(data, 3).test is None


def test_the_scripts_protocol() -> None:
    data = collection()
    made = GraphsIID(protocol="script", clients=3).cut(data, 3)
    assert made.test is None
    for i, part in enumerate(made.parts):
        assert np.isin(np.arange(50 * i, 50 * i + 50), part.examples).all()
        assert len(part.examples) in (66, 67)
        assert abs(part.masks.sum(1) - np.array([0.8, 0.1, 0.1]) * len(part.examples)).max() < 1
    assert set(data.y[made.parts[0].examples[:50]]) == {0}  # the file is sorted by class
    with refusal("config.too-few", "clients = 5", "200", "50"):
        GraphsIID(protocol="script", clients=5).cut(data, 3)


@pytest.mark.parametrize("protocol", ["paper", "script"])
def test_the_split_may_keep_its_own_seed(protocol: str) -> None:
    data = collection()

    def held(seed: int, **options: object) -> list[list[int]]:
        made = GraphsIID(protocol=protocol, clients=3, **options).cut(data, seed)  # type: ignore[arg-type]
        return [part.examples[part.masks[0]].tolist() for part in made.parts]

    assert held(0) == held(0)
    assert held(0) != held(1)
    assert held(0, split_seed=5) == held(1, split_seed=5) == held(5)


def edges_of(graphs: np.ndarray, edges: np.ndarray, data: Dataset) -> set[tuple[int, int]]:
    inside = np.isin(np.asarray(data.graph_of)[edges[0]], graphs)
    return {(int(a), int(b)) for a, b in edges[:, inside].T if a < b}


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000))
def test_perturbed_flips_edges_of_training_graphs_only(seed: int) -> None:
    data = collection(seed=seed)
    clean, made = GraphsIID(clients=6).cut(data, seed), Perturbed(clients=6, low=2, medium=1).cut(data, seed)
    assert made.names == ("low-0", "low-1", "medium-0", "high-0", "high-1", "high-2")
    for place, (part, own) in enumerate(zip(clean.parts, made.parts, strict=True)):
        np.testing.assert_array_equal(part.examples, own.examples)
        np.testing.assert_array_equal(part.masks, own.masks)
        edges = np.asarray(own.edges)
        np.testing.assert_array_equal(edges, to_undirected(edges, data.nodes))  # sorted, both directions, distinct
        assert (edges[0] != edges[1]).all()
        assert (np.asarray(data.graph_of)[edges[0]] == np.asarray(data.graph_of)[edges[1]]).all()
        trained = part.masks[0]
        rest = part.examples[~trained]
        assert edges_of(rest, edges, data) == edges_of(rest, data.edges, data)
        least, most = [(0.7, 1), (0.7, 1), (0.3, 0.7), (0, 0.3), (0, 0.3), (0, 0.3)][place]
        for graph in part.examples[trained]:
            before, after = (edges_of(np.array([graph]), list_, data) for list_ in (data.edges, edges))
            nodes = int((data.graph_of == graph).sum())
            deleted, added, room = len(before - after), len(after - before), nodes * (nodes - 1) // 2 - len(before)
            assert np.floor(least * len(before)) <= deleted <= np.ceil(most * len(before))
            assert added == min(deleted, room)


def test_added_edges_are_any_pair_alike() -> None:
    """Over many draws each of the pairs that are not edges of a path of 4 comes as often as the others."""
    pairs = np.array([[0, 1, 2], [1, 2, 3]])
    one = Dataset(
        "path", np.ones((4, 1), np.float32), to_undirected(pairs, 4), np.zeros(1, int), 1, graph_of=np.zeros(4, int)
    )
    counts = np.zeros((4, 4))
    for seed in range(600):
        [part] = Perturbed(clients=1, low=0, medium=1, global_test=0, train=1.0, test=0.0).cut(one, seed).parts
        for a, b in np.asarray(part.edges).T:
            counts[a, b] += a < b
    free = np.array([counts[0, 2], counts[0, 3], counts[1, 3]])
    kept = np.array([counts[0, 1], counts[1, 2], counts[2, 3]])
    assert free.sum() + kept.sum() == 3 * 600
    for group in (free, kept):
        assert abs(group - group.mean()).max() < 4.5 * np.sqrt(group.mean())


def test_edges_keep_their_labels_and_new_ones_have_none() -> None:
    data = collection()
    [own] = Perturbed(clients=1, low=0, medium=1, global_test=0).cut(data, 0).parts
    edges = np.asarray(own.edges)
    labels = labels_of(data, edges)
    assert labels is not None
    known = {(int(a), int(b)): int(k) for a, b, k in zip(*data.edges, np.asarray(data.edge_labels), strict=True)}
    assert [known.get((int(a), int(b)), -1) for a, b in edges.T] == labels.tolist()
    assert (labels == -1).any()
    [induced] = edges_within(data, [own.nodes])
    np.testing.assert_array_equal(labels_of(data, own.nodes[induced]), data.edge_labels)


def test_pooled_graphs_are_all_graphs_with_their_edges() -> None:
    data = collection()
    [whole] = pool_clients(GraphsIID(clients=4).cut(data, 0)).parts
    parts = GraphsIID(clients=4).cut(data, 0).parts
    np.testing.assert_array_equal(whole.examples, np.sort(np.concatenate([part.examples for part in parts])))
    np.testing.assert_array_equal(whole.nodes, data.nodes_of(whole.examples))
    assert whole.masks.sum(1).tolist() == sum(part.masks.sum(1) for part in parts).tolist()  # type: ignore[union-attr]
    flipped = Perturbed(clients=4, low=1, medium=1).cut(data, 0)
    [whole] = pool_clients(flipped).parts
    held = np.concatenate([np.asarray(part.edges) for part in flipped.parts], 1)
    np.testing.assert_array_equal(np.asarray(whole.edges), held[:, np.lexsort(held[::-1])])


def test_statistics_count_graphs() -> None:
    data = collection()
    made = Perturbed(clients=4, low=1, medium=1).cut(data, 0)
    columns, whole = statistics(data, made), totals(data, made)
    assert columns["graphs"] == [len(part.examples) for part in made.parts]
    assert columns["nodes"] == [len(part.nodes) for part in made.parts]
    assert [sum(counts) for counts in columns["labels"]] == columns["graphs"]
    flipped = [np.asarray(part.edges).shape[1] // 2 for part in made.parts]
    assert np.add(columns["edges_kept"], columns["edges_added"]).tolist() == flipped
    clean = statistics(data, GraphsIID(clients=4).cut(data, 0))
    assert clean.keys().isdisjoint({"edges_added"})
    assert clean["edges_cut"] == [0, 0, 0, 0]
    lost = np.subtract(clean["edges_kept"], columns["edges_kept"])
    assert columns["edges_cut"] == (2 * lost).tolist()
    assert (whole["graphs"], whole["held"], whole["global_test"]) == (200, 180, 20)


@pytest.mark.parametrize("partition", [Louvain(), LabelSkew(), Vertical(), Parties()])
def test_a_cut_of_nodes_refuses_graphs_and_names_what_fits(partition: object) -> None:
    with refusal("config.examples", "'small'"):
        cut(partition, collection(), 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"train": 0.9, "val": 0.2}, "they sum to 1.2"), ({"low": 8, "medium": 3}, "low = 8: with medium = 3")],
)
def test_impossible_settings_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Perturbed(**options)  # type: ignore[arg-type]

"""Motifs of hand-drawn graphs, their keys, and what does not change them."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms.fairgraphfl.motifs import Motif, Motifs, extract
from fedweave.algorithms.fairgraphfl.vocabulary import top_motifs
from fedweave.errors import DataError
from fedweave.incentives.agent_values import diversity
from tests.refusals import refusal

C, N, O = 6, 7, 8  # noqa: E741


def pairs(*edges: tuple[int, int]) -> np.ndarray:
    return np.array(edges, np.int64).reshape(-1, 2).T


def ring(*vertices: int) -> list[tuple[int, int]]:
    return list(zip(vertices, vertices[1:] + vertices[:1], strict=True))


def of_one(edges: np.ndarray, labels: list[int] | None, **options: Any) -> dict[str, int]:
    vertices = int(edges.max()) + 1 if labels is None else len(labels)
    labelled = None if labels is None else np.array(labels)
    return listed(extract(edges, np.zeros(vertices, np.int64), labelled, **options))


def listed(motifs: Motifs, graph: int = 0) -> dict[str, int]:
    row = motifs.counts[[graph]].toarray().ravel()
    return {str(key): int(count) for key, count in zip(motifs.keys, row, strict=True) if count}


def test_benzene_is_one_ring_of_six_carbons() -> None:
    assert of_one(pairs(*ring(0, 1, 2, 3, 4, 5)), [C] * 6) == {"ring 6 6 6 6 6 6": 1}


def test_fused_rings_are_two_and_the_shared_edge_is_no_bond() -> None:
    naphthalene = [*ring(0, 1, 2, 3, 4, 5), (5, 6), (6, 7), (7, 8), (8, 9), (9, 4)]
    assert of_one(pairs(*naphthalene), [C] * 10) == {"ring 6 6 6 6 6 6": 2}


def test_a_tree_has_bonds_only() -> None:
    ethanol = pairs((0, 1), (1, 2), (0, 3))
    assert of_one(ethanol, [C, C, O, 1]) == {"bond 1 6": 1, "bond 6 6": 1, "bond 6 8": 1}


def test_a_ring_with_a_tail_and_a_bridge_between_rings() -> None:
    edges = [*ring(0, 1, 2), (2, 3), *ring(3, 4, 5, 6), (6, 7)]
    expected = {"bond 6 6": 1, "bond 6 8": 1, "ring 6 6 6": 1, "ring 6 6 6 6": 1}
    assert of_one(pairs(*edges), [C] * 7 + [O]) == expected


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_a_triangle_has_one_key_however_its_labels_stand(order: tuple[int, ...]) -> None:
    assert of_one(pairs((0, 1), (1, 2), (0, 2)), [(C, N, O)[i] for i in order]) == {"ring 6 7 8": 1}


@pytest.mark.parametrize("turn", range(5))
@pytest.mark.parametrize("way", [1, -1])
def test_rotation_and_reflection_do_not_matter_but_order_does(turn: int, way: int) -> None:
    five = np.roll([1, 2, 1, 3, 2], turn)[::way].tolist()
    assert of_one(pairs(*ring(0, 1, 2, 3, 4)), five) == {"ring 1 2 1 2 3": 1}
    assert of_one(pairs(*ring(0, 1, 2, 3, 4)), [1, 1, 2, 2, 3]) == {"ring 1 1 2 2 3": 1}


def test_a_square_with_a_chord_is_two_triangles() -> None:
    assert of_one(pairs(*ring(0, 1, 2, 3), (0, 2)), [1, 2, 3, 4]) == {"ring 1 2 3": 1, "ring 1 3 4": 1}


def test_rings_are_counted_up_to_the_longest_and_their_edges_are_never_bonds() -> None:
    edges = pairs(*ring(*range(8)), *ring(8, *range(9, 15)))
    assert of_one(edges, [C] * 15) == {"ring 6 6 6 6 6 6 6": 1}
    assert of_one(edges, [C] * 15, max_ring=6) == {}
    assert set(of_one(edges, [C] * 15, max_ring=8).values()) == {1}
    assert len(of_one(edges, [C] * 15, max_ring=8)) == 2


def test_unlabeled_graphs_use_the_degree() -> None:
    assert of_one(pairs(*ring(0, 1, 2), (2, 3)), None) == {"bond 1 3": 1, "ring 2 2 3": 1}


def test_edge_labels_tell_bonds_apart() -> None:
    edges, labels = pairs((0, 1), (1, 0), (1, 2), (2, 1)), [C, C, C]
    assert of_one(edges, labels, edge_labels=np.array([1, 1, 2, 2])) == {"bond 6 6 edge 1": 1, "bond 6 6 edge 2": 1}
    assert of_one(edges, labels) == {"bond 6 6": 2}


def test_keys_are_plain_values_alike_in_other_data() -> None:
    here = extract(pairs(*ring(0, 1, 2)), np.zeros(3, np.int64), np.array([3, 1, 2]))
    there = extract(pairs((0, 1), *ring(2, 3, 4)), np.array([0, 0, 1, 1, 1]), np.array([9, 5, 1, 2, 3]))
    assert here.keys == (Motif((1, 2, 3)),)
    assert there.keys == (Motif((5, 9)), Motif((1, 2, 3)))
    assert {type(label) for key in there.keys for label in key.labels} == {int}


def test_graphs_without_vertices_edges_or_both() -> None:
    motifs = extract(pairs((1, 2)), np.array([0, 2, 2, 3]), None)
    assert motifs.counts.toarray().tolist() == [[0], [0], [1], [0]]
    nothing = extract(pairs(), np.empty(0, np.int64), None)
    assert (nothing.keys, nothing.counts.shape) == ((), (0, 0))


def random_graphs(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 30, 40)
    low = np.cumsum(sizes) - sizes
    edges = np.concatenate([at + rng.integers(0, n, (2, 2 * n)) for at, n in zip(low, sizes, strict=True)], axis=1)
    edges = np.unique(np.sort(edges[:, edges[0] != edges[1]], axis=0), axis=1)
    return edges, np.repeat(np.arange(40), sizes), rng.integers(0, 4, sizes.sum()), rng.integers(0, 2, edges.shape[1])


def same(one: Motifs, other: Motifs) -> bool:
    return one.keys == other.keys and np.array_equal(one.counts.toarray(), other.counts.toarray())


@pytest.mark.parametrize("seed", range(5))
def test_order_direction_and_repetition_of_edges_do_not_matter(seed: int) -> None:
    edges, graph_of, labels, edge_labels = random_graphs(seed)
    rng = np.random.default_rng(seed)
    both = np.concatenate([edges, edges[::-1], np.repeat(np.arange(9)[None], 2, 0)], axis=1)  # and some loops
    twice = np.concatenate([edge_labels, edge_labels, np.zeros(9, np.int64)])
    order = rng.permutation(both.shape[1])
    one = extract(edges, graph_of, labels, edge_labels)
    assert same(one, extract(both[:, order], graph_of, labels, twice[order]))


@pytest.mark.parametrize("seed", range(5))
def test_graphs_do_not_see_each_other(seed: int) -> None:
    edges, graph_of, labels, edge_labels = random_graphs(seed)
    together = extract(edges, graph_of, labels, edge_labels)
    for graph in range(40):
        own = graph_of == graph
        low = int(np.argmax(own))
        mine = own[edges[0]]
        alone = extract(edges[:, mine] - low, graph_of[own] * 0, labels[own], edge_labels[mine])
        assert listed(alone) == listed(together, graph)


@pytest.mark.parametrize("seed", range(5))
def test_another_order_of_vertices_keeps_bonds_and_the_number_of_rings_of_each_length(seed: int) -> None:
    edges, graph_of, labels, edge_labels = random_graphs(seed)
    rng = np.random.default_rng(seed)
    order = np.lexsort([rng.random(len(graph_of)), graph_of])  # old vertex at each new place, within its graph
    new = np.argsort(order)
    motifs = extract(edges, graph_of, labels, edge_labels)
    other = extract(new[edges], graph_of, labels[order], edge_labels)
    for graph in range(40):
        assert invariants(listed(motifs, graph)) == invariants(listed(other, graph))


def invariants(counts: dict[str, int]) -> Counter[str]:
    out: Counter[str] = Counter()
    for name, count in counts.items():
        out[name if name.startswith("bond") else f"ring of {len(name.split())}"] += count
    return out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edges": pairs((0, 3))}, "vertices 0 to 3; there are 3"),
        ({"edges": pairs((1, 2))}, "edge 1 - 2 joins graphs 0 and 1"),
        ({"graph_of": np.array([1, 0, 0])}, "graph_of must ascend"),
        ({"labels": np.zeros(2, np.int64)}, "2 labels for 3 vertices"),
        ({"edge_labels": np.zeros(2, np.int64)}, "2 edge labels for 1 edges"),
        ({"edges": pairs((0, 1), (1, 0)), "edge_labels": np.array([1, 2])}, "edge 1 - 0 has two labels"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change: dict[str, np.ndarray], message: str) -> None:
    good = {"edges": pairs((0, 1)), "graph_of": np.array([0, 0, 1]), "labels": np.zeros(3, np.int64)}
    with pytest.raises(DataError, match=message):
        extract(**(good | change))
    with refusal("user.ring", "max_ring is 2"):
        extract(**good, max_ring=2)


@pytest.mark.slow
def test_agents_on_proteins_share_most_of_their_motifs(tu_graphs: Callable[[str], Any]) -> None:
    data = tu_graphs("PROTEINS")
    motifs = extract(data.edges, data.graph_of, data.labels)
    assert motifs.counts.shape == (1113, 152)
    assert motifs.counts.sum() == 39482
    order = np.random.default_rng(0).permutation(1113)[:1000]
    kept = [top_motifs(motifs.counts[graphs]) for graphs in np.array_split(order, 10)]
    for i, own in enumerate(kept):
        for other in kept[:i]:
            assert len(np.intersect1d(own, other)) > 0.5 * min(len(own), len(other))
    holders = np.bincount(np.concatenate(kept), minlength=len(motifs.keys))
    shared = sum(int((holders[own] > 1).sum()) for own in kept)
    assert shared > 0.5 * sum(map(len, kept))
    width = max(map(len, kept))
    listed = np.stack([np.pad(own, (0, width - len(own)), constant_values=-1) for own in kept])
    assert float(diversity(torch.from_numpy(listed)).min()) > 0.25


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "motifs", "bonds", "rings"), [("IMDB-BINARY", 2821, 1, 77758), ("DD", 28094, 2713, 494113)]
)
def test_motifs_of_larger_data_sets(
    tu_graphs: Callable[[str], Any], name: str, motifs: int, bonds: int, rings: int
) -> None:
    data = tu_graphs(name)
    found = extract(data.edges, data.graph_of, data.labels)
    is_bond = np.array([len(key.labels) == 2 for key in found.keys])
    per_motif = found.counts.sum(axis=0)
    assert (len(found.keys), per_motif[is_bond].sum(), per_motif[~is_bond].sum()) == (motifs, bonds, rings)

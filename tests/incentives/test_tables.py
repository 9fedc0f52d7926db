"""Which motifs clients' steps see: of training graphs alone, numbered alike everywhere, of the edges they have."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedweave.algorithms.fairgraphfl.motifs import Motif, Motifs, extract
from fedweave.algorithms.fairgraphfl.vocabulary import INCIDENCE, MOTIF_MEAN, MOTIFS, Vocabulary, motif_hashes
from fedweave.core.graph import TRAIN
from fedweave.datasets import load
from fedweave.datasets.base import Dataset
from fedweave.experiment.graphs import client_graphs
from fedweave.partition.base import Part, Partition
from fedweave.partition.client_data import shares
from fedweave.partition.graphs import GraphsIID, Perturbed
from fedweave.partition.precompute import everywhere
from tests.contract.small_graphs import graphs
from tests.refusals import refusal


def drawn(order: list[int]) -> Dataset:
    """A triangle with a tail, a square and a single bond of two labels, the graphs in any order."""
    shapes = [
        (4, [(0, 1), (1, 2), (2, 0), (2, 3)], [0, 0, 1, 0]),
        (4, [(0, 1), (1, 2), (2, 3), (3, 0)], [0, 1, 0, 1]),
        (2, [(0, 1)], [0, 1]),
    ]
    edges, labels, graph_of = [], [], []
    for at, shape in enumerate(order):
        n, pairs, kinds = shapes[shape]
        edges += [(a + len(labels), b + len(labels)) for a, b in pairs]
        labels += kinds
        graph_of += [at] * n
    both = np.array(edges + [(b, a) for a, b in edges]).T
    x = np.eye(2, dtype=np.float32)[labels]
    y = np.zeros(len(order), np.int64)
    both = both[:, np.lexsort(both[::-1])]
    return Dataset("drawn", x, both, y, 1, graph_of=np.array(graph_of), node_labels=np.array(labels))


ALL = Vocabulary(keep=1.0)
TRIANGLE, SQUARE, BOND = Motif((0, 0, 1)), Motif((0, 1, 0, 1)), Motif((0, 1))


def motifs_of(data: Dataset) -> Motifs:
    return extract(data.edges, np.asarray(data.graph_of), data.node_labels)


def test_who_has_which_motif_by_hand() -> None:
    data = drawn([0, 1, 2])
    made = ALL.of_client(motifs_of(data), np.arange(3), np.array([True, True, True]))
    has = dict(zip(made.arrays[MOTIFS].tolist(), made.matrices[INCIDENCE].toarray().tolist(), strict=True))
    three = motif_hashes([TRIANGLE, SQUARE, BOND])
    assert [has[number] for number in three.tolist()] == [[1, 0, 0], [0, 1, 0], [1, 0, 1]]


def test_graphs_that_are_not_trained_on_are_not_looked_at() -> None:
    data = drawn([0, 1, 2])
    made = ALL.of_client(motifs_of(data), np.arange(3), np.array([False, True, True]))
    assert set(made.arrays[MOTIFS]) == set(motif_hashes([SQUARE, BOND]))
    assert not made.matrices[INCIDENCE].toarray()[:, 0].any()


def test_a_motif_has_one_number_whoever_finds_it() -> None:
    one, other = (motifs_of(drawn(order)) for order in ([0, 2], [1, 0]))
    shared = set(motif_hashes(one.keys)) & set(motif_hashes(other.keys))
    assert shared == set(motif_hashes([TRIANGLE, BOND]))


def test_the_mean_over_graphs_that_have_a_motif() -> None:
    data = drawn([0, 1, 2])
    masks = np.array([[True, True, True], [False] * 3, [False] * 3])
    partition = Partition((Part.of(data, np.arange(3), masks),))
    (graph,) = client_graphs(data, partition, finders=[ALL]).values()
    operator = graph.edges.operator(MOTIF_MEAN)
    assert operator.shape == (32, 32)
    at = graph.precomputed(MOTIFS).tolist().index(motif_hashes([BOND])[0])
    embedded = torch.arange(32.0)[:, None]
    assert (operator @ embedded)[at] == 1  # graphs 0 and 2
    assert (operator @ embedded)[3:].abs().max() == 0


def test_nodes_have_no_motifs() -> None:
    data = replace(drawn([0]), graph_of=None, y=np.zeros(4, np.int64))
    with refusal("config.small-graphs", "drawn"):
        Vocabulary().everywhere(data, Partition((Part.of(data, np.arange(4), np.ones((3, 4), bool)),)))


def test_a_graph_without_motifs_says_so() -> None:
    graph = next(iter(graphs().values()))
    with pytest.raises(ValueError, match="was not precomputed"):
        graph.edges.operator(MOTIF_MEAN)


@pytest.fixture(scope="module")
def proteins(data_root: Path) -> Dataset:
    return load("proteins", path=str(data_root), seed=0)


def known(data: Dataset, partition: object) -> list[set[int]]:
    clients = client_graphs(data, partition, finders=[Vocabulary()])  # type: ignore[arg-type]
    return [set(graph.precomputed(MOTIFS).tolist()) - {-1} for graph in clients.values()]


def test_agents_on_proteins_share_most_of_their_motifs(proteins: Dataset) -> None:
    held = known(proteins, GraphsIID().cut(proteins, 0))
    everything = set.union(*held)
    assert 130 <= len(everything) <= 152  # as many as all graphs together have
    assert all(0.3 <= len(own) / len(everything) <= 0.6 for own in held)
    shared = [sum(any(motif in other for other in held if other is not own) for motif in own) for own in held]
    assert all(with_others > 0.6 * len(own) for with_others, own in zip(shared, held, strict=True))


def test_rewired_clients_have_the_motifs_of_their_own_edges(proteins: Dataset) -> None:
    plain, rewired = known(proteins, GraphsIID().cut(proteins, 0)), known(proteins, Perturbed().cut(proteins, 0))
    moved = [len(own - before) / len(own) for own, before in zip(rewired, plain, strict=True)]
    assert all(moved)
    assert np.mean(moved[:3]) > np.mean(moved[6:])  # low quality, high quality


def test_whole_and_own_extraction_agree(proteins: Dataset) -> None:
    cut = GraphsIID(clients=4).cut(proteins, 1)
    whole = everywhere([Vocabulary()], proteins, cut)
    sizes = whole[0].lists
    for a, own in zip(whole, shares(proteins, cut.parts), strict=True):
        b = Vocabulary().alone(own).pad(sizes)
        assert np.array_equal(a.arrays[MOTIFS], b.arrays[MOTIFS])
        assert sp.csr_matrix(a.matrices[INCIDENCE] != b.matrices[INCIDENCE]).nnz == 0
    assert cut.parts[0].masks[TRAIN].sum() > 200

"""Statistics of a cut, worked by hand."""

from dataclasses import replace

import numpy as np

from fedweave.datasets.base import Dataset, to_undirected
from fedweave.partition import Part, Partition, statistics, totals

# 0 - 1 - 2 - 3 - 4, 1 - 3, and 5 alone
PAIRS = np.array([[0, 1, 2, 3, 1], [1, 2, 3, 4, 3]])
EDGES = np.unique(np.concatenate([PAIRS, PAIRS[::-1]], axis=1), axis=1)
DATA = Dataset("six", np.zeros((6, 1), np.float32), EDGES, np.array([0, 1, 1, -1, 0, 1]), 3)


def part(nodes: list[int], train: int = 0) -> Part:
    masks = np.zeros((3, len(nodes)), bool)
    masks[0, :train] = True
    masks[2, train:] = True
    return Part(np.array(nodes), masks)


def test_disjoint_cut_by_hand() -> None:
    cut = Partition((part([0, 1, 2], 2), part([3, 4, 5], 1)))
    assert statistics(DATA, cut) == {
        "client": [0, 1],
        "nodes": [3, 3],
        "edges_kept": [2, 1],
        "edges_cut": [2, 2],
        "train": [2, 1],
        "val": [0, 0],
        "test": [1, 2],
        "labels": [[1, 2, 0], [1, 1, 0]],
    }
    assert totals(DATA, cut) == {"nodes": 6, "held": 6, "global_test": 0, "edges": 5, "edges_kept": 3, "edges_lost": 2}


def test_edges_that_are_counted_in_pieces() -> None:
    """A path of so many nodes, cut in the middle, that its edges are counted in pieces."""
    n = 600_000
    edges = to_undirected(np.stack([np.arange(n - 1), np.arange(1, n)]), n)
    data = Dataset("path", np.zeros((n, 1), np.float32), edges, np.zeros(n, np.int64), 1)
    cut = Partition((part([*range(n // 2)]), part([*range(n // 2, n)])))
    columns, whole = statistics(data, cut), totals(data, cut)
    assert (columns["edges_kept"], columns["edges_cut"]) == ([n // 2 - 1] * 2, [1, 1])
    assert (whole["edges_kept"], whole["edges_lost"]) == (n - 2, 1)


def test_overlapping_cut_with_global_test_by_hand() -> None:
    cut = Partition((part([1, 2, 3]), part([1, 3, 5])), np.array([0, 4]))
    columns = statistics(DATA, cut)
    assert columns["edges_kept"] == [3, 1]
    assert columns["edges_cut"] == [2, 4]
    assert columns["labels"] == [[0, 2, 0], [0, 2, 0]]
    whole = totals(DATA, cut)
    assert (whole["held"], whole["global_test"], whole["edges_kept"], whole["edges_lost"]) == (4, 2, 3, 2)


def test_labels_are_counted_where_they_are_seen() -> None:
    blind = replace(part([0, 1]), labels=False)
    assert statistics(DATA, Partition((part([0, 1]), blind)))["labels"][1] == [0, 0, 0]


def test_without_edges() -> None:
    bare = Dataset("bare", DATA.x, np.zeros((2, 0), np.int64), DATA.y, 3)
    cut = Partition((part([0, 1]), part([2, 3, 4, 5])))
    assert statistics(bare, cut)["edges_cut"] == [0, 0]
    assert totals(bare, cut)["edges_lost"] == 0

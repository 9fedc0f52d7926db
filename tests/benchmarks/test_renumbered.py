"""`benchmarks.renumbered`: edges between other nodes than the features and labels are of."""

from pathlib import Path

import numpy as np

from benchmarks.renumbered import METHODS, cells, homophily, renumber
from fedweave.datasets.base import Dataset


def test_nodes_are_numbered_as_the_list_of_edges_first_names_them() -> None:
    """By hand: sorted, the list is 0-2, 1-2, 2-0, 2-1 and names 0, 2 and 1. So 1 and 2 change places in it, and node 3,
    which has no edge, keeps its own."""
    edges = np.array([[2, 0, 1, 2], [1, 2, 2, 0]])
    data = Dataset("small", np.eye(4, dtype=np.float32), edges, np.array([0, 1, 0, 1]), 2)
    found = renumber(data)
    assert found.edges.T.tolist() == [[0, 1], [1, 0], [1, 2], [2, 1]]
    assert found.y.tolist() == data.y.tolist()
    assert (homophily(data), homophily(found)) == (0.5, 0.0)


def test_each_method_stands_on_both_graphs_with_the_papers_number_beside() -> None:
    found = cells("cora", Path("/nowhere/cora.npz"))
    assert [cell.row for cell in found[:2]] == ["Local Only, renumbered", "Local Only, own edges"]
    assert len(found) == 2 * 2 * len(METHODS)
    for other, own in zip(found[::2], found[1::2], strict=True):
        assert other.document | {"data": own.document["data"]} == own.document
        assert other.document["data"]["path"] == "/nowhere/cora.npz"
        assert other.document["partition"]["packing"] == "in_turn"
        assert other.paper == own.paper

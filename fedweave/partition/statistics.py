"""What a cut did to a dataset: sizes, edges kept and lost, label distributions."""

from typing import Any

import numpy as np
import scipy.sparse as sp

from fedweave.core.graph import TEST
from fedweave.datasets.base import Dataset
from fedweave.partition.base import Partition


def statistics(data: Dataset, partition: Partition) -> dict[str, list[Any]]:
    """Columns with one entry per client.

    client: number; nodes: held; edges_kept: undirected edges that the client sees; edges_cut: own nodes' ends of the
    dataset's edges that it does not see (an edge to a node that it does not hold has one such end, an edge between own
    nodes that a vertical cut withholds has two); train, val, test: mask sizes; labels: list of c counts of the
    nodes whose label it sees. Where clients hold only some feature columns, features: how many. Where the data has a
    sensitive attribute, groups: list of counts of the nodes of each value; test_groups: of its test nodes;
    test_groups_class1: of its test nodes of class 1.
    """
    parts = partition.parts
    holders = _holders(data, partition)
    kept = np.asarray(_seen(data, partition, holders).sum(axis=0)).ravel()
    degree = holders.T @ np.bincount(data.edges[0], minlength=data.nodes)
    masks = np.array([part.masks.sum(axis=1) for part in parts]).reshape(-1, 3)
    known = np.flatnonzero(data.y >= 0)
    ones = np.ones(len(known), dtype=np.int64)
    onehot = sp.csr_matrix((ones, (known, data.y[known])), shape=(data.nodes, data.classes))
    widths = [data.features if part.columns is None else len(part.columns) for part in parts]
    return {
        "client": list(range(len(parts))),
        "nodes": [len(part.nodes) for part in parts],
        "edges_kept": kept.tolist(),
        "edges_cut": (degree - 2 * kept).tolist(),
        "train": masks[:, 0].tolist(),
        "val": masks[:, 1].tolist(),
        "test": masks[:, 2].tolist(),
        "labels": ((holders.T @ onehot).toarray() * np.array([[part.labels] for part in parts])).tolist(),
        **({"features": widths} if any(part.columns is not None for part in parts) else {}),
        **({} if data.sens is None else _groups(data, partition)),
    }


def totals(data: Dataset, partition: Partition) -> dict[str, int]:
    """Numbers of the whole cut.

    nodes, edges (undirected): the dataset's; held: nodes with at least one client; global_test: nodes of the global
    test set; edges_kept: undirected edges that at least one client sees; edges_lost: those that no client does.
    Where the data has a sensitive attribute, without_sp: clients that have no test node of some group, so that
    statistical parity is not defined there; without_eo: no test node of class 1 of some group (equal opportunity).
    """
    holders = _holders(data, partition)
    seen = int(np.count_nonzero(np.diff(_seen(data, partition, holders).indptr)))
    edges = data.edges.shape[1] // 2
    return {
        "nodes": data.nodes,
        "held": int(np.count_nonzero(np.diff(holders.indptr))),
        "global_test": 0 if partition.test is None else len(partition.test),
        "edges": edges,
        "edges_kept": seen,
        "edges_lost": edges - seen,
        **({} if data.sens is None else _without(_groups(data, partition))),
    }


def _groups(data: Dataset, partition: Partition) -> dict[str, list[list[int]]]:
    """The columns about the sensitive attribute, one entry per client."""
    sens = np.asarray(data.sens)
    many = max(2, int(sens.max(initial=-1)) + 1)

    def counted(nodes: np.ndarray) -> list[int]:
        return np.bincount(sens[nodes][sens[nodes] >= 0], minlength=many).tolist()

    tested = [part.nodes[part.masks[TEST]] for part in partition.parts]
    return {
        "groups": [counted(part.nodes) for part in partition.parts],
        "test_groups": [counted(nodes) for nodes in tested],
        "test_groups_class1": [counted(nodes[data.y[nodes] == 1]) for nodes in tested],
    }


def _without(columns: dict[str, list[list[int]]]) -> dict[str, int]:
    names = {"without_sp": "test_groups", "without_eo": "test_groups_class1"}
    return {name: sum(min(counts) == 0 for counts in columns[of]) for name, of in names.items()}


def _holders(data: Dataset, partition: Partition) -> sp.csr_matrix:
    """int64 [n, P]: 1 where the client holds the node."""
    sizes = [len(part.nodes) for part in partition.parts]
    nodes = np.concatenate([part.nodes for part in partition.parts])
    clients = np.repeat(np.arange(len(sizes)), sizes)
    return sp.csr_matrix((np.ones(len(nodes), dtype=np.int64), (nodes, clients)), shape=(data.nodes, len(sizes)))


def _seen(data: Dataset, partition: Partition, holders: sp.csr_matrix) -> sp.csr_matrix:
    """int64 [undirected edges, P]: 1 where the client holds both ends and, in a vertical cut, the edge."""
    first, second = data.edges[:, data.edges[0] < data.edges[1]]
    common = holders[first].multiply(holders[second]).tocsr()
    if all(part.edges is None for part in partition.parts):
        return common
    codes = first * data.nodes + second
    own = [
        np.ones(len(codes), bool) if part.edges is None else np.isin(codes, part.edges[0] * data.nodes + part.edges[1])
        for part in partition.parts
    ]
    seen = common.multiply(np.stack(own, 1)).tocsr()
    seen.eliminate_zeros()
    return seen

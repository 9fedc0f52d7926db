"""What a cut did to a dataset: sizes, edges kept and lost, label distributions."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp

from fedweave.core.graph import TEST
from fedweave.datasets.base import Dataset

MOST = 20  # clients that a summary shows
SHOWN = (
    "client",
    "graphs",
    "examples",
    "nodes",
    "features",
    "edges_kept",
    "edges_cut",
    "edges_added",
    "train",
    "val",
    "test",
)
_COUNTED = {"graph": "graphs", "edge": "examples"}  # what examples that are no nodes are called in columns
SHARED = {"overlap": "nodes", "overlap_links": "links"}  # columns, and the partition's matrices that they are means of


class Cut(Protocol):
    """What is looked at of a `base.Partition`."""

    @property
    def parts(self) -> Sequence[Any]:
        """A `base.Part` for each client."""
        ...

    @property
    def test(self) -> np.ndarray | None:
        """Examples of the global test set."""
        ...

    @property
    def pairs(self) -> Mapping[str, np.ndarray]:
        """What is known of every two clients."""
        ...


def statistics(data: Dataset, partition: Cut) -> dict[str, list[Any]]:
    """Columns with one entry per client.

    client: number; nodes: held; edges_kept: undirected edges of the dataset that the client sees; edges_cut: own nodes'
    ends of the dataset's edges that it does not see (an edge to a node that it does not hold has one such end, an edge
    between own nodes that a vertical cut withholds has two); train, val, test: mask sizes; labels: list of c counts of
    the examples whose label it sees. Only where there are such: graphs: small graphs held; examples: edges held, where
    these are the examples; features: feature columns
    held, of some; edges_added: undirected edges that it sees and the dataset does not have; overlap, overlap_links: the
    mean share of its nodes and links that another client has too, where the partition says so. Where the data has a
    sensitive attribute, groups: list of counts of the examples of each value; test_groups: of its test examples;
    test_groups_class1: of its test examples of class 1.
    """
    parts = partition.parts
    holders = _holders([part.nodes for part in parts], data.nodes)
    kept = np.asarray(_seen(data, partition, holders).sum(axis=0)).ravel()
    own = np.array([kept[i] if part.edges is None else part.edges.shape[1] // 2 for i, part in enumerate(parts)])
    degree = holders.T @ np.bincount(data.edges[0], minlength=data.nodes)
    masks = np.array([part.masks.sum(axis=1) for part in parts]).reshape(-1, 3)
    known = np.flatnonzero(data.y >= 0)
    ones = np.ones(len(known), dtype=np.int64)
    onehot = sp.csr_matrix((ones, (known, data.y[known])), shape=(data.examples, data.classes))
    examples = _holders([part.examples for part in parts], data.examples)
    vertical = any(part.columns is not None for part in parts)  # no edge leads to another client then
    widths = [data.features if part.columns is None else len(part.columns) for part in parts]
    return {
        "client": list(range(len(parts))),
        **({} if data.example == "node" else {_COUNTED[data.example]: [len(part.examples) for part in parts]}),
        "nodes": [len(part.nodes) for part in parts],
        "edges_kept": kept.tolist(),
        "edges_cut": [0] * len(parts) if vertical else (degree - 2 * kept).tolist(),
        "train": masks[:, 0].tolist(),
        "val": masks[:, 1].tolist(),
        "test": masks[:, 2].tolist(),
        "labels": ((examples.T @ onehot).toarray() * np.array([[part.labels] for part in parts])).tolist(),
        **({"features": widths} if vertical else {}),
        **({"edges_added": (own - kept).tolist()} if (own > kept).any() else {}),
        **{name: realised(partition.pairs[of]).tolist() for name, of in SHARED.items() if of in partition.pairs},
        **({} if data.sens is None else _groups(data, partition)),
    }


def totals(data: Dataset, partition: Cut) -> dict[str, int]:
    """Numbers of the whole cut.

    nodes, edges (undirected), graphs or examples (where small graphs or edges are these): the dataset's; held: examples
    with at least one client; global_test: examples of the global test set; edges_kept: undirected edges that at least
    one client sees;
    edges_lost: those that no client does.
    Where the data has a sensitive attribute, without_sp: clients that have no test example of one of the first two
    groups, so that statistical parity is not defined there; without_eo: none of class 1 of one (equal opportunity).
    """
    parts = partition.parts
    holders = _holders([part.nodes for part in parts], data.nodes)
    seen = int(np.count_nonzero(np.diff(_seen(data, partition, holders).indptr)))
    edges = data.edges.shape[1] // 2
    return {
        "nodes": data.nodes,
        **({} if data.example == "node" else {_COUNTED[data.example]: data.examples}),
        "held": len(np.unique(np.concatenate([part.examples for part in parts]))),
        "global_test": 0 if partition.test is None else len(partition.test),
        "edges": edges,
        "edges_kept": seen,
        "edges_lost": edges - seen,
        **({} if data.sens is None else _without(_groups(data, partition))),
    }


def realised(pairs: np.ndarray) -> np.ndarray:
    """𝐍_i (FairGFL, eq. 8) of every client, float64 [P], from N or T [P, P]."""
    result: np.ndarray = pairs.sum(1) / max(len(pairs) - 1, 1)
    return result


def summary(columns: Mapping[str, Sequence[Any]], whole: Mapping[str, int], classes: Sequence[str] = ()) -> str:
    """The results of `statistics` and `totals` as plain text: a line per client, `MOST` at most, then the mean."""
    shown = [name for name in SHOWN if name in columns]
    clients = len(columns["client"])
    rows = [[*(name.replace("_", " ") for name in shown), *(classes or _numbered(columns["labels"]))]]
    for at in range(min(clients, MOST)):
        rows.append([_text(columns[name][at]) for name in shown] + [str(count) for count in columns["labels"][at]])
    if clients > MOST:
        means = [f"{np.mean(columns[name]):.1f}" for name in shown[1:]]
        rows.append(["mean", *means, *(f"{count:.1f}" for count in np.mean(columns["labels"], axis=0))])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lost = f"{whole['edges_lost']:,} of {whole['edges']:,} edges lost to all clients"
    tested = f"; {whole['global_test']:,} {'graphs' if 'graphs' in whole else 'nodes'} in the global test"
    first = f"the first {MOST} of {clients:,} clients, and the mean of all; " if clients > MOST else ""
    return "\n".join([*lines, first + lost + (tested if whole["global_test"] else "")])


def _numbered(labels: Sequence[Sequence[int]]) -> list[str]:
    return [f"class {at}" for at in range(len(labels[0]))]


def _text(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _groups(data: Dataset, partition: Cut) -> dict[str, list[list[int]]]:
    """The columns about the sensitive attribute, one entry per client."""
    sens = np.asarray(data.sens)
    many = max(2, int(sens.max(initial=-1)) + 1)

    def counted(examples: np.ndarray) -> list[int]:
        result: list[int] = np.bincount(sens[examples][sens[examples] >= 0], minlength=many).tolist()
        return result

    tested = [part.examples[part.masks[TEST]] for part in partition.parts]
    return {
        "groups": [counted(part.examples) for part in partition.parts],
        "test_groups": [counted(examples) for examples in tested],
        "test_groups_class1": [counted(examples[data.y[examples] == 1]) for examples in tested],
    }


def _without(columns: dict[str, list[list[int]]]) -> dict[str, int]:
    names = {"without_sp": "test_groups", "without_eo": "test_groups_class1"}
    return {name: sum(min(counts[:2]) == 0 for counts in columns[of]) for name, of in names.items()}


def _holders(held: list[np.ndarray], count: int) -> sp.csr_matrix:
    """int64 [count, P]: 1 where one of `count` nodes or examples is among those that the client holds."""
    clients = np.repeat(np.arange(len(held)), [len(own) for own in held])
    ones = np.ones(len(clients), dtype=np.int64)
    return sp.csr_matrix((ones, (np.concatenate(held), clients)), shape=(count, len(held)))


def _seen(data: Dataset, partition: Cut, holders: sp.csr_matrix) -> sp.csr_matrix:
    """int64 [undirected edges, P]: 1 where the client has the edge: its own, or those with both ends at it."""
    first, second = data.edges[:, data.edges[0] < data.edges[1]]
    if all(part.edges is None for part in partition.parts):
        return holders[first].multiply(holders[second]).tocsr()
    codes = first * data.nodes + second  # rising
    rows = []
    for client, part in enumerate(partition.parts):
        if part.edges is None:
            own = holders[:, [client]].toarray().ravel()
            rows.append(np.flatnonzero(own[first] & own[second]))
        else:
            own = np.sort((part.edges[0] * data.nodes + part.edges[1])[part.edges[0] < part.edges[1]])
            at = np.searchsorted(codes, own).clip(max=max(len(codes) - 1, 0))
            rows.append(at[codes[at] == own] if len(codes) else at[:0])
    return _holders(rows, len(codes))

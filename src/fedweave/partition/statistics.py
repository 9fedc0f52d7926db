"""The effect of a partition on a dataset: sizes, edges kept and lost, label distributions, by client and as a whole."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp

from fedweave.core.graph import TEST
from fedweave.core.target import CLASS, LABELS, NUMBER, where_known
from fedweave.datasets.base import Dataset

MAX_CLIENTS = 20  # that a summary shows
_AT_ONCE = 1 << 20  # edges
SUMMARY_COLUMNS = (
    "client",
    "graphs",
    "examples",
    "nodes",
    "features",
    "edges_kept",
    "edges_cut",
    "edges_added",
    "shared_nodes",
    "train",
    "val",
    "test",
)
_NOUNS = {"graph": "graphs", "edge": "examples"}  # columns that count examples, where these are not nodes
_OVERLAPS = {"overlap": "nodes", "overlap_links": "links"}  # columns, and the partition's matrices whose means they are


class Cut(Protocol):
    """The fields of a `base.Partition` that statistics read."""

    @property
    def parts(self) -> Sequence[Any]:
        """A `base.Part` for each client."""

    @property
    def test(self) -> np.ndarray | None:
        """Examples of the global test set."""

    @property
    def pairs(self) -> Mapping[str, np.ndarray]:
        """Facts about every two clients."""


def statistics(data: Dataset, partition: Cut) -> dict[str, list[Any]]:
    """Columns with one entry per client.

    client: number; nodes: of the client; edges_kept: undirected edges of the dataset that the client has; edges_cut:
    ends, at its nodes, of the dataset's edges that it does not have (an edge to another client's node has one such end,
    an edge between its nodes that a vertical partition withholds has two); train, val, test: mask sizes; labels: list
    of c counts of the examples whose label it sees (several labels: of the labels that are 1; numbers: of the known
    ones).

    Only where they apply: means, deviations: lists of t, of the numbers; graphs: small graphs; examples: edges, where
    these are the examples; features: feature columns, if not all; edges_added: undirected edges that it has and the
    dataset does not; shared_nodes: nodes that another client has too, where edges are the examples; overlap,
    overlap_links: the mean share of its nodes and links that another client has too, where the partition states it.
    With a sensitive attribute, groups: list of counts of the examples of each value; test_groups: of its test examples;
    test_groups_class1: of its test examples of class 1.
    """
    parts = partition.parts
    holders = incidence([part.nodes for part in parts], data.nodes)  # [n, P]
    inner_edges = np.zeros(len(parts), np.int64)
    for of_piece in _edge_holders(data, partition, holders):
        inner_edges += np.asarray(of_piece.sum(axis=0)).ravel()
    masks = np.array([part.masks.sum(axis=1) for part in parts]).reshape(-1, 3)  # [P, 3]
    columns: dict[str, list[Any]] = {"client": list(range(len(parts)))}
    if data.example != "node":
        columns[_NOUNS[data.example]] = [len(part.examples) for part in parts]
    columns["nodes"] = [len(part.nodes) for part in parts]
    columns["edges_kept"] = inner_edges.tolist()
    vertical = any(part.columns is not None for part in parts)
    if vertical:  # all clients have the same nodes: no edge leads to another client
        columns["edges_cut"] = [0] * len(parts)
    else:
        degree = holders.T @ np.bincount(data.edges[0], minlength=data.nodes)  # [P]
        columns["edges_cut"] = (degree - 2 * inner_edges).tolist()
    columns["train"] = masks[:, 0].tolist()
    columns["val"] = masks[:, 1].tolist()
    columns["test"] = masks[:, 2].tolist()
    columns["labels"] = _label_counts(data, parts)
    if data.target == NUMBER:
        columns |= _moments(data, parts)
    if vertical:
        columns["features"] = [data.features if part.columns is None else len(part.columns) for part in parts]
    client_edges = inner_edges.copy()
    for client, part in enumerate(parts):
        if part.edges is not None:
            client_edges[client] = part.edges.shape[1] // 2
    if (client_edges > inner_edges).any():
        columns["edges_added"] = (client_edges - inner_edges).tolist()
    if data.example == "edge":
        shared = (np.diff(holders.indptr) > 1).astype(np.int64)  # [n]
        if shared.any():
            columns["shared_nodes"] = (holders.T @ shared).tolist()
    for name, matrix in _OVERLAPS.items():
        if matrix in partition.pairs:
            columns[name] = mean_overlap(partition.pairs[matrix]).tolist()
    if data.sensitive is not None:
        columns |= _group_counts(data, partition)
    return columns


def _label_counts(data: Dataset, parts: Sequence[Any]) -> list[list[int]]:
    """The counts of each client's examples by class, of each label that is 1, or of each known number."""
    if data.target == CLASS:
        rows = np.flatnonzero(data.has_label)
        targets = data.y[rows]
    else:
        rows, targets = np.nonzero(data.y == 1 if data.target == LABELS else where_known(data.y))
    ones = np.ones(len(rows), np.int64)
    labels = sp.csr_matrix((ones, (rows, targets)), shape=(data.examples, data.outputs))
    holders = incidence([part.examples for part in parts], data.examples)
    sees_labels = np.array([[part.labels] for part in parts])  # [P, 1]
    counts: list[list[int]] = ((holders.T @ labels).toarray() * sees_labels).tolist()
    return counts


def _moments(data: Dataset, parts: Sequence[Any]) -> dict[str, list[Any]]:
    """The mean and the deviation of each number over the examples of each client, NaN where it knows none."""
    moments: dict[str, list[Any]] = {"means": [], "deviations": []}
    for part in parts:
        y = data.y[part.examples] if part.labels else data.y[:0]
        known = where_known(y)
        count = np.where(known.any(0), known.sum(0), np.nan)
        mean = np.where(known, y, 0).sum(0) / count
        moments["means"].append(mean.tolist())
        moments["deviations"].append(np.sqrt((np.where(known, y - mean, 0) ** 2).sum(0) / count).tolist())
    return moments


def _group_counts(data: Dataset, partition: Cut) -> dict[str, list[list[int]]]:
    """The columns for the sensitive attribute, one entry per client."""
    sensitive = np.asarray(data.sensitive)
    groups = max(2, int(sensitive.max(initial=-1)) + 1)

    def counts(examples: np.ndarray) -> list[int]:
        values = sensitive[examples]
        result: list[int] = np.bincount(values[values >= 0], minlength=groups).tolist()
        return result

    test_examples = [part.examples[part.masks[TEST]] for part in partition.parts]
    columns = {
        "groups": [counts(part.examples) for part in partition.parts],
        "test_groups": [counts(examples) for examples in test_examples],
    }
    if data.target == CLASS:
        columns["test_groups_class1"] = [counts(examples[data.y[examples] == 1]) for examples in test_examples]
    return columns


def totals(data: Dataset, partition: Cut) -> dict[str, int]:
    """Numbers of the whole partition.

    nodes, edges (undirected), graphs or examples (where small graphs or edges are these): the dataset's; held: examples
    with at least one client; global_test: examples of the global test set; edges_kept: undirected edges that at least
    one client has; edges_lost: all other edges.
    Where the data has a sensitive attribute, without_sp: clients that have no test example of one of the first two
    groups, so that statistical parity is not defined there; without_eo: none of class 1 of one (equal opportunity).
    """
    parts = partition.parts
    holders = incidence([part.nodes for part in parts], data.nodes)
    inner_edges = 0
    for of_piece in _edge_holders(data, partition, holders):
        inner_edges += int(np.count_nonzero(np.diff(of_piece.indptr)))
    edges = data.edges.shape[1] // 2
    numbers = {"nodes": data.nodes}
    if data.example != "node":
        numbers[_NOUNS[data.example]] = data.examples
    numbers["held"] = len(np.unique(np.concatenate([part.examples for part in parts])))
    numbers["global_test"] = 0 if partition.test is None else len(partition.test)
    numbers["edges"] = edges
    numbers["edges_kept"] = inner_edges
    numbers["edges_lost"] = edges - inner_edges
    if data.sensitive is not None:
        columns = _group_counts(data, partition)
        for name, column in (("without_sp", "test_groups"), ("without_eo", "test_groups_class1")):
            if column in columns:
                numbers[name] = sum(min(counts[:2]) == 0 for counts in columns[column])
    return numbers


def mean_overlap(pairs: np.ndarray) -> np.ndarray:
    """𝐍_i (FairGFL, eq. 8) of every client, float64 [P], from N or T [P, P]."""
    return np.asarray(pairs.sum(1) / max(len(pairs) - 1, 1))


def incidence(numbers: list[np.ndarray], count: int) -> sp.csr_matrix:
    """int64 [count, P]: 1 where `numbers` of the client has that one of `count` nodes, edges or examples."""
    clients = np.repeat(np.arange(len(numbers)), [len(one) for one in numbers])
    ones = np.ones(len(clients), dtype=np.int64)
    return sp.csr_matrix((ones, (np.concatenate(numbers), clients)), shape=(count, len(numbers)))


def _edge_holders(data: Dataset, partition: Cut, holders: sp.csr_matrix) -> Iterator[sp.csr_matrix]:
    """int64 [m, P] for each block of undirected edges: 1 where the client has the edge: in its list of edges,
    or, without a list, by both of its ends."""
    if all(part.edges is None for part in partition.parts):
        for begin in range(0, data.edges.shape[1], _AT_ONCE):  # matrices of all edges would be the peak of memory
            edges = data.edges[:, begin : begin + _AT_ONCE]
            first, second = edges[:, edges[0] < edges[1]]
            yield holders[first].multiply(holders[second]).tocsr()
        return
    first, second = data.edges[:, data.edges[0] < data.edges[1]]
    codes = first * data.nodes + second  # rising
    rows = []
    for client, part in enumerate(partition.parts):
        if part.edges is None:
            present = holders[:, [client]].toarray().ravel()
            rows.append(np.flatnonzero(present[first] & present[second]))
        else:
            tails, heads = part.edges[:, part.edges[0] < part.edges[1]]
            client_codes = np.sort(tails * data.nodes + heads)
            at = np.searchsorted(codes, client_codes).clip(max=max(len(codes) - 1, 0))
            # edges that the dataset does not have are left out
            rows.append(at[codes[at] == client_codes] if len(codes) else at[:0])
    yield incidence(rows, len(codes))


def summary(columns: Mapping[str, Sequence[Any]], whole: Mapping[str, int], classes: Sequence[str] = ()) -> str:
    """The results of `statistics` and `totals` as plain text: a line per client, `MAX_CLIENTS` at most, then the mean.

    classes: names of the classes, or of other targets.
    """
    names = [name for name in SUMMARY_COLUMNS if name in columns]
    clients = len(columns["client"])
    targets = classes or [f"class {at}" for at in range(len(columns["labels"][0]))]
    rows = [[*(name.replace("_", " ") for name in names), *targets]]
    for at in range(min(clients, MAX_CLIENTS)):
        values = [columns[name][at] for name in names]
        texts = [f"{value:.3f}" if isinstance(value, float) else str(value) for value in values]
        rows.append(texts + target_cells(columns, at))
    if clients > MAX_CLIENTS:
        means = [f"{np.mean(columns[name]):.1f}" for name in names[1:]]
        rows.append(["mean", *means, *mean_cells(columns)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        lines.append("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    last = f"{whole['edges_lost']:,} of {whole['edges']:,} edges lost to all clients"
    if clients > MAX_CLIENTS:
        last = f"the first {MAX_CLIENTS} of {clients:,} clients, and the mean of all; {last}"
    if whole["global_test"]:
        last += f"; {whole['global_test']:,} {'graphs' if 'graphs' in whole else 'nodes'} in the global test"
    return "\n".join([*lines, last])


def target_cells(columns: Mapping[str, Sequence[Any]], at: int) -> list[str]:
    """A client's cell for each class or label, their count, or for each number, its mean ± deviation."""
    if "means" not in columns:
        return [str(count) for count in columns["labels"][at]]
    pairs = zip(columns["means"][at], columns["deviations"][at], strict=True)
    return ["-" if np.isnan(mean) else f"{mean:.3g} ± {deviation:.3g}" for mean, deviation in pairs]


def mean_cells(columns: Mapping[str, Sequence[Any]]) -> list[str]:
    """The mean over all clients of each count of `target_cells`; empty for numbers, whose mean it would not be."""
    if "means" in columns:
        return [""] * len(columns["labels"][0])
    return [f"{count:.1f}" for count in np.mean(columns["labels"], axis=0)]

"""The one client that holds what all clients of a partition hold."""

import numpy as np

from fedweave.datasets.base import Dataset
from fedweave.datasets.edges import distinct
from fedweave.partition.base import Part, Partition, client_ids
from fedweave.partition.ego_networks import edges_among


def pooled(partition: Partition, data: Dataset | None = None) -> Partition:
    """The union of all clients as one client, with the edges between them; where edges are the examples, those between
    clients, which `data` says, are in no split.

    An example that clients use differently counts as test if any of them tests on it, else as validation if any does.
    Of a vertical cut: all columns, the labels, and the union of the clients' own edges; its parties hold the same
    examples, and are no members of the union, each of which is judged on its own.
    """
    parts = partition.parts
    nodes = distinct(np.concatenate([part.nodes for part in parts]))
    examples = distinct(np.concatenate([part.examples for part in parts]))
    if of_edges := data is not None and data.example == "edge":
        examples = edges_among(data, [nodes])[0]
    masks = np.zeros((3, len(examples)), bool)
    for part in parts:
        masks[:, np.searchsorted(examples, part.examples)] |= part.masks
    train, val, test = masks
    masks = np.stack([train & ~val & ~test, val & ~test, test])
    columns = _union([part.columns for part in parts])
    codes = _union([part.edges if part.edges is None else part.edges[0] << 32 | part.edges[1] for part in parts])
    edges = None if codes is None else np.stack([codes >> 32, codes & 0xFFFFFFFF])
    graphs = _union([part.graphs for part in parts])
    labels, carried = any(part.labels for part in parts), examples if of_edges else None
    whole = Part(nodes, masks, columns, edges, labels, graphs, carried, parts[0].until)
    own = () if columns is not None else zip(client_ids(len(parts), partition.names), parts, strict=True)
    members = {name: np.searchsorted(examples, part.examples) for name, part in own}
    return Partition((whole,), partition.test, judged=partition.judged, held=partition.held, members=members)


def _union(held: list[np.ndarray | None]) -> np.ndarray | None:
    """All different numbers, sorted; None, which stands for everything, if any is None."""
    some = [numbers for numbers in held if numbers is not None]
    return distinct(np.concatenate(some)) if len(some) == len(held) else None

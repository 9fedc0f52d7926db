"""The one client that holds what all clients of a partition hold."""

import numpy as np

from fedweave.datasets.edges import distinct
from fedweave.partition.base import Part, Partition, client_ids


def pooled(partition: Partition) -> Partition:
    """The union of all clients as one client, with the edges between them.

    An example that clients use differently counts as test if any of them tests on it, else as validation if any does.
    Of a vertical cut: all columns, the labels, and the union of the clients' own edges; its parties hold the same
    examples, and are no members of the union, each of which is judged on its own.
    """
    parts = partition.parts
    examples = distinct(np.concatenate([part.examples for part in parts]))
    masks = np.zeros((3, len(examples)), bool)
    for part in parts:
        masks[:, np.searchsorted(examples, part.examples)] |= part.masks
    train, val, test = masks
    masks = np.stack([train & ~val & ~test, val & ~test, test])
    columns = _union([part.columns for part in parts])
    codes = _union([part.edges if part.edges is None else part.edges[0] << 32 | part.edges[1] for part in parts])
    edges = None if codes is None else np.stack([codes >> 32, codes & 0xFFFFFFFF])
    nodes, graphs = distinct(np.concatenate([part.nodes for part in parts])), _union([part.graphs for part in parts])
    whole = Part(nodes, masks, columns, edges, any(part.labels for part in parts), graphs)
    own = () if columns is not None else zip(client_ids(len(parts), partition.names), parts, strict=True)
    members = {name: np.searchsorted(examples, part.examples) for name, part in own}
    return Partition((whole,), partition.test, judged=partition.judged, held=partition.held, members=members)


def _union(held: list[np.ndarray | None]) -> np.ndarray | None:
    """All different numbers, sorted; None, which stands for everything, if any is None."""
    some = [numbers for numbers in held if numbers is not None]
    return distinct(np.concatenate(some)) if len(some) == len(held) else None

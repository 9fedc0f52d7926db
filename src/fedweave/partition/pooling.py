"""What a partition gives each client, and the global test, as data sets of their own; and the one client that holds
what all clients hold.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from fedweave.core.graph import TEST
from fedweave.datasets.base import Dataset
from fedweave.datasets.edges import distinct
from fedweave.datasets.features import by_holder
from fedweave.partition.base import Part, Partition, client_ids
from fedweave.partition.ego_networks import edges_among, induced_carried, induced_edges, labels_of


def global_test_part(data: Dataset, partition: Partition) -> Part | None:
    """What a global model is judged on: `Partition.judged`, else the global test examples with every labelled one in
    the TEST mask; None without a global test set."""
    if partition.test is None or partition.judged is not None:
        return partition.judged
    masks = np.zeros((3, len(partition.test)), bool)
    masks[TEST] = data.y[partition.test] >= 0
    return Part.of(data, partition.test, masks)


def shares(data: Dataset, parts: Sequence[Part], starts: np.ndarray | None = None) -> Iterator[Dataset]:
    """What each client holds, a dataset of its own whose split is how it uses its examples; without labels y is -1.
    Features are scaled by the client's own nodes where `data` asks for that.
    Parties of a vertical cut get no ids: their nodes are the same, in the same order. starts: see `induced_edges`."""
    groups = [part.nodes for part in parts]
    edges_of, carried_of = induced_edges(data, groups, starts), induced_carried(data, groups)
    for part, induced, carried in zip(parts, edges_of, carried_of, strict=True):
        y, x, nodes = data.y[part.examples], data.x[part.nodes], part.nodes
        own = () if part.columns is None or not data.columns else tuple(data.columns[i] for i in part.columns)
        edges = induced if part.edges is None else np.searchsorted(nodes, part.edges)
        held = replace(
            data,
            x=x if part.columns is None else x[:, part.columns],
            columns=data.columns if part.columns is None else own,
            edges=edges,
            y=y if part.labels else np.full_like(y, -1),
            sens=None if data.sens is None else np.where(part.groups, data.sens[part.examples], -1),
            owner=None if data.owner is None else data.owner[nodes if data.example == "edge" else part.examples],
            public=part.masks & (y >= 0),
            parties=None,
            ids=tuple(data.ids[i] for i in part.examples) if data.ids and part.columns is None else (),
            graph_of=None if data.graph_of is None else np.searchsorted(part.examples, data.graph_of[nodes]),
            node_labels=None if data.node_labels is None else data.node_labels[nodes],
            edge_labels=labels_of(data, nodes[edges]),
            carried=carried._replace(until=part.until) if carried is not None and part.edges is None else None,
            outside=None,
            node_time=None if data.node_time is None else data.node_time[nodes],
            node_ids=tuple(data.node_ids[i] for i in nodes) if data.node_ids else (),
        )
        yield by_holder(held)


def alone(data: Dataset, parts: Sequence[Part]) -> tuple[Dataset, list[Part]]:
    """What these clients hold together, without the rest of the data, and their parts of that; edges are no examples
    here."""
    nodes = distinct(np.concatenate([part.nodes for part in parts]))
    graphs = _union([part.graphs for part in parts])
    examples = nodes if graphs is None else graphs
    [held] = shares(replace(data, scaling="none"), [Part(nodes, np.zeros((3, len(examples)), bool), graphs=graphs)])

    def place(numbers: np.ndarray | None, among: np.ndarray) -> np.ndarray | None:
        return None if numbers is None else np.searchsorted(among, numbers)

    return replace(held, scaling=data.scaling), [
        replace(
            part,
            nodes=np.searchsorted(nodes, part.nodes),
            edges=place(part.edges, nodes),
            graphs=place(part.graphs, examples),
        )
        for part in parts
    ]


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
    whole = Part(
        nodes, masks, columns, edges, labels, graphs, carried, parts[0].until, any(part.groups for part in parts)
    )
    own = () if columns is not None else zip(client_ids(len(parts), partition.names), parts, strict=True)
    members = {name: np.searchsorted(examples, part.examples) for name, part in own}
    return Partition((whole,), partition.test, judged=partition.judged, held=partition.held, members=members)


def _union(held: list[np.ndarray | None]) -> np.ndarray | None:
    """All different numbers, sorted; None, which stands for everything, if any is None."""
    some = [numbers for numbers in held if numbers is not None]
    return distinct(np.concatenate(some)) if len(some) == len(held) else None

"""What a partition gives each client, and the global test, as data sets of their own."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from fedweave.core.graph import TEST
from fedweave.datasets.base import Dataset
from fedweave.partition.base import Part, Partition
from fedweave.partition.ego_networks import induced_carried, induced_edges, labels_of


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
    Parties of a vertical cut get no ids: their nodes are the same, in the same order. starts: see `induced_edges`."""
    groups = [part.nodes for part in parts]
    for part, induced, carried in zip(
        parts, induced_edges(data, groups, starts), induced_carried(data, groups), strict=True
    ):
        y, x, nodes = data.y[part.examples], data.x[part.nodes], part.nodes
        own = () if part.columns is None or not data.columns else tuple(data.columns[i] for i in part.columns)
        edges = induced if part.edges is None else np.searchsorted(nodes, part.edges)
        yield replace(
            data,
            x=x if part.columns is None else x[:, part.columns],
            columns=data.columns if part.columns is None else own,
            edges=edges,
            y=y if part.labels else np.full_like(y, -1),
            sens=None if data.sens is None else data.sens[part.examples],
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

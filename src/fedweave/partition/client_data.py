"""Each client's share of a partition, and the global test, as datasets of their own; and the one client that holds the
data of all clients.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from fedweave.core.graph import TEST
from fedweave.core.target import is_labeled, missing_like
from fedweave.datasets import edges as of_edges
from fedweave.datasets.base import Dataset, distinct
from fedweave.datasets.features import by_holder
from fedweave.datasets.structure import filled
from fedweave.partition.base import Part, Partition, client_ids
from fedweave.partition.ego_networks import attributes_within, edges_among, edges_within, labels_of
from fedweave.partition.scaling import target_scale_of


def global_test_part(data: Dataset, partition: Partition) -> Part | None:
    """The part on which a global model is evaluated: `Partition.evaluation_part`, else the global test examples with
    every labeled one in the TEST mask; None without a global test set."""
    if partition.test is None or partition.evaluation_part is not None:
        return partition.evaluation_part
    masks = np.zeros((3, len(partition.test)), bool)
    masks[TEST] = data.has_label[partition.test]
    return Part.of(data, partition.test, masks)


def shares(data: Dataset, parts: Sequence[Part], starts: np.ndarray | None = None) -> Iterator[Dataset]:
    """Each client's share as a dataset of its own, whose split is how the client uses its examples; without labels y is
    -1. Features are scaled by the client's own nodes and edges where `data` asks for that, and columns of
    structure are those of its own graph. Numbers as targets have the
    scale of the client's own training examples (`target_scale_of`). Parties of a vertical partition get no ids: their
    nodes are the same, in the same order. starts: see `edges_within`."""
    groups = [part.nodes for part in parts]
    edges_of_groups = edges_within(data, groups, starts)
    attributes_of_groups = attributes_within(data, groups)
    for part, induced, attributes in zip(parts, edges_of_groups, attributes_of_groups, strict=True):
        nodes = part.nodes
        y = data.y[part.examples]
        x = data.x[nodes]
        columns = data.columns
        if part.columns is not None:
            x = x[:, part.columns]
            columns = tuple(data.columns[i] for i in part.columns) if data.columns else ()
        edges = induced if part.edges is None else np.searchsorted(nodes, part.edges)
        if part.edges is not None:  # `attributes` are of all edges among its nodes, also those that it does not have
            attributes = None
            if part.edge_rows is not None and data.edge_attrs is not None:
                ends = np.searchsorted(nodes, data.edge_attrs.ends[:, part.edge_rows])
                attributes = data.edge_attrs.select(part.edge_rows, ends)
        if attributes is not None:
            attributes = attributes._replace(split_times=part.split_times)
        share = replace(
            data,
            x=x,
            columns=columns,
            edges=edges,
            y=y if part.labels else missing_like(y),
            sensitive=None if data.sensitive is None else np.where(part.groups, data.sensitive[part.examples], -1),
            owner=None if data.owner is None else data.owner[nodes if data.example == "edge" else part.examples],
            public=part.masks & is_labeled(y),
            parties=None,
            ids=tuple(data.ids[i] for i in part.examples) if data.ids and part.columns is None else (),
            smiles=tuple(data.smiles[i] for i in part.examples) if data.smiles else (),
            scaffold=None if data.scaffold is None else data.scaffold[part.examples],
            graph_of=None if data.graph_of is None else np.searchsorted(part.examples, data.graph_of[nodes]),
            node_labels=None if data.node_labels is None else data.node_labels[nodes],
            edge_labels=labels_of(data, nodes[edges]),
            edge_attrs=attributes,
            outside=None,
            node_time=None if data.node_time is None else data.node_time[nodes],
            node_ids=tuple(data.node_ids[i] for i in nodes) if data.node_ids else (),
            target_scale=target_scale_of(data, part),
        )
        if part.columns is None:  # parties keep their columns as they are
            share = filled(of_edges.by_holder(by_holder(share)))
        yield share


def restrict(data: Dataset, parts: Sequence[Part]) -> tuple[Dataset, list[Part]]:
    """A dataset of only what these clients hold together, and their parts of it; not for edges as examples."""
    nodes = distinct(np.concatenate([part.nodes for part in parts]))
    if len(nodes) == data.nodes:
        return data, [*parts]
    graphs = _union([part.graphs for part in parts])
    examples = nodes if graphs is None else graphs
    union = Part(nodes, np.zeros((3, len(examples)), bool), graphs=graphs)
    [restricted] = shares(replace(data, scaling="none", structure=None), [union])
    restricted_parts = []
    for part in parts:
        edges = None if part.edges is None else np.searchsorted(nodes, part.edges)
        graphs = None if part.graphs is None else np.searchsorted(examples, part.graphs)
        restricted_parts.append(replace(part, nodes=np.searchsorted(nodes, part.nodes), edges=edges, graphs=graphs))
    return replace(restricted, scaling=data.scaling, structure=data.structure), restricted_parts


def pool_clients(partition: Partition, data: Dataset | None = None) -> Partition:
    """The union of all clients as one client, with the edges between them. Where edges are the examples, `data` has the
    edges between clients, which are in no split.

    An example that clients use differently counts as test if any of them tests on it, else as validation if any does.
    For a vertical partition: all columns, the labels, and the union of the clients' own edges. Its parties hold the
    same examples, so they are not members of the union, which would be evaluated separately.
    """
    parts = partition.parts
    nodes = distinct(np.concatenate([part.nodes for part in parts]))
    examples = distinct(np.concatenate([part.examples for part in parts]))
    edge_rows = None
    if data is not None and data.example == "edge":
        examples = edge_rows = edges_among(data, [nodes])[0]
    masks = np.zeros((3, len(examples)), bool)
    for part in parts:
        masks[:, np.searchsorted(examples, part.examples)] |= part.masks
    train, val, test = masks
    masks = np.stack([train & ~val & ~test, val & ~test, test])
    if data is not None and data.links is not None:  # links between clients have a split, too
        masks = link_masks(data, parts[0].split_times)[:, examples]
    columns = _union([part.columns for part in parts])
    codes = _union([None if part.edges is None else part.edges[0] << 32 | part.edges[1] for part in parts])
    union = Part(
        nodes,
        masks,
        columns,
        edges=None if codes is None else np.stack([codes >> 32, codes & 0xFFFFFFFF]),
        labels=any(part.labels for part in parts),
        graphs=_union([part.graphs for part in parts]),
        edge_rows=edge_rows,
        split_times=parts[0].split_times,
        groups=any(part.groups for part in parts),
    )
    members = {}
    member_nodes = {}
    if columns is None:
        for name, part in zip(client_ids(len(parts), partition.names), parts, strict=True):
            members[name] = np.searchsorted(examples, part.examples)
            if data is not None and data.links is not None:
                member_nodes[name] = np.searchsorted(nodes, part.nodes)
    return Partition(
        (union,),
        partition.test,
        evaluation_part=partition.evaluation_part,
        held=partition.held,
        members=members,
        member_nodes=member_nodes,
    )


def link_masks(data: Dataset, split_times: tuple[float, float] | None) -> np.ndarray:
    """Masks bool [3, e] of all links: by time up to the ends of training and validation, or the data's own split."""
    if split_times is None or data.time is None:
        return np.asarray(data.public)
    return np.asarray(np.searchsorted(split_times, data.time) == np.arange(3)[:, None])


def _union(lists: list[np.ndarray | None]) -> np.ndarray | None:
    """All different numbers, sorted; None, which stands for everything, if any is None."""
    known = [numbers for numbers in lists if numbers is not None]
    return distinct(np.concatenate(known)) if len(known) == len(lists) else None

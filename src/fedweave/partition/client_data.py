"""Each client's share of a partition, and the global test, as datasets of their own; and the one client that holds the
data of all clients.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import torch

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.federation import StepInfo
from fedweave.core.graph import TEST, TRAIN
from fedweave.core.ledger import Ledger
from fedweave.core.operators import Precomputed
from fedweave.core.sizes import common_lengths
from fedweave.core.target import DIVISOR, LOG, NUMBER, SHIFT, is_labeled, missing_like, scale_of, where_known
from fedweave.core.tree import Tree
from fedweave.core.types import SETUP
from fedweave.datasets.base import Dataset, distinct
from fedweave.datasets.features import OVER_NODES, by_holder, scaling
from fedweave.partition.base import Part, Partition, client_ids
from fedweave.partition.ego_networks import edges_among, induced_carried, induced_edges, labels_of


def global_test_part(data: Dataset, partition: Partition) -> Part | None:
    """The part on which a global model is evaluated: `Partition.evaluation_part`, else the global test examples with
    every labeled one in the TEST mask; None without a global test set."""
    if partition.test is None or partition.evaluation_part is not None:
        return partition.evaluation_part
    masks = np.zeros((3, len(partition.test)), bool)
    masks[TEST] = data.labeled[partition.test]
    return Part.of(data, partition.test, masks)


def shares(data: Dataset, parts: Sequence[Part], starts: np.ndarray | None = None) -> Iterator[Dataset]:
    """Each client's share as a dataset of its own, whose split is how the client uses its examples; without labels y is
    -1. Features are scaled by the client's own nodes where `data` asks for that. Numbers as targets have the scale of
    the client's own training examples (`target_scale_of`). Parties of a vertical partition get no ids: their nodes are
    the same, in the same order. starts: see `induced_edges`."""
    groups = [part.nodes for part in parts]
    edges_of, carried_of = induced_edges(data, groups, starts), induced_carried(data, groups)
    for part, induced, attributes in zip(parts, edges_of, carried_of, strict=True):
        y, x, nodes = data.y[part.examples], data.x[part.nodes], part.nodes
        column_names = () if part.columns is None or not data.columns else tuple(data.columns[i] for i in part.columns)
        edges = induced if part.edges is None else np.searchsorted(nodes, part.edges)
        held = replace(
            data,
            x=x if part.columns is None else x[:, part.columns],
            columns=data.columns if part.columns is None else column_names,
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
            edge_attrs=_attributes_of(data, part, attributes),
            outside=None,
            node_time=None if data.node_time is None else data.node_time[nodes],
            node_ids=tuple(data.node_ids[i] for i in nodes) if data.node_ids else (),
            target_scale=target_scale_of(data, part),
        )
        yield held if part.columns is not None else by_holder(held)  # parties keep their columns as they are


def _attributes_of(data: Dataset, part: Part, induced: EdgeAttributes | None) -> EdgeAttributes | None:
    """A client's edges with their attributes. `induced` covers all edges among its nodes, also those that a client with
    edges of its own (`Part.edges`) does not have."""
    if part.edges is None or part.edge_rows is None or data.edge_attrs is None:
        return None if induced is None or part.edges is not None else induced._replace(split_times=part.split_times)
    ends = np.searchsorted(part.nodes, data.edge_attrs.ends[:, part.edge_rows])
    return data.edge_attrs.select(part.edge_rows, ends)._replace(split_times=part.split_times)


def restrict(data: Dataset, parts: Sequence[Part]) -> tuple[Dataset, list[Part]]:
    """A dataset of only what these clients hold together, and their parts of it; not for edges as examples."""
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
    """The union of all clients as one client, with the edges between them. Where edges are the examples, `data` has the
    edges between clients, which are in no split.

    An example that clients use differently counts as test if any of them tests on it, else as validation if any does.
    For a vertical partition: all columns, the labels, and the union of the clients' own edges. Its parties hold the
    same examples, so they are no members of the union, which would be evaluated separately.
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
    if data is not None and data.links is not None:  # links between clients have a split, too
        masks = split_of_links(data, parts[0].split_times)[:, examples]
    columns = _union([part.columns for part in parts])
    codes = _union([part.edges if part.edges is None else part.edges[0] << 32 | part.edges[1] for part in parts])
    edges = None if codes is None else np.stack([codes >> 32, codes & 0xFFFFFFFF])
    graphs = _union([part.graphs for part in parts])
    labels, edge_numbers = any(part.labels for part in parts), examples if of_edges else None
    whole = Part(
        nodes,
        masks,
        columns,
        edges,
        labels,
        graphs,
        edge_numbers,
        parts[0].split_times,
        any(part.groups for part in parts),
    )
    named = zip(client_ids(len(parts), partition.names), parts, strict=True)
    named_parts = [] if columns is not None else list(named)
    members = {name: np.searchsorted(examples, part.examples) for name, part in named_parts}
    more = {"evaluation_part": partition.evaluation_part, "held": partition.held, "members": members}
    if data is not None and data.links is not None:
        more["member_nodes"] = {name: np.searchsorted(nodes, part.nodes) for name, part in named_parts}
    return Partition((whole,), partition.test, **more)  # type: ignore[arg-type]


def split_of_links(data: Dataset, split_times: tuple[float, float] | None) -> np.ndarray:
    """Masks bool [3, e] of all links: by time up to the ends of training and validation, or the data's own split."""
    if split_times is None or data.time is None:
        return np.asarray(data.public)
    masks: np.ndarray = np.searchsorted(split_times, data.time) == np.arange(3)[:, None]
    return masks


def _union(held: list[np.ndarray | None]) -> np.ndarray | None:
    """All different numbers, sorted; None, which stands for everything, if any is None."""
    some = [numbers for numbers in held if numbers is not None]
    return distinct(np.concatenate(some)) if len(some) == len(held) else None


# ----------------------------------------------------------------------------------------------------
# What algorithms precompute on clients' data before any step runs.


class Precompute(Protocol):
    """A precomputation on clients' data; equal objects give equal results. See `algorithms.parts.Needs.finder`."""

    def everywhere(self, data: Dataset, partition: Partition) -> Sequence[Precomputed]:
        """The result of each client, in their order.

        Raises:
            ConfigError, DataError: the data does not allow it.
        """

    def alone(self, data: Dataset, folder: Path) -> Precomputed:
        """The result of a client that has only its own `data`, whose split is in `public`; it may store files in
        `folder`.

        Raises:
            ConfigError, DataError: the data does not allow it, or it needs other clients.
        """

    def tables(self, results: Mapping[str, Precomputed]) -> Mapping[str, pa.Table]:
        """{file: a table for readers} of the clients' results, by their ids."""


def everywhere(finders: Sequence[Precompute], data: Dataset, partition: Partition) -> list[Precomputed]:
    """The results of all precomputations for each client, with lists of one length."""
    each = [finder.everywhere(data, partition) for finder in finders]
    results = (
        [Precomputed.merge(pieces) for pieces in zip(*each, strict=True)]
        if each
        else [Precomputed()] * len(partition.parts)
    )
    sizes = common_lengths(pieces.lists for pieces in results)
    return [pieces.pad(sizes) for pieces in results]


# ----------------------------------------------------------------------------------------------------
# The exchange by which clients would scale features by numbers over all of their nodes. A simulation loads and scales
# the whole data before it divides it (`datasets.features`). Members who each hold a part would need one exchange for
# such a mean, deviation and range over the nodes that they hold; the ledger records it. Between organizations each site
# scales by its own nodes, without an exchange. With "auto" every client scales by its own nodes everywhere.


Numbers = tuple[np.ndarray, np.ndarray]  # (shift, divisor) of every column, as in `datasets.features.scaling`


def of_part(data: Dataset, part: Part) -> Numbers:
    """The numbers by which one client scales its columns of `data` (`Dataset.scaling`)."""
    return scaling(data.x[part.nodes], data.scaling)


def of_typical(data: Dataset, partition: Partition) -> Numbers:
    """The numbers by which a model of all clients scales new data: the mean over nodes of the clients' shifts, and the
    root of the mean of their squared divisors. A client with a constant column does not count in its divisor."""
    sizes = np.array([len(part.nodes) for part in partition.parts], np.float64)[:, None]
    shifts, divisors = map(np.stack, zip(*(of_part(data, part) for part in partition.parts), strict=True))
    known = np.where(np.isfinite(divisors), sizes, 0.0)
    total = known.sum(0)
    squares = (known * np.where(np.isfinite(divisors), divisors, 0.0) ** 2).sum(0)
    spread = np.sqrt(squares / np.where(total > 0, total, 1.0))
    return (sizes * shifts).sum(0) / sizes.sum(), np.where(total > 0, spread, np.inf)


def target_scale_of(data: Dataset, part: Part) -> np.ndarray | None:
    """The units of a client's model, where it predicts numbers (`Dataset.target_scale`). With scales of their own,
    clients take their training examples; a number that none of these has keeps the units of `data`
    (`scaled_targets`)."""
    if data.target_scale is None or data.target_scaling != "own":
        return data.target_scale
    y = data.y[part.examples[part.masks[TRAIN]]] if part.labels else data.y[:0]
    scale = scale_of(y, bool(data.target_scale[LOG].any()))
    return np.where(where_known(y).any(0), scale, data.target_scale)


def scaled_targets(data: Dataset, partition: Partition) -> Dataset:
    """The data with the units in which a model of all clients predicts numbers.

    target_scaling "all": by all clients' training examples; one that several clients hold counts for each. "own": a
    typical client's, also for clients without training examples and the global test: the mean over clients of the
    shifts, and the root of the mean of the squared divisors, weighted by the training examples that have the number. A
    client whose numbers are all equal does not count in the divisor. "none": the data's.
    """
    if data.target_scale is None or data.target_scaling == "none":
        return data
    log = bool(data.target_scale[LOG].any())
    trained = [data.y[part.examples[part.masks[TRAIN]]] for part in partition.parts if part.labels]
    if data.target_scaling == "all":
        return replace(data, target_scale=scale_of(np.concatenate([data.y[:0], *trained]), log))
    shifts, squares, say, spread = np.zeros((4, data.outputs))
    for y in trained:
        known, scale = where_known(y), scale_of(y, log)
        varied = np.where(known, y, -np.inf).max(0, initial=-np.inf) > np.where(known, y, np.inf).min(0, initial=np.inf)
        shifts, say = shifts + known.sum(0) * scale[SHIFT], say + known.sum(0)
        squares, spread = squares + varied * known.sum(0) * scale[DIVISOR] ** 2, spread + varied * known.sum(0)
    scale = np.array(data.target_scale)
    scale[SHIFT] = shifts / np.maximum(say, 1)
    scale[DIVISOR] = np.where(spread > 0, np.sqrt(squares / np.maximum(spread, 1)), 1.0)
    return replace(data, target_scale=scale)


def targets_apart(data: Dataset, partition: Partition) -> float | None:
    """How far the means of numbers are apart between members that each scale by their own: the deviation of these means
    over the typical deviation of a member's numbers, the largest over numbers; None with fewer than two members."""
    if data.target_scale is None or data.target_scaling != "own":
        return None
    parts = [part for part in partition.parts if len(data.y[part.examples[part.masks[TRAIN]]])]
    scales = [scale for part in parts if (scale := target_scale_of(data, part)) is not None]
    if len(scales) < 2:
        return None
    shifts, divisors = (np.stack([scale[row] for scale in scales]) for row in (SHIFT, DIVISOR))
    return float((shifts.std(0) / np.sqrt((divisors**2).mean(0))).max())


SCALE = "(scale)"
TARGET_SCALE = "(target scale)"
_MOMENTS = {
    "n": "how many nodes it has",
    "sum": "the sum of every feature over its nodes",
    "squares": "the sum of every feature's square over its nodes",
}
_RANGE = {"low": "the smallest value of every feature at its nodes", "high": "the largest value of every feature"}
_BACK = {
    "shift": "by what every feature is shifted: its mean, or the middle of its range, over all members' nodes",
    "divisor": "by what every feature is divided: its deviation, or half its range, over all members' nodes",
}


_TARGET_MOMENTS = {
    "n": "how many training examples have each number that is predicted",
    "sum": "the sum of every number that is predicted, or of its logarithms, over its training examples",
    "squares": "the sum of their squares",
}
_TARGET_BACK = {
    "shift": "by what every number that is predicted is shifted: its mean over all members' training examples",
    "divisor": "by what every number that is predicted is divided: its deviation over all members' training examples",
}


def meter_scaling(
    ledger: Ledger, clients: Sequence[str], partition: Partition, features: int, how: str, of: str = "node"
) -> None:
    """Record in a `ledger` the exchange by which `clients` scale `features` columns of nodes or edges, if any.

    There is no exchange if columns are not scaled over nodes, for one client, and for clients with columns of their own
    for the same nodes. A node that several clients hold counts for each; in the simulation once.

    how: one of `datasets.features.NORMALIZE`.
    """
    exempt = len(clients) < 2 or any(part.columns is not None for part in partition.parts)
    if how not in OVER_NODES or exempt:
        return
    up, down = _messages(torch.zeros(features, dtype=torch.float64, device="cpu"), how)
    ledger.purpose = SETUP
    upload_notes = {key: text.replace("node", of) for key, text in (_RANGE if how == "minmax" else _MOMENTS).items()}
    back = {key: text.replace("node", of) for key, text in _BACK.items()}
    ledger.record(0, 0, SCALE, clients, "up", up, 0.0, StepInfo.of(upload_notes))
    ledger.record(0, 0, SCALE, clients, "down", down, 0.0, StepInfo.of(back))


def meter_target_scaling(ledger: Ledger, clients: Sequence[str], data: Dataset) -> None:
    """Record in a `ledger` the exchange by which `clients` scale the numbers to predict. There is none where each has
    its own scale, or for one client."""
    if data.target != NUMBER or data.target_scaling != "all" or len(clients) < 2:
        return
    up, down = _messages(torch.zeros(data.outputs, dtype=torch.float64, device="cpu"), "standard")
    ledger.purpose = SETUP
    up = {**up, "n": up["sum"]}  # for each number, which some examples may lack
    ledger.record(0, 0, TARGET_SCALE, clients, "up", up, 0.0, StepInfo.of(_TARGET_MOMENTS))
    ledger.record(0, 0, TARGET_SCALE, clients, "down", down, 0.0, StepInfo.of(_TARGET_BACK))


def _messages(column: torch.Tensor, how: str) -> tuple[Tree, Tree]:
    """Messages with the shapes of what goes up and down; "scale" needs no shift."""
    up: Tree = {"low": column, "high": column} if how == "minmax" else {"n": 0, "sum": column, "squares": column}
    return up, {"divisor": column} if how == "scale" else {"shift": column, "divisor": column}

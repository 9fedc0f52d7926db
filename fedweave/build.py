"""From a config to everything that a run needs: data, partition, clients' graphs, algorithm and federation."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedweave import datasets
from fedweave.config import Config
from fedweave.core.graph import TEST, Graph, make_graph
from fedweave.datasets.base import Dataset
from fedweave.engines.simulation import Simulation
from fedweave.partition.base import Part, Partition


@dataclass(frozen=True)
class Built:
    """Everything that a run needs; the partition is as cut, also when a pooled algorithm sees its union."""

    data: Dataset
    partition: Partition
    algorithm: Any
    fed: Simulation


def build(config: Config) -> Built:
    """Load, cut and assemble; writes nothing.

    Raises:
        ConfigError, DataError: the data is absent or refused, or a plug-in refuses its values.
    """
    engine = config.engine.make()
    if engine.threads:
        torch.set_num_threads(engine.threads)
    seed, dtype = config.general.seed, getattr(torch, engine.dtype)
    data = datasets.load(config.data.name, path=config.folder, seed=seed, **config.data.values)
    partition = config.partition.make().cut(data, seed)
    algorithm = config.algorithm.make(config.model.make().build(data.features, data.classes))
    seen = pooled(partition) if getattr(algorithm, "pooled", False) else partition
    fed = Simulation(
        client_graphs(data, seen, dtype),
        classes=data.classes,
        test=global_test_graph(data, partition, dtype),
        seed=seed,
        mode=engine.mode,
        chunk=engine.chunk,
    )
    return Built(data, partition, algorithm, fed)


def client_ids(count: int) -> list[str]:
    """ "client-0", ..., zero-padded to equal width, so that they sort."""
    width = len(str(count - 1))
    return [f"client-{i:0{width}}" for i in range(count)]


def client_graphs(data: Dataset, partition: Partition, dtype: torch.dtype = torch.float32) -> dict[str, Graph]:
    """{client id: the subgraph that its nodes induce}; clients may share nodes."""
    edges = induced_edges(data, [part.nodes for part in partition.parts])
    parts = zip(client_ids(len(partition.parts)), partition.parts, edges, strict=True)
    return {client: _graph(data, part, own, dtype) for client, part, own in parts}


def global_test_graph(data: Dataset, partition: Partition, dtype: torch.dtype = torch.float32) -> Graph | None:
    """The subgraph that the global test nodes induce, every labelled node in the TEST mask; None without test nodes."""
    if partition.test is None:
        return None
    masks = np.zeros((3, len(partition.test)), bool)
    masks[TEST] = data.y[partition.test] >= 0
    [edges] = induced_edges(data, [partition.test])
    return _graph(data, Part(partition.test, masks), edges, dtype)


def pooled(partition: Partition) -> Partition:
    """The union of all clients as one client, with the edges between them.

    A node that clients use differently counts as test if any of them tests on it, else as validation if any validates.
    """
    union = np.unique(np.concatenate([part.nodes for part in partition.parts]))
    masks = np.zeros((3, len(union)), bool)
    for part in partition.parts:
        masks[:, np.searchsorted(union, part.nodes)] |= part.masks
    train, val, test = masks
    return replace(partition, parts=(Part(union, np.stack([train & ~val & ~test, val & ~test, test])),))


def induced_edges(data: Dataset, groups: list[np.ndarray]) -> Iterator[np.ndarray]:
    """For each group of sorted node numbers, the edges among them: int64 [2, E_i], positions within the group.

    Takes time in the edges that touch a group's nodes, not in all edges, so that many clients are cheap.
    """
    starts = np.searchsorted(data.edges[0], np.arange(data.nodes + 1))
    place = np.full(data.nodes, -1)
    for nodes in groups:
        place[nodes] = np.arange(len(nodes))
        first, degree = starts[nodes], starts[nodes + 1] - starts[nodes]
        source = np.repeat(np.arange(len(nodes)), degree)
        before = np.cumsum(degree) - degree
        target = place[data.edges[1, np.arange(len(source)) + np.repeat(first - before, degree)]]
        place[nodes] = -1
        yield np.stack([source, target])[:, target >= 0]


def _graph(data: Dataset, part: Part, edges: np.ndarray, dtype: torch.dtype) -> Graph:
    sens = None if data.sens is None else data.sens[part.nodes]
    return make_graph(data.x[part.nodes], edges, data.y[part.nodes], part.masks, sens, dtype)

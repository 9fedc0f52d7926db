"""From a config to everything that a run needs: data, partition, clients' graphs, algorithm and federation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from fedweave import datasets
from fedweave.config import Config
from fedweave.core.algorithm import capabilities, needs
from fedweave.core.edge_list import MotifTable
from fedweave.core.federation import Placement
from fedweave.core.graph import TEST, Graph, make_graph
from fedweave.core.sizes import size_classes
from fedweave.datasets.base import Dataset
from fedweave.demands import check_columns, check_labels_and_nodes, check_people, check_pooling, check_scaling
from fedweave.engines.simulation import Simulation
from fedweave.incentives.tables import tables
from fedweave.incentives.vocabulary import Vocabulary
from fedweave.ops.recording import When
from fedweave.partition import cut
from fedweave.partition.base import Part, Partition, client_ids
from fedweave.partition.induced import crossing_edges, induced_edges, labels_of
from fedweave.partition.pooling import pooled
from fedweave.partition.scaling import meter_scaling


@dataclass(frozen=True)
class Built:
    """Everything that a run needs; the partition is as cut, also when a pooled algorithm sees its union. motifs: of
    each client's small graphs, where the algorithm asks for them."""

    data: Dataset
    partition: Partition
    algorithm: Any
    fed: Simulation
    motifs: Mapping[str, MotifTable] = field(default_factory=dict)


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
    partition = cut(config.partition.make(), data, seed)
    seen = pooled(partition) if capabilities(config.algorithm.kind).pooled else partition
    check_labels_and_nodes(config, data, seen)
    model = config.model.make().build(width(data, seen), data.classes)
    check_pooling(config, data, model)
    algorithm = config.algorithm.make(model)
    if hasattr(algorithm, "calls"):
        check_scaling(config.data.values.get("normalise", "none"), algorithm, ("example",))
        check_columns(config, seen, algorithm)
    check_people(config, data, algorithm)
    fed = federation(
        data,
        seen,
        algorithm,
        seed=seed,
        mode="loop" if any(layer.runs_alone for layer in model) else engine.mode,
        chunk=engine.chunk,
        record=engine.record,
        dtype=dtype,
        resend=engine.resend,
    )
    meter_scaling(fed.ledger, fed.clients, seen, data.features, config.data.values.get("normalise", "none"))
    motifs = {client: own for client, graph in fed.graphs.items() if (own := graph.own_edges.members[0].motifs)}
    return Built(data, partition, algorithm, fed, motifs)


def federation(
    data: Dataset,
    partition: Partition,
    algorithm: Any,
    *,
    seed: int = 0,
    mode: str = "vmap",
    chunk: int = 0,
    record: When = "auto",
    dtype: torch.dtype = torch.float32,
    resend: bool = True,
) -> Simulation:
    """The federation that `algorithm` trains on, in one process: a client for every part of the partition, what the
    server holds, and whatever else this algorithm asks for (motifs of small graphs, places of nodes, overlaps).

    mode, chunk, record, resend: see `engines.simulation.Simulation`. dtype: of features and weights.
    """
    return Simulation(
        client_graphs(data, partition, dtype, getattr(algorithm, "vocabulary", None)),
        classes=data.classes,
        test=global_test_graph(data, partition, dtype),
        held=held_graphs(data, partition, dtype),
        pairs={name: torch.from_numpy(matrix) for name, matrix in partition.pairs.items()},
        members={name: torch.from_numpy(own) for name, own in partition.members.items()},
        places=placements(data, partition) if needs(algorithm).ids else None,
        seed=seed,
        mode=mode,
        chunk=chunk,
        record=record,
        resend=resend,
    )


def width(data: Dataset, partition: Partition) -> int:
    """How many feature columns the clients' graphs have: those of the client that holds most."""
    return max(data.features if part.columns is None else len(part.columns) for part in partition.parts)


def client_graphs(
    data: Dataset, partition: Partition, dtype: torch.dtype = torch.float32, vocabulary: Vocabulary | None = None
) -> dict[str, Graph]:
    """{client id: the subgraph that its nodes induce, or its own edges among them}, padded to few sizes
    (`core.sizes.size_classes`); clients may share nodes.

    A client that holds only some feature columns has these first, and zeros up to the `width` that all graphs share. Of
    a client without labels y is -1 everywhere, while its masks still say how the nodes are used. With a `vocabulary`,
    small graphs come with their motifs.
    """
    ids, columns = client_ids(len(partition.parts), partition.names), width(data, partition)
    rows, examples = (
        size_classes([len(held) for held in each])
        for each in zip(*((part.nodes, part.examples) for part in partition.parts), strict=True)
    )
    parts: Sequence[Part] = partition.parts
    motifs: Sequence[MotifTable | None] = [None] * len(parts)
    if vocabulary is not None:
        rewired = any(part.edges is not None for part in parts)
        motifs = tables(data, [*shares(data, parts)], [part.examples for part in parts], vocabulary, rewired)
    return {
        client: graph_of(own, columns, dtype, rows[i], examples[i], motifs[i])
        for i, (client, own) in enumerate(zip(ids, shares(data, parts), strict=True))
    }


def global_test_graph(data: Dataset, partition: Partition, dtype: torch.dtype = torch.float32) -> Graph | None:
    """The graph of `global_test_part`; None without test nodes."""
    part = global_test_part(data, partition)
    if part is None:
        return None
    [own] = shares(data, [part])
    return graph_of(own, data.features, dtype)


def held_graphs(data: Dataset, partition: Partition, dtype: torch.dtype = torch.float32) -> dict[str, Graph]:
    """{role: the graph that its nodes induce} of what the server holds besides the global test graph."""
    held = zip(partition.held, shares(data, [*partition.held.values()]), strict=True)
    return {role: graph_of(own, data.features, dtype) for role, own in held}


def placements(data: Dataset, partition: Partition) -> dict[str, Placement]:
    """{client id: where its nodes stand in the whole graph}."""
    ids, groups = client_ids(len(partition.parts), partition.names), [part.nodes for part in partition.parts]
    return {
        client: Placement(torch.from_numpy(nodes.copy()), torch.from_numpy(crossing))
        for client, nodes, crossing in zip(ids, groups, crossing_edges(data, groups), strict=True)
    }


def global_test_part(data: Dataset, partition: Partition) -> Part | None:
    """What a global model is judged on: `Partition.judged`, else the global test examples with every labelled one in
    the TEST mask; None without a global test set."""
    if partition.test is None or partition.judged is not None:
        return partition.judged
    masks = np.zeros((3, len(partition.test)), bool)
    masks[TEST] = data.y[partition.test] >= 0
    return Part.of(data, partition.test, masks)


def shares(data: Dataset, parts: Sequence[Part]) -> Iterator[Dataset]:
    """What each client holds, a dataset of its own whose split is how it uses its examples; without labels y is -1.
    Parties of a vertical cut get no ids: their nodes are the same, in the same order."""
    for part, induced in zip(parts, induced_edges(data, [part.nodes for part in parts]), strict=True):
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
            public=part.masks & (y >= 0),
            parties=None,
            ids=tuple(data.ids[i] for i in part.examples) if data.ids and part.columns is None else (),
            graph_of=None if data.graph_of is None else np.searchsorted(part.examples, data.graph_of[nodes]),
            node_labels=None if data.node_labels is None else data.node_labels[nodes],
            edge_labels=labels_of(data, nodes[edges]),
        )


def graph_of(
    own: Dataset,
    columns: int,
    dtype: torch.dtype = torch.float32,
    rows: int | None = None,
    examples: int | None = None,
    motifs: MotifTable | None = None,
) -> Graph:
    """The graph of a client that holds `own`, features with zeros on the right up to `columns`, the split as masks,
    padded to `rows` and `examples` (see `make_graph`)."""
    x, masks = _widened(own.x, columns), np.asarray(own.public)
    return make_graph(x, own.edges, own.y, masks, own.sens, dtype, rows, own.graph_of, examples, motifs)


def _widened(x: "np.ndarray | sp.csr_matrix", columns: int) -> "np.ndarray | sp.csr_matrix":
    """x with zeros on the right up to `columns`; sparse stays sparse."""
    if isinstance(x, sp.csr_matrix):
        return sp.csr_matrix((x.data, x.indices, x.indptr), shape=(x.shape[0], columns))
    return np.pad(x, ((0, 0), (0, columns - x.shape[1])))

"""From a config to everything that a run needs: data, partition, clients' graphs, algorithm and federation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from fedweave import datasets
from fedweave.config import Config, parameters, registry
from fedweave.core import model as models
from fedweave.core.algorithm import capabilities, needs
from fedweave.core.edge_list import MotifTable
from fedweave.core.federation import Placement, step_info
from fedweave.core.graph import TEST, Graph, make_graph
from fedweave.core.model import Model
from fedweave.core.sizes import size_classes
from fedweave.datasets.base import Dataset
from fedweave.datasets.features import OVER_NODES
from fedweave.engines.simulation import Simulation
from fedweave.errors import ConfigError
from fedweave.incentives.tables import tables
from fedweave.incentives.vocabulary import Vocabulary
from fedweave.metrics.group_fairness import check_groups
from fedweave.ops.recording import When
from fedweave.partition import cut
from fedweave.partition.base import Part, Partition
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
    _check_needs(config, data, seen)
    model = config.model.make().build(width(data, seen), data.classes)
    check_pooling(config, data, model)
    algorithm = config.algorithm.make(model)
    if hasattr(algorithm, "calls"):
        check_scaling(config.data.values.get("normalise", "none"), algorithm, ("example",))
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
        places=placements(data, partition) if needs(algorithm).ids else None,
        seed=seed,
        mode=mode,
        chunk=chunk,
        record=record,
        resend=resend,
    )


def _check_needs(config: Config, data: Dataset, partition: Partition) -> None:
    """Refuse data that lacks what the algorithm needs: one that trains on every client's labels would take withheld
    ones for a class, and one over vertical clients add up rows of different nodes."""
    check_examples(config, data)
    kind = capabilities(config.algorithm.kind)
    if kind.vertical:
        _check_same_nodes(config, partition)
    if not kind.vertical and not all(part.labels for part in partition.parts):
        labels = config.partition.values.get("labels")
        raise ConfigError(
            f"algorithm {config.algorithm.name!r} needs labels at every client, but partition.labels = {labels!r} "
            "withholds some; set it to 'all', or choose an algorithm for vertically split data."
        )


def _check_same_nodes(config: Config, partition: Partition) -> None:
    first, *others = partition.parts
    if all(np.array_equal(part.nodes, first.nodes) for part in others):
        return
    named = zip(client_ids(len(partition.parts), partition.names), partition.parts, strict=True)
    sizes = [f"{client} {len(part.nodes):,}" for client, part in named]
    told = ", ".join(sizes[:3]) + (f" and {len(sizes) - 3} more clients theirs" if len(sizes) > 3 else "")
    raise ConfigError(
        f"algorithm {config.algorithm.name!r} needs clients with the same nodes, but partition "
        f"{config.partition.name!r} gives each its own ({told}); set partition.name = 'vertical' or 'parties', or "
        "choose an algorithm for clients with nodes of their own."
    )


def check_examples(config: Config, data: Dataset) -> None:
    """Raise ConfigError unless the examples are what the algorithm needs."""
    if capabilities(config.algorithm.kind).graph_level and data.example != "graph":
        raise ConfigError(
            f"algorithm {config.algorithm.name!r} needs small graphs as examples, but those of {data.name} are "
            f"{data.example}s; choose data such as 'proteins' (see `fedweave list datasets`)."
        )


def check_scaling(how: str, algorithm: Any, records: Sequence[str]) -> None:
    """Refuse to scale features by numbers over all examples where ε is of one of them: it moves all the others, too.

    how: the scaling of the features (`datasets.features.normalise`). records: what ε may be of (`mechanism.LDP.per`).

    Raises:
        ConfigError: names the scaling and what to take instead.
    """
    if how not in OVER_NODES:
        return
    declared = (own for step in algorithm.calls(2).all for own in step_info(step).sends.values())
    bounded = {getattr(one, "per", "") for own in declared for one in own.mechanisms} & set(records)
    if bounded:
        raise ConfigError(
            f"normalise = {how!r} scales each {min(bounded)} by numbers over all of them, so that its ε, which is of "
            f"one {min(bounded)}, would not hold; take 'none' or 'row', and scale the features by public numbers before"
        )


def check_people(config: Config, data: Dataset, algorithm: Any) -> None:
    """Raise ConfigError or DataError unless the data says of which group people are, where that is needed."""
    if not needs(algorithm).sens:
        return
    if data.sens is None:
        raise ConfigError(
            f"algorithm {config.algorithm.name!r} needs a sensitive attribute, but {data.name} has none; choose data "
            "that has one (see `fedweave list datasets`), or parts that need none."
        )
    check_groups(data.classes, data.sens, data.name)


def check_pooling(config: Config, data: Dataset, model: Model) -> None:
    """Raise ConfigError unless the model has one row of results per example."""
    if models.pools(model) == (data.example == "graph"):
        return
    own = f"model {config.model.name!r} with pool = {config.model.values.get('pool', 'none')!r}"
    if data.example == "node":
        raise ConfigError(
            f"{own} pools small graphs, but the examples of {data.name!r} are nodes; set model.pool = 'none'."
        )
    pooling = [name for name, kind in registry("model").items() if "pool" in parameters("model", kind)]
    raise ConfigError(
        f"{own} has a result for each node, but the examples of {data.name!r} are graphs; set model.pool = 'sum' or "
        f"'mean', with model.name one of {', '.join(pooling)}."
    )


def client_ids(count: int, names: tuple[str, ...] | None = None) -> list[str]:
    """`names` if there are any, else "client-0", ..., zero-padded to equal width, so that they sort."""
    digits = len(str(count - 1))
    return [f"client-{i:0{digits}}" for i in range(count)] if names is None else list(names)


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
        edges = induced if part.edges is None else np.searchsorted(nodes, part.edges)
        yield replace(
            data,
            x=x if part.columns is None else x[:, part.columns],
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

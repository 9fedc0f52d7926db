"""From a config to everything that a run needs: data, partition, clients' graphs, algorithm and federation."""

import json
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

from fedweave import datasets
from fedweave.algorithms.deployment import with_models
from fedweave.algorithms.participation import drawn
from fedweave.core import random
from fedweave.core.algorithm import Algorithm, Engine, capabilities, give_defaults
from fedweave.core.graph import Graph
from fedweave.core.graph_arrays import DTYPES
from fedweave.core.model import Architecture, Model, TrialForm
from fedweave.core.operators import Precomputed
from fedweave.core.sizes import size_classes
from fedweave.core.target import CLASS
from fedweave.core.types import PREDICT, Record, Values
from fedweave.datasets.base import Dataset
from fedweave.datasets.external import WIDENING
from fedweave.datasets.features import OVER_NODES, normalize, scale_by_holders
from fedweave.datasets.links import as_links
from fedweave.datasets.triples import with_node_columns
from fedweave.engines.devices import choose_device
from fedweave.engines.engine import LocalEngine
from fedweave.engines.loop import Loop
from fedweave.engines.sharded import Worker
from fedweave.engines.simulation import Simulation, keep_freed_memory, return_freed_memory
from fedweave.engines.states import map_large_array
from fedweave.engines.vectorized import Vectorized
from fedweave.errors import ConfigError
from fedweave.experiment.config import Choice, Config, Document, SimulationEngine, resolve
from fedweave.experiment.config.experiment import RayEngine
from fedweave.experiment.graphs import MadeGraphs, graph_of, links_of, member_links, width
from fedweave.experiment.requirements import (
    Configured,
    Counted,
    EmbeddingWidths,
    Enrolled,
    Loaded,
    Scheduled,
    check_stage,
    declared_by,
    widths,
)
from fedweave.learn.losses import by_number
from fedweave.models.edge_settings import add_ports, check_edge_width, fit_to_edges
from fedweave.models.edges import on_examples
from fedweave.ops.recording import When
from fedweave.partition import cut, notes_on_unused, repeats
from fedweave.partition.base import Part, Partition, client_ids
from fedweave.partition.client_data import global_test_part, pool_clients, restrict, shares
from fedweave.partition.external import Appended, check_inside, meter_exchange, with_external_columns
from fedweave.partition.precompute import Precompute, everywhere
from fedweave.partition.preparation import with_scaled_edges
from fedweave.partition.scaling import meter_scaling, meter_target_scaling, scale_targets

# ----------------------------------------------------------------------------------------------------
# A run's data and its partition, where edges between members may become features by the configuration.


def prepared(config: Config, with_scaling: bool = True) -> tuple[Dataset, Partition, Appended | None]:
    """The data that a config names, its cut and, where its edges between members become features, how.

    with_scaling: whether features are scaled as [data] normalize says.

    Raises:
        ConfigError, DataError: the data is absent or refused, or a plug-in refuses its values.
    """
    seed, how, values = config.general.seed, config.external, dict(config.data.values)
    scaling = values.get("normalize", "none") if how in WIDENING and with_scaling else "none"
    if "normalize" in values and (how in WIDENING or not with_scaling):
        values["normalize"] = "none"  # all columns are scaled together, once there are all
    data, partition = cut_as(config, values)
    if config.noise is not None:
        data, partition = config.noise.apply(data, partition, seed)
    if how not in WIDENING:
        if how != PREDICT:
            check_inside(data)
        return data, partition, None
    exchange = with_external_columns(data, seen_by(config.algorithm, partition, data), how, config.min_external)
    return scale_by_holders(exchange.data, scaling, data.name), partition, exchange


def tables_of(config: Config) -> Dataset:
    """The data of a run with the numbers of its tables, in the columns that models read.

    Raises:
        ConfigError, DataError: see `prepared`.
    """
    data, _, _ = prepared(config, with_scaling=False)
    if data.edge_attrs is None or config.data.values.get("edge_normalize", "none") == "none":
        return data
    raw: Values = {name: "none" for name in ("normalize", "edge_normalize") if name in config.data.values}
    return replace(data, edge_attrs=cut_as(config, {**config.data.values, **raw})[0].edge_attrs)


def cut_as(config: Config, values: Values) -> tuple[Dataset, Partition]:
    """The data, read with `values` of [data], and its cut. Where that is by time, features of edges are scaled by those
    that training sees."""
    seed, forget = config.general.seed, config.forget
    late = forget is not None or config.partition.values.get("split") == "time"
    how = values.get("edge_normalize", "none") if late else "none"
    values = {**values} | ({"edge_normalize": "none"} if how != "none" else {})
    scaling = values.get("normalize", "none") if forget is not None else "none"
    values = {**values} | ({"normalize": "none"} if scaling in OVER_NODES else {})
    data = datasets.read(config.data.name, path=config.folder, seed=seed, **values)
    if config.learned:
        data = with_node_columns(data)
    if config.links is not None:
        data = as_links(data, replace(config.links, seed=seed))
    partition = cut(config.partition.make(), data, seed)
    split_times = partition.parts[0].split_times
    if forget is None:
        return with_scaled_edges(data, {"how": how}, _end(split_times)), partition
    data, partition, nodes, examples = forget.apply(data, partition)
    if scaling in OVER_NODES:
        data = replace(data, x=normalize(data.x, scaling, data.name, over=data.x[nodes]))
    return with_scaled_edges(data, {"how": how}, _end(split_times), examples), partition


def _end(split_times: tuple[float, float] | None) -> float:
    """When training ends."""
    return math.inf if split_times is None else split_times[0]


def ready(data: Dataset, partition: Partition, config: Config) -> Dataset:
    """Data that is not scaled yet, with all columns that a config makes of its edges between members, scaled."""
    dataset = with_external_columns(data, partition, config.external, config.min_external).data
    return scale_by_holders(dataset, config.data.values.get("normalize", "none"), data.name)


def seen_by(algorithm: Choice, partition: Partition, data: Dataset) -> Partition:
    """The partition that clients see: the union of all where the algorithm is pooled."""
    return pool_clients(partition, data) if capabilities(algorithm.kind).pooled else partition


def weighted(algorithm: Choice, labels: Sequence[str], classes: int) -> Choice:
    """The algorithm with weights of classes in their order, where its class_weight names them.

    Raises:
        ConfigError: it names a class that there is not.
    """
    weights = algorithm.values.get("class_weight")
    if not isinstance(weights, Mapping):
        return algorithm
    return replace(algorithm, values=algorithm.values | {"class_weight": by_number(weights, labels, classes)})


_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Built:
    """Everything that a run needs; the partition is as cut, also when a pooled algorithm sees its union. precomputed:
    what was looked for in each client's data, where the algorithm asks for something. close: lets go of what the engine
    runs on. note: on what could not be looked at, which is nothing here. member_algorithms: see `Ingredients`."""

    data: Dataset
    partition: Partition
    algorithm: Algorithm
    fed: LocalEngine
    precomputed: Mapping[str, Precomputed] = field(default_factory=dict)
    close: Callable[[], None] = lambda: None
    note: str = ""
    member_algorithms: Mapping[str, Algorithm] = field(default_factory=dict)

    def algorithm_of(self, client: str) -> Algorithm:
        """The algorithm with the model of a client."""
        return self.member_algorithms.get(client, self.algorithm)


class Origin(NamedTuple):
    """The inputs of `federation`. engine: values of `config.SimulationEngine`. member_algorithms: see `Ingredients`."""

    data: Dataset
    partition: Partition
    seed: int
    engine: Values
    member_algorithms: Mapping[str, Algorithm]


def origin_of(fed: Engine) -> Origin | None:
    """The inputs of a federation that `federation` made; None for another federation."""
    return fed.origin if isinstance(fed, Simulation) and isinstance(fed.origin, Origin) else None


class Ingredients(NamedTuple):
    """The parts of a run before any graph is made. seen: the partition that the clients see, which is the union
    of all parts where the algorithm is pooled. member_algorithms: {client: its algorithm} for clients whose model is
    not [model]."""

    data: Dataset
    partition: Partition
    seen: Partition
    algorithm: Algorithm
    exchange: Appended | None
    member_algorithms: Mapping[str, Algorithm]

    @property
    def nets(self) -> list[Model]:
        """All members' models."""
        return [algorithm.model for algorithm in (self.algorithm, *self.member_algorithms.values())]


def ingredients(config: Config) -> Ingredients:
    """Load and partition the data of a config and make its algorithm; the same in every process.

    Raises:
        ConfigError, DataError: the data is absent or refused, or a plug-in refuses its values.
    """
    data, partition, exchange = prepared(config)
    seen = seen_by(config.algorithm, partition, data)
    data = scale_targets(data, seen)
    members = client_ids(len(seen.parts), seen.names)
    loaded = _loaded(config, data, seen, members).check()
    data, algorithm = _algorithm(loaded, seen)
    member_algorithms = _own_algorithms(config, loaded, seen, algorithm) if config.member_models else {}
    return Ingredients(data, partition, seen, algorithm, exchange, member_algorithms)


def _loaded(config: Config, data: Dataset, seen: Partition, members: Sequence[str]) -> Loaded:
    return (
        Configured.of(config)
        .with_members(members)
        .with_data(data, config.data.values.get("normalize", "none"), partition=seen, engine=config.engine.values)
    )


def _algorithm(loaded: Loaded, seen: Partition) -> tuple[Dataset, Algorithm]:
    """The data as the model reads its edges, and the algorithm with that model."""
    config, kind = loaded.config, suited(loaded.config, loaded.data)
    data = add_ports(loaded.data, kind)
    head = on_examples(kind, data.edge_attrs, data.links, config.decoder)
    model = head.build(width(data, seen), data.outputs)
    modelled = replace(loaded, data=data).with_model(model).check()
    labels = data.labels if data.target == CLASS else data.targets
    algorithm: Algorithm = weighted(config.algorithm, labels, data.outputs).make(model)
    modelled.with_algorithm(algorithm).check()
    check_stage(Scheduled(algorithm=algorithm, rounds=config.general.rounds))
    return data, algorithm


def _own_algorithms(config: Config, loaded: Loaded, seen: Partition, algorithm: Algorithm) -> dict[str, Algorithm]:
    """{client: its algorithm} for clients whose model is not [model]'s; clients with the same model share one."""
    algorithms = dict[str, Algorithm]()
    by_model = {json.dumps(config.model.plain(), sort_keys=True): algorithm}
    for client in loaded.members:
        its = config.of_member(client, loaded.members)
        if (same := json.dumps(its.model.plain(), sort_keys=True)) not in by_model:
            by_model[same] = _algorithm(replace(loaded, config=its), seen)[1]
        algorithms[client] = by_model[same]
    return {client: other for client, other in algorithms.items() if other is not algorithm}


def suited(config: Config, data: Dataset) -> Architecture:
    """The model's plug-in, fitted to the edge attributes of the data.

    Raises:
        ConfigError: the model is for edges with other features.
    """
    vertical = capabilities(config.algorithm.kind).vertical
    attributes = None if vertical else data.edge_attrs  # vertical models read no edge attributes
    model: Architecture = fit_to_edges(config.model.make(), attributes)
    check_edge_width(model, data.edge_attrs)
    return model


def build(config: Config) -> Built:
    """Load, cut and assemble; writes nothing.

    Raises:
        ConfigError, DataError: the data is absent or refused, or a plug-in refuses its values.
    """
    engine = config.engine.make()
    if engine.threads:
        torch.set_num_threads(engine.threads)
    inputs = ingredients(config)
    data, partition, seen = inputs.data, inputs.partition, inputs.seen
    scaled_edges = config.data.values.get("edge_normalize", "none") if data.edge_features else "none"
    if config.engine.name == "ray":
        fed, close = _on_cluster(config.plain(), engine, config.general.seed, inputs)
        data, partition, precomputed = *_kept_elsewhere(data, partition), dict[str, Precomputed]()
    else:
        fed, close = _in_process(engine, config.general.seed, inputs), lambda: None
        precomputed = precomputed_in(fed)
    fed.evaluated_clients = _evaluated(fed.clients, config.evaluation.clients, config.general.seed)
    meter_scaling(fed.ledger, fed.clients, seen, data.features, config.data.values.get("normalize", "none"))
    meter_scaling(fed.ledger, fed.clients, seen, data.edge_features, scaled_edges, "edge")
    meter_target_scaling(fed.ledger, fed.clients, data)
    if inputs.exchange is not None:
        meter_exchange(fed.ledger, fed.clients, inputs.exchange)
    return Built(data, partition, inputs.algorithm, fed, precomputed, close, member_algorithms=inputs.member_algorithms)


def _evaluated(clients: Sequence[str], most: int, seed: int) -> tuple[str, ...]:
    """Whom evaluations call: `most` clients, the same in every round of a run; () for all."""
    if not 0 < most < len(clients):
        return ()
    return tuple(drawn(tuple(clients), random.fold(random.key(seed), "evaluation"), most))


def _in_process(engine: SimulationEngine, seed: int, inputs: Ingredients) -> Simulation:
    mode = _mode(inputs.nets, engine.mode)
    how: Record = {"chunk": engine.chunk, "record": engine.record, "resend": engine.resend, "mode": mode}
    how |= {"device": choose_device(engine.device, mode == "vmap"), "seed": seed}
    fed = _simulation(
        inputs.data,
        inputs.seen,
        inputs.algorithm,
        DTYPES[engine.dtype],
        member_algorithms=inputs.member_algorithms,
        **how,
    )
    check_stage(EmbeddingWidths(widths=widths(inputs.algorithm, inputs.member_algorithms, fed.graphs)))
    return fed


def precomputed_in(fed: Simulation) -> dict[str, Precomputed]:
    """{client: what was looked for in its data}; of those that have any."""
    if next(iter(fed.graphs.values())).whole_edges.members[0].extra == Precomputed():
        return {}
    return {client: graph.whole_edges.members[0].extra for client, graph in fed.graphs.items()}


def _on_cluster(
    document: Document, engine: RayEngine, seed: int, inputs: Ingredients
) -> tuple[LocalEngine, Callable[[], None]]:
    """The clients are with workers, which load and cut for themselves; here is what the server holds. And what lets go
    of the workers."""
    from fedweave.engines.ray_workers import RayWorkers

    parts = inputs.seen.parts
    sizes = dict(zip(client_ids(len(parts), inputs.seen.names), (len(part.nodes) for part in parts), strict=True))
    workers = RayWorkers(engine.address, engine.start_seconds, engine.gpus_per_worker)
    executor = workers.executor(worker, document, sizes, workers.count(engine.workers))
    dtype = DTYPES[engine.dtype]
    options = _of_server(inputs.data, inputs.seen, dtype)
    fed = LocalEngine(executor, dtype=dtype, seed=seed, resend=engine.resend, **options)
    before = torch.get_num_threads()
    torch.set_num_threads(engine.threads or 1)  # more would spin between small sums, on cores that are the workers'

    def close() -> None:
        workers.close()
        torch.set_num_threads(before)

    return fed, close


def _kept_elsewhere(data: Dataset, partition: Partition) -> tuple[Dataset, Partition]:
    """The data and partition that the main process keeps while workers compute: large arrays move to a file. The
    partition is a copy, because the original refers to the data that it was made from and would keep it in memory."""
    if isinstance(data.x, np.ndarray):
        x: Any = map_large_array(data.x)
    else:
        parts = (map_large_array(array) for array in (data.x.data, data.x.indices, data.x.indptr))
        x = sp.csr_matrix(tuple(parts), data.x.shape, copy=False)
    return_freed_memory()
    return replace(data, x=x, edges=map_large_array(data.edges)), replace(partition)


def worker(document: Document, clients: Sequence[str]) -> Worker:
    """The worker of some clients of a run, built where it runs from the run's document (`Config.plain`)."""
    config = resolve(document)
    engine, inputs = config.engine.make(), ingredients(config)
    torch.set_num_threads(engine.threads or 1)
    keep_freed_memory()
    dtype = DTYPES[engine.dtype]
    graphs = client_graphs(inputs.data, inputs.seen, dtype, inputs.algorithm.finders, frozenset(clients))
    options: Record = {"classes": inputs.data.classes, "members": _members(inputs.data, inputs.seen)}
    options |= {
        "test": global_test_graph(inputs.data, inputs.seen, dtype),
        "member_algorithms": inputs.member_algorithms,
    }
    mode = _mode(inputs.nets, "vmap")
    options["device"] = choose_device(engine.device, mode == "vmap")
    more: Record = {"chunk": engine.chunk, "record": engine.record}
    return Worker(
        Loop(graphs, **options) if mode == "loop" else Vectorized(graphs, **options, **more), inputs.algorithm
    )


def _mode(nets: Sequence[Model], mode: str) -> str:
    return "loop" if any(layer.runs_alone for net in nets for layer in net) else mode


def train_counts(partition: Partition) -> list[int]:
    """The number of labeled training examples of each client."""
    return [int(part.masks[0].sum()) for part in partition.parts]


def federation(
    data: Dataset,
    partition: Partition,
    algorithm: Algorithm,
    *,
    seed: int = 0,
    mode: str = "vmap",
    device: str = "cpu",
    chunk: int = 0,
    record: When = "auto",
    dtype: torch.dtype = torch.float32,
    resend: bool = True,
    members: Mapping[str, Model] | None = None,
) -> Simulation:
    """The federation that `algorithm` trains on, in one process: a client for each part of the partition, or one client
    for all where the algorithm is pooled, such as centralized. It also has what the server holds and what the
    algorithm precomputes. Logs a warning for what came with the data and is not used, such as a split.

    mode, chunk, record, resend: see `engines.simulation.Simulation`; a `torch.nn.Module` takes mode "loop". dtype:
    of features and weights. device: "cpu", "cuda", "cuda:1", or "auto", which takes a GPU where there is one. members:
    {client: its model}, such as `models.SAGE().build(…)`, for clients whose model differs from `algorithm`'s, which
    then shares no weights; one model for several clients lets these run together.

    Raises:
        ConfigError: the partition is none that is cut; there is no such device or client, or the algorithm shares
            weights, or prototypes of other widths.
    """
    if not isinstance(partition, Partition):
        raise ConfigError(
            f"the partition is {partition!r}, which has not cut the data. Give {partition!r}.cut(data, seed=0).",
            code="config.value",
        )
    give_defaults(type(algorithm))
    name, declared = declared_by(algorithm)
    one = len(partition.parts) > 1 and declared.pooled
    seen = pool_clients(partition, data) if one else partition
    data = scale_targets(data, seen)
    clients = client_ids(len(seen.parts), seen.names)
    enrolled = Enrolled(name=name, declared=declared, members=clients, member_models=members or {})
    loaded = enrolled.with_data(data, data.scaling, partition=seen, engine={"mode": mode, "chunk": chunk}).check()
    check_stage(Counted(train=train_counts(seen)))
    loaded.with_model(algorithm.model).check().with_algorithm(algorithm).check()
    for note in (*notes_on_unused(None, data, partition), *repeats(data, partition)):
        _LOG.warning("note: %s", note)
    member_algorithms = with_models(algorithm, members or {})
    mode = _mode([algorithm.model, *(variant.model for variant in member_algorithms.values())], mode)
    options: Record = {"mode": mode, "chunk": chunk, "record": record, "resend": resend}
    place = choose_device(device, mode == "vmap", "device")
    fed = _simulation(
        data, seen, algorithm, dtype, seed=seed, device=place, member_algorithms=member_algorithms, **options
    )
    meter_target_scaling(fed.ledger, fed.clients, data)
    check_stage(EmbeddingWidths(widths=widths(algorithm, member_algorithms, fed.graphs)))
    engine = options | {"device": device, "dtype": str(dtype).removeprefix("torch.")}
    fed.origin = Origin(data, partition, seed, engine, member_algorithms)
    return fed


def _simulation(
    data: Dataset, partition: Partition, algorithm: Algorithm, dtype: torch.dtype, **options: Any
) -> Simulation:
    for note in _trials(data, partition, [algorithm, *options["member_algorithms"].values()], dtype):
        _LOG.warning("note: %s", note)
    graphs = client_graphs(data, partition, dtype, algorithm.finders)
    return Simulation(graphs, **_of_server(data, partition, dtype), **options)


def _trials(data: Dataset, partition: Partition, algorithms: Sequence[Algorithm], dtype: torch.dtype) -> list[str]:
    """Notes of the models that are tried on the form of the data before any client runs them (`Layer.trial`).

    Raises:
        ConfigError: a model cannot be trained on such data.
    """
    attributes = data.edge_attrs
    edge_features, weighted = data.edge_features, attributes is not None and attributes.weight is not None
    form = TrialForm(width(data, partition), data.outputs, edge_features, weighted, dtype)
    layers = [layer for algorithm in algorithms for layer in algorithm.model]
    notes = dict[str, None]()
    for layer in layers:
        notes |= dict.fromkeys(layer.trial(form) if layer.trial is not None else [])
    return [*notes]


def _of_server(data: Dataset, partition: Partition, dtype: torch.dtype) -> Record:
    """The arguments of an engine other than its clients."""
    return {
        "classes": data.classes,
        "test": global_test_graph(data, partition, dtype),
        "held": held_graphs(data, partition, dtype),
        "pairs": {name: torch.from_numpy(matrix) for name, matrix in partition.pairs.items()},
        "members": _members(data, partition),
    }


def _members(data: Dataset, partition: Partition) -> dict[str, torch.Tensor]:
    """{member: which of a union's examples are its own}; of links, with the pairs that were drawn for it."""
    rows = partition.members
    if data.links is not None and rows:
        [share] = shares(data, partition.parts)
        group = links_of(share, member_links(partition)).group
        rows = {
            name: np.concatenate([nodes, np.flatnonzero(group == at)]) for at, (name, nodes) in enumerate(rows.items())
        }
    return {name: torch.from_numpy(nodes) for name, nodes in rows.items()}


def client_graphs(
    data: Dataset,
    partition: Partition,
    dtype: torch.dtype = torch.float32,
    finders: Sequence[Precompute] = (),
    only: Collection[str] | None = None,
) -> Mapping[str, Graph]:
    """{client id: the subgraph that its nodes induce, or its own edges among them}, padded to few sizes
    (`core.sizes.size_classes`); clients may share nodes.

    A client that holds only some feature columns has these first, and zeros up to the `width` that all graphs share.
    Without labels, a client's y is -1 everywhere, while its masks still state how the nodes are used. finders: what to
    precompute for each client. only: the clients whose graphs are made, in the form that they have among all; None:
    all clients. Graphs without edge attributes and without precomputed features are made on first use, from the data
    of these clients only.
    """
    ids, columns = client_ids(len(partition.parts), partition.names), width(data, partition)
    if data.links is not None:
        return _link_graphs(data, partition, dtype, everywhere(finders, data, partition), only)
    rows, examples = (
        size_classes([len(places) for places in each])
        for each in zip(*((part.nodes, part.examples) for part in partition.parts), strict=True)
    )
    clients = [at for at, client in enumerate(ids) if only is None or client in only]
    parts: Sequence[Part] = [partition.parts[at] for at in clients]
    if not finders and data.edge_attrs is None and data.edge_labels is None:
        if only is not None:
            data, parts = restrict(data, parts)
        client_parts = zip(parts, (rows[at] for at in clients), (examples[at] for at in clients), strict=True)
        return MadeGraphs(data, dict(zip((ids[at] for at in clients), client_parts, strict=True)), columns, dtype)
    extras = everywhere(finders, data, partition)
    return {
        ids[at]: graph_of(share, columns, dtype, rows[at], examples[at], extras[at])
        for at, share in zip(clients, shares(data, parts), strict=True)
    }


def _link_graphs(
    data: Dataset,
    partition: Partition,
    dtype: torch.dtype,
    extras: Sequence[Precomputed],
    only: Collection[str] | None,
) -> dict[str, Graph]:
    """`client_graphs` where links are the examples; each link comes with one drawn pair that is no link. extras: the
    precomputed client features."""
    ids, columns = client_ids(len(partition.parts), partition.names), width(data, partition)
    client_data = list(shares(data, partition.parts))
    links = [links_of(share, member_links(partition, at)) for at, share in enumerate(client_data)]
    rows, examples = (
        size_classes([len(part.nodes) for part in partition.parts]),
        size_classes([len(each.y) for each in links]),
    )
    lengths = dict[tuple[int, int], dict[str, int]]()  # of graphs of one size, which are stacked
    for size, each in zip(zip(rows, examples, strict=True), links, strict=True):
        longest = lengths.setdefault(size, {})
        longest.update({name: max(longest.get(name, 1), length) for name, length in each.lengths.items()})
    return {
        client: graph_of(
            client_data[at],
            columns,
            dtype,
            rows[at],
            examples[at],
            extras[at],
            links=links[at],
            lengths=lengths[rows[at], examples[at]],
        )
        for at, client in enumerate(ids)
        if only is None or client in only
    }


def global_test_graph(data: Dataset, partition: Partition, dtype: torch.dtype = torch.float32) -> Graph | None:
    """The graph of `global_test_part`; None without test nodes."""
    part = global_test_part(data, partition)
    if part is None:
        return None
    [share] = shares(data, [part])
    return graph_of(share, data.features, dtype)


def held_graphs(data: Dataset, partition: Partition, dtype: torch.dtype = torch.float32) -> dict[str, Graph]:
    """{role: the graph that its nodes induce} for each set of nodes that the server holds, without the global test
    graph."""
    parts = zip(partition.held, shares(data, [*partition.held.values()]), strict=True)
    return {role: graph_of(share, data.features, dtype) for role, share in parts}

"""From a configuration, or from objects in Python, to a federation that trains: data, partition, clients' graphs,
models, algorithm and engine."""

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

from fedweave.algorithms.deployment import with_models
from fedweave.algorithms.participation import draw_clients
from fedweave.core import random
from fedweave.core.algorithm import Algorithm, Engine, capabilities, give_defaults
from fedweave.core.graph import TEST, VAL
from fedweave.core.graph_arrays import DTYPES
from fedweave.core.link_examples import is_sampled
from fedweave.core.model import Architecture, Model, TrialForm
from fedweave.core.operators import Precomputed
from fedweave.core.target import CLASS
from fedweave.core.types import Record, Values
from fedweave.datasets.base import Dataset
from fedweave.datasets.contents import digests
from fedweave.engines.devices import choose_device
from fedweave.engines.engine import LocalEngine
from fedweave.engines.loop import Loop
from fedweave.engines.sharded import Worker
from fedweave.engines.simulation import Simulation, keep_freed_memory, return_freed_memory
from fedweave.engines.states import map_large_array
from fedweave.engines.vectorized import Vectorized
from fedweave.errors import ConfigError
from fedweave.experiment.config import Config, Document, resolve
from fedweave.experiment.config.sections import RayEngine
from fedweave.experiment.facts import DataFacts, totals_of
from fedweave.experiment.first_step import first_step_notes
from fedweave.experiment.graphs import client_graphs, global_test_graph, graphs_at_server, links_of, member_links, width
from fedweave.experiment.loading import (
    client_partition,
    facts_of_shards,
    load_data,
    reads_own_shards,
    with_class_numbers,
)
from fedweave.experiment.requirements import (
    check,
    check_rounds,
    check_training_examples,
    check_widths,
    name_and_capabilities,
)
from fedweave.experiment.stages import Configured, Enrolled, Loaded
from fedweave.models.edge_settings import add_ports, check_edge_features, fit_to_edges
from fedweave.models.edges import on_examples
from fedweave.ops.recording import When
from fedweave.partition import notes_on_unused, repeats
from fedweave.partition.base import Partition, client_ids
from fedweave.partition.client_data import pool_clients, shares
from fedweave.partition.external import Appended, meter_exchange
from fedweave.partition.scaling import meter_scaling, meter_target_scaling, scale_targets
from fedweave.partition.statistics import statistics

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Built:
    """Everything that a run needs; the partition is as cut, also when a pooled algorithm sees its union. precomputed:
    what was looked for in each client's data, where the algorithm asks for something. close: lets go of what the engine
    runs on. note: on what could not be looked at, which is nothing here. member_algorithms: see `Ingredients`. facts:
    of data that is not opened here, where `data` has only its form. elsewhere: (function, arguments as JSON) -> what
    the function gives of the run's document and these, in another process of the cluster."""

    data: Dataset
    partition: Partition
    algorithm: Algorithm
    fed: LocalEngine
    precomputed: Mapping[str, Precomputed] = field(default_factory=dict)
    close: Callable[[], None] = lambda: None
    note: str = ""
    member_algorithms: Mapping[str, Algorithm] = field(default_factory=dict)
    facts: DataFacts | None = None
    elsewhere: Callable[..., Record] | None = None

    @cached_property
    def columns(self) -> dict[str, list[Any]]:
        """`partition.statistics.statistics` of the clients."""
        return statistics(self.data, self.partition) if self.facts is None else self.facts.columns

    @cached_property
    def totals(self) -> dict[str, int]:
        """`experiment.facts.totals_of` the partition."""
        return totals_of(self.data, self.partition) if self.facts is None else self.facts.totals

    @property
    def digests(self) -> dict[str, str]:
        """`datasets.contents.digests` of the data."""
        return digests(self.data) if self.facts is None else self.facts.digests

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


class Ingredients(NamedTuple):
    """The parts of a run before any graph is made. visible_partition: the partition that the clients see, which is the
    union of all parts where the algorithm is pooled. member_algorithms: {client: its algorithm} for clients whose model
    is not [model]."""

    data: Dataset
    partition: Partition
    visible_partition: Partition
    algorithm: Algorithm
    exchange: Appended | None
    member_algorithms: Mapping[str, Algorithm]

    @property
    def algorithms(self) -> tuple[Algorithm, ...]:
        """The algorithm, with each model that a client has."""
        return self.algorithm, *self.member_algorithms.values()


def build(config: Config) -> Built:
    """Load, cut and assemble; writes nothing.

    Raises:
        ConfigError, DataError: the data is absent or refused, or a plug-in refuses its values.
    """
    engine, seed = config.engine.make(), config.general.seed
    if engine.threads:
        torch.set_num_threads(engine.threads)
    facts = facts_of_shards(config) if config.engine.name == "ray" else None
    inputs = ingredients(config) if facts is None else ingredients(config, (), facts)
    data, partition, visible, algorithm, exchange, member_algorithms = inputs
    fed: LocalEngine
    extras: Record = {"member_algorithms": member_algorithms, "facts": facts}
    if config.engine.name == "ray":
        fed, extras["close"], extras["elsewhere"] = _ray_engine(config, engine, inputs, facts)
        data, partition = move_to_files(data, partition)
    else:
        fed = _simulation(
            inputs, DTYPES[engine.dtype], seed, engine.mode, engine.device, engine.chunk, engine.record, engine.resend
        )
        extras["precomputed"] = precomputed_features(fed)

    # Evaluations call the same clients in every round.
    sample = config.evaluation.clients
    if 0 < sample < len(fed.clients):
        key = random.fold(random.key(seed), "evaluation")
        fed.evaluated_clients = tuple(draw_clients(tuple(fed.clients), key, sample))
    edge_scaling = config.data.values.get("edge_normalize", "none") if data.edge_features else "none"
    meter_scaling(fed.ledger, fed.clients, visible, data.features, config.data.values.get("normalize", "none"))
    meter_scaling(fed.ledger, fed.clients, visible, data.edge_features, edge_scaling, "edge")
    meter_target_scaling(fed.ledger, fed.clients, data)
    if exchange is not None:
        meter_exchange(fed.ledger, fed.clients, exchange)
    return Built(data, partition, algorithm, fed, **extras)


def ingredients(config: Config, clients: Collection[str] | None = None, facts: DataFacts | None = None) -> Ingredients:
    """Load and partition the data of a config and make its algorithm; the same in every process. clients: see
    `load_data`. facts: see `Loaded`.

    Raises:
        ConfigError, DataError: the data is absent or refused, or a plug-in refuses its values.
    """
    data, partition, exchange = load_data(config, clients=clients)
    if facts is not None:  # also names that small graphs' columns have by their values
        data = replace(data, columns=tuple(facts.form["columns"]))
    visible = client_partition(config.algorithm, partition, data)
    data = scale_targets(data, visible)
    enrolled = Configured.of(config).with_members(client_ids(len(visible.parts), visible.names))
    normalize = config.data.values.get("normalize", "none")
    loaded = check(enrolled.with_data(data, normalize, partition=visible, engine=config.engine.values, facts=facts))
    data, algorithm = _make_algorithm(loaded, visible)

    # Clients with the same model share one algorithm.
    by_model = {json.dumps(config.model.plain(), sort_keys=True): algorithm}
    member_algorithms = dict[str, Algorithm]()
    for client in loaded.members if config.member_models else ():
        client_config = config.of_member(client, loaded.members)
        model = json.dumps(client_config.model.plain(), sort_keys=True)
        if model not in by_model:
            by_model[model] = _make_algorithm(replace(loaded, config=client_config), visible)[1]
        if by_model[model] is not algorithm:
            member_algorithms[client] = by_model[model]
    return Ingredients(data, partition, visible, algorithm, exchange, member_algorithms)


def _make_algorithm(loaded: Loaded, visible: Partition) -> tuple[Dataset, Algorithm]:
    """The data as the model reads its edges, and the algorithm with that model."""
    config = loaded.config
    architecture = fitted_model(config, loaded.data)
    data = add_ports(loaded.data, architecture)
    head = on_examples(architecture, data.edge_attrs, data.links, config.decoder)
    model = head.build(width(data, visible), data.outputs)
    modelled = check(replace(loaded, data=data).with_model(model))
    labels = data.labels if data.target == CLASS else data.targets
    algorithm: Algorithm = with_class_numbers(config.algorithm, labels, data.outputs).make(model)
    check(modelled.with_algorithm(algorithm))
    check_rounds(algorithm, config.general.rounds)
    return data, algorithm


def fitted_model(config: Config, data: Dataset) -> Architecture:
    """The model's plug-in, fitted to the edge attributes of the data.

    Raises:
        ConfigError: the model is for edges with other features.
    """
    vertical = capabilities(config.algorithm.kind).vertical
    attributes = None if vertical else data.edge_attrs  # vertical models read no edge attributes
    model: Architecture = fit_to_edges(config.model.make(), attributes)
    check_edge_features(model, data.edge_attrs)
    return model


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
    for all where the algorithm is pool_clients, such as centralized. It also has what the server holds and what the
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
    name, declared = name_and_capabilities(algorithm)
    visible = pool_clients(partition, data) if declared.pooled and len(partition.parts) > 1 else partition
    data = scale_targets(data, visible)
    clients = client_ids(len(visible.parts), visible.names)
    enrolled = Enrolled(name=name, declared=declared, members=clients, member_models=members or {})
    settings = {"mode": mode, "chunk": chunk}
    loaded = check(enrolled.with_data(data, data.scaling, partition=visible, engine=settings))
    check_training_examples(train_counts(visible))
    check(check(loaded.with_model(algorithm.model)).with_algorithm(algorithm))
    for note in (*notes_on_unused(None, data, partition), *repeats(data, partition)):
        _LOG.warning("note: %s", note)
    member_algorithms = with_models(algorithm, members or {})
    inputs = Ingredients(data, partition, visible, algorithm, None, member_algorithms)
    fed = _simulation(inputs, dtype, seed, mode, device, chunk, record, resend, "device")
    meter_target_scaling(fed.ledger, fed.clients, data)
    mode = _mode(inputs.algorithms, mode)
    engine = {"mode": mode, "chunk": chunk, "record": record, "resend": resend, "device": device}
    engine["dtype"] = str(dtype).removeprefix("torch.")
    fed.origin = Origin(data, partition, seed, engine, member_algorithms)
    return fed


def origin_of(fed: Engine) -> Origin | None:
    """The inputs of a federation that `federation` made; None for another federation."""
    return fed.origin if isinstance(fed, Simulation) and isinstance(fed.origin, Origin) else None


def train_counts(partition: Partition) -> list[int]:
    """The number of labeled training examples of each client."""
    return [int(part.masks[0].sum()) for part in partition.parts]


def precomputed_features(fed: Simulation) -> dict[str, Precomputed]:
    """{client: what was looked for in its data}; of those that have any."""
    if next(iter(fed.graphs.values())).whole_edges.members[0].extra == Precomputed():  # all clients have it, or none
        return {}
    return {client: graph.whole_edges.members[0].extra for client, graph in fed.graphs.items()}


def _simulation(
    inputs: Ingredients,
    dtype: torch.dtype,
    seed: int,
    mode: str,
    device: str,
    chunk: int,
    record: When,
    resend: bool,
    device_setting: str = "engine.device",
) -> Simulation:
    """All clients in this process. device_setting: the name of `device` in an error."""
    data, visible, algorithm = inputs.data, inputs.visible_partition, inputs.algorithm
    # Models are tried on the form of the data before any client runs them, which may raise a ConfigError.
    weighted = data.edge_attrs is not None and data.edge_attrs.weight is not None
    form = TrialForm(width(data, visible), data.outputs, data.edge_features, weighted, dtype)
    notes = dict[str, None]()  # once each, in order
    for variant in inputs.algorithms:
        for layer in variant.model:
            if layer.trial is not None:
                notes |= dict.fromkeys(layer.trial(form))
    for note in notes:
        _LOG.warning("note: %s", note)

    mode = _mode(inputs.algorithms, mode)
    fed = Simulation(
        client_graphs(data, visible, dtype, algorithm.finders),
        mode=mode,
        device=choose_device(device, mode == "vmap", device_setting),
        chunk=chunk,
        record=record,
        resend=resend,
        seed=seed,
        member_algorithms=inputs.member_algorithms,
        **_server_options(data, visible, dtype),
    )
    check_widths(algorithm, inputs.member_algorithms, fed.graphs)
    for note in first_step_notes(inputs.algorithms, fed.graphs):
        _LOG.warning("note: %s", note)
    return fed


def _ray_engine(
    config: Config, engine: RayEngine, inputs: Ingredients, facts: DataFacts | None
) -> tuple[LocalEngine, Callable[[], None], Callable[..., Record]]:
    """An engine whose clients are with workers, which load and cut for themselves; what lets go of the workers; and
    `Built.elsewhere`."""
    from fedweave.engines.ray_workers import RayWorkers

    visible, dtype = inputs.visible_partition, DTYPES[engine.dtype]
    clients = client_ids(len(visible.parts), visible.names)
    sizes = {client: len(part.nodes) for client, part in zip(clients, visible.parts, strict=True)}
    workers = RayWorkers(engine.address, engine.start_seconds, engine.gpus_per_worker)
    executor = workers.executor(worker, config.plain(), sizes, workers.count(engine.workers))
    options = _server_options(inputs.data, visible, dtype)
    if facts is not None:
        options["examples"] = facts.used
    fed = LocalEngine(executor, dtype=dtype, seed=config.general.seed, resend=engine.resend, **options)
    threads = torch.get_num_threads()
    torch.set_num_threads(engine.threads or 1)  # more would spin between small sums, on cores that are the workers'

    def close() -> None:
        workers.close()
        torch.set_num_threads(threads)

    return fed, close, partial(workers.call, document=config.plain())


def worker(document: Document, clients: Sequence[str]) -> Worker:
    """The worker of some clients of a run, built where it runs from the run's document (`Config.plain`). Of shards it
    opens those of its clients only, where these are enough."""
    config = resolve(document)
    engine, inputs = config.engine.make(), ingredients(config, clients if reads_own_shards(config) else None)
    if inputs.algorithm.finders:  # which look at all clients' data
        inputs = ingredients(config)
    torch.set_num_threads(engine.threads or 1)
    keep_freed_memory()
    data, visible, dtype = inputs.data, inputs.visible_partition, DTYPES[engine.dtype]
    graphs = client_graphs(data, visible, dtype, inputs.algorithm.finders, frozenset(clients))
    mode = _mode(inputs.algorithms, "vmap")
    options: Record = {
        "classes": data.classes,
        "members": _member_examples(data, visible),
        "test": global_test_graph(data, visible, dtype),
        "member_algorithms": inputs.member_algorithms,
        "device": choose_device(engine.device, mode == "vmap"),
    }
    if mode == "loop":
        return Worker(Loop(graphs, **options), inputs.algorithm)
    return Worker(Vectorized(graphs, **options, chunk=engine.chunk, record=engine.record), inputs.algorithm)


def _mode(algorithms: Iterable[Algorithm], mode: str) -> str:
    """The mode of the executor: "loop" if a layer cannot run for several clients at once."""
    for algorithm in algorithms:
        if any(layer.runs_alone for layer in algorithm.model):
            return "loop"
    return mode


def _server_options(data: Dataset, partition: Partition, dtype: torch.dtype) -> Record:
    """The arguments of an engine other than its clients."""
    test = global_test_graph(data, partition, dtype)
    examples = sum(int(part.masks.any(0).sum()) for part in partition.parts)
    return {
        "classes": data.classes,
        "test": test,
        "examples": examples + (0 if test is None else int(test.masks.any(0).sum())),
        "samples_ranks": _samples_ranks(data, partition),
        "held": graphs_at_server(data, partition, dtype),
        "pairs": {name: torch.from_numpy(matrix) for name, matrix in partition.pairs.items()},
        "members": _member_examples(data, partition),
    }


def _samples_ranks(data: Dataset, partition: Partition) -> bool:
    """Whether evaluations of a sample leave out ranks of links; a union's never do."""
    if data.links is None or not data.links.candidates or partition.members:
        return False
    links = sum(part.masks[[VAL, TEST]].sum(1) for part in partition.parts)  # [2]
    of_items = data.links.items is not None
    queries = links * (2 if data.links.relations and not of_items else 1)
    return is_sampled(queries, of_items and data.links.candidates == "all")


def _member_examples(data: Dataset, partition: Partition) -> dict[str, torch.Tensor]:
    """{member: which of a union's examples are its own}; of links, with the pairs that were drawn for it."""
    examples = {name: torch.from_numpy(nodes) for name, nodes in partition.members.items()}
    if data.links is not None and examples:
        [share] = shares(data, partition.parts)
        group = links_of(share, member_links(partition)).group
        for i, name in enumerate(examples):
            pairs = torch.from_numpy(np.flatnonzero(group == i))
            examples[name] = torch.cat([examples[name], pairs])
    return examples


def move_to_files(data: Dataset, partition: Partition) -> tuple[Dataset, Partition]:
    """The data and partition that the main process keeps while workers compute: large arrays move to a file. The
    partition is a copy, because the original refers to the data that it was made from and would keep it in memory."""
    if isinstance(data.x, np.ndarray):
        x: Any = map_large_array(data.x)
    else:
        arrays = map_large_array(data.x.data), map_large_array(data.x.indices), map_large_array(data.x.indptr)
        x = sp.csr_matrix(arrays, data.x.shape, copy=False)
    return_freed_memory()
    return replace(data, x=x, edges=map_large_array(data.edges)), replace(partition)

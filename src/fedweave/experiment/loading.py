"""The data and the partition that a configuration names, before any graph is made."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedweave import datasets
from fedweave.core.algorithm import capabilities
from fedweave.core.types import PREDICT, SHARDS, Values
from fedweave.datasets.base import Dataset
from fedweave.datasets.external import REFUSE, WIDENING
from fedweave.datasets.features import AUTO, OVER_NODES, normalize, scale_by_holders
from fedweave.datasets.links import as_links
from fedweave.datasets.lookup import in_shared
from fedweave.datasets.shards import ShardFolder
from fedweave.datasets.triples import with_node_columns
from fedweave.experiment.config import Choice, Config
from fedweave.experiment.facts import DataFacts
from fedweave.learn.losses import by_number
from fedweave.partition import cut
from fedweave.partition.base import Partition
from fedweave.partition.client_data import pool_clients
from fedweave.partition.external import Appended, check_inside, with_external_columns
from fedweave.partition.preparation import with_scaled_edges
from fedweave.partition.shards import is_local, read_clients


def load_data(
    config: Config, with_scaling: bool = True, clients: Collection[str] | None = None
) -> tuple[Dataset, Partition, Appended | None]:
    """The data that a config names, its partition and, where its edges between members become features, how.

    with_scaling: whether features are scaled as [data] normalize says. clients: of whom shards are read, where
    `reads_own_shards`; None: all.

    Raises:
        ConfigError, DataError: the data is absent or refused, or a plug-in refuses its values.
    """
    values = dict(config.data.values)
    widens = config.external in WIDENING
    scaling = values.get("normalize", "none") if widens and with_scaling else "none"
    if "normalize" in values and (widens or not with_scaling):
        values["normalize"] = "none"  # all columns are scaled together, once there are all
    if clients is not None:
        return *read_clients(_folder(config), clients, config.data.make()), None
    data, partition = read_and_cut(config, values)
    if config.noise is not None:
        data, partition = config.noise.apply(data, partition, config.general.seed)
    if config.fold is not None:
        data, partition = config.fold.withhold(data, partition, config.general.seed)
    if widens:
        visible = client_partition(config.algorithm, partition, data)
        exchange = with_external_columns(data, visible, config.external, config.min_external)
        return scale_by_holders(exchange.data, scaling, data.name), partition, exchange
    if config.external != PREDICT:
        check_inside(data)
    return data, partition, None


def reads_own_shards(config: Config) -> bool:
    """Whether a client's graph depends on its own shard only, and on counts of the others: not where anything is scaled
    over all clients' data, pooled, precomputed for all of it, read from edges between clients, or changed after the
    cut, and not where there is a global test set."""
    of_runs = (config.noise, config.fold, config.forget, config.links)
    if config.data.name != SHARDS or any(section is not None for section in of_runs) or config.learned:
        return False
    if config.external != REFUSE:
        return False
    if any(config.data.values[name] in OVER_NODES for name in ("normalize", "edge_normalize")):
        return False
    declared = capabilities(config.algorithm.kind)
    return not declared.pooled and not declared.vertical and is_local(_folder(config))


def facts_of_shards(config: Config) -> DataFacts | None:
    """What the shards of a run on a cluster state of its data and clients; None where its main process needs more: if
    clients read more than their own shards, or columns differ from those that were stated, or joint columns follow."""
    if not reads_own_shards(config) or config.evaluation.joint_columns or config.model.values.get("ports"):
        return None
    manifest = ShardFolder.open(_folder(config)).manifest
    values = {name: config.data.values[name] for name in manifest["settings"]}
    if manifest["facts"] is None or values | {"structure": list(values["structure"])} != manifest["settings"]:
        return None
    return DataFacts(digests=manifest["digests"], **manifest["facts"])


def _folder(config: Config) -> Path:
    """The folder of data that [data] path names."""
    return in_shared(Path(str(config.folder)).expanduser())


def read_and_cut(config: Config, values: Values) -> tuple[Dataset, Partition]:
    """The data, read with `values` of [data], and its partition. Where that is by time or examples are forgotten,
    features of edges are scaled by those that training sees."""
    seed, forget = config.general.seed, config.forget
    edge_scaling = node_scaling = "none"  # what is scaled here and not by `datasets.read`
    may_be_by_time = config.partition.name == SHARDS or config.partition.values.get("split") == "time"
    if forget is not None or may_be_by_time:
        edge_scaling = values.get("edge_normalize", "none")
    if forget is not None and values.get("normalize") in OVER_NODES:
        node_scaling = values["normalize"]
    values = dict(values)
    if edge_scaling == AUTO:  # each client scales its own
        edge_scaling = "none"
    if edge_scaling != "none":
        values["edge_normalize"] = "none"
    if node_scaling != "none":
        values["normalize"] = "none"

    data = datasets.read(config.data.name, path=config.folder, seed=seed, **values)
    if config.learned:
        data = with_node_columns(data)
    if config.links is not None:
        data = as_links(data, replace(config.links, seed=seed))
    partition = cut(config.partition.make(), data, seed)
    split_times = partition.parts[0].split_times
    training_end = math.inf if split_times is None else split_times[0]
    examples = None
    if forget is not None:
        data, partition, nodes, examples = forget.apply(data, partition)
        if node_scaling != "none":
            data = replace(data, x=normalize(data.x, node_scaling, data.name, over=data.x[nodes]))
    return with_scaled_edges(data, {"how": edge_scaling}, training_end, examples), partition


def load_tables(config: Config) -> Dataset:
    """The data of a run with the numbers of its tables, in the columns that models read.

    Raises:
        ConfigError, DataError: see `load_data`.
    """
    data, _, _ = load_data(config, with_scaling=False)
    values = dict(config.data.values)
    if data.edge_attrs is None or values.get("edge_normalize", "none") == "none":
        return data
    for name in {"normalize", "edge_normalize"} & values.keys():
        values[name] = "none"
    return replace(data, edge_attrs=read_and_cut(config, values)[0].edge_attrs)


def add_external_columns(data: Dataset, partition: Partition, config: Config) -> Dataset:
    """Data that is not scaled yet, with all columns that a config makes of its edges between members, scaled."""
    dataset = with_external_columns(data, partition, config.external, config.min_external).data
    return scale_by_holders(dataset, config.data.values.get("normalize", "none"), data.name)


def client_partition(algorithm: Choice, partition: Partition, data: Dataset) -> Partition:
    """The partition that clients see: the union of all where the algorithm is pooled."""
    return pool_clients(partition, data) if capabilities(algorithm.kind).pooled else partition


def with_class_numbers(algorithm: Choice, labels: Sequence[str], classes: int) -> Choice:
    """The algorithm with weights of classes in their order, where its class_weight names them.

    Raises:
        ConfigError: it names a class that there is not.
    """
    weights = algorithm.values.get("class_weight")
    if not isinstance(weights, Mapping):
        return algorithm
    return replace(algorithm, values=algorithm.values | {"class_weight": by_number(weights, labels, classes)})

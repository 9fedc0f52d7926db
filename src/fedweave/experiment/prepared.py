"""A run's data and its cut, with the edges between members made features where the configuration says so."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedweave import datasets
from fedweave.core.algorithm import capabilities
from fedweave.core.records import Values
from fedweave.datasets.base import Dataset
from fedweave.datasets.carrying import scaled, scaled_like
from fedweave.datasets.features import scaled_by_holders
from fedweave.experiment.config import Choice, Config
from fedweave.learn.losses import by_number
from fedweave.partition import cut
from fedweave.partition.base import Partition
from fedweave.partition.external import Appended, appended, check_inside
from fedweave.partition.pooling import pooled


def prepared(config: Config, with_scaling: bool = True) -> tuple[Dataset, Partition, Appended | None]:
    """The data that a config names, its cut and, where its edges between members become features, how.

    with_scaling: whether features are scaled as [data] normalise says.

    Raises:
        ConfigError, DataError: the data is absent or refused, or a plug-in refuses its values.
    """
    seed, how, values = config.general.seed, config.external, dict(config.data.values)
    scaling = values.get("normalise", "none") if how != "refuse" and with_scaling else "none"
    if "normalise" in values and (how != "refuse" or not with_scaling):
        values["normalise"] = "none"  # all columns are scaled together, once there are all
    data, partition = cut_as(config, values)
    if config.noise is not None:
        data, partition = config.noise.applied(data, partition, seed)
    if how == "refuse":
        check_inside(data)
        return data, partition, None
    made = appended(data, seen_by(config.algorithm, partition, data), how, config.external_least)
    return scaled_by_holders(made.data, scaling, data.name), partition, made


def cut_as(config: Config, values: Values) -> tuple[Dataset, Partition]:
    """The data, read with `values` of [data], and its cut. Where that is by time, features of edges are scaled by those
    that training sees."""
    seed = config.general.seed
    how = values.get("edge_normalise", "none") if config.partition.values.get("split") == "time" else "none"
    values = {**values} | ({"edge_normalise": "none"} if how != "none" else {})
    data = datasets.load(config.data.name, path=config.folder, seed=seed, **values)
    partition = cut(config.partition.make(), data, seed)
    return scaled_until(data, how, partition.parts[0].until), partition


def scaled_until(data: Dataset, how: str, until: tuple[float, float] | None) -> Dataset:
    """The data with features of edges scaled by those `until` the end of training."""
    if how == "none" or data.carried is None or until is None:
        return data
    carried = scaled(data.carried, how, data.name, until[0])
    if data.outside is not None:
        data = replace(data, outside=data.outside._replace(carried=scaled_like(data.outside.carried, carried, how)))
    return replace(data, carried=carried)


def ready(data: Dataset, partition: Partition, config: Config) -> Dataset:
    """Data that is not scaled yet, with all columns that a config makes of its edges between members, scaled."""
    made = appended(data, partition, config.external, config.external_least).data
    return scaled_by_holders(made, config.data.values.get("normalise", "none"), data.name)


def seen_by(algorithm: Choice, partition: Partition, data: Dataset) -> Partition:
    """The partition that clients see: the union of all where the algorithm is pooled."""
    return pooled(partition, data) if capabilities(algorithm.kind).pooled else partition


def weighted(algorithm: Choice, labels: Sequence[str], classes: int) -> Choice:
    """The algorithm with weights of classes in their order, where its class_weight names them.

    Raises:
        ConfigError: it names a class that there is not.
    """
    given = algorithm.values.get("class_weight")
    if not isinstance(given, Mapping):
        return algorithm
    return replace(algorithm, values=algorithm.values | {"class_weight": by_number(given, labels, classes)})

"""The configuration of a run that you put together from objects in Python, so that its folder is like any other run's.

A `Choice` is a plug-in by name with its settings, as a section of a configuration has it. The functions below find the
choice that makes an object again, or else put a placeholder, which only names the object's class.
"""

import logging
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedweave import datasets
from fedweave.algorithms.preset import Preset
from fedweave.core import model as models
from fedweave.core import plugins
from fedweave.core.algorithm import Algorithm
from fedweave.core.model import Model
from fedweave.core.plugins import maker_of
from fedweave.core.types import Record, Values
from fedweave.datasets.base import Dataset
from fedweave.datasets.contents import content
from fedweave.errors import ConfigError, UserError
from fedweave.experiment.build import Built, Origin
from fedweave.experiment.config import Config, General, SimulationEngine, lookup, own_parameters
from fedweave.experiment.config.experiment import with_weight_decay
from fedweave.experiment.config.plugins import (
    PARTS,
    Choice,
    InPython,
    MemberModels,
    choose,
    parameters,
    registry,
    usable,
    values_of,
)
from fedweave.experiment.requirements import Enrolled, declared_by
from fedweave.experiment.runs.files import plain_errors
from fedweave.models.edge_settings import WITHOUT_ATTRIBUTES
from fedweave.models.module import OwnModule
from fedweave.partition import Column, Partition
from fedweave.partition.base import Part, Partitioner, client_ids
from fedweave.partition.scaling import meter_scaling

_LOG = logging.getLogger(__name__)


def described(algorithm: Algorithm, origin: Origin, general: General, out: Path) -> tuple[Config, Dataset]:
    """The configuration of training `algorithm` on the federation of `origin`, in the run's directory `out`, and the
    data that it names.

    Data without a name is saved next to `out`, with its digest in the file name; so is data with the owners of a
    partition that you made yourself. If a plug-in gets a placeholder, a warning says what you cannot do with the run.

    Raises:
        UserError: data without a name cannot be saved.
    """
    partition, data = _partition(origin)
    model = _model(algorithm.model, data)
    algorithm_choice = with_weight_decay(of_algorithm(algorithm), models.example(algorithm.model) == "link")
    member_models = MemberModels(
        members={client: _model(its.model, data) for client, its in origin.member_algorithms.items()}
    )
    data_choice, folder = _data(data, origin.seed, out.parent)
    defaults = {name: parameter.default for name, parameter in own_parameters(SimulationEngine).items()}
    engine = Choice("engine", "simulation", SimulationEngine, defaults | dict(origin.engine))
    for choice in (partition, model, *member_models.members.values(), algorithm_choice):
        if not is_named(choice):
            _LOG.warning(
                "note: no file defines how the %s %s is made. You can report and compare %s, but neither predict with "
                "it nor train it again (docs/comparing.md)",
                choice.path,
                choice.label,
                out,
            )
    return Config(
        general, data_choice, partition, model, algorithm_choice, engine, folder, member_models=member_models
    ), data


def _model(layers: Model, data: Dataset) -> Choice:
    """The choice that builds these layers again, on this data.

    A configuration that leaves edge attributes open fits the model to those of the data. Layers that were built without
    them stay without.
    """
    model = of_model(layers)
    if data.edge_attrs is None:
        return model
    without = {name: value for name, value in WITHOUT_ATTRIBUTES.items() if model.values.get(name, 0) is None}
    return replace(model, values={**model.values, **without})


def check_described(config: Config, built: Built) -> None:
    """Check what `experiment.build.build` checks of the same run, and write the same notes.

    Raises:
        ConfigError, DataError: the algorithm or the model demands other data.
    """
    name, declared = declared_by(built.algorithm)
    enrolled = Enrolled(name=name, declared=declared, members=built.fed.clients, member_models={})
    loaded = enrolled.with_data(built.data, built.data.scaling, partition=built.partition).check()
    loaded.with_model(built.algorithm.model).with_algorithm(built.algorithm).check()
    how = config.data.values.get("normalize", "none")
    meter_scaling(built.fed.ledger, built.fed.clients, built.partition, built.data.features, how)


def _partition(origin: Origin) -> tuple[Choice, Dataset]:
    """The choice that makes the partition, and the data that it partitions: the partition's own plug-in if it has one,
    or else the data with a column of owners, or else a placeholder."""
    data, partition, seed = origin.data, origin.partition, origin.seed
    maker = partition.maker
    if maker is not None and isinstance(maker.plugin, Partitioner) and maker.arguments[0] is data:
        choice = of_partition(maker.plugin)
        if is_named(choice) and (maker.arguments[1] == seed or _same(maker.plugin.cut(data, seed), partition)):
            return choice, data
    if (with_owners := _with_owners(data, partition)) is not None:
        return of_partition(Column(use_dataset_split=True)), with_owners
    return of_partition(partition), data


def _with_owners(data: Dataset, partition: Partition) -> Dataset | None:
    """The data with the owners and the split of a partition; None where these do not determine the whole partition."""
    parts = partition.parts
    examples = np.concatenate([part.examples for part in parts])
    more = partition.test is not None or partition.evaluation_part is not None or partition.held or partition.pairs
    more_of_parts = any(part.columns is not None or part.edges is not None or not part.labels for part in parts)
    if more or more_of_parts or not np.array_equal(np.sort(examples), np.arange(data.examples)):
        return None
    owner, public = np.zeros(data.examples, np.int64), np.zeros((3, data.examples), bool)
    for at, part in enumerate(parts):
        owner[part.examples], public[:, part.examples] = at, part.masks
    return replace(data, owner=owner, owners=tuple(client_ids(len(parts), partition.names)), public=public, notes=())


def _same(one: Any, other: Any) -> bool:
    """Whether two partitions, or values in them, are equal."""
    if isinstance(one, Partition | Part):
        names = [field.name for field in fields(one) if field.init]
        return type(one) is type(other) and all(_same(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(_same, one, other))
    return bool(np.array_equal(one, other))


def _data(data: Dataset, seed: int, beside: Path) -> tuple[Choice, str | None]:
    """The choice that reads the data again, and its path; the data is saved in `beside` if no settings read it."""
    settings = data.named
    if settings is None or (settings.get("seed", seed) != seed and content(_read(settings, seed)) != content(data)):
        settings = _saved(data, beside)
    table = {key: value for key, value in settings.items() if key not in ("path", "seed")}
    name, kind = lookup("data.name", "data", settings["name"])
    return choose("data", name, kind, parameters("data", kind), table), settings.get("path")


def _saved(data: Dataset, beside: Path) -> Record:
    """Save the data in a file with its digest in the name; returns the settings that load it."""
    stem = re.sub(r"[^\w.-]+", "-", data.name) or "data"
    file = (beside / f"{stem}-{content(data)[:12]}.npz").absolute()
    settings = data.in_archive(file)
    if not file.exists():
        with plain_errors(beside):
            beside.mkdir(parents=True, exist_ok=True)
        replace(data).save(file)  # of a copy, because `save` names the file in the object that it saves
        if content(_read(settings, 0)) != content(data):
            file.unlink()
            raise UserError(
                f"{data.name} cannot be saved next to the run: the file would be read as other data, for example with "
                "fewer classes. Give the classes names (labels), or save tables and load them by name (datasets.load)."
            )
    return settings


def _read(settings: Values, seed: int) -> Dataset:
    return datasets.load(**{**settings, "seed": seed})


def of_partition(plugin: object) -> Choice:
    """The choice of [partition] that makes `plugin`."""
    return _choice("partition", type(plugin), values_of(plugin), plugin)


def of_model(model: object) -> Choice:
    """The choice of [model] that builds these layers."""
    maker = maker_of(model)
    if maker is None:
        return _placeholder("model", "layers")
    plugin = maker.plugin
    if isinstance(plugin, OwnModule):  # a module's class and its settings
        return _choice("model", plugin.kind, plugin.values, plugin.module)
    return _choice("model", type(plugin), values_of(plugin), plugin)


def of_algorithm(algorithm: object) -> Choice:
    """The choice of [algorithm] that makes this algorithm, given its model."""
    maker = maker_of(algorithm)
    if maker is not None and isinstance(maker.plugin, Preset):
        return _choice("algorithm", maker.plugin, maker.arguments[0], maker.plugin.paper)
    values = values_of(algorithm)
    settings = dict(list(values.items())[1:])  # the first field is the model
    return _choice("algorithm", type(algorithm), settings, algorithm)


def is_named(choice: Choice) -> bool:
    """Whether the choice can be made again from a configuration."""
    return not plugins.is_in_python(choice.name)


def _choice(section: str, kind: Any, values: Values, plugin: object) -> Choice:
    """The choice of a plug-in of this kind with these values; a placeholder if it has no name in a configuration, or if
    TOML cannot express a value."""
    try:
        name = _name(section, kind)
        table = {key: _plain(key, value) for key, value in values.items()}
        return choose(section, name, kind, parameters(section, kind), table)
    except (ConfigError, TypeError):
        return _placeholder(section, (plugin if isinstance(plugin, type) else type(plugin)).__name__)


def _placeholder(section: str, called: str) -> Choice:
    name = f"{plugins.IN_PYTHON}{called}"
    return Choice(section, name, InPython(name), {})  # type: ignore[arg-type]


def _name(section: str, kind: object) -> str:
    """The name of a class or preset in a configuration.

    Raises:
        ConfigError: it has no name there.
    """
    if match := plugins.name_of(registry(section), kind):
        return match
    if file := plugins.file_of(kind):
        usable(section, file, plugins.load(file))  # a file of a package may not run by itself
        return file
    raise ConfigError(f"{kind} is defined in no file")


def _plain(key: str, value: object) -> object:
    """A value as `choose` takes it: fedweave's own parts as they are, other parts as tables, paths as text."""
    if key == PARTS and isinstance(value, tuple | list):
        return [_part(part) for part in value]
    return str(value) if isinstance(value, Path) else value


def _part(part: object) -> object:
    if plugins.name_of(registry("part"), type(part)):
        return part
    return {"name": _name("part", type(part)), **values_of(part)}

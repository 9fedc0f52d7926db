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
from fedweave.core.types import Values
from fedweave.datasets.base import Dataset
from fedweave.datasets.contents import content
from fedweave.errors import ConfigError, UserError
from fedweave.experiment.build import Built, Origin
from fedweave.experiment.config import Config, General, SimulationEngine, field_parameters, lookup
from fedweave.experiment.config.choices import Choice, MemberModels, choose
from fedweave.experiment.config.experiment import with_weight_decay
from fedweave.experiment.config.plugins import PARTS, InPython, parameters, registry, usable, values_of
from fedweave.experiment.requirements import check, name_and_capabilities
from fedweave.experiment.runs.files import plain_errors
from fedweave.experiment.stages import Enrolled
from fedweave.models.edge_settings import WITHOUT_ATTRIBUTES
from fedweave.models.module import OwnModule
from fedweave.partition import Column, Partition
from fedweave.partition.base import Part, Partitioner, client_ids
from fedweave.partition.scaling import meter_scaling

_LOG = logging.getLogger(__name__)


def describe(algorithm: Algorithm, origin: Origin, general: General, out: Path) -> tuple[Config, Dataset]:
    """The configuration of training `algorithm` on the federation of `origin`, in the run's directory `out`, and the
    data that it names.

    Data without a name is saved next to `out`, with its digest in the file name; so is data with the owners of a
    partition that you made yourself. If a plug-in gets a placeholder, a warning says what you cannot do with the run.

    Raises:
        UserError: data without a name cannot be saved.
    """
    partition, data = _partition(origin)
    model = _model(algorithm.model, data)
    algorithm_choice = with_weight_decay(_algorithm(algorithm), models.example(algorithm.model) == "link")
    members = {client: _model(variant.model, data) for client, variant in origin.member_algorithms.items()}
    data_choice, folder = _data(data, origin.seed, out.parent)
    defaults = {name: parameter.default for name, parameter in field_parameters(SimulationEngine).items()}
    engine = Choice("engine", "simulation", SimulationEngine, defaults | dict(origin.engine))
    for choice in (partition, model, *members.values(), algorithm_choice):
        if plugins.is_in_python(choice.name):
            _LOG.warning(
                "note: no file defines how the %s %s is made. You can report and compare %s, but neither predict with "
                "it nor train it again (docs/python-runs.md)",
                choice.path,
                choice.label,
                out,
            )
    choices = data_choice, partition, model, algorithm_choice, engine
    return Config(general, *choices, folder, member_models=MemberModels(members=members)), data


def check_described(config: Config, built: Built) -> None:
    """Check what `experiment.build.build` checks of the same run, and write the same notes.

    Raises:
        ConfigError, DataError: the algorithm or the model demands other data.
    """
    name, declared = name_and_capabilities(built.algorithm)
    enrolled = Enrolled(name=name, declared=declared, members=built.fed.clients, member_models={})
    loaded = check(enrolled.with_data(built.data, built.data.scaling, partition=built.partition))
    check(loaded.with_model(built.algorithm.model).with_algorithm(built.algorithm))
    how = config.data.values.get("normalize", "none")
    meter_scaling(built.fed.ledger, built.fed.clients, built.partition, built.data.features, how)


def _data(data: Dataset, seed: int, folder: Path) -> tuple[Choice, str | None]:
    """The choice that reads the data again, and its path; the data is saved in `folder` if no settings read it, in a
    file with its digest in the name."""

    def is_read_by(settings: Values, seed: int) -> bool:
        return content(datasets.load(**{**settings, "seed": seed})) == content(data)

    settings = data.named
    if settings is None or (settings.get("seed", seed) != seed and not is_read_by(settings, seed)):
        stem = re.sub(r"[^\w.-]+", "-", data.name) or "data"
        file = (folder / f"{stem}-{content(data)[:12]}.npz").absolute()
        settings = data.in_archive(file)
        if not file.exists():
            with plain_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
            replace(data).save(file)  # of a copy, because `save` names the file in the object that it saves
            if not is_read_by(settings, 0):
                file.unlink()
                raise UserError(
                    f"{data.name} cannot be saved next to the run: the file would be read as other data, for example "
                    "with fewer classes. Give the classes names (labels), or save tables and load them by name "
                    "(datasets.load)."
                )
    table = {key: value for key, value in settings.items() if key not in ("path", "seed")}
    name, kind = lookup("data.name", "data", settings["name"])
    return choose("data", name, kind, parameters("data", kind), table), settings.get("path")


def _partition(origin: Origin) -> tuple[Choice, Dataset]:
    """The choice that makes the partition, and the data that it partitions: the partition's own plug-in if it has one,
    or else the data with a column of owners, or else a placeholder."""
    data, partition, seed = origin.data, origin.partition, origin.seed
    maker = partition.maker
    if maker is not None and isinstance(maker.plugin, Partitioner) and maker.arguments[0] is data:
        choice = _choose("partition", type(maker.plugin), values_of(maker.plugin), maker.plugin)
        is_named = not plugins.is_in_python(choice.name)
        if is_named and (maker.arguments[1] == seed or _equal(maker.plugin.cut(data, seed), partition)):
            return choice, data

    # Owners and a split determine the whole partition if each example is at one client, and nothing else is stored.
    parts = partition.parts
    examples = np.concatenate([part.examples for part in parts])
    is_plain = not (partition.test is not None or partition.evaluation_part is not None)
    is_plain = is_plain and not partition.held and not partition.pairs
    is_plain = is_plain and all(part.columns is None and part.edges is None and part.labels for part in parts)
    if is_plain and np.array_equal(np.sort(examples), np.arange(data.examples)):
        owner, public = np.zeros(data.examples, np.int64), np.zeros((3, data.examples), bool)
        for index, part in enumerate(parts):
            owner[part.examples] = index
            public[:, part.examples] = part.masks
        owners = tuple(client_ids(len(parts), partition.names))
        data = replace(data, owner=owner, owners=owners, public=public, notes=())
        column = Column(use_dataset_split=True)
        return _choose("partition", Column, values_of(column), column), data
    return _choose("partition", type(partition), values_of(partition), partition), data


def _equal(one: Any, other: Any) -> bool:
    """Whether two partitions, or values in them, are equal."""
    if isinstance(one, Partition | Part):
        names = [field.name for field in fields(one) if field.init]
        return type(one) is type(other) and all(_equal(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(_equal, one, other))
    return bool(np.array_equal(one, other))


def _model(layers: Model, data: Dataset) -> Choice:
    """The choice of [model] that builds these layers again, on this data.

    A configuration that leaves edge attributes open fits the model to those of the data. Layers that were built without
    them stay without.
    """
    maker = maker_of(layers)
    if maker is None:
        model = _placeholder("model", "layers")
    elif isinstance(maker.plugin, OwnModule):  # a module's class and its settings
        model = _choose("model", maker.plugin.kind, maker.plugin.values, maker.plugin.module)
    else:
        model = _choose("model", type(maker.plugin), values_of(maker.plugin), maker.plugin)
    if data.edge_attrs is None:
        return model
    without = {name: value for name, value in WITHOUT_ATTRIBUTES.items() if model.values.get(name, 0) is None}
    return replace(model, values={**model.values, **without})


def _algorithm(algorithm: object) -> Choice:
    """The choice of [algorithm] that makes this algorithm, given its model."""
    maker = maker_of(algorithm)
    if maker is not None and isinstance(maker.plugin, Preset):
        return _choose("algorithm", maker.plugin, maker.arguments[0], maker.plugin.paper)
    settings = dict(list(values_of(algorithm).items())[1:])  # the first field is the model
    return _choose("algorithm", type(algorithm), settings, algorithm)


def _choose(section: str, kind: Any, values: Values, plugin: object) -> Choice:
    """The choice of a plug-in of this kind with these values; a placeholder if it has no name in a configuration, or if
    TOML cannot express a value."""
    try:
        name = _name(section, kind)
        table = dict[str, object]()
        for key, value in values.items():
            if key == PARTS and isinstance(value, tuple | list):
                table[key] = [_part(part) for part in value]
            else:
                table[key] = str(value) if isinstance(value, Path) else value
        return choose(section, name, kind, parameters(section, kind), table)
    except (ConfigError, TypeError):
        return _placeholder(section, (plugin if isinstance(plugin, type) else type(plugin)).__name__)


def _part(part: object) -> object:
    """A part as `choose` takes it: fedweave's own as it is, another as a table."""
    if plugins.name_of(registry("part"), type(part)):
        return part
    return {"name": _name("part", type(part)), **values_of(part)}


def _name(section: str, kind: object) -> str:
    """The name of a class or preset in a configuration.

    Raises:
        ConfigError: it has no name there.
    """
    name = plugins.name_of(registry(section), kind)
    if name:
        return name
    file = plugins.file_of(kind)
    if not file:
        raise ConfigError(f"{kind} is defined in no file")
    usable(section, file, plugins.load(file))  # a file of a package may not run by itself
    return file


def _placeholder(section: str, class_name: str) -> Choice:
    name = f"{plugins.IN_PYTHON}{class_name}"
    kind: Any = InPython(name)
    return Choice(section, name, kind, {})

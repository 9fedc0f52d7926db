"""The configuration of a run that was put together from objects in Python."""

import logging
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedweave import datasets
from fedweave.algorithms.preset import Preset
from fedweave.core import plugins
from fedweave.core.algorithm import Algorithm
from fedweave.core.model import Model
from fedweave.core.plugins import maker_of
from fedweave.core.types import Record, Values
from fedweave.datasets.base import Dataset
from fedweave.datasets.features import content
from fedweave.errors import ConfigError, UserError
from fedweave.experiment.build import Built, Origin
from fedweave.experiment.config import Config, General, SimulationEngine, lookup, own_parameters
from fedweave.experiment.config.plugins import (
    PARTS,
    Choice,
    InPython,
    OwnModels,
    choose,
    parameters,
    registry,
    usable,
    values_of,
)
from fedweave.experiment.requirements import ExperimentFacts
from fedweave.experiment.runs.files import plain_errors
from fedweave.models.blocks import BARE
from fedweave.models.module import OwnModule
from fedweave.partition import Column, Partition
from fedweave.partition.base import Part, Partitioner, client_ids
from fedweave.partition.client_data import meter_scaling

_LOG = logging.getLogger(__name__)


def described(algorithm: Algorithm, origin: Origin, general: General, out: Path) -> tuple[Config, Dataset]:
    """The configuration of training `algorithm` on the federation of `origin`, in the run's directory `out`, and the
    data that it names. Data without a name is saved next to `out`, with its digest in the file name, and together with
    a partition that you made yourself. Plug-ins without a name get a placeholder, and a warning lists what the run
    cannot be used for.

    Raises:
        UserError: data without a name cannot be saved.
    """
    partition, data = _partition(origin)
    model, algorithm_choice = _model(algorithm.model, data), of_algorithm(algorithm)
    member_models = OwnModels(members={client: _model(its.model, data) for client, its in origin.own.items()})
    loaded, folder = _data(data, origin.seed, out.parent)
    defaults = {name: member_models.default for name, member_models in own_parameters(SimulationEngine).items()}
    engine = Choice("engine", "simulation", SimulationEngine, defaults | dict(origin.engine))
    for choice in (partition, model, *member_models.members.values(), algorithm_choice):
        if not is_named(choice):
            _LOG.warning(
                "note: no file defines how the %s %s is made, so that %s can be reported and compared, but can neither "
                "predict nor be trained again (docs/comparing.md)",
                *(choice.path, choice.label, out),
            )
    return Config(general, loaded, partition, model, algorithm_choice, engine, folder, own=member_models), data


def _model(layers: Model, data: Dataset) -> Choice:
    model = of_model(layers)
    if data.edge_attrs is None:
        return model
    built = {name: value for name, value in BARE.items() if model.values.get(name, 0) is None}
    return replace(model, values={**model.values, **built})  # as it was built, not fitted to the edge attributes


def check_described(config: Config, built: Built) -> None:
    """Check what `experiment.build.build` checks of the same run, and write the same notes.

    Raises:
        ConfigError, DataError: the algorithm or the model demands other data.
    """
    facts = ExperimentFacts.of_algorithm(built.algorithm)
    facts.more(data=built.data, partition=built.partition, model=built.algorithm.model).check()
    how = config.data.values.get("normalize", "none")
    meter_scaling(built.fed.ledger, built.fed.clients, built.partition, built.data.features, how)


def _partition(origin: Origin) -> tuple[Choice, Dataset]:
    """The choice that makes the partition, and the data that it partitions."""
    data, cut, seed = origin.data, origin.partition, origin.seed
    maker = cut.maker
    if maker is not None and isinstance(maker.plugin, Partitioner) and maker.given[0] is data:
        choice = of_partition(maker.plugin)
        if is_named(choice) and (maker.given[1] == seed or _same(maker.plugin.cut(data, seed), cut)):
            return choice, data
    with_owners = _with_owners(data, cut)
    return (
        (of_partition(cut), data)
        if with_owners is None
        else (of_partition(Column(use_dataset_split=True)), with_owners)
    )


def _with_owners(data: Dataset, cut: Partition) -> Dataset | None:
    """The data with the owners and the split of a partition; None where these do not determine the whole partition."""
    parts = cut.parts
    examples = np.concatenate([part.examples for part in parts])
    plain = all(part.columns is None and part.edges is None and part.labels for part in parts)
    more = cut.test is not None or cut.judged is not None or cut.held or cut.pairs
    if more or not plain or not np.array_equal(np.sort(examples), np.arange(data.examples)):
        return None
    owner, public = np.zeros(data.examples, np.int64), np.zeros((3, data.examples), bool)
    for at, part in enumerate(parts):
        owner[part.examples], public[:, part.examples] = at, part.masks
    return replace(data, owner=owner, owners=tuple(client_ids(len(parts), cut.names)), public=public, notes=())


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
    """The choice that reads the data again, and its path."""
    settings = data.named
    if settings is None or (settings.get("seed", seed) != seed and content(_read(settings, seed)) != content(data)):
        settings = _saved(data, beside)
    table = {key: value for key, value in settings.items() if key not in ("path", "seed")}
    name, kind = lookup("data.name", "data", settings["name"])
    return choose("data", name, kind, parameters("data", kind), table), settings.get("path")


def _saved(data: Dataset, beside: Path) -> Record:
    """Save the data in a file with its digest in the name; returns the settings that load it."""
    called = re.sub(r"[^\w.-]+", "-", data.name) or "data"
    file = (beside / f"{called}-{content(data)[:12]}.npz").absolute()
    settings = data.in_archive(file)
    if not file.exists():
        with plain_errors(beside):
            beside.mkdir(parents=True, exist_ok=True)
        replace(data).save(file)
        if content(_read(settings, 0)) != content(data):
            file.unlink()
            raise UserError(
                f"{data.name} cannot be saved next to the run: the file would be read as other data, such as with "
                "fewer classes. Give classes names (labels), or save it in tables and load it by name (datasets.load)."
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
        return _unnamed("model", "layers")
    plugin = maker.plugin
    if isinstance(plugin, OwnModule):  # a module's class and its settings
        return _choice("model", plugin.kind, plugin.values, plugin.module)
    return _choice("model", type(plugin), values_of(plugin), plugin)


def of_algorithm(algorithm: object) -> Choice:
    """The choice of [algorithm] that makes this one of its model."""
    maker = maker_of(algorithm)
    if maker is not None and isinstance(maker.plugin, Preset):
        return _choice("algorithm", maker.plugin, maker.given[0], maker.plugin.paper)
    values = values_of(algorithm)
    return _choice("algorithm", type(algorithm), dict(list(values.items())[1:]), algorithm)


def is_named(choice: Choice) -> bool:
    """Whether the choice can be made again from a configuration."""
    return not plugins.is_in_python(choice.name)


def _choice(section: str, kind: Any, values: Values, plugin: object) -> Choice:
    """The choice, or a placeholder where no name or no settings in TOML make the same."""
    try:
        name = _name(section, kind)
        settings = parameters(section, kind)
        return choose(section, name, kind, settings, {key: _plain(key, value) for key, value in values.items()})
    except (ConfigError, TypeError):
        called = plugin.__name__ if isinstance(plugin, type) else type(plugin).__name__
        return _unnamed(section, called)


def _unnamed(section: str, called: str) -> Choice:
    name = f"{plugins.IN_PYTHON}{called}"
    return Choice(section, name, InPython(name), {})  # type: ignore[arg-type]


def _name(section: str, kind: object) -> str:
    """The name of a class or preset in a configuration.

    Raises:
        ConfigError: it has no name there.
    """
    names = (name for name, plugin in registry(section).items() if plugin is kind)
    if match := next(names, None):
        return match
    if file := plugins.file_of(kind):
        usable(section, file, plugins.load(file))  # a file of a package may not run by itself
        return file
    raise ConfigError(f"{kind} stands in no file")


def _plain(key: str, value: object) -> object:
    """A value as `choose` takes it: parts of fedweave's as they are, others by name."""
    if key == PARTS and isinstance(value, tuple | list):
        return [_part(part) for part in value]
    return str(value) if isinstance(value, Path) else value


def _part(part: object) -> object:
    if type(part) in registry("part").values():
        return part
    return {"name": _name("part", type(part)), **values_of(part)}

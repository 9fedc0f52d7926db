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
    data that it names. Data without a name is saved beside `out`, called by its content, and a cut of one's own by
    owners with it. What cannot be named stands there as such, and a warning says what the run cannot be used for.

    Raises:
        UserError: data without a name cannot be saved.
    """
    partition, data = _partition(origin)
    model, chosen = _model(algorithm.model, data), of_algorithm(algorithm)
    member_models = OwnModels(members={client: _model(its.model, data) for client, its in origin.own.items()})
    loaded, folder = _data(data, origin.seed, out.parent)
    defaults = {name: member_models.default for name, member_models in own_parameters(SimulationEngine).items()}
    engine = Choice("engine", "simulation", SimulationEngine, defaults | dict(origin.engine))
    for choice in (partition, model, *member_models.members.values(), chosen):
        if not is_named(choice):
            _LOG.warning(
                "note: no name says how the %s %s is made, so that %s can be reported and compared, but neither "
                "predict nor be run anew (docs/comparing.md)",
                *(choice.path, choice.label, out),
            )
    return Config(general, loaded, partition, model, chosen, engine, folder, own=member_models), data


def _model(layers: Model, data: Dataset) -> Choice:
    model = of_model(layers)
    if data.edge_attrs is None:
        return model
    built = {name: value for name, value in BARE.items() if model.values.get(name, 0) is None}
    return replace(model, values={**model.values, **built})  # as it was built, whatever the data's edges carry


def check_described(config: Config, built: Built) -> None:
    """What `experiment.build.build` refuses and notes of the same run.

    Raises:
        ConfigError, DataError: the algorithm or the model demands other data.
    """
    facts = ExperimentFacts.of_algorithm(built.algorithm)
    facts.more(data=built.data, partition=built.partition, model=built.algorithm.model).check()
    how = config.data.values.get("normalize", "none")
    meter_scaling(built.fed.ledger, built.fed.clients, built.partition, built.data.features, how)


def _partition(origin: Origin) -> tuple[Choice, Dataset]:
    """The choice that makes the partition, and the data that it makes it of."""
    data, cut, seed = origin.data, origin.partition, origin.seed
    maker = cut.maker
    if maker is not None and isinstance(maker.plugin, Partitioner) and maker.given[0] is data:
        choice = of_partition(maker.plugin)
        if is_named(choice) and (maker.given[1] == seed or _same(maker.plugin.cut(data, seed), cut)):
            return choice, data
    owned = _owned(data, cut)
    return (of_partition(cut), data) if owned is None else (of_partition(Column(use_dataset_split=True)), owned)


def _owned(data: Dataset, cut: Partition) -> Dataset | None:
    """The data with its owners and its split as a cut has them; None where that does not say all of the cut."""
    parts = cut.parts
    held = np.concatenate([part.examples for part in parts])
    plain = all(part.columns is None and part.edges is None and part.labels for part in parts)
    more = cut.test is not None or cut.judged is not None or cut.held or cut.pairs
    if more or not plain or not np.array_equal(np.sort(held), np.arange(data.examples)):
        return None
    owner, public = np.zeros(data.examples, np.int64), np.zeros((3, data.examples), bool)
    for at, part in enumerate(parts):
        owner[part.examples], public[:, part.examples] = at, part.masks
    return replace(data, owner=owner, owners=tuple(client_ids(len(parts), cut.names)), public=public, notes=())


def _same(one: Any, other: Any) -> bool:
    """Whether two partitions, or what they consist of, say the same."""
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
    named = data.named
    if named is None or (named.get("seed", seed) != seed and content(_read(named, seed)) != content(data)):
        named = _saved(data, beside)
    table = {key: value for key, value in named.items() if key not in ("path", "seed")}
    name, kind = lookup("data.name", "data", named["name"])
    return choose("data", name, kind, parameters("data", kind), table), named.get("path")


def _saved(data: Dataset, beside: Path) -> Record:
    """What names the data in a file that has its content in its name."""
    called = re.sub(r"[^\w.-]+", "-", data.name) or "data"
    file = (beside / f"{called}-{content(data)[:12]}.npz").absolute()
    named = data.in_archive(file)
    if not file.exists():
        with plain_errors(beside):
            beside.mkdir(parents=True, exist_ok=True)
        replace(data).save(file)
        if content(_read(named, 0)) != content(data):
            file.unlink()
            raise UserError(
                f"{data.name} cannot be kept beside the run: read again it would be other data, such as with fewer "
                "classes. Give classes names (labels), or save it in tables and load it by name (datasets.load)."
            )
    return named


def _read(named: Values, seed: int) -> Dataset:
    return datasets.load(**{**named, "seed": seed})


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
    """The choice, or what stands for it where no name or no settings in TOML make the same."""
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
    """What a configuration calls a class or preset.

    Raises:
        ConfigError: it has no name there.
    """
    known = (name for name, plugin in registry(section).items() if plugin is kind)
    if match := next(known, None):
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

"""Plug-ins that are objects in Python as choices by name, so that a run begun there has a configuration."""

from pathlib import Path
from typing import Any

from fedweave.core import plugins
from fedweave.core.maker import maker_of
from fedweave.core.records import Values
from fedweave.errors import ConfigError
from fedweave.experiment.config.choice import Choice, choose
from fedweave.experiment.config.plugins import PARTS, InPython, parameters, registry, usable, values_of
from fedweave.models.module import OwnModule


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
    if maker is not None:
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
        own = parameters(section, kind)
        return choose(section, name, kind, own, {key: _plain(key, value) for key, value in values.items()})
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
    known = (name for name, own in registry(section).items() if own is kind)
    if found := next(known, None):
        return found
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

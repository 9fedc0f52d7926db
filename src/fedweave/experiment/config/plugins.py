"""What can be configured: the registries of plug-ins and the parameters of each, and the entry in a configuration for
one that was an object in Python and that no file names.
"""

import dataclasses
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Protocol, get_type_hints, runtime_checkable

from fedweave.core import plugins
from fedweave.core.plugins import Registry
from fedweave.core.settings import hints_of
from fedweave.core.shown import default_of
from fedweave.core.types import Record, Values
from fedweave.errors import ConfigError
from fedweave.experiment.config.toml import check_name


@dataclass(frozen=True)
class InPython:
    """A plug-in of any section, without settings, that nothing can be made of.

    name: as the configuration has it (`plugins.is_in_python`).
    """

    name: str

    fields: ClassVar[Mapping[str, "dataclasses.Field[object]"]] = {}
    hints: ClassVar[Mapping[str, object]] = {}
    documents: ClassVar[tuple[type, ...]] = ()
    examples: ClassVar[tuple[str, ...]] = ("node", "graph")

    def __call__(self, *arguments: object) -> "InPython":
        """Return itself; raise an error for an algorithm, which gets its model here."""
        return self._refuse() if arguments else self

    def cut(self, data: object, seed: int) -> NoReturn:
        """Refuse.

        Raises:
            ConfigError: says what to do instead.
        """
        self._refuse()

    def build(self, features: int, classes: int) -> NoReturn:
        """Refuse.

        Raises:
            ConfigError: says what to do instead.
        """
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ConfigError(
            f"{plugins.label(self.name)} was an object in Python without a file, so that it cannot be made again. "
            "`report` and `compare` accept this run; commands that train or predict do not. Define the object in a "
            "file of its own, not in the script that you start, and train again; for a torch.nn.Module, take "
            "models.ModuleKind(Net)(…).build(features, classes)."
        )


# Where each section's names come from; imported only when needed, so that the command line starts quickly.
REGISTRIES = {
    "data": ("fedweave.datasets", "DATASETS"),
    "partition": ("fedweave.partition", "PARTITIONS"),
    "model": ("fedweave.models.registry", "MODELS"),
    "algorithm": ("fedweave.algorithms.registry", "ALGORITHMS"),
    "engine": ("fedweave.experiment.config.sections", "ENGINES"),
}
PARTS = "parts"  # the key of [algorithm] that lists parts by name
FOREIGN_ENDS = "foreign_ends"  # the part that trains on links between members
CODE = "model.members"  # of errors about models of members
_PARTS_FROM = ("fedweave.algorithms.registry", "PARTS")
_METHODS = {
    "data": ("load",),
    "partition": ("cut",),
    "model": ("build",),
    "algorithm": ("init", "round", "evaluate"),
    "part": ("init", "start", "weigh"),
}
_NOUNS = {"data": "data set"}
DEFAULT_NAMES = {"partition": "louvain", "model": "gcn", "algorithm": "fedavg", "engine": "simulation"}


@runtime_checkable
class HasFields(Protocol):
    """A maker of plug-ins that is not a dataclass itself: a preset, or a class of modules."""

    @property
    def fields(self) -> "Mapping[str, dataclasses.Field[Any]]":
        """Its settings."""

    @property
    def hints(self) -> Values:
        """Their types."""

    @property
    def documents(self) -> tuple[type, ...]:
        """The classes whose docstrings explain the settings, the most particular first."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a plug-in.

    default: `dataclasses.MISSING` if it must be given. family: the registry that a list of an algorithm's parts is
    chosen from, None for plain values.
    """

    hint: object
    default: object
    family: Mapping[str, type] | None = None


def registry(section: str) -> Mapping[str, type]:
    """The plug-ins that a section chooses from, by name, also from installed packages; "part": the parts of an
    algorithm.

    Raises:
        ConfigError: a plug-in of an installed package has the name of another, cannot be loaded or is not a plug-in.
    """
    module, attribute = (REGISTRIES | {"part": _PARTS_FROM})[section]
    kinds: Mapping[str, type] = getattr(importlib.import_module(module), attribute)
    more = {name: usable(section, name, kind) for name, kind in plugins.entry_point_plugins(section).items()}
    duplicates = sorted(kinds.keys() & more.keys())
    if duplicates:
        raise ConfigError(
            f"{plugins.GROUPS[section]}: an installed package announces {duplicates[0]!r}, which is fedweave's."
        )
    if not more:
        return kinds
    return kinds.with_plugins(more) if isinstance(kinds, Registry) else {**kinds, **more}


def groups(section: str) -> Mapping[str, tuple[str, ...]]:
    """{heading: names} by which a list shows a section's plug-ins; {} where it shows them in their order."""
    return getattr(importlib.import_module(REGISTRIES[section][0]), "GROUPS", {}) if section == "algorithm" else {}


def lookup(path: str, section: str, name: str) -> tuple[str, Any]:
    """A plug-in by its name, another name of it, or "file.py:Name": the name to keep, and the plug-in.

    Raises:
        ConfigError: there is none; messages begin with `path`.
    """
    if plugins.is_in_python(name):
        return name, InPython(name)
    if plugins.is_file(name):
        try:
            return plugins.absolute(name), usable(section, name, plugins.load(name))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
    if isinstance(name, str) and name.endswith(".py"):
        raise ConfigError(f"{path}: {name} is a file; name the class or preset in it, too: {name}:Name.")
    if section in REGISTRIES and isinstance(name, str):
        aliases: Mapping[str, str] = getattr(importlib.import_module(REGISTRIES[section][0]), "ALIASES", {})
        name = aliases.get(name, name)
    kinds = registry(section)
    check_name(path, name, kinds)
    return name, _with_defaults(section, kinds[name])


def usable(section: str, name: str, kind: object) -> Any:
    """The object that a plug-in is used as: itself, an algorithm with all defaults (`core.algorithm.give_defaults`), or
    a model of a `torch.nn.Module`.

    Raises:
        ConfigError: it is neither a dataclass nor a preset with what the section asks for.
    """
    if section == "model" and isinstance(kind, type) and not dataclasses.is_dataclass(kind):
        from torch import nn

        from fedweave.models.module import ModuleKind

        if issubclass(kind, nn.Module):
            return ModuleKind(kind)
    methods = _METHODS[section]
    missing = [name for name in methods if not hasattr(kind, name) or name in getattr(kind, "__abstractmethods__", ())]
    is_preset = section == "algorithm" and isinstance(kind, HasFields)
    if not is_preset and (missing or not dataclasses.is_dataclass(kind)):
        also = {"algorithm": ", or a preset", "model": ", or a torch.nn.Module"}.get(section, "")
        # the remedy for a class that is close to a plug-in
        remedy = ""
        if isinstance(kind, type):
            if not missing:
                remedy = " Write @dataclass(frozen=True) above the class."
            elif section == "algorithm" and callable(getattr(kind, "parts", None)):
                remedy = " As it has parts: write @preset above it (fedweave.algorithms.preset)."
            elif section == "algorithm" and all(hasattr(kind, method) for method in _METHODS["part"]):
                remedy = f' It is a part: name it in algorithm.parts = ["{name}"].'
            elif len(missing) < len(methods):
                remedy = f" It has no {', '.join(missing)}."
        raise ConfigError(
            f"{name} is no {_NOUNS.get(section, section)}: it must be a dataclass with {', '.join(methods)}{also}."
            f"{remedy}"
        )
    if isinstance(kind, type):
        # annotations of a class that only inherits from a dataclass are not fields
        fields = {field.name for field in dataclasses.fields(kind)}
        annotations = inspect.get_annotations(kind).items()
        bare = [key for key, hint in annotations if key not in fields and "ClassVar" not in str(hint)]
        if bare:
            raise ConfigError(
                f"{name}: {', '.join(bare)} is not a setting yet; write @dataclass(frozen=True) above the class."
            )
    return _with_defaults(section, kind)


def _with_defaults(section: str, kind: Any) -> Any:
    """The plug-in; an algorithm's class has all defaults (`core.algorithm.give_defaults`)."""
    if section == "algorithm" and isinstance(kind, type) and all(hasattr(kind, method) for method in _METHODS[section]):
        from fedweave.core.algorithm import give_defaults  # needs torch, as algorithms do

        give_defaults(kind)
    return kind


def parameters(section: str, kind: "type | HasFields") -> dict[str, Parameter]:
    """The parameters of a section's plug-in; an algorithm's are without the model, which the program gives it."""
    fields = field_parameters(kind)
    if section != "algorithm":
        return fields
    if PARTS in fields:
        fields[PARTS] = dataclasses.replace(fields[PARTS], family=registry("part"))
    return {name: fields[name] for name in list(fields)[1:]}


def field_parameters(kind: "type | HasFields") -> dict[str, Parameter]:
    """The fields of a dataclass, or of a preset (`algorithms.preset`), as they are."""
    if isinstance(kind, type):
        fields = {field.name: field for field in dataclasses.fields(kind)}
        hints: Values = hints_of(kind) or get_type_hints(kind, include_extras=True)  # its error names what is missing
    else:
        fields, hints = dict(kind.fields), kind.hints
    return {name: Parameter(hints[name], default_of(field)) for name, field in fields.items()}


def values_of(plugin: object) -> Record:
    """The values of a plug-in's fields, by name; none of what is not a dataclass."""
    fields = dataclasses.fields(plugin) if dataclasses.is_dataclass(plugin) else ()
    return {field.name: getattr(plugin, field.name) for field in fields if field.init}

"""What can be configured: the registries of plug-ins and the parameters of each, and what stands in a configuration for
one that was an object in Python and that no file names.
"""

import dataclasses
import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Protocol, get_type_hints, runtime_checkable

from fedweave.core import plugins
from fedweave.core.records import Record, Values
from fedweave.errors import ConfigError
from fedweave.experiment.config.toml import check_name


@dataclass(frozen=True)
class InPython:
    """A plug-in of any section, without settings, that nothing can be made of.

    name: as the configuration has it (`plugins.in_python`).
    """

    name: str

    fields: ClassVar[Mapping[str, "dataclasses.Field[object]"]] = {}
    hints: ClassVar[Mapping[str, object]] = {}
    documents: ClassVar[tuple[type, ...]] = ()
    examples: ClassVar[tuple[str, ...]] = ("node", "graph")

    def __call__(self, *given: object) -> "InPython":
        """Itself; an algorithm, which is given its model here, is refused."""
        return self._refuse() if given else self

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
            f"{plugins.label(self.name)} was an object in Python that no file names, so that it cannot be made again: "
            "report and compare take this run, what trains or predicts does not. Define it in a file of its own, not "
            "in the script that is started, and train anew; of a torch.nn.Module, take "
            "models.ModuleKind(Net)(…).build(features, classes)."
        )


# Where each section's names come from; imported only when needed, so that the command line starts quickly.
REGISTRIES = {
    "data": ("fedweave.datasets", "DATASETS"),
    "partition": ("fedweave.partition", "PARTITIONS"),
    "model": ("fedweave.models", "MODELS"),
    "algorithm": ("fedweave.algorithms", "ALGORITHMS"),
    "engine": ("fedweave.experiment.config.settings", "ENGINES"),
}
PARTS = "parts"  # the key of [algorithm] that lists parts by name
_PARTS_FROM = ("fedweave.algorithms", "PARTS")
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
    """What makes plug-ins and is no dataclass itself: a preset, or a class of modules."""

    @property
    def fields(self) -> "Mapping[str, dataclasses.Field[Any]]":
        """Its settings."""
        ...

    @property
    def hints(self) -> Values:
        """Their types."""
        ...

    @property
    def documents(self) -> tuple[type, ...]:
        """The classes whose docstrings say what they mean, the most particular first."""
        ...


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
    """The plug-ins that a section chooses from, by name, with those of installed packages; "part": the parts of an
    algorithm.

    Raises:
        ConfigError: an installed package's has the name of another, cannot be loaded or is no plug-in.
    """
    module, attribute = (REGISTRIES | {"part": _PARTS_FROM})[section]
    own: Mapping[str, type] = getattr(importlib.import_module(module), attribute)
    more = {name: usable(section, name, kind) for name, kind in plugins.announced(section).items()}
    if taken := sorted(own.keys() & more.keys()):
        raise ConfigError(
            f"{plugins.GROUPS[section]}: an installed package announces {taken[0]!r}, which is fedweave's."
        )
    return {**own, **more} if more else own


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
    kinds, name = registry(section), resolved(section, name)
    check_name(path, name, kinds)
    return name, kinds[name]


def usable(section: str, name: str, kind: object) -> Any:
    """What a plug-in from outside is used as: itself, or what makes a model of a `torch.nn.Module`.

    Raises:
        ConfigError: it is neither a dataclass nor a preset with what the section asks for.
    """
    if section == "model" and isinstance(kind, type) and not dataclasses.is_dataclass(kind):
        from torch import nn

        from fedweave.models.module import ModuleKind

        if issubclass(kind, nn.Module):
            return ModuleKind(kind)
    methods = _METHODS[section]
    made_of_parts = section == "algorithm" and isinstance(kind, HasFields)
    if not made_of_parts and not (dataclasses.is_dataclass(kind) and all(hasattr(kind, one) for one in methods)):
        also = {"algorithm": ", or a preset", "model": ", or a torch.nn.Module"}.get(section, "")
        raise ConfigError(
            f"{name} is no {_NOUNS.get(section, section)}: it must be a dataclass with {', '.join(methods)}{also}."
            f"{_lacking(section, name, kind, methods)}"
        )
    if isinstance(kind, type) and (bare := _no_fields(kind)):
        raise ConfigError(
            f"{name}: {', '.join(bare)} is no setting yet; write @dataclass(frozen=True) above the class."
        )
    return kind


def _lacking(section: str, name: str, kind: object, methods: Sequence[str]) -> str:
    """What to do about a class that is close to a plug-in."""
    if not isinstance(kind, type):
        return ""
    if all(hasattr(kind, one) for one in methods):
        return " Write @dataclass(frozen=True) above the class."
    if section == "algorithm" and callable(getattr(kind, "parts", None)):
        return " As it has parts: write @preset above it (fedweave.algorithms.preset)."
    if section == "algorithm" and all(hasattr(kind, one) for one in _METHODS["part"]):
        return f' It is a part: name it in algorithm.parts = ["{name}"].'
    return ""


def _no_fields(kind: type) -> list[str]:
    """What a class annotates as a dataclass's fields though it only inherits from one."""
    own, fields = inspect.get_annotations(kind), {field.name for field in dataclasses.fields(kind)}
    return [one for one, hint in own.items() if one not in fields and "ClassVar" not in str(hint)]


def resolved(section: str, name: str) -> str:
    """The registered name that another name of a plug-in stands for; any other `name` as it is."""
    if section not in REGISTRIES:
        return name
    aliases: Mapping[str, str] = getattr(importlib.import_module(REGISTRIES[section][0]), "ALIASES", {})
    return aliases.get(name, name) if isinstance(name, str) else name


def parameters(section: str, kind: "type | HasFields") -> dict[str, Parameter]:
    """The parameters of a section's plug-in; an algorithm's are without the model, which the program gives it."""
    own = own_parameters(kind)
    if section != "algorithm":
        return own
    if PARTS in own:
        own[PARTS] = dataclasses.replace(own[PARTS], family=registry("part"))
    return {name: own[name] for name in list(own)[1:]}


def own_parameters(kind: "type | HasFields") -> dict[str, Parameter]:
    """The fields of a dataclass, or of a preset (`algorithms.preset`), as they are."""
    if isinstance(kind, type):
        fields = {field.name: field for field in dataclasses.fields(kind)}
        hints: Values = get_type_hints(kind, include_extras=True)
    else:
        fields, hints = dict(kind.fields), kind.hints
    return {name: Parameter(hints[name], _default(field)) for name, field in fields.items()}


def _default(field: "dataclasses.Field[object]") -> object:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def values_of(plugin: object) -> Record:
    """The values of a plug-in's fields, by name; none of what is no dataclass."""
    fields = dataclasses.fields(plugin) if dataclasses.is_dataclass(plugin) else ()
    return {own.name: getattr(plugin, own.name) for own in fields if own.init}

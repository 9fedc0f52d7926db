"""What can be configured: the registries of plug-ins and the parameters of each."""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

# Where each section's names come from; imported only when needed, so that the command line starts quickly.
REGISTRIES = {
    "data": ("fedweave.datasets", "DATASETS"),
    "partition": ("fedweave.partition", "PARTITIONS"),
    "model": ("fedweave.models", "MODELS"),
    "algorithm": ("fedweave.algorithms", "ALGORITHMS"),
    "engine": ("fedweave.config.settings", "ENGINES"),
}
PARTS = "parts"  # the key of [algorithm] that lists parts by name
_PARTS_FROM = ("fedweave.algorithms", "PARTS")
DEFAULT_NAMES = {"partition": "louvain", "model": "gcn", "algorithm": "fedavg", "engine": "simulation"}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a plug-in.

    default: `dataclasses.MISSING` if it must be given. family: the registry that a list of an algorithm's parts is
    chosen from, None for plain values.
    """

    hint: Any
    default: Any
    family: Mapping[str, type] | None = None


def registry(section: str) -> Mapping[str, type]:
    """The plug-ins that a section chooses from, by name; "part": the parts of an algorithm."""
    module, attribute = (REGISTRIES | {"part": _PARTS_FROM})[section]
    return getattr(importlib.import_module(module), attribute)


def resolved(section: str, name: Any) -> Any:
    """The registered name that another name of a plug-in stands for; any other `name` as it is."""
    aliases: Mapping[str, str] = getattr(importlib.import_module(REGISTRIES[section][0]), "ALIASES", {})
    return aliases.get(name, name) if isinstance(name, str) else name


def parameters(section: str, kind: Any) -> dict[str, Parameter]:
    """The parameters of a section's plug-in; an algorithm's are without the model, which the program gives it."""
    own = own_parameters(kind)
    if section != "algorithm":
        return own
    if PARTS in own:
        own[PARTS] = dataclasses.replace(own[PARTS], family=registry("part"))
    return {name: own[name] for name in list(own)[1:]}


def own_parameters(kind: Any) -> dict[str, Parameter]:
    """The fields of a dataclass, or of a preset (`algorithms.preset`), as they are."""
    if isinstance(kind, type):
        fields, hints = {f.name: f for f in dataclasses.fields(kind)}, get_type_hints(kind, include_extras=True)
    else:
        fields, hints = kind.fields, kind.hints
    return {name: Parameter(hints[name], _default(field)) for name, field in fields.items()}


def _default(field: Any) -> Any:
    factory: Callable[[], Any] | Any = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()

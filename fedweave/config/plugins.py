"""What can be configured: the registries of plug-ins and the parameters of each."""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_origin, get_type_hints

# Where each section's names come from; imported only when needed, so that the command line starts quickly.
REGISTRIES = {
    "data": ("fedweave.datasets", "DATASETS"),
    "partition": ("fedweave.partition", "PARTITIONS"),
    "model": ("fedweave.models", "MODELS"),
    "algorithm": ("fedweave.algorithms", "ALGORITHMS"),
    "engine": ("fedweave.config.settings", "ENGINES"),
}
DEFAULT_NAMES = {"partition": "louvain", "model": "gcn", "algorithm": "fedavg", "engine": "simulation"}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a plug-in.

    default: `dataclasses.MISSING` if it must be given. family: the registry that a part of an algorithm is chosen from,
    None for plain values. many: the parts are a list.
    """

    hint: Any
    default: Any
    family: Mapping[str, type] | None = None
    many: bool = False


def registry(section: str) -> Mapping[str, type]:
    """The plug-ins that a section chooses from, by name."""
    module, attribute = REGISTRIES[section]
    return getattr(importlib.import_module(module), attribute)


def parameters(section: str, kind: type) -> dict[str, Parameter]:
    """The parameters of a section's plug-in; an algorithm's are without the model, which the program gives it."""
    own = own_parameters(kind)
    if section != "algorithm":
        return own
    families = importlib.import_module("fedweave.algorithms.parts").PARTS
    return {name: _with_family(own[name], families.get(name)) for name in list(own)[1:]}


def own_parameters(kind: type) -> dict[str, Parameter]:
    """The fields of a dataclass, as they are."""
    hints = get_type_hints(kind, include_extras=True)
    return {f.name: Parameter(hints[f.name], _default(f)) for f in dataclasses.fields(kind)}


def _with_family(parameter: Parameter, family: Mapping[str, type] | None) -> Parameter:
    many = isinstance(parameter.default, tuple) or get_origin(parameter.hint) is tuple
    return dataclasses.replace(parameter, family=family, many=many)


def _default(field: Any) -> Any:
    factory: Callable[[], Any] | Any = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()

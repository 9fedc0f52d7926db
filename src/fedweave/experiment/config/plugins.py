"""What can be configured: the registries of plug-ins and the parameters of each, and the entry in a configuration for
one that was an object in Python and that no file names.
"""

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Protocol, get_type_hints, runtime_checkable

from fedweave.core import plugins
from fedweave.core.plugins import Registry, label, name_of
from fedweave.core.settings import check_beside, checked, hints_of
from fedweave.core.shown import default_of
from fedweave.core.types import Record, Values
from fedweave.errors import ConfigError, Faults
from fedweave.experiment.config.toml import Document, check_keys, check_name


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
    "engine": ("fedweave.experiment.config.experiment", "ENGINES"),
}
PARTS = "parts"  # the key of [algorithm] that lists parts by name
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
    """A maker of plug-ins that is no dataclass itself: a preset, or a class of modules."""

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
        ConfigError: a plug-in of an installed package has the name of another, cannot be loaded or is no plug-in.
    """
    module, attribute = (REGISTRIES | {"part": _PARTS_FROM})[section]
    kinds: Mapping[str, type] = getattr(importlib.import_module(module), attribute)
    more = {name: usable(section, name, kind) for name, kind in plugins.entry_point_plugins(section).items()}
    if duplicates := sorted(kinds.keys() & more.keys()):
        raise ConfigError(
            f"{plugins.GROUPS[section]}: an installed package announces {duplicates[0]!r}, which is fedweave's."
        )
    if not more:
        return kinds
    return kinds.extended(more) if isinstance(kinds, Registry) else {**kinds, **more}


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
    kinds, name = registry(section), resolved(section, name)
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
    made_of_parts = section == "algorithm" and isinstance(kind, HasFields)
    missing = [one for one in methods if not hasattr(kind, one) or one in getattr(kind, "__abstractmethods__", ())]
    if not made_of_parts and (missing or not dataclasses.is_dataclass(kind)):
        also = {"algorithm": ", or a preset", "model": ", or a torch.nn.Module"}.get(section, "")
        raise ConfigError(
            f"{name} is no {_NOUNS.get(section, section)}: it must be a dataclass with {', '.join(methods)}{also}."
            f"{_lacking(section, name, kind, missing)}"
        )
    if isinstance(kind, type) and (bare := _no_fields(kind)):
        raise ConfigError(
            f"{name}: {', '.join(bare)} is no setting yet; write @dataclass(frozen=True) above the class."
        )
    return _with_defaults(section, kind)


def _with_defaults(section: str, kind: Any) -> Any:
    """The plug-in; an algorithm's class has all defaults (`core.algorithm.give_defaults`)."""
    if section == "algorithm" and isinstance(kind, type) and all(hasattr(kind, one) for one in _METHODS[section]):
        from fedweave.core.algorithm import give_defaults  # needs torch, as algorithms do

        give_defaults(kind)
    return kind


def _lacking(section: str, name: str, kind: object, missing: Sequence[str]) -> str:
    """The remedy for a class that is close to a plug-in."""
    if not isinstance(kind, type):
        return ""
    if not missing:
        return " Write @dataclass(frozen=True) above the class."
    if section == "algorithm" and callable(getattr(kind, "parts", None)):
        return " As it has parts: write @preset above it (fedweave.algorithms.preset)."
    if section == "algorithm" and all(hasattr(kind, one) for one in _METHODS["part"]):
        return f' It is a part: name it in algorithm.parts = ["{name}"].'
    return f" It has no {', '.join(missing)}." if len(missing) < len(_METHODS[section]) else ""


def _no_fields(kind: type) -> list[str]:
    """The annotations of a class that only inherits from a dataclass, so that they are no fields."""
    annotations, fields = inspect.get_annotations(kind), {field.name for field in dataclasses.fields(kind)}
    return [one for one, hint in annotations.items() if one not in fields and "ClassVar" not in str(hint)]


def resolved(section: str, name: str) -> str:
    """The registered name that another name of a plug-in stands for; any other `name` as it is."""
    if section not in REGISTRIES:
        return name
    aliases: Mapping[str, str] = getattr(importlib.import_module(REGISTRIES[section][0]), "ALIASES", {})
    return aliases.get(name, name) if isinstance(name, str) else name


def parameters(section: str, kind: "type | HasFields") -> dict[str, Parameter]:
    """The parameters of a section's plug-in; an algorithm's are without the model, which the program gives it."""
    fields = own_parameters(kind)
    if section != "algorithm":
        return fields
    if PARTS in fields:
        fields[PARTS] = dataclasses.replace(fields[PARTS], family=registry("part"))
    return {name: fields[name] for name in list(fields)[1:]}


def own_parameters(kind: "type | HasFields") -> dict[str, Parameter]:
    """The fields of a dataclass, or of a preset (`algorithms.preset`), as they are."""
    if isinstance(kind, type):
        fields = {field.name: field for field in dataclasses.fields(kind)}
        hints: Values = hints_of(kind) or get_type_hints(kind, include_extras=True)  # its error names what is missing
    else:
        fields, hints = dict(kind.fields), kind.hints
    return {name: Parameter(hints[name], default_of(field)) for name, field in fields.items()}


def values_of(plugin: object) -> Record:
    """The values of a plug-in's fields, by name; none of what is no dataclass."""
    fields = dataclasses.fields(plugin) if dataclasses.is_dataclass(plugin) else ()
    return {field.name: getattr(plugin, field.name) for field in fields if field.init}


# ----------------------------------------------------------------------------------------------------
# A plug-in chosen by name: its values checked against the types of its fields, its parts chosen likewise; and models
# that members have of their own, in [model].


@dataclass(frozen=True)
class Choice:
    """A plug-in chosen by name, with every parameter checked; parts among `values` are Choices themselves."""

    path: str
    name: str
    kind: type
    values: Record

    @property
    def label(self) -> str:
        """The name in results: the class of a plug-in from a file, else its name."""
        return plugins.label(self.name)

    def make(self, *arguments: object) -> Any:
        """The plug-in itself; `arguments` are the leading fields that the program provides.

        Raises:
            ConfigError: the plug-in refuses the values.
        """
        try:
            return self.kind(*arguments, **self.made_values())
        except (ValueError, ConfigError) as error:
            begins_with_a_setting = str(error).partition(" = ")[0] in self.values
            if isinstance(error, ConfigError) and not begins_with_a_setting:
                raise
            joint = "." if begins_with_a_setting else ": "
            raise ConfigError(f"{self.path}{joint}{error}", code=getattr(error, "code", "config.value")) from error

    def made_values(self) -> Record:
        """The values, with parts made."""
        return {key: _instances(value) for key, value in self.values.items()}

    def plain(self) -> Document:
        """The TOML table that resolves to this choice; None has no TOML form and is left out, being a default."""
        values = {key: _plain(value) for key, value in self.values.items()}
        return {"name": self.name, **{key: value for key, value in values.items() if value is not None}}


def choose(
    path: str,
    name: str,
    kind: type,
    fields: Mapping[str, Parameter],
    table: Document,
    more: Sequence[str] = (),
    hint: Callable[[str], str] = lambda key: "",
) -> Choice:
    """The choice of `kind` with its parameters `fields` as the TOML table at `path` sets them; `more` are other keys
    that the table may have, `hint` gives a remark on keys that it may not have (`check_keys`).

    Raises:
        ConfigError: a key is unknown or missing, or its value is not of the parameter's type.
    """
    settings = {key: value for key, value in table.items() if key != "name"}
    faults, values = Faults(ConfigError), Record()
    with faults:
        check_keys(path, settings, ["name", *more, *fields], f" of {name}", hint)
    with faults:
        values = checked_values(f"{path}.", settings, fields)
    faults.refuse()
    return Choice(path, name, kind, values)


def checked_values(prefix: str, settings: Document, fields: Mapping[str, Parameter]) -> Record:
    """A value for each of the parameters `fields`, from `settings` or its default; a key's path is `prefix` and the
    key.

    Raises:
        ConfigError: a key is missing, or its value is not of the parameter's type.
    """
    values, faults = Record(), Faults(ConfigError)
    for key, parameter in fields.items():
        with faults:
            values[key] = _value(prefix + key, settings.get(key, parameter.default), key in settings, parameter)
    faults.refuse()
    defaults, hints = ({key: getattr(field, kind) for key, field in fields.items()} for kind in ("default", "hint"))
    check_beside(prefix, values, defaults, hints)
    return values


def _value(path: str, value: object, present: bool, parameter: Parameter) -> object:
    if parameter.family is not None:
        return _parts(path, value, parameter.family)
    if value is dataclasses.MISSING:
        raise ConfigError(f"{path}: is missing and has no default", code="config.missing")
    return checked(path, value, parameter.hint) if present else value


def accepts(parameter: Parameter, value: object) -> bool:
    """Whether a parameter of a plain type can have this value; parts are checked where they are chosen."""
    try:
        return parameter.family is not None or bool([checked("", value, parameter.hint)])
    except ConfigError:
        return False


def taken(parts: object, parameter: Parameter, takes: Callable[[type], bool]) -> tuple[list[object], list[str]]:
    """The items of `parts`, a TOML value, whose class `takes` accepts, and the names of the others."""
    listed = parts if isinstance(parts, list) else [parts]
    choices = _parts("algorithm.parts", listed, parameter.family or {})
    remaining = [raw for raw, choice in zip(listed, choices, strict=True) if takes(choice.kind)]
    return remaining, [choice.name for choice in choices if not takes(choice.kind)]


def _parts(path: str, value: object, family: Mapping[str, type]) -> tuple[Choice, ...]:
    return tuple(_part(path, item, family) for item in (value if isinstance(value, list | tuple) else [value]))


def part_of(path: str, name: str) -> Choice:
    """A part by its name, with its defaults."""
    return _part(path, name, registry("part"))


def _part(path: str, value: Any, family: Mapping[str, type]) -> Choice:
    """A part from its TOML form, or from the instance that is an algorithm's default."""
    if part := name_of(family, type(value)):
        return Choice(path, part, type(value), values_of(value))
    table = value if isinstance(value, dict) else {"name": value}
    if "name" not in table:
        raise ConfigError(f"{path}: {value!r} has no name; choose one of {', '.join(family)}", code="config.missing")
    name, kind = lookup(path, "part", table["name"])
    choice = choose(path, name, kind, own_parameters(kind), table)
    choice.make()
    return choice


def _instances(value: object) -> object:
    if isinstance(value, tuple):
        return tuple(_instances(item) for item in value)
    return value.make() if isinstance(value, Choice) else value


def _plain(value: object) -> object:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Choice):
        table = value.plain()
        return value.name if len(table) == 1 else table
    return str(value) if isinstance(value, Path) else value


EACH, MEMBERS = "each", "members"  # keys of [model]
FOREIGN_ENDS = "foreign_ends"  # the part that trains on links between members
CODE = "model.members"  # code of errors about them


@dataclass(frozen=True)
class MemberModels:
    """each: models that members get in their order, from the first again when all are used. members: {name: the model
    of that member}, which takes precedence over `each`."""

    each: tuple[Choice, ...] = ()
    members: Mapping[str, Choice] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.each or self.members)

    def of(self, member: str, at: int) -> Choice | None:
        """The model of a member, the `at`-th of all; None where it has the model of the others."""
        if member in self.members:
            return self.members[member]
        return self.each[at % len(self.each)] if self.each else None

    def plain(self) -> Document:
        """The keys of [model] that resolve to these."""
        each = {EACH: [choice.plain() for choice in self.each]} if self.each else {}
        return each | ({MEMBERS: {name: model.plain() for name, model in self.members.items()}} if self.members else {})


def of_graphs(data: Choice | None, folder: str | None) -> bool:
    """Whether the examples of the data are small graphs, as far as that shows before it is loaded."""
    if data is not None and data.name == "npz":
        from fedweave.datasets.npz import holds_graphs  # as plug-ins, imported only when needed

        return holds_graphs(Path(folder or ""))
    return data is not None and getattr(data.kind, "example", "") == "graph"


def pooling(
    choose_model: Callable[[str, Document, str], Choice], graphs: bool
) -> Callable[[str, Document, str], Choice]:
    """`choose_model` with pooling: for small `graphs`, a model pools as its class declares, unless its table sets
    `pool`. See `own_models`."""

    def with_pooling(section: str, table: Document, path: str) -> Choice:
        choice = choose_model(section, table, path)
        usual = getattr(choice.kind, "graph_pool", None)
        if not graphs or usual is None or "pool" in table:
            return choice
        return dataclasses.replace(choice, values={**choice.values, "pool": usual})

    return with_pooling


def own_models(table: Document, choose_model: Callable[[str, Document, str], Choice]) -> tuple[Document, MemberModels]:
    """[model] without `each` and `members`, and the models in these. A table in them without a name is [model] with
    other values. Where [model] has no other keys, the first of `each` is its model.

    choose_model: ("model", table, its path) -> the model that a table chooses.

    Raises:
        ConfigError: one of them is no table, or its keys or values are not valid.
    """
    base = {key: value for key, value in table.items() if key not in (EACH, MEMBERS)}
    each, members, faults = table.get(EACH, []), table.get(MEMBERS, {}), Faults(ConfigError)
    if not isinstance(each, list) or not all(isinstance(entry, dict) for entry in each):
        raise _no_tables(EACH, '[{name = "gcn"}, {name = "sage"}]', each)
    if not isinstance(members, dict) or not all(isinstance(entry, dict) for entry in members.values()):
        raise _no_tables(MEMBERS, '{bank_a = {name = "sage"}}', members)
    if not base and each:
        base = each[0]
    choices: dict[str, Choice] = {}
    places = {f"model.{EACH}[{at}]": entry for at, entry in enumerate(each)}
    places |= {f"model.{MEMBERS}.{name}": entry for name, entry in members.items()}
    for path, entry in places.items():
        with faults:
            choices[path] = choose_model("model", entry if "name" in entry else {**base, **entry}, path)
    faults.refuse()
    dealt = tuple(choices[f"model.{EACH}[{at}]"] for at in range(len(each)))
    return base, MemberModels(dealt, {name: choices[f"model.{MEMBERS}.{name}"] for name in members})


def models_told(table: Document) -> str:
    """The names of all models in [model] as a run resolved it."""
    members = table.get(MEMBERS, {})
    tables = [*table.get(EACH, []), *members.values()]
    base = [] if table.get(EACH) else [table]
    names = dict.fromkeys(label(entry["name"]) for entry in [*base, *tables] if "name" in entry)
    return ", ".join(names) + (" (members' own)" if tables else "")


def _no_tables(key: str, example: str, value: object) -> ConfigError:
    return ConfigError(f"model.{key}: tables of models, such as {key} = {example}, got {value!r}", code="config.value")

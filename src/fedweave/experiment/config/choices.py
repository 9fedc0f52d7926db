"""A plug-in chosen by name: its values checked against the types of its fields, its parts chosen likewise; and the
models that members have of their own."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedweave.core import plugins
from fedweave.core.plugins import label, name_of
from fedweave.core.settings import check_beside, convert_setting
from fedweave.core.types import Record
from fedweave.errors import ConfigError, Faults
from fedweave.experiment.config.plugins import Parameter, field_parameters, lookup, registry, values_of
from fedweave.experiment.config.toml import Document, check_keys

EACH, MEMBERS = "each", "members"  # keys of [model]


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
            return self.kind(*arguments, **self.make_values())
        except (ValueError, ConfigError) as error:
            begins_with_a_setting = str(error).partition(" = ")[0] in self.values
            if isinstance(error, ConfigError) and not begins_with_a_setting:
                raise
            joint = "." if begins_with_a_setting else ": "
            raise ConfigError(f"{self.path}{joint}{error}", code=getattr(error, "code", "config.value")) from error

    def make_values(self) -> Record:
        """The values, with parts made."""
        return {key: _make(value) for key, value in self.values.items()}

    def plain(self) -> Document:
        """The TOML table that resolves to this choice; None has no TOML form and is left out, being a default."""
        values = {key: _plain(value) for key, value in self.values.items()}
        return {"name": self.name, **{key: value for key, value in values.items() if value is not None}}


@dataclass(frozen=True)
class MemberModels:
    """each: models that members get in their order, from the first again when all are used. members: {name: the model
    of that member}, which takes precedence over `each`."""

    each: tuple[Choice, ...] = ()
    members: Mapping[str, Choice] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.each or self.members)

    def of(self, member: str, index: int) -> Choice | None:
        """The model of a member with this index among all; None where it has the model of the others."""
        if member in self.members:
            return self.members[member]
        return self.each[index % len(self.each)] if self.each else None

    def plain(self) -> Document:
        """The keys of [model] that resolve to these."""
        document = Document()
        if self.each:
            document[EACH] = [choice.plain() for choice in self.each]
        if self.members:
            document[MEMBERS] = {name: model.plain() for name, model in self.members.items()}
        return document


def model_names(table: Document) -> str:
    """The names of all models in [model] as a run resolved it."""
    member_tables = [*table.get(EACH, []), *table.get(MEMBERS, {}).values()]
    tables = member_tables if table.get(EACH) else [table, *member_tables]
    names = dict.fromkeys(label(entry["name"]) for entry in tables if "name" in entry)
    return ", ".join(names) + (" (members' own)" if member_tables else "")


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
        values = check_values(f"{path}.", settings, fields)
    faults.refuse()
    return Choice(path, name, kind, values)


def check_values(prefix: str, settings: Document, fields: Mapping[str, Parameter]) -> Record:
    """A value for each of the parameters `fields`, from `settings` or its default; a key's path is `prefix` and the
    key.

    Raises:
        ConfigError: a key is missing, or its value is not of the parameter's type.
    """
    values, faults = Record(), Faults(ConfigError)
    for key, parameter in fields.items():
        path, value = prefix + key, settings.get(key, parameter.default)
        with faults:
            if parameter.family is not None:
                items = value if isinstance(value, list | tuple) else [value]
                values[key] = tuple(_choose_part(path, item, parameter.family) for item in items)
            elif value is dataclasses.MISSING:
                raise ConfigError(f"{path}: is missing and has no default", code="config.missing")
            else:
                values[key] = convert_setting(path, value, parameter.hint) if key in settings else value
    faults.refuse()
    defaults = {key: parameter.default for key, parameter in fields.items()}
    check_beside(prefix, values, defaults, {key: parameter.hint for key, parameter in fields.items()})
    return values


def accepts(parameter: Parameter, value: object) -> bool:
    """Whether a parameter of a plain type can have this value; parts are checked where they are chosen."""
    if parameter.family is None:
        try:
            convert_setting("", value, parameter.hint)
        except ConfigError:
            return False
    return True


def part_choice(path: str, name: str) -> Choice:
    """A part by its name, with its defaults."""
    return _choose_part(path, name, registry("part"))


def split_parts(parts: object, parameter: Parameter, takes: Callable[[type], bool]) -> tuple[list[object], list[str]]:
    """The items of `parts`, a TOML value, whose class `takes` accepts, and the names of the others."""
    accepted, rejected = [], []
    for item in parts if isinstance(parts, list) else [parts]:
        choice = _choose_part("algorithm.parts", item, parameter.family or {})
        if takes(choice.kind):
            accepted.append(item)
        else:
            rejected.append(choice.name)
    return accepted, rejected


def _choose_part(path: str, value: Any, family: Mapping[str, type]) -> Choice:
    """A part from its TOML form, or from the instance that is an algorithm's default."""
    name = name_of(family, type(value))
    if name:
        return Choice(path, name, type(value), values_of(value))
    table = value if isinstance(value, dict) else {"name": value}
    if "name" not in table:
        raise ConfigError(f"{path}: {value!r} has no name; choose one of {', '.join(family)}", code="config.missing")
    name, kind = lookup(path, "part", table["name"])
    choice = choose(path, name, kind, field_parameters(kind), table)
    choice.make()
    return choice


def _make(value: object) -> object:
    if isinstance(value, tuple):
        return tuple(_make(item) for item in value)
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

"""A plug-in chosen by name: its values checked against the types of its fields, its parts chosen likewise; and models
that members have of their own, in [model].
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedweave.core import plugins
from fedweave.core.plugins import label
from fedweave.core.records import Record
from fedweave.core.settings import checked
from fedweave.errors import ConfigError, Faults
from fedweave.experiment.config.plugins import Parameter, lookup, own_parameters, values_of
from fedweave.experiment.config.toml import Document, check_keys


@dataclass(frozen=True)
class Choice:
    """A plug-in chosen by name, with every parameter checked; parts among `values` are Choices themselves."""

    path: str
    name: str
    kind: type
    values: Record

    @property
    def label(self) -> str:
        """What results call it: the class of a plug-in from a file, else its name."""
        return plugins.label(self.name)

    def make(self, *given: object) -> Any:
        """The plug-in itself; `given` are the leading fields that the program provides.

        Raises:
            ConfigError: the plug-in refuses the values.
        """
        try:
            return self.kind(*given, **self.made_values())
        except ValueError as error:
            raise ConfigError(f"{self.path}: {error}", code=getattr(error, "code", "config.value")) from error

    def made_values(self) -> Record:
        """The values, with parts made."""
        return {key: _made(value) for key, value in self.values.items()}

    def plain(self) -> Document:
        """The TOML table that resolves to this choice; None has no TOML form and is left out, being a default."""
        values = {key: _plain(value) for key, value in self.values.items()}
        return {"name": self.name, **{key: value for key, value in values.items() if value is not None}}


def choose(
    path: str,
    name: str,
    kind: type,
    own: Mapping[str, Parameter],
    table: Document,
    more: Sequence[str] = (),
    hint: Callable[[str], str] = lambda key: "",
) -> Choice:
    """The choice of `kind` with its parameters `own` as the TOML table at `path` sets them; `more` are keys that the
    table may have besides, `hint` is what to say of others (`check_keys`).

    Raises:
        ConfigError: a key is unknown or missing, or its value is not of the parameter's type.
    """
    given = {key: value for key, value in table.items() if key != "name"}
    faults, values = Faults(ConfigError), Record()
    with faults:
        check_keys(path, given, ["name", *more, *own], f" of {name}", hint)
    with faults:
        values = checked_values(f"{path}.", given, own)
    faults.refuse()
    return Choice(path, name, kind, values)


def checked_values(prefix: str, given: Document, own: Mapping[str, Parameter]) -> Record:
    """A value for each of the parameters `own`, from `given` or its default; a key's path is `prefix` and the key.

    Raises:
        ConfigError: a key is missing, or its value is not of the parameter's type.
    """
    values, faults = Record(), Faults(ConfigError)
    for key, parameter in own.items():
        with faults:
            values[key] = _value(prefix + key, given.get(key, parameter.default), key in given, parameter)
    faults.refuse()
    return values


def _value(path: str, value: object, given: bool, parameter: Parameter) -> object:
    if parameter.family is not None:
        return _parts(path, value, parameter.family)
    if value is dataclasses.MISSING:
        raise ConfigError(f"{path}: is missing and has no default", code="config.missing")
    return checked(path, value, parameter.hint) if given else value


def accepts(parameter: Parameter, value: object) -> bool:
    """Whether a parameter of a plain type can have this value; parts are checked where they are chosen."""
    try:
        return parameter.family is not None or bool([checked("", value, parameter.hint)])
    except ConfigError:
        return False


def taken(parts: object, parameter: Parameter, takes: Callable[[type], bool]) -> tuple[list[object], list[str]]:
    """Those of `parts`, a TOML value, whose class something `takes`, and the names of the others."""
    listed = parts if isinstance(parts, list) else [parts]
    chosen = _parts("algorithm.parts", listed, parameter.family or {})
    kept = [raw for raw, choice in zip(listed, chosen, strict=True) if takes(choice.kind)]
    return kept, [choice.name for choice in chosen if not takes(choice.kind)]


def _parts(path: str, value: object, family: Mapping[str, type]) -> tuple[Choice, ...]:
    return tuple(_part(path, item, family) for item in (value if isinstance(value, list | tuple) else [value]))


def _part(path: str, value: Any, family: Mapping[str, type]) -> Choice:
    """A part from its TOML form, or from the instance that is an algorithm's default."""
    for name, kind in family.items():
        if type(value) is kind:
            return Choice(path, name, kind, values_of(value))
    table = value if isinstance(value, dict) else {"name": value}
    if "name" not in table:
        raise ConfigError(f"{path}: {value!r} has no name; choose one of {', '.join(family)}", code="config.missing")
    name, kind = lookup(path, "part", table["name"])
    choice = choose(path, name, kind, own_parameters(kind), table)
    choice.make()
    return choice


def _made(value: object) -> object:
    if isinstance(value, tuple):
        return tuple(_made(item) for item in value)
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
CODE = "model.members"  # of what is refused about them


@dataclass(frozen=True)
class OwnModels:
    """each: dealt to members in their order, from the first again when all are dealt. members: {name: the model of the
    member of that name}, whatever is dealt."""

    each: tuple[Choice, ...] = ()
    members: Mapping[str, Choice] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.each or self.members)

    def of(self, member: str, at: int) -> Choice | None:
        """That of a member, the `at`-th of all; None where it has no other than the rest."""
        if member in self.members:
            return self.members[member]
        return self.each[at % len(self.each)] if self.each else None

    def plain(self) -> Document:
        """The keys of [model] that resolve to these."""
        each = {EACH: [choice.plain() for choice in self.each]} if self.each else {}
        return each | ({MEMBERS: {name: own.plain() for name, own in self.members.items()}} if self.members else {})


def of_graphs(data: Choice | None, folder: str | None) -> bool:
    """Whether the examples of the data are small graphs, as far as that shows before it is loaded."""
    if data is not None and data.name == "npz":
        from fedweave.datasets.npz import holds_graphs  # as plug-ins, imported only when needed

        return holds_graphs(Path(folder or ""))
    return data is not None and getattr(data.kind, "example", "") == "graph"


def pooling(chosen: Callable[[str, Document, str], Choice], graphs: bool) -> Callable[[str, Document, str], Choice]:
    """`chosen`, which chooses models, as for `own_models`; of small `graphs` they pool as their class says, unless the
    table says how."""

    def made(section: str, table: Document, path: str) -> Choice:
        choice = chosen(section, table, path)
        usual = getattr(choice.kind, "graph_pool", None)
        if not graphs or usual is None or "pool" in table:
            return choice
        return dataclasses.replace(choice, values={**choice.values, "pool": usual})

    return made


def own_models(table: Document, chosen: Callable[[str, Document, str], Choice]) -> tuple[Document, OwnModels]:
    """[model] without `each` and `members`, and what these say. A table of theirs without a name is [model] with other
    values. Where [model] says nothing itself, the first of `each` stands for it.

    chosen: ("model", table, its path) -> the model that a table chooses.

    Raises:
        ConfigError: one of them is no table, or its keys or values are not valid.
    """
    base = {key: value for key, value in table.items() if key not in (EACH, MEMBERS)}
    each, members, faults = table.get(EACH, []), table.get(MEMBERS, {}), Faults(ConfigError)
    if not isinstance(each, list) or not all(isinstance(own, dict) for own in each):
        raise _no_tables(EACH, '[{name = "gcn"}, {name = "sage"}]', each)
    if not isinstance(members, dict) or not all(isinstance(own, dict) for own in members.values()):
        raise _no_tables(MEMBERS, '{bank_a = {name = "sage"}}', members)
    if not base and each:
        base = each[0]
    found: dict[str, Choice] = {}
    places = {f"model.{EACH}[{at}]": own for at, own in enumerate(each)}
    places |= {f"model.{MEMBERS}.{name}": own for name, own in members.items()}
    for path, own in places.items():
        with faults:
            found[path] = chosen("model", own if "name" in own else {**base, **own}, path)
    faults.refuse()
    dealt = tuple(found[f"model.{EACH}[{at}]"] for at in range(len(each)))
    return base, OwnModels(dealt, {name: found[f"model.{MEMBERS}.{name}"] for name in members})


def models_told(table: Document) -> str:
    """The names of all models in [model] as a run resolved it."""
    members = table.get(MEMBERS, {})
    tables = [*table.get(EACH, []), *members.values()]
    base = [] if table.get(EACH) else [table]
    names = dict.fromkeys(label(own["name"]) for own in [*base, *tables] if "name" in own)
    return ", ".join(names) + (" (members' own)" if tables else "")


def _no_tables(key: str, example: str, value: object) -> ConfigError:
    return ConfigError(f"model.{key}: tables of models, such as {key} = {example}, got {value!r}", code="config.value")

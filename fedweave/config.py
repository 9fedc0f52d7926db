"""Configuration: from a TOML file and the command line's overrides to checked, resolved settings."""

import dataclasses
import difflib
import importlib
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from fedweave.errors import ConfigError

Document = dict[str, Any]  # what a TOML file holds, or would hold

# Where each section's names come from; imported only when needed, so that the command line starts quickly.
REGISTRIES = {
    "data": ("fedweave.datasets", "DATASETS"),
    "partition": ("fedweave.partition", "PARTITIONS"),
    "model": ("fedweave.models", "MODELS"),
    "algorithm": ("fedweave.algorithms", "ALGORITHMS"),
    "engine": ("fedweave.config", "ENGINES"),
}
DEFAULT_NAMES = {"partition": "louvain", "model": "gcn", "algorithm": "fedavg", "engine": "simulation"}


@dataclass(frozen=True)
class General:
    """The top-level keys: `seed` of everything random, `rounds` of training, rounds between evaluations (0: only
    at the end)."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    rounds: Annotated[int, Field(ge=1)] = 100
    eval_every: Annotated[int, Field(ge=0)] = 1


@dataclass(frozen=True)
class SimulationEngine:
    """All clients in this process.

    mode:               "vmap" runs a step for many clients at once, "loop" for one after the other.
    chunk:              clients run at once, 0 chooses.
    checkpoint_seconds: least time between two checkpoints.
    threads:            of torch, 0 leaves its default.
    dtype:              of features and weights.
    """

    mode: Literal["vmap", "loop"] = "vmap"
    chunk: Annotated[int, Field(ge=0)] = 0
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 10.0
    threads: Annotated[int, Field(ge=0)] = 0
    dtype: Literal["float32", "float64"] = "float32"


ENGINES: dict[str, type] = {"simulation": SimulationEngine}


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


@dataclass(frozen=True)
class Choice:
    """A plug-in chosen by name, with every parameter checked; parts among `values` are Choices themselves."""

    path: str
    name: str
    kind: type
    values: dict[str, Any]

    def make(self, *given: Any) -> Any:
        """The plug-in itself; `given` are the leading fields that the program provides.

        Raises:
            ConfigError: the plug-in refuses the values.
        """
        values = {key: _made(value) for key, value in self.values.items()}
        try:
            return self.kind(*given, **values)
        except ValueError as error:
            raise ConfigError(f"{self.path}: {error}") from error

    def plain(self) -> Document:
        """The TOML table that resolves to this choice; None has no TOML form and is left out, being a default."""
        values = {key: _plain(value) for key, value in self.values.items()}
        return {"name": self.name, **{key: value for key, value in values.items() if value is not None}}


@dataclass(frozen=True)
class Config:
    """One run, resolved: every key has its value. `folder` is the user's `[data] path` or None."""

    general: General
    data: Choice
    partition: Choice
    model: Choice
    algorithm: Choice
    engine: Choice
    folder: str | None = None

    def plain(self) -> Document:
        """The TOML document that resolves to this config."""
        sections = {section: getattr(self, section).plain() for section in REGISTRIES}
        if self.folder is not None:
            sections["data"]["path"] = self.folder
        return {**dataclasses.asdict(self.general), **sections, "privacy": {}}


def read(path: Path, overrides: Sequence[str] = (), algorithm: str | None = None) -> tuple[Config, tuple[str, ...]]:
    """Resolve the TOML file at `path`, with `algorithm` in place of its own and then `overrides` ("section.key=value").

    Returns the config and the keys of [algorithm] that the other algorithm does not have, which were dropped.

    Raises:
        ConfigError: the file cannot be read, or a key, name or value is not valid; names it and what is.
    """
    document = load(path)
    dropped: tuple[str, ...] = ()
    if algorithm is not None:
        document, dropped = with_algorithm(document, algorithm)
    for text in overrides:
        override(document, text)
    try:
        return resolve(document), dropped
    except ConfigError as error:
        about = re.findall(r"\w+", str(error))[:3]  # every message begins with section and key
        for text in overrides:
            if re.split(r"\W+", text.partition("=")[0].strip())[-1] in about:
                raise ConfigError(f"--set {text}: {error}") from error
        raise


def load(path: Path) -> Document:
    """Parse a TOML file.

    Raises:
        ConfigError: there is no such file, or it is not TOML; names the line.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        near = _nearest(path.name, [other.name for other in path.parent.glob("*.toml")])
        raise ConfigError(f"there is no file {path}.{near}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def override(document: Document, text: str) -> None:
    """Apply one `--set section.key=value`; the value is TOML, and anything that is not is taken as a string.

    Raises:
        ConfigError: there is no "=", a part of the key is empty, or a key on the way holds a value, not a table.
    """
    key, equals, raw = text.partition("=")
    *above, last = [part.strip() for part in key.split(".")]
    if not equals or not all([*above, last]):
        raise ConfigError(f"--set {text}: write section.key=value, for example --set algorithm.lr=0.1")
    node = document
    for depth, part in enumerate(above):
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            here = ".".join(above[: depth + 1])
            remedy = f"write the whole of it, for example --set '{here}={{name = \"...\", {last} = {raw}}}'"
            raise ConfigError(f"--set {text}: {here} is {node!r}, which has no keys of its own; {remedy}")
    node[last] = _value(raw)


def with_algorithm(document: Document, name: str) -> tuple[Document, tuple[str, ...]]:
    """The same experiment with another algorithm: NAME's defaults, keeping the keys that NAME has too.

    Returns the new document and the dropped keys.

    Raises:
        ConfigError: there is no such algorithm, or the section to be replaced is itself not valid.
    """
    section = dict(_table(document, "algorithm"))
    _choice("algorithm", section)
    kinds = registry("algorithm")
    _check_name("--algorithm", name, kinds)
    own = parameters("algorithm", kinds[name])
    kept = {key: value for key, value in section.items() if key in own}
    dropped = tuple(key for key in section if key not in own and key != "name")
    return {**document, "algorithm": {"name": name, **kept}}, dropped


def resolve(document: Document) -> Config:
    """Check a document and fill in every default.

    Raises:
        ConfigError: a key, name or value is not valid; names its path, the value and what is allowed.
    """
    general = {f.name: Parameter(hint, f.default) for f, hint in _fields(General)}
    _check_keys("", document, [*general, *REGISTRIES, "privacy"])
    top = _values("", {key: document[key] for key in general if key in document}, general)
    data = dict(_table(document, "data"))
    folder = data.pop("path", None)
    if folder is not None and (not isinstance(folder, str) or not folder):
        raise ConfigError(f"data.path: the folder of the data as a string, got {folder!r}")
    if folder is not None:
        data.setdefault("name", "folder")
    sections = {name: _choice(name, data if name == "data" else _table(document, name)) for name in REGISTRIES}
    for key in _table(document, "privacy"):
        raise ConfigError(f"privacy.{key}: this version has no [privacy] settings; leave the section empty")
    return Config(General(**top), **sections, folder=folder)


def registry(section: str) -> Mapping[str, type]:
    """The plug-ins that a section chooses from, by name."""
    module, attribute = REGISTRIES[section]
    return getattr(importlib.import_module(module), attribute)


def parameters(section: str, kind: type) -> dict[str, Parameter]:
    """The parameters of a plug-in: its fields, without the model that the program gives to an algorithm."""
    if section != "algorithm":
        return {f.name: Parameter(hint, _default(f)) for f, hint in _fields(kind)}
    families = importlib.import_module("fedweave.algorithms.parts").PARTS
    found = {}
    for f, hint in _fields(kind)[1:]:
        default = _default(f)
        many = isinstance(default, tuple) or get_origin(hint) is tuple
        found[f.name] = Parameter(hint, default, families.get(f.name), many)
    return found


def dumps(document: Document) -> str:
    """Write scalars and one level of sections as TOML; deeper tables are inline. `tomllib.loads` gives it back."""
    lines = [f"{_key(key)} = {_inline(value)}" for key, value in document.items() if not isinstance(value, dict)]
    for section, table in document.items():
        if isinstance(table, dict):
            lines += ["", f"[{_key(section)}]", *(f"{_key(key)} = {_inline(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def differences(one: Document, other: Document, prefix: str = "") -> list[str]:
    """Paths of the keys whose values differ."""
    found = []
    for key in sorted(one.keys() | other.keys()):
        a, b = one.get(key), other.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            found.append(prefix + key)
    return found


def _choice(path: str, section: Document) -> Choice:
    kinds = registry(path)
    name = section.get("name", DEFAULT_NAMES.get(path))
    if name is None:
        raise ConfigError(
            f"{path}.name: is missing; choose one of {', '.join(kinds)}, or give your own folder as {path}.path"
        )
    _check_name(f"{path}.name", name, kinds)
    given = {key: value for key, value in section.items() if key != "name"}
    own = parameters(path, kinds[name])
    extra = ["path"] if path == "data" else []
    _check_keys(path, given, ["name", *extra, *own], f" of {name}")
    choice = Choice(path, name, kinds[name], _values(f"{path}.", given, own))
    if path != "algorithm":  # an algorithm is given its model, so `build` checks it
        choice.make()
    return choice


def _values(prefix: str, given: Document, own: Mapping[str, Parameter]) -> dict[str, Any]:
    values = {}
    for key, parameter in own.items():
        path = prefix + key
        if parameter.family is not None:
            values[key] = _parts(path, given.get(key, parameter.default), parameter)
        elif key in given:
            values[key] = _checked(path, given[key], parameter.hint)
        elif parameter.default is dataclasses.MISSING:
            raise ConfigError(f"{path}: is missing and has no default")
        else:
            values[key] = parameter.default
    return values


def _checked(path: str, value: Any, hint: Any) -> Any:
    # JSON's strict mode has TOML's types: lists are the only sequences, and no string is read as a number.
    try:
        return TypeAdapter(hint).validate_json(json.dumps(value), strict=True)
    except TypeError as error:
        raise ConfigError(f"{path}: {value!r} is of a type that no setting has") from error
    except ValidationError as error:
        problems = sorted({problem["msg"].replace("Input should", "must") for problem in error.errors()})
        raise ConfigError(f"{path}: {' or '.join(problems)}, got {value!r}") from error


def _parts(path: str, value: Any, parameter: Parameter) -> Any:
    if not parameter.many:
        return _part(path, value, parameter.family or {})
    items = value if isinstance(value, list | tuple) else [value]
    return tuple(_part(path, item, parameter.family or {}) for item in items)


def _part(path: str, value: Any, family: Mapping[str, Any]) -> Any:
    """A part from its TOML form, or from the instance that is an algorithm's default."""
    if value is None:
        return None
    if value is dataclasses.MISSING:
        raise ConfigError(f"{path}: is missing; choose one of {', '.join(family)}")
    for name, kind in family.items():
        if type(value) is kind:
            return Choice(path, name, kind, {f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    table = value if isinstance(value, dict) else {"name": value}
    if "name" not in table:
        raise ConfigError(f"{path}: {value!r} has no name; choose one of {', '.join(family)}")
    name = table["name"]
    _check_name(path, name, family)
    own = {f.name: Parameter(hint, _default(f)) for f, hint in _fields(family[name])}
    given = {key: item for key, item in table.items() if key != "name"}
    _check_keys(path, given, ["name", *own], f" of {name}")
    choice = Choice(path, name, family[name], _values(f"{path}.", given, own))
    choice.make()
    return choice


def _check_name(path: str, name: Any, valid: Iterable[str]) -> None:
    if not isinstance(name, str) or name not in valid:
        raise ConfigError(f"{path}: there is no {name!r}; choose one of {', '.join(valid)}.{_nearest(name, valid)}")


def _check_keys(path: str, given: Iterable[str], valid: Sequence[str], owner: str = "") -> None:
    for key in given:
        if key not in valid:
            where = f"{path}.{key}" if path else key
            raise ConfigError(f"{where}: unknown key; the keys{owner} are {', '.join(valid)}.{_nearest(key, valid)}")


def _nearest(name: Any, valid: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(name).lower(), list(valid), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""


def _table(document: Document, section: str) -> Document:
    table = document.get(section, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{section}: is a section, written [{section}] with its keys below, got {table!r}")
    return table


def _fields(kind: type) -> list[tuple[Any, Any]]:
    hints = get_type_hints(kind, include_extras=True)
    return [(f, hints[f.name]) for f in dataclasses.fields(kind)]


def _default(field: Any) -> Any:
    factory: Callable[[], Any] | Any = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def _made(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_made(item) for item in value)
    return value.make() if isinstance(value, Choice) else value


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Choice):
        table = value.plain()
        return value.name if len(table) == 1 else table
    return str(value) if isinstance(value, Path) else value


def _value(raw: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except tomllib.TOMLDecodeError:
        return raw
    return parsed["value"] if len(parsed) == 1 else raw


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_inline(item) for item in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)

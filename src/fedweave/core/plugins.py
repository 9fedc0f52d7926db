"""Plug-ins from outside the package: named by file and class, "my_file.py:FedAvgM", or announced by installed packages
as entry points in the groups `GROUPS`.
"""

import hashlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from functools import cache, wraps
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, cast

from fedweave.core.shown import page
from fedweave.core.types import Record, Values
from fedweave.errors import ConfigError, FedweaveError, UserError, error_place

T = TypeVar("T")

GROUPS = {
    "algorithm": "fedweave.algorithms",
    "part": "fedweave.parts",
    "model": "fedweave.models",
    "data": "fedweave.datasets",
    "partition": "fedweave.partitions",
    "metric": "fedweave.metrics",
}
TRUSTED = "FEDWEAVE_FILES"  # plug-in files that any configuration may run, as PATH lists folders
IN_PYTHON = "python:"  # prefix of the class of an object that was made in Python, not in a named file
_NAMED = re.compile(r"(.+\.py):([A-Za-z_]\w*)")


def is_file(name: object) -> bool:
    """Whether `name` is of the form "file.py:Name"."""
    return isinstance(name, str) and _NAMED.fullmatch(name) is not None


def is_in_python(name: object) -> bool:
    """Whether `name` stands for an object that was made in Python."""
    return isinstance(name, str) and name.startswith(IN_PYTHON)


def file_of(kind: object) -> str | None:
    """ "file.py:Name" of a class, or of a preset, that is in a file of its own. None if it is inside a function, or
    in the script that is run, which would run again."""
    target: Any = kind if isinstance(kind, type) else getattr(kind, "paper", getattr(kind, "module", kind))
    module = sys.modules.get(target.__module__)
    name = f"{getattr(module, '__file__', None)}:{target.__qualname__}"
    if target.__module__ == "__main__" or not is_file(name) or not hasattr(module, target.__qualname__):
        return None
    return absolute(name)


def absolute(name: str) -> str:
    """The name with the file's absolute path, so that it is valid in any folder."""
    file, _, attribute = name.rpartition(":")
    return f"{Path(file).expanduser().resolve()}:{attribute}"


def files_in(document: Values) -> Iterator[Path]:
    """The Python files that a configuration names plug-ins in, at any depth: to look one up is to run its file."""
    waiting: list[object] = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str) and is_file(value):
            yield Path(absolute(value).rpartition(":")[0])
        elif isinstance(value, Mapping):
            waiting.extend(value.values())
        elif isinstance(value, list | tuple):
            waiting.extend(value)


def digests(document: Values) -> dict[str, str]:
    """{name: SHA-256} of the Python files that a configuration names plug-ins in; files of one name share a digest.
    Files that these import are not included."""
    contents: dict[str, bytes] = {}
    for file in sorted({file for file in files_in(document) if file.is_file()}):
        contents[file.name] = contents.get(file.name, b"") + file.read_bytes()
    return {name: hashlib.sha256(whole).hexdigest() for name, whole in contents.items()}


def check_trusted(document: Values, where: Path, option: str = "") -> None:
    """Reject the configuration `where`, which a stranger may have written, if it names a Python file that the
    environment variable `TRUSTED` does not. option: another way to allow the file, for the message.

    Raises:
        UserError: names the file and what to do.
    """
    trusted = {Path(file).expanduser().resolve() for file in os.environ.get(TRUSTED, "").split(os.pathsep) if file}
    for file in files_in(document):
        if file not in trusted:
            consent = f"{option}, or {TRUSTED}={file}" if option else f"{TRUSTED}={file}"
            raise UserError(
                f"{where} names a plug-in in {file}, which would be run. If you trust that file: {consent} before the "
                "command, or install a package that announces the plug-in (docs/extending-data.md).",
                code="user.untrusted",
            )


def label(name: str) -> str:
    """A plug-in's name in results: the class of one from a file or from Python, else its name."""
    return name.rpartition(":")[2] if is_file(name) or is_in_python(name) else name


def load(name: str) -> Any:
    """The object that "file.py:Name" names; the file is run once.

    Raises:
        ConfigError: there is no such file, it cannot be run, or it has no such name.
    """
    file, _, attribute = absolute(name).rpartition(":")
    module = _module(Path(file))
    if not hasattr(module, attribute):
        names = list[str]()
        for key, value in vars(module).items():
            if getattr(getattr(value, "paper", value), "__module__", "") == module.__name__:
                names.append(key)
        raise ConfigError(f"{name}: {file} has no {attribute}; it defines {', '.join(names) or 'nothing'}.")
    return getattr(module, attribute)


def call_plugin(plugin: str, call: Callable[[], T], refusal: type[UserError]) -> T:
    """The result of `call` of a plug-in.

    Raises:
        UserError: it raises an error without a message for users; a `refusal` that names the plug-in.
    """
    try:
        return call()
    except FedweaveError:
        raise
    except Exception as error:
        raise refusal(f"{plugin} failed: {type(error).__name__}: {error}") from error


class Place(NamedTuple):
    """Where a plug-in is defined."""

    module: str
    kind: str


class Registry(MutableMapping[str, Any]):
    """Plug-ins by name, each imported when it is looked up.

    package: the package that they are in. places: {name: "module.Class" in it}.
    """

    def __init__(self, package: str, places: Mapping[str, str]) -> None:
        self._entries: Record = {}  # {name: its place, or the plug-in itself}
        for name, place in places.items():
            module, _, kind = place.rpartition(".")
            self._entries[name] = Place(f"{package}.{module}", kind)

    def places(self) -> dict[str, Place]:
        """{name: place} of the plug-ins that are not here as objects."""
        return {name: entry for name, entry in self._entries.items() if isinstance(entry, Place)}

    def of_class(self, kind: str) -> str | None:
        """The name of the plug-in whose class is called `kind`; nothing is imported."""
        for name, entry in self._entries.items():
            if kind == (entry.kind if isinstance(entry, Place) else entry.__name__):
                return name
        return None

    def is_imported(self, name: str) -> bool:
        """Whether the module of a plug-in is imported."""
        entry = self._entries[name]
        return not isinstance(entry, Place) or entry.module in sys.modules

    def with_plugins(self, more: Values) -> "Registry":
        """A registry that also has the plug-ins `more`."""
        both = Registry("", {})
        both._entries = {**self._entries, **more}
        return both

    def __getitem__(self, name: str) -> Any:
        entry = self._entries[name]
        return getattr(importlib.import_module(entry.module), entry.kind) if isinstance(entry, Place) else entry

    def __setitem__(self, name: str, kind: Any) -> None:
        self._entries[name] = kind

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def name_of(kinds: Mapping[str, Any], kind: object) -> str | None:
    """The name of a plug-in among others; None if it is not there. A `Registry` imports nothing for it: a plug-in that
    one can ask about is there."""
    for name in kinds:
        is_imported = not isinstance(kinds, Registry) or kinds.is_imported(name)
        if is_imported and kinds[name] is kind:
            return name
    return None


@cache
def entry_point_plugins(section: str) -> dict[str, Any]:
    """{name: plug-in} of the entry points of a section's group.

    Raises:
        ConfigError: one cannot be loaded; names the package.
    """
    plugins = {}
    for entry in entry_points(group=GROUPS[section]) if section in GROUPS else ():
        try:
            plugins[entry.name] = entry.load()
        except (Exception, SystemExit) as error:
            package = entry.dist.name if entry.dist else "a package"
            raise ConfigError(f"{GROUPS[section]}: {entry.name!r} of {package} cannot be loaded: {error}") from error
    return plugins


@cache
def _module(file: Path) -> ModuleType:
    if not file.is_file():
        raise ConfigError(f"there is no file {file}; name a plug-in as file.py:Name, from the folder you are in.")
    name = f"fedweave_outside_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file} cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their annotations up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # of a script that ends itself, too
        del sys.modules[name]
        why = f"{type(error).__name__}: {error}{error_place(error)}"
        raise ConfigError(f"{file} cannot be run: {why}", code="config.code") from error
    return module


P = ParamSpec("P")
S = TypeVar("S")


@dataclass(frozen=True)
class Maker:
    """The plug-in that made a value, and from what: a run from Python names itself by it, a partition knows its data.

    plugin: the plug-in. arguments: the arguments it was called with, such as data and a seed, in order.
    """

    plugin: object
    arguments: tuple[Any, ...]


class ModelTuple(tuple[object, ...]):
    """The layers of a model, with its maker; a slice of it has none."""

    maker: Maker | None = None

    def __repr__(self) -> str:
        if self.maker is None:
            return super().__repr__()
        return f"{self.maker.plugin!r}.build({', '.join(map(repr, self.maker.arguments))})"

    def _repr_html_(self) -> str:
        rows = list[tuple[object, ...]]()
        for number, layer in enumerate(self):
            operator, reads = getattr(layer, "operator", None), getattr(layer, "reads", None)
            rows.append((number, str(operator or ""), str(reads or "")))
        return page(repr(self), rows, ("layer", "", ""))


def remember_maker(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """The method of a plug-in, whose result knows its maker."""
    signature = inspect.signature(method)

    @wraps(method)
    def build(self: S, *args: P.args, **named: P.kwargs) -> T:
        result = method(self, *args, **named)
        arguments = signature.bind(self, *args, **named).args[1:]
        return note(result, Maker(self, arguments))

    return cast(Callable[Concatenate[S, P], T], build)


def note(value: T, maker: Maker) -> T:
    """The same value, which now knows its maker."""
    result = cast(T, ModelTuple(value)) if isinstance(value, tuple) else value
    object.__setattr__(result, "maker", maker)
    return result


def maker_of(value: object) -> Maker | None:
    """The maker of a value; None if unknown, as for a copy with other values."""
    maker: Maker | None = getattr(value, "maker", None)
    return maker

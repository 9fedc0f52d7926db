"""Settings as their fields declare them: the one check of a value's type and range (`core.bounds`), for TOML documents
and for objects made in Python."""

import dataclasses
import difflib
import inspect
import json
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, reduce, wraps
from html import escape
from operator import or_
from types import UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from fedweave.core.bounds import in_words
from fedweave.core.shown import default_of, line, non_default_fields, page
from fedweave.errors import ConfigError, FedweaveError, SettingError


@dataclasses.dataclass(frozen=True)
class Beside:
    """In the type of a setting: the other setting without which it does nothing.

    value: the value that the other one needs; None: anything but 0, "" and None.
    """

    setting: str
    value: str | None = None

    def suits(self, other: object) -> bool:
        """Whether the other setting has a value with which this one works."""
        return bool(other) if self.value is None else other == self.value

    def __str__(self) -> str:
        return self.setting if self.value is None else f'{self.setting} = "{self.value}"'


def check_beside(
    prefix: str, values: Mapping[str, object], defaults: Mapping[str, object], hints: Mapping[str, Any]
) -> None:
    """Reject settings that do nothing because of the others (`Beside`), unless they have their defaults.

    Raises:
        SettingError: names the setting and the one that it needs.
    """
    for name, value in values.items():
        for needed in getattr(hints.get(name), "__metadata__", ()):
            if not isinstance(needed, Beside) or value == defaults[name]:
                continue
            if not needed.suits(values.get(needed.setting, defaults[needed.setting])):
                raise SettingError(
                    f"{prefix}{name} = {value!r}: does nothing without {needed}. Set {needed}, or leave {name} out.",
                    code="config.idle",
                )


class _PlainSignature:
    """The signature of a class of settings with plain types: `lr: float = 0.01`, without the limits of lr."""

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        _, *parameters = inspect.signature(owner.__init__).parameters.values()  # type: ignore[misc]
        hints = hints_of(owner)
        types = {one.name: plain_type(hints.get(one.name, one.annotation)) for one in parameters}
        initializer = vars(owner).get("__init__")
        if initializer is not None:  # `help` shows it, too, after it asked for the signature of the class
            initializer.__annotations__ |= {name: types[name] for name in types if name in initializer.__annotations__}
        return inspect.Signature([one.replace(annotation=types[one.name]) for one in parameters])


def plain_type(hint: Any) -> Any:
    """A type without what `Annotated` adds to it and to its parts."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return plain_type(parts[0])
    if origin is Literal or not parts or isinstance(parts[0], list):
        return hint
    plain = tuple(map(plain_type, parts))
    return reduce(or_, plain) if origin in (Union, UnionType) else origin[plain]


def _with_inherited_meanings(kind: type) -> str | None:
    """The docstring of a class, and the meanings of the settings that it has from its bases."""
    own = vars(kind).get("__doc__")
    if own is None:
        return None
    bases = kind.__mro__[1:]
    settings = {field.name for base in bases if dataclasses.is_dataclass(base) for field in dataclasses.fields(base)}
    described = meanings([kind])
    lines = list[str]()
    for name, text in meanings(bases).items():
        if name in settings and name not in described:
            lines += textwrap.wrap(f"{name}: {text}", 100, subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join([inspect.cleandoc(own), "", "Inherited settings:", "", *lines]) if lines else own


class Settings:
    """A base class of frozen dataclasses whose fields are settings. Arguments are checked by the fields' types before
    the object is made, as the same settings are in a TOML document.

    Raises:
        SettingError: there is no such field, a value has another type, or the class rejects it.
    """

    def __init_subclass__(cls, **options: object) -> None:
        """Add the meanings of inherited settings to the docstring, keep this representation, which @dataclass would
        replace in each class, and make the ValueErrors of a class's `__post_init__` SettingErrors, which the command
        line understands."""
        super().__init_subclass__(**options)
        cls.__doc__ = _with_inherited_meanings(cls)
        if "__repr__" not in vars(cls):
            cls.__repr__ = cls.__repr__  # type: ignore[method-assign]
        check = vars(cls).get("__post_init__")
        if check is None:
            return

        @wraps(check)
        def check_with_code(self: Any) -> None:
            try:
                check(self)
            except FedweaveError:
                raise
            except ValueError as error:
                raise SettingError(*error.args, code="config.value") from error

        cls.__post_init__ = check_with_code  # type: ignore[attr-defined]

    __signature__ = _PlainSignature()

    def __new__(cls, *arguments: object, **values: object) -> Self:
        """Check the arguments."""
        kind: type = cls
        defaults = _settings(kind)
        if defaults is not None:
            named = dict(zip(defaults, arguments, strict=False)) | values
            check_settings(cls.__name__, named, defaults, hints_of(kind))
        return super().__new__(cls)

    def __repr__(self) -> str:
        if not dataclasses.is_dataclass(self):
            return object.__repr__(self)
        values = non_default_fields(self)
        first = [repr(values.pop("model"))] if "model" in values else []
        return line(type(self).__name__, values, first)

    def _repr_html_(self) -> str:
        if not dataclasses.is_dataclass(self):
            return escape(repr(self))
        values = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return page(type(self).__name__, values)


def check_settings(
    owner: str, values: Mapping[str, object], defaults: Mapping[str, object], hints: Mapping[str, Any]
) -> None:
    """Reject unknown settings of `owner` (all have `defaults`), plain values of another type, and settings that do
    nothing (`check_beside`). Values that no TOML document has, such as models and parts, are left to the owner.

    Raises:
        SettingError: names the setting, and the nearest name or what its type allows.
    """
    for name, value in values.items():
        path = f"{owner}.{name}"
        if name not in defaults:
            settings = [setting for setting in defaults if setting != "model"]
            raise SettingError(
                f"{path}: unknown setting.{nearest(name, settings)} The settings are "
                f"{nearest_few(name, settings, f'help({owner})')}.",
                code="config.unknown-key",
            )
        if name not in hints or not _is_plain(value):
            continue
        try:
            convert_setting(path, _without_numpy(value), hints[name])
        except PydanticUserError:  # the type is of objects
            continue
        except ConfigError as error:
            raise SettingError(*error.args, code=error.code) from error
    check_beside(f"{owner}.", values, defaults, hints)


def convert_setting(path: str, value: object, hint: Any) -> object:
    """The value of a setting of the type `hint`, converted to that type; `path` names it.

    Raises:
        ConfigError: it has another type, or is out of its range. PydanticUserError: no setting has that type.
    """
    problem = ""
    for entry in value if isinstance(value, list) else [value]:
        if isinstance(entry, float) and math.isnan(entry):
            problem = f"must be {in_words(hint, value)}."
        elif isinstance(entry, int) and not -(2**63) <= entry < 2**63:  # what TOML's whole numbers are
            problem = "must be a whole number of at most 64 bits."
    if not problem:
        # JSON's strict mode has TOML's types: lists are the only sequences, and no string is read as a number.
        try:
            return _adapter(hint).validate_json(json.dumps(value), strict=True)
        except TypeError:
            problem = "is of a type that no setting has."
        except ValidationError:
            problem = f"must be {in_words(hint, value)}.{nearest(value, _words_of(hint))}"
    text = repr(value)
    shown = text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}…"
    raise ConfigError(f"{path} = {shown}: {problem}", code="config.value")


_MAX_LENGTH = 80  # characters of a value in a message


def _words_of(hint: Any) -> list[str]:
    """The words that a type allows."""
    words = list[str]()
    for part in get_args(hint):
        words += [part] if isinstance(part, str) else _words_of(part)
    return words


# Other libraries' names of metrics and settings.
OTHER_NAMES = {
    **dict.fromkeys(("ap", "aupr", "auprc", "pr_auc", "prauc"), "average_precision"),
    **dict.fromkeys(("auroc", "roc_auc", "rocauc"), "auc"),
    **dict.fromkeys(("f1", "f1_macro", "f1_score"), "macro_f1"),
    "mse": "rmse",
    "learning_rate": "lr",
    "epochs": "local_epochs",
    "num_rounds": "rounds",
    "num_clients": "clients",
    "hidden_channels": "hidden",
    "num_layers": "layers",
}


def nearest(name: object, valid: Iterable[str]) -> str:
    """ " Did you mean …?" if `name` is another library's for one of `valid`, or one of them begins with it or is
    similar to it, else ""."""
    text, names = str(name).lower(), list(valid)
    if OTHER_NAMES.get(text) in names:
        return f" Did you mean {OTHER_NAMES[text]!r}?"
    near = difflib.get_close_matches(text, names, n=1, cutoff=0.5 if len(text) < 4 else 0.6)
    if len(text) > 2:
        longer = [valid_name for valid_name in names if valid_name.startswith(text)]
        near = sorted(longer, key=len) or near
    return f" Did you mean {near[0]!r}?" if near else ""


MAX_NAMES = 10  # in a message; of a longer list the nearest three


def nearest_few(name: object, valid: Iterable[str], command: str) -> str:
    """The names in `valid`, with commas between them; of more than ten the three that are nearest to `name`, and the
    `command` that lists all. Without a command, all names."""
    names = list(valid)
    if len(names) <= MAX_NAMES or not command:
        return ", ".join(names)
    near = difflib.get_close_matches(str(name).lower(), names, n=3, cutoff=0.0)
    return f"{', '.join(near)} and {len(names) - 3} more; {command} lists all"


NAMED = re.compile(r"([a-z_0-9]+(?:, [a-z_0-9]+)*):\s+(\S.*)")


def meanings(documents: Sequence[type]) -> dict[str, str]:
    """The help of parameters from the docstrings of classes, the most particular first: lines "name: text" or "name,
    name: text", with indented lines that continue them."""
    texts: dict[str, str] = {}
    for base in reversed(documents):
        names: list[str] = []
        for text in inspect.cleandoc(base.__doc__ or "").splitlines():
            match = NAMED.fullmatch(text)
            if match is not None:
                names = match[1].split(", ")
                texts |= dict.fromkeys(names, match[2])
            elif names and text.startswith(" "):
                for name in names:
                    texts[name] += f" {text.strip()}"
            else:
                names = []
    return texts


def with_ranges(hints: Mapping[str, Any], bases: Mapping[str, Any]) -> dict[str, Any]:
    """Types of fields. A field that a class declares again, such as for another default, keeps the range that its type
    has in `bases`, unless its new type has another range."""
    result = dict(hints)
    for name, hint in bases.items():
        if get_origin(hint) is Annotated and name in hints and get_args(hint)[0] == hints[name]:
            result[name] = hint
    return result


def hints_of(kind: type) -> Mapping[str, Any]:
    """The types of a class's fields (`with_ranges` of its bases'); {} where Python cannot resolve them, as in a class
    inside a function."""
    return _hints(kind)


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    try:
        hints = get_type_hints(kind, include_extras=True)
    except (NameError, TypeError):
        return {}
    for base in kind.__bases__:
        hints = with_ranges(hints, _hints(base))
    return hints


@cache
def _adapter(hint: Any) -> TypeAdapter[object]:
    return TypeAdapter(hint)


@cache
def _settings(kind: type) -> Mapping[str, object] | None:
    """The fields that a class's __init__ takes, with their defaults; None where no dataclass made the __init__."""
    maker = next(base for base in kind.__mro__ if "__init__" in vars(base))
    if "__dataclass_params__" not in vars(maker) or not vars(maker)["__dataclass_params__"].init:
        return None
    fields = sorted(dataclasses.fields(maker), key=lambda field: field.kw_only is True)  # these come last in __init__
    return {field.name: default_of(field) for field in fields if field.init}


def _is_plain(value: object) -> bool:
    """Whether a value consists of types that TOML documents have, or is None."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(inner) for key, inner in value.items())
    return value is None or isinstance(value, bool | int | float | str) or _is_of_numpy(value)


def _without_numpy(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_without_numpy(inner) for inner in value]
    if isinstance(value, dict):
        return {key: _without_numpy(inner) for key, inner in value.items()}
    return value.item() if _is_of_numpy(value) else value  # type: ignore[attr-defined]


def _is_of_numpy(value: object) -> bool:
    """Whether a value is a number of NumPy's, which is not imported here so that the command line starts quickly."""
    return type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()

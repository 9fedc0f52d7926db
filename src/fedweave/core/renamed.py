"""Names that have changed: settings keep their meaning by an old one; other old names are errors that state the new."""

from abc import ABCMeta
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property, partial, wraps
from typing import Any, Literal, ParamSpec, TypeVar

from fedweave.core.types import Record
from fedweave.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")

# {old name: new name}, of versions 0.8 to 0.10.
RENAMED = {
    "normalise": "normalize",
    "edge_normalise": "edge_normalize",
    "target_normalise": "target_normalize",
    "unlabelled": "unlabeled",
    "neighbours": "neighbors",
    "public_split": "use_dataset_split",
    "train_rest": "train_on_rest",
    "most_local_steps": "max_local_steps",
    "external_least": "min_external",
    "least": "minimum",
    "everyone": "require_all",
}
# {old name: new name} of methods that classes outside the package may have.
RENAMED_METHODS = {
    "judged": "personalize",
    "judged_model": "evaluated_model",
    "judges_received": "evaluates_received",
    "one_judged": "evaluates_one_model",
    "told": "evaluation_message",
    "told_again": "trained_model_message",
    "tells": "sends_to_peers",
}
OLD_NAMES = {new: old for old, new in RENAMED.items()}
_OF_DATA = ("categories", "columns", "class_weight")  # tables whose keys are names in the data
_OF_MEMBERS = ("members",)  # tables of settings whose keys are names of members


def current(values: Mapping[str, Any], names: Mapping[str, str] = RENAMED) -> Record:
    """The same table, and the tables in it, with the current names of its settings.

    names: {name: its other name}. With `OLD_NAMES` the table gets the old ones, as hashes of it need.

    Raises:
        ConfigError: the table has a setting by both its names.
    """
    _check_once(values, values, names)
    return {names.get(name, name): _below(name, value, names) for name, value in values.items()}


def _below(name: str, value: Any, names: Mapping[str, str]) -> Any:
    """The value of a setting, with the current names of the settings in it."""
    if name in _OF_DATA:
        return value
    if name in _OF_MEMBERS and isinstance(value, Mapping):
        return {member: _inside(table, names) for member, table in value.items()}
    return _inside(value, names)


def _check_once(names_in: Iterable[str], values: Mapping[str, Any], names: Mapping[str, str]) -> None:
    if twice := [name for name in names_in if names.get(name) in values]:
        raise ConfigError(
            f"{twice[0]}: is another name of {names[twice[0]]}, which is given, too. Give one of them.",
            code="config.renamed",
        )


def _inside(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return current(value, names)
    return [_inside(item, names) for item in value] if isinstance(value, list) else value


def current_path(path: str) -> str:
    """A key with the sections above it, such as "data.normalise", with current names."""
    parts = path.split(".")
    above = ["", *parts]
    return ".".join(
        part if above[at] in (*_OF_DATA, *_OF_MEMBERS) else RENAMED.get(part, part) for at, part in enumerate(parts)
    )


def fitting(values: Mapping[str, Any], valid: Collection[str]) -> Record:
    """The values by the names that a plug-in has: one from outside may still have a setting of an old name.

    Raises:
        ConfigError: a setting is given by both its names.
    """
    _check_once([name for name in values if name not in valid or RENAMED.get(name) not in valid], values, RENAMED)
    return {
        next((other[name] for other in (RENAMED, OLD_NAMES) if name not in valid and other.get(name) in valid), name): v
        for name, v in values.items()
    }


class TakesOldNames(ABCMeta):
    """The class of classes whose settings may be given by their old names, too. A method by an old name would never be
    called, so that it is an error, also in a base class."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **more: Any) -> "TakesOldNames":
        """Make a class.

        Raises:
            ConfigError: it has a method by its old name.
        """
        new_class = super().__new__(cls, name, bases, namespace, **more)
        of_algorithms = {"judged": "score_or_store"} if hasattr(new_class, "score_or_store") else {}
        for old, new in (RENAMED_METHODS | of_algorithms).items():
            for kind in new_class.__mro__:
                if _has_method(vars(kind).get(old), old):
                    raise _renamed(kind, old, new, "method")
        return new_class

    def __call__(cls, *args: Any, **values: Any) -> Any:
        """Make an object."""
        if values and not RENAMED.keys().isdisjoint(values):
            values = fitting(values, getattr(cls, "__dataclass_fields__", {}))
        return super().__call__(*args, **values)


def _has_method(value: object, name: str) -> bool:
    """Whether what a class has by this name is a method, or a table of what a part sends to peers."""
    return (
        callable(value)
        or isinstance(value, property | cached_property)
        or (name == "tells" and isinstance(value, Mapping))
    )


def _renamed(kind: type, old: str, new: str, what: Literal["method", "name"]) -> ConfigError:
    now = f"the {what} is {new} now. Change it." if new else "it is not needed any more. Leave it out."
    return ConfigError(
        f"{kind.__name__}.{old}: {now}", code="config.renamed-method" if what == "method" else "config.renamed-name"
    )


def renamed(names: Mapping[str, str]) -> Callable[[type[T]], type[T]]:
    """A decorator of classes: an argument or attribute by an old name is an error that states the new one.

    names: {old name: new name, or "" if nothing replaces it}. An old name that the class still has may be read.
    """

    def change(kind: type[T]) -> type[T]:
        make: Any = kind.__new__

        def __new__(cls: type[T], *args: Any, **values: Any) -> T:
            for old in values.keys() & names.keys():
                raise _renamed(kind, old, names[old], "name")
            new: T = make(cls) if make is object.__new__ else make(cls, *args, **values)
            return new

        def refuse(self: T, old: str) -> Any:
            raise _renamed(kind, old, names[old], "name")

        kind.__new__ = __new__  # type: ignore[assignment]
        for old in names.keys() - vars(kind).keys():  # an old name that is there still reads
            setattr(kind, old, property(partial(refuse, old=old)))
        return kind

    return change


def takes_old_names(function: Callable[P, T]) -> Callable[P, T]:
    """The function, whose arguments may be given by their old names, too."""

    @wraps(function)
    def call(*args: P.args, **values: P.kwargs) -> T:
        return function(*args, **current(values))

    return call

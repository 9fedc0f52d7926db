"""What parts are called: in settings, from which they are made, and in messages."""

from collections.abc import Mapping, Sequence

from fedweave.algorithms.parts.part import Part
from fedweave.core import plugins
from fedweave.core.maker import maker_of
from fedweave.core.settings import nearest
from fedweave.errors import SettingError


def made(parts: object) -> tuple[Part, ...]:
    """Parts from what a user lists: parts, their names, or tables of a name and settings; one of these by itself too.

    Raises:
        SettingError: there is no such part, or it is none.
    """
    return tuple(_part(own) for own in (parts if isinstance(parts, list | tuple) else [parts]))


def _part(own: object) -> Part:
    if isinstance(own, Part):
        return own
    if isinstance(own, type) and issubclass(own, Part):
        raise SettingError(f"parts: {own.__name__} is a class. Write {own.__name__}(…).", code="config.value")
    name, values = (own.get("name"), {**own}) if isinstance(own, dict) else (own, {})
    values.pop("name", None)
    if plugins.is_file(name):
        kind = plugins.load(str(name))
    else:
        known = _registered()
        if not isinstance(name, str) or name not in known:
            raise SettingError(
                f"parts: there is no {name!r}.{nearest(name, known)} Choose from fedweave.algorithms.PARTS.",
                code="config.unknown-name",
            )
        kind = known[name]
    part: Part = kind(**values)
    return part


def called(part: Part) -> str:
    """What messages call a part: its name in settings; the class of a user's own."""
    names = {kind: name for name, kind in _registered().items()}
    return names.get(type(part), type(part).__name__)


def shown(parts: Mapping[str, Part]) -> dict[str, Part]:
    """The parts by what messages call them, in their order."""
    found: dict[str, Part] = {}
    for part in parts.values():
        name, again = called(part), sum(type(own) is type(part) for own in found.values())
        found[f"{name} ({again + 1})" if again else name] = part
    return found


def of_algorithm(parts: Mapping[str, Part], names: Sequence[str]) -> str:
    """What to add to a sentence on some parts if one of them is an algorithm's own, so that a user never wrote it."""
    said = [f"; {name} is a part of {algorithm} itself" for name in names if (algorithm := _maker(parts[name]))]
    return "".join(said) if len(said) < len(names) else ""


def _maker(part: Part) -> str:
    """The name of the algorithm that has a part by itself; "" of one that the user has listed."""
    if (maker := maker_of(part)) is None:
        return ""
    own = {name: kind for name, kind in ALGORITHMS.items() if kind is maker.plugin}
    return next(iter(own), getattr(getattr(maker.plugin, "paper", maker.plugin), "__name__", ""))


# What `fedweave.algorithms` registers, which imports this: filled there.
ALGORITHMS: dict[str, object] = {}
PARTS: dict[str, type[Part]] = {}


def _registered() -> Mapping[str, type[Part]]:
    return {**PARTS, **plugins.announced("part")}

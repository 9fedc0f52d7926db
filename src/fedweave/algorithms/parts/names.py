"""Parts by name: from a user's list to parts, and from a part to its name in messages."""

from collections.abc import Mapping, Sequence

from fedweave.algorithms.parts.part import Part
from fedweave.algorithms.registry import ALGORITHMS, PARTS
from fedweave.core import plugins
from fedweave.core.settings import nearest
from fedweave.errors import SettingError


def parse_parts(parts: object) -> tuple[Part, ...]:
    """Parts from a user's list, or from a single item. An item is a part, its name, or a table of a name and settings.

    Raises:
        SettingError: there is no part of this name, or the item is not a part.
    """
    return tuple(_parse_part(item) for item in (parts if isinstance(parts, list | tuple) else [parts]))


def _parse_part(item: object) -> Part:
    if isinstance(item, Part):
        return item
    if isinstance(item, type) and issubclass(item, Part):
        raise SettingError(f"parts: {item.__name__} is a class. Write {item.__name__}(…).", code="config.value")
    settings = {**item} if isinstance(item, dict) else {"name": item}
    name = settings.pop("name", None)
    if plugins.is_file(name):
        kind = plugins.load(str(name))
    else:
        registered = _registered()
        if not isinstance(name, str) or name not in registered:
            raise SettingError(
                f"parts: there is no {name!r}.{nearest(name, registered)} Choose from fedweave.algorithms.PARTS.",
                code="config.unknown-name",
            )
        kind = registered[name]
    part: Part = kind(**settings)
    return part


def part_name(part: Part) -> str:
    """A part's name in messages: its name in settings, or the class name of a user's own part."""
    return plugins.name_of(_registered(), type(part)) or type(part).__name__


def by_name(parts: Mapping[str, Part]) -> dict[str, Part]:
    """{name in messages: part}, in the parts' order; further parts of one class are numbered."""
    named: dict[str, Part] = {}
    for part in parts.values():
        name = part_name(part)
        count = sum(type(earlier) is type(part) for earlier in named.values())
        named[f"{name} ({count + 1})" if count else name] = part
    return named


def preset_name(part: Part) -> str:
    """The name of the preset that adds a part; "" for a part that the user listed."""
    maker = plugins.maker_of(part)
    if maker is None:
        return ""
    class_name: str = getattr(getattr(maker.plugin, "paper", maker.plugin), "__name__", "")
    return plugins.name_of(ALGORITHMS, maker.plugin) or class_name


def preset_note(parts: Mapping[str, Part], names: Sequence[str]) -> str:
    """An addition to a message about the parts `names` if a preset adds some of them, which the user did not list."""
    presets = {name: preset_name(parts[name]) for name in names}
    if all(presets.values()):
        return ""
    return "".join(f"; {name} is a part of {preset} itself" for name, preset in presets.items() if preset)


def _registered() -> Mapping[str, type[Part]]:
    return PARTS.with_plugins(plugins.entry_point_plugins("part"))

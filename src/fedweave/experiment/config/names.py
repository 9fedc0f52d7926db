"""Names and keys that the user gave: an unknown one is refused with all that there are and the nearest of them."""

import difflib
from collections.abc import Callable, Iterable, Sequence

from fedweave.errors import ConfigError


def check_name(path: str, name: object, valid: Iterable[str]) -> None:
    """Refuse a name that is not one of `valid`.

    Raises:
        ConfigError: names `path`, the name, the valid ones and the nearest.
    """
    if not isinstance(name, str) or name not in valid:
        raise ConfigError(
            f"{path}: there is no {name!r}.{nearest(name, valid)} Choose one of {', '.join(valid)}.",
            code="config.unknown-name",
        )


def check_keys(
    path: str,
    given: Iterable[str],
    valid: Sequence[str],
    owner: str = "",
    hint: Callable[[str], str] = lambda key: "",
) -> None:
    """Refuse keys that are not among `valid`, those of `owner`; `path` is the table's, "" for the top level.

    hint: what to say of a key that is valid elsewhere, such as " Did you mean …?"; "" where there is nothing.

    Raises:
        ConfigError: names each key's path, the valid keys and, without a hint, the nearest.
    """
    unknown = [key for key in given if key not in valid]
    if unknown:
        where = f"{path}." if path else ""
        allowed = f"The keys{owner} are {', '.join(valid)}."
        raise ConfigError(
            *(f"{where}{key}: unknown key.{hint(key) or nearest(key, valid)} {allowed}" for key in unknown),
            code="config.unknown-key",
        )


def nearest(name: object, valid: Iterable[str]) -> str:
    """ " Did you mean …?" if one of `valid` begins with `name` or is similar to it, else ""."""
    given, names = str(name).lower(), list(valid)
    begun = [one for one in names if len(given) > 2 and one.startswith(given)]
    near = sorted(begun, key=len) or difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""

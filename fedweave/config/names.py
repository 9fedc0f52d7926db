"""Names and keys that the user gave: an unknown one is refused with all that there are and the nearest of them."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from fedweave.errors import ConfigError


def check_name(path: str, name: Any, valid: Iterable[str]) -> None:
    """Refuse a name that is not one of `valid`.

    Raises:
        ConfigError: names `path`, the name, the valid ones and the nearest.
    """
    if not isinstance(name, str) or name not in valid:
        raise ConfigError(f"{path}: there is no {name!r}; choose one of {', '.join(valid)}.{nearest(name, valid)}")


def check_keys(path: str, given: Iterable[str], valid: Sequence[str], owner: str = "") -> None:
    """Refuse keys that are not among `valid`, those of `owner`; `path` is the table's, "" for the top level.

    Raises:
        ConfigError: names the key's path, the valid keys and the nearest.
    """
    for key in given:
        if key not in valid:
            where = f"{path}.{key}" if path else key
            raise ConfigError(f"{where}: unknown key; the keys{owner} are {', '.join(valid)}.{nearest(key, valid)}")


def nearest(name: Any, valid: Iterable[str]) -> str:
    """ " Did you mean …?" if one of `valid` is similar to `name`, else ""."""
    near = difflib.get_close_matches(str(name).lower(), list(valid), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""

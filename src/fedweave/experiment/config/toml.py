"""TOML documents: read, changed by `--set`, compared and written.

An unknown name or key that the user gave is refused with all that there are and the nearest of them.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from fedweave.core.settings import nearest as nearest
from fedweave.core.settings import nearest_few
from fedweave.core.types import Record, Values
from fedweave.errors import ConfigError, option


def check_name(path: str, name: object, valid: Iterable[str]) -> None:
    """Refuse a name that is not one of `valid`.

    Raises:
        ConfigError: names `path`, the name, the valid ones and the nearest.
    """
    if not isinstance(name, str) or name not in valid:
        raise ConfigError(
            f"{path}: there is no {name!r}.{nearest(name, valid)} Choose one of "
            f"{nearest_few(name, map(quote, valid), _command(path))}.",
            code="config.unknown-name",
        )


def quote(name: str) -> str:
    """A name as it stands among others with commas between them: in quotes if it has a comma itself."""
    return f'"{name}"' if "," in name else name


def check_keys(
    path: str,
    keys: Iterable[str],
    valid: Sequence[str],
    owner: str = "",
    hint: Callable[[str], str] = lambda key: "",
) -> None:
    """Reject keys that are not among `valid`, the keys of `owner`; `path` is the table's, "" for the top level.

    hint: a remark on a key that is valid elsewhere, such as " Did you mean …?"; "" for none.

    Raises:
        ConfigError: names each key's path, the valid keys and, without a hint, the nearest.
    """
    unknown = [key for key in keys if key not in valid]
    if unknown:
        where = f"{path}." if path else ""
        command = _command(path, owner)
        messages = []
        for key in unknown:
            remark = hint(key) or nearest(key, valid)
            messages.append(
                f"{where}{key}: unknown key.{remark} The keys{owner} are {nearest_few(key, valid, command)}."
            )
        raise ConfigError(*messages, code="config.unknown-key")


_LISTS = {"data": "datasets", "partition": "partitions", "model": "models", "algorithm": "algorithms"}


def _command(path: str, owner: str = "") -> str:
    """The command that lists what there is in a section, or the keys of its `owner`; "" where there is none."""
    section = path.partition(".")[0]
    kind = "parts" if path.startswith("algorithm.parts") else _LISTS.get(section, "")
    listed_keys = owner or path in (f"{section}.name", "algorithm.parts")
    return f"`fedweave list {kind}{owner.replace(' of ', ' ')}`" if kind and listed_keys else ""


_LARGEST = 4 << 20  # bytes of a file
Document: TypeAlias = Record  # what a TOML file holds, or would hold


def load(path: Path) -> Document:
    """Parse a TOML file.

    Raises:
        ConfigError: there is no such file, or it is not TOML; names the line.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe would never end
            raise OSError(f"it is {'a folder' if path.is_dir() else 'no file'}; name a TOML file")
        if path.exists() and path.stat().st_size > _LARGEST:  # whose keys take minutes to read
            raise OSError(f"it has more than {_LARGEST >> 20} MiB, which no configuration has")
        text = path.read_text(encoding="utf-8-sig")  # some editors mark the encoding
        _refuse_backslashes(path, text, _OF_WINDOWS)
        return tomllib.loads(text)
    except FileNotFoundError as error:
        near = nearest(path.name, [other.name for other in path.parent.glob("*.toml")])
        raise ConfigError(f"there is no file {path}.{near}", code="config.no-file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", code="config.unreadable") from error
    except tomllib.TOMLDecodeError as error:
        escape = "Unescaped" in str(error) or "hex value" in str(error)
        place = re.search(r"at line (\d+)", str(error))
        if escape and place is not None:
            before = int(place[1]) - 1
            _refuse_backslashes(path, text.split("\n")[before], _WITH_BACKSLASH, before)
        raise ConfigError(f"{path} is not valid TOML: {error}", code="config.unreadable") from error
    except ValueError as error:  # a number of thousands of digits is not a TOMLDecodeError
        raise ConfigError(f"{path} is not valid TOML: {error}", code="config.unreadable") from error
    except RecursionError as error:
        raise ConfigError(f"{path} cannot be read: it is nested too deeply", code="config.unreadable") from error


# a path of Windows, where \t and the like would be one character
_OF_WINDOWS = re.compile(r'''(?m)^[^#"'\n]*"([A-Za-z]:\\(?!\\|u[0-9A-Fa-f]{4})[^"\n]*)"''')
_WITH_BACKSLASH = re.compile(r'"([^"\n]*\\[^"\n]*)"')


def _refuse_backslashes(path: Path, text: str, pattern: re.Pattern[str], lines_before: int = 0) -> None:
    """Reject a Windows path in double quotes, where TOML reads backslashes as escapes."""
    match = pattern.search(text)
    if match is not None:
        literal = match[1]
        line = lines_before + text.count("\n", 0, match.start(1)) + 1
        raise ConfigError(
            f'{path} is not valid TOML: line {line}: "{literal}" has a backslash, which begins an escape in double '
            f"quotes. Write '{literal}' in single quotes, or {literal.replace(chr(92), '/')}.",
            code="config.backslash",
        )


def override(document: Document, text: str) -> None:
    """Apply one `--set section.key=value`; the value is TOML, and anything that is not is taken as a string.

    Raises:
        ConfigError: there is no "=", a part of the key is empty, or a key on the way holds a value, not a table.
    """
    key, equals, raw = text.partition("=")
    *above, last = [part.strip() for part in key.split(".")]
    if not equals or not all([*above, last]):
        raise ConfigError(
            f"{option('set', text, f'settings, {text}')}: write section.key=value, for example algorithm.lr=0.1",
            code="config.flag",
        )
    node = document
    for depth, part in enumerate(above):
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            here = ".".join(above[: depth + 1])
            where, whole = option("set", text, f"settings, {text}"), f'{here}={{name = "...", {last} = {raw}}}'
            raise ConfigError(
                f"{where}: {here} is {node!r}, which has no keys of its own; write the whole of it, for example "
                f"'{whole}'",
                code="config.flag",
            )
    node[last] = _value(raw)


def part_tables(algorithm: Values) -> list[Document]:
    """The tables of the parts that a section [algorithm] lists, also of those that it only names."""
    return [part if isinstance(part, dict) else {"name": part} for part in algorithm.get("parts", ())]


def section(document: Document, name: str) -> Document:
    """The table of section `name`, empty if it is absent.

    Raises:
        ConfigError: the document holds a value there.
    """
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(
            f"{name}: is a section, written [{name}] with its keys below, got {table!r}", code="config.value"
        )
    return table


def differences(one: Document, other: Document, prefix: str = "") -> list[str]:
    """Paths of the keys whose values differ."""
    paths = []
    for key in sorted(one.keys() | other.keys()):
        a, b = one.get(key), other.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            paths += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            paths.append(prefix + key)
    return paths


def config_hash(document: Document) -> str:
    """SHA-256 of a configuration in the form that `fedweave run` writes."""
    return hashlib.sha256(dumps(document).encode()).hexdigest()


def flat(document: Document, prefix: str = "") -> Document:
    """{"section.key": value}, of tables in tables too."""
    result: Document = {}
    for key, value in document.items():
        result |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return result


def dumps(document: Document, remarks: Mapping[str, str] | None = None) -> str:
    """Write scalars and one level of sections as TOML; deeper tables are inline. `tomllib.loads` gives it back.

    remarks: {section: a comment for the line above it}.
    """
    remarks = remarks or {}
    lines = [f"{_key(key)} = {inline(value)}" for key, value in document.items() if not isinstance(value, dict)]
    for name, table in document.items():
        if isinstance(table, dict):
            lines.append("")
            if name in remarks:
                lines.append(f"# {remarks[name]}")
            lines.append(f"[{_key(name)}]")
            lines += [f"{_key(key)} = {inline(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def _value(raw: str) -> object:
    number = re.sub(r"^([+-]?)\.(\d)", r"\g<1>0.\2", raw.strip())  # TOML needs the zero in ".05"
    try:
        parsed = tomllib.loads(f"value = {number}")
    except (ValueError, RecursionError):
        return raw
    return parsed["value"] if len(parsed) == 1 else raw


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def inline(value: object) -> str:
    """A value as TOML writes it within a line.

    Raises:
        TypeError: it has no form in TOML.
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(inline(item) for item in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if not isinstance(value, bool | int | float):
        raise TypeError(f"{value!r} has no form in TOML")
    return str(value).lower() if isinstance(value, bool) else repr(value)

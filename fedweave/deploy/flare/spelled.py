"""Which keys and steps plug-ins from outside may have: the names and texts that stand in their files, which are read
for it and not run.
"""

import ast
import inspect
from collections.abc import Iterable
from pathlib import Path

from fedweave import outside
from fedweave.errors import ConfigError


def spelled(files: Iterable[Path]) -> frozenset[str]:
    """Texts, names of functions, of keywords and of classes in these Python files, and "Class.function" of all classes
    with all functions of one file: a step may be inherited.

    Raises:
        ConfigError: names a file that cannot be read as Python.
    """
    found: set[str] = set()
    for file in files:
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError) as error:
            raise ConfigError(f"{file} cannot be read as Python: {error}; mend it, or take it out") from error
        found |= _names(tree)
    return frozenset(found)


def of_packages() -> tuple[Path, ...]:
    """The files of the algorithms and parts that installed packages announce."""
    kinds = [kind for section in ("algorithm", "part") for kind in outside.announced(section).values()]
    return tuple(Path(inspect.getfile(kind)) for kind in kinds)


def _names(tree: ast.Module) -> set[str]:
    texts, functions, classes = set[str](), set[str](), set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)):
                texts.add(text)
            case ast.keyword(arg=str(name)):
                texts.add(name)
            case ast.FunctionDef(name=name):
                functions.add(name)
            case ast.ClassDef(name=name):
                classes.add(name)
    return texts | functions | classes | {f"{kind}.{name}" for kind in classes for name in functions}

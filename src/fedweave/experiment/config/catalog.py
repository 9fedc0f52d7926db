"""What a list of plug-ins shows, read from the source of fedweave's registries: to import these takes seconds."""

import ast
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from importlib.resources import files
from typing import NamedTuple

from fedweave.core.plugins import GROUPS
from fedweave.experiment.config.plugins import place_of


class Catalog(NamedTuple):
    """A section's plug-ins.

    documents: {name: docstring of its class}. groups: {heading: names}, {} where a list shows them in their order.
    """

    documents: Mapping[str, str]
    groups: Mapping[str, tuple[str, ...]]


def catalog(section: str) -> Catalog | None:
    """The plug-ins of a section; None where these are known only after an import: a registry whose names are computed,
    or plug-ins of installed packages."""
    module, attribute = place_of(section)
    tables = {
        target.id: node.value
        for node in _source(module).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    table = tables.get(attribute)
    if not isinstance(table, ast.Dict) or None in table.keys or entry_points(group=GROUPS.get(section, "")):
        return None
    groups = _groups(tables["GROUPS"]) if section == "algorithm" else {}
    pairs = zip(table.keys, table.values, strict=True)
    return Catalog(
        {ast.literal_eval(key): _document(module, ast.unparse(value)) for key, value in pairs if key}, groups
    )


@cache
def _source(module: str) -> ast.Module:
    place = files("fedweave").joinpath(*module.split(".")[1:])
    file = place.joinpath("__init__.py") if place.is_dir() else place.parent / f"{place.name}.py"
    return ast.parse(file.read_text(encoding="utf-8"))


def _document(module: str, name: str) -> str:
    """The docstring of a class by its name in a module: "Class", or "other.Class" of a module that it imports."""
    first, _, rest = name.partition(".")
    for node in _source(module).body:
        if isinstance(node, ast.ClassDef) and node.name == first:
            return ast.get_docstring(node) or ""
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if first == (alias.asname or alias.name):
                    return (
                        _document(f"{node.module}.{alias.name}", rest) if rest else _document(node.module, alias.name)
                    )
    raise LookupError(f"{module} has no {name}")


def _groups(table: ast.expr) -> dict[str, tuple[str, ...]]:
    """{heading: names} of a literal, whose tuples may be made of others, (*("a", "b"), *("c",))."""
    if not isinstance(table, ast.Dict):
        raise LookupError("GROUPS is no dict")
    return {
        ast.literal_eval(key): tuple(_names(value)) for key, value in zip(table.keys, table.values, strict=True) if key
    }


def _names(value: ast.expr) -> list[str]:
    if isinstance(value, ast.Starred):
        return _names(value.value)
    return (
        [name for one in value.elts for name in _names(one)]
        if isinstance(value, ast.Tuple)
        else [ast.literal_eval(value)]
    )

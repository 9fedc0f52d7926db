"""The plug-ins that come with fedweave, as a list shows them, read from their source: to import them takes seconds."""

import ast
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from importlib.resources import files

from fedweave.core.plugins import GROUPS, Registry
from fedweave.experiment.config.plugins import place_of, registry


def documents(section: str) -> Mapping[str, str] | None:
    """{name: docstring of its class} of the plug-ins of a section; None where these are known only after an import: a
    registry whose names are computed, or plug-ins of installed packages."""
    if entry_points(group=GROUPS.get(section, "")):
        return None
    if section in ("algorithm", "part"):
        kinds = registry(section)
        places = kinds.places() if isinstance(kinds, Registry) else {}
        return {name: _document(*place) for name, place in places.items()} if len(places) == len(kinds) else None
    module, attribute = place_of(section)
    table = next(
        node.value
        for node in _source(module).body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == attribute
    )
    if not isinstance(table, ast.Dict) or not all(isinstance(key, ast.Constant) for key in table.keys):
        return None
    pairs = zip(table.keys, table.values, strict=True)
    return {ast.literal_eval(key): _document(module, ast.unparse(kind)) for key, kind in pairs if key}


@cache
def _source(module: str) -> ast.Module:
    *folders, last = module.split(".")[1:]
    place = files("fedweave").joinpath(*folders)
    package = place.joinpath(last)
    file = package.joinpath("__init__.py") if package.is_dir() else place.joinpath(f"{last}.py")
    return ast.parse(file.read_text(encoding="utf-8"))


def _document(module: str, name: str) -> str:
    """The docstring of a class that a module defines or imports."""
    for node in _source(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return ast.get_docstring(node) or ""
        if isinstance(node, ast.ImportFrom) and node.module and name in {alias.name for alias in node.names}:
            return _document(node.module, name)
    raise LookupError(f"{module} has no {name}")

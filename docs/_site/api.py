"""Pages of the Python API: what an object is, its fields, and a line for each method, from docstrings."""

import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from textwrap import dedent
from typing import Any

from docstrings import fields_as_lists

_SENTENCE_END = re.compile(r"(?<=[.;])\s+(?=[A-Z`{\[(])|\n\n")
_SECTION = re.compile(r"(Args|Raises|Returns|Yields):\n")


def imported(path: str) -> Any:
    """The object or module of an import path."""
    module_name, _, name = path.rpartition(".")
    module = importlib.import_module(module_name)
    return getattr(module, name) if hasattr(module, name) else importlib.import_module(path)


def entry(member: Any, methods: bool = True) -> str:
    """An object under its name: a function's arguments and docstring, a class's docstring and, with `methods`, a line
    for each method, a module's first paragraph and the names in it."""
    blocks = [f"## {import_path(member)}"]
    if inspect.ismodule(member):
        blocks += [_first_paragraph(member), ", ".join(_names_of_module(member))]
    elif inspect.isclass(member):
        blocks += [_document(member), "\n".join(_lines_of_class(member) if methods else ())]
    else:
        blocks += [f"`{member.__name__}{arguments(member)}`", _document(member)]
    return "\n\n".join(filter(None, blocks))


def import_path(member: Any) -> str:
    """The import path where a class, function or module is defined."""
    return member.__name__ if inspect.ismodule(member) else f"{member.__module__}.{member.__qualname__}"


def arguments(function: Any) -> str:
    """The arguments of a function without their types: "(data, seed=0)"."""
    parameters = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in ("self", "cls"):
            default = parameter.default
            if inspect.isclass(default) or str(default).startswith("<"):
                default = inspect.Parameter.empty
            parameters.append(parameter.replace(annotation=inspect.Parameter.empty, default=default))
    names = [str(one).replace("torch.", "") for one in parameters if one.kind is not one.KEYWORD_ONLY]
    by_name = [str(one).replace("torch.", "") for one in parameters if one.kind is one.KEYWORD_ONLY]
    if by_name and not any(one.kind is one.VAR_POSITIONAL for one in parameters):
        names.append("*")
    return f"({', '.join([*names, *by_name])})"


def _names_of_module(module: Any) -> Iterator[str]:
    for name, member in vars(module).items():
        here = getattr(member, "__module__", "") == module.__name__
        if here and not name.startswith("_") and (inspect.isfunction(member) or inspect.isclass(member)):
            yield f"`{name}`"


def _lines_of_class(kind: type) -> Iterator[str]:
    for name, member in vars(kind).items():
        if isinstance(member, property | cached_property):
            function, call = getattr(member, "fget", None) or member.func, name  # type: ignore[union-attr]
        elif isinstance(member, classmethod | staticmethod) or inspect.isfunction(member):
            function = inspect.unwrap(getattr(member, "__func__", member))
            call = f"{name}{arguments(function)}"
        else:
            continue
        if not name.startswith("_") and inspect.getdoc(function):
            yield f"- `{call}`: {_first_sentence(function)}"


def _docstring(member: Any) -> str:
    text = member.__doc__
    return inspect.cleandoc(text) if isinstance(text, str) else ""  # a class may have a docstring for its values only


def _first_paragraph(member: Any) -> str:
    return " ".join(_docstring(member).partition("\n\n")[0].split())


def _first_sentence(member: Any) -> str:
    text = " ".join(_SENTENCE_END.split(_docstring(member), maxsplit=1)[0].split())
    return f"{text[:-1]}." if text.endswith((";", ":")) else text


def _document(member: Any) -> str:
    """The docstring without the errors that it names; arguments as a list."""
    paragraphs = []
    for text in _docstring(member).split("\n\n"):
        section = _SECTION.match(text)
        if section is None:
            paragraphs.append(text)
        elif section[1] != "Raises":
            paragraphs.append(dedent(text[section.end() :]))
    return fields_as_lists("\n\n".join(paragraphs))

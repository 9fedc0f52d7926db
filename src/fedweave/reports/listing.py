"""The available plug-ins, for the terminal: their parameters and the meaning of each."""

import dataclasses
import inspect
import re
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple, Union, get_args, get_origin

from rich.console import Console

from fedweave.core import settings
from fedweave.core.bounds import limits
from fedweave.core.plugins import name_of
from fedweave.experiment.config import Parameter
from fedweave.experiment.config.plugins import HasFields

COLUMNS = 80  # of a terminal, in which the list of plug-ins stands
_WIDTH = 100  # of a meaning's lines, with what is before them


class Row(NamedTuple):
    """A plug-in: its name, one line about it, its parameters, and their meanings where its docstring has them."""

    name: str
    about: str
    parameters: Mapping[str, Parameter]
    meanings: Mapping[str, str]
    source: str = ""  # the paper, where its file names one


def show_list(
    console: Console, kinds: Iterable[Row], verbose: bool, groups: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Name and one sentence for each plug-in; with `verbose` its parameters, their types, defaults and meanings.

    groups: {heading: the names below it}; others come last.
    """
    rows = list(kinds)
    lines = _lines(rows, verbose) if verbose or not groups else _grouped(rows, groups)
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _grouped(rows: Sequence[Row], groups: Mapping[str, Sequence[str]]) -> Iterator[str]:
    by_name, width = {row.name: row for row in rows}, max(len(row.name) for row in rows)
    sorted_in = {name for names in groups.values() for name in names}
    others = [name for name in by_name if name not in sorted_in]
    for heading, names in {**groups, "Others": others}.items():
        if there := [by_name[name] for name in names if name in by_name]:
            yield heading
            yield from (line for row in there for line in _wrapped(f"  {row.name:<{width}}  ", row.about))
            yield ""


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(text, COLUMNS, initial_indent=head, subsequent_indent=" " * len(head)) or [head.rstrip()]


def one_line(kind: object) -> str:
    """The first sentence of a plug-in's docstring."""
    return first_sentence(inspect.cleandoc(kind.__doc__ or ""))


def first_sentence(document: str) -> str:
    """The first sentence of a docstring, in one line."""
    paragraph = " ".join(document.partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", paragraph)[0]  # "et al. 2017" does not end a sentence


def source(kind: object) -> str:
    """Where a plug-in comes from: what the docstring of its file begins with."""
    module = inspect.getmodule(getattr(kind, "paper", kind))
    head = inspect.cleandoc(getattr(module, "__doc__", None) or "").partition("\n\n")[0]
    return " ".join(head.partition("Deviations:")[0].split())


def meanings(kind: "type | HasFields") -> dict[str, str]:
    """The meanings of parameters in the docstrings of a plug-in and of its bases.

    A meaning is a line "name: text" or "name, name: text", with indented lines that continue it.
    """
    return settings.meanings(kind.__mro__ if isinstance(kind, type) else kind.documents)


def _lines(rows: list[Row], verbose: bool) -> Iterable[str]:
    width = max(len(row.name) for row in rows)
    for row in rows:
        yield from _wrapped(f"{row.name:<{width}}  ", row.about)
        if verbose and row.source:
            yield from _wrapped(f"{'':<{width}}  ", f"Source: {row.source}")
        for key, parameter in row.parameters.items() if verbose else ():
            missing = parameter.default is dataclasses.MISSING
            default = "required" if missing else f"= {default_text(parameter, parameter.default)}"
            yield f"{'':<{width}}    {key}: {type_name(parameter)} {default}"
            for line in textwrap.wrap(row.meanings.get(key, ""), _WIDTH - width - 8):
                yield f"{'':<{width}}        {line}"


def type_name(parameter: Parameter) -> str:
    """The type of a parameter in words."""
    if parameter.family is not None:
        return 'list of parts, each "name" or {name = "…", key = value} (see `fedweave list parts`)'
    return _hint_name(parameter.hint)


def _hint_name(hint: object) -> str:
    if get_origin(hint) is Annotated:
        return " ".join(filter(None, [_hint_name(get_args(hint)[0]), limits(hint)]))
    origin = get_origin(hint)
    if isinstance(origin, type) and origin in (tuple, list, dict):
        inner = ", ".join("..." if one is Ellipsis else _hint_name(one) for one in get_args(hint))
        return f"{origin.__name__}[{inner}]"
    if get_origin(hint) is Literal:
        return " | ".join(repr(option) for option in get_args(hint))
    if get_origin(hint) in (types.UnionType, Union):  # of types, and where one of these says more than a type
        return " | ".join(_hint_name(option) for option in get_args(hint) if option is not type(None))
    return inspect.formatannotation(hint)


def default_text(parameter: Parameter, value: object) -> str:
    """A default as you would write it in the configuration."""
    if value is None:
        return "(none)"
    if parameter.family is not None and isinstance(value, tuple | list):
        return f"[{', '.join(filter(None, (name_of(parameter.family, type(one)) for one in value)))}]"
    return repr(list(value) if isinstance(value, tuple) else value)

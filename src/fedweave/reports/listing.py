"""The available plug-ins, for the terminal: their parameters and the meaning of each."""

import dataclasses
import inspect
import re
import textwrap
import types
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
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
    rows = {row.name: row for row in kinds}
    width = max(map(len, rows))
    lines = list[str]()
    if groups and not verbose:
        in_groups = {*chain.from_iterable(groups.values())}
        for heading, names in {**groups, "Others": [name for name in rows if name not in in_groups]}.items():
            shown = [rows[name] for name in names if name in rows]
            if shown:
                lines.append(heading)
                for row in shown:
                    lines += _paragraph(f"  {row.name:<{width}}  ", row.about)
                lines.append("")
    else:
        for row in rows.values():
            lines += _paragraph(f"{row.name:<{width}}  ", row.about)
            if verbose:
                lines += _details(row, width)
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _paragraph(head: str, text: str) -> list[str]:
    return textwrap.wrap(text, COLUMNS, initial_indent=head, subsequent_indent=" " * len(head)) or [head.rstrip()]


def _details(row: Row, width: int) -> list[str]:
    """A plug-in's paper and its parameters, below its name of `width` letters."""
    indent = " " * width
    lines = _paragraph(f"{indent}  ", f"Source: {row.source}") if row.source else []
    for key, parameter in row.parameters.items():
        missing = parameter.default is dataclasses.MISSING
        default = "required" if missing else f"= {default_text(parameter, parameter.default)}"
        lines.append(f"{indent}    {key}: {type_name(parameter)} {default}")
        for line in textwrap.wrap(row.meanings.get(key, ""), _WIDTH - width - 8):
            lines.append(f"{indent}        {line}")
    return lines


def one_line(kind: object) -> str:
    """The first sentence of a plug-in's docstring, in one line."""
    paragraph = " ".join(inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].split())
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


def type_name(parameter: Parameter) -> str:
    """The type of a parameter in words."""
    if parameter.family is not None:
        return 'list of parts, each "name" or {name = "…", key = value} (see `fedweave list parts`)'
    return _hint_name(parameter.hint)


def _hint_name(hint: object) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return " ".join(filter(None, [_hint_name(arguments[0]), limits(hint)]))
    if isinstance(origin, type) and origin in (tuple, list, dict):
        inner = ", ".join("..." if one is Ellipsis else _hint_name(one) for one in arguments)
        return f"{origin.__name__}[{inner}]"
    if origin is Literal:
        return " | ".join(map(repr, arguments))
    if origin in (types.UnionType, Union):  # of types, and where one of these says more than a type
        return " | ".join(_hint_name(option) for option in arguments if option is not type(None))
    return inspect.formatannotation(hint)


def default_text(parameter: Parameter, value: object) -> str:
    """A default as you would write it in the configuration."""
    if value is None:
        return "(none)"
    if parameter.family is not None and isinstance(value, tuple | list):
        names = [name_of(parameter.family, type(one)) for one in value]
        return f"[{', '.join(filter(None, names))}]"
    return repr(list(value) if isinstance(value, tuple) else value)

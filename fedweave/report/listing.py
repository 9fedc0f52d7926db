"""The plug-ins there are, for the terminal: their parameters, and the parts that algorithms are made of."""

import dataclasses
import inspect
import re
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

from rich.console import Console

from fedweave.config import Parameter, own_parameters

Row = tuple[str, str, Mapping[str, Parameter]]  # name, one line about it, parameters


def show_list(console: Console, kinds: Iterable[Row], verbose: bool) -> None:
    """Name and one line for each plug-in; with `verbose` its parameters, their types and defaults, and after all
    plug-ins the parts that they can be made of."""
    rows = list(kinds)
    for line in _lines(rows, verbose):
        _print(console, line)
    families = {key: p.family for _, _, parameters in rows for key, p in parameters.items() if p.family is not None}
    for key, family in families.items() if verbose else ():
        _print(console, f'\n{key}, given by name or as {{name = "…", key = value}}:')
        for line in _lines([(name, one_line(kind), own_parameters(kind)) for name, kind in family.items()], verbose):
            _print(console, f"  {line}")


def one_line(kind: type) -> str:
    """The first sentence of a plug-in's docstring."""
    paragraph = " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", paragraph)[0]  # "et al. 2017" does not end a sentence


def _lines(rows: list[Row], verbose: bool) -> Iterable[str]:
    width = max(len(name) for name, _, _ in rows)
    for name, about, parameters in rows:
        yield f"{name:<{width}}  {about}"
        for key, parameter in parameters.items() if verbose else ():
            missing = parameter.default is dataclasses.MISSING
            default = "required" if missing else f"= {_default(parameter, parameter.default)}"
            yield f"{'':<{width}}    {key}: {_type_name(parameter)} {default}"


def _print(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def _type_name(parameter: Parameter) -> str:
    if parameter.family is not None:
        return f"{'list of ' if parameter.many else ''}{' | '.join(parameter.family)}"
    return _hint_name(parameter.hint)


def _hint_name(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        return _hint_name(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return " | ".join(repr(option) for option in get_args(hint))
    if get_origin(hint) is types.UnionType:
        return " | ".join(_hint_name(option) for option in get_args(hint) if option is not type(None))
    return inspect.formatannotation(hint)


def _default(parameter: Parameter, value: Any) -> str:
    """A default as it would stand in the configuration."""
    if value is None:
        return "(none)"
    if parameter.family is not None:
        values = value if isinstance(value, tuple) else (value,)
        names = [name for one in values for name, kind in parameter.family.items() if type(one) is kind]
        return f"[{', '.join(names)}]" if parameter.many else names[0]
    return repr(list(value) if isinstance(value, tuple) else value)

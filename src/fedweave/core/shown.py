"""Displays of objects: one short line, and a small table in notebooks."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

_MOST = 60  # characters of a value
_ROWS = 20  # of a table


class Words(str):
    """Text that is shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def line(name: str, facts: Mapping[str, object], first: Sequence[object] = ()) -> str:
    """ "Name(first, fact=value)", numbers with commas between thousands."""
    values = [str(value) for value in first] + [f"{key}={short(value)}" for key, value in facts.items()]
    return f"{name}({', '.join(values)})"


def short(value: object) -> str:
    """A value in at most 60 characters."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = f"{value:.4g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"


def page(title: str, rows: Iterable[Sequence[object]], heads: Sequence[str] = ()) -> str:
    """An HTML table with a title above it, the first rows where there are many."""
    rows = [*rows]
    above = f"<tr>{''.join(f'<th>{escape(head)}</th>' for head in heads)}</tr>" if heads else ""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:_ROWS])
    more = f"<p>… and {len(rows) - _ROWS:,} more</p>" if len(rows) > _ROWS else ""
    return f"<div><strong>{escape(title)}</strong><table>{above}{body}</table>{more}</div>"


def _cell(value: object) -> str:
    text = value if isinstance(value, str) else short(value)
    return f'<td style="text-align:left">{escape(text)}</td>'


def changed(value: Any) -> dict[str, Any]:
    """{field: value} of a dataclass's fields that are shown and have another value than their default."""
    return {
        field.name: getattr(value, field.name)
        for field in dataclasses.fields(value)
        if field.repr and not _is_default(field, getattr(value, field.name))
    }


def default_of(field: "dataclasses.Field[Any]") -> object:
    """The default of a field, from its factory if it has one."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _is_default(field: "dataclasses.Field[Any]", value: object) -> bool:
    default = default_of(field)
    return default is not dataclasses.MISSING and type(default) is type(value) and bool(default == value)


class Shown:
    """A base class of objects that show a few `facts` of themselves, {name: value}; the first may be under ""."""

    def facts(self) -> Mapping[str, object]:
        """The facts."""
        raise NotImplementedError

    def __repr__(self) -> str:
        facts = dict(self.facts())
        first = [facts.pop("")] if "" in facts else []
        return line(type(self).__name__, facts, first)

    def _repr_html_(self) -> str:
        return page(type(self).__name__, ((name or "name", value) for name, value in self.facts().items()))

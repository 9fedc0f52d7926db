"""Displays of objects: one short line, and a small table in notebooks."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

_MAX_LENGTH = 60  # characters of a value
_MAX_ROWS = 20  # of a table


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
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"


def page(title: str, rows: Iterable[Sequence[object]], heads: Sequence[str] = ()) -> str:
    """An HTML table with a title above it, the first rows where there are many."""
    rows, lines = [*rows], list[str]()
    if heads:
        lines.append("".join(f"<th>{escape(head)}</th>" for head in heads))
    for row in rows[:_MAX_ROWS]:
        texts = [value if isinstance(value, str) else short(value) for value in row]
        lines.append("".join(f'<td style="text-align:left">{escape(text)}</td>' for text in texts))
    table = "".join(f"<tr>{line}</tr>" for line in lines)
    more = f"<p>… and {len(rows) - _MAX_ROWS:,} more</p>" if len(rows) > _MAX_ROWS else ""
    return f"<div><strong>{escape(title)}</strong><table>{table}</table>{more}</div>"


def non_default_fields(instance: Any) -> dict[str, Any]:
    """{field: value} of a dataclass's fields that are shown and have another value than their default."""
    values = dict[str, Any]()
    for field in dataclasses.fields(instance):
        value, default = getattr(instance, field.name), default_of(field)
        if field.repr and (type(default) is not type(value) or default != value):
            values[field.name] = value
    return values


def default_of(field: "dataclasses.Field[Any]") -> object:
    """The default of a field, from its factory if it has one."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


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
        facts = self.facts()
        return page(type(self).__name__, ((name or "name", facts[name]) for name in facts))

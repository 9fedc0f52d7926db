"""Docstrings for the site: lines "name: meaning" become a list."""

import re
from typing import Any

import griffe

from fedweave.core.settings import NAMED

_SECTION = re.compile(r"(Raises|Returns|Yields|Args|Deviations):")


def fields_as_lists(text: str) -> str:
    """`text` with each block of "name: meaning" lines as a Markdown list; indented lines continue the line before. An
    empty line separates a list from the paragraph before it."""
    lines: list[str] = []
    in_list = False
    for line in text.splitlines():
        match = NAMED.fullmatch(line)
        if match and not _SECTION.match(line):
            if not in_list:
                lines.append("")
            names = ", ".join(f"`{name}`" for name in match[1].split(", "))
            lines.append(f"- {names}: {match[2]}")
            in_list = True
        elif in_list and line.startswith(" "):
            lines.append(f"    {line.strip()}")
        else:
            in_list = False
            if line.startswith("- ") and lines and lines[-1].strip() and not lines[-1].startswith(("- ", " ")):
                lines.append("")
            lines.append(line)
    return "\n".join(lines)


class FieldLists(griffe.Extension):
    """Applies `fields_as_lists` to every docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite one docstring before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = fields_as_lists(obj.docstring.value)

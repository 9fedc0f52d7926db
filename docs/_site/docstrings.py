"""Docstrings as the site shows them: lines "name: meaning" become a list."""

import re
from typing import Any

import griffe

from fedweave.core.settings import NAMED

_SECTION = re.compile(r"(Raises|Returns|Yields|Args|Deviations):")


def listed(text: str) -> str:
    """`text` with each block of "name: meaning" lines as a Markdown list; indented lines go on with the one before. A
    list stands apart from the paragraph before it."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if (match := NAMED.fullmatch(line)) and not _SECTION.match(line):
            names = ", ".join(f"`{name}`" for name in match[1].split(", "))
            lines += [*([] if inside else [""]), f"- {names}: {match[2]}"]
            inside = True
        elif inside and line.startswith(" "):
            lines.append(f"    {line.strip()}")
        else:
            inside = False
            begins = line.startswith("- ") and lines and lines[-1].strip() and not lines[-1].startswith(("- ", " "))
            lines += ["", line] if begins else [line]
    return "\n".join(lines)


class Listed(griffe.Extension):
    """Applies `listed` to every docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite one docstring before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)

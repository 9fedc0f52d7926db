"""A document to print: what it says, apart from how HTML and PDF show it. Words of others are no markup for rich."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from rich.markup import escape as escape_rich

from fedweave.core.text import printable


def unmarked(text: object) -> str:
    """`printable` words for a line or a cell that rich shows, in which nothing is markup."""
    return escape_rich(printable(str(text)))


@dataclass(frozen=True)
class Grid:
    """A table of words and numbers as text.

    words: the columns of words, by name; the others hold numbers. sums: how many of the last rows add others up.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[str, ...] = ()
    sums: int = 0


@dataclass(frozen=True)
class Section:
    """A heading, and below it text, warnings, a table and what is typed or compared letter by letter."""

    heading: str
    text: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    grid: Grid | None = None
    code: tuple[str, ...] = ()


@dataclass(frozen=True)
class Document:
    """A whole document. number: by which it is named; a digest of its contents. facts: what it is of, a pair each."""

    title: str
    facts: tuple[tuple[str, str], ...] = ()
    lead: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    foot: str = ""
    number: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of all that it says but its number."""
        told = json.dumps(asdict(replace(self, number="")), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(told.encode()).hexdigest()


def grid(rows: Sequence[dict[str, str]], words: Sequence[str], sums: int = 0) -> Grid | None:
    """A table of rows {column: text}; None of no rows."""
    return Grid(tuple(rows[0]), tuple(tuple(row.values()) for row in rows), tuple(words), sums) if rows else None

"""A document to print: its contents, without how HTML and PDF show it. Text from users is not markup for rich."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from rich.console import Console
from rich.markup import escape as escape_rich

from fedweave.core.text import printable

MAX_TILES = 5  # of a page
MAX_NAMED = 3  # columns, members or the like that a tile names


def plain_text(text: object) -> str:
    """`printable` text for a line or a cell that rich shows, without any markup."""
    return escape_rich(printable(str(text)))


def print_line(console: Console, text: object) -> None:
    """Print a line of text as it is: no markup, no colors of numbers, no line breaks."""
    console.print(plain_text(text), highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Grid:
    """A table of words and numbers as text.

    words: names of the columns of words; the others hold numbers. sums: the number of last rows that are totals.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[str, ...] = ()
    sums: int = 0


@dataclass(frozen=True)
class Tile:
    """A number that a reader sees first, with its title and what there is to know about it; text in backticks is
    code."""

    title: str
    value: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """A heading, and below it text, warnings, a table and text to type or to compare letter by letter. hint: what is
    in it, for a section that is folded on a page; "" for one that is open."""

    heading: str
    text: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    grid: Grid | None = None
    code: tuple[str, ...] = ()
    hint: str = ""


@dataclass(frozen=True)
class Document:
    """A whole document. number: its identifier, a digest of its contents. facts: its subject, as pairs.

    signer: the member whose data it is about and who has to sign it, by the name in its certificate; "" where it is no
    single member's. verdict: the result in a sentence, which comes first, as do the tiles; sign: 1 for a good result,
    -1 for a bad one.
    """

    title: str
    facts: tuple[tuple[str, str], ...] = ()
    lead: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    foot: str = ""
    number: str = ""
    signer: str = ""
    subtitle: str = ""
    verdict: str = ""
    sign: int = 0
    tiles: tuple[Tile, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 of all its contents but its number."""
        text = json.dumps(asdict(replace(self, number="")), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def grid(rows: Sequence[dict[str, str]], words: Sequence[str], sums: int = 0) -> Grid | None:
    """A table of rows {column: text}; None of no rows."""
    return Grid(tuple(rows[0]), tuple(tuple(row.values()) for row in rows), tuple(words), sums) if rows else None

"""Sentences of the documentation are short, and address the reader in words that everyone knows."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [*(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")), *(ROOT / "docs").rglob("*.md")]
LONG = 35
BANNED = (
    *("told", "anew", "nobody", "everybody", "somebody", "whoever", "whatever", "whichever", "besides", "beside"),
    *("the former", "the latter", "of which", "of whom", "so many", "as many", "the same of", "that of", "is said"),
    *("in place of", "in the place of", "held against", "no longer", "as of old"),
)
NOT_PROSE = (
    (r"^ *```.*?^ *```|<!--.*?-->|^\s*(?:\||#|!!!)[^\n]*", ""),
    (r"\$\$.*?\$\$", " formula "),
    (r"``.+?``|`[^`]*`|\$[^$\n]+\$|https?://[^\s)]+", "Code"),
    (r"<[^>]+>", ""),
    (r"!?\[([^\]]*)\]\([^)]*\)", r"\1"),
    (r"^[ \t]*(?:[-*]|\d+\.) +", "\n\n"),
    (r"[*_]", ""),
)


def sentences(text: str) -> Iterator[str]:
    """The prose of a Markdown text: no code, tables, headings or links' targets."""
    for pattern, instead in NOT_PROSE:
        text = re.sub(pattern, instead, text, flags=re.MULTILINE | re.DOTALL)
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in re.split(r"(?<=[.!?])[)\"”]?\s+(?=[\"“(]?[A-Z0-9])", " ".join(paragraph.split())):
            if len(sentence.split()) > 2:
                yield sentence


def prose() -> list[tuple[str, str]]:
    """(page, sentence) of all pages but the results that programs write."""
    pages = (page for page in PAGES if "results" not in page.parts)
    return [(str(page.relative_to(ROOT)), one) for page in pages for one in sentences(page.read_text(encoding="utf-8"))]


def banned(sentence: str) -> list[str]:
    return re.findall(rf"\b(?:{'|'.join(BANNED)})\b", sentence, re.IGNORECASE)


def test_sentences_are_counted_as_a_reader_would() -> None:
    text = "# A heading\n\nYou run `a. B`, [a link](c.md). It ends (really).\n\n| a | table |\n\n- An item (e.g. this)\n"
    assert [*sentences(text)] == ["You run Code, a link.", "It ends (really).", "An item (e.g. this)"]

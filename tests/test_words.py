"""The sentences of the documentation are short and address the reader."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMES = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    "benchmarks/findings.md",
    "examples/credit/README.md",
)
PAGES = [*(ROOT / name for name in NAMES), *(ROOT / "docs").rglob("*.md")]
LONG, LONG_SHARE, READER_SHARE = 35, 0.03, 0.05  # words of a long sentence; the most that are; the least with "you"
NOT_PROSE = (
    (r"^ *```.*?^ *```|<!--.*?-->|^\s*(?:\||#|!!!)[^\n]*", ""),
    (r"(?:^ {4}[^\n]*\n|^\n(?= {4}))+", "\n"),
    (r"\$\$.*?\$\$", " formula "),
    (r"``.+?``|`[^`]*`|\$[^$\n]+\$|https?://[^\s)]+", "Code"),
    (r"<[^>]+>", ""),
    (r"!?\[([^\]]*)\]\([^)]*\)", r"\1"),
    (r"^[ \t]*(?:[-*]|\d+\.) +", "\n\n"),
    (r"[*_]|(?<=\bal)\.|(?<=\b[Ee]q)\.|(?<=\b[Ee]qs)\.", ""),
)


def sentences(text: str) -> Iterator[str]:
    """The prose of a Markdown text: no code, tables, headings or links' targets."""
    for pattern, instead in NOT_PROSE:
        text = re.sub(pattern, instead, text, flags=re.MULTILINE | re.DOTALL)
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in re.split(
            r"(?<=[.!?])[)\"”]?\s+(?=[\"“(]?(?:[A-Z0-9\u0391-\u03a9]|fedweave\b|\w ))", " ".join(paragraph.split())
        ):
            if len(sentence.split()) > 2:
                yield sentence


def prose() -> list[tuple[str, str]]:
    """(page, sentence) of all pages but the results that programs write."""
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES if "results" not in page.parts}
    return [(str(page.relative_to(ROOT)), one) for page, text in texts.items() for one in sentences(text)]


def test_sentences_are_counted_as_a_reader_would() -> None:
    text = "# A heading\n\nYou run `a. B`, [a link](c.md). It ends (really).\n\n    code = 1\n\n- An item (e.g. this)\n"
    assert [*sentences(text)] == ["You run Code, a link.", "It ends (really).", "An item (e.g. this)"]


def test_sentences_are_short_and_address_the_reader() -> None:
    found = prose()
    long = [one for one in found if len(one[1].split()) > LONG]
    assert len(long) <= LONG_SHARE * len(found), long
    assert sum(bool(re.search(r"\byour?\b", one, re.I)) for _, one in found) >= READER_SHARE * len(found)

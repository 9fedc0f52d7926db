"""Figures of a built site: how long its pages and sentences are, how much they show, and what search answers first.

    python docs/_site/measure.py [build/site]

Words are the visible text of a page's main part, code and tables included. Sentences are those of paragraphs and list
items. Pictures are images and drawings.
"""

import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

LIMITS = (25, 35)  # words of a sentence above which it counts as long
_VOID = frozenset(["area", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"])
_ASIDE = frozenset(("script", "style", "button", "nav", "svg"))  # elements whose text is not the page's
_BREAKS = frozenset(["p", "li", "td", "th", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "div", "dt", "dd", "tr", "br"])
_END = re.compile(r"(?<=[.!?])[\")”]*\s+(?=[^a-z])")


@dataclass
class Page:
    """The main part of one page.

    text: what is visible. prose: the paragraphs and list items, without code. code, pictures: how many blocks and
    pictures there are.
    """

    name: str
    text: list[str] = field(default_factory=list)
    prose: list[str] = field(default_factory=list)
    code: int = 0
    pictures: int = 0

    @property
    def words(self) -> int:
        """The number of words that a reader sees."""
        return len("".join(self.text).split())

    def sentences(self) -> list[int]:
        """The words of each sentence."""
        lengths = []
        for block in self.prose:
            lengths += [len(sentence.split()) for sentence in _END.split(block) if sentence.strip()]
        return lengths


class _Reader(HTMLParser):
    """Reads the article of a page."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.page = Page(name)
        self._open: list[str] = []  # the elements around the present place, from the article inwards
        self._prose: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if not self._open and tag != "article":
            return
        if tag in _BREAKS:
            self._end_block()
        self.page.code += tag == "pre"
        self.page.pictures += tag == "img" or (tag == "svg" and "svg" not in self._open and "picture" in self._open)
        if tag not in _VOID:
            classes = (dict(attrs).get("class") or "").split()
            aside = "headerlink" in classes or "md-content__button" in classes
            self._open.append("nav" if aside else "picture" if "picture" in classes else tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in _BREAKS:
            self._end_block()
        if self._open and tag not in _VOID:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if not self._open or not _ASIDE.isdisjoint(self._open):
            return
        self.page.text.append(data)
        if ("p" in self._open or "li" in self._open) and "pre" not in self._open and "table" not in self._open:
            self._prose.append(data)

    def _end_block(self) -> None:
        if self._open:
            self.page.text.append(" ")
        block = " ".join("".join(self._prose).split())
        if block:
            self.page.prose.append(block)
        self._prose = []


def read_page(name: str, html: str) -> Page:
    """The main part of a page of this name."""
    reader = _Reader(name)
    reader.feed(html)
    return reader.page


def read_site(site: Path) -> list[Page]:
    """The pages of a built site."""
    pages = []
    for path in sorted(site.rglob("*.html")):
        if path.name != "404.html":
            pages.append(read_page(str(path.relative_to(site)), path.read_text(encoding="utf-8")))
    return pages


def summary(pages: Sequence[Page]) -> list[str]:
    """The figures of these pages, a line each."""
    words = sum(page.words for page in pages)
    longest = max(pages, key=lambda page: page.words)
    sentences = [length for page in pages for length in page.sentences()]
    lines = [
        f"pages                {len(pages):,}",
        f"words                {words:,}",
        f"median words a page  {statistics.median(page.words for page in pages):,.0f}",
        f"longest page         {longest.name}, {longest.words:,} words",
        f"sentences            {len(sentences):,}",
    ]
    for limit in LIMITS:
        share = sum(length > limit for length in sentences) / max(len(sentences), 1)
        lines.append(f"  over {limit} words      {share:.1%}")
    for what, count in (
        ("code blocks", sum(page.code for page in pages)),
        ("pictures", sum(page.pictures for page in pages)),
    ):
        lines.append(f"{what + ' a 1,000 words':<28} {1000 * count / max(words, 1):.2f} ({count:,})")
    return lines


def main() -> None:
    """Print the figures of the site, by its folders, and its ten longest pages."""
    site = Path(sys.argv[1] if len(sys.argv) > 1 else "build/site")
    pages = read_site(site)
    print("\n".join(summary(pages)))
    folders: dict[str, list[Page]] = {}
    for page in pages:
        folders.setdefault(page.name.rpartition("/")[0] or ".", []).append(page)
    print("\nfolder                 pages   words")
    for folder, inside in folders.items():
        print(f"{folder:<22} {len(inside):>5} {sum(page.words for page in inside):>7,}")
    print("\nlongest pages")
    for page in sorted(pages, key=lambda page: -page.words)[:10]:
        print(f"{page.words:>7,} {page.name}")


if __name__ == "__main__":
    main()

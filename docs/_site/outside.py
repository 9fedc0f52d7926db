"""What a built page would fetch from other hosts: nothing may."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

_HOST = re.compile(r"^\s*(?:[a-z]+:)?//", re.IGNORECASE)
_STYLE = re.compile(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""")
_FETCHED = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "use": "href",
}


class _Fetched(HTMLParser):
    """Collects what a page loads by itself; links that a reader follows are not among it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the address of one element, and addresses in its style."""
        named = dict(attrs)
        self._style = tag == "style"
        self.found += [named.get(_FETCHED.get(tag, "")) or "", *addresses(named.get("style") or "")]
        if "mermaid" in (named.get("class") or "").split():
            self.found.append("//a diagram, whose script the theme would fetch")

    def handle_data(self, data: str) -> None:
        """Note addresses in a style sheet within the page."""
        self.found += addresses(data) if self._style else []


def addresses(style: str) -> list[str]:
    """What a style sheet loads."""
    return [one or other for one, other in _STYLE.findall(style)]


def outside(site: Path) -> Iterator[str]:
    """ "page: address" of everything that a page or style sheet of a built site would fetch from another host."""
    for path in sorted(site.rglob("*")):
        if path.suffix == ".html":
            parser = _Fetched()
            parser.feed(path.read_text(encoding="utf-8"))
            found = parser.found
        elif path.suffix == ".css":
            found = addresses(path.read_text(encoding="utf-8"))
        else:
            continue
        yield from (f"{path.relative_to(site)}: {address}" for address in found if _HOST.match(address))

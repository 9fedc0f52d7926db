"""What a built page would fetch from other hosts: nothing may."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

_HOST = re.compile(r"^\s*(?:[a-z]+:)?//", re.IGNORECASE)
_STYLE = re.compile(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""")
_ATTRIBUTES = {  # {element: the attribute whose address a browser fetches}
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "use": "href",
}


class _Addresses(HTMLParser):
    """Collects the addresses that a browser fetches with a page, without the links that a reader follows."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self._in_style = tag == "style"
        self.addresses.append(attributes.get(_ATTRIBUTES.get(tag, "")) or "")
        self.addresses += style_addresses(attributes.get("style") or "")
        if "mermaid" in (attributes.get("class") or "").split():
            self.addresses.append("//a diagram, whose script the theme would fetch")

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.addresses += style_addresses(data)


def style_addresses(style: str) -> list[str]:
    """The addresses that a browser fetches with a style sheet."""
    return [url or imported for url, imported in _STYLE.findall(style)]


def external_addresses(site: Path) -> Iterator[str]:
    """ "page: address" of everything that a page or style sheet of a built site would fetch from another host."""
    for path in sorted(site.rglob("*")):
        if path.suffix == ".html":
            parser = _Addresses()
            parser.feed(path.read_text(encoding="utf-8"))
            addresses = parser.addresses
        elif path.suffix == ".css":
            addresses = style_addresses(path.read_text(encoding="utf-8"))
        else:
            continue
        for address in addresses:
            if _HOST.match(address):
                yield f"{path.relative_to(site)}: {address}"

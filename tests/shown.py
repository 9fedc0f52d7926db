"""What the documents show: their commands, and their blocks of code."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
    *(ROOT / "benchmarks" / name for name in ("README.md", "findings.md")),
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("docs/findings/*.md")),
    *sorted(ROOT.glob("docs/tutorials/*.md")),
    *sorted(ROOT.glob("docs/tutorials/*.py")),
    *sorted(ROOT.glob("examples/*/README.md")),
]
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?:^    .*\n|^\n(?=    ))+", re.MULTILINE)
_INLINE = re.compile(r"`([^`]+)`")
_TOML = re.compile(r"^\s*\[\w[\w.\"-]*\]\s*(#.*)?$", re.MULTILINE)
_PYTHON = re.compile(r"^(import|from|class|fedweave\.)\b", re.MULTILINE)
_THROUGH = re.compile(r"^docker compose run --rm \w+ ")  # a service whose entry point is fedweave
ELLIPSIS = "…"


class Block(NamedTuple):
    """A block of code. kind: "toml", "python", or "" of anything else."""

    place: str
    kind: str
    text: str


class Shown(NamedTuple):
    """A command. whole: it stands in a block, to be typed; one in a sentence may leave out what it needs."""

    place: str
    words: tuple[str, ...]
    whole: bool

    def __str__(self) -> str:
        return f"{self.place}: {' '.join(self.words)}"


def documents() -> Iterator[tuple[str, str]]:
    """The name and the text of each; a tutorial's is what stands in its cells of text."""
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            text = "\n".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("# "))
        yield str(path.relative_to(ROOT)), text


def blocks() -> Iterator[Block]:
    """Every block of code."""
    for place, text in documents():
        for kind, code in _FENCED.findall(text):
            yield Block(place, kind or _kind(code), code)
        for code in _INDENTED.findall(_FENCED.sub("", text)):
            plain = "\n".join(line.removeprefix("    ") for line in code.splitlines())
            for part in re.split(r"\n(?=\[\w)", plain, maxsplit=1):  # commands, and the configuration after them
                yield Block(place, _kind(part), part)


def _kind(code: str) -> str:
    if _TOML.search(code) or _PYTHON.search(code):
        return "toml" if _TOML.search(code) else "python"
    return ""


def commands() -> list[Shown]:
    """Every command of fedweave, make, pip and the benchmarks, in a block or in a sentence."""
    found = []
    for block in blocks():
        if not block.kind:
            lines = re.sub(r"\\\n\s*", "", block.text).splitlines()
            found += [Shown(block.place, words, True) for line in lines if (words := _command(line))]
    for place, text in documents():
        for code in _INLINE.findall(_INDENTED.sub("", _FENCED.sub("", text))):
            if words := _command(" ".join(code.split())):
                found.append(Shown(place, words, False))
    return found


def _command(line: str) -> tuple[str, ...]:
    """The words of a command; () of another line. What may be left out is taken, the first of several choices."""
    line = _THROUGH.sub("fedweave ", line)
    if not re.match(r"(fedweave|make|pip install|python -m benchmarks\.\w+)(?= [\w.\-\"'{RUN…]|$)", line):
        return ()
    line = re.sub(r"\[(--[^\]]*)\]", r"\1", re.split(r" (?:&&|\|\|?|>) ", line)[0])
    words = shlex.split(line, comments=True)
    return tuple(re.sub(r"^(\w+)(\|\w+)+$", r"\1", word) for word in words if word != ELLIPSIS)

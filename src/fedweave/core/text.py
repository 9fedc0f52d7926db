"""Words that came from others, made safe to show, and numbers with their nouns."""

import unicodedata
from collections.abc import Iterable, Sequence

_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # control and format characters, lone surrogates, separators of lines


def printable(text: str) -> str:
    """`text` with everything that could control a terminal or hide in it escaped, "\\x1b" for an escape character."""
    letters = list(text)
    for at, letter in enumerate(letters):
        if letter != "\t" and unicodedata.category(letter) in _HIDDEN:
            letters[at] = letter.encode("unicode_escape", "surrogatepass").decode()
    return "".join(letters)


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 site", "2,000 classes"."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{'' if number == 1 else ending}"


def capitalized(text: str) -> str:
    """`text` with a capital first letter; the others stay as they are."""
    return text[:1].upper() + text[1:]


def percent(share: float) -> str:
    """ "12.5 %" of 0.125."""
    return f"{share:.1%}".replace("-", "\N{MINUS SIGN}").replace("%", " %")


def cell(value: object) -> object:
    """Text that is safe in a cell of a table that a spreadsheet opens: what it would compute is marked as text."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def markdown_table(lines: Iterable[Sequence[str]]) -> str:
    """Lines of cells as a table in Markdown: the heads, the rule below them, and the rows."""
    rows = list[str]()
    for line in lines:
        cells = " | ".join(cell.replace("|", "\\|") for cell in line)
        rows.append(f"| {cells} |")
    return "\n".join(rows)

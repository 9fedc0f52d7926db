"""Words that came from others, made safe to show."""

import unicodedata

_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # control and format characters, lone surrogates, separators of lines


def printable(text: str) -> str:
    """`text` with all that could steer a terminal or hide in it written out, "\\x1b" for an escape character."""
    return "".join(_escaped(letter) if unicodedata.category(letter) in _HIDDEN else letter for letter in text)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode() if letter != "\t" else letter


def cell(value: object) -> object:
    """What may stand in a cell of a table that a spreadsheet opens: words that it would compute are marked as words."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value

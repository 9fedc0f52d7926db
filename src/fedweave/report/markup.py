"""Words of others in what rich shows."""

from rich.markup import escape

from fedweave.core.text import printable


def unmarked(text: object) -> str:
    """`printable` words for a line or a cell that rich shows, in which nothing is markup."""
    return escape(printable(str(text)))

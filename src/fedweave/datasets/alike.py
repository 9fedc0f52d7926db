"""Names that look alike and are not the same: of ids, classes, groups and owners."""

import unicodedata
from collections.abc import Iterable, Iterator
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

_DOTTED = r"^((?:.*/)?-?\d{1,18})\.0+$"  # a whole number, of a member's where there is a slash before


def plain(name: str) -> str:
    """The name but for case, blanks and Unicode form, and zeros before a number."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split()).lstrip("0") or "0"


def places(cells: pa.Array, ids: pa.Array) -> pa.Array:
    """int32 [m], where each of the names `cells` [m] stands in `ids`, null where it does not; a whole number that
    another program wrote as "7.0" is "7", unless both are there."""
    exact = pc.index_in(cells, ids, skip_nulls=True)
    if exact.null_count == cells.null_count:
        return exact
    return pc.coalesce(exact, pc.index_in(undotted(cells), undotted(ids), skip_nulls=True))


def undotted(names: pa.Array) -> pa.Array:
    """The names with whole numbers written as such: "7.0" as "7"."""
    return pc.replace_substring_regex(names, _DOTTED, r"\1")


class Known:
    """Names that are known, strings in an Arrow array, to say which of them another one looks like."""

    def __init__(self, names: pa.Array) -> None:
        self._names = names

    @cached_property
    def _plain(self) -> dict[str, str]:
        return {plain(name): name for name in self._names.drop_null().to_pylist()}

    def hint(self, name: str) -> str:
        """ ", but …" with the known name that this one looks like, and how they differ; "" if there is none."""
        other = self._plain.get(plain(name))
        return (
            "" if other is None or other == name else f", but {other!r} is, which differs in {difference(name, other)}"
        )


def difference(one: str, other: str) -> str:
    """In what two names differ that are the same when `plain`."""
    if unicodedata.normalize("NFC", one) == unicodedata.normalize("NFC", other):
        return "the Unicode form of its letters (write both in NFC)"
    if one.casefold() == other.casefold():
        return "case"
    if one.split() == other.split() or "".join(one.split()) == "".join(other.split()):
        return "blanks"
    return "zeros before it" if one.lstrip("0") == other.lstrip("0") else "case, blanks, zeros or the form of letters"


def alike(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Every name that is another one when `plain`, after that one."""
    seen = dict[str, str]()
    for name in names:
        first = seen.setdefault(plain(name), name)
        if first != name:
            yield first, name


def not_composed(names: Iterable[str]) -> str:
    """The first name that is not in NFC, the form in which most programs write; "" if there is none."""
    return next((name for name in names if not unicodedata.is_normalized("NFC", name)), "")

"""Names that are written in different ways: which known name is meant, and how two names that look the same differ."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv


def as_whole(cells: pa.Array) -> pa.Array:
    """The strings, with "7.0", as pandas writes a whole number next to gaps, as "7"."""
    return pc.replace_substring_regex(cells, r"^(-?\d{1,18})\.0*$", r"\1")


_DOTTED = r"^((?:.*/)?-?\d{1,18})\.0+$"  # a whole number, with a member's name and a slash in front or without
DECIMAL_NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,4})?"
_APOSTROPHES = "'`\u2018\u2019"


def plain(name: str) -> str:
    """The name without the forms in which other programs write the same one (`FORMS`)."""
    for _, step in FORMS:
        name = step(name)
    return name


def visible(name: str) -> str:
    """The name without letters that do not show, such as a zero-width space."""
    return name if name.isascii() else "".join(sign for sign in name if unicodedata.category(sign) != "Cf")


def _after_member(step: Callable[[str], str]) -> Callable[[str], str]:
    """The step on a name or, where it has nothing to do, on what follows its first slash, after a member."""

    def result(text: str) -> str:
        member, slash, name = text.partition("/")
        return member + slash + step(name) if slash and step(text) == text else step(text)

    return result


def _in_brackets(text: str) -> str:
    """The text without a pair of brackets or quotes around it."""
    inner = re.fullmatch(r"\{(.+)\}|\[(.+)\]|\((.+)\)|<(.+)>|\"(.+)\"", text)
    return text if inner is None else next(filter(None, inner.groups()))


def _uuid(text: str) -> str:
    """A UUID without its hyphens and the prefix of its URN; other texts as they are."""
    bare = text.removeprefix("urn:uuid:")
    return bare.replace("-", "") if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bare) else text


def _without_groups(text: str) -> str:
    """A whole number without the signs between its thousands; one dot is taken for a decimal point."""
    if re.fullmatch(r"[+-]?\d{1,3}(\.\d{3}){2,}", text):
        return text.replace(".", "")
    groups = re.fullmatch(r"([+-]?\d{1,3})([,' _\u2019])(\d{3}(?:\2\d{3})*)(\.0*)?", text)
    return text if groups is None else groups[1] + groups[3].replace(groups[2], "")


def _number(text: str) -> str:
    """A number in one form, as far as Decimal keeps its digits; other texts as they are."""
    return (
        str((Decimal(text) + 0).normalize()) if len(text) <= 28 and re.fullmatch(DECIMAL_NUMBER, text, re.I) else text
    )


# The forms in which other programs write the same name: what differs, and the name without that, one after the other.
FORMS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("the Unicode form of its letters (write both in NFC)", partial(unicodedata.normalize, "NFKC")),
    ("letters that do not show", visible),
    ("case", str.casefold),
    ("blanks", lambda text: " ".join(text.split())),
    ("the apostrophe before it", _after_member(lambda text: text.lstrip(_APOSTROPHES))),
    ("brackets around it", _after_member(_in_brackets)),
    ("how the same UUID is written", _after_member(_uuid)),
    ("signs between thousands", _after_member(_without_groups)),
    ("zeros before it", _after_member(lambda text: text.lstrip("0") or "0")),
    ("how the same number is written", _after_member(_number)),
)


def places(cells: pa.Array, ids: pa.Array) -> pa.Array:
    """int32 [m], the place of each of the names `cells` [m] in `ids`, null where it is absent; a whole number that
    another program wrote as "7.0" is "7", unless both are there."""
    exact = pc.index_in(cells, ids, skip_nulls=True)
    if exact.null_count == cells.null_count:
        return exact
    return pc.coalesce(exact, pc.index_in(without_dots(cells), without_dots(ids), skip_nulls=True))


def positions(names: Sequence[str], known: Sequence[str | None]) -> np.ndarray:
    """int64 [m]: the place of each of the names among the `known`, as in `places`; -1 where it is absent."""
    at = places(pa.array(names, pa.string()), pa.array(known, pa.string()))
    return np.asarray(at.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64))


def without_dots(names: pa.Array) -> pa.Array:
    """The names with whole numbers written as such: "7.0" as "7"."""
    return pc.replace_substring_regex(names, _DOTTED, r"\1")


class NameIndex:
    """Known names, strings in an Arrow array, to find names that look like another one."""

    def __init__(self, names: pa.Array) -> None:
        self._names = names

    @cached_property
    def _plain(self) -> dict[str, str]:
        return {plain(name): name for name in self._names.drop_null().to_pylist()}

    def hint(self, name: str) -> str:
        """ ", but …" with the known name that this one looks like, and how they differ; "" if there is none."""
        other = self._plain.get(plain(name))
        if other is None or other == name:
            return ""
        return f", but {other!r} is, which differs in {difference(name, other)}"


def similar_name_hint(name: str, known: Sequence[str]) -> str:
    """`NameIndex.hint` for a name that is not among the `known`."""
    return NameIndex(pa.array(known, pa.string())).hint(name)


def difference(one: str, other: str) -> str:
    """In what two names differ that are the same when `plain`: the fewest of `FORMS` that make them so."""
    # 1. The forms that change a name, one after the other.
    steps, names = list[tuple[str, Callable[[str], str]]](), (one, other)
    for how, step in FORMS:
        before, names = names, (step(names[0]), step(names[1]))
        if names != before:
            steps.append((how, step))
    # 2. Without those that the others make unnecessary.
    for form in tuple(steps):
        rest = [one_form for one_form in steps if one_form is not form]
        first, second = one, other
        for _, step in rest:
            first, second = step(first), step(second)
        steps = rest if first == second else steps
    hidden = sorted({f"U+{ord(letter):04X}" for letter in one + other if not visible(letter)})
    differences = [how if step is not visible else f"{', '.join(hidden)}, which does not show" for how, step in steps]
    return " and ".join(differences)


def similar_names(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Every name that is another one when `plain`, after that one."""
    by_form = dict[str, str]()
    for name in names:
        first = by_form.setdefault(plain(name), name)
        if first != name:
            yield first, name


def first_not_nfc(names: Iterable[str]) -> str:
    """The first name that is not in NFC, the form in which most programs write; "" if there is none."""
    return next((name for name in names if not unicodedata.is_normalized("NFC", name)), "")

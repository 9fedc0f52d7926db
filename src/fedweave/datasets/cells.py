"""Cells of a column of numbers that are not numbers: the forms in which other programs write them, and their remedies.

A remedy is chosen here and nowhere else. It is given only where its form fits every such cell of the column. Where
several forms fit and read another number, all are named: who follows the wrong one destroys the column ("1,234" may be
1234, 1.234, or 1 and 234).
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

# What other programs write for an empty cell: pandas, R, MySQL (\N), UCI and Weka (?), SAS (a dot), Excel (#N/A, the
# results of formulas that fail, the empty rows of a pivot table), pgAdmin ([null]), SQL Server (NULL).
GAPS = (
    *("nan", "-nan", "na", "n/a", "n.a.", "<na>", "nat", "null", "(null)", "[null]", "<null>", "none", "nil"),
    *("\\n", "?", ".", "--", "---", "(blank)"),
    *("#n/a", "#nv", "#value!", "#div/0!", "#ref!", "#num!", "#name?", "#null!"),
)
NUMERIC = r"^\s*[+-]?\.?\d"
NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
DECIMAL_COMMA = "^\\s*[+\u2212-]?\\d{1,3}([. ]?\\d{3})*,\\d+\\s*$"  # Arrow's expressions know no \\u
DATES = "A date is not a number: give what matters about it, such as the days since another date."
NESTED = "Give one column for each number or field, or leave the column out."
MISSING = "If values are not known, list the column in [data] missing, which reads empty cells and such words as gaps."
FEATURE = "Every column without another meaning is a feature: give a finite number in every row."

_MONTHS = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_DATES = (
    r"\d{4}-\d{1,2}-\d{1,2}\b.*",  # with a time behind it or without
    r"\d{4}[-/](0[1-9]|1[0-2])",
    r"\d{4}/\d{1,2}/\d{1,2}\b.*",
    r"\d{1,2}[./]\d{1,2}[./]\d{2,4}\b.*",
    r"\d{4}[- ]?Q[1-4]",
    rf"\d{{1,2}}[-. ]+({_MONTHS})[a-z]*[-,. ]+\d{{2,4}}\b.*",
    rf"({_MONTHS})[a-z]*[. ]+(\d{{1,2}}, ?)?\d{{4}}\b.*",
    r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[ap]m)?",
)
_BAND = r"(under|over|below|above|[<>]=?|\u2264|\u2265)?\s*\d+([.,]\d+)?\s*((-|\u2013|\u2014|to)\s*\d+([.,]\d+)?|\+)?"
_MONEY = (
    r"(US|A|C|R|S|HK|NZ)?[$\u00a2-\u00a5\u058f\u060b\u09f2\u09f3\u0e3f\u20a0-\u20c0]|EUR|USD|GBP|CHF|JPY|CNY|INR|CAD|"
    r"AUD|BRL|SEK|NOK|DKK|PLN|CZK|KRW|ZAR|kr|z\u0142|Fr\.|Rs\.?"
)
_MARK = r"[.,'\u2019 \u00a0\u2009\u202f]"
_GROUPED = rf"(?P<grouped>\d{{1,3}}(?P<mark>{_MARK})(\d{{2,3}}(?P=mark))*\d{{3}})"
MAX_DIFFERENT = 10_000  # different cells of a column that are looked at


def is_gap(text: str) -> bool:
    """Whether a text is empty, or what another program writes for an empty cell."""
    return text.strip().casefold() in ("", *GAPS)


def amount(text: str) -> str:
    """The number in an amount such as "$1,234.50", "1.234,50 EUR" or "12 %", as Python writes it; "" if it is none."""
    bare = re.sub("[\u2212\u2013]", "-", text.strip())
    bare = re.sub(r"^\((.*)\)$", r"-\1", bare)  # as accountants write what is below 0
    sign, rest = re.fullmatch(r"([+-]?)\s*(.*)", bare, re.DOTALL).groups()  # type: ignore[union-attr]
    number = re.sub(rf"^({_MONEY})\s*|\s*({_MONEY}|[%\u2030])$", "", rest)
    if number != rest and not sign:
        sign, number = re.fullmatch(r"([+-]?)(.*)", number, re.DOTALL).groups()  # type: ignore[union-attr]
    grouped = re.fullmatch(rf"{_GROUPED}([.,](?P<part>\d+))?", number)
    if grouped is not None:
        whole, mark, part = grouped["grouped"], grouped["mark"], grouped["part"]
        if mark == "." and part is None and whole.count(".") == 1:
            return f"{sign}{number}"
        return sign + re.sub(_MARK, "", whole) + (f".{part}" if part else "")
    plain = re.fullmatch(r"(\d*)([.,])?(\d*)", number)
    if plain is None or not (plain[1] or plain[3]) or (plain[2] == "," and number == rest):
        return ""
    return f"{sign}{plain[1]}" + (f".{plain[3]}" if plain[3] else "")


def numbers_in(text: str) -> list[str]:
    """The numbers in a cell that holds several, in brackets or split by commas, blanks, semicolons or bars, or one in
    square brackets; [] for other cells."""
    bare = re.sub(r"np\.\w+\(([^()]*)\)", r"\1", text.strip())  # so Python writes NumPy's numbers in a list
    inside = re.fullmatch(r"(?:array\(|tensor\()?\s*[\[({](.*?)[\])}]\s*\)?", bare, re.DOTALL)
    pieces = re.split(r"\s*[,;|]\s*|\s+", (inside[1] if inside else bare).strip())
    if len(pieces) < 2 - bare.startswith("["):
        return []
    return pieces if all(re.match(NUMBER, piece) or piece.casefold() == "nan" for piece in pieces) else []


def _decimal(text: str) -> str:
    """The number in a cell with a decimal comma, "" in others."""
    if not re.match(DECIMAL_COMMA, text):
        return ""
    whole, _, part = text.strip().replace("\u2212", "-").rpartition(",")
    return f"{re.sub('[. ]', '', whole)}.{part}"


def _date(text: str) -> str:
    return text if any(re.fullmatch(form, text.strip(), re.IGNORECASE) for form in _DATES) else ""


def _array_with_dots(text: str) -> str:
    return text if re.match(r"\s*((array|tensor)\()?\[", text) and re.search(r"\.\.\.|\u2026", text) else ""


@dataclass(frozen=True)
class CellForm:
    """A form of cells. reading: what a cell says in it, "" where it does not fit. meaning: what the cell is, where
    another form fits, too. remedy: of a column, its first such cell and what that says."""

    meaning: str
    reading: Callable[[str], str]
    remedy: str


FORMS = (  # the order in which they are named
    CellForm("these are dates", _date, DATES),
    CellForm(
        "these are arrays", _array_with_dots, "Numbers are left out where {cell} has dots: write the arrays whole."
    ),
    CellForm("the comma is a decimal comma", _decimal, "Write decimal points: {reading}, not {cell}."),
    CellForm(
        "it is one number", amount, "Write only the number, {reading}, without currency, % and separators of thousands."
    ),
    CellForm(
        "each cell holds several numbers",
        lambda text: " and ".join(numbers_in(text)),
        "Give one column for each number, such as {column} 0 and {column} 1, or lists of one length in square "
        "brackets.",
    ),
)


def of_number(column: str, texts: Iterable[str], gaps: str = MISSING) -> str:
    """The remedy for texts, at least one, in a column of numbers; "" if they are none of the forms known here. gaps:
    the remedy for words that stand for an empty cell."""
    different = list(dict.fromkeys(texts))[:MAX_DIFFERENT]
    words = [text for text in different if not is_gap(text)]
    if not words:
        return gaps
    fitting = dict[tuple[str, ...], CellForm]()
    for form in FORMS:
        readings = tuple(map(form.reading, words))
        if all(readings):
            fitting.setdefault(readings, form)
    if not fitting:
        return ""
    remedies = list[str]()
    for readings, form in fitting.items():
        remedy = form.remedy.format(column=column, cell=short(words[0]), reading=readings[0])
        remedies.append(remedy if len(fitting) == 1 else f"If {form.meaning}: {remedy}")
    return " ".join([*remedies, gaps] if len(words) < len(different) else remedies)


def of_feature(column: str, texts: list[str], gaps: str = MISSING, whole: bool = True) -> str:
    """The remedy for cells of a feature that are not numbers; gaps: the remedy for unknown values; whole: whether
    the column holds nothing else."""
    remedy = of_number(column, texts, gaps)
    if remedy:
        return remedy
    names = sorted(text for text in set(texts) if not is_gap(text))
    # Names begin with letters, unless all are bands of numbers, such as "18-25".
    has_numerals = any(re.match(NUMERIC, name) for name in names)
    is_band = [re.fullmatch(_BAND, name.strip(), re.IGNORECASE) and not re.match(NUMBER, name) for name in names]
    if not whole or (has_numerals and not all(is_band)):
        return FEATURE
    shown = ", ".join(json.dumps(short(name), ensure_ascii=False) for name in names[:10])
    declare = f"[data] categories = {{{column} = [{shown}{', …' if names[10:] else ''}]}}"
    literal = json.dumps(column, ensure_ascii=False)
    return (
        f"{FEATURE} Text becomes one column per value if you declare all values (empty cells are in none): {declare}. "
        f"Otherwise leave it out, [data] ignore = [{literal}]; if it is people's group, "
        f"columns = {{sens = {literal}}}."
    )


def is_name(text: str) -> bool:
    """Whether a text may be the name of a group: neither a number nor one of the forms of numbers and dates."""
    return not re.match(NUMBER, text) and not any(form.reading(text) for form in FORMS)


MAX_LETTERS = 80  # of a cell in an error


def short(text: str) -> str:
    """The text, cut where it is too long for an error."""
    return text if len(text) <= MAX_LETTERS else f"{text[:MAX_LETTERS]}…"

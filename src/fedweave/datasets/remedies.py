"""What cells of a column of numbers mean that are no numbers, and what to do about them: words for a gap, amounts of
money, shares, dates, decimal commas.
"""

import re
import unicodedata
from collections.abc import Sequence

# What other programs write for an empty cell: pandas, R, MySQL (\N), Excel (#N/A), UCI and Weka (?), SAS (a dot).
GAPS = ("nan", "na", "n/a", "<na>", "nat", "null", "none", "#n/a", "\\n", "?", ".")
NUMERIC = r"^\s*[+-]?\.?\d"
DECIMAL_COMMA = r"^\s*[+-]?\d{1,3}([. ]?\d{3})*,\d+\s*$"
DATE = r"^\s*(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./]\d{1,2}[./]\d{2,4})\b"
DATES = "A date is no number: give what matters about it, such as the days since another date."
NESTED = "Give one column for each number or field, or leave the column out."
MISSING = "Where nothing is known, name the column in [data] missing, which reads empty cells and such words as gaps."

_THOUSANDS = r"[+-]?\d{1,3}([.,]\d{3})+"
_CURRENCIES = "EUR|USD|GBP|CHF|JPY|CNY|INR|CAD|AUD|BRL|SEK|NOK|DKK|PLN|CZK|KRW|ZAR"


def is_gap(text: str) -> bool:
    """Whether a text is empty, or what another program writes for an empty cell."""
    return text.strip().casefold() in ("", *GAPS)


def amount(text: str) -> str:
    """The number in an amount such as "$1,234.50", "1.234,50 EUR" or "12 %", as Python writes it; "" if it is none."""
    bare = "".join(sign for sign in text if unicodedata.category(sign) not in ("Sc", "Zs") and sign not in "%'\u2019")
    bare = re.sub(f"^({_CURRENCIES})|({_CURRENCIES})$", "", bare)
    if not re.fullmatch(r"[+-]?(\d[\d.,]*|\.\d+)", bare):
        return ""
    *groups, last = re.split(r"[.,]", bare)
    signs = "".join(re.findall(r"[.,]", bare))
    whole = len(signs) > 1 and len(set(signs)) == 1  # the same sign twice separates thousands
    if not groups or whole or (signs == "," and re.fullmatch(_THOUSANDS, bare)):
        return "".join([*groups, last])
    return f"{''.join(groups)}.{last}"


def of_number(texts: Sequence[str], gaps: str = MISSING) -> str:
    """What to do about texts, at least one, in a column of numbers; "" if they are none of the forms known here. gaps:
    what to do about those that stand for an empty cell."""
    words = [text for text in texts if not is_gap(text)]
    if not words:
        return gaps
    gaps = gaps if len(words) < len(texts) else ""
    if all(re.match(DATE, text) for text in words):
        found = DATES
    elif all(re.match(DECIMAL_COMMA, text) for text in words) and not all(
        re.fullmatch(_THOUSANDS, text.strip()) for text in words
    ):
        found = "Write decimal points: 0.5, not 0,5."
    elif all(amount(text) for text in words):
        found = f"Write the number alone, {amount(words[0])}, without currency, % and separators of thousands."
    else:
        return ""
    return f"{found} {gaps}".rstrip()

"""What processes noted in their logs, for an error's message."""

import re

_BEGINS = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?:UTC )?", re.MULTILINE)
_DONE, _LEVEL = "INFO ", re.compile(r"^[A-Z]+ ")
_ERROR = re.compile(r"^(\w+\.)*\w*(Error|Exception|Interrupt|Refused)\b|\b(ERROR|CRITICAL|FATAL)\b")


def last_record(text: str) -> str:
    """The last message of what went wrong in a log that `site.private.log_to` writes, whole but for time and level, of
    a traceback the last line; "" where it only says what was done."""
    kept = [own.strip() for own in _BEGINS.split(text) if not own.startswith(_DONE)]
    last = next((own for own in reversed(kept) if own), "")
    last = _LEVEL.sub("", last)
    return last_error(last) if "Traceback (most recent call last)" in last else last.replace("\n", "\n    ")


def last_error(text: str) -> str:
    """The last line of a log that names an error, else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next(filter(_ERROR.search, reversed(lines)), lines[-1] if lines else "nothing")

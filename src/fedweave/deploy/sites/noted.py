"""What processes noted in their logs, for an error's message."""

import re

_ERROR = re.compile(r"^(\w+\.)*\w*(Error|Exception|Interrupt|Refused)\b|\b(ERROR|CRITICAL|FATAL)\b")


def last_record(text: str) -> str:
    """The last message of a log that `site.private.log_to` writes, whole but for the time; a traceback's last line."""
    last = re.split(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", text, flags=re.MULTILINE)[-1].strip()
    return last_error(last) if "Traceback (most recent call last)" in last else last.replace("\n", "\n    ")


def last_error(text: str) -> str:
    """The last line of a log that names an error, else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next(filter(_ERROR.search, reversed(lines)), lines[-1] if lines else "nothing")

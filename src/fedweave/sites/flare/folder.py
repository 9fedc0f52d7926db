"""A member's folder: the settings of the machine in its file, and the owner's private files, such as the log. Private
files have mode 0600, private folders 0700. The long-lived processes import only this module, without data and models.
"""

import fcntl
import json
import logging
import os
import stat
import time
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from fedweave.core.text import printable
from fedweave.core.types import Record, Values
from fedweave.errors import ConfigError

SITE_FILE = "site.toml"  # in a site's folder
SERVER_FILE = "server.toml"  # in the server's, if its owner has written one
RUNS = "runs"  # in both: a folder for each run
LOG = "fedweave.log"  # in either
LOG_FORMAT = "FEDWEAVE_LOG_FORMAT"  # the variable of the environment: "text" or "json"
SITE_LOGGER = "fedweave.site."  # what the name of a site's logger begins with
LOG_BYTES, OLD_LOGS = 5_000_000, 5  # bytes of a log, and the number of older logs that are kept


def private_folder(path: Path) -> Path:
    """Make a folder that only its owner can open, or restrict an existing one to its owner."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def check_private(path: Path) -> None:
    """Refuse a file with a key or another secret if other users than its owner can read it."""
    if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise ConfigError(f"{path} can be read by others. Restrict it to yourself: chmod 600 {path}")


def private_file(path: str, flags: int) -> int:
    """An `opener` for `open`: only the owner can read a file that it makes."""
    return os.open(path, flags, 0o600)


def replace_private(path: Path, content: bytes) -> None:
    """Replace a file atomically by one that only its owner can read."""
    from fedweave.experiment.runs.files import write  # with Arrow, which the long-lived processes do not need

    write(path, lambda file: file.write(content), private_file)


class _Printable(logging.Formatter):
    """Escapes control characters: a message may contain text from others, which must not control the reader's
    terminal."""

    converter = time.gmtime  # type: ignore[assignment]  # a builtin, which binds to nothing

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(printable(line) for line in super().format(record).split("\n"))


class _Json(logging.Formatter):
    """Writes each record as one JSON object in one line: time, level, event, site, and what the call names in `fields`.

    Of a call without fields it writes the text without its arguments, and of an exception its class. So a line holds
    names that this project gives, numbers and codes, and never a value of the data.
    """

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: Record = {"time": at, "level": record.levelname}
        line |= getattr(record, "fields", None) or {"event": "note", "text": record.msg}
        if record.name.startswith(SITE_LOGGER):
            line["site"] = record.name.removeprefix(SITE_LOGGER)
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
        return json.dumps({key: value for key, value in line.items() if value not in (None, "")})


def fields(event: str, **more: object) -> Values:
    """What a logging call passes as `extra` for logs in JSON: the event, and names, numbers and codes of the project,
    never ids, labels or other data."""
    return {"fields": {"event": event, **more}}


class _Rotating(RotatingFileHandler):
    """A private log to which all processes of a site write in turn. When one process has begun a new file, the others
    continue in that file."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=private_file)  # type: ignore[return-value]

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        folder = os.open(os.path.dirname(self.baseFilename), os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            if self.stream is None or not self._current():
                self.close()
                self.stream = self._open()
            self.stream.seek(0, os.SEEK_END)  # count what others wrote, too; Python 3.13 and later do not
            super().emit(record)
        finally:
            os.close(folder)  # which frees the lock, too

    def _current(self) -> bool:
        try:
            opened = None if self.stream is None else os.fstat(self.stream.fileno())
            return opened is not None and os.path.samestat(opened, os.stat(self.baseFilename))
        except OSError:  # the file was removed
            return False


def log_to(path: Path) -> None:
    """Write fedweave's messages to `path`, times in UTC, and keep them out of NVFlare's logs, which others may request.
    A full file becomes the first of the old files. `OLD_LOGS` old files are kept. The variable `LOG_FORMAT` of the
    environment, which jobs inherit, says in which form."""
    logger = logging.getLogger("fedweave")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    handler = _Rotating(path, maxBytes=LOG_BYTES, backupCount=OLD_LOGS, encoding="utf-8")
    text = _Printable("%(asctime)s UTC %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")
    handler.setFormatter(_Json() if os.environ.get(LOG_FORMAT) == "json" else text)
    logger.handlers = [handler]

"""What is for its owner alone: files of mode 0600 in folders of mode 0700, the log of what went wrong among them."""

import fcntl
import logging
import os
import time
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from fedweave.core.text import printable

MOST, OLD = 5_000_000, 5  # bytes of a log, and how many older ones are kept beside it


def private_folder(path: Path) -> Path:
    """Make a folder, or take an existing one from everybody else."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def private_file(path: str, flags: int) -> int:
    """An `opener` of `open`: what it makes is nobody else's."""
    return os.open(path, flags, 0o600)


def replace_private(path: Path, content: bytes) -> None:
    """Replace a file as a whole by one that its owner alone can read.

    Raises:
        FedweaveError: see `experiment.runs.files.write`.
    """
    from fedweave.experiment.runs.files import write  # with Arrow, which the long-lived processes do not need

    write(path, lambda file: file.write(content), private_file)


class _Printable(logging.Formatter):
    """What others sent may stand in a message, and must not steer the terminal of whoever reads the log."""

    converter = time.gmtime  # type: ignore[assignment]  # a builtin, which binds to nothing

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(printable(line) for line in super().format(record).split("\n"))


class _Rotating(RotatingFileHandler):
    """A log of its owner's alone, to which a site's processes write in turn: one that finds that another has begun a
    new file goes on in that."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=private_file)  # type: ignore[return-value]

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        folder = os.open(os.path.dirname(self.baseFilename), os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            if not self._current():
                self.close()
                self.stream = self._open()
            super().emit(record)
        finally:
            os.close(folder)  # which frees the lock, too

    def _current(self) -> bool:
        try:
            own = None if self.stream is None else os.fstat(self.stream.fileno())
            return own is not None and os.path.samestat(own, os.stat(self.baseFilename))
        except OSError:  # somebody has taken it away
            return False


def log_to(path: Path) -> None:
    """Write fedweave's messages to `path`, times in UTC, and keep them out of NVFlare's logs, which others may ask for.
    A file that is full becomes the first of the old ones, of which `OLD` are kept."""
    logger = logging.getLogger("fedweave")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    handler = _Rotating(path, maxBytes=MOST, backupCount=OLD, encoding="utf-8")
    handler.setFormatter(_Printable("%(asctime)s UTC %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    logger.handlers = [handler]

"""A member's folder: what its file says of the machine, and what there is for its owner alone, files of mode 0600 in
folders of mode 0700, the log of what went wrong among them. The long-lived processes read this alone, without what
knows data and models.
"""

import fcntl
import logging
import os
import stat
import time
from dataclasses import dataclass, field
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field

from fedweave.core.text import printable
from fedweave.core.types import Record
from fedweave.errors import ConfigError
from fedweave.experiment.config import load, own_parameters
from fedweave.experiment.config.experiment import Device
from fedweave.experiment.config.plugins import checked_values
from fedweave.experiment.config.toml import check_keys

SITE_FILE = "site.toml"  # in a site's folder
SERVER_FILE = "server.toml"  # in the server's, if its owner has written one
LOG = "fedweave.log"  # in either
T = TypeVar("T")
Port = Annotated[int, Field(ge=0, lt=65536)]
_Word = Annotated[str, Field(max_length=500)]


@dataclass(frozen=True)
class About:
    """The table [site]: the machine that the site's steps run on, and whose site it is.

    device:     "cpu", "cuda", "cuda:1", or "auto", which takes a GPU where there is one.
    metrics_port: of the loopback interface, on which the site's process tells what monitors it; 0 for none.
    legal_name: of the site's owner, as its reports name it.
    contact:    who answers for the site's data, such as its data protection officer.
    parties:    {site, or "server": legal name of its owner} of the others, as agreed with them.
    """

    device: Device = "cpu"
    metrics_port: Port = 0
    legal_name: _Word = ""
    contact: _Word = ""
    parties: dict[str, _Word] = field(default_factory=dict)


@dataclass(frozen=True)
class ServersMachine:
    """The table [server] of the server's own file.

    metrics_port: as that of a site.
    """

    metrics_port: Port = 0


def read_about(path: Path) -> About:
    """The table [site], checked.

    Raises:
        ConfigError: see `sitefile.read_site_file`.
    """
    try:
        return table(load(path), "site", About)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", code="config.site") from error


def metrics_port(folder: Path) -> int:
    """The one in the file of the site, or of the server, in `folder`; 0 if it names none.

    Raises:
        ConfigError: see `sitefile.read_site_file`.
    """
    if (path := folder / SITE_FILE).exists():
        return read_about(path).metrics_port
    if not (path := folder / SERVER_FILE).exists():
        return 0
    document = load(path)
    try:
        check_keys("", document, ["server"])
        return table(document, "server", ServersMachine).metrics_port
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def table(document: Record, name: str, kind: type[T]) -> T:
    """The table `name` of a document as the dataclass `kind`, checked; its defaults where there is none.

    Raises:
        ConfigError: it is no table, or a key or value is not valid.
    """
    given, own = document.get(name, {}), own_parameters(kind)
    if not isinstance(given, dict):
        raise ConfigError(f"{name}: is a table, written [{name}] with its keys below, got {given!r}")
    check_keys(name, given, list(own))
    return kind(**checked_values(f"{name}.", given, own))


MOST, OLD = 5_000_000, 5  # bytes of a log, and how many older ones are kept beside it


def private_folder(path: Path) -> Path:
    """Make a folder, or take an existing one from everybody else."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def check_private(path: Path) -> None:
    """Refuse a file of a key, or of another secret, that others than its owner can read.

    Raises:
        ConfigError: names it.
    """
    if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise ConfigError(f"{path} can be read by others. Make it yours alone: chmod 600 {path}")


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
            if self.stream is None or not self._current():
                self.close()
                self.stream = self._open()
            self.stream.seek(0, os.SEEK_END)  # what others wrote counts, too; from Python 3.13 on nobody else looks
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

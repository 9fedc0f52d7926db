"""What is for its owner alone: files of mode 0600 in folders of mode 0700, the log of what went wrong among them."""

import logging
import os
from pathlib import Path

from fedweave.core.text import printable


def private_folder(path: Path) -> Path:
    """Make a folder, or take an existing one from everybody else."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def private_file(path: str, flags: int) -> int:
    """An `opener` of `open`: what it makes is nobody else's."""
    return os.open(path, flags, 0o600)


def replace_private(path: Path, content: bytes) -> None:
    """Replace a file as a whole by one that its owner alone can read."""
    beside = path.with_name(f"{path.name}.beside")
    beside.unlink(missing_ok=True)
    with open(beside, "wb", opener=private_file) as file:
        file.write(content)
    beside.replace(path)


class _Printable(logging.Formatter):
    """What others sent may stand in a message, and must not steer the terminal of whoever reads the log."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(printable(line) for line in super().format(record).split("\n"))


def log_to(path: Path) -> None:
    """Write fedweave's messages to `path`, and keep them out of NVFlare's logs, which others may ask for."""
    logger = logging.getLogger("fedweave")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    open(path, "a", opener=private_file).close()
    handler = logging.FileHandler(path)
    handler.setFormatter(_Printable("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    logger.handlers = [handler]

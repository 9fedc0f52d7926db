"""The owner's log: what went wrong, in a file that stays at home."""

import logging
from pathlib import Path

from fedweave.core.text import printable
from fedweave.deploy.flare.private import private_file


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

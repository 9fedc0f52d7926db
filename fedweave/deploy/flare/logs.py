"""The owner's log: what went wrong, in a file that stays at home."""

import logging
from pathlib import Path


def log_to(path: Path) -> None:
    """Write fedweave's messages to `path`, and keep them out of NVFlare's logs, which others may ask for."""
    logger = logging.getLogger("fedweave")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    logger.handlers = [handler]

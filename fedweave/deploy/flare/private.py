"""What is for its owner alone: files of mode 0600 in folders of mode 0700."""

import os
from pathlib import Path


def private_folder(path: Path) -> Path:
    """Make a folder, or take an existing one from everybody else."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def private_file(path: str, flags: int) -> int:
    """An `opener` of `open`: what it makes is nobody else's."""
    return os.open(path, flags, 0o600)

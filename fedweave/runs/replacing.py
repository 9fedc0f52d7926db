"""A run that is replaced by another: kept until the new one has saved something, and put back if it never does.

A process may be killed at any moment: files in `.replaced` are all that the old run has, those in `.replacing` a part
of it, whose other files are where they belong.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedweave.runs.files import CHECKPOINT, OF_A_RUN, OF_COMMANDS, locked, plain_errors, remove_run

_WHOLE, _PART = ".replaced", ".replacing"


def recover(directory: Path) -> None:
    """Settle what a process that was killed while `replacing` left.

    Raises:
        UserError: another process is replacing it now.
    """
    if (directory / _WHOLE).is_dir() or (directory / _PART).is_dir():
        with locked(directory):
            settle(directory)


def settle(directory: Path) -> None:
    """Put the run back that `replacing` moved aside if the one after it has saved nothing, else remove it."""
    whole, part = directory / _WHOLE, directory / _PART
    with plain_errors(directory):
        if whole.is_dir() and (directory / CHECKPOINT).exists():
            shutil.rmtree(whole)
        elif whole.is_dir():
            remove_run(directory)
            whole.rename(part)
        if part.is_dir():
            _move(part, directory)
            shutil.rmtree(part)


@contextmanager
def replacing(directory: Path) -> Iterator[None]:
    """The run that `directory` holds is out of the way, with all that commands wrote of it, and settled at the end."""
    part = directory / _PART
    with plain_errors(directory):
        part.mkdir()
        _move(directory, part)
        part.rename(directory / _WHOLE)
    try:
        yield
    finally:
        settle(directory)


def _move(source: Path, target: Path) -> None:
    for name in (*OF_A_RUN, *OF_COMMANDS):
        if (source / name).exists():
            (target / name).parent.mkdir(exist_ok=True)
            (source / name).replace(target / name)

"""A run that is replaced by another: kept until the new one has saved something, and put back if it never does."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedweave.runs.files import CHECKPOINT, OF_A_RUN, OF_COMMANDS, locked, plain_errors

_ASIDE = ".replaced"


def recover(directory: Path) -> None:
    """Settle what a process that was killed while `replacing` left.

    Raises:
        UserError: another process is replacing it now.
    """
    if (directory / _ASIDE).is_dir():
        with locked(directory):
            settle(directory)


def settle(directory: Path) -> None:
    """Put the run back that `replacing` moved aside if the one after it has saved nothing, else remove it."""
    aside = directory / _ASIDE
    if not aside.is_dir():
        return
    with plain_errors(directory):
        if not (directory / CHECKPOINT).exists():
            _move(aside, directory)
        shutil.rmtree(aside)


@contextmanager
def replacing(directory: Path) -> Iterator[None]:
    """The run that `directory` holds is out of the way, with all that commands wrote of it, and settled at the end."""
    aside = directory / _ASIDE
    with plain_errors(directory):
        aside.mkdir(exist_ok=True)
        _move(directory, aside)
    try:
        yield
    finally:
        settle(directory)


def _move(source: Path, target: Path) -> None:
    """Move a run's files; those of `target` that `source` has none of are removed."""
    for name in (*OF_A_RUN, *OF_COMMANDS):
        if (source / name).exists():
            (target / name).parent.mkdir(exist_ok=True)
            (source / name).replace(target / name)
        else:
            (target / name).unlink(missing_ok=True)

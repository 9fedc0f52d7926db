"""How a run is stopped, continued, or replaced."""

import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedweave.core.text import counted
from fedweave.core.types import Record
from fedweave.errors import FedweaveError, UserError, option
from fedweave.experiment.config import Config, differences, load, resolve
from fedweave.experiment.runs.files import (
    CHECKPOINT,
    CONFIG,
    OF_A_RUN,
    OF_COMMANDS,
    SUMMARY,
    is_used,
    lock,
    plain_errors,
    read_summary,
    remove_run,
)

_WHOLE, _PART = ".replaced", ".replacing"


def recover(directory: Path) -> None:
    """Settle what a process that was killed while `replacing` left.

    Raises:
        UserError: another process is replacing it now.
    """
    if (directory / _WHOLE).is_dir() or (directory / _PART).is_dir():
        with lock(directory):
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


def examine(config: Config, directory: Path, resume: bool) -> Record | None:
    """Check, by reading only, that `config` may be run in `directory`; returns the summary if that is done already.

    Raises:
        UserError: it may not; says why and what to do.
        FedweaveError: the summary is damaged.
    """
    if not is_used(directory):
        return None
    if not (directory / CONFIG).exists():
        what = "is a file" if directory.is_file() else f"is not the directory of a run: it has no {CONFIG}, but files"
        raise UserError(f"{directory} {what}. Choose another directory as {option('out')}.", code="user.no-run")
    if not resume:
        raise UserError(
            f"{directory} is not empty. Continue its run with {option('resume', True)}, replace it with "
            f"{option('overwrite', True)}, or choose another directory as {option('out')}.",
            code="user.not-empty",
        )
    saved = load(directory / CONFIG)
    with suppress(UserError):
        saved = resolve(saved).plain()  # with the defaults of settings that came after the run was made
    changed = [key for key in differences(saved, config.plain()) if not may_change(key)]
    if changed:
        raise UserError(
            f"{directory} holds another run, which differs in {', '.join(changed)} (see its {CONFIG}). Resume it with "
            "the same settings (rounds, eval_every and [engine] may change, not the dtype), or choose another "
            f"directory as {option('out')}."
        )
    if not (directory / SUMMARY).exists():
        return None
    summary = read_summary(directory / SUMMARY)
    done = summary["rounds"]
    check_rounds(done, config, directory)
    return summary if done == config.general.rounds or "stopped" in summary else None


def check_replaceable(directory: Path) -> None:
    """Raise UserError unless `directory` is a run's, or has nothing in it."""
    if is_used(directory) and not (directory / CONFIG).exists():
        raise UserError(
            f"{directory} is not the directory of a run: it has no {CONFIG}. {option('overwrite', True)} replaces "
            f"only runs; choose another directory as {option('out')}.",
            code="user.not-replaceable",
        )


def check_rounds(done: int, config: Config, directory: Path) -> None:
    """Reject a run that has done more rounds than `config` asks for.

    Raises:
        UserError: more than `config`'s rounds are done.
    """
    if done > config.general.rounds:
        raise UserError(
            f"{directory} has done {counted(done, 'round')} already, more than the {config.general.rounds} asked for. "
            f"Ask for at least that many, or start again in another directory as {option('out')}.",
            code="user.rounds-done",
        )


def may_change(key: str) -> bool:
    """Whether a run may go on with another value of this setting, at sites too (`sites.flare.requests.pin`)."""
    return key in ("rounds", "eval_every", "evaluation.alone") or (
        key.split(".")[0] == "engine" and key != "engine.dtype"
    )


class Interrupted(FedweaveError):
    """The run was stopped by `signal` and can be resumed."""

    code = "interrupted"

    def __init__(self, number: int, saved: int, rounds: int) -> None:
        self.signal = number
        super().__init__(f"stopped by {signal.Signals(number).name}; {saved} of {counted(rounds, 'round')} saved.")


class Stop:
    """Turns the first SIGINT or SIGTERM into a wish to stop after the round, and the second into KeyboardInterrupt.

    signal: the number of the first one, None before. A context manager: the handlers are put back at its end, and none
    is set outside the main thread, where Python does not allow it. It calls `noticed` with the number.
    """

    def __init__(self, noticed: Callable[[int], None]) -> None:
        self.signal: int | None = None
        self._noticed = noticed
        self._before: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: object) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
        self._noticed(number)


@contextmanager
def terminable() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM too; nothing is set outside the main thread."""

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

"""Stopping a run from outside: the first signal asks, the second insists."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fedweave.core.text import counted
from fedweave.errors import FedweaveError


class Interrupted(FedweaveError):
    """The run was stopped by `signal` and can be resumed."""

    def __init__(self, number: int, saved: int, rounds: int) -> None:
        self.signal = number
        super().__init__(f"stopped by {signal.Signals(number).name}; {saved} of {counted(rounds, 'round')} saved.")


class Stop:
    """Turns the first SIGINT or SIGTERM into a wish to stop after the round, and the second into KeyboardInterrupt.

    signal: the number of the first one, None before. A context manager: the handlers are put back at its end, and none
    is set outside the main thread, where Python does not allow it. `noticed` is told the number.
    """

    def __init__(self, noticed: Callable[[int], None]) -> None:
        self.signal: int | None = None
        self._noticed = noticed
        self._before: dict[int, Any] = {}

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

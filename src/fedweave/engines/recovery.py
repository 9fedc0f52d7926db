"""A channel that survives its worker: a new worker repeats the calls since the last save.

A step depends only on a client's data, its state, the message and the call's key. So a new worker with the saved states
and the same calls in the same order gives the same states and replies, to the bit.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from fedweave.engines.sharded import Channel, Pending
from fedweave.errors import WorkerLost

_LOG = logging.getLogger(__name__)
_CALLS = 64  # calls after which a worker is saved
_TRIES = 3  # workers that one request may cost
_CHANGING = ("run", "restore", "set_aside", "bring_back")  # methods that change a worker's states


class RecoveringChannel:
    """Leads to a worker, and to a new one if the worker is lost.

    name:  the worker's name, with its number of clients. start: makes a worker and gives a channel to it, whose answers
           raise WorkerLost if the worker is gone.
    spool: the file to which its states are saved from time to time.
    """

    def __init__(self, name: str, start: Callable[[], Channel], spool: Path) -> None:
        self._name, self._start, self._spool = name, start, spool
        self._log: list[tuple[str, tuple[object, ...]]] = []
        self._generation = 0
        self._channel = start()

    def __call__(self, method: str, *blobs: object) -> Pending:
        if method == "run" and len(self._log) >= _CALLS:
            self._save(blobs[0])
        pending, generation = self._channel(method, *blobs), self._generation

        def wait() -> bytes:
            nonlocal pending, generation
            for remaining_tries in reversed(range(_TRIES)):
                try:
                    answer = pending()
                    break
                except WorkerLost as lost:
                    if not remaining_tries:
                        raise WorkerLost(f"{self._name} was lost {_TRIES} times: {lost}") from lost
                    if generation == self._generation:
                        self._recover(lost)
                    pending, generation = self._channel(method, *blobs), self._generation
            if method in _CHANGING:
                self._log.append((method, blobs))
            return answer

        return wait

    def _save(self, request: object) -> None:
        """Save the worker before a request."""
        try:
            states = self._channel("save", request)()
        except WorkerLost:  # the next request fails too, and the calls are still in the log
            return
        self._spool.write_bytes(states)
        self._log.clear()

    def _recover(self, lost: WorkerLost) -> None:
        _LOG.warning(
            "%s was lost (%s); a new one takes its clients and repeats %d calls.", self._name, lost, len(self._log)
        )
        for remaining_tries in reversed(range(_TRIES)):
            try:
                self._channel, self._generation = self._start(), self._generation + 1
                if self._spool.exists():
                    self._channel("restore", self._spool.read_bytes())()
                for method, blobs in self._log:
                    self._channel(method, *blobs)()
                return
            except WorkerLost as error:
                if not remaining_tries:
                    raise WorkerLost(f"{self._name} could not be rebuilt: {error}") from error

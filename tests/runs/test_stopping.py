"""Signals as a wish to stop."""

import os
import signal

import pytest

from fedweave.experiment.runs.resuming import terminable


def test_sigterm_interrupts_and_the_handler_is_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminable():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before

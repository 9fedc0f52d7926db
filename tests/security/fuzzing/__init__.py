"""Cases of a fuzz test, each made by its number alone: what is damaged, how, and who reads it.

    python -m tests.security.fuzzing 4711 [4712 ...]

runs single cases. A reader may return, or raise an error of fedweave's own; anything else is a finding.
"""

import signal
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedweave.errors import FedweaveError
from tests.security.fuzzing.readers import READERS
from tests.security.fuzzing.stock import Stock, make_stock

__all__ = ["Stock", "finding", "limit", "make_stock"]
SECONDS = 20.0  # that a case may take


class Hang(BaseException):
    """A case took too long; no `except Exception` stops it."""


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise `Hang` after so long."""

    def late(*told: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def finding(number: int, stock: Stock) -> str:
    """What is wrong with a case; nothing if nothing is."""
    rng, reader = np.random.default_rng(number), READERS[number % len(READERS)]
    with tempfile.TemporaryDirectory() as scratch:
        try:
            with limit(SECONDS):
                reader(rng, stock, Path(scratch))
        except FedweaveError:
            return ""
        except Hang:
            return f"case {number} ({reader.__name__}) took more than {SECONDS:g} s"
        except Exception:
            return f"case {number} ({reader.__name__}):\n{traceback.format_exc(limit=-8)}"
    return ""

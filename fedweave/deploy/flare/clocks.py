"""NVFlare's waits for answers, by a clock that nobody sets: by the time of day, every call ended as overdue when the
machine's clock was set forward by more than its timeout."""

import time
from types import SimpleNamespace

from nvflare.fuel.utils import waiter_utils


def steady() -> None:
    """Have this process's waits last as long as they were asked to."""
    waiter_utils.time = SimpleNamespace(time=time.monotonic, sleep=time.sleep)

"""A machine's clock that is set while a run goes on."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')
from nvflare.apis.signal import Signal
from nvflare.fuel.utils import waiter_utils

from fedweave.sites.flare import link, site


def at_the_server() -> None:
    link.CollabLink(1.0)


def at_a_site() -> None:
    site.Site.begin(site.Site())


@pytest.mark.parametrize("begin", [at_the_server, at_a_site])
def test_a_clock_that_is_set_forward_ends_no_call(monkeypatch: pytest.MonkeyPatch, begin: Callable[[], None]) -> None:
    """NVFlare measured its waits by the time of day: all sites were lost at once, "timed out after 630 seconds"."""
    monkeypatch.setattr(waiter_utils, "time", time)  # and what it is now comes back after the test
    workspace = SimpleNamespace(get_root_dir=lambda: ".")
    about: dict[str, Any] = {"fl_ctx": SimpleNamespace(get_prop=lambda name: None), "workspace": workspace}
    for module in (link, site):
        monkeypatch.setattr(module, "collab", SimpleNamespace(clients=[], site_name="bank-a", **about))
    for name in ("Member", "log_to"):
        monkeypatch.setattr(site, name, lambda *about: None)
    monkeypatch.setattr(site.os, "umask", lambda mask: mask)
    begin()
    came, now, began = threading.Event(), time.time(), time.monotonic()
    threading.Timer(0.5, came.set).start()
    monkeypatch.setattr(time, "time", lambda: now + (0 if time.monotonic() < began + 0.05 else 7200))
    assert waiter_utils.conditional_wait(came, 600.0, Signal()) == waiter_utils.WaiterRC.IS_SET

"""The server of the live page: Python's own, on the loopback interface, with two answers and no other."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fedweave.core.records import Record
from fedweave.errors import UserError
from fedweave.report.live import stamp, state
from fedweave.report.live_page import PAGE

HOST = "127.0.0.1"
LINGER = 5.0  # seconds that a page which was open has to see that the run is over
_POLICY = "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"


class LivePage:
    """Serves the page of the run in `directory` until `close`; port 0 takes a free one.

    Raises:
        UserError: the port is taken.
    """

    def __init__(self, directory: Path, port: int = 0) -> None:
        self._directory, self._lock = directory, threading.Lock()
        self._stamp: tuple[float, ...] | None = None
        self._state: Record = {}
        self._asked, self._over = 0.0, threading.Event()
        page = self

        class Handler(_Handler):
            live = page

        try:
            self._server = ThreadingHTTPServer((HOST, port), Handler)
        except OSError as error:
            raise UserError(
                f"port {port} of {HOST} cannot be listened on ({error.strerror}); choose another --port, or 0."
            ) from error
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        """Where a browser on this machine finds it."""
        return f"http://{HOST}:{self._server.server_port}/"

    def now(self) -> Record:
        """The run's state; read anew where a file has changed."""
        with self._lock:
            found = stamp(self._directory)
            if found != self._stamp:
                self._stamp, self._state = found, state(self._directory)
            self._asked = time.monotonic()
            return self._state

    def told(self, now: Record) -> None:
        """A page has got `now`."""
        if now.get("finished"):
            self._over.set()

    def close(self) -> None:
        """End the server; a page that is open hears before that the run is over, if it is."""
        if self._asked and time.monotonic() - self._asked < LINGER and state(self._directory)["finished"]:
            self._over.wait(LINGER)
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def shown(directory: Path, say: Callable[[str], None], port: int = 0) -> Iterator[LivePage]:
    """The live page of a run while the block lasts; `say` hears where it is."""
    page = LivePage(directory, port)
    say(f"live page: {page.address}")
    try:
        yield page
    finally:
        page.close()


class _Handler(BaseHTTPRequestHandler):
    live: LivePage

    def do_GET(self) -> None:
        """The page, or the run's state; to nobody who was sent here under another name."""
        if self.headers.get("Host", "").rpartition(":")[0] not in (HOST, "localhost"):
            return self.send_error(403)
        if self.path == "/":
            self._send("text/html; charset=utf-8", PAGE.encode())
            return None
        if self.path == "/state.json":
            now = self.live.now()
            if self._send("application/json", json.dumps(now, allow_nan=False).encode()):
                self.live.told(now)
            return None
        return self.send_error(404)

    def _send(self, kind: str, body: bytes) -> bool:
        """Whether the page took it: one may be closed, or drawn anew, while it waits."""
        self.send_response(200)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", _POLICY),
            ("X-Content-Type-Options", "nosniff"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        try:
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            return False
        return True

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the terminal is the run's."""

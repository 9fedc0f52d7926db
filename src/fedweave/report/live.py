"""The live page of a run: its contents, and the loopback server that serves it."""

import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fedweave.core.loopback import LOOPBACK, names_loopback
from fedweave.core.types import Record
from fedweave.errors import FedweaveError, UserError
from fedweave.experiment.runs.files import CHECKPOINT, CONFIG, LEDGER, METRICS, RUN, SUMMARY
from fedweave.metrics.selection import title_of
from fedweave.report import figures
from fedweave.report.absences import FAULTS, faults
from fedweave.report.html import drawn
from fedweave.report.pages import rendered
from fedweave.report.reading import Run, grouped, read_run

PAGE = rendered("live.html")


PROJECT_RUNS = "server/runs"  # where the server keeps a run of sites
_FILES = (CONFIG, METRICS, LEDGER, SUMMARY)


def followed(directory: Path) -> Path:
    """The directory to which the files of a run are written.

    For a run of sites that this machine's server still writes, it is the server's directory.
    """
    try:
        record = json.loads((directory / RUN).read_text())
        there = Path(record["project"]) / PROJECT_RUNS / str(record["run"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return directory
    return there if not (directory / SUMMARY).exists() and (there / METRICS).exists() else directory


def stamp(directory: Path) -> tuple[float, ...]:
    """A value that changes when one of the run's files does."""
    paths = [followed(directory) / name for name in (*_FILES, CHECKPOINT)]
    return tuple(path.stat().st_mtime if path.exists() else 0.0 for path in paths)


def state(directory: Path) -> Record:
    """The contents of the page, as JSON; "waiting" says why there is nothing yet, or no more.

    "members" are rows of the last evaluation: name, value of the selection metric ("metric") and loss on test examples,
    and the number of missing, rejected and late replies. "figures" is HTML.
    """
    try:
        run = read_run(followed(directory))
    except FedweaveError as error:
        return {"waiting": str(error), "finished": False}
    rounds, groups = run.config.get("rounds", 0), grouped([run])
    return {
        "title": f"{run.summary['algorithm']} on {run.summary['dataset']}, seed {run.summary.get('seed')}",
        "directory": str(directory),
        "finished": run.finished,
        "round": run.done,
        "rounds": rounds,
        "saved": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(run.when)),
        "metric": title_of(run.selection_metric),
        "members": _members(run),
        "figures": drawn(figures.curves(groups), "curves") + drawn(figures.traffic(groups), "traffic"),
    }


def _members(run: Run) -> list[Record]:
    value, loss = run.clients(run.selection_metric), run.clients("loss")
    fault_counts = faults(run.metrics)
    names, none = sorted({*value, *loss, *fault_counts}), dict[str, dict[int, int]]()
    calls = {
        name: {what: sum(fault_counts.get(name, none).get(what, {}).values()) for what in FAULTS} for name in names
    }
    return [
        {"name": name, "judged": _finite(value.get(name)), "loss": _finite(loss.get(name)), **calls[name]}
        for name in names
    ]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


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
            self._server = ThreadingHTTPServer((LOOPBACK, port), Handler)
        except OSError as error:
            raise UserError(
                f"port {port} of {LOOPBACK} cannot be listened on ({error.strerror}); choose another --port, or 0."
            ) from error
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        """The address at which a browser on this machine finds the page."""
        return f"http://{LOOPBACK}:{self._server.server_port}/"

    def now(self) -> Record:
        """The run's state; read again when a file has changed."""
        with self._lock:
            latest = stamp(self._directory)
            if latest != self._stamp:
                self._stamp, self._state = latest, state(self._directory)
            self._asked = time.monotonic()
            return self._state

    def received(self, now: Record) -> None:
        """Note that a page has received the state `now`."""
        if now.get("finished"):
            self._over.set()

    def close(self) -> None:
        """End the server; an open page first learns that the run is over, if it is."""
        if self._asked and time.monotonic() - self._asked < LINGER and state(self._directory)["finished"]:
            self._over.wait(LINGER)
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def shown(directory: Path, say: Callable[[str], None], port: int = 0) -> Iterator[LivePage]:
    """The live page of a run while the block lasts; `say` receives its address."""
    page = LivePage(directory, port)
    say(f"live page: {page.address}")
    try:
        yield page
    finally:
        page.close()


class _Handler(BaseHTTPRequestHandler):
    live: LivePage

    def do_GET(self) -> None:
        """Serve the page or the run's state; reject requests that name another host than the loopback interface."""
        if not names_loopback(self.headers.get("Host", "")):
            return self.send_error(403)
        if self.path == "/":
            self._send("text/html; charset=utf-8", PAGE.encode())
            return None
        if self.path == "/state.json":
            now = self.live.now()
            if self._send("application/json", json.dumps(now, allow_nan=False).encode()):
                self.live.received(now)
            return None
        return self.send_error(404)

    def _send(self, kind: str, body: bytes) -> bool:
        """Whether the page received it: a browser may close or reload the page while it waits."""
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

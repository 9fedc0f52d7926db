"""Metrics of the long-lived process of a site or of the server, in Prometheus' format, on the loopback interface.

All metrics are read from files in the member's folder, so that a restart loses nothing: journals, the states of runs,
and the certificate.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from fedweave.core.ledger_columns import Entry
from fedweave.core.loopback import LOOPBACK, names_loopback
from fedweave.core.types import FRAMING
from fedweave.errors import FedweaveError
from fedweave.sites.flare.folder import SITE_FILE, fields
from fedweave.sites.flare.journal import journals, read_journal
from fedweave.sites.flare.policy import Spent
from fedweave.sites.flare.sitefile import Rules, read_site_file
from fedweave.sites.flare.states import OPEN, STATES, states
from fedweave.sites.operation.certificates import lasts

RECENT = 7 * 86_400.0  # seconds for which metrics name a run that is over


class Gauges(Collector):
    """Totals of the journals in a member's `folder`, and its runs. Each request reads only new entries of journals."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._site = folder, (folder / SITE_FILE).exists()
        self._read: dict[Path, int] = {}
        self._spent, self._damaged = Spent(), 0
        self._calls, self._refused = Counter[str](), Counter[str]()
        self._bytes, self._last = Counter[tuple[str, str]](), dict[str, float]()

    def collect(self) -> Iterator[Metric]:
        unreadable = 0
        for path in journals(self._folder):
            try:
                records = read_journal(path, self._read.get(path, 0))
            except (FedweaveError, OSError):
                unreadable += 1
                continue
            self._read[path] = records.end
            self._damaged += len(records.damaged)
            for entry in records.entries:
                self._count(entry)
            self._refused.update(str(note.get("code")) for note in records.notes if note["note"] == "refused")
        calls = CounterMetricFamily("fedweave_calls", "Replies of steps and of jobs' other calls.", labels=["step"])
        sent = CounterMetricFamily("fedweave_bytes", "Bytes of messages by key and way.", labels=["key", "direction"])
        for step, times in sorted(self._calls.items()):
            calls.add_metric([step], times)
        for (key, direction), size in sorted(self._bytes.items()):
            sent.add_metric([key, direction], size)
        last = GaugeMetricFamily("fedweave_last_reply_seconds", "When it replied last, since 1970.", labels=["client"])
        for client, at in sorted(self._last.items()):
            last.add_metric([client], at)
        yield from (calls, sent, last, *self._runs())
        with suppress(FedweaveError):
            remaining = lasts(self._folder)
            if remaining is not None:
                days, what = (
                    round(remaining / timedelta(days=1), 2),
                    "Days until its certificate or the authority's ends.",
                )
                yield GaugeMetricFamily("fedweave_certificate_days", what, days)
        damaged = self._damaged + unreadable
        yield GaugeMetricFamily("fedweave_ledger_damaged_lines", "Unreadable lines and files.", damaged)
        if not self._site:
            return
        refused = CounterMetricFamily("fedweave_refusals", "Calls that were refused, by error.", labels=["code"])
        for code, times in sorted(self._refused.items()):
            refused.add_metric([code], times)
        yield refused
        rules = Rules()
        with suppress(FedweaveError):  # the log has the error of an invalid file
            rules = read_site_file(self._folder / SITE_FILE)[1]
        spent = self._spent.epsilon(rules.delta)
        yield GaugeMetricFamily("fedweave_epsilon_spent", "ε of all that left with a bound.", spent)
        bare = float(self._spent.account.cost.unbounded)
        yield GaugeMetricFamily("fedweave_left_unbounded", "1 once something left that no ε bounds.", bare)
        if rules.epsilon is not None:
            rest = max(0.0, rules.epsilon - spent)
            yield GaugeMetricFamily("fedweave_epsilon_left", "What policy.epsilon leaves of it.", rest)
        if rules.bytes is not None:
            rest = max(0, rules.bytes - self._spent.bytes)
            yield GaugeMetricFamily("fedweave_bytes_left", "What policy.bytes leaves.", rest)

    def _runs(self) -> Iterator[Metric]:
        """Of each run that is under way, or changed within `RECENT` seconds."""
        state = GaugeMetricFamily("fedweave_run_state", "1 for the state that the run is in.", labels=["run", "state"])
        about = {
            "run_round": "Rounds that are done; at a site, that began.",
            "run_rounds": "Rounds of the run.",
            "round_seconds": "Duration of the last round.",
        }
        numbers = [GaugeMetricFamily(f"fedweave_{name}", what, labels=["run"]) for name, what in about.items()]
        missing = GaugeMetricFamily(
            "fedweave_site_missing", "1 for a site without an answer.", labels=["run", "client"]
        )
        failures = 0
        for one in states(self._folder):
            failures += one.failures
            if one.state in OPEN or time.time() - one.at < RECENT:
                for name in STATES:
                    state.add_metric([one.run, name], float(name == one.state))
                for family, value in zip(numbers, (one.round, one.rounds, one.seconds), strict=True):
                    family.add_metric([one.run], value)
                for site in one.sites:
                    missing.add_metric([one.run, site], float(site in one.missing))
        yield from (state, *numbers, CounterMetricFamily("fedweave_run_failures", "Jobs that failed.", failures))
        if not self._site:
            yield missing

    def _count(self, entry: Entry) -> None:
        if self._site:
            self._spent = self._spent.after_entry(entry)
        for line in entry.keys:
            self._bytes[line.key.split("/")[0], entry.direction] += line.bytes * len(entry.clients)
        framing = entry.size - sum(line.bytes for line in entry.keys)
        self._bytes[FRAMING, entry.direction] += framing * len(entry.clients)
        if entry.direction == "up":
            self._calls[entry.step] += len(entry.clients)
            self._last |= dict.fromkeys(entry.clients, entry.at)


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the member's log is only for the member's work."""


def serve(folder: Path, port: int) -> None:
    """Serve `Gauges` on a port of the loopback interface.

    Raises:
        OSError: the port is not available.
    """
    registry = CollectorRegistry()
    registry.register(Gauges(folder))
    metrics = make_wsgi_app(registry)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if names_loopback(environ.get("HTTP_HOST", "")):
            page: Iterable[bytes] = metrics(environ, start_response)
            return page
        start_response("403 Forbidden", [("Content-Type", "text/plain")])
        return [f"the metrics are for {LOOPBACK} and localhost; ask under one of these names\n".encode()]

    server = make_server(LOOPBACK, port, answer, ThreadingWSGIServer, _Silent)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    more = fields("metrics", port=port)
    logging.getLogger("fedweave.gauges").info("metrics on http://%s:%d/metrics", LOOPBACK, port, extra=more)

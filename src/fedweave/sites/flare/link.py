"""Calls over NVFlare's Collab API, with fedweave's own deadlines, by a monotonic clock."""

import logging
import queue
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeAlias

from nvflare.collab import collab
from nvflare.fuel.utils import waiter_utils

from fedweave.sites.flare.folder import fields
from fedweave.sites.flare.journal import LATEST
from fedweave.sites.flare.requests import Answer


def steady() -> None:
    """Make NVFlare's waits in this process use a monotonic clock, so that setting the clock does not change them."""
    waiter_utils.time = SimpleNamespace(time=time.monotonic, sleep=time.sleep)


ABSENT = "it is not connected"  # why a site takes no part in a job from its start
# A site that did not answer in time may still be at work. NVFlare waits this many seconds longer for the end of its
# call, and until then the link does not call the site again.
_PATIENCE = 600.0
_GLANCE = 0.1  # seconds between two looks at whether a call has failed
_PROBE = 5.0  # seconds between two looks at whether sites that owe an answer are alive
_ALIVE = 10.0  # seconds that a living site has to say so
# After this many consecutive looks at which a site owed an answer but was not at work on it, the link asks it again:
# the request or the answer is lost. The numbers grow, since a large answer may still be on its way.
_REPEAT_AT = (2, 8, 32)
_Arrivals: TypeAlias = "queue.Queue[tuple[str, object]]"


@dataclass
class _Call:
    """A call under way: its number, the request and its blob, the results by site that NVFlare will fill, the queue of
    replies, and the sites that still owe one. idle: {site: consecutive looks at which it was not at work on the
    call}."""

    number: int
    content: tuple[str, bytes]
    results: dict[str, Any]  # NVFlare's result object, which has the failures by site
    arrivals: _Arrivals
    waiting: set[str]
    idle: Counter[str] = field(default_factory=Counter)


class CollabLink:
    """Calls `Site.call` of the sites in this job. The server's main function makes one.

    timeout: seconds that sites have for an answer.
    """

    def __init__(self, timeout: float) -> None:
        steady()
        self.late: Counter[str] = Counter()
        self._timeout = timeout
        self._sites = {proxy.name for proxy in collab.clients}
        self._running: list[_Call] = []
        self._lost: dict[str, str] = {}
        self._silent: frozenset[str] = frozenset()
        self._current: list[_Call] = []
        self._numbers, self._repeated = 0, False
        self._log = logging.getLogger("fedweave.server")

    @property
    def lost(self) -> dict[str, str]:
        """{site: why} for the sites whose process or connection is gone or never was there, for the rest of this
        job."""
        return dict(self._lost)

    @property
    def silent(self) -> frozenset[str]:
        """The sites that were not there for the last call, or gave no answer in time."""
        return self._silent

    @property
    def owing(self) -> tuple[str, ...]:
        """The sites that owe an answer now. Another thread than the calling one may read this."""
        return tuple(sorted(_waiting(self._current)))

    def close(self) -> None:
        """Give up all open calls: NVFlare ends a job only when no call is under way."""
        if self._lost or self._repeated or any(call.waiting for call in self._running):
            collab.context.abort_signal.trigger(True)

    def unreachable(self) -> dict[str, str]:
        """See `requests.Link`; also drops and counts late replies."""
        for call in self._running:
            for site, _ in self._news(call):
                self.late[site] += 1
        self._probe(self._running)
        self._running = [call for call in self._running if call.waiting]
        busy = dict.fromkeys(_waiting(self._running), "it is still at work on an earlier call")
        self._silent = frozenset(busy | self._lost)
        return busy | self._lost

    def exchange(self, request: str, blobs: Mapping[str, bytes]) -> tuple[dict[str, Answer], dict[str, str]]:
        """See `requests.Link`. Makes one group call if all sites get the same blob, else a call per site."""
        absent = {site: ABSENT for site in blobs if site not in self._sites}
        self._lost |= absent
        here = [site for site in blobs if site in self._sites]
        same_blob = len({blobs[site] for site in here}) == 1
        groups = [here] if same_blob else [[site] for site in here]
        calls = list[_Call]()
        for group in groups:
            self._numbers += 1
            calls.append(_Call(self._numbers, (request, blobs[group[0]]), {}, queue.Queue(), set(group)))
            self._ask(calls[-1], group)
        self._current, answers = calls, dict[str, Answer]()
        deadline = time.monotonic() + self._timeout
        probe = time.monotonic() + _PROBE
        while any(call.waiting for call in calls) and time.monotonic() < deadline:
            owing = next(call for call in calls if call.waiting)
            wait = min(_GLANCE, max(0.0, deadline - time.monotonic()))
            for site, reply in self._news(owing, wait):
                answers[site] = _answer(reply)
            if time.monotonic() >= probe:
                self._probe(calls)
                probe = time.monotonic() + _PROBE
        self._probe(calls)
        overdue = _waiting(calls)
        self._running += [call for call in calls if call.waiting]
        lost = {site: self._lost[site] for site in here if site in self._lost}
        missing = absent | lost | dict.fromkeys(overdue, f"no answer within {self._timeout:g} s")
        self._silent = self._silent | missing.keys()
        return answers, missing

    def _ask(self, call: _Call, sites: list[str]) -> None:
        group = collab.get_clients(sites)(
            blocking=False,
            optional=True,
            timeout=self._timeout + _PATIENCE,
            process_resp_cb=_deliver,
            arrivals=call.arrivals,
        )
        call.results |= dict.fromkeys(sites, group.call(*call.content, call.number))

    def _probe(self, calls: list[_Call]) -> None:
        """Look at the sites that owe an answer. Mark dead sites as lost, and ask sites again that are not at work on
        the call. A site that stalls, with its connection still open, has until the end of `timeout`."""
        owing = sorted(_waiting(calls))
        if not owing:
            return
        replies = collab.get_clients(owing)(timeout=_ALIVE, optional=True).ping()
        at_work = {name.split(".")[0]: number for name, number in replies}
        for call in calls:
            for site in sorted(call.waiting & at_work.keys()):
                call.idle[site] = 0 if at_work[site] == call.number else call.idle[site] + 1
                if call.idle[site] in _REPEAT_AT:  # the site does not repeat the work
                    what = "the request or its answer is lost on the way; the server asks again"
                    more = fields("asked-again", site=site)
                    self._log.warning("%s lives and is at work on nothing: %s", site, what, extra=more)
                    self._repeated = True
                    self._ask(call, [site])
        for site, error in replies.failures.items():
            if isinstance(error.cause, TimeoutError):
                continue
            self._lost[site] = f"it is gone ({error.cause})"
            for call in calls:
                call.waiting.discard(site)

    def _news(self, call: _Call, wait: float = 0.0) -> list[tuple[str, object]]:
        """The replies since the last look; waits up to `wait` seconds for the first. Also marks lost sites."""
        arrivals: list[tuple[str, object]] = []
        try:
            arrivals.append(call.arrivals.get(timeout=wait) if wait else call.arrivals.get_nowait())
            while True:
                arrivals.append(call.arrivals.get_nowait())
        except queue.Empty:
            pass
        call.waiting -= {site for site, _ in arrivals}
        for site in [site for site in call.waiting if site in call.results[site].failures]:
            self._lost[site] = f"the connection to it is lost ({call.results[site].failures[site].cause})"
            call.waiting.discard(site)
        return arrivals


def _waiting(calls: list[_Call]) -> set[str]:
    """The sites that owe an answer to one of the calls."""
    sites = set[str]()
    for call in calls:
        sites.update(tuple(call.waiting))  # another thread may change the set
    return sites


def _deliver(gcc: Any, result: object, arrivals: _Arrivals) -> None:
    arrivals.put((gcc.target_name.split(".")[0], result))


def _answer(reply: object) -> Answer:
    """A site's reply as an `Answer`; every field is checked, because a site may send anything."""
    try:
        if not isinstance(reply, dict):
            raise TypeError("it is not a table")
        final, more = reply["final"] is True, (reply.get("note", ""), reply.get("heads", ""))
        answer = Answer(reply["blob"], float(reply["seconds"]), reply["refusal"], final, *more)
    except (TypeError, KeyError, ValueError, OverflowError):
        return Answer(refusal="its answer is not of fedweave's form", final=False)
    words = all(isinstance(text, str) for text in (answer.refusal, answer.note, answer.heads))
    if not words or not isinstance(answer.blob, bytes) or not 0 <= answer.seconds < LATEST:
        return Answer(refusal="its answer is not of fedweave's form", final=False)
    return answer._replace(refusal="".join(c if c.isprintable() else " " for c in answer.refusal[:1000]))

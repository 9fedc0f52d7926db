"""What has left a site over all its runs, counted in one place that concurrent jobs share: its journals."""

import fcntl
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TextIO

from fedweave.core.ledger_columns import Entry
from fedweave.core.tree import Tree, leaves
from fedweave.core.types import Record
from fedweave.errors import CallRefused, DataError, FedweaveError, StepFailed
from fedweave.sites.flare.chain import Chain
from fedweave.sites.flare.folder import LOG, SITE_LOGGER, fields, private_file, private_folder
from fedweave.sites.flare.journal import Journal, append_note, journal_path, read_journal
from fedweave.sites.flare.policy import Spent
from fedweave.sites.flare.requests import Request, describe_request

NO_RUN = "no-run"  # the journal of refusals outside of any run; no run has such a name
CROWD = "crowd"  # the note that lists the sites of a run's secure aggregations
DATA = "data"  # the note with the digest of a run's data, and with what the run leaves out of it
_MAX_REASON = 500  # characters of a reason


class Exclusion(NamedTuple):
    """What a run leaves out of a site's data. data, rest: digests of the data with it and without it. examples: marks
    of what is left out (`holdings.exclusion_of`). training: of those among them that runs would train on. seen: digests
    by which a later run recognizes the data (`Accounts.first_digest`). key: a hash of the key of the marks."""

    data: str
    rest: str
    examples: frozenset[str] = frozenset()
    training: frozenset[str] = frozenset()
    digests: frozenset[str] = frozenset()
    key: str = ""

    @classmethod
    def of_note(cls, note: Record) -> "Exclusion":
        """What a journal's note of the kind `DATA` says."""
        return cls(
            note["data"],
            note["rest"],
            examples=frozenset(map(str, note.get("left_out", ()))),
            training=frozenset(map(str, note.get("training", ()))),
            digests=frozenset(map(str, note.get("seen", ()))),
            key=str(note.get("key", "")),
        )


class Accounts:
    """The sum of all journals of a site, including journals that other jobs are writing. Only `open` allows writing.

    Every job of the site adds to its own journal under one lock, after it has read what the others added to theirs, so
    that all their entries are one `chain`. lost: see `sitefile.Rules`.
    spent: the sum at the last reading of the journals. replies: {journal: {step: number of replies}},
    without those that were sent again as they were.
    pins: {journal: the configuration with which its run began (`requests.pin`)}. crowds: {journal: the sites of its
    run's secure aggregations, and the digest of the data}. exclusions: {journal: what its run leaves out, several if it
    began several times}. damaged: {journal: number of unreadable lines}.
    """

    def __init__(self, folder: Path, lost: Iterable[str] = ()) -> None:
        self.chain = Chain(lost)
        self._folder = journal_path(folder, "").parent
        self._lock: TextIO | None = None
        self._read: dict[str, int] = {}
        self.spent, self.damaged = Spent(), dict[str, int]()
        self.replies, self.pins = defaultdict[str, Counter[str]](Counter), dict[str, str]()
        self.crowds = dict[str, tuple[tuple[str, ...], str]]()
        self.exclusions = defaultdict[str, list[Exclusion]](list)

    @contextmanager
    def open(self, journal: Journal | None = None) -> Iterator[None]:
        """Keep the site's other jobs from counting and sending; what this job writes meanwhile goes to `journal`.

        Raises:
            CallRefused: another job has joined the run of `journal` since this one did.
        """
        if self._lock is None:
            self._lock = _lock_file(self._folder)
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # the system frees the lock of a killed process
        try:
            joined = self.catch_up()
            if journal is not None and journal.path.name in joined:
                raise CallRefused(f"another job has joined the run {journal.path.stem} since this one did")
            try:
                yield
            finally:
                if journal is not None:
                    self.skip(journal)
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def skip(self, journal: Journal) -> None:
        """Read `journal` only from its present end on: its entries are counted, or this job wrote them."""
        self._read[journal.path.name] = os.path.getsize(journal.path)

    def count(self, journal: Journal) -> None:
        """Count the entry that `journal` recorded last."""
        self._add(journal.path.name, journal.last)

    def _add(self, name: str, entry: Entry) -> None:
        before, self.spent = self.spent, self.spent.after_entry(entry)
        noised = any(line.applied is not None for line in entry.keys)
        resent = noised and before.account == self.spent.account  # the same noise, sent once more
        self.replies[name][entry.step] += entry.direction == "up" and not resent

    def replies_under(self, pin: str) -> Counter[str]:
        """{step: how often it has replied} in all runs that began with that configuration."""
        return sum((self.replies[name] for name, run_pin in self.pins.items() if run_pin == pin), Counter[str]())

    def of_whole(self, now: Exclusion) -> Exclusion:
        """`now`, in terms of the data as it was before its owner removed rows that an earlier run had left out."""
        before = {one.rest: one for one in self._known_exclusions() if one.rest != one.data}
        while now.data in before:
            one = before[now.data]
            examples, training = now.examples | one.examples, now.training | one.training
            now = now._replace(data=one.data, examples=examples, training=training)
        return now

    def first_digest(self, digest: str, digests: frozenset[str]) -> str:
        """The digest under which earlier runs noted the data that has one of the digests `digests`; `digest` if none
        did."""
        for one in self._known_exclusions():
            if one.digests & digests:
                return one.data
        return digest

    def _known_exclusions(self) -> list[Exclusion]:
        return list(chain.from_iterable(self.exclusions.values()))

    def earlier(self, now: Exclusion) -> list[Exclusion]:
        """What each run on the same data left out. Runs without the note, by an earlier version, count as runs on all
        of the same data, if they have replied to a step. now: see `of_whole`."""
        result = list[Exclusion]()
        for exclusions in self.exclusions.values():
            result += [one for one in map(self.of_whole, exclusions) if one.data == now.data]
        for name in self.pins.keys() - self.exclusions.keys():
            if any(not step.startswith("(") for step in self.replies.get(name, ())):
                result.append(Exclusion(now.data, now.data))
        return result

    def catch_up(self) -> list[str]:
        """Count the new entries of the journals. Returns the journals in which a job has joined since the last look."""
        if not self._folder.is_dir():
            return []
        with os.scandir(self._folder) as entries:  # in every call of a step: quicker than a glob
            sizes = {entry.name: entry.stat().st_size for entry in entries if entry.name.endswith(".jsonl")}
        with_joins = list[str]()
        for name in sorted(sizes):
            start = self._read.get(name, 0)
            if sizes[name] <= start:
                continue
            records = read_journal(self._folder / name, start)
            self._read[name] = records.end
            self.chain.add(records.links)
            for entry in records.entries:
                self._add(name, entry)
            for note in records.notes:
                if note["note"] == "joined":
                    self.pins.setdefault(name, str(note.get("counted", note.get("pin", ""))))
                    if name not in with_joins:
                        with_joins.append(name)
                elif note["note"] == CROWD:
                    self.crowds[name] = tuple(map(str, note.get("sites", ()))), str(note.get("data"))
                elif note["note"] == DATA:
                    self.exclusions[name].append(Exclusion.of_note(note))
            if records.damaged:
                self.damaged[name] = self.damaged.get(name, 0) + len(records.damaged)
        return with_joins


def _lock_file(ledgers: Path) -> TextIO:
    return open(private_folder(ledgers) / ".lock", "a", opener=private_file)


def note_refusal(folder: Path, run: str, request: str, why: str, code: str = FedweaveError.code) -> None:
    """Write into the journal of a run, or of none, that the site refused a `request`; code: the error's."""
    path = journal_path(folder, run or NO_RUN)
    with _lock_file(path.parent) as lock:  # closing the file frees the lock
        fcntl.flock(lock, fcntl.LOCK_EX)
        append_note(path, "refused", asked=request, why=why[:_MAX_REASON], code=code)


class CallLog:
    """Writes into the owner's log what the site does in a job, a line for each call: which run, who submitted it, what
    was asked for, which keys left and their bytes.

    name: the site's. submitter: who submitted the job, as the server says.
    """

    def __init__(self, name: str, submitter: str) -> None:
        self.log = logging.getLogger(f"{SITE_LOGGER}{name}")
        self._submitter, self._sent = submitter or "an unknown submitter", list[Record]()

    def log_start(self) -> None:
        """Log that a job begins. The server has not named its run yet."""
        self.log.info("a job of %s begins", self._submitter, extra=fields("job-begins", submitter=self._submitter))

    def log_end(self, run: str, why: str) -> None:
        """Log that the job is over. why: the reason for which the site left it before, or ""."""
        text = "run %s of %s, the job ends%s"
        about = {"run": run, "submitter": self._submitter, "reason": why}
        more = fields("job-left" if why else "job-ends", **about)
        self.log.info(text, run or "none", self._submitter, why and f"; the site had left it: {why}", extra=more)

    def note_sent(self, reply: Tree, size: int, to: Sequence[str]) -> None:
        """Note that a message of the present call has left for the server or, if there are any, for the peers `to`."""
        keys = list(dict.fromkeys(path.split("/")[0] for path, _ in leaves(reply)))
        self._sent.append({"keys": keys, "bytes": size} | ({"to": list(to)} if to else {}))

    def log_answer(self, run: str, request: Request) -> None:
        """Log that the site has answered a request, and what left."""
        messages = list[str]()
        for one in self._sent:
            to = f" to {', '.join(one['to'])}" if "to" in one else ""
            messages.append(f"{', '.join(one['keys']) or 'no key'}{to} ({one['bytes']:,} bytes)")
        what, more = describe_request(request), fields("answered", **self._about(run, request), left=self._sent)
        text = "run %s of %s, %s: left %s"
        self.log.info(text, run or "none", self._submitter, what, "; ".join(messages) or "nothing", extra=more)
        self._sent = []

    def log_refusal(self, folder: Path, run: str, request: Request | None, error: Exception) -> None:
        """Write into the log and the run's journal that the site in `folder` leaves the job. The journal, and a log in
        JSON, do not have the text of errors that may quote data: those of tables, of a step, and of the program."""
        what = "a request of no known form" if request is None else describe_request(request)
        expected = isinstance(error, FedweaveError) and not isinstance(error, StepFailed)
        code = error.code if isinstance(error, FedweaveError) else FedweaveError.code
        kind, plain = type(error).__name__, expected and not isinstance(error, DataError)
        about = {**self._about(run, request), "code": code, "error": kind, "reason": str(error) if plain else ""}
        trace = None if expected else error
        where = f"run {run or 'none'} of {self._submitter}, {what}"
        self.log.error("%s [%s]", error, where, exc_info=trace, extra=fields("refused", **about))
        why = f"{kind}: {error}" if plain else f"{kind}; {LOG} has the reason"
        with suppress(OSError):  # a full disk must not keep the server from hearing of it
            note_refusal(folder, run, what, why if expected else f"an error of the program ({why})", code)

    def _about(self, run: str, request: Request | None) -> Record:
        """Names and numbers of a request."""
        about = {"run": run, "submitter": self._submitter, "request": "unknown" if request is None else request.kind}
        return about | {name: getattr(request, name) for name in ("step", "round") if hasattr(request, name)}

"""The command `fedweave sites status`: the processes, the run's progress and the connected sites, within some
seconds."""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from fedweave.core.text import counted, printable
from fedweave.core.types import Record
from fedweave.errors import FedweaveError, UserError
from fedweave.metrics.selection import headline
from fedweave.sites.flare.own_results import last_verdict
from fedweave.sites.flare.requests import ADMIN, SERVER
from fedweave.sites.operation.certificates import lasts
from fedweave.sites.operation.processes import local_processes
from fedweave.sites.operation.project import STATUS, WAITING, Closed, Project, administer, reach, rejection

SECONDS = 5.0  # time for the server's answer; the login takes more than one second
UNHEARD = 60.0  # seconds without progress after which `sites run` does not watch a running job any more
THERE, AWAY, UNKNOWN = "●", "○", "?"
ASKED_BY = "only the administrator can ask the server which sites are connected"
_SILENT = "the server has not said in time"


@dataclass
class Lights:
    """The sites that the server knows. taken: whether it accepts connections. listed: the sites in its list. answering:
    the sites that have also answered it; None if it did not report them in time. why: the reason without a report.
    mistake: an error of the user that must be corrected first."""

    accepts: bool = False
    listed: set[str] | None = None
    answering: set[str] | None = None
    why: str = ""
    mistake: UserError | None = None
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def server(self) -> tuple[str, str]:
        """A light and a text for the server itself."""
        if self.listed is None and self.accepts and self.why == ASKED_BY:
            return THERE, "takes connections"
        return (THERE, "answers") if self.listed is not None else (UNKNOWN, self.why or _SILENT)

    def of(self, site: str) -> tuple[str, str]:
        """A light and a text for a `site`."""
        if self.listed is None:
            return UNKNOWN, self.why or _SILENT
        if site not in self.listed:
            return AWAY, "not connected"
        if self.answering is None:
            return THERE, "connected; has not answered the server yet"
        return (THERE, "connected") if site in self.answering else (AWAY, "connected before, does not answer")


def ask(directory: Path, project: Project, seconds: float = SECONDS) -> Lights:
    """Ask the project's server which sites are connected; returns what it has reported after `seconds`."""
    lights, deadline = Lights(), time.monotonic() + seconds
    try:
        reach(project, seconds).close()
        lights.accepts = True
    except Closed as error:
        lights.why = str(error)
        return lights
    if not (directory / ADMIN / "startup").is_dir():  # on the machine of a site
        lights.why = ASKED_BY
        return lights
    threading.Thread(target=_ask, args=(directory, lights, seconds), daemon=True).start()
    lights.done.wait(max(0.0, deadline - time.monotonic()))
    return lights


def _ask(directory: Path, lights: Lights, seconds: float) -> None:
    try:
        with administer(directory, seconds) as admin:
            lights.listed = admin.site_names()
            lights.answering = set(admin.answering_sites(sorted(lights.listed)))
            lights.done.set()
    except UserError as error:
        lights.mistake, lights.why = error, "the server cannot be asked"
    except FedweaveError as error:
        lights.why = str(error)
    finally:
        lights.done.set()


@dataclass(frozen=True)
class Standing:
    """The state of the server or a site. says: the text of its `light`; more: further texts. here: whether its folder
    is on this machine. process: the number of its process here. days: days for which its certificate here is valid."""

    light: str
    says: str
    here: bool = False
    process: int | None = None
    days: int | None = None
    more: tuple[str, ...] = ()

    @property
    def dead(self) -> bool:
        """Whether it does not answer, or its folder is here and its process does not run."""
        return self.light == AWAY or (self.here and self.process is None)

    def line(self, name: str) -> str:
        """For people."""
        where = f"process {self.process}" if self.process else "not running here"
        place = where if self.here else "its folder is not on this machine"
        lasts = () if self.days is None else (f"certificate: {counted(self.days, 'day')} left",)
        return f"{self.light} {name}: {'; '.join((self.says, place, *self.more, *lasts))}"

    def plain(self) -> Record:
        """For programs."""
        record = {"state": _STATES[self.light], "says": self.says, "dead": self.dead, "here": self.here}
        return {**record, "process": self.process, "certificate_days": self.days, "notes": list(self.more)}


_STATES = {THERE: "up", AWAY: "down", UNKNOWN: "unknown"}


@dataclass(frozen=True)
class Status:
    """The state of a project. members: {name: its state}, the server first. run: the last progress of the job that is
    watched here, if any. mistake: an error of the user without whose correction the server cannot be asked."""

    members: dict[str, Standing]
    run: Record | None = None
    mistake: UserError | None = None

    @property
    def dead(self) -> list[str]:
        """The members that do not answer or run; also the server if it does not report the connected sites."""
        names = list[str]()
        for name, standing in self.members.items():
            if standing.dead or (name == SERVER and standing.light == UNKNOWN):
                names.append(name)
        return names

    def lines(self) -> Iterator[str]:
        """For people."""
        yield self.members[SERVER].line(SERVER)
        if self.run:
            yield progress(self.run)
        yield from (standing.line(name) for name, standing in self.members.items() if name != SERVER)

    def plain(self) -> Record:
        """For programs, JSON's types alone."""
        server, *sites = ((name, standing.plain()) for name, standing in self.members.items())
        run = None if self.run is None else {**self.run, "seconds_ago": round(time.time() - float(self.run["at"]), 1)}
        why = None if self.mistake is None else str(self.mistake)
        record: Record = {"at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", "dead": self.dead, "mistake": why}
        return record | {"server": server[1], "sites": dict(sites), "run": run}


def standing(directory: Path, project: Project, seconds: float = SECONDS) -> Status:
    """The state of a project. seconds: time for the server's answer."""
    here = {member.folder.name: member.pid() for member in local_processes(directory)}
    now, lights = last_progress(directory), ask(directory, project, seconds)
    lost = (now or {}).get("lost") or {}

    def of(name: str, light: str, words: str, *more: str) -> Standing:
        days, damage = None, ""
        try:
            validity = lasts(directory / name)
            days = None if validity is None else validity.days
        except UserError:
            damage = "certificate: damaged"
        return Standing(light, words, name in here, here.get(name), days, tuple(filter(None, (*more, damage))))

    members = {SERVER: of(SERVER, *lights.server)}
    for site in project.sites:
        light, words = lights.of(site)
        missing = f"not in the run: {printable(str(lost[site]))}" if site in lost else ""
        verdict = last_verdict(directory / site) if site in here else None
        results = "" if verdict is None else f"its last run: {verdict.sentence.rstrip('.')}"
        barrier = rejection(directory / site, project) if light == AWAY and site in here else ""
        members[site] = of(site, light, words, missing, barrier, results)
    return Status(members, now, lights.mistake)


def last_progress(directory: Path) -> Record | None:
    """The last progress that `fedweave sites run` received; None if it never ran here."""
    try:
        status = dict(json.loads((directory / ADMIN / STATUS).read_text()))
        return status | {"at": float(status["at"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def progress(now: Record) -> str:
    """A line on a run's progress, and the time of that report."""
    ago = max(0.0, time.time() - float(now.get("at", 0)))
    known = headline(now.get("summary") or {})
    shown = f", {known}" if known else ""
    waiting = ", ".join(now.get("waiting") or ())
    state, owed = now.get("status"), f", waiting for {waiting}" if waiting and now.get("status") == "running" else ""
    rounds = (
        f"{now.get('round')} of {counted(now['rounds'], 'round')} done"
        if now.get("rounds")
        else "before its first round"
    )
    unheard = state == "running" and ago > UNHEARD
    if state == WAITING:  # and reports nothing until the wait is over
        remaining = float(now.get("deadline", 0)) - time.time()
        state, unheard = f"waiting for {waiting}, {max(0.0, remaining):.0f} s at most", remaining < -UNHEARD
    hint = "; not watched here: `fedweave sites run … --resume` watches it" if unheard else ""
    if state == "stopped":
        hint = "; `fedweave sites run … --resume` goes on"
        if now.get("lost"):
            hint = f"; `fedweave sites run` goes on with {', '.join(now['lost'])} as another job"
    return printable(f"run {now.get('out')}: {state}, {rounds}{shown}{owed} ({ago:.0f} s ago){hint}")

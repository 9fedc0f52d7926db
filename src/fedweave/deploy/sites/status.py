"""The command `fedweave sites status`: what runs, how far the run is, and who is there, within some seconds."""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fedweave.core.records import Record
from fedweave.core.text import counted, printable
from fedweave.deploy.flare.wire.requests import ADMIN
from fedweave.deploy.sites.certificates import days_left
from fedweave.deploy.sites.handshake import Closed, administer, barred, reach
from fedweave.deploy.sites.processes import found
from fedweave.deploy.sites.project import Project
from fedweave.errors import FedweaveError, UserError

SECONDS = 5.0  # that the server has to answer, of which its login takes more than one
UNHEARD = 60.0  # seconds after which a run that was last heard of as running is followed by nobody any more
THERE, AWAY, UNKNOWN = "●", "○", "?"
_SILENT = f"the server has not said within {SECONDS:g} s"


@dataclass
class Lights:
    """Which sites the server knows of. listed: are in its list. answering: have answered it, too; None where it has not
    said in time. why: it said nothing. mistake: why it cannot be asked before that is put right."""

    listed: set[str] | None = None
    answering: set[str] | None = None
    why: str = ""
    mistake: UserError | None = None
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def server(self) -> tuple[str, str]:
        """A light and words, of the server itself."""
        return (THERE, "answers") if self.listed is not None else (UNKNOWN, self.why or _SILENT)

    def of(self, site: str) -> tuple[str, str]:
        """A light and words."""
        if self.listed is None:
            return UNKNOWN, self.why or _SILENT
        if site not in self.listed:
            return AWAY, "not connected"
        if self.answering is None:
            return THERE, "connected; has not answered the server yet"
        return (THERE, "connected") if site in self.answering else (AWAY, "connected before, does not answer")


def ask(directory: Path, project: Project, seconds: float = SECONDS) -> Lights:
    """Ask the project's server who is connected; what it has said after `seconds`."""
    lights, deadline = Lights(), time.monotonic() + seconds
    try:
        reach(project, seconds).close()
    except Closed as error:
        lights.why = str(error)
        return lights
    threading.Thread(target=_ask, args=(directory, lights, seconds), daemon=True).start()
    lights.done.wait(max(0.0, deadline - time.monotonic()))
    return lights


def _ask(directory: Path, lights: Lights, seconds: float) -> None:
    try:
        with administer(directory, seconds) as admin:
            lights.listed = admin.listed()
            lights.answering = set(admin.connected(sorted(lights.listed)))
            lights.done.set()
    except UserError as error:
        lights.mistake, lights.why = error, "the server cannot be asked"
    except FedweaveError as error:
        lights.why = str(error)
    finally:
        lights.done.set()


def lines(directory: Path, project: Project) -> Iterator[str]:
    """What there is to say of a project.

    Raises:
        UserError: after all lines, where the server cannot be asked before a mistake here is put right.
    """
    here = {member.folder.name: member.pid() for member in found(directory)}
    now, lights = watched(directory), ask(directory, project)
    light, words = lights.server
    yield f"{light} server: {words}; {_here(here, 'server')}{_lasts(directory / 'server')}"
    if now:
        yield progress(now)
    lost = (now or {}).get("lost") or {}
    for site in project.sites:
        light, words = lights.of(site)
        missing = f"; not in the run: {printable(str(lost[site]))}" if site in lost else ""
        barrier = barred(directory / site, project) if light == AWAY and site in here else ""
        more = f"{missing}{f'; {barrier}' if barrier else ''}{_lasts(directory / site)}"
        yield f"{light} {site}: {words}; {_here(here, site)}{more}"
    if lights.mistake is not None:
        raise lights.mistake


def _lasts(folder: Path) -> str:
    """For how many days the certificate in a member's folder is still valid, as the end of a line; "" without one."""
    paths = [path for path in (folder / "startup/client.crt", folder / "startup/server.crt") if path.exists()]
    try:
        return "".join(f"; certificate: {counted(days_left(path), 'day')} left" for path in paths)
    except UserError:
        return "; certificate: damaged"


def _here(here: dict[str, int | None], name: str) -> str:
    if name not in here:
        return "its folder is not on this machine"
    return "not running here" if here[name] is None else f"process {here[name]}"


def watched(directory: Path) -> Record | None:
    """What `fedweave sites run` heard last of a job; None if it never ran here."""
    from fedweave.deploy.sites.project import STATUS

    try:
        return dict(json.loads((directory / ADMIN / STATUS).read_text()))
    except (OSError, ValueError):
        return None


def progress(now: Record) -> str:
    """How far a run is, and when that was."""
    ago = max(0.0, time.time() - float(now.get("at", 0)))
    from fedweave.report.notes import headline

    known = headline(now.get("summary") or {})
    shown = f", {known}" if known else ""
    waiting = ", ".join(now.get("waiting") or ())
    owed = f", waiting for {waiting}" if waiting and now.get("status") == "running" else ""
    rounds = (
        f"{now.get('round')} of {counted(now['rounds'], 'round')} done"
        if now.get("rounds")
        else "before its first round"
    )
    unheard = now.get("status") == "running" and ago > UNHEARD
    again = "; nobody follows it here: `fedweave sites run … --resume` does" if unheard else ""
    if now.get("status") == "stopped":
        again = "; `fedweave sites run … --resume` goes on"
        if now.get("lost"):
            again = f"; `fedweave sites run` goes on with {', '.join(now['lost'])} as another job"
    return printable(f"run {now.get('out')}: {now.get('status')}, {rounds}{shown}{owed} ({ago:.0f} s ago){again}")

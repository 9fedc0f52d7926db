"""The long-lived processes of one machine: the server and the sites, each in a session of its own.

What went wrong in them, their logs say.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedweave.core.text import printable
from fedweave.deploy.flare.server.provision import close_inside, kind, limit_classes, settle
from fedweave.deploy.flare.site.folder import LOG, private_file
from fedweave.deploy.sites.certificates import check_startup
from fedweave.errors import FedweaveError, UserError

_BEGINS = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?:UTC )?", re.MULTILINE)
_DONE, _LEVEL = "INFO ", re.compile(r"^[A-Z]+ ")
_ERROR = re.compile(r"^(\w+\.)*\w*(Error|Exception|Interrupt|Refused)\b|\b(ERROR|CRITICAL|FATAL)\b")


def last_record(text: str) -> str:
    """The last message of what went wrong in a log that `site.folder.log_to` writes, whole but for time and level, of
    a traceback the last line; "" where it only says what was done."""
    kept = [own.strip() for own in _BEGINS.split(text) if not own.startswith(_DONE)]
    last = next((own for own in reversed(kept) if own), "")
    last = _LEVEL.sub("", last)
    return last_error(last) if "Traceback (most recent call last)" in last else last.replace("\n", "\n    ")


def last_error(text: str) -> str:
    """The last line of a log that names an error, else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next(filter(_ERROR.search, reversed(lines)), lines[-1] if lines else "nothing")


PID, OUTPUT, BEGAN = "process.pid", "process.log", "process.began"  # BEGAN: the byte of OUTPUT where it was started
_TAIL = 100_000  # bytes of a log that are looked at
_LOOK = 0.5  # seconds between two looks at processes that are attended to
_GRACE = 10.0  # seconds that processes have to end by themselves
_MODULES = {
    "server": "fedweave.deploy.flare.server.gatekeeper",
    "client": "fedweave.deploy.flare.site.doorkeeper",
}


@dataclass(frozen=True)
class SiteProcess:
    """A folder that holds the server or a site, and what runs of it."""

    folder: Path

    @property
    def kind(self) -> str:
        """ "server" or "client"."""
        return kind(self.folder)

    def pid(self) -> int | None:
        """Its process, if it runs; checked, since another process may have got the number of an ended one."""
        try:
            pid = int((self.folder / PID).read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        except (OSError, ValueError):
            return None
        return pid if str(self.folder.resolve()) in command else None

    def start(self, threads: int = 0) -> int:
        """Start its process; returns the number, also if it runs already.

        Raises:
            UserError: see `check_startup`.
        """
        if (pid := self.pid()) is not None:
            return pid
        check_startup(self.folder)
        close_inside(self.folder)
        limit_classes(self.folder)
        if self.kind == "server":
            settle(self.folder)
        where = self.folder.resolve()
        words = [
            "-m",
            _MODULES[self.kind],
            "-m",
            str(where),
            "-s",
            f"fed_{self.kind}.json",
            "--set",
            "secure_train=true",
        ]
        words += ["config_folder=config", *([] if self.kind == "server" else [f"uid={self.folder.name}"])]
        environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
        where.chmod(0o700)
        with open(where / OUTPUT, "ab", opener=private_file) as output:
            (where / BEGAN).write_text(str(output.tell()))
            started = subprocess.Popen(
                [sys.executable, "-u", *words],
                cwd=where,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=0o077,  # what a site or server writes is its owner's
            )
        (where / PID).write_text(str(started.pid))
        while self.pid() is None and started.poll() is None:  # the system has yet to show its command
            time.sleep(0.01)
        return started.pid

    def cause(self) -> str:
        """The last error in what it wrote since it was started last; "nothing" if it wrote nothing."""
        with open(self.folder / OUTPUT, "rb") as output:
            end, began = output.seek(0, os.SEEK_END), self._began()
            output.seek(max(began if began <= end else 0, end - _TAIL))  # it may have been cut by who rotates logs
            return printable(last_error(output.read().decode(errors="replace")))

    def _began(self) -> int:
        try:
            return int((self.folder / BEGAN).read_text())
        except (OSError, ValueError):
            return 0

    def stop(self) -> bool:
        """End its process and those that it started; False if it did not run."""
        pid = self.pid()
        if pid is None:
            return False
        everyone = [pid, *descendants(pid)]
        for number in (signal.SIGTERM, signal.SIGKILL):
            for each in everyone:
                _send(each, number)
            deadline = time.monotonic() + _GRACE
            while any(_alive(each) for each in everyone) and time.monotonic() < deadline:
                time.sleep(0.1)
        (self.folder / PID).unlink(missing_ok=True)
        return True


def members(project: Path, only: tuple[str, ...] = ()) -> list[SiteProcess]:
    """The server and the sites whose folders are on this machine, or those of them that `only` names.

    Raises:
        UserError: there is none, or not the named one.
    """
    here = {member.folder.name: member for member in found(project)}
    if missing := [name for name in only if name not in here]:
        raise UserError(f"{project} has no folder of {', '.join(missing)}; it has {', '.join(here) or 'none'}.")
    if not here:
        raise UserError(f"{project} holds no server and no site. Make a project with `fedweave sites init`.")
    return [member for name, member in here.items() if not only or name in only]


def found(project: Path) -> list[SiteProcess]:
    """The server and the sites whose folders are on this machine, the server first; none on an administrator's."""
    folders = {file.parents[1] for file in project.glob("*/startup/fed_*.json")}
    kept = [SiteProcess(each) for each in sorted(folders) if not (each / "startup/fed_admin.json").exists()]
    return sorted(kept, key=lambda member: member.kind == "client")


def attend(started: Sequence[SiteProcess]) -> None:
    """Wait for as long as all of them run, and end them with this process: for whoever runs processes in containers or
    as services.

    Raises:
        FedweaveError: one has ended by itself; names it with its cause.
    """

    def ended(number: int, frame: object) -> None:
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, ended)
    try:
        while all(member.pid() is not None for member in started):
            time.sleep(_LOOK)
        causes = "; ".join(f"{own.folder.name}: {own.cause()}" for own in started if own.pid() is None)
        raise FedweaveError(f"ended by itself: {causes} (see {OUTPUT} in the folder).", code="process.failed")
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, before)
        for member in reversed(started):
            member.stop()


def check_alive(started: Sequence[SiteProcess], seconds: float = 3.0) -> None:
    """See that the processes that were just started still run after `seconds`.

    Raises:
        FedweaveError: some ended; names each with what it said last.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and all(member.pid() is not None for member in started):
        time.sleep(0.1)
    if ended := [member for member in started if member.pid() is None]:
        causes = "; ".join(f"{member.folder.name}: {member.cause()}" for member in ended)
        raise FedweaveError(f"did not start: {causes} (see {OUTPUT} in the folder).", code="process.failed")


def descendants(pid: int) -> list[int]:
    """The processes that `pid` started, and those that they started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(word) for word in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _alive(pid: int) -> bool:
    """Whether one of its threads runs: the first one may have ended while others still hold ports."""
    return any(map(_runs, Path(f"/proc/{pid}/task").glob("*/stat")))


def _runs(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@contextmanager
def own_reasons(project: Path) -> Iterator[None]:
    """Where what is done fails, say what the sites whose folders are on this machine noted for their owners; nobody
    else hears it."""
    logs = {member.folder.name: member.folder / LOG for member in found(project) if member.kind == "client"}
    began = {name: log.stat().st_size if log.exists() else 0 for name, log in logs.items()}
    try:
        yield
    except FedweaveError as error:
        said = {name: last_record(_since(log, began[name])) for name, log in logs.items() if log.exists()}
        noted = "".join(f"\n  {name}: {what}" for name, what in said.items() if what)
        if not noted:
            raise
        kind = UserError if isinstance(error, UserError) else FedweaveError
        raise kind(f"{error}\nNoted at the sites on this machine ({LOG}):{noted}") from error


def _since(path: Path, start: int) -> str:
    with open(path, "rb") as file:
        file.seek(start if start <= path.stat().st_size else 0)  # a full log has been followed by a new one
        return file.read().decode(errors="replace")

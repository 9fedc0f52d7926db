"""The long-lived processes of one machine: the server and the sites, each in a session of its own.

Their logs have their errors."""

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedweave.core.loopback import LOOPBACK
from fedweave.core.text import printable
from fedweave.errors import FedweaveError, UserError
from fedweave.sites.flare.folder import LOG, LOG_FORMAT, private_file
from fedweave.sites.flare.machine import metrics_port
from fedweave.sites.flare.provision import close_inside, kind, settle
from fedweave.sites.operation.alive import PID, folders, member_folders, process
from fedweave.sites.operation.certificates import check_startup

_BEGINS = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?:UTC )?", re.MULTILINE)
_DONE, _LEVEL = "INFO ", re.compile(r"^[A-Z]+ ")
_ERROR = re.compile(r"^(\w+\.)*\w*(Error|Exception|Interrupt|Refused)\b|\b(ERROR|CRITICAL|FATAL)\b")


def last_record(text: str) -> str:
    """The last error or warning in a log of `flare.folder.log_to`, without time and level; for a traceback, its last
    line. "" if the log has no errors. Of a log in JSON, its reason or error, and code."""
    if text.startswith("{"):
        for line in reversed(text.splitlines()):
            with suppress(ValueError, KeyError, TypeError):
                record = json.loads(line)
                if record["level"] != "INFO":
                    what = record.get("reason") or record.get("error") or record["event"]
                    return f"{what} [{record['code']}]" if "code" in record else str(what)
        return ""
    records = [record.strip() for record in _BEGINS.split(text) if not record.startswith(_DONE)]
    last = next((record for record in reversed(records) if record), "")
    last = _LEVEL.sub("", last)
    return last_error(last) if "Traceback (most recent call last)" in last else last.replace("\n", "\n    ")


def last_error(text: str) -> str:
    """The last line of a log with an error, else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next(filter(_ERROR.search, reversed(lines)), lines[-1] if lines else "nothing")


OUTPUT, BEGAN = "process.log", "process.began"  # BEGAN: the byte of OUTPUT at which the last start begins
_TAIL = 100_000  # bytes of a log that are searched
_LOOK = 0.5  # seconds between two looks at processes in `attend`
_GRACE = 10.0  # seconds that processes have to end after a signal
_MODULES = {"server": "fedweave.sites.flare.gatekeeper", "client": "fedweave.sites.flare.doorkeeper"}


@dataclass(frozen=True)
class SiteProcess:
    """A folder of the server or a site, and its process."""

    folder: Path

    @property
    def kind(self) -> str:
        """ "server" or "client"."""
        return kind(self.folder)

    def pid(self) -> int | None:
        """The number of its process, if it runs."""
        return process(self.folder)

    def start(self, threads: int = 0, log_format: str = "text") -> int:
        """Start the process, unless it runs already; returns its number. log_format: of `LOG`, also of its jobs."""
        pid = self.pid()
        if pid is not None:
            return pid
        check_startup(self.folder)
        close_inside(self.folder)
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
        environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {}) | {LOG_FORMAT: log_format}
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
                umask=0o077,  # only the owner can read what the process writes
            )
        (where / PID).write_text(str(started.pid))
        while self.pid() is None and started.poll() is None:  # wait until the system shows its command
            time.sleep(0.01)
        return started.pid

    def cause(self) -> str:
        """The last error in the process's output since its last start; "nothing" if there is no output."""
        try:
            began = int((self.folder / BEGAN).read_text())
        except (OSError, ValueError):
            began = 0
        with open(self.folder / OUTPUT, "rb") as output:
            end = output.seek(0, os.SEEK_END)
            output.seek(max(began if began <= end else 0, end - _TAIL))  # a rotation of logs may have shortened it
            return printable(last_error(output.read().decode(errors="replace")))

    def stop(self) -> bool:
        """End the process and its descendants; returns False if it did not run."""
        pid = self.pid()
        if pid is None:
            return False
        pids = [pid, *descendants(pid)]
        for number in (signal.SIGTERM, signal.SIGKILL):
            for each in pids:
                with suppress(ProcessLookupError):
                    os.kill(each, number)
            deadline = time.monotonic() + _GRACE
            while any(map(_is_alive, pids)) and time.monotonic() < deadline:
                time.sleep(0.1)
        (self.folder / PID).unlink(missing_ok=True)
        return True


def members(project: Path, only: tuple[str, ...] = ()) -> list[SiteProcess]:
    """The server and the sites whose folders are on this machine; with `only`, just these members.

    Raises:
        UserError: there is no folder, or a member in `only` has none.
    """
    return list(map(SiteProcess, member_folders(project, only)))


def local_processes(project: Path) -> list[SiteProcess]:
    """The server and the sites whose folders are on this machine, the server first; none on an administrator's."""
    return list(map(SiteProcess, folders(project)))


def attend(started: Sequence[SiteProcess]) -> None:
    """Wait while all these processes run, and end them when this process ends. Use it in containers and services.

    Raises:
        FedweaveError: a process has ended on its own; names it with its cause.
    """

    def end_here(number: int, frame: object) -> None:
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, end_here)
    try:
        while all(member.pid() is not None for member in started):
            time.sleep(_LOOK)
        causes = "; ".join(f"{process.folder.name}: {process.cause()}" for process in started if process.pid() is None)
        raise FedweaveError(f"ended by itself: {causes} (see {OUTPUT} in the folder).", code="process.failed")
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, before)
        for member in reversed(started):
            member.stop()


def check_alive(started: Sequence[SiteProcess], seconds: float = 3.0) -> None:
    """Check that the processes that were just started still run after `seconds`.

    Raises:
        FedweaveError: some have ended; names each with its last error.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and all(member.pid() is not None for member in started):
        time.sleep(0.1)
    ended = [member for member in started if member.pid() is None]
    if ended:
        causes = "; ".join(f"{member.folder.name}: {member.cause()}" for member in ended)
        raise FedweaveError(f"did not start: {causes} (see {OUTPUT} in the folder).", code="process.failed")


def descendants(pid: int) -> list[int]:
    """The child processes of `pid`, and their descendants."""
    pids: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(word) for word in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            pids += [child, *descendants(child)]
    return pids


def _is_alive(pid: int) -> bool:
    """Whether one of its threads runs: the first one may have ended while others still hold ports."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            if stat.read_text().rpartition(")")[2].split()[0] not in ("Z", "X"):
                return True
    return False


@contextmanager
def local_reasons(project: Path) -> Iterator[None]:
    """If the block raises an error, add the last errors in the logs of the sites on this machine. Their owners' logs
    are the only place of these reasons."""
    logs = {member.folder.name: member.folder / LOG for member in local_processes(project) if member.kind == "client"}
    began = {name: log.stat().st_size if log.exists() else 0 for name, log in logs.items()}
    try:
        yield
    except FedweaveError as error:
        lines = ""
        for name, log in logs.items():
            if log.exists():
                with open(log, "rb") as file:
                    file.seek(began[name] if began[name] <= log.stat().st_size else 0)  # a full one was replaced
                    what = last_record(file.read().decode(errors="replace"))
                lines += f"\n  {name}: {what}" if what else ""
        if not lines:
            raise
        kind = UserError if isinstance(error, UserError) else FedweaveError
        raise kind(f"{error}\nNoted at the sites on this machine ({LOG}):{lines}") from error


_PORTS = range(20_000, 32_000)  # below the ports that Linux and others use for outgoing connections, from 32,768 up


def free_port() -> int:
    """A port of this machine on which no process listens, and which the system uses for no outgoing connection."""
    for port in secrets.SystemRandom().sample(_PORTS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise FedweaveError("no port of this machine is free; name one with --port.")


def check_port(server: SiteProcess, port: int) -> None:
    """Refuse to start a server on a port that another process listens on.

    Raises:
        UserError: names the port.
    """
    if server.pid() is not None:
        return
    remedy = "End the process that uses it, or provision the project with another --port."
    _check_free("", port, f"port {port} of this machine", remedy)


def check_metrics_port(member: SiteProcess) -> None:
    """Check that the metrics port of a member that does not run is free.

    Raises:
        UserError: another process listens on it. ConfigError: the member's file is not valid.
    """
    port = metrics_port(member.folder)
    if not port or member.pid() is not None:
        return
    remedy = "Every server and site on one machine needs its own port. Choose another, or 0 for none."
    _check_free(LOOPBACK, port, f"metrics_port {port} of {member.folder.name}", remedy)


def _check_free(host: str, port: int, what: str, remedy: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closing connections of an ended server do no harm
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(f"{what} cannot be listened on ({error.strerror}). {remedy}") from error


def wait_until_open(server: SiteProcess, host: str, port: int, seconds: float = 60.0) -> None:
    """Wait until the server listens.

    Raises:
        FedweaveError: the server has ended, or does not listen within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and server.pid() is not None:
        try:
            with socket.create_connection((host, port), timeout=1):
                return
        except OSError:
            time.sleep(0.2)
    raise FedweaveError(
        f"the server does not listen on {host}:{port}; it said: {server.cause()} (see {server.folder / OUTPUT})."
    )

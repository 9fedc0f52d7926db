"""The long-lived processes of one machine: the server and the sites, each in a session of its own."""

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
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from fedweave.core.text import printable
from fedweave.deploy.flare.private import private_file
from fedweave.deploy.flare.provision import close_inside, kind, limit_classes, settle
from fedweave.errors import FedweaveError, UserError
from fedweave.runs.files import read

LOG = "fedweave.log"  # `deploy.flare.member.LOG`, whose module takes seconds to import
PID, OUTPUT, BEGAN = "process.pid", "process.log", "process.began"  # BEGAN: the byte of OUTPUT where it was started
_ERROR = re.compile(r"^(\w+\.)*\w*(Error|Exception|Interrupt|Refused)\b|\b(ERROR|CRITICAL|FATAL)\b")
_PORTS = range(20_000, 32_000)  # below those that Linux and others take for outgoing connections, from 32,768 up
_TAIL = 100_000  # bytes of a log that are looked at
_GRACE = 10.0  # seconds that processes have to end by themselves
_MODULES = {
    "server": "nvflare.private.fed.app.server.server_train",
    "client": "fedweave.deploy.flare.doorkeeper",
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
            UserError: its certificate is not valid now, or it has no [data].
        """
        if (pid := self.pid()) is not None:
            return pid
        check_certificate(self.folder / "startup" / f"{self.kind}.crt")
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
            output.seek(max(self._began(), output.seek(0, os.SEEK_END) - _TAIL))
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


def certificate(path: Path) -> x509.Certificate:
    """The certificate in a file.

    Raises:
        UserError: it holds none.
    """
    try:
        return x509.load_pem_x509_certificate(read(path))
    except (UserError, ValueError) as error:
        raise UserError(
            f"{path} is no certificate ({error}). Ask the project's operator for the folder again."
        ) from error


def check_issuer(path: Path, root: Path) -> None:
    """Refuse a certificate that the authority of `root` did not sign.

    Raises:
        UserError: names both files.
    """
    try:
        certificate(path).verify_directly_issued_by(certificate(root))
    except (InvalidSignature, ValueError, TypeError) as error:
        raise UserError(
            f"{path} was not signed by {root}: they are of different projects. Take the whole folder startup of one "
            "`fedweave sites init`."
        ) from error


def check_certificate(path: Path) -> None:
    """Refuse a certificate that is not valid now.

    Raises:
        UserError: names the file and the dates.
    """
    own = certificate(path)
    first, last = own.not_valid_before_utc, own.not_valid_after_utc
    if not first <= datetime.now(UTC) <= last:
        raise UserError(
            f"{path} is valid from {first:%Y-%m-%d} to {last:%Y-%m-%d}, not now. Ask the project's operator for a new "
            "one, or correct this machine's clock."
        )


def free_port() -> int:
    """A port of this machine that nobody listens on now, and that the system gives to no connection by itself."""
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
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what an ended server left closing is no obstacle
        try:
            probe.bind(("", port))
        except OSError as error:
            raise UserError(
                f"port {port} of this machine cannot be listened on ({error.strerror}). End the process that does, or "
                "provision the project with another --port."
            ) from error


def wait_until_open(server: SiteProcess, host: str, port: int, seconds: float = 60.0) -> None:
    """Wait until the server listens.

    Raises:
        FedweaveError: it ended, or did not within `seconds`.
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
        raise FedweaveError(f"did not start: {causes} (see {OUTPUT} in the folder).")


@contextmanager
def own_reasons(project: Path) -> Iterator[None]:
    """Where what is done fails, say what the sites whose folders are on this machine noted for their owners; nobody
    else hears it."""
    logs = {member.folder.name: member.folder / LOG for member in found(project) if member.kind == "client"}
    began = {name: log.stat().st_size if log.exists() else 0 for name, log in logs.items()}
    try:
        yield
    except FedweaveError as error:
        said = {name: _since(log, began[name]) for name, log in logs.items() if log.exists()}
        noted = "".join(f"\n  {name}: {last_record(text)}" for name, text in said.items() if text.strip())
        if not noted:
            raise
        kind = UserError if isinstance(error, UserError) else FedweaveError
        raise kind(f"{error}\nNoted at the sites on this machine ({LOG}):{noted}") from error


def _since(path: Path, start: int) -> str:
    with open(path, "rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace")


def last_record(text: str) -> str:
    """The last message of a log that `logs.log_to` writes, in whole but for the time; of a traceback its last line."""
    last = re.split(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", text, flags=re.MULTILINE)[-1].strip()
    return last_error(last) if "Traceback (most recent call last)" in last else last.replace("\n", "\n    ")


def last_error(text: str) -> str:
    """The last line of a log that names an error, else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next(filter(_ERROR.search, reversed(lines)), lines[-1] if lines else "nothing")


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
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

"""The long-lived processes of one machine: the server and the sites, each in a session of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from fedweave.deploy.flare.private import private_file
from fedweave.deploy.flare.provision import settle
from fedweave.errors import FedweaveError, UserError

PID, OUTPUT = "process.pid", "process.log"
_GRACE = 10.0  # seconds that processes have to end by themselves
_MODULES = {
    "server": "nvflare.private.fed.app.server.server_train",
    "client": "nvflare.private.fed.app.client.client_train",
}


@dataclass(frozen=True)
class SiteProcess:
    """A folder that holds the server or a site, and what runs of it."""

    folder: Path

    @property
    def kind(self) -> str:
        """ "server" or "client"."""
        return "server" if (self.folder / "startup/fed_server.json").exists() else "client"

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


def check_certificate(path: Path) -> None:
    """Refuse a certificate that is not valid now.

    Raises:
        UserError: names the file and the dates.
    """
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is no certificate ({error}). Ask the project's operator for the folder again."
        ) from error
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not first <= datetime.now(UTC) <= last:
        raise UserError(
            f"{path} is valid from {first:%Y-%m-%d} to {last:%Y-%m-%d}, not now. Ask the project's operator for a new "
            "one, or correct this machine's clock."
        )


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
    said = (server.folder / OUTPUT).read_text(errors="replace").strip().splitlines()
    raise FedweaveError(
        f"the server does not listen on {host}:{port}; it said: {said[-1] if said else 'nothing'} "
        f"(see {server.folder / OUTPUT})."
    )


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

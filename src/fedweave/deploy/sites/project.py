"""What a project's folder says of itself: its sites, where its server is, and the port that this listens on."""

import json
import secrets
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from fedweave.deploy.flare.site.about import LOOPBACK, metrics_port
from fedweave.deploy.sites.processes import OUTPUT, SiteProcess
from fedweave.errors import FedweaveError, UserError

_PORTS = range(20_000, 32_000)  # below those that Linux and others take for outgoing connections, from 32,768 up


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
    remedy = "End the process that does, or provision the project with another --port."
    _check_free("", port, f"port {port} of this machine", remedy)


def check_metrics_port(member: SiteProcess) -> None:
    """Refuse the port on which a member that does not run is to tell what monitors it, where it cannot have that.

    Raises:
        UserError: another process listens on it. ConfigError: the member's file is not valid.
    """
    port = metrics_port(member.folder)
    if not port or member.pid() is not None:
        return
    remedy = "Every server and site of one machine needs one of its own; choose another, or 0 for none."
    _check_free(LOOPBACK, port, f"metrics_port {port} of {member.folder.name}", remedy)


def _check_free(host: str, port: int, what: str, remedy: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what an ended server left closing is no obstacle
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(f"{what} cannot be listened on ({error.strerror}). {remedy}") from error


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


FILE = "project.json"
STATUS = "status.json"  # in the administrator's folder: how far the job is that was watched last
IGNORED = ".gitignore"


@dataclass(frozen=True)
class Project:
    """The sites in client order, and the server's address."""

    sites: tuple[str, ...]
    host: str
    port: int

    def save(self, directory: Path) -> None:
        """Write it into the project's folder, and have git leave all there is out: private keys, secrets and data."""
        (directory / IGNORED).write_text("# Private keys, secrets and data: none of it belongs into a repository.\n*\n")
        (directory / FILE).write_text(json.dumps(asdict(self), indent=2) + "\n")


def read_project(directory: Path) -> Project:
    """Read what `Project.save` wrote.

    Raises:
        UserError: `directory` is no project.
    """
    try:
        told = json.loads((directory / FILE).read_text())
        port = int(told["port"])
        if not 0 < port < 1 << 16:
            raise ValueError(f"{port} is no port")
        names = [*told["sites"], told["host"]]
        if not isinstance(told["sites"], list) or not all(isinstance(name, str) for name in names):
            raise ValueError("sites is a list of names, host a name")
        return Project(tuple(told["sites"]), told["host"], port)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{directory} is not a project: it has no readable {FILE}. Make one with `fedweave sites init`."
        ) from error

"""What a project's folder says of itself: its sites, where its server is and the port that this listens on; and whether
the server and a folder take each other's certificates, asked before NVFlare is, which says only that there is no
connection, and that to the site's log alone."""

import json
import secrets
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from fedweave.deploy.flare.server.gatekeeper import load_revoked
from fedweave.deploy.flare.server.session import Admin, logged_in
from fedweave.deploy.flare.site.folder import LOOPBACK, metrics_port
from fedweave.deploy.flare.wire.requests import ADMIN
from fedweave.deploy.sites.certificates import ROOT, check_startup
from fedweave.deploy.sites.processes import OUTPUT, SiteProcess
from fedweave.errors import FedweaveError, UserError
from fedweave.privacy.aggregation import REFUSED

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


SECONDS = 2.0  # for the server to take a connection, and to answer
_ASK = b"GET / HTTP/1.1\r\nHost: fedweave\r\n\r\n"  # answered by whoever has accepted the certificate
_DATES = {9, 10}  # OpenSSL's codes: not valid yet, and no more
_REVOKED = 23  # OpenSSL's code
_KIT = "Take the whole folder startup of the `fedweave sites init` that the server's is of"


class Closed(FedweaveError):
    """Nobody takes connections at the server's address."""


class NoHost(Closed):
    """The server's host is no name of a machine here."""


def reach(project: Project, seconds: float = SECONDS) -> socket.socket:
    """A connection to the project's server.

    Raises:
        NoHost: its host is no name of a machine here. Closed: nothing takes connections there.
    """
    try:
        return socket.create_connection((project.host, project.port), seconds)
    except (socket.gaierror, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise NoHost(
            f"{FILE}: {project.host!r} is no name of a machine here ({reason}). Correct it, or this machine's names "
            "(/etc/hosts).",
            code="host.no-name",
        ) from error
    except OSError as error:
        where, why = f"{project.host}:{project.port}", error.strerror or error
        raise Closed(f"the server takes no connection on {where} ({why})", code="host.no-connection") from error


def greet(certificate: Path, project: Project, seconds: float = SECONDS) -> None:
    """Connect to the project's server with the `certificate`, the key and the authority's certificate beside it, as
    NVFlare does, which looks at who has signed and not at the host's name.

    Raises:
        UserError: one does not take the other's certificate, or what answers is no server of a project. Closed: see
            `reach`.
    """
    context = load_revoked(ssl.create_default_context(cafile=str(certificate.with_name(ROOT))), certificate.parent)
    context.check_hostname = False
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    where = f"{project.host}:{project.port}"
    try:
        with reach(project, seconds) as plain, context.wrap_socket(plain) as secure:
            secure.sendall(_ASK)
            taken = secure.recv(1) != b""
    except ssl.SSLCertVerificationError as error:
        raise _unknown(certificate, where, error) from error
    except TimeoutError:
        return  # it says nothing, of certificates neither
    except (ssl.SSLError, ConnectionError) as error:
        if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
            raise UserError(f"what answers on {where} is no server of a project. Correct {FILE}.") from error
        taken = False
    if not taken:
        raise UserError(
            f"the server on {where} ends the connection when it sees {certificate}, which is valid by this machine's "
            f"clock, {_now()}. {_KIT}, correct the server's clock, or the address in {FILE}; or, if the authority has "
            f"revoked it, make a new key: `fedweave sites request {certificate.parents[1]}`.",
            code="certificate.refused",
        )


def barred(folder: Path, project: Project) -> str:
    """Why the server does not take the member in `folder`; "" if it does, or does not say."""
    try:
        greet(check_startup(folder), project)
    except Closed:
        return ""
    except UserError as error:
        return str(error)
    return ""


def _unknown(certificate: Path, where: str, error: ssl.SSLCertVerificationError) -> UserError:
    """Why the server's certificate is not taken."""
    if error.verify_code == _REVOKED:
        return UserError(
            f"the authority has revoked the certificate of the server on {where}. Have the server's owner make a new "
            "key, and have that signed.",
            code=REFUSED,
        )
    if error.verify_code in _DATES:
        return UserError(
            f"the certificate of the server on {where} is not valid by this machine's clock, {_now()} "
            f"({error.verify_message}). Correct the clock, or ask the project's operator for new certificates.",
            code="certificate.not-valid",
        )
    root = certificate.with_name(ROOT)
    return UserError(
        f"the server on {where} is of another project than {certificate.parent}: {root.name} there did not sign its "
        f"certificate ({error.verify_message}). {_KIT}, or correct the address in {FILE}."
    )


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


@contextmanager
def administer(project: Path, seconds: float = 15.0) -> Iterator[Admin]:
    """A session with the project's server, once each takes the other's certificate.

    Raises:
        UserError: `project` holds no administrator's folder, the certificate there is not valid, or the server does not
            take it. FedweaveError: nobody takes connections at the server's address, or answers there.
    """
    if not (project / ADMIN / "startup").is_dir():
        raise UserError(f"{project} is not a project: it has no {ADMIN}/startup. Make one with `fedweave sites init`.")
    try:
        greet(check_startup(project / ADMIN), read_project(project))
    except NoHost:
        raise
    except Closed as error:
        raise FedweaveError(
            f"{error}. Start it on its machine: `fedweave sites start {project} --only server`.",
            code="host.no-connection",
        ) from error
    with logged_in(project, seconds) as admin:
        yield admin

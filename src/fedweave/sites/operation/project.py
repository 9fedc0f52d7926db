"""A project's folder with its sites and the server's address, and sessions with the server.

Before NVFlare connects, this checks whether the server and a member accept each other's certificates: NVFlare reports
only that there is no connection, and only in the site's log.
"""

import json
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from fedweave.errors import FedweaveError, UserError
from fedweave.experiment.runs.files import write
from fedweave.sites.flare.admin import Admin, log_in
from fedweave.sites.flare.gatekeeper import load_revoked
from fedweave.sites.flare.provision import check_host, check_names
from fedweave.sites.flare.requests import ADMIN
from fedweave.sites.operation.certificates import ROOT, check_startup
from fedweave.sites.protocols.identity import REFUSED

FILE = "project.json"
STATUS = "status.json"  # in the administrator's folder: the progress of the last watched job
WAITING = "waiting"  # the status there of a run without a job, which waits until a site or the server is back
IGNORED = ".gitignore"


@dataclass(frozen=True)
class Project:
    """The sites in client order, and the server's address."""

    sites: tuple[str, ...]
    host: str
    port: int

    def save(self, directory: Path) -> None:
        """Write it into the project's folder, with a .gitignore for all files there: private keys, secrets and data."""
        (directory / IGNORED).write_text("# Private keys, secrets and data: none of it belongs into a repository.\n*\n")
        text = json.dumps(asdict(self), indent=2) + "\n"
        write(directory / FILE, lambda file: file.write(text.encode()))


def read_project(directory: Path) -> Project:
    """Read what `Project.save` wrote, or a file from elsewhere.

    Raises:
        UserError: `directory` is not a project, or a site or the server's machine has a name that is not allowed.
    """
    try:
        record = json.loads((directory / FILE).read_text())
        port = int(record["port"])
        if not 0 < port < 1 << 16:
            raise ValueError(f"{port} is not a port")
        names = [*record["sites"], record["host"]]
        if not isinstance(record["sites"], list) or not all(isinstance(name, str) for name in names):
            raise ValueError("sites is a list of names, host a name")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{directory} is not a project: it has no readable {FILE}. Make one with `fedweave sites init`."
        ) from error
    check_names(record["sites"], f"{directory / FILE}: sites")
    check_host(record["host"], f"{directory / FILE}: host")
    return Project(tuple(record["sites"]), record["host"], port)


SECONDS = 2.0  # for the server to take a connection, and to answer
STARTING = 6.0  # for a server that listens already to accept connections
_POLL = 0.5
_ENDED = "certificate.refused"  # the error code of a connection that the server has ended
_ASK = b"GET / HTTP/1.1\r\nHost: fedweave\r\n\r\n"  # a server answers it after it has accepted the certificate
_DATES = {9, 10}  # OpenSSL's codes: not yet valid, and expired
_REVOKED = 23  # OpenSSL's code
_KIT = "Take the whole folder startup from the same `fedweave sites init` as the server's"


class Closed(FedweaveError):
    """No process accepts connections at the server's address."""


class NoHost(Closed):
    """The server's host is not a name of a machine here."""


def reach(project: Project, seconds: float = SECONDS) -> socket.socket:
    """A connection to the project's server."""
    try:
        return socket.create_connection((project.host, project.port), seconds)
    except (socket.gaierror, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise NoHost(
            f"{FILE}: {project.host!r} is not a name of a machine here ({reason}). Correct it, or this machine's names "
            "(/etc/hosts).",
            code="host.no-name",
        ) from error
    except OSError as error:
        where, why = f"{project.host}:{project.port}", error.strerror or error
        raise Closed(f"the server takes no connection on {where} ({why})", code="host.no-connection") from error


def greet(certificate: Path, project: Project, seconds: float = SECONDS) -> None:
    """Connect to the project's server with the `certificate`, its key and the authority's certificate in the same
    folder. Like NVFlare, it checks the signer and not the host's name.

    Raises:
        UserError: one side rejects the other's certificate, or another program answers. Closed: see `reach`.
    """
    context = load_revoked(ssl.create_default_context(cafile=str(certificate.with_name(ROOT))), certificate.parent)
    context.check_hostname = False
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    where = f"{project.host}:{project.port}"
    try:
        with reach(project, seconds) as plain, context.wrap_socket(plain) as secure:
            secure.sendall(_ASK)
            accepted = secure.recv(1) != b""
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _REVOKED:
            raise UserError(
                f"the authority has revoked the certificate of the server on {where}. Have the server's owner make a "
                "new key, and have that signed.",
                code=REFUSED,
            ) from error
        if error.verify_code in _DATES:
            raise UserError(
                f"the certificate of the server on {where} is not valid by this machine's clock, {_now()} "
                f"({error.verify_message}). Correct the clock, or ask the project's operator for new certificates.",
                code="certificate.not-valid",
            ) from error
        raise UserError(
            f"the server on {where} is of another project than {certificate.parent}: {ROOT} there did not sign its "
            f"certificate ({error.verify_message}). {_KIT}, or correct the address in {FILE}."
        ) from error
    except TimeoutError:
        return  # no answer in time: the certificates' state is unknown
    except (ssl.SSLError, ConnectionError) as error:
        if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
            raise UserError(f"what answers on {where} is not a server of a project. Correct {FILE}.") from error
        accepted = False
    if not accepted:
        raise UserError(
            f"the server on {where} ends the connection when it sees {certificate}, which is valid by this machine's "
            f"clock, {_now()}. {_KIT}, correct the server's clock, or the address in {FILE}; or, if the authority has "
            f"revoked it, make a new key: `fedweave sites request {certificate.parents[1]}`. A server that has just "
            "been started also ends connections: then try again.",
            code=_ENDED,
        )


def greet_patiently(certificate: Path, project: Project, seconds: float = STARTING) -> None:
    """`greet`, again for `seconds` while the server ends the connection, as one does that is starting."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return greet(certificate, project)
        except UserError as error:
            if error.code != _ENDED or time.monotonic() >= deadline:
                raise
            time.sleep(_POLL)


def rejection(folder: Path, project: Project) -> str:
    """Why the server rejects the member in `folder`; "" if it does not, or does not answer."""
    try:
        greet(check_startup(folder), project)
    except Closed:
        return ""
    except UserError as error:
        return str(error)
    return ""


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


@contextmanager
def administer(project: Path, seconds: float = 15.0) -> Iterator[Admin]:
    """A session with the project's server, after both sides have accepted each other's certificates."""
    if not (project / ADMIN / "startup").is_dir():
        raise UserError(f"{project} is not a project: it has no {ADMIN}/startup. Make one with `fedweave sites init`.")
    try:
        greet_patiently(check_startup(project / ADMIN), read_project(project))
    except NoHost:
        raise
    except Closed as error:
        raise FedweaveError(
            f"{error}. Start it on its machine: `fedweave sites start {project} --only server`.",
            code="host.no-connection",
        ) from error
    with log_in(project, seconds) as admin:
        yield admin

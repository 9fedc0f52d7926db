"""Whether a project's server and a folder take each other's certificates, asked before NVFlare is, which says only that
there is no connection, and that to the site's log alone."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from fedweave.deploy.flare.server import session
from fedweave.deploy.flare.wire.requests import ADMIN
from fedweave.deploy.flare.wire.revoked import load_revoked
from fedweave.deploy.sites.processes import ROOT, check_startup
from fedweave.deploy.sites.project import FILE, Project, read_project
from fedweave.errors import FedweaveError, UserError
from fedweave.privacy.aggregation import REFUSED

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
        raise NoHost(
            f"{FILE}: {project.host!r} is no name of a machine here ({getattr(error, 'strerror', error)}). Correct it, "
            "or this machine's names (/etc/hosts).",
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
        if getattr(error, "reason", None) == "WRONG_VERSION_NUMBER":
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
def administer(project: Path, seconds: float = 15.0) -> Iterator[session.Admin]:
    """See `session.administer`.

    Raises:
        UserError: the administrator's certificate is not valid, or the server does not take it. FedweaveError: nobody
            takes connections at the server's address.
    """
    if (project / ADMIN / "startup").is_dir():
        try:
            greet(check_startup(project / ADMIN), read_project(project))
        except NoHost:
            raise
        except Closed as error:
            raise FedweaveError(
                f"{error}. Start it on its machine: `fedweave sites start {project} --only server`.",
                code="host.no-connection",
            ) from error
    with session.administer(project, seconds) as admin:
        yield admin

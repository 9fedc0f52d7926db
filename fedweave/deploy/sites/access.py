"""The administrator's session with a project's server, after a look at what would bar it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedweave.deploy.flare import session
from fedweave.deploy.flare.requests import ADMIN
from fedweave.deploy.sites.handshake import Closed, NoHost, greet
from fedweave.deploy.sites.project import read_project
from fedweave.deploy.sites.startup import check_startup
from fedweave.errors import FedweaveError


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
                f"{error}. Start it on its machine: `fedweave sites start {project} --only server`."
            ) from error
    with session.administer(project, seconds) as admin:
        yield admin

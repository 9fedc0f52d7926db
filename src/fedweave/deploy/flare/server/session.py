"""The administrator's side: a job of configuration alone, who is connected, watching it, and fetching what it left."""

import contextlib
import io
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nvflare.collab.runtime.controller import CollabController
from nvflare.collab.runtime.executor import CollabExecutor
from nvflare.fuel.flare_api.api_spec import InvalidTarget, NoClientsAvailable
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from nvflare.job_config.api import FedJob

from fedweave.core.records import Record
from fedweave.deploy.flare.server.provision import USER
from fedweave.deploy.flare.server.server import RESULT, TOPIC, Server
from fedweave.deploy.flare.site.site import Site
from fedweave.deploy.flare.wire.requests import ADMIN
from fedweave.errors import FedweaveError
from fedweave.experiment.config import Document, dumps

_POLL = 0.5  # seconds between two looks at a job
_COMMAND_SECONDS = 10.0


class Admin:
    """A session with the project's server."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def listed(self) -> set[str]:
        """Names of the sites in the server's own list, which keeps dead ones for half a minute."""
        with _asking():
            return {site.name for site in self._session.get_connected_client_list()}

    def connected(self, among: Sequence[str] | None = None) -> list[str]:
        """Names of the sites, or of those `among` them, that answer the server now."""
        listed = self.listed()
        with _asking():
            asked = sorted(listed if among is None else listed.intersection(among))
            try:
                told = self._session.get_client_job_status(asked) if asked else []
            except (InvalidTarget, NoClientsAvailable):  # the list has been put right since
                told = []
        return sorted({site["client_name"] for site in told or [] if site["status"] != "no_reply"})

    def wait_for(self, sites: Sequence[str], seconds: float) -> list[str]:
        """Wait until `sites` are connected, `seconds` at most; returns those that are."""
        deadline = time.monotonic() + seconds
        while True:
            connected = self.connected()
            here = [site for site in sites if site in connected]
            if len(here) == len(sites) or time.monotonic() >= deadline:
                return here
            time.sleep(_POLL)

    def submit(self, run: str, sites: Sequence[str], document: Document, predict: str = "") -> str:
        """Start a job of the run (see `server.Server`); returns its number."""

        with tempfile.TemporaryDirectory() as folder, _asking():
            return str(self._session.submit_job(str(write_job(Path(folder), run, sites, document, predict))))

    def progress(self, job: str, stop: bool = False) -> Record | None:
        """How far a running job is (`server.Progress`), asking it to stop after the round; None if it cannot say."""
        try:
            with _quiet():
                return dict(self._session.do_app_command(job, TOPIC, {"stop": stop}))
        except Exception:  # not started, just ended, or on its way: NVFlare raises various kinds
            return None

    def over(self, job: str) -> str | None:
        """NVFlare's word for how the job ended; None while it has not."""
        with _asking():
            status = self._session.get_job_status(job)
        return str(status) if str(status).startswith("FINISHED") else None

    def abort(self, job: str) -> None:
        """End a job at once."""
        with contextlib.suppress(Exception), _quiet():
            self._session.abort_job(job)

    def fetch(self, job: str, into: Callable[[Path], None]) -> Record | None:
        """Call `into` with the folder of what a job left; returns its last progress, None if it left none."""
        with tempfile.TemporaryDirectory() as folder:
            with _asking():
                where = Path(self._session.download_job_result(job, folder))
            found = sorted(where.rglob(f"{RESULT}/progress.json"))
            if not found:
                return None
            into(found[0].parent)
            return dict(json.loads(found[0].read_text()))


@contextmanager
def logged_in(project: Path, seconds: float) -> Iterator[Admin]:
    """A session with the server of the project in `project`, by the administrator's folder there.

    Raises:
        FedweaveError: the server does not answer.
    """
    try:
        with _quiet():
            session = new_secure_session(USER, str((project / ADMIN).resolve()), timeout=seconds)
    except Exception as error:
        raise FedweaveError(
            f"the server of {project} does not answer ({error}). Start it with `fedweave sites start {project}`."
        ) from error
    try:
        session.set_timeout(_COMMAND_SECONDS)
        yield Admin(session)
    finally:
        with contextlib.suppress(Exception), _quiet():
            session.close()


@contextmanager
def _asking() -> Iterator[None]:
    """Ask the server something.

    Raises:
        FedweaveError: it does not answer, or refuses.
    """
    try:
        with _quiet():
            yield
    except FedweaveError:
        raise
    except Exception as error:  # NVFlare's errors have no base of their own
        raise FedweaveError(
            f"the server does not answer or refuses ({type(error).__name__}: {error}). See `fedweave sites status`; "
            "a run continues with --resume."
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """NVFlare's client prints what it does."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


SYNC_SECONDS = 120  # for all sites' processes to start


def write_job(folder: Path, run: str, sites: Sequence[str], document: Document, predict: str = "") -> Path:
    """Write a job's folder below `folder`; it names classes of the installed packages and holds no code."""
    job = FedJob(name=f"fedweave-{run}", min_clients=1)
    job.job.set_app_packages(["fedweave", "nvflare"])
    server = job.to_server(Server(run, sites, dumps(document), predict), "_server")
    job.to_server(CollabController(server_obj_id=server, sync_task_timeout=SYNC_SECONDS), id="controller")
    site = job.to_clients(Site(), id="_client")
    job.to_clients(CollabExecutor(client_obj_id=site), id="executor", tasks=["*"])
    job.export_job(str(folder))
    result: Path = folder / job.name
    return result

"""The administrator's side of the server: submit a job, which holds only configuration, watch it, fetch its results."""

import contextlib
import io
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from nvflare.collab.runtime.controller import CollabController
from nvflare.collab.runtime.executor import CollabExecutor
from nvflare.fuel.flare_api.api_spec import InvalidTarget, NoClientsAvailable, NoConnection, SessionClosed
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from nvflare.job_config.api import FedJob

from fedweave.core.types import Record
from fedweave.errors import FedweaveError
from fedweave.experiment.config import Document, dumps
from fedweave.sites.flare.gatekeeper import JOB
from fedweave.sites.flare.provision import USER
from fedweave.sites.flare.requests import ADMIN
from fedweave.sites.flare.server import RESULT, TOPIC, Server
from fedweave.sites.flare.site import Site

_POLL = 0.5  # seconds between two looks at a job


_COMMAND_SECONDS = 10.0


_OVER = "FINISHED"  # the prefix of NVFlare's states of jobs that have ended


ABORTED = f"{_OVER}:ABORTED"  # the state of a job that `Admin.abort` has ended


class ServerAway(FedweaveError):
    """The server does not answer: its process or the connection to it is gone."""


class JobEntry(NamedTuple):
    """A job in the server's list: its number, its run's number, NVFlare's state, and the time of submission."""

    job: str
    run: str
    status: str
    began: str

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self.status.startswith(_OVER)


class Admin:
    """A session with the project's server."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def close(self) -> None:
        """End the session."""
        with contextlib.suppress(Exception), _quiet():
            self._session.close()

    def reconnect(self, project: Path, seconds: float) -> None:
        """Open a new session with a server that was away; waits for it at most `seconds`.

        Raises:
            ServerAway: the server is still away after that time.
        """
        self.close()
        deadline = time.monotonic() + seconds
        while True:
            try:
                self._session = _session(project, min(_COMMAND_SECONDS, max(1.0, deadline - time.monotonic())))
            except ServerAway:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_POLL)
            else:
                return

    def site_names(self) -> set[str]:
        """Names of the sites in the server's own list, which keeps dead ones for half a minute."""
        with _asking():
            return {site.name for site in self._session.get_connected_client_list()}

    def answering_sites(self, among: Sequence[str] | None = None) -> list[str]:
        """Names of the sites that answer the server now; with `among`, only of these sites."""
        listed = self.site_names()
        with _asking():
            names = sorted(listed if among is None else listed.intersection(among))
            try:
                statuses = self._session.get_client_job_status(names) if names else []
            except (InvalidTarget, NoClientsAvailable):  # the list has been put right since
                statuses = []
        return sorted({site["client_name"] for site in statuses or [] if site["status"] != "no_reply"})

    def wait_for(self, sites: Sequence[str], seconds: float) -> list[str]:
        """Wait until `sites` are connected, at most `seconds`; returns the connected ones.

        Raises:
            FedweaveError: the server does not answer at the end of that time, or rejects the request.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                connected = self.answering_sites()
            except ServerAway:
                if time.monotonic() >= deadline:
                    raise
                connected = []
            here = [site for site in sites if site in connected]
            if len(here) == len(sites) or time.monotonic() >= deadline:
                return here
            time.sleep(_POLL)

    def submit(self, run: str, sites: Sequence[str], document: Document, predict: str = "") -> str:
        """Start a job of the run (see `server.Server`); returns its number."""

        with tempfile.TemporaryDirectory() as folder, _asking():
            return str(self._session.submit_job(str(write_job(Path(folder), run, sites, document, predict))))

    def progress(self, job: str, stop: bool = False) -> Record | None:
        """The progress of a running job (`server.Progress`); None if it does not answer. stop: ask it to stop after the
        round."""
        try:
            with _quiet():
                return dict(self._session.do_app_command(job, TOPIC, {"stop": stop}))
        except Exception:  # not started, just ended, or on its way: NVFlare raises various kinds
            return None

    def over(self, job: str) -> str | None:
        """NVFlare's final state of the job; None while the job has not ended."""
        with _asking():
            status = self._session.get_job_status(job)
        return str(status) if str(status).startswith(_OVER) else None

    def jobs(self, last: int = 0) -> list[JobEntry]:
        """The `last` submitted jobs, or all for 0, the earliest first."""
        with _asking():
            records = self._session.list_jobs(detailed=True, limit=last)
        return [_read_job(meta) for meta in records]

    def abort(self, job: str) -> None:
        """End a job at once."""
        with contextlib.suppress(Exception), _quiet():
            self._session.abort_job(job)

    def fetch(self, job: str, into: Callable[[Path], None]) -> Record | None:
        """Call `into` with the folder of a job's results; returns its last progress, or None if it has no results."""
        with tempfile.TemporaryDirectory() as folder:
            with _asking():
                where = Path(self._session.download_job_result(job, folder))
            files = sorted(where.rglob(f"{RESULT}/progress.json"))
            if not files:
                return None
            into(files[0].parent)
            return dict(json.loads(files[0].read_text()))


def _read_job(meta: Record) -> JobEntry:
    job, name, status, at = (meta.get(key) for key in ("job_id", "name", "status", "submit_time"))
    began = f"{datetime.fromtimestamp(float(at), UTC):%Y-%m-%d %H:%M:%S} UTC" if at else "unknown time"
    return JobEntry(str(job), str(name or "").removeprefix(JOB), str(status), began)


@contextmanager
def log_in(project: Path, seconds: float) -> Iterator[Admin]:
    """A session with the server of the project in `project`, with the administrator's certificate there.

    Raises:
        FedweaveError: the server does not answer.
    """
    admin = Admin(_session(project, seconds))
    try:
        yield admin
    finally:
        admin.close()


def _session(project: Path, seconds: float) -> Session:
    try:
        with _quiet():
            session = new_secure_session(USER, str((project / ADMIN).resolve()), timeout=seconds)
    except Exception as error:
        raise ServerAway(
            f"the server of {project} does not answer ({error}). Start it with `fedweave sites start {project}`."
        ) from error
    session.set_timeout(_COMMAND_SECONDS)
    return session


@contextmanager
def _asking() -> Iterator[None]:
    """Translate NVFlare's errors of a request to the server.

    Raises:
        FedweaveError: the server does not answer, or rejects the request.
    """
    try:
        with _quiet():
            yield
    except FedweaveError:
        raise
    except Exception as error:  # NVFlare's errors have no base of their own
        kind = ServerAway if isinstance(error, NoConnection | SessionClosed | OSError) else FedweaveError
        raise kind(
            f"the server does not answer or refuses ({type(error).__name__}: {error}). See `fedweave sites status`; "
            "a run continues with --resume."
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what NVFlare's client prints."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


SYNC_SECONDS = 120  # for all sites' processes to start


def write_job(folder: Path, run: str, sites: Sequence[str], document: Document, predict: str = "") -> Path:
    """Write a job's folder below `folder`. The job names classes of the installed packages and holds no code."""
    job = FedJob(name=f"{JOB}{run}", min_clients=1)
    job.job.set_app_packages(["fedweave", "nvflare"])
    server = job.to_server(Server(run, sites, dumps(document), predict), "_server")
    job.to_server(CollabController(server_obj_id=server, sync_task_timeout=SYNC_SECONDS), id="controller")
    site = job.to_clients(Site(), id="_client")
    job.to_clients(CollabExecutor(client_obj_id=site), id="executor", tasks=["*"])
    job.export_job(str(folder))
    result: Path = folder / job.name
    return result

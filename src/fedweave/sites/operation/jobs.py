"""The commands `fedweave sites jobs|abort`: list the server's jobs, and end a run's jobs."""

import time
from dataclasses import dataclass
from pathlib import Path

from fedweave.core.text import printable
from fedweave.core.types import Record
from fedweave.errors import FedweaveError, UserError
from fedweave.experiment.runs.files import RUN
from fedweave.sites.flare.admin import JobEntry
from fedweave.sites.operation.project import administer
from fedweave.sites.operation.running import number_of

LAST = 20  # number of jobs in the list
_POLL = 0.5
_STATES = {"SUBMITTED": "waiting", "APPROVED": "waiting", "DISPATCHED": "starting", "RUNNING": "running"}
# For NVFlare, a failed or stopped run has "ended", too.
_ENDS = {"COMPLETED": "ended", "ABORTED": "aborted", "ABNORMAL": "interrupted"}


@dataclass(frozen=True)
class Job:
    """A job of a run. reached: its progress (`sites.flare.server.Progress`), None if it is unknown."""

    listed: JobEntry
    reached: Record | None = None

    @property
    def state(self) -> str:
        """The job's state in one word."""
        if self.reached is not None:
            return str(self.reached["status"])
        before, _, end = self.listed.status.partition(":")
        return _ENDS.get(end, "failed") if end else _STATES.get(before, before.lower())

    def line(self) -> str:
        """A line of text for users."""
        reached = self.reached or {}
        rounds = f"round {reached['round']} of {reached['rounds']}" if reached.get("rounds") else ""
        missing = ", ".join(f"{site} ({why})" for site, why in (reached.get("lost") or {}).items())
        details = (rounds, missing and f"missing: {missing}", str(reached.get("error") or ""))
        about = (f"run {self.listed.run}", self.state, *filter(None, details), f"job {self.listed.job}")
        return printable(f"{self.listed.began}  {'; '.join(about)}")


def jobs(project: Path, results: bool = False, last: int = LAST) -> list[Job]:
    """The `last` jobs of a project's server, the earliest first, with the progress of running jobs.

    results: also fetch the results of ended jobs, for their progress.

    Raises:
        UserError, FedweaveError: the server cannot be reached; see `administer`.
    """
    entries = list[Job]()
    with administer(project) as admin:
        for entry in admin.jobs(last):
            reached = None
            if not entry.over:
                reached = admin.progress(entry.job)
            elif results:
                reached = admin.fetch(entry.job, lambda folder: None)
            entries.append(Job(entry, reached))
    return entries


def abort(project: Path, named: str, seconds: float = 30.0) -> list[JobEntry]:
    """End the jobs of a run at once, in the middle of a round. Saved checkpoints stay at the server and sites.

    named: the run's number or directory, or the job's number. seconds: time for the server to end them. Returns the
    ended jobs.

    Raises:
        UserError: there is no such running job. FedweaveError: the server cannot be reached, or has not ended one in
            time.
    """
    number = number_of(Path(named)) if (Path(named) / RUN).exists() else named
    with administer(project) as admin:
        matching = [each for each in admin.jobs() if number in (each.job, each.run)]
        alive = [each for each in matching if not each.over]
        if not alive:
            why = "has ended already" if matching else "is none that the server knows"
            raise UserError(
                f"{named}: the job {why}. `fedweave sites jobs {project}` lists runs and jobs.",
                code="job.over" if matching else "job.unknown",
            )
        deadline = time.monotonic() + seconds
        for job in alive:
            admin.abort(job.job)
        while True:
            unfinished = [job.job for job in alive if admin.over(job.job) is None]
            if not unfinished:
                return alive
            if time.monotonic() >= deadline:
                raise FedweaveError(
                    f"the server has not ended {', '.join(unfinished)} within {seconds:g} s. Look at its fedweave.log, "
                    f"and try again, or restart it: `fedweave sites stop {project} --only server`.",
                    code="job.alive",
                )
            time.sleep(_POLL)

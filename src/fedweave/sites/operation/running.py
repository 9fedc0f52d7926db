"""A run on the sites of a project: one NVFlare job, and another one each time a lost site is back."""

import filecmp
import json
import math
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from fedweave.core.algorithm import capabilities
from fedweave.core.types import Record
from fedweave.errors import FedweaveError, UserError, listed
from fedweave.experiment.config import Config, to_toml
from fedweave.experiment.runs.checkpoint import Checkpoint, When
from fedweave.experiment.runs.files import (
    CHECKPOINT,
    CONFIG,
    EARLIER_LEDGER,
    LEDGER,
    METRICS,
    PARTITION,
    PREDICTIONS,
    RUN,
    SUMMARY,
    damage_error,
    lock,
    read_summary,
    remove_run,
    write,
)
from fedweave.experiment.runs.resuming import check_replaceable, examine, recover, replacing
from fedweave.experiment.runs.trained import finished_config, load_checkpoint, saved_round
from fedweave.sites.flare.admin import ABORTED, Admin, ServerAway
from fedweave.sites.flare.folder import LOG, RUNS
from fedweave.sites.flare.link import ABSENT
from fedweave.sites.flare.predicted import predicting_sites
from fedweave.sites.flare.provision import is_name
from fedweave.sites.flare.requests import ADMIN, SERVER
from fedweave.sites.operation.project import STATUS, WAITING, Project, administer, read_project

FILES = (CONFIG, PARTITION, METRICS, LEDGER, EARLIER_LEDGER, CHECKPOINT, SUMMARY)
START = "Start them with `fedweave sites start`; `fedweave sites check` on their machines finds what stops them"
_POLL = 0.5

Notify = Callable[[Record], None]


def run(
    config: Config,
    project: Path,
    directory: Path,
    resume: bool,
    notify: Notify,
    patience: float = 60.0,
    overwrite: bool = False,
    without: Collection[str] = (),
) -> Record:
    """Run `config` at the sites of `project` and bring the run's files into `directory`; returns its summary.

    notify: called with every report of progress, of missing sites, and of a job's end. patience: seconds to wait for
    sites. overwrite: replace the run in `directory`; if the new run ends before it has saved a round, the old one is
    restored. without: sites that take no part.
    """
    now = read_project(project)
    earlier = tuple(sites_of(directory)) if resume else ()
    about = replace(now, sites=earlier or tuple(site for site in now.sites if site not in without))
    recover(directory)
    if overwrite:
        check_replaceable(directory)
    else:
        summary = examine(config, directory, resume)
        if summary:
            return summary
    start = _saved_round(directory) if resume else 0
    news = ProgressFile(notify, project, directory, start, config.general.rounds, config.engine.values["wait"])
    with administer(project) as admin, lock(directory), news:
        if resume or overwrite:
            _end_earlier(admin, directory, news)
        with replacing(directory) if overwrite else nullcontext():
            number = _run_number(project, about, directory, resume)
            outage = Outage(config.engine.values["wait"], directory, set(about.sites) - set(now.sites))
            follow = ""
            while True:
                try:
                    return _run_jobs(admin, config, about, number, project, directory, news, patience, outage, follow)
                except ServerAway as error:
                    remaining = outage.remaining()
                    if not remaining:
                        raise
                    news({"status": "no-server", "sites": [], "seconds": remaining, "error": str(error)})
                    admin.reconnect(project, remaining)
                    follow = _running_job(admin, directory)
                    if not follow:
                        _end_earlier(admin, directory, news)


class ProgressFile:
    """Passes the news of a run on to `notify`, and keeps for `fedweave sites status` how far the run is, or whom it
    waits for. A run that ends while it waits is kept as stopped or failed.

    saved, rounds: of the run in `directory`, before the first news. wait: [engine] wait.
    """

    def __init__(self, notify: Notify, project: Path, directory: Path, saved: int, rounds: int, wait: float) -> None:
        self._notify, self._path, self._wait = notify, project / ADMIN / STATUS, wait
        self._last: Record = {"round": saved, "rounds": rounds, "out": str(directory.resolve())}
        self._open = False  # whether what is kept says that the run goes on without a job that reports

    def __call__(self, now: Record) -> None:
        """Receive a job's progress, or a message on the sites: with the seconds for which the run waits for them."""
        if "sites" not in now:
            self._last |= now
            if now["status"] == "failed" and now.get("away") and self._wait:  # before its processes have ended
                self._keep(status=WAITING, waiting=now["away"], deadline=time.time() + self._wait)
            else:
                self._keep()
        elif "seconds" in now:
            deadline = time.time() + now["seconds"]
            self._keep(status=WAITING, waiting=now["sites"] or [SERVER], deadline=deadline)
        elif now["status"] == "submitted":
            self._keep(status="starting", waiting=())
        self._notify(now)

    def __enter__(self) -> None:
        """Nothing is kept before the first news."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None and self._open:
            status = "failed" if isinstance(error, FedweaveError) else "stopped"
            self._keep(status=status, waiting=(), error=str(error))

    def _keep(self, **changes: object) -> None:
        self._open = changes.get("status") in (WAITING, "starting")
        status = {key: value for key, value in self._last.items() if key != "recent"}
        self._path.write_text(json.dumps({**status, **changes, "at": time.time()}))


class Outage:
    """How long a run still waits for sites or a server that do not answer. The time restarts only with a newly saved
    round, so that a process that dies again and again does not hold a run for ever.

    seconds: [engine] wait. directory: the run's directory. removed: sites of the run that have left the project, for
    which no run waits.
    """

    def __init__(self, seconds: float, directory: Path, removed: Collection[str] = ()) -> None:
        self._seconds, self._directory, self.removed = seconds, directory, frozenset(removed)
        self._round, self._end = -1, math.inf
        self._away = set[str]()  # the sites that were lost since the last saved round

    def remaining(self) -> float:
        """The seconds left; 0 if the run does not wait, or does not wait any more."""
        self._look()
        return max(0.0, self._end - time.monotonic()) if self._seconds else 0.0

    def check_lost(self, away: Sequence[str]) -> None:
        """Note which sites are lost now."""
        self._look()
        twice = [site for site in away if site in self._away]
        if twice:
            raise FedweaveError(
                f"{listed(twice)}: lost twice in round {self._round + 1}, so the run does not wait any more. Have the "
                f"owner look into the site's {LOG}, and then continue with --resume.",
                code="job.lost-twice",
            )
        self._away |= {*away}

    def _look(self) -> None:
        reached = _saved_round(self._directory)
        if reached > self._round:
            self._round, self._end = reached, time.monotonic() + self._seconds
            self._away = set()


def _run_jobs(
    admin: Admin,
    config: Config,
    about: Project,
    number: str,
    project: Path,
    directory: Path,
    notify: Notify,
    patience: float,
    outage: Outage,
    follow: str = "",
) -> Record:
    """Run one job after the other until the run is done; returns its summary. follow: the number of a job of the run
    that the server has already, to begin with."""
    lost = set[str]()
    write(directory / CONFIG, lambda file: file.write(to_toml(config.plain()).encode()))
    if follow and not _starts_within(admin, follow, patience):
        notify({"status": "ending", "sites": []})
        _end(admin, follow, 0.0)
        follow = ""
    while True:
        if follow:
            here, job, follow = list(about.sites), follow, ""
            notify({"status": "taken-up", "sites": []})
        else:
            here = _wait_for_sites(admin, about, project, notify, patience, outage, lost)
            job = admin.submit(number, about.sites, config.plain())
        last = _watch(admin, config, set(here), job, directory, notify)
        notify(last)
        if last["status"] == "done":
            return read_summary(directory / SUMMARY)
        if last["status"] != "stopped":
            waits = last.get("away") and not outage.removed.intersection(last["away"])
            seconds = outage.remaining() if waits else 0.0
            if seconds:
                outage.check_lost(last["away"])
                notify({"status": "paused", "sites": list(last["away"]), "seconds": seconds})
                answering = admin.wait_for(last["away"], seconds)
                if len(answering) == len(last["away"]):
                    lost = set(answering)
                    continue
            message = (last["error"] or "the job was ended") + _resume_hint(last, directory)
            if not (directory / CHECKPOINT).exists():  # nothing to resume: free the directory
                remove_run(directory)
            raise (UserError if last.get("mistake") else FedweaveError)(message, code=last.get("code", ""))
        lost = set(last["lost"] or {})


def _starts_within(admin: Admin, job: str, seconds: float) -> bool:
    """Whether a job of the server runs, or is over, within `seconds`. The copy of an interrupted job waits for all of
    its sites, also for those that the run could do without."""
    deadline = time.monotonic() + seconds
    while admin.progress(job) is None and admin.over(job) is None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL)
    return True


def _wait_for_sites(
    admin: Admin, about: Project, project: Path, notify: Notify, patience: float, outage: Outage, lost: Collection[str]
) -> list[str]:
    """The sites that are connected before a job; waits `patience` seconds at most for the others. lost: sites that an
    earlier job has lost."""
    listed = admin.site_names()
    required = [site for site in about.sites if site not in outage.removed]
    missing = [site for site in required if site not in listed]
    if missing:
        notify({"status": "waiting", "sites": missing, "seconds": patience})
    here = admin.wait_for(required, patience)
    back = set(lost).intersection(here)
    if back:
        notify({"status": "rejoined", "sites": sorted(back)})
    absent = [site for site in about.sites if site not in here]
    if absent:
        notify({"status": "absent", "sites": absent})
    if not here:
        raise FedweaveError(f"no site of {project} is connected. {START}.", code="job.no-site")
    notify({"status": "submitted", "sites": here})
    return here


def _resume_hint(last: Record, directory: Path) -> str:
    """A sentence on the round from which the run can continue after a failed job, by its checkpoint: if the server's
    disk is full, a round can end without being saved."""
    done = _saved_round(directory) if last.get("round") else 0
    return f" What round {done} reached is saved; continue with the same command and --resume." if done else ""


def _saved_round(directory: Path) -> int:
    """The round of the run's checkpoint, 0 without one."""
    path = directory / CHECKPOINT
    return Checkpoint.load(path).round if path.exists() else 0


def _run_number(project: Path, about: Project, directory: Path, resume: bool) -> str:
    if resume and (directory / RUN).exists():
        return number_of(directory)
    number = secrets.token_hex(8)
    _write_run(directory, {"run": number, "sites": list(about.sites), "project": str(project.resolve())})
    return number


def number_of(directory: Path) -> str:
    """The number of the run in `directory`.

    Raises:
        FedweaveError: its run.json is damaged.
    """
    try:
        return str(_read_run(directory)["run"])
    except KeyError as error:
        raise damage_error(directory / RUN, "it names no run") from error


def sites_of(directory: Path) -> list[str]:
    """The sites of the run in `directory`; [] without a run.json.

    Raises:
        FedweaveError: that is damaged.
    """
    sites = _read_run(directory).get("sites", [])
    if not isinstance(sites, list) or not all(map(is_name, sites)):
        raise damage_error(directory / RUN, "its sites are not names that sites can have")
    return sites


def _read_run(directory: Path) -> Record:
    path = directory / RUN
    try:
        return dict(json.loads(path.read_text())) if path.exists() else {}
    except (ValueError, TypeError) as error:
        raise damage_error(path, str(error)) from error


def _write_run(directory: Path, content: Record) -> None:
    write(directory / RUN, lambda file: file.write(json.dumps(content).encode()))


def _end_earlier(admin: Admin, directory: Path, notify: Notify) -> None:
    """End the run's jobs and bring the last one's files. A job continues when its administrator is killed, and a second
    job at the same time would begin at an earlier round than the sites have reached."""
    run = _read_run(directory).get("run")
    with suppress(FedweaveError):
        for job in [each.job for each in admin.jobs() if each.run == run and not each.over]:
            notify({"status": "ending", "sites": []})
            _end(admin, job)
            admin.fetch(job, lambda folder: bring(folder, directory))


def _running_job(admin: Admin, directory: Path, seconds: float = 30.0) -> str:
    """The number of the run's job that continues at the server after the connection to it was lost; "" without one.

    If the server was started again, that is a copy of the interrupted job (`gatekeeper.restart_jobs`). It marks the
    interrupted one first, `seconds` after its start at most.
    """
    record = _read_run(directory)
    job, deadline = record.get("job"), time.monotonic() + seconds
    with suppress(FedweaveError):
        while job and admin.over(job) is None:
            if admin.progress(job) is not None:
                return str(job)
            if time.monotonic() >= deadline:
                return ""
            time.sleep(_POLL)
        going_on = [each.job for each in admin.jobs() if each.run == record.get("run") and not each.over]
        return going_on[-1] if going_on else ""
    return ""


def predict(
    project: Path, directory: Path, notify: Notify, model: str = "", patience: float = 60.0, when: When = "chosen"
) -> list[Path]:
    """Predict with the models of the finished run in `directory` at the sites of `project`. The parties of a vertical
    run predict jointly. In all other runs, each site predicts on its own with the `model` that it has or gets,
    "personal" by default. The run's ledger gets the messages, too. Returns the paths of the sites' predictions,
    relative to the project's folder; parties without labels have none."""
    about, config = read_project(project), finished_config(directory)
    about = replace(about, sites=tuple(sites_of(directory)) or about.sites)
    joint = capabilities(config.algorithm.kind).predicts
    if joint and model:
        raise UserError("the parties of a vertical run predict jointly; leave out --model.")
    if when == "best" and model == "trained":
        raise UserError("sites keep only the last result of their own training. Use --round last, or another --model.")
    if config.engine.name != "flare" or not (directory / RUN).exists():
        raise UserError(f"{directory} was not trained between sites; use fedweave predict {directory}.")
    when = saved_round(directory, when, model)
    load_checkpoint(directory, config).at(when)  # with the plug-ins that made it
    number = _run_number(project, about, directory, resume=True)
    with administer(project) as admin, lock(directory):
        _end_earlier(admin, directory, notify)
        here = set(admin.wait_for(about.sites, patience))
        absent = [site for site in about.sites if site not in here]
        if absent:
            raise FedweaveError(f"{', '.join(absent)}: not connected, and every site is needed. {START}.")
        notify({"status": "predicting", "sites": list(about.sites)})
        choice = f"{model or 'personal'}@{when}"
        job = admin.submit(number, about.sites, config.plain(), choice)
        last = _watch(admin, config, here, job, directory, notify)
        notify(last)
    if last["status"] != "done":
        raise (UserError if last.get("mistake") else FedweaveError)(last["error"] or "the job was ended")
    wrote = predicting_sites(config.algorithm.kind, Checkpoint.load(directory / CHECKPOINT).state, about.sites)
    return [Path(site) / RUNS / number / PREDICTIONS for site in wrote]


def _watch(admin: Admin, config: Config, here: set[str], job: str, directory: Path, notify: Notify) -> Record:
    """Watch a job of the run to its end, and bring its files. When a site that was lost, or was not `here`, is
    connected, ask the job to stop."""
    _write_run(directory, _read_run(directory) | {"job": job})
    stop, began, latest = False, time.monotonic(), Record()
    try:
        while True:
            ended = admin.over(job)
            if ended is not None:
                break
            now = admin.progress(job, stop)
            if now is not None:
                latest = now
                notify(now)
                due = time.monotonic() - began >= config.engine.values["rejoin_seconds"]
                stop = stop or (_is_back(admin, now["lost"] or {}, here) and due)
            time.sleep(_POLL)
    except KeyboardInterrupt:
        notify({**latest, "status": "stopping"})
        _end(admin, job)
        reached = admin.fetch(job, lambda folder: bring(folder, directory))
        if reached is not None:
            notify(reached)
        raise
    last = admin.fetch(job, lambda folder: bring(folder, directory))
    if ended == ABORTED and (last is None or last["status"] != "done"):  # its sites' silence is not an outage
        why = f"the job {job} was ended (`fedweave sites abort`)."
        return {**latest, **(last or {}), "status": "failed", "error": why, "away": (), "code": "job.aborted"}
    if last is None:
        raise FedweaveError(
            f"the job {job} ended without a result ({ended}). See the logs in the server's folder, and continue with "
            "--resume."
        )
    return last


def _is_back(admin: Admin, lost: dict[str, str], here: set[str]) -> bool:
    """Whether one of the `lost` sites is connected again. Removes sites from `here` that are not connected now.

    A site that stays connected without a part in the job has refused the job, and would refuse the next one.
    """
    connected = admin.answering_sites(sorted(lost)) if lost else []
    back = any(lost[site] != ABSENT or site not in here for site in connected)
    here -= lost.keys() - connected
    return back


def _end(admin: Admin, job: str, seconds: float = 60.0) -> None:
    """Stop the job after its round, or at once if that takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while admin.over(job) is None and time.monotonic() < deadline:
        admin.progress(job, True)
        time.sleep(_POLL)
    if admin.over(job) is None:
        admin.abort(job)


def bring(results: Path, directory: Path) -> None:
    """Copy a run's files from a job's `results`. Each file is replaced atomically; equal files keep their times."""
    for name in FILES:
        new, here = results / name, directory / name
        if new.exists() and not (here.exists() and filecmp.cmp(new, here, shallow=False)):
            with open(new, "rb") as source:
                write(here, partial(shutil.copyfileobj, source))

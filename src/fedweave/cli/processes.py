"""The commands of `fedweave sites` for processes and jobs: start, stop, status, alive, jobs, abort."""

import json
import sys
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedweave.experiment.config.sections import MAX_THREADS
from fedweave.sites.operation.alive import member_folders, process


class LogFormat(StrEnum):
    """The form of a member's log."""

    text = "text"
    json = "json"


Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The project's directory.")]
Only = Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="Only this one; repeatable.")]


def start(
    directory: Directory,
    only: Only = None,
    threads: Annotated[
        int,
        typer.Option(
            min=0, max=MAX_THREADS, metavar="N", help="Threads that each process may use; 0 leaves the default."
        ),
    ] = 0,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay until they end, and end them with this command.")
    ] = False,
    log_format: Annotated[
        LogFormat,
        typer.Option(help="Form of fedweave.log: text, or one JSON object a line, never with data."),
    ] = LogFormat.text,
) -> None:
    """Start the server and the sites whose folders are on this machine."""
    from fedweave.sites.flare.policy_names import read_checked
    from fedweave.sites.flare.sitefile import SITE_FILE
    from fedweave.sites.operation.certificates import check_startup
    from fedweave.sites.operation.processes import (
        attend,
        check_alive,
        check_metrics_port,
        check_port,
        members,
        wait_until_open,
    )
    from fedweave.sites.operation.project import Closed, greet, read_project

    project, here = read_project(directory), members(directory, tuple(only or ()))
    for member in here:  # before any of them is started
        if member.kind == "server":
            check_port(member, project.port)
        else:
            read_checked(member.folder / SITE_FILE)
        check_metrics_port(member)
        if member.pid() is None:
            check_startup(member.folder)
    for member in here:
        running = member.pid() is not None
        if member.kind == "client" and not running:
            with suppress(Closed):  # the server may be started later
                greet(check_startup(member.folder), project)
        state = "runs already, as process" if running else "process"
        typer.echo(f"{member.folder.name}: {state} {member.start(threads, log_format)}")
        if member.kind == "server":
            wait_until_open(member, project.host, project.port)
    check_alive(here)
    if foreground:
        attend(here)


def stop(directory: Directory, only: Only = None) -> None:
    """Stop the server and the sites on this machine."""
    from fedweave.sites.operation.processes import members

    for member in reversed(members(directory, tuple(only or ()))):
        typer.echo(f"{member.folder.name}: {'stopped' if member.stop() else 'was not running'}")


def status(
    directory: Directory,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")] = False,
    seconds: Annotated[
        float, typer.Option(min=0.5, metavar="N", help="Time limit of the server's answer in seconds.")
    ] = 5.0,
) -> None:
    """Show the processes of this machine, the progress of the run that is watched here, and the sites that answer the
    server. It usually takes about two seconds, at most --seconds. Exit code 1 if the server or a site does not answer,
    or does not run on the machine that has its folder."""
    from fedweave.sites.operation.project import read_project
    from fedweave.sites.operation.status import standing

    stdout = sys.stdout  # NVFlare's client, which may still run in another thread, has its own output hidden
    now = standing(directory, read_project(directory), seconds)
    for line in [json.dumps(now.plain())] if as_json else now.lines():
        typer.echo(line, file=stdout)
    if now.mistake is not None:
        raise now.mistake
    if now.dead:
        raise typer.Exit(1)


def alive(
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", help="The project's directory; this one.")] = Path(),
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this one; repeatable.")] = None,
) -> None:
    """Show which of the server and the sites of this machine run, for probes: it sends no request and takes a fraction
    of a second. Exit code 1 if one does not run."""
    running = {folder.name: process(folder) for folder in member_folders(directory, tuple(only or ()))}
    for name, pid in running.items():
        typer.echo(f"{name}: {'not running' if pid is None else f'process {pid}'}")
    if None in running.values():
        raise typer.Exit(1)


def jobs(
    directory: Directory,
    results: Annotated[
        bool, typer.Option("--results", help="Fetch the files of ended jobs, to show how and after which round.")
    ] = False,
) -> None:
    """List the server's last 20 jobs: start, run, state, and for running jobs the round and the missing sites. An
    experiment has several jobs if sites were lost and came back."""
    from fedweave.sites.operation import jobs as server_jobs

    for job in server_jobs.jobs(directory, results):
        typer.echo(job.line())


def abort(
    directory: Directory,
    name: Annotated[
        str, typer.Argument(metavar="RUN|JOB", help="The number of a run or job, or the directory of a run.")
    ],
) -> None:
    """End a run's job at once, also a job that no command follows any more. Ctrl-C in `fedweave sites run` lets it
    finish the round before; `--resume` there continues after the last saved round."""
    from fedweave.sites.operation import jobs as server_jobs

    for job in server_jobs.abort(directory, name):
        typer.echo(f"run {job.run}: job {job.job} is ended")

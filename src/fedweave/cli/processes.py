"""The commands of `fedweave sites` for processes and jobs (start, stop, status, jobs, abort), and for keys, made on
their machine, and their certificates (request, sign, accept, revoke, renew)."""

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from fedweave.cli.options import Loaded
from fedweave.core.text import counted
from fedweave.experiment.config.experiment import MOST_THREADS

if not Loaded.for_help:
    from fedweave.deploy.flare.admission import read_checked
    from fedweave.deploy.flare.sitefile import SITE_FILE
    from fedweave.deploy.sites.certificates import accept as accepted
    from fedweave.deploy.sites.certificates import check_startup
    from fedweave.deploy.sites.certificates import renew as renewed
    from fedweave.deploy.sites.certificates import request as asked
    from fedweave.deploy.sites.certificates import revoke as revoked
    from fedweave.deploy.sites.certificates import sign as signed
    from fedweave.deploy.sites.jobs import abort as aborted
    from fedweave.deploy.sites.jobs import jobs as listed
    from fedweave.deploy.sites.project import (
        Closed,
        attend,
        check_alive,
        check_metrics_port,
        check_port,
        greet,
        members,
        read_project,
        wait_until_open,
    )
    from fedweave.deploy.sites.status import standing


Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The project's directory.")]
Only = Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="Only this one; repeatable.")]


def start(
    directory: Directory,
    only: Only = None,
    threads: Annotated[
        int, typer.Option(min=0, max=MOST_THREADS, help="Threads that each process may use; 0 leaves the default.")
    ] = 0,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay until they end, and end them with this command.")
    ] = False,
) -> None:
    """Start the server and the sites whose folders are on this machine."""
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
        already = member.pid() is not None
        if member.kind == "client" and not already:
            with suppress(Closed):  # the server may be started later
                greet(check_startup(member.folder), project)
        typer.echo(f"{member.folder.name}: {'runs already, as ' * already}process {member.start(threads)}")
        if member.kind == "server":
            wait_until_open(member, project.host, project.port)
    check_alive(here)
    if foreground:
        attend(here)


def stop(directory: Directory, only: Only = None) -> None:
    """Stop the server and the sites on this machine."""
    for member in reversed(members(directory, tuple(only or ()))):
        typer.echo(f"{member.folder.name}: {'stopped' if member.stop() else 'was not running'}")


def status(
    directory: Directory,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")] = False,
    seconds: Annotated[float, typer.Option(min=0.5, help="Time limit of the server's answer in seconds.")] = 5.0,
) -> None:
    """Show the processes of this machine, the progress of the run that is watched here, and the sites that answer the
    server. It usually takes about two seconds, at most --seconds. Exit code 1 if the server or a site does not answer,
    or does not run on the machine that has its folder."""
    shown = sys.stdout  # NVFlare's client, which may still run in another thread, has its own output hidden
    now = standing(directory, read_project(directory), seconds)
    for line in [json.dumps(now.plain())] if as_json else now.lines():
        typer.echo(line, file=shown)
    if now.mistake is not None:
        raise now.mistake
    if now.dead:
        raise typer.Exit(1)


def jobs(
    directory: Directory,
    results: Annotated[
        bool, typer.Option("--results", help="Fetch the files of ended jobs, to show how and after which round.")
    ] = False,
) -> None:
    """List the server's last 20 jobs: start, run, state, and for running jobs the round and the missing sites. An
    experiment has several jobs if sites were lost and came back."""
    for job in listed(directory, results):
        typer.echo(job.line())


def abort(
    directory: Directory,
    named: Annotated[
        str, typer.Argument(metavar="RUN|JOB", help="The number of a run or job, or the directory of a run.")
    ],
) -> None:
    """End a run's job at once, also a job that no command follows any more. Ctrl-C in `fedweave sites run` lets it
    finish the round before; `--resume` there continues after the last saved round."""
    for job in aborted(directory, named):
        typer.echo(f"run {job.run}: job {job.job} is ended")


SiteFolder = Annotated[
    Path, typer.Argument(metavar="DIR/MEMBER", help="The site's, server's or administrator's folder.")
]
AuthorityFolder = Annotated[Path, typer.Argument(metavar="AUTHORITY", help="The authority's folder.")]


def request(site: SiteFolder) -> None:
    """Make a new key at a site or server, and a request for its certificate; the old key is used until `accept`."""
    path, fingerprint = asked(site)
    typer.echo(f"{path}: send it to the authority, and give its owner the key's fingerprint over another channel")
    typer.echo(fingerprint)


def sign(
    authority: AuthorityFolder,
    asked: Annotated[Path, typer.Argument(metavar="REQUEST", help="What `request` made at a site.")],
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="The certificate.")] = None,
    whose: Annotated[
        str, typer.Option("--for", metavar="NAME", help="Name of the server or administrator that the request is for.")
    ] = "",
) -> None:
    """Sign a request with the authority's key; no private key of the site is needed."""
    name, certificate, fingerprint = signed(authority, asked, whose)
    path = out or Path(f"{name}.crt")
    path.write_bytes(certificate)
    typer.echo(f"{path}: the certificate of {name}; send it back if this is the key's fingerprint there")
    typer.echo(fingerprint)


def accept(
    site: SiteFolder,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `sign`, `revoke` or `renew` made.")],
) -> None:
    """Install the authority's file: the certificate of the key that `request` made, a list of revoked certificates, or
    the authority's own new certificate. A process uses it from its next start on."""
    change = accepted(site, file)
    typer.echo(f"{site}: {file} is in use from the next `fedweave sites start` on")
    if change.revoked is not None:
        typer.echo(f"revoked by the authority: {counted(change.revoked, 'certificate')}")
    if change.expiry is not None:
        typer.echo(f"the authority's own certificate is valid until {change.expiry:%Y-%m-%d}")
    if change.mark is not None:
        typer.echo(
            f"Sites whose policy.members lists {site.resolve().name} need its new fingerprint there: {change.mark}"
        )


def revoke(
    authority: AuthorityFolder,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The member whose certificates are revoked.")],
    shown: Annotated[
        Path | None, typer.Option("--certificate", metavar="FILE", help="A certificate that an earlier version signed.")
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="The list; revoked.pem.")] = None,
) -> None:
    """Revoke all certificates that a member has had so far; writes the signed list for `accept` at server and sites."""
    count, revocation_list = revoked(authority, name, shown)
    path = out or Path("revoked.pem")
    path.write_bytes(revocation_list)
    typer.echo(f"{name}: {counted(count, 'certificate')} revoked; a key that it requests from now on can be signed")
    typer.echo(f"{path}: send it to all members; the server refuses {name} after it has accepted it and was restarted")


def renew(
    authority: AuthorityFolder,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="The certificate; rootCA.pem.")
    ] = None,
) -> None:
    """Renew the authority's own certificate, with its present key, so that all its signatures stay valid."""
    certificate, expiry = renewed(authority)
    path = out or Path("rootCA.pem")
    path.write_bytes(certificate)
    typer.echo(
        f"{path}: valid until {expiry:%Y-%m-%d}; send it to all members for `fedweave sites accept DIR/MEMBER {path}`"
    )

"""The commands `fedweave sites init|check|run|predict|export`; processes and jobs are in `processes`, members and
certificates in `members`."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from fedweave.cli.members import accept, add, encrypt, remove, renew, request, revoke, sign
from fedweave.cli.options import (
    CardFile,
    Chosen,
    Earlier,
    Experiment,
    FastRounds,
    Format,
    Kind,
    ModelRound,
    Out,
    Resume,
    Settings,
    Track,
    Trust,
    When,
    check_consent,
)
from fedweave.cli.processes import Directory, abort, alive, jobs, start, status, stop
from fedweave.core.text import counted, printable
from fedweave.core.types import Record
from fedweave.errors import UserError
from fedweave.experiment.config import read
from fedweave.metrics.selection import headline
from fedweave.sites.flare import require_nvflare

sites = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Run federations of real sites on NVIDIA FLARE.",
)


class OfSites(TyperCommand):
    """A command that needs NVFlare; its help does not."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command, if NVFlare is installed."""
        require_nvflare()
        return super().invoke(ctx)


SILENCE = 5.0  # seconds without news after which the command prints what it waits for
WORDS = {
    "waiting": "waiting until connected, {seconds:g} s at most",
    "submitted": "the job is submitted; waiting for its processes to start, which takes some ten seconds",
    "absent": "not connected; `fedweave sites check` on their machines looks for the reason",
    "rejoined": "back: going on with them",
    "predicting": "predicting",
    "paused": "no answer; the run waits {seconds:.0f} s at most and goes on by itself once they are back",
    "no-server": "the server does not answer; the run waits {seconds:.0f} s at most and goes on once it is back",
    "taken-up": "the server is back and goes on with the run",
    "ending": "an earlier job of this run is still at work; ending it after its round",
}


@sites.command(cls=OfSites)
def init(
    directory: Directory,
    names: Annotated[str, typer.Option("--sites", metavar="A,B,C", help="Names of the sites, in client order.")],
    split: Annotated[
        Path | None, typer.Option(metavar="CONFIG.toml", help="Partition this experiment's data among the sites.")
    ] = None,
    settings: Settings = None,
    vertical: Annotated[
        bool, typer.Option("--vertical", help="The sites hold different columns of the same nodes; sets policies.")
    ] = False,
    authority: Annotated[
        Path | None,
        typer.Option("--ca", metavar="FILE", help="Certificate of a company's own authority, which signs instead."),
    ] = None,
    host: Annotated[str, typer.Option(help="Name or address of the server's machine.")] = "localhost",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="PORT", help="Port that the server listens on; 0 takes a free one.")
    ] = 0,
) -> None:
    """Provision a project: server, sites and administrator with their certificates."""
    from fedweave.datasets.features import OVER_NODES
    from fedweave.sites.flare.provision import provision
    from fedweave.sites.flare.sitefile import SITE_FILE, starting, write_site_file
    from fedweave.sites.operation.experiments import hand_out, unknown_to_server
    from fedweave.sites.operation.experiments import split as cut
    from fedweave.sites.operation.issuing import company_root
    from fedweave.sites.operation.processes import free_port
    from fedweave.sites.operation.project import Project

    if vertical and split is not None:
        raise UserError(
            "--vertical writes policies for sites with their own tables; --split hands out a simulation's partition, "
            "with its policies. Leave one of them out.",
            code="user.sites",
        )
    project = Project(tuple(name.strip() for name in names.split(",")), host, port or free_port())
    chosen = None if split is None else read(split, settings or [])[0]
    parts = None if chosen is None else cut(chosen, project.sites)
    ca = b"" if authority is None else company_root(authority)
    provision(directory, project.sites, project.host, project.port, ca)
    project.save(directory)
    about, policy = starting(len(project.sites), vertical)
    for name in project.sites:
        write_site_file(directory / name / SITE_FILE, about, **policy)
    if parts is not None:
        hand_out(*parts, directory, project.sites, chosen)
    typer.echo(f"{directory}: {counted(len(project.sites), 'site')}, server on {project.host}:{project.port}")
    if authority is None:
        typer.echo(
            "sites' keys were made here, which is only for trials: between organizations every site makes its own, "
            "`fedweave sites request`"
        )
    else:
        typer.echo(
            f"no member has a certificate: each runs `fedweave sites request {directory}/MEMBER`, has request.pem "
            "signed by the owner of that authority, and runs `fedweave sites accept`"
        )
    if parts is not None and parts[1].names:
        pairs = ", ".join(f"{site} {client}" for site, client in zip(project.sites, parts[1].names, strict=True))
        typer.echo(f"each has the data of a client: {pairs}")
    how = None if chosen is None else chosen.data.values.get("normalize")
    if how in OVER_NODES:
        typer.echo(f"note: normalize = {how!r} scaled the data by numbers over all nodes before it was cut")
    lines = [] if chosen is None or parts is None else unknown_to_server(chosen, parts[0])
    if lines:
        typer.echo(f"note: the server knows no data; write into the experiment for sites: {', '.join(lines)}")


for command in (add, remove, request, sign, accept, revoke, renew, encrypt, start, stop, status, alive, jobs, abort):
    sites.command(cls=None if command is alive else OfSites)(command)


@sites.command(cls=OfSites)
def check(
    directory: Directory,
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG.toml]", help="The experiment to run.")] = None,
    settings: Settings = None,
    algorithm: Annotated[str | None, typer.Option(metavar="NAME", help="Run another algorithm.")] = None,
    trust: Trust = False,
) -> None:
    """Look for faults on this machine before anything is started: data, splits, policies, certificates, secrets, the
    server's port and address; exit code 2 if there are any."""
    from fedweave.sites.operation.checking import examine, versions
    from fedweave.sites.operation.experiments import with_engine
    from fedweave.sites.operation.findings import merge_equal
    from fedweave.sites.operation.project import read_project

    project = read_project(directory)
    if config is not None:
        check_consent(config, trust)
    chosen = None if config is None else read(config, with_engine(settings or []), algorithm)[0]
    findings = examine(directory, project, chosen)
    once = merge_equal(findings.facts), merge_equal(findings.notes), findings.faults
    for kind, found in zip(("", "note", "fault"), once, strict=True):
        for whose, what in found:
            typer.echo(printable(f"{kind:6} {whose}: {what}"))
    typer.echo(f"       {versions()}: the same fedweave, torch and NVFlare are needed on every machine")
    typer.echo(f"       this machine's clock: {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC")
    if findings.faults:
        raise UserError(
            f"{counted(len(findings.faults), 'fault')} in {directory}; correct them before `fedweave sites start`."
        )
    typer.echo("no fault found")


@sites.command(cls=OfSites)
def run(
    config: Experiment,
    project: Annotated[Path, typer.Option("--sites", metavar="DIR", help="The project's directory.")],
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="DIR2", help="Folder for the run's files.")] = None,
    settings: Settings = None,
    algorithm: Annotated[str | None, typer.Option(metavar="NAME", help="Run another algorithm.")] = None,
    resume: Resume = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that DIR2 holds.")] = False,
    init_from: Earlier = None,
    track: Track = None,
) -> None:
    """Run an experiment at the sites and bring its files back."""
    from fedweave.experiment.runs.resuming import terminable
    from fedweave.reports.terminal import screen, show_result
    from fedweave.reports.tracking import open_trackers
    from fedweave.sites.operation import running
    from fedweave.sites.operation.experiments import (
        Observed,
        check_experiment,
        for_sites,
        positive_by_number,
        with_engine,
        with_start_run,
    )
    from fedweave.sites.operation.processes import local_reasons
    from fedweave.sites.operation.project import read_project
    from fedweave.sites.operation.running import sites_of

    if resume and overwrite:
        raise UserError("--resume continues a run and --overwrite replaces it; choose one of them.")
    chosen, notes = read(config, with_engine(settings or []), algorithm)
    for note in notes:
        typer.echo(printable(f"note: {note}"), err=True)
    chosen = with_start_run(for_sites(chosen.plain()), init_from)
    directory = out or Path("runs") / f"{config.stem}-{chosen.algorithm.name}-s{chosen.general.seed}-sites"
    sites = (resume and tuple(sites_of(directory))) or read_project(project).sites
    check_experiment(chosen, sites)
    chosen = positive_by_number(chosen, project, sites)
    console = screen()
    tell, observed = Teller(), Observed(open_trackers(track or ()), chosen, directory)

    def progress(now: Record) -> None:
        tell(now)
        observed(now)

    try:
        with local_reasons(project), terminable():
            summary = running.run(chosen, project, directory, resume, progress, overwrite=overwrite)
    except KeyboardInterrupt:
        typer.echo(
            f"finished rounds are in {directory}; continue with the same command, --out {directory} and --resume"
        )
        raise
    finally:
        observed.end()
    show_result(console, summary, directory)


@sites.command(cls=OfSites)
def predict(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of the finished run.")],
    project: Annotated[Path, typer.Option("--sites", metavar="DIR", help="The project's directory.")],
    model: Chosen = None,
    when: When = ModelRound.chosen,
) -> None:
    """Predict at the sites with the models of a finished run.

    The sites read their data again: add new nodes, or edges if these are the examples, to their tables, with an empty
    split. Each site predicts on its own machine, with its own model or the model that the server sends, and nothing
    leaves it. The parties of a vertical run predict jointly. The predictions stay in the sites' folders, in a vertical
    run in the folders of sites with labels.
    """
    from fedweave.sites.operation import running
    from fedweave.sites.operation.processes import local_reasons

    with local_reasons(project):
        paths = running.predict(project, directory, Teller(), "" if model is None else str(model), when=when.value)
    for path in paths:
        typer.echo(f"predictions: {path} (in the project's folder, on the site's machine)")


@sites.command(cls=OfSites)
def forget(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of the finished run.")],
    project: Annotated[Path, typer.Option("--sites", metavar="DIR", help="The project's directory.")],
    client: Annotated[list[str] | None, typer.Option(metavar="NAME", help="A site that leaves; repeatable.")] = None,
    rounds: FastRounds = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR2", help="A new folder (RUN/forgotten/NUMBER).")
    ] = None,
) -> None:
    """Train a run again without what sites forget: from the start (exact), and on from its model (fast).

    Each site leaves out what its own site.toml lists (data.forget); the ids do not leave it. Then the owner of a site
    writes its signed report: `fedweave forget SITE`.
    """
    from fedweave.experiment.runs.resuming import terminable
    from fedweave.sites.operation.forgetting import rerun
    from fedweave.sites.operation.processes import local_reasons

    with local_reasons(project), terminable():
        result = rerun(project, directory, tuple(client or ()), rounds, out, Teller)
    for name, summary in result.summaries.items():
        typer.echo(f"{name}: {headline(summary['metrics'])}")
    for line in result.notes:
        typer.echo(printable(line))
    typer.echo(f"{result.directory}: both runs. At each site, `fedweave forget SITE` writes its report")


@sites.command(cls=OfSites)
def export(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of the finished run.")],
    site: Annotated[Path, typer.Option(metavar="DIR", help="The folder of a site that trained it.")],
    form: Kind = Format.safetensors,
    when: When = ModelRound.chosen,
    out: Out = None,
    card_file: CardFile = None,
) -> None:
    """Export the global model of a run between sites, as `fedweave export` does, with the names of columns and classes,
    and the scaling, of a site's own tables. Only these names and numbers leave the site's folder.
    """
    from fedweave.cli.export import new_folder, write_export
    from fedweave.experiment.runs.files import RUN
    from fedweave.export.card import read_card
    from fedweave.export.source import exportable, source
    from fedweave.sites.flare.predicted import before_of
    from fedweave.sites.operation.running import number_of

    exportable(directory)  # checked first: otherwise the error would name a site's tables for a fault of the run
    folder, settings = new_folder(directory, out, form), read_card(card_file)
    before = before_of(site, number_of(directory) if (directory / RUN).exists() else "")
    write_export(folder, directory, source(directory, None, None, before, when.value), form, None, settings)


class Teller:
    """Prints news of a job's progress, and what the job waits for if there is no news."""

    def __init__(self) -> None:
        self._last: Record = {}
        self._began, self._waited, self._shown = time.monotonic(), tuple[str, ...](), -1

    def __call__(self, now: Record) -> None:
        """Receive `now` (`sites.flare.server.Progress`, or a message on the sites)."""
        new = {key: value for key, value in now.items() if key != "waiting"}
        if new != self._last:
            before = self._last.get("status")
            # Once where a job continues, and the note on its sites; a quick job may be over before.
            if now["status"] in ("running", "done", "stopped") and before not in ("running", "stopping", now["status"]):
                done, repeated = now.get("after", 0), now.get("again", 0)
                if now.get("note"):
                    typer.echo(f"note: {printable(now['note'])}")
                if done:
                    typer.echo(f"continuing after round {done} of {now['rounds']}")
                elif repeated:
                    typer.echo("beginning again with round 1: nothing after it was saved")
                if repeated:
                    which = f"rounds {done + 1} to {done + repeated}" if repeated > 1 else f"round {done + 1}"
                    typer.echo(f"{which} had begun before: what left the sites then leaves once more, and counts twice")
            self._last, self._began = new, time.monotonic()
            self._tell(now)
        waiting = tuple(now.get("waiting") or ())
        if waiting and waiting != self._waited and time.monotonic() - self._began > SILENCE:
            after = f"after the last round, {now['round']}" if now["round"] >= now["rounds"] > 0 else ""
            typer.echo(f"{after or 'round ' + str(now['round'] + 1)}: waiting for {', '.join(waiting)}")
            self._waited = waiting

    def _tell(self, now: Record) -> None:
        if "sites" in now:
            words = WORDS[now["status"]].format(**now)
            typer.echo(f"{', '.join(now['sites'])}: {words}" if now["sites"] else words)
        elif now["status"] == "running" or (now.get("rounds") and now["round"] > self._shown):
            self._shown = now["round"]
            known = headline(now["summary"] or {})
            shown = f"  {known}" if known else ""
            lost = "".join(f"  {site}: {printable(why)}" for site, why in (now["lost"] or {}).items())
            typer.echo(f"round {now['round']}/{now['rounds']}  {now['seconds']:.1f} s{shown}{lost}")

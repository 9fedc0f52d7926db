"""The command `fedweave audit`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedweave.core.text import counted
from fedweave.errors import UserError
from fedweave.report.markup import unmarked

if TYPE_CHECKING:
    from fedweave.deploy.flare.site.audit import Audit, Run

_SHOWN = 20  # messages that are named one by one


def audit(
    directory: Annotated[Path, typer.Argument(metavar="SITE_DIR", help="The folder of a site.")],
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="Write a page to print.")] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Compare with a run as whoever started it has it, or with a member's copy of its statement.",
        ),
    ] = None,
) -> None:
    """Show a site's owner what was asked, what left to whom, what it cost in ε, and what was refused.

    With --against, only whether the site's own journal and a run agree on what left the site and on the configuration;
    exit code 1 if they do not.
    """
    from fedweave.deploy.flare.site.audit import audit as read

    if against is not None:
        if out is not None:
            raise UserError(
                "--out writes what the site's journals say, and --against compares one; choose one of them."
            )
        _compare(directory, against)
    elif out is not None:
        _write(directory, read(directory), out)
        typer.echo(out)
    else:
        _show(read(directory))


def _show(found: "Audit") -> None:
    from fedweave.report.ledger import flow_table
    from fedweave.report.terminal import screen

    console = screen()
    for run in found.runs:
        console.print(f"[bold]{unmarked(run.heading)}[/]", highlight=False)
        for line in _told(run):
            console.print(unmarked(line), highlight=False, soft_wrap=True)
        for line in _warnings(run):
            console.print(f"[red]{unmarked(line)}[/]", highlight=False, soft_wrap=True)
        if run.flows:
            console.print(flow_table(run.flows, 1, found.rules.delta))
    for line in (_in_all(found), *_caps(found)):
        console.print(unmarked(line), highlight=False, soft_wrap=True)
    console.print("added up over runs, or as CSV: fedweave ledger, with the same folder", highlight=False)


def _write(directory: Path, found: "Audit", out: Path) -> None:
    from fedweave.experiment.runs.files import write_page
    from fedweave.report.audit_page import Section, page

    sections = [Section(run.heading, _told(run), _warnings(run), run.flows) for run in found.runs]
    whole = [_in_all(found), *_caps(found)]
    text = page(f"What has left {directory.resolve().name}", whole, sections, found.rules.delta)
    write_page(out, text)


def _compare(directory: Path, run: Path) -> None:
    """Say where a site's journal and a run's ledger differ."""
    from fedweave.deploy.flare.site.audit import compare
    from fedweave.deploy.flare.wire.journal import journal_path, read
    from fedweave.deploy.sites.running import number_of
    from fedweave.experiment.runs.files import LEDGER, RUN, read_table

    if not (run / RUN).exists():
        raise UserError(
            f"{run} was not trained between sites: it has no {RUN}. Give the --out of `fedweave sites run`."
        )
    number = number_of(run)
    more, less = compare(directory, number, read_table(run, LEDGER))
    damaged = len(read(journal_path(directory, number)).damaged)
    for messages, said in ((more, "did not leave the site"), (less, "left the site and is not in the run's ledger")):
        for message in messages[:_SHOWN]:
            typer.echo(f"{said}: {message}")
        if len(messages) > _SHOWN:
            typer.echo(f"{said}: {len(messages) - _SHOWN:,} more")
    if less:
        typer.echo("what came too late or was refused is not in a run's ledger either")
    if damaged:
        typer.echo(
            f"{counted(damaged, 'damaged line')} of the journal: what is said there to have left is not compared"
        )
    same = _same_configuration(directory, run, number)
    if more or less or damaged or same is False:
        raise typer.Exit(1)
    typer.echo(f"the journal of {directory} and the ledger of {run} agree on what left the site")
    typer.echo("in the algorithm's steps; what it sent to join and for predictions is in the journal alone")


def _same_configuration(directory: Path, run: Path, number: str) -> bool | None:
    """Whether the run's configuration is the one that the site joined with, None if that cannot be told; say so."""
    from fedweave.deploy.flare.site.audit import joined_with
    from fedweave.deploy.sites.running import sites_of
    from fedweave.experiment.config import load_saved
    from fedweave.experiment.runs.files import CONFIG

    sites = sites_of(run)
    same = joined_with(directory, number, load_saved(run / CONFIG), sites) if sites else None
    if same:
        typer.echo(f"{run / CONFIG} is the configuration that the site joined with (but for what a run may change)")
    elif same is None:
        typer.echo(f"{run / CONFIG} is not compared: the run has plug-ins, or is of an earlier version of fedweave")
    else:
        typer.echo(f"{run / CONFIG} is another configuration, or of other sites, than the site joined with")
    return same


def _in_all(found: "Audit") -> str:
    cost, without = found.spent.account.cost, "left without noise, and nothing limits what it tells"
    told = f"all runs: {found.spent.bytes:,} bytes have left"
    if cost.unbounded and not (cost.epsilon or cost.squared_mu):
        return f"{told}; no ε follows: it {without}"
    bounded = f"{found.spent.epsilon(found.rules.delta):.4g}"
    if cost.unbounded:
        return f"{told}; of what had noise ε is {bounded} at δ = {found.rules.delta:g}; the rest {without}"
    return f"{told}; their ε is {bounded} at δ = {found.rules.delta:g}"


def _caps(found: "Audit") -> list[str]:
    """How much of what the policy allows is spent, a line for each cap."""
    rules, spent, told = found.rules, found.spent, []
    if rules.epsilon is not None:
        bare = ", ".join(_bare(found))
        held = ", ".join([*rules.unbounded, *([f"what has left without a bound: {bare}"] if bare else [])])
        free = f"; it does not hold for {held}" if held else ""
        now = f"{spent.epsilon(rules.delta):.4g} is spent at δ = {rules.delta:g}"
        told.append(f"of policy.epsilon = {rules.epsilon:g}, {now}{free}")
    if rules.bytes is not None:
        told.append(f"of policy.bytes = {rules.bytes:,}, {spent.bytes:,} are spent")
    return told


def _bare(found: "Audit") -> list[str]:
    """What has left, mostly before there was a cap, that no ε bounds and that the policy would not let leave now."""
    from fedweave.core.purposes import FRAMING
    from fedweave.deploy.flare.policy.policy import covers
    from fedweave.report.ledger import called

    sent = [one for run in found.runs for one in run.flows if one.direction != "down" and one.key != FRAMING]
    bare = [one for one in sent if one.account.cost.unbounded]
    return sorted({called(one) for one in bare if not any(covers(key, one.key) for key in found.rules.unbounded)})


def _told(run: "Run") -> list[str]:
    """What was asked, a line each."""
    told = []
    for note in run.joined:
        where = "from the start" if note.get("after") == -1 else f"from round {note.get('after')}"
        what = "prediction" if note.get("predict") else "training"
        versions = f"fedweave {note.get('fedweave')}, torch {note.get('torch')}"
        config = f"configuration {str(note.get('pin'))[:12]}"
        told.append(f"{note['at']}  the server began {what}, {where}: {note.get('algorithm')}, {config}, {versions}")
    for note in run.lists:
        counts = ", ".join(f"{site} {count}" for site, count in dict(note.get("counts") or {}).items())
        told.append(f"{note['at']}  ids on the lists that were compared: {counts}")
    for note in run.aligned:
        kept = f"{note.get('common')} of the site's {note.get('own')} nodes"
        told.append(f"{note['at']}  the server named {kept} as common to all")
    for note in run.policy:
        of = {what: ", ".join(map(str, note.get(what) or ())) for what in ("tightened", "loosened")}
        ends = {"tightened": "tightened", "loosened": "loosened, which holds from the next job on"}
        said = "; ".join(f"{of[what]} {ends[what]}" for what in ends if of[what])
        told.append(f"{note['at']}  the owner changed the policy: {said or 'to the same rules'}")
    return told


def _warnings(run: "Run") -> list[str]:
    """Refusals and damage, a line each."""
    told = [f"{note['at']}  refused {note.get('asked')}: {note.get('why')}" for note in run.refused]
    if run.cut:
        cut, values = (sum(note[key] for note in run.cut) for key in ("cut", "values"))
        first = min(note["round"] for note in run.cut)
        told.append(
            f"{cut:,} of {values:,} values were cut to the bound of {counted(len(run.cut), 'secure sum')}, the first "
            f"in round {first}: the sums had less than what was computed here"
        )
    if run.damaged:
        told.append(f"{counted(run.damaged, 'damaged line')}: what is said there to have left is counted nowhere")
    return told

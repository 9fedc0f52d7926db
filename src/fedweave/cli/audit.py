"""The command `fedweave audit`."""

from pathlib import Path

import typer

from fedweave.accounts.document import Document, Section, grid, unmarked
from fedweave.accounts.ledger import flow_table, row
from fedweave.core.text import counted
from fedweave.errors import UserError
from fedweave.experiment.config import load_saved
from fedweave.experiment.runs.files import CONFIG, LEDGER, RUN, read_table
from fedweave.reports.pages import check_page, write_document
from fedweave.reports.terminal import screen
from fedweave.sites.flare.audit import (
    Audit,
    caps,
    compare,
    describe_requests,
    in_all,
    refusal_lines,
    same_configuration,
)
from fedweave.sites.flare.audit import audit as read_audit
from fedweave.sites.flare.journal import journal_path, read_journal

_SHOWN = 20  # messages that are printed one by one
_WORDS = ("what for", "to", "call and key", "what the receiver learns", "mechanism", "first, last (UTC)")


def show_audit(
    directory: Path,
    out: Path | None,
    against: Path | None,
) -> None:
    """Print or write what a site's journals hold, or compare one with a run (`fedweave audit`)."""
    if against is not None:
        if out is not None:
            raise UserError(
                "--out writes the contents of the site's journals, and --against compares one; choose one of them."
            )
        _compare(directory, against)
    elif out is not None:
        check_page(out)
        write_document(out, _document(directory, read_audit(directory)))
        typer.echo(out)
    else:
        _show(read_audit(directory))


def _show(account: Audit) -> None:
    console = screen()
    for run in account.runs:
        console.print(f"[bold]{unmarked(run.heading)}[/]", highlight=False)
        for line in describe_requests(run):
            console.print(unmarked(line), highlight=False, soft_wrap=True)
        for line in refusal_lines(run):
            console.print(f"[red]{unmarked(line)}[/]", highlight=False, soft_wrap=True)
        if run.flows:
            console.print(flow_table(run.flows, 1, account.rules.delta))
    for line in (in_all(account), *caps(account)):
        console.print(unmarked(line), highlight=False, soft_wrap=True)
    console.print("added up over runs, or as CSV: fedweave ledger, with the same folder", highlight=False)


def _document(directory: Path, account: Audit) -> Document:
    """What has left the site, run by run."""
    sections = [
        Section(
            run.heading,
            tuple(describe_requests(run)) if run.flows else (*describe_requests(run), "Nothing has left."),
            tuple(refusal_lines(run)),
            grid([row(one, account.rules.delta) for one in run.flows], _WORDS),
        )
        for run in account.runs
    ]
    foot = "From the site's own journals, which hold what left it, not what reached it."
    lead = (in_all(account), *caps(account))
    return Document(f"What has left {directory.resolve().name}", lead=lead, sections=tuple(sections), foot=foot)


def _compare(directory: Path, run: Path) -> None:
    """Print the differences between a site's journal and a run's ledger."""
    from fedweave.sites.operation.running import number_of

    if not (run / RUN).exists():
        raise UserError(
            f"{run} was not trained between sites: it has no {RUN}. Give the --out of `fedweave sites run`."
        )
    number = number_of(run)
    more, less = compare(directory, number, read_table(run, LEDGER))
    damaged = len(read_journal(journal_path(directory, number)).damaged)
    for messages, label in ((more, "did not leave the site"), (less, "left the site and is not in the run's ledger")):
        for message in messages[:_SHOWN]:
            typer.echo(f"{label}: {message}")
        if len(messages) > _SHOWN:
            typer.echo(f"{label}: {len(messages) - _SHOWN:,} more")
    if less:
        typer.echo("replies that came too late or were rejected are not in a run's ledger either")
    if damaged:
        typer.echo(f"{counted(damaged, 'damaged line')} of the journal: messages in damaged lines are not compared")
    same = _same_configuration(directory, run, number)
    if more or less or damaged or same is False:
        raise typer.Exit(1)
    typer.echo(f"the journal of {directory} and the ledger of {run} agree on what left the site")
    typer.echo("in the algorithm's steps; only the journal has what it sent to join and for predictions")


def _same_configuration(directory: Path, run: Path, number: str) -> bool | None:
    """Print whether the run's configuration is the one that the site joined with; None if that cannot be compared."""
    from fedweave.sites.operation.running import sites_of

    sites = sites_of(run)
    same = same_configuration(directory, number, load_saved(run / CONFIG), sites) if sites else None
    if same:
        typer.echo(f"{run / CONFIG} is the configuration that the site joined with (but for what a run may change)")
    elif same is None:
        typer.echo(f"{run / CONFIG} is not compared: the run has plug-ins, or is of an earlier version of fedweave")
    else:
        typer.echo(f"{run / CONFIG} is another configuration, or has other sites, than the site joined with")
    return same

"""The command `fedweave audit`."""

from pathlib import Path
from typing import Annotated

import typer

from fedweave.core.text import counted
from fedweave.errors import UserError

_MAX_MESSAGES = 20  # that are printed one by one
_WORDS = ("what for", "to", "call and key", "what the receiver learns", "mechanism", "first, last (UTC)")


def audit(
    directory: Annotated[Path, typer.Argument(metavar="SITE_DIR", help="The folder of a site.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="Write a page to print, .html or .pdf.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Compare with a run as its starter has it, or with a member's copy of its statement.",
        ),
    ] = None,
) -> None:
    """Show a site's owner all requests, what left for whom, what it cost in ε, what was rejected, and what joining
    brought the site on its own test examples.

    With --against, only compare the site's own journal with a run: what left the site, and the configuration; exit
    code 1 if they differ.
    """
    from fedweave.accounts.document import Document, Section, grid, plain_text, print_line
    from fedweave.accounts.ledger import flow_table, row
    from fedweave.reports.pages import check_page, write_document
    from fedweave.reports.terminal import screen
    from fedweave.sites.flare import audit as journals
    from fedweave.sites.flare.folder import RUNS
    from fedweave.sites.flare.own_results import own_results

    if against is not None:
        if out is not None:
            raise UserError(
                "--out writes the contents of the site's journals, and --against compares one; choose one of them."
            )
        _compare(directory, against)
        return
    if out is not None:
        check_page(out)
    account = journals.audit(directory)
    delta = account.rules.delta
    totals = (journals.in_all(account), *journals.caps(account))

    # A page: what has left the site, run by run.
    if out is not None:
        sections = []
        for run in account.runs:
            results = own_results(directory / RUNS / run.name)
            text = (*journals.describe_requests(run), *([] if run.flows else ["Nothing has left."]), *results)
            table = grid([row(flow, delta) for flow in run.flows], _WORDS)
            sections.append(Section(run.heading, text, tuple(journals.refusal_lines(run)), table))
        foot = "From the site's own journals, which hold what left it, not what reached it."
        title = f"What has left {directory.resolve().name}"
        write_document(out, Document(title, lead=totals, sections=tuple(sections), foot=foot))
        typer.echo(out)
        return

    # The same on the terminal.
    console = screen()
    for run in account.runs:
        console.print(f"[bold]{plain_text(run.heading)}[/]", highlight=False)
        for line in journals.describe_requests(run):
            print_line(console, line)
        for line in journals.refusal_lines(run):
            console.print(f"[red]{plain_text(line)}[/]", highlight=False, soft_wrap=True)
        if run.flows:
            console.print(flow_table(run.flows, 1, delta))
        for line in own_results(directory / RUNS / run.name):
            print_line(console, line)
    for line in totals:
        print_line(console, line)
    console.print("added up over runs, or as CSV: fedweave ledger, with the same folder", highlight=False)


def _compare(directory: Path, run: Path) -> None:
    """Print the differences between a site's journal and a run's ledger, and between their configurations."""
    from fedweave.experiment.config import load_saved
    from fedweave.experiment.runs.files import CONFIG, LEDGER, METRICS, RUN, read_table
    from fedweave.sites.flare.audit import compare, compare_alone, same_configuration
    from fedweave.sites.flare.journal import journal_path, read_journal
    from fedweave.sites.operation.running import number_of, sites_of

    if not (run / RUN).exists():
        raise UserError(
            f"{run} was not trained between sites: it has no {RUN}. Give the --out of `fedweave sites run`."
        )
    number = number_of(run)
    more, less = compare(directory, number, read_table(run, LEDGER))
    damaged = len(read_journal(journal_path(directory, number)).damaged)
    for messages, label in ((more, "did not leave the site"), (less, "left the site and is not in the run's ledger")):
        for message in messages[:_MAX_MESSAGES]:
            typer.echo(f"{label}: {message}")
        if len(messages) > _MAX_MESSAGES:
            typer.echo(f"{label}: {len(messages) - _MAX_MESSAGES:,} more")
    if less:
        typer.echo("replies that came too late or were rejected are not in a run's ledger either")
    if damaged:
        typer.echo(f"{counted(damaged, 'damaged line')} of the journal: messages in damaged lines are not compared")
    sites, config = sites_of(run), run / CONFIG
    has_config = config.exists()
    same = same_configuration(directory, number, load_saved(config), sites) if sites and has_config else None
    if not has_config:
        typer.echo(f"there is no {config}: the configuration is not compared")
    elif same:
        typer.echo(f"{config} is the configuration that the site joined with (but for what a run may change)")
    elif same is None:
        typer.echo(f"{config} is not compared: the run has plug-ins, or is of an earlier version of fedweave")
    else:
        typer.echo(f"{config} is another configuration, or has other sites, than the site joined with")
    alone = compare_alone(directory, number, read_table(run, METRICS)) if (run / METRICS).exists() else None
    for line in alone or ():
        typer.echo(line)
    if more or less or damaged or alone or same is False:
        raise typer.Exit(1)
    typer.echo(f"the journal of {directory} and the ledger of {run} agree on what left the site")
    typer.echo("in the algorithm's steps and of what it reaches alone;")
    typer.echo("what it sent to join and for predictions is not compared")
    if alone is not None:
        typer.echo(f"{run / METRICS} has the numbers that the site sent of what it reaches alone")

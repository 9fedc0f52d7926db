"""The command `fedweave ledger`, for a run or for a site that has taken part in runs."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedweave.errors import UserError
from fedweave.experiment.config import load_saved


def ledger(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The directory of a run, or the folder of a site, for its owner.")
    ],
    member: Annotated[str, typer.Option(metavar="NAME", help="Only what this member sent and received.")] = "",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print rows of CSV.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list of rows.")] = False,
) -> None:
    """Show the messages of a run: sender, receiver, purpose, time, what the receiver learns, and cost in ε.

    A site's own ledger shows what has left the site, over all runs; `fedweave audit` shows the same run by run, with
    all requests and rejections.
    """
    from fedweave.accounts import ledger as accounts
    from fedweave.accounts.document import print_line
    from fedweave.experiment.runs.files import CONFIG, LEDGER, PARTITION, read_table
    from fedweave.reports.terminal import screen

    if as_csv and as_json:
        raise UserError("--csv and --json are two forms of the same table; choose one of them.")
    warning = ""
    if (directory / LEDGER).exists():
        table = read_table(directory, LEDGER)
    elif (directory / "ledgers").is_dir():  # all journals of a site as one ledger
        from fedweave.sites.flare.audit import audit

        site = audit(directory)
        table, warning = site.ledger, site.lost
    else:
        raise UserError(
            f"there is no {directory / LEDGER} and no {directory / 'ledgers'}; give the directory of a run (the --out "
            "of `fedweave run`), or the folder of a site that took part in one."
        )
    if as_csv:
        typer.echo(accounts.as_csv(accounts.as_rows(table, member)), nl=False)
        return
    if as_json:
        typer.echo(json.dumps(accounts.as_rows(table, member), indent=2, ensure_ascii=False))
        return
    console = screen()
    accounts.show_ledger(console, table, member)
    if (directory / CONFIG).exists():
        # All data was pooled without a message if one place trained on several members' data.
        names = accounts.members(table)
        clients = len(read_table(directory, PARTITION)) if (directory / PARTITION).exists() else len(names)
        for sentence in accounts.pooling_sentences(load_saved(directory / CONFIG), len(names) == 1 < clients):
            print_line(console, sentence)
    if warning:
        print_line(console, warning)

"""The command `fedweave ledger`, for a run or for a site that has taken part in runs."""

import json
from pathlib import Path
from typing import Annotated

import pyarrow as pa
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
    from fedweave.accounts import ledger as shown
    from fedweave.accounts.ledger import members
    from fedweave.reports.terminal import screen

    if as_csv and as_json:
        raise UserError("--csv and --json are two forms of the same table; choose one of them.")
    table = read(directory)
    if as_csv:
        typer.echo(shown.as_csv(shown.as_rows(table, member)), nl=False)
    elif as_json:
        typer.echo(json.dumps(shown.as_rows(table, member), indent=2, ensure_ascii=False))
    else:
        console = screen()
        shown.show_ledger(console, table, member)
        for sentence in (*_of_data(directory, len(members(table))), *_lost(directory)):
            shown.say(console, sentence)


def _lost(directory: Path) -> list[str]:
    """A warning of a site that lost accounts of what has left it."""
    from fedweave.experiment.runs.files import LEDGER

    if (directory / LEDGER).exists():
        return []
    from fedweave.sites.flare.audit import audit

    return [lost] if (lost := audit(directory).lost) else []


def _of_data(directory: Path, everyone: int) -> list[str]:
    """Data that was pooled without a message: all of it if one place trains on several members' data."""
    from fedweave.accounts.ledger import pooled
    from fedweave.experiment.runs.files import CONFIG, PARTITION, read_table

    if not (directory / CONFIG).exists():
        return []
    held = len(read_table(directory, PARTITION)) if (directory / PARTITION).exists() else everyone
    return pooled(load_saved(directory / CONFIG), at_one_place=everyone == 1 < held)


def read(directory: Path) -> pa.Table:
    """The ledger of a run, or all journals of a site's folder as one ledger.

    Raises:
        UserError: `directory` is neither.
    """
    from fedweave.experiment.runs.files import LEDGER, read_table

    if (directory / LEDGER).exists():
        return read_table(directory, LEDGER)
    if (directory / "ledgers").is_dir():
        from fedweave.sites.flare.audit import audit

        return audit(directory).ledger
    raise UserError(
        f"there is no {directory / LEDGER} and no {directory / 'ledgers'}; give the directory of a run (the --out of "
        "`fedweave run`), or the folder of a site that took part in one."
    )

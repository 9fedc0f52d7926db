"""The command `fedweave compliance`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedweave.errors import UserError

STEM = "compliance"


def compliance(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="The folder of a site, the directory of a run, or a report's .json to go on with."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Where to write, .html or .pdf (DIR/compliance.html)."),
    ] = None,
    run: Annotated[str, typer.Option(metavar="NUMBER", help="Only this run of a site.")] = "",
    sign: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="Also sign with the key in this folder of a project; repeatable."),
    ] = None,
    authority: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="For a report's .json: accept only signatures by certificates that the rootCA.pem in this folder "
            "issued and its revoked.pem, if there is one, does not list; the site whose report it is has to have "
            "signed. Such as bank/bank-a/startup.",
        ),
    ] = None,
    by: Annotated[
        str, typer.Option(metavar="NAME", help="With --authority: the member who has to have signed the report.")
    ] = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a report that others have signed.")] = False,
) -> None:
    """Report what left, for whom, what for and under which rules, to the person responsible for the data: a page, and
    the same as JSON with its signatures.

    A site's own report is signed with the site's key. With the JSON as DIR, anyone can check it, which writes nothing;
    --sign adds a signature and writes both again, and --out writes the page.
    """
    from fedweave.accounts.compliance import of_run
    from fedweave.experiment.runs.files import LEDGER
    from fedweave.experiment.runs.reading import read_run
    from fedweave.reports.pages import check_page, write_document
    from fedweave.sites.flare.compliance import (
        Report,
        certificate_name,
        check_replaced,
        of_site,
        read_report,
        write_report,
    )
    from fedweave.sites.flare.journal import now

    page = out or (directory.with_suffix(".html") if directory.is_file() else directory / f"{STEM}.html")
    check_page(page)
    if by and authority is None:
        raise UserError("--by is checked with --authority: give both.", code="report.unsigned")
    if authority is not None and not directory.is_file():
        raise UserError(
            f"--authority checks the signatures of a report, and {directory} is none: name its .json.",
            code="report.unsigned",
        )
    written = ("written", f"{now()[:16].replace('T', ' ')} UTC")
    if directory.is_file():
        report = read_report(directory, authority, by)
    elif (directory / "ledgers").is_dir() and not (directory / LEDGER).exists():
        document = of_site(directory, run)
        report = Report(replace(document, facts=(written, *document.facts)))
        report = report.sign(directory) if (directory / "startup").is_dir() else report
    elif run:
        raise UserError("--run chooses among the runs of a site; leave it out for the directory of a run.")
    elif not (directory / LEDGER).exists():
        raise UserError(
            f"there is no {directory / LEDGER} and no {directory / 'ledgers'}; give the folder of a site that took "
            "part in a run, the directory of a run, or a report's .json."
        )
    else:
        document, signer = of_run(read_run(directory)), certificate_name(sign[0]) if sign else ""
        report = Report(replace(document, facts=(written, *document.facts), signer=signer))
    if directory.is_file():
        names = ", ".join(signature.name for signature in report.signatures)
        issuer = "" if authority or not names else "; who issued the certificates is not checked without --authority"
        owner = report.document.signer or by or "a member"
        typer.echo(f"a report of {owner}, {f'signed by {names}' if names else 'not signed'}{issuer}")
    for folder in sign or ():
        report = report.sign(folder)
    report_file = directory if directory.is_file() else page.with_suffix(".json")
    if sign or not directory.is_file():  # only to check a report writes nothing
        if not overwrite:
            check_replaced(report_file, report)
        write_report(report_file, report)
        typer.echo(report_file)
    if sign or out or not directory.is_file():
        write_document(page, report.with_signatures())
        typer.echo(page)

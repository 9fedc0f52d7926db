"""The command `fedweave forget`: a finished run without a client or without examples, and a site's report on it."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedweave.accounts.document import print_line
from fedweave.cli.options import FastRounds
from fedweave.errors import UserError
from fedweave.sites.flare.folder import SITE_FILE

PAGE, SIGNED = "forgetting.html", "forgetting-signed.json"


def forget(
    directory: Annotated[
        Path, typer.Argument(metavar="RUN|SITE", help="The directory of a finished run, or the folder of a site.")
    ],
    client: Annotated[list[str] | None, typer.Option(metavar="NAME", help="A client that leaves; repeatable.")] = None,
    ids: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Nodes, edges or small graphs that leave: a text file with an id per line."),
    ] = None,
    rounds: FastRounds = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="A new folder (RUN/forgotten/NUMBER).")
    ] = None,
    sign: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="Also write the page signed with the key in this folder; repeatable."),
    ] = None,
    before: Annotated[
        str, typer.Option(metavar="NUMBER|FILE", help="Of a site: its run, or a scorer, with what is forgotten.")
    ] = "",
    exact: Annotated[
        str, typer.Option(metavar="NUMBER|FILE", help="Of a site: its run, or a scorer, trained again without it.")
    ] = "",
    fast: Annotated[
        str, typer.Option(metavar="NUMBER|FILE", help="Of a site: its run, or a scorer, trained on without it.")
    ] = "",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not show the rounds.")] = False,
) -> None:
    """Train a run without a client or without examples, and report what the models still show of them.

    It trains twice: again from the start by the run's seed (exact), and on from the run's model for some rounds (fast).
    The report compares both with the earlier model: the run's metric, the distance to the exact model, and membership
    inference on what left. The run itself stays as it is.

    Of a run between sites, `fedweave sites forget` trains. With a site's folder this command writes the site's report,
    signed with its key.
    """
    from fedweave.apply import forgetting
    from fedweave.apply.forgetting_record import RECORD
    from fedweave.experiment.runs.files import write_page
    from fedweave.partition.forgetting import read_ids
    from fedweave.reports.forgetting import document, headline, inference, quality, verdict
    from fedweave.reports.pages import html
    from fedweave.reports.terminal import Terminal, screen, show_rows
    from fedweave.sites.flare import forgetting as at_site
    from fedweave.sites.flare.compliance import Report, certificate_name, write_report

    signers = [*(sign or ())]
    if (directory / SITE_FILE).is_file():
        for name, value in {"client": client, "ids": ids, "rounds": rounds, "out": out}.items():
            if value not in (None, []):
                raise UserError(
                    f"--{name}: {directory} is the folder of a site, whose site.toml says what it forgets "
                    "(data.forget). Leave the option out.",
                    code="forget.site",
                )
        result = at_site.report(directory, before, exact, fast)
        if (directory / "startup").is_dir():
            signers.insert(0, directory)
    else:
        if before or exact or fast:
            raise UserError(
                f"--before, --exact and --fast are of the folder of a site, and {directory} is none. Leave them out.",
                code="forget.site",
            )
        console = screen(quiet)
        names = () if ids is None else read_ids(ids, "--ids")
        observe = None if quiet else lambda: Terminal(console)
        result = forgetting.forget(directory, tuple(client or ()), names, rounds, out, observe)
    page = replace(document(result.record), signer=certificate_name(signers[0]) if signers else "")
    write_page(result.directory / PAGE, html(page))
    paths = [RECORD, PAGE]
    if signers:
        report = Report(page)
        for folder in signers:
            report = report.sign(folder)
        write_report(result.directory / SIGNED, report)
        paths.append(SIGNED)
    console = screen()
    print_line(console, headline(result.record))
    for rows in (quality(result.record), inference(result.record)):
        show_rows(console, rows, ("model",))
    for line in (*verdict(result.record), *result.record["notes"]):
        print_line(console, line)
    for path in paths:
        print_line(console, result.directory / path)

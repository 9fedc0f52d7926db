"""The command `fedweave report`."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR", help="The directories of runs.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="FILE.html", help="Where to write (DIR/report.html; of several, report.html)."
        ),
    ] = None,
) -> None:
    """Write a page about one or several runs: results, clients, fairness, split, and what left whom."""
    from fedweave.report.html import render
    from fedweave.report.reading import read_runs
    from fedweave.runs.files import write

    page = render(read_runs(directories))
    path = out or (directories[0] if len(directories) == 1 else Path()) / "report.html"
    write(path, lambda file: file.write(page.encode()))
    typer.echo(path)

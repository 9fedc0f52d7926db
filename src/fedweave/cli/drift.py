"""The command `fedweave drift`: whether new tables still look like those of training."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedweave.accounts.document import plain_text, print_line
from fedweave.cli.options import Chosen, ModelRound, RunOrModel, Tables, When
from fedweave.errors import UserError

MOVED = 3  # exit code
TOP = 10  # columns on a terminal


def drift(
    place: RunOrModel,
    tables: Tables,
    threshold: Annotated[
        float, typer.Option(min=0, help="Population stability index above which a column counts as moved.")
    ] = 0.25,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="Also write a page (.html) or all of it (.json).")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many columns to show on the terminal.")] = TOP,
    client: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of a run's folder: the client whose model and data count.")
    ] = None,
    model: Chosen = None,
    when: When = ModelRound.last,
) -> None:
    """Compare new tables, and the model's scores on them, with what the model was trained on.

    It computes the population stability index and the Kolmogorov-Smirnov distance of each column and of the scores,
    and lists new values of text. It needs no labels and no server, and nothing leaves the machine. The exit code is 3
    if a column moved beyond the threshold and beyond chance, else 0.
    """
    from fedweave.apply.drift import drift as drift_of
    from fedweave.experiment.runs.files import write, write_page
    from fedweave.reports.drift import document, headline, notes, row
    from fedweave.reports.pages import html
    from fedweave.reports.terminal import screen

    if out is not None and out.suffix not in (".html", ".json"):
        raise UserError(f"--out {out}: name a file that ends in .html or .json.", code="drift.out")
    result = drift_of(place, tables, threshold, None if model is None else str(model), client, when.value)
    if out is not None and out.suffix == ".html":
        write_page(out, html(document(result)))
    elif out is not None:
        text = json.dumps(result.record, indent=1, allow_nan=False) + "\n"
        write(out, lambda file: file.write(text.encode()))
    console = screen()
    print_line(console, headline(result))
    rows = [row(result, one) for one in result.shifts[:top]]
    if rows:
        table = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0))
        for name in rows[0]:
            table.add_column(name, justify="right" if name in ("PSI", "by chance", "KS") else "left")
        for one in rows:
            table.add_row(*map(plain_text, one.values()))
        console.print(table)
    rest = len(result.shifts) - top
    if rest > 0:
        print_line(console, f"… and {rest:,} more with smaller values")
    for line in notes(result):
        print_line(console, line)
    if out is not None:
        console.print(str(out), highlight=False, markup=False, soft_wrap=True)
    if result.alarms:
        raise typer.Exit(MOVED)

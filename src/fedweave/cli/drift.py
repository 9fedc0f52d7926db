"""The command `fedweave drift`: whether new tables still look like those of training."""

from pathlib import Path
from typing import Annotated

import typer

from fedweave.accounts.document import print_line
from fedweave.cli.options import Chosen, ModelRound, NewData, RunOrModel, When, write_result_file
from fedweave.errors import UserError

MOVED = 3  # exit code
TOP = 10  # columns on a terminal


def drift(
    place: RunOrModel,
    data: NewData,
    threshold: Annotated[
        float,
        typer.Option(min=0, metavar="PSI", help="Population stability index above which a column counts as moved."),
    ] = 0.25,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="Also write a page (.html) or all of it (.json).")
    ] = None,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many columns to show on the terminal.")] = TOP,
    client: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of a run's folder: the client whose model and data count.")
    ] = None,
    model: Chosen = None,
    when: When = ModelRound.chosen,
) -> None:
    """Compare new tables, and the model's scores on them, with what the model was trained on.

    It computes the population stability index and the Kolmogorov-Smirnov distance of each column and of the scores,
    and lists new values of text. It needs no labels and no server, and nothing leaves the machine. The exit code is 3
    if a column moved beyond the threshold and beyond chance, else 0.
    """
    from fedweave.apply.drift import drift as drift_of
    from fedweave.experiment.runs.trained import round_in_words
    from fedweave.reports.drift import document, headline, notes, row
    from fedweave.reports.pages import html
    from fedweave.reports.terminal import screen, show_rows

    if out is not None and out.suffix not in (".html", ".json"):
        raise UserError(f"--out {out}: name a file that ends in .html or .json.", code="drift.out")
    which = None if model is None else str(model)
    result = drift_of(place, data, threshold, which, client, when.value)
    if out is not None:
        write_result_file(out, lambda: html(document(result)), result.record)
    console = screen()
    print_line(console, headline(result))
    rows = [row(result, one) for one in result.shifts[:top]]
    if rows:
        show_rows(console, rows, ("", "name", "what", "largest change"))
    rest = len(result.shifts) - top
    if rest > 0:
        print_line(console, f"… and {rest:,} more with smaller values")
    for line in notes(result):
        print_line(console, line)
    of_round = round_in_words(place, when.value, which)
    if of_round:
        print_line(console, f"Model: {of_round}.")
    if out is not None:
        print_line(console, out)
    if result.alarms:
        raise typer.Exit(MOVED)

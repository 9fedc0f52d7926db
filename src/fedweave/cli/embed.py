"""The command `fedweave embed`: scores and vectors of a trained model, as columns for the model that a member has."""

from pathlib import Path
from typing import Annotated

import typer

from fedweave.accounts.document import print_line
from fedweave.cli.options import Chosen, Client, ModelRound, RunOrModel, When, write_table_file
from fedweave.errors import UserError


def embed(
    place: RunOrModel,
    data: Annotated[
        Path | None,
        typer.Option(metavar="TABLES", help="New examples, in any form that `run` takes (docs/data-format.md)."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="A new .parquet or .csv file (RUN/embeddings.parquet; with --data RUN/new-embeddings.parquet).",
        ),
    ] = None,
    model: Chosen = None,
    client: Client = None,
    when: When = ModelRound.last,
    spreadsheet: Annotated[
        bool,
        typer.Option(
            "--spreadsheet",
            help="Protect a .csv file for spreadsheets: put an apostrophe before text that they would compute.",
        ),
    ] = False,
) -> None:
    """Write what a trained model gives as columns for other models: each example's scores, and the vector that the
    model's last layer reads.

    Without --data these are the run's own examples, each client's by the model that it uses; of a run on links, its
    nodes. With a model, or the folder of a site after a run, give --data: nothing leaves the machine.
    """
    from fedweave.apply.embeddings import embeddings_at
    from fedweave.experiment.runs import files
    from fedweave.reports.terminal import screen

    # 1. Where to write.
    if out is None:
        folder = place if place.is_dir() else place.parent
        out = folder / (files.EMBEDDINGS if data is None else files.NEW_EMBEDDINGS)
    if out.exists():
        raise UserError(f"{out} exists; name another file with --out, or remove it.", code="user.out")
    if out.suffix not in (".parquet", ".csv"):
        raise UserError(f"--out {out}: name a file that ends in .parquet or .csv.", code="user.out")
    if spreadsheet and out.suffix != ".csv":
        raise UserError(f"--spreadsheet is for a .csv file, and {out} is none; name one with --out.", code="user.out")

    # 2. The file.
    table = embeddings_at(place, data, None if model is None else str(model), client, when.value)
    write_table_file(out, table, spreadsheet)
    width = sum(name.startswith("e_") for name in table.column_names)
    print_line(screen(), f"{len(table):,} rows with vectors of {width} numbers: {out}")

"""The command `fedweave embed`: scores and vectors of a trained model, as columns for the model that a member has."""

from pathlib import Path
from typing import Annotated

import typer

from fedweave.accounts.document import print_line
from fedweave.cli.options import (
    Chosen,
    Client,
    ModelRound,
    OptionalNewData,
    RunOrModel,
    Spreadsheet,
    When,
    check_table_file,
    write_table_file,
)

POOR = 0.5  # R² below which vectors of different runs are not one column


def embed(
    place: RunOrModel,
    data: OptionalNewData = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="A new .parquet or .csv file (RUN/embeddings.parquet; with --data RUN/new-embeddings.parquet).",
        ),
    ] = None,
    folds: Annotated[
        int,
        typer.Option(
            metavar="K",
            min=0,
            help="Training examples by K further runs, each without the labels of one fold; 0 trains none.",
        ),
    ] = 0,
    model: Chosen = None,
    client: Client = None,
    when: When = ModelRound.chosen,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not show the rounds of --folds.")] = False,
    spreadsheet: Spreadsheet = False,
) -> None:
    """Write what a trained model gives as columns for other models: each example's scores, and the vector that the
    model's last layer reads.

    Without --data these are the run's own examples, each client's by the model that it uses; of a run on links, its
    nodes. With a model, or the folder of a site after a run, give --data: nothing leaves the machine.

    A model knows the labels of its training examples. If another model is to learn from these rows, take --folds 5: it
    trains five times more, and finished further runs in RUN/folds are used again.
    """
    from fedweave.apply.embeddings import embeddings
    from fedweave.experiment.config import Config
    from fedweave.experiment.runs import files
    from fedweave.experiment.runs.trained import round_in_words
    from fedweave.reports.terminal import Terminal, screen

    # 1. Where to write.
    if out is None:
        folder = place if place.is_dir() else place.parent
        out = folder / (files.EMBEDDINGS if data is None else files.NEW_EMBEDDINGS)
    check_table_file(out, spreadsheet, "user.out")

    # 2. The file.
    console = screen(quiet)
    which = None if model is None else str(model)

    def observe(experiment: Config) -> Terminal:
        if experiment.fold is not None:
            print_line(console, f"without the labels of fold {experiment.fold.number} of {experiment.fold.of}:")
        return Terminal(console)

    result = embeddings(place, data, which, client, when.value, folds, observe)
    write_table_file(out, result.table, spreadsheet)
    width = sum(name.startswith("e_") for name in result.table.column_names)
    console = screen()
    of_round = round_in_words(place, when.value, which)
    text = f"{len(result.table):,} rows with vectors of {width} numbers"
    print_line(console, f"{text} ({of_round}): {out}" if of_round else f"{text}: {out}")
    if result.agreement is not None:
        before, after = result.agreement
        print_line(
            console,
            f"vectors of the further runs agree with the run's to R² {after:.2f}; to {before:.2f} before they are "
            "rotated (on examples outside training)",
        )
        if after < POOR:
            print_line(
                console,
                "note: that is little: vectors of training examples and of others differ. Take the scores as columns, "
                "and leave the vectors out.",
            )

"""The commands `fedweave report` and `fedweave compare`."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR", help="The directories of runs.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="FILE.html", help="Where to write (DIR/report.html; for several, report.html)."
        ),
    ] = None,
    embeddings: Annotated[
        str, typer.Option(metavar="tsne|pca", help="Also draw the last layer's input, in two dimensions.")
    ] = "",
) -> None:
    """Write a report about one or several runs: results, clients, fairness, partition, and what leaves a client."""
    from fedweave.experiment.runs.checkpoint import Checkpoint
    from fedweave.experiment.runs.files import CHECKPOINT, write_page
    from fedweave.experiment.runs.reading import read_runs
    from fedweave.reports.embeddings import check as check_embeddings
    from fedweave.reports.html import render

    if embeddings:
        check_embeddings(embeddings)
    runs = read_runs(directories)
    for run in runs:
        if run.finished and (run.directory / CHECKPOINT).is_file():
            Checkpoint.of_run(run.directory)  # a page of one run must not go with the models of another
    page = render(runs, embeddings=embeddings)
    path = out or (directories[0] if len(directories) == 1 else Path()) / "report.html"
    write_page(path, page)
    typer.echo(path)


def compare(
    directories: Annotated[list[Path], typer.Argument(metavar="RUN...", help="The directories of runs.")],
) -> None:
    """Compare runs with the first ones: paired tests over the seeds that both have, with intervals.

    Runs on several data sets or partitions are compared within each of these conditions, and ranked over all.
    """
    from fedweave.experiment.runs.reading import group_runs, read_runs
    from fedweave.python.comparing import check_comparable, check_several
    from fedweave.reports.compare import (
        EXAMPLES_NOTE,
        NOTE,
        comparison_table,
        example_differences,
        headlines,
        over_conditions,
    )
    from fedweave.reports.conditions import conditions
    from fedweave.reports.gains import member_gains
    from fedweave.reports.recipes import training_differences
    from fedweave.reports.terminal import screen, show_cells

    console = screen()
    groups = group_runs(read_runs(directories))
    check_several(groups)
    comparison = conditions(groups)
    if len(comparison) > 1:
        for line in over_conditions(comparison):
            if isinstance(line, str):
                console.print(line, highlight=False, markup=False)
            else:
                show_cells(console, line)
        console.print(NOTE, highlight=False, markup=False)
        for condition in comparison:
            for note in training_differences(condition.groups):
                console.print(note, highlight=False, markup=False)
        return
    check_comparable(groups)
    for sentence in headlines(groups, member_gains(groups)):
        console.print(sentence, highlight=False, markup=False)
    show_cells(console, comparison_table(groups))
    by_example = example_differences(groups)
    if by_example.rows:
        show_cells(console, by_example)
        console.print(EXAMPLES_NOTE, highlight=False, markup=False)
    for note in (NOTE, *training_differences(groups)):
        console.print(note, highlight=False, markup=False)

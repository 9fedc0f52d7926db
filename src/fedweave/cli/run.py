"""The command `fedweave run`; for its help it imports nothing slow."""

import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedweave.cli.options import (
    Algorithm,
    Earlier,
    Experiment,
    Resume,
    Settings,
    Track,
    command_line,
    say,
    with_init_from,
    without_markup,
)
from fedweave.core.text import counted
from fedweave.errors import UserError
from fedweave.experiment.config import read


def run(
    context: typer.Context,
    config: Experiment,
    settings: Settings = None,
    algorithm: Algorithm = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="DIR", help="Where to write (runs/<experiment>-<algorithm>-s<seed>)."),
    ] = None,
    resume: Resume = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that DIR holds.")] = False,
    init_from: Earlier = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors and notices.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print all metrics at the end, and what is not recorded and why.")
    ] = False,
    track: Track = None,
) -> None:
    """Run an experiment and write its metrics, ledger, checkpoint and summary."""
    from fedweave.experiment.runs import run as runs
    from fedweave.experiment.runs.files import is_used
    from fedweave.experiment.runs.resuming import Interrupted, examine, recover
    from fedweave.reports.terminal import Terminal, screen, show_result
    from fedweave.reports.tracking import open_trackers

    if resume and overwrite:
        raise UserError("--resume continues a run and --overwrite replaces it; choose one of them.")
    settings = with_init_from(settings, init_from)
    chosen, notes = read(config, settings, algorithm)
    for note in notes:
        say(escape(f"note: {note}"))
    directory = out or Path("runs") / f"{config.stem}-{chosen.algorithm.label}-s{chosen.general.seed}"

    console = screen(quiet)
    recover(directory)
    finished = examine(chosen, directory, resume) if resume else None
    if finished:
        total = counted(finished["rounds"], "round")
        console.print(f"this run is finished: {finished['rounds']} of {total} done", highlight=False)
        show_result(console, finished, directory, verbose)
        return
    if resume and not is_used(directory):
        console.print(f"note: {directory} holds nothing to continue; starting again", highlight=False, markup=False)

    observers = runs.Observers([Terminal(console), *([open_trackers(track)] if track else [])])
    logger, handler = logging.getLogger("fedweave"), logging.StreamHandler()
    level = logger.level
    if verbose:  # what fedweave's log says of how it computes
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        summary = runs.run(chosen, directory, observers, resume, overwrite=overwrite)
    except Interrupted as error:
        words = command_line(context, omit=("overwrite", "resume"))
        say(f"{without_markup(error)} Continue with: {without_markup(words)} --resume")
        raise typer.Exit(128 + error.signal) from error
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
    show_result(console, summary, directory, verbose)

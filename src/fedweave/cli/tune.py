"""The command `fedweave tune`: a good model for an experiment, found by its validation examples."""

from pathlib import Path
from typing import Annotated

import typer

from fedweave.cli.options import Experiment, Settings, command_line


def tune(
    context: typer.Context,
    config: Experiment,
    minutes: Annotated[
        float | None, typer.Option(min=0.0, metavar="N", help="Minutes for all trials (20, unless --trials is given).")
    ] = None,
    trials: Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of trials.")] = None,
    seeds: Annotated[
        str, typer.Option(metavar="0-2", help="Seeds of each trial, whose mean counts; more are surer, and slower.")
    ] = "0",
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="Folder of the result (tuned/<experiment>).")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin again; otherwise the same command goes on.")
    ] = False,
) -> None:
    """Find a good model and training settings by validation examples, and write them as tuned.toml.

    Optuna proposes settings from a short list for the kind of task: model, layers, width, dropout, normalization,
    learning rate, weight decay, local steps. Weak ones are stopped early. The experiment as it is comes first, so that
    the result is never worse on validation examples. Test examples are not looked at: `fedweave run tuned.toml` does
    that. After Ctrl-C the same command goes on.
    """
    from fedweave.reports.terminal import screen
    from fedweave.sweeps.tuned import show, tune_file

    console = screen()
    folder = out or Path("tuned") / config.stem
    try:
        tuned = tune_file(console, config, settings or [], folder, seeds, trials, minutes, overwrite)
    except KeyboardInterrupt as error:
        typer.echo(f"stopped. Continue with: {command_line(context, omit=('overwrite',))}", err=True)
        raise typer.Exit(130) from error
    show(console, tuned)

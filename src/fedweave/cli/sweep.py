"""The command `fedweave sweep`."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedweave.cli.options import Experiment, Loaded, Settings
from fedweave.core.text import counted
from fedweave.errors import ConfigError, FedweaveError

if not Loaded.for_help:
    from fedweave.papers.grid import PlannedRun
    from fedweave.papers.session import watched
    from fedweave.papers.workers import Stopped
    from fedweave.report.terminal import screen
    from fedweave.sweep import search as seek
    from fedweave.sweep import slurm as scripts
    from fedweave.sweep.plan import check_over, keys_of, planned, share, tries, up_to_date
    from fedweave.sweep.results import Asked, finish, lost


def sweep(
    config: Experiment,
    seeds: Annotated[str, typer.Option(metavar="0-4", help="Seeds, as a range or with commas between.")] = "0-4",
    algorithms: Annotated[str, typer.Option(metavar="A,B", help="Algorithms (the configuration's own).")] = "",
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            metavar="section.key=a,b",
            help="Values to try, all with all; with --search also a range, low..high or low..high,log; "
            "NAME:section.key for one algorithm alone; repeatable.",
        ),
    ] = None,
    search: Annotated[
        int, typer.Option(min=0, metavar="N", help="Try N settings of the grid that Optuna proposes, not all with all.")
    ] = 0,
    sampler: Annotated[str, typer.Option(metavar="NAME", help="How it proposes: tpe, random, qmc or gp.")] = "tpe",
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="section.key",
            help="A key of the grid to compare algorithms over, not to choose by validation; repeatable. Keys of "
            "the sections algorithm and model alone are chosen.",
        ),
    ] = None,
    settings: Settings = None,
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Runs at a time.")] = 1,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="Where it is kept (sweeps/<experiment>).")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Do anew what was run with other code or data; keep the rest.")
    ] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Also sweep.tex, the table for a paper.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Also sweep.csv, a line per run.")] = False,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also figures with captions, as SVG and PDF, by matplotlib.")
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE.py:NAME", help="Also a metric of your own, of final models on test; repeatable."),
    ] = None,
    shard: Annotated[
        str, typer.Option(metavar="I/N", help="Do the I-th of N shares of the runs; the table is made without it.")
    ] = "",
    slurm: Annotated[
        int, typer.Option(min=0, metavar="N", help="Run nothing, but write the script of an array of N jobs.")
    ] = 0,
) -> None:
    """Run an experiment with several seeds, algorithms and settings; finished runs are used again.

    At the end one table, with each algorithm's setting chosen by validation, and one page with all runs and paired
    tests.
    """
    folder, console = out or Path("sweeps") / config.stem, screen()
    tried = tries(config, settings or [], grid or [])
    asked = Asked(keys_of(tried), tuple(over or ()), latex, csv, figures, tuple(metric or ()), tried)
    check_over(asked.over, asked.keys)
    asked.check()
    if search:
        if slurm or shard:
            raise ConfigError("--search: a proposal follows from the results before; leave out --shard and --slurm.")
        seek.check(sampler)
        runs, failed, about = seek.searched(
            config, folder, seeds, algorithms, settings or [], grid or [], asked.over, search, sampler,
            lambda runs: _execute(console, up_to_date(runs, overwrite), jobs),
        )  # fmt: skip
    else:
        runs, about = planned(config, folder, seeds, algorithms, settings or [], grid or [])
    for note in about:
        console.print(f"note: {note}", highlight=False, markup=False)
    if slurm:
        _say(console, *scripts.save(sys.argv[1:], slurm, jobs, folder))
        return
    if not search:
        runs = up_to_date(share(runs, shard) if shard else runs, overwrite)
        failed = _execute(console, runs, jobs)
    if shard and not failed:
        _say(console, f"shard {shard} is done; once all are: {scripts.afterwards(sys.argv[1:])}")
    elif not shard:
        finish(console, folder, runs, failed, asked)
    if failed:
        raise FedweaveError("; ".join(lost(runs, failed, asked.keys)))


def _say(console: "Console", *lines: str) -> None:
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def _execute(console: "Console", runs: "Sequence[PlannedRun]", jobs: int) -> dict[str, str]:
    """Do what is not done yet; {name: why} of what failed."""

    def unfinished() -> list["PlannedRun"]:
        return [run for run in runs if not run.finished()]

    todo = unfinished()
    console.print(f"{counted(len(runs), 'run')}, {len(runs) - len(todo)} of them done already", highlight=False)
    try:
        return watched(console, todo, jobs, len(runs), unfinished)
    except Stopped as error:
        typer.echo(f"{error} Continue with: {shlex.join(['fedweave', *sys.argv[1:]])}", err=True)
        raise typer.Exit(128 + error.signal) from error

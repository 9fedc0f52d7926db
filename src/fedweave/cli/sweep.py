"""The commands `fedweave sweep` and `fedweave reproduce`: many runs, and a table of them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedweave.cli.options import Experiment, Jobs, Settings, command_line
from fedweave.errors import ConfigError, FedweaveError
from fedweave.experiment.config.toml import check_name


def sweep(
    context: typer.Context,
    config: Experiment,
    seeds: Annotated[str, typer.Option(metavar="0-4", help="Seeds, as a range or with commas between.")] = "0-4",
    algorithms: Annotated[str, typer.Option(metavar="A,B", help="Algorithms (the configuration's own).")] = "",
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            metavar="section.key=a,b",
            help="Values to try, in all combinations; with --search also a range, low..high or low..high,log; "
            "NAME:section.key for only one algorithm; repeatable.",
        ),
    ] = None,
    search: Annotated[
        int, typer.Option(min=0, metavar="N", help="Try N settings of the grid that Optuna proposes, not all.")
    ] = 0,
    sampler: Annotated[str, typer.Option(metavar="NAME", help="Optuna's sampler: tpe, random, qmc or gp.")] = "tpe",
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="section.key",
            help="A key of the grid to compare algorithms over, instead of choosing its value by validation; "
            "repeatable. Only keys of the sections algorithm and model are chosen.",
        ),
    ] = None,
    settings: Settings = None,
    jobs: Jobs = 1,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="Folder of the sweep (sweeps/<experiment>).")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Repeat runs with other code or data; keep the rest.")
    ] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Also write sweep.tex, the table for a paper.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Also write sweep.csv, a line per run.")] = False,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write figures with captions, as SVG and PDF (matplotlib).")
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE.py:NAME", help="Also measure your own metric, of final models on test; repeatable."),
    ] = None,
    shard: Annotated[
        str, typer.Option(metavar="I/N", help="Do the I-th of N shares of the runs, without the table.")
    ] = "",
) -> None:
    """Run an experiment with several seeds, algorithms and settings; finished runs are used again.

    It ends with one table, with each algorithm's setting chosen by validation, and one page with all runs and paired
    tests.
    """
    from fedweave.reports.terminal import screen
    from fedweave.sweeps.plan import check_over, grid_of_options, keys_of, plan_runs, share, up_to_date
    from fedweave.sweeps.results import SweepOptions, failure_sentences, finish
    from fedweave.sweeps.scheduler import run_unfinished
    from fedweave.sweeps.search import check_sampler, run_search

    folder, console = out or Path("sweeps") / config.stem, screen()
    whole_grid = grid_of_options(config, settings or [], grid or [])
    options = SweepOptions(keys_of(whole_grid), tuple(over or ()), latex, csv, figures, tuple(metric or ()), whole_grid)
    check_over(options.over, options.keys)
    options.check()
    if search:
        if shard:
            raise ConfigError("--search: proposals depend on earlier results. Leave out --shard.")
        check_sampler(sampler)
        runs, failed, about = run_search(
            config, folder, seeds, algorithms, settings or [], grid or [], options.over, search, sampler,
            lambda runs: _until_stopped(context, partial(run_unfinished, console, up_to_date(runs, overwrite), jobs)),
        )  # fmt: skip
    else:
        runs, about = plan_runs(config, folder, seeds, algorithms, settings or [], grid or [])
    for note in about:
        console.print(f"note: {note}", highlight=False, markup=False)
    if not search:
        runs = up_to_date(share(runs, shard) if shard else runs, overwrite)
        failed = _until_stopped(context, partial(run_unfinished, console, runs, jobs))
    if shard and not failed:
        text = f"shard {shard} is done; once all are, give the same command without --shard"
        console.print(text, highlight=False, soft_wrap=True, markup=False)
    elif not shard:
        finish(console, folder, runs, failed, options)
    if failed:
        raise FedweaveError("; ".join(failure_sentences(runs, failed, options.keys)))


def _until_stopped(context: typer.Context, execute: Callable[[], dict[str, str]]) -> dict[str, str]:
    """What `execute` returns; where a signal stops it, the line that continues it."""
    from fedweave.sweeps.scheduler import Stopped

    try:
        return execute()
    except Stopped as error:
        typer.echo(f"{error} Continue with: {command_line(context)}", err=True)
        raise typer.Exit(128 + error.signal) from error


def reproduce(
    context: typer.Context,
    paper: Annotated[
        str | None, typer.Argument(metavar="PAPER", help="The paper; without it, papers are listed.")
    ] = None,
    table: Annotated[int | None, typer.Option(metavar="N", help="Its table N only.")] = None,
    figure: Annotated[int | None, typer.Option(metavar="N", help="Its figure N only.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A look of some minutes: not comparable.")] = False,
    protocol: Annotated[
        str, typer.Option(metavar="NAME", help="How runs are made and evaluated: clean, or one that the paper lists.")
    ] = "clean",
    one_off: Annotated[
        bool, typer.Option("--one-off", help="Effect of each setting of --protocol, one table instead of all.")
    ] = False,
    data: Annotated[str | None, typer.Option(metavar="NAME", help="Only the cells of one data set.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only rows or columns of this name; may be repeated.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(metavar="A-B", help="These seeds, such as 0-3 or 0,2,5.")] = None,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Folder of runs and tables.")] = Path(
        "reproduced"
    ),
    jobs: Jobs = 1,
) -> None:
    """Run the tables of a paper and print its numbers next to ours; finished runs are used again."""
    from fedweave.papers import selection
    from fedweave.papers.selection import PAPERS, PROTOCOLS
    from fedweave.papers.session import Session
    from fedweave.reports.terminal import screen
    from fedweave.sweeps.scheduler import Stopped

    console = screen()
    if paper is None:
        for name, about in PAPERS.items():
            lines = [f"{name}: {about.title}"]
            lines += [f"  {f'--table {number}':<12}{of_paper.title}" for number, of_paper in about.tables.items()]
            lines += [f"  {f'--figure {number}':<12}{of_paper.title}" for number, of_paper in about.figures.items()]
            for named in PROTOCOLS.get(name, {}):
                lines.append(f"  --protocol {named}, with --one-off: the effect of each of its settings")
            for line in lines:
                console.print(line, highlight=False, markup=False, soft_wrap=True)
        return
    check_name("paper", paper, PAPERS)
    about = PAPERS[paper]
    every = selection.tables(paper, about, PROTOCOLS.get(paper, {}), table, figure, protocol, one_off)
    chosen = selection.of_names(selection.of_data(every, data), only or ())
    session = Session(console, out, quick, jobs, selection.seeds_of(seeds))
    done = True
    try:
        for name, heading, of_paper in chosen:
            done = session.show(name, heading, of_paper) and done
    except Stopped as error:
        typer.echo(f"{error} Continue with: {command_line(context)}", err=True)
        raise typer.Exit(128 + error.signal) from error
    if not done:
        raise typer.Exit(1)

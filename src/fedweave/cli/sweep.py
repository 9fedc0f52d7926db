"""The command `fedweave sweep`."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedweave.cli.options import Experiment, Settings
from fedweave.core.text import counted
from fedweave.errors import FedweaveError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from fedweave.papers.grid import PlannedRun


def sweep(
    config: Experiment,
    seeds: Annotated[str, typer.Option(metavar="0-4", help="Seeds, as a range or with commas between.")] = "0-4",
    algorithms: Annotated[str, typer.Option(metavar="A,B", help="Algorithms (the configuration's own).")] = "",
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", metavar="section.key=a,b", help="Values to try, all with all; repeatable."),
    ] = None,
    settings: Settings = None,
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Runs at a time.")] = 1,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="Where it is kept (sweeps/<experiment>).")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Do anew what was run with other code or data; keep the rest.")
    ] = False,
) -> None:
    """Run an experiment with several seeds, algorithms and settings; finished runs are used again.

    At the end one table, for choosing by validation accuracy, and one page with all runs and paired tests.
    """
    from fedweave.experiment.runs.files import write
    from fedweave.papers.workers import Stopped
    from fedweave.report.html import render
    from fedweave.report.reading import grouped, read_runs
    from fedweave.report.terminal import screen, show_cells
    from fedweave.report.training import unlike
    from fedweave.sweep.plan import planned, up_to_date
    from fedweave.sweep.table import lost, markdown, results, told

    folder, console = out or Path("sweeps") / config.stem, screen()
    runs, about = planned(config, folder, seeds, algorithms, settings or [], grid or [])
    runs = up_to_date(runs, overwrite)
    for note in about:
        console.print(f"note: {note}", highlight=False, markup=False)
    try:
        failed = _execute(console, runs, jobs)
    except Stopped as error:
        typer.echo(f"{error} Continue with: {shlex.join(['fedweave', *sys.argv[1:]])}", err=True)
        raise typer.Exit(128 + error.signal) from error
    done = [run.directory for run in runs if run.name not in failed]
    if not done:
        raise FedweaveError(f"no run succeeded; the first says: {failed[runs[0].name]}")
    read = read_runs(done)
    groups = grouped(read)
    found, notes = results(groups), told(groups)
    show_cells(console, found)
    for note in (*notes, *unlike(groups)):
        console.print(note, highlight=False, markup=False)
    gone = lost(runs, failed, grid or [])
    page = render(read, gone)
    write(folder / "report.html", lambda file: file.write(page.encode()))
    write(folder / "sweep.md", lambda file: file.write(markdown(found, notes, gone).encode()))
    console.print(f"files: {folder}/sweep.md, {folder}/report.html", highlight=False, soft_wrap=True, markup=False)
    if failed:
        raise FedweaveError("; ".join(gone))


def _execute(console: "Console", runs: "Sequence[PlannedRun]", jobs: int) -> dict[str, str]:
    """Do what is not done yet; {name: why} of what failed."""
    from fedweave.papers.session import watched

    def unfinished() -> list["PlannedRun"]:
        return [run for run in runs if not run.finished()]

    todo = unfinished()
    console.print(f"{counted(len(runs), 'run')}, {len(runs) - len(todo)} of them done already", highlight=False)
    return watched(console, todo, jobs, len(runs), unfinished)

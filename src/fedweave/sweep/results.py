"""The end of a sweep: its tables, page, charts, and what papers need of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedweave.errors import FedweaveError
from fedweave.experiment.runs.files import write
from fedweave.papers.grid import PlannedRun
from fedweave.report.html import render
from fedweave.report.reading import Group, grouped, read_runs
from fedweave.report.terminal import show_cells
from fedweave.report.training import unlike
from fedweave.sweep import charts, choosing, figures, paper, table

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Asked:
    """What the command asked for. keys: of the grid. over: those of them to compare over. figures: where to draw."""

    keys: tuple[str, ...]
    over: tuple[str, ...] = ()
    latex: bool = False
    csv: bool = False
    figures: Path | None = None

    def check(self) -> None:
        """Refuse before anything runs what could not be drawn.

        Raises:
            UserError: matplotlib is not installed.
        """
        if self.figures is not None:
            figures.check()


def finish(
    console: "Console", folder: Path, runs: Sequence[PlannedRun], failed: Mapping[str, str], asked: Asked
) -> None:
    """Show and save what the runs that did not fail found.

    Raises:
        FedweaveError: all failed.
    """
    done = [run.directory for run in runs if run.name not in failed]
    if not done:
        raise FedweaveError(f"no run succeeded; the first says: {failed[runs[0].name]}")
    read = read_runs(done)
    groups = grouped(read)
    rows, notes, gone = table.results(groups), [*table.told(groups)], table.lost(runs, failed, asked.keys)
    show_cells(console, rows)
    apart = choosing.conditions(asked.keys, asked.over)
    chosen = choosing.choose(groups, asked.keys, apart)
    above = list[str]()
    if asked.keys and chosen:
        best = choosing.table(chosen, table.COLUMNS)
        show_cells(console, best)
        notes += choosing.told(chosen)
        above = ["Settings chosen by validation:", table.rows_of(best), "All:"]
    for note in (*notes, *(one for alike in choosing.by_condition(groups, apart) for one in unlike(alike))):
        console.print(note, highlight=False, markup=False)
    text = table.markdown(rows, notes, gone, above)
    files = [folder / "sweep.md", folder / "report.html"]
    for path, content in zip(files, (text, render(read, gone)), strict=True):
        _save(path, content)
    files += _for_papers(folder, groups, chosen, asked)
    console.print(f"files: {', '.join(map(str, files))}", highlight=False, soft_wrap=True, markup=False)


def _for_papers(folder: Path, groups: Sequence[Group], chosen: Sequence[choosing.Chosen], asked: Asked) -> list[Path]:
    """What was asked for besides, and charts over numbers of the grid; the files written.

    Raises:
        FedweaveError: a table or figures are wanted, and nothing could be chosen.
    """
    if not chosen and (asked.latex or asked.figures is not None):
        raise FedweaveError(
            "--latex and --figures show what is best by validation, and these runs have no validation examples, or no "
            "metric that judges them all; --csv has all numbers."
        )
    over = charts.charts(chosen)
    files = [Path(path) for path in charts.draw(over, folder)]
    if asked.latex:
        files.append(_save(folder / "sweep.tex", paper.latex(chosen)))
    if asked.csv:
        files.append(_save(folder / "sweep.csv", paper.rows_of(groups, chosen, asked.keys)))
    if asked.figures is not None:
        files += [Path(path) for path in figures.save([*over, *charts.over_rounds(chosen)], asked.figures)]
    return files


def _save(path: Path, text: str) -> Path:
    write(path, lambda file: file.write(text.encode()))
    return path

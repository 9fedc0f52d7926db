"""The end of a sweep: its tables, page, charts, and what papers need of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedweave.errors import FedweaveError
from fedweave.experiment.config import Config
from fedweave.experiment.runs.files import write
from fedweave.experiment.runs.own_metrics import function, of_run
from fedweave.papers.grid import PlannedRun
from fedweave.report.html import Choice, render
from fedweave.report.reading import Group, Run, grouped, read_runs
from fedweave.report.terminal import show_cells
from fedweave.report.training import unlike
from fedweave.sweep import charts, choosing, figures, paper, table

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Asked:
    """What the command asked for. keys: of the grid. over: those of them to compare over. figures: where to draw.
    metrics: functions of one's own, by name. grid: {key or NAME:key: values as TOML, or a range}."""

    keys: tuple[str, ...]
    over: tuple[str, ...] = ()
    latex: bool = False
    csv: bool = False
    figures: Path | None = None
    metrics: tuple[str, ...] = ()
    grid: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse before anything runs what could not be drawn.

        Raises:
            UserError: matplotlib is not installed, or there is no such function.
        """
        for name in self.metrics:
            function(name)
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
    own = _measured(read, {run.directory: run.config for run in runs}, asked.metrics)
    groups = grouped(read)
    columns = table.headings(groups, own)
    rows, notes, gone = table.results(groups, columns), [*table.told(groups)], table.lost(runs, failed, asked.keys)
    show_cells(console, rows)
    apart = choosing.conditions(asked.keys, asked.over)
    chosen = choosing.choose(groups, asked.keys, apart, asked.grid)
    above, choice, compared = list[str](), None, groups
    if asked.keys and chosen:
        best = choosing.table(chosen, columns)
        show_cells(console, best)
        about = [*choosing.told(chosen)]
        above = ["Settings chosen by validation:", table.rows_of(best), "All:"]
        choice = Choice(best, rows, (*notes, *about))
        notes += about
        compared = grouped([run for one in chosen for run in one.group.runs])
    for note in (*notes, *(one for alike in choosing.by_condition(compared, apart) for one in unlike(alike))):
        console.print(note, highlight=False, markup=False)
    text = table.markdown(rows, notes, gone, above)
    files = [folder / "sweep.md", folder / "report.html"]
    page = render([run for group in compared for run in group.runs], gone, choice)
    for path, content in zip(files, (text, page), strict=True):
        _save(path, content)
    files += _for_papers(folder, groups, chosen, asked)
    console.print(f"files: {', '.join(map(str, files))}", highlight=False, soft_wrap=True, markup=False)


def _measured(runs: Sequence[Run], configs: Mapping[Path, Config], names: Sequence[str]) -> dict[str, str]:
    """Put what functions of one's own say of the runs' test examples into their summaries; {metric: heading}."""
    columns = dict[str, str]()
    for name in names:
        metric = function(name)
        for run in runs:
            found = of_run(run.directory, metric, config=configs[run.directory])
            values = {f"own/local/{found.name}": found.local, f"own/pooled/{found.name}": found.pooled}
            run.summary["metrics"] |= {key: value for key, value in values.items() if math.isfinite(value)}
            columns |= {f"own/local/{found.name}": f"{found.name}, test", f"own/pooled/{found.name}": "pooled"}
    return columns


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

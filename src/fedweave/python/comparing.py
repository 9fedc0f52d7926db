"""Comparing and reporting runs from Python: tables as Arrow's, figures as SVG, and the commands' sentences."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from fedweave.core.shown import Shown
from fedweave.core.text import counted
from fedweave.core.types import Record
from fedweave.errors import UserError
from fedweave.experiment.runs.files import write, write_page
from fedweave.experiment.runs.reading import Group, Run, group_runs, read_runs
from fedweave.python.training import SavedRun
from fedweave.reports.compare import NOTE, comparison_table, headlines, metrics_compared, over_conditions, verdicts
from fedweave.reports.conditions import conditions, incomparability
from fedweave.reports.embeddings import check as check_embeddings
from fedweave.reports.embeddings import picture
from fedweave.reports.figures import accuracy_over_bytes, client_accuracy, curves, traffic
from fedweave.reports.gains import member_gains
from fedweave.reports.html import figure_html, render
from fedweave.reports.paired import interval
from fedweave.reports.recipes import training_differences

if TYPE_CHECKING:
    import pandas as pd

RunPath = str | Path | SavedRun
_COSTS = ("rounds", "seconds", "bytes_up", "bytes_down")


@dataclass(frozen=True)
class Picture:
    """A figure of the report.

    html: the figure as in pages, for notebooks.
    """

    html: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return f"Picture({self.html.count('<svg')} panels)"

    def save(self, path: str | Path) -> Path:
        """Write an HTML file with only this figure, and return its path."""
        file = Path(path).expanduser()
        write(file, lambda opened: opened.write(self.html.encode()))
        return file


@dataclass(frozen=True, repr=False)
class Results(Shown):
    """Results of several runs.

    runs:      a row per run: its directory, the label of its group, algorithm, data, seed, and every number of its
               summary.
    sentences: the command's first sentences. notes: how to read the tables.
    figures:   by name: "curves" over rounds, "clients" by their accuracy, "bytes" for the accuracy over the bytes that
               clients sent, "traffic" for bytes over rounds.
    clients:   a row per run and client: every metric of the client's test examples in the run's last evaluation.
    """

    runs: pa.Table
    sentences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    figures: Mapping[str, Picture] = field(default_factory=dict)
    clients: pa.Table = field(default_factory=lambda: pa.table({}))

    @property
    def table(self) -> pa.Table:
        """The table for display: a row per run."""
        return self.runs

    def to_pandas(self) -> "pd.DataFrame":
        """`table` as a data frame of pandas.

        Raises:
            UserError: pandas is not installed.
        """
        try:
            return self.table.to_pandas()
        except ModuleNotFoundError as error:
            raise UserError(
                "data frames need pandas, which is not installed: pip install pandas. `table` is Arrow's.",
                code="user.no-pandas",
            ) from error

    def facts(self) -> dict[str, object]:
        """The number of runs, and the sentences."""
        words = {"says": " ".join(self.sentences)} if self.sentences else {}
        return {"": counted(len(self.runs), "run"), **words}

    def _repr_html_(self) -> str:
        """The sentences, and the first rows and columns of the table."""
        parts = [f"<p>{escape(sentence)}</p>" for sentence in (*self.sentences, *self.notes)]
        table, max_rows, max_columns = self.table, 20, 12
        parts.append("<table><tr>")
        names = table.column_names[:max_columns]
        parts += [f"<th>{escape(name)}</th>" for name in names]
        parts.append("</tr>")
        for row in table.slice(0, max_rows).to_pylist():
            parts.append("<tr>")
            for name in names:
                text = f"{row[name]:.4f}" if isinstance(row[name], float) else str(row[name])
                parts.append(f"<td>{'' if row[name] is None else escape(text)}</td>")
            parts.append("</tr>")
        is_cut = len(table) > max_rows or table.num_columns > max_columns
        size = f"{len(table):,} rows, {table.num_columns} columns" if is_cut else ""
        return f"<div>{''.join(parts)}</table><p>{size}</p></div>"


@dataclass(frozen=True, repr=False)
class Comparison(Results):
    """Runs compared with the first ones, paired over the seeds that both have.

    paired: a row for each group of runs but the first, and each metric: the mean difference, its 95 % interval, the
            number of seeds, and the verdict "better" or "worse" where the page has a mark, else "".
    """

    paired: pa.Table = field(default_factory=lambda: pa.table({}))

    @property
    def table(self) -> pa.Table:
        """`paired`."""
        return self.paired


@dataclass(frozen=True, repr=False)
class ReportPage(Results):
    """A report about runs, as `fedweave report` writes it.

    page: its HTML.
    """

    page: str = ""

    def save(self, path: str | Path) -> Path:
        """Write the page, and return its path.

        Raises:
            UserError: the file is something else, or cannot be written.
        """
        file = Path(path).expanduser()
        write_page(file, self.page)
        return file

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.page)}" width="100%" height="700" style="border:0"></iframe>'


def compare(*runs: RunPath | Sequence[RunPath]) -> Comparison:
    """Compare runs, by their directories or as `fedweave.run` returned them, with the first ones: paired tests over the
    seeds that both have, as `fedweave compare` does.

    Raises:
        UserError: the runs have only one experiment and algorithm, or they cannot be compared.
    """
    groups = group_runs(read_runs(_directories(runs)))
    check_several(groups)
    comparison = conditions(groups)
    several = len(comparison) > 1
    if several:
        words = [line for line in over_conditions(comparison) if isinstance(line, str)]
    else:
        check_comparable(groups)
        words = headlines(groups, member_gains(groups))
    rows, notes = list[Record](), [NOTE]
    for condition in comparison:
        notes += training_differences(condition.groups)
        title: Record = {"condition": condition.title} if several else {}
        rows += [title | row for row in paired_rows(condition.groups)]
    pictures = figures_of(groups)
    return Comparison(table_of(groups), tuple(words), tuple(notes), pictures, clients_of(groups), rows_of(rows))


def report(*runs: RunPath | Sequence[RunPath], embeddings: str = "") -> ReportPage:
    """A report about one or several runs, with their table and figures: results, clients, fairness, partition, and what
    leaves a client.

    embeddings: "tsne" or "pca" also draws the last layer's input for test examples, for the first run of each
    experiment; the figure "embeddings" is the first of these.

    Raises:
        UserError: a directory is not a run's, there is no such picture, or a run has no embeddings.
    """
    if embeddings:
        check_embeddings(embeddings)
    read = read_runs(_directories(runs))
    groups = group_runs(read)
    pictures = figures_of(groups)
    figure = picture(groups[0].first, embeddings) if embeddings else None
    if figure is not None:
        pictures["embeddings"] = Picture(str(figure_html(figure, "embeddings")))
    return ReportPage(
        table_of(groups), figures=pictures, clients=clients_of(groups), page=render(read, embeddings=embeddings)
    )


def check_several(groups: Sequence[Group]) -> None:
    """Raise an error if all runs belong to one experiment.

    Raises:
        UserError: explains which runs to give instead.
    """
    if sum(len(group.runs) for group in groups) < 2:
        raise UserError(
            f"{groups[0].first.directory} is one run; give another to compare it with.", code="user.comparing"
        )
    if len(groups) < 2:
        raise UserError(
            "these runs differ only in the seed; give runs of at least two experiments or algorithms.",
            code="user.comparing",
        )


def check_comparable(groups: Sequence[Group]) -> None:
    """Raise an error if groups of runs in one condition cannot be compared.

    Raises:
        UserError: explains which runs to give instead.
    """
    reason = incomparability(groups)
    if reason:
        raise UserError(
            f"{reason}. A difference between them does not answer the question of the runs.", code="user.comparing"
        )
    if not comparison_table(groups).rows:
        raise UserError(
            f"{groups[0].label} shares no seed with the others; give runs with the same seeds.", code="user.comparing"
        )


def table_of(groups: Sequence[Group], more: Callable[[Run], Record] = lambda run: {}) -> pa.Table:
    """A row per run (`Results.runs`); more: further values of each run, after its seed."""
    rows = []
    for group in groups:
        for run in group.runs:
            row = _description(group, run) | more(run)
            numbers = {key: run.summary.get(key) for key in _COSTS} | run.summary["metrics"]
            for name, value in numbers.items():
                if isinstance(value, int | float) and math.isfinite(value):
                    row[name] = float(value)
            rows.append(row)
    return rows_of(rows)


def _description(group: Group, run: Run) -> Record:
    about = {"group": group.label, "run": str(run.directory), "algorithm": run.summary["algorithm"]}
    return about | {"data": run.summary["dataset"], "seed": run.config.get("seed", 0)}


def clients_of(groups: Sequence[Group]) -> pa.Table:
    """A row per run and client (`Results.clients`)."""
    rows = []
    for group in groups:
        for run in group.runs:
            about = _description(group, run)
            rows += [about | {"client": client, **values} for client, values in run.of_clients().items()]
    return rows_of(rows)


def paired_rows(groups: Sequence[Group]) -> list[Record]:
    """A row for each group but the first and each compared metric (`Comparison.paired`)."""
    rows = []
    for name in metrics_compared(groups):
        for group, differences, sign in verdicts(groups, name):
            low, high = interval(differences)
            row: Record = {"group": group.label, "against": groups[0].label, "metric": name, "seeds": len(differences)}
            row |= {"difference": statistics.fmean(differences), "low": low, "high": high}
            rows.append(row | {"verdict": {1: "better", -1: "worse", 0: ""}[sign]})
    return rows


def rows_of(rows: Iterable[Record]) -> pa.Table:
    """A table of {column: value}; null where a row lacks a column, and text where values have several types."""
    rows, columns = [*rows], {}
    for name in dict.fromkeys(chain.from_iterable(rows)):
        values = [row.get(name) for row in rows]
        try:
            columns[name] = pa.array(values, from_pandas=True)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            columns[name] = pa.array([None if value is None else str(value) for value in values])
    return pa.table(columns)


def figures_of(groups: Sequence[Group]) -> dict[str, Picture]:
    """The figures of runs that are not empty."""
    figures = {
        "curves": curves(groups),
        "clients": client_accuracy(groups),
        "bytes": accuracy_over_bytes(groups),
        "traffic": traffic(groups),
    }
    return {name: Picture(str(figure_html(figure, name))) for name, figure in figures.items() if figure is not None}


def _directories(runs: Sequence[RunPath | Sequence[RunPath]]) -> list[Path]:
    """The directories of runs, which are arguments one by one, or lists."""
    directories = []
    for argument in runs:
        for run in argument if isinstance(argument, list | tuple) else [argument]:
            directories.append(run.directory if isinstance(run, SavedRun) else Path(str(run)).expanduser())
    if not directories:
        raise UserError("give the directories of runs.", code="user.comparing")
    return directories

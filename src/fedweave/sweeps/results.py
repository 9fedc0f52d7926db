"""The end of a sweep: its tables, with means over seeds, on the terminal, as Markdown and CSV; its report and files for
papers.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedweave.apply.own_metrics import load_metric, measure_run
from fedweave.core.text import capitalized, counted, markdown_table
from fedweave.core.types import Record
from fedweave.errors import FedweaveError
from fedweave.experiment.config import Config, flat
from fedweave.experiment.runs.files import write
from fedweave.experiment.runs.reading import Group, Run, common_selection_metric, group_runs, read_runs
from fedweave.metrics import selection
from fedweave.metrics.selection import (
    ALL_EXAMPLES,
    BEST,
    MEMBER_MEAN,
    PLAIN,
    WORDS_OF_PLACES,
    WORST_MEMBER,
    title_of,
)
from fedweave.reports.cells import Cell, ResultTable, mean_cell, number
from fedweave.reports.compare import headlines, over_conditions
from fedweave.reports.conditions import Condition, alone_first, conditions, settings_text
from fedweave.reports.gains import member_gains
from fedweave.reports.html import SelectedRuns, group_verdicts, render
from fedweave.reports.recipes import training_differences
from fedweave.reports.terminal import show_cells
from fedweave.sweeps import choosing, figures
from fedweave.sweeps.charts import charts_over_keys, save_svg
from fedweave.sweeps.choosing import ChosenSetting, is_number
from fedweave.sweeps.comparison import choices_by_condition, rows_by_condition
from fedweave.sweeps.latex import latex
from fedweave.sweeps.runs import PlannedRun

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = {
    f"{BEST}/val/{{}}": "validation",
    "local/{}": MEMBER_MEAN,
    "global/{}": ALL_EXAMPLES,
    "fairness/worst_{}": WORST_MEMBER,
    "alone/local/{}": WORDS_OF_PLACES["alone"],
    "shelf/local/{}": WORDS_OF_PLACES["shelf"],
    "shelf_joint/local/{}": WORDS_OF_PLACES["shelf_joint/local"],
}
OF_POSITIVE = {  # additional columns if the selection metric is of a positive class
    "pooled/{}": WORDS_OF_PLACES["pooled"],
    "pooled/recall_at_1": "recall at 1 %",
    "pooled/recall": "recall at threshold",
}
WITHOUT_COMMON_METRIC = {
    "pooled/auc": f"AUC, {WORDS_OF_PLACES['pooled']}",
    "within/auc": f"AUC, {WORDS_OF_PLACES['within']}",
    "global/macro_f1": "macro F1",
}
NOTE = (
    "{}, mean ± standard deviation over seeds, on test examples, of each run's chosen round (the last round without "
    "validation examples). Choose settings by “validation”: the member mean of the validation {} in that round."
)
NOTE_WITHOUT_COMMON_METRIC = (
    "The runs have different selection metrics ([evaluation] metric), so no setting can be chosen among them."
)


@dataclass(frozen=True)
class SweepOptions:
    """The options of the command. keys: keys of the grid. over: keys to compare over. figures: folder of figures.
    metrics: the user's own functions, by name. grid: {key or NAME:key: values as TOML, or a range}."""

    keys: tuple[str, ...]
    over: tuple[str, ...] = ()
    latex: bool = False
    csv: bool = False
    figures: Path | None = None
    metrics: tuple[str, ...] = ()
    grid: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def check(self) -> None:
        """Raise an error, before anything runs, if an option cannot be fulfilled.

        Raises:
            UserError: matplotlib is not installed, or there is no such function.
        """
        for name in self.metrics:
            load_metric(name)
        if self.figures is not None:
            figures.check()


def finish(
    console: "Console", folder: Path, runs: Sequence[PlannedRun], failed: Mapping[str, str], options: SweepOptions
) -> tuple[list[Group], list[ChosenSetting]]:
    """Show and save the results of the runs that did not fail; returns their groups, and validation's choices.

    Raises:
        FedweaveError: all runs failed.
    """
    # 1. Read the runs, and choose each algorithm's setting in every condition.
    succeeded = [run.directory for run in runs if run.name not in failed]
    if not succeeded:
        raise FedweaveError(f"no run succeeded; the first error: {failed[runs[0].name]}")
    read = read_runs(succeeded)
    own_columns = _add_metrics(read, {run.directory: run.config for run in runs}, options.metrics)
    groups = group_runs(read)
    columns = headings(groups, own_columns)
    condition_keys = choosing.conditions(options.keys, options.over)
    choices = choosing.choose(groups, options.keys, condition_keys, options.grid)

    # 2. The tables: all runs, and those with the chosen settings.
    table = result_table(groups, columns)
    show_cells(console, table)
    notes = list(describe_numbers(groups, choices))
    failures = failure_sentences(runs, failed, options.keys)
    above: list[str] = []  # parts of the Markdown file above the table of all runs
    selected = None
    compared = alone_first(groups)
    if options.keys and choices:
        best = choosing.table(choices, columns)
        show_cells(console, best)
        about_choices = list(choosing.describe_choices(choices))
        above = ["Settings chosen by validation:", table_as_markdown(best)]
        selected = SelectedRuns(best, table, (*notes, *about_choices))
        notes += about_choices
        compared = alone_first(group_runs([run for choice in choices for run in choice.group.runs]))

    # 3. Algorithms compared, in each condition and over all.
    for line in comparison_lines(compared, conditions(compared, condition_keys)):
        if isinstance(line, ResultTable):
            show_cells(console, line)
            above.append(table_as_markdown(line))
        else:
            console.print(line, highlight=False, markup=False)
            above.append(line)
    notes += group_verdicts(compared)
    warnings = []
    for same_condition in choosing.groups_by_condition(compared, condition_keys):
        warnings += training_differences(same_condition)
    for note in (*notes, *warnings):
        console.print(note, highlight=False, markup=False)

    # 4. The files.
    if above:
        above.append("All:")
    page = render([run for group in compared for run in group.runs], failures, selected, condition_keys)
    files = [
        _save(folder / "sweep.md", markdown(table, notes, failures, above)),
        _save(folder / "report.html", page),
        *_save_for_papers(folder, groups, choices, options),
    ]
    console.print(f"files: {', '.join(map(str, files))}", highlight=False, soft_wrap=True, markup=False)
    return groups, choices


def _add_metrics(runs: Sequence[Run], configs: Mapping[Path, Config], names: Sequence[str]) -> dict[str, str]:
    """Add the results of the user's own functions on test examples to the summaries; returns {metric: heading}."""
    columns: dict[str, str] = {}
    for name in names:
        metric = load_metric(name)
        for run in runs:
            result = measure_run(run.directory, metric, config=configs[run.directory])
            local_key = f"own/local/{result.name}"
            pooled_key = f"own/pooled/{result.name}"
            columns |= {local_key: f"{result.name}, test", pooled_key: "pooled"}
            for key, value in ((local_key, result.local), (pooled_key, result.pooled)):
                if math.isfinite(value):
                    run.summary["metrics"][key] = value
    return columns


def headings(groups: Sequence[Group], further: Mapping[str, str]) -> dict[str, str]:
    """{metric: heading} of the tables of such runs; further: additional columns."""
    metric = common_selection_metric(groups)
    columns = dict(WITHOUT_COMMON_METRIC)
    if metric:
        patterns = COLUMNS | (OF_POSITIVE if metric in selection.OF_POSITIVE else {})
        columns = {pattern.format(metric): words for pattern, words in patterns.items()}
    return {**columns, **further, "seconds": "seconds"}


def result_table(groups: Sequence[Group], columns: Mapping[str, str]) -> ResultTable:
    """A row for each group of runs that differ only in the seed; columns: {metric: heading}."""
    metrics = choosing.metrics_with_values(groups, columns)
    rows = []
    for group in groups:
        cells = [mean_cell(group.values(metric), number) for metric in metrics]
        rows.append((Cell(group.label), Cell(str(len(group.runs))), *cells))
    return ResultTable(("run", "seeds", *(columns[metric] for metric in metrics)), tuple(rows))


def describe_numbers(groups: Sequence[Group], choices: Sequence[ChosenSetting] = ()) -> tuple[str, ...]:
    """A note on the numbers and the selection metric."""
    metric = common_selection_metric(groups)
    if metric:
        title = title_of(metric)
        return (NOTE.format("Accuracies" if metric == PLAIN else capitalized(title), title),)
    if not choices:
        return (NOTE_WITHOUT_COMMON_METRIC,)
    metrics = dict.fromkeys(f"{title_of(choice.metric)} ({settings_text(choice.condition)})" for choice in choices)
    return (f"Each condition has its own selection metric: {', '.join(metrics)}.",)


def failure_sentences(runs: Sequence[PlannedRun], failed: Mapping[str, str], grid: Sequence[str]) -> list[str]:
    """A sentence for each failed run, with its values of the grid's keys: the table has no row of it.

    failed: {name of the run: why}. grid: "section.key=value,value,…".
    """
    keys = [text.partition("=")[0].strip() for text in grid]
    sentences = []
    for run in runs:
        if run.name in failed:
            settings = flat(run.config.plain())
            values = ", ".join(f"{key} = {settings[key]}" for key in keys if key in settings)
            values = f" ({values})" if values else ""
            sentences.append(f"{run.name}{values} failed: {failed[run.name]}")
    return sentences


def comparison_lines(groups: Sequence[Group], condition_list: Sequence[Condition]) -> list[str | ResultTable]:
    """The comparison of groups of runs, in each condition and over all conditions."""
    if len(condition_list) > 1:
        return over_conditions(condition_list)
    if len(groups) < 2:
        return []
    return [*headlines(groups, member_gains(groups), condition_list[0].metric_name if condition_list else "")]


def markdown(table: ResultTable, notes: Sequence[str], failures: Sequence[str], above: Sequence[str] = ()) -> str:
    """The table as Markdown, after the text `above`; then its `notes` and the failed runs that it lacks."""
    missing = [f"Not in the table: {counted(len(failures), 'failed run')}."] if failures else []
    listed = [f"- {sentence}" for sentence in failures]
    return "\n\n".join([*above, table_as_markdown(table), *notes, *missing, *listed]) + "\n"


def table_as_markdown(table: ResultTable) -> str:
    """A table as Markdown."""
    rule = ["---" if at < table.words else "---:" for at in range(len(table.head))]
    rows = [[cell.text for cell in row] for row in table.rows]
    return markdown_table([table.head, rule, *rows])


def _save_for_papers(
    folder: Path, groups: Sequence[Group], choices: Sequence[ChosenSetting], options: SweepOptions
) -> list[Path]:
    """Write the optional files, and charts over numbers of the grid; returns the files.

    Raises:
        FedweaveError: a table or figures are requested, and no setting could be chosen.
    """
    if not choices and (options.latex or options.figures is not None):
        raise FedweaveError(
            "--latex and --figures show the best by validation, and these runs have no validation examples, or no "
            "common selection metric; --csv has all numbers."
        )
    files = save_svg(charts_over_keys(choices), folder)
    if options.latex:
        files.append(_save(folder / "sweep.tex", latex(choices)))
    if options.csv:
        files.append(_save(folder / "sweep.csv", runs_as_csv(groups, choices, options.keys)))
        if len(choices_by_condition(choices)) > 1:
            files.append(_save(folder / "sweep-conditions.csv", _as_csv(rows_by_condition(choices))))
    if options.figures is not None:
        files += figures.save_figures(choices, options.figures)
    return files


def runs_as_csv(groups: Sequence[Group], choices: Sequence[ChosenSetting], keys: Sequence[str]) -> str:
    """A line of CSV per run: its directory, algorithm, seed and values of the grid's keys, whether its setting was
    chosen, and every number of its summary."""
    chosen_directories = {choice.group.runs[0].directory for choice in choices}
    lines = []
    for group in groups:
        chosen = group.runs[0].directory in chosen_directories
        for run in group.runs:
            settings = flat(run.config)
            line: Record = {
                "run": run.directory.name,
                "algorithm": run.summary["algorithm"],
                "seed": run.config.get("seed", 0),
            }
            line |= {key: settings.get(key, "") for key in keys}
            line["chosen"] = int(chosen)
            line |= {key: value for key, value in run.summary.items() if key in ("seconds", "bytes_up", "bytes_down")}
            for key, value in run.summary["metrics"].items():
                if is_number(value) and math.isfinite(value):
                    line[key] = value
            lines.append(line)
    return _as_csv(lines)


def _as_csv(lines: Sequence[Record]) -> str:
    head = list(dict.fromkeys(key for line in lines for key in line))
    file = io.StringIO()
    writer = csv.DictWriter(file, head, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


def _save(path: Path, text: str) -> Path:
    write(path, lambda file: file.write(text.encode()))
    return path

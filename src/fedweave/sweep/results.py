"""The end of a sweep: its tables, a row per combination of settings with means over seeds, its report, charts, and
files for papers.
"""

import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fedweave.core.text import counted, markdown_table
from fedweave.core.types import NUMBER, Record, Values
from fedweave.errors import FedweaveError, UserError
from fedweave.experiment.config import Config, flat
from fedweave.experiment.runs.files import plain_errors, write
from fedweave.experiment.runs.predictions import function, of_run
from fedweave.metrics import selection
from fedweave.metrics.selection import METRICS, PLAIN, rank, title_of
from fedweave.reports.cells import (
    LEAST_SEEDS,
    Cell,
    ResultTable,
    marked,
    measured,
    number,
    paired_differences,
    signs,
    unlike,
)
from fedweave.reports.compare import headlines, over_conditions
from fedweave.reports.conditions import Condition, Ranks, conditions, effect, in_words, placed, short
from fedweave.reports.drawing import COLORS, DASHES
from fedweave.reports.figures import mean_sent
from fedweave.reports.html import SelectedRuns, render
from fedweave.reports.pictures import Point, curves, mean_curve, save_picture
from fedweave.reports.reading import Group, Run, common_selection_metric, grouped, read_runs, spread
from fedweave.reports.tables import gains
from fedweave.reports.terminal import show_cells
from fedweave.sweep import choosing
from fedweave.sweep.choosing import Chosen, is_number
from fedweave.sweep.runs import PlannedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console


# ----------------------------------------------------------------------------------------------------
# Files for papers: a table in LaTeX, a caption that describes the runs, and every run's numbers as CSV.


_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SPECIAL |= {mark: f"\\{mark}" for mark in "&%$#_{}"} | {"±": r"$\pm$", "ε": r"$\varepsilon$"}
_NOISES = {  # the first of each kind is the default
    ("features", "mask"): "share of nonzero features masked",
    ("features", "gauss"): "noise on features, in standard deviations",
    ("edges", "drop"): "share of edges dropped",
    ("edges", "rewire"): "share of edges rewired",
    ("labels", "flip"): "share of training labels flipped",
    ("labels", "remove"): "share of training labels removed",
}
_TRAINING = ("local_steps", "optimizer", "lr", "weight_decay")
WHEN = "mean over clients, in the round that is best on validation examples"


def latex(choices: Sequence[Chosen]) -> str:
    """A `table` with booktabs' rules: algorithms down, conditions across. A result is bold if it is better than every
    other in its column by a paired test over seeds. With several conditions the last column has the mean ranks."""
    rows = list(dict.fromkeys(one.algorithm for one in choices))
    columns = list(dict.fromkeys(in_words(one.condition) for one in choices))
    at = {(one.algorithm, in_words(one.condition)): one for one in choices}
    cells = {column: _column([at.get((row, column)) for row in rows]) for column in columns}
    column_heads = {in_words(one.condition): _head(one.condition) for one in choices}
    heads = [escaped(column_heads[column] or worded(choices[0].metric)) for column in columns]
    order = placed_over(choices)
    if order is not None:
        cells["rank"] = [f"{order.means[row]:.2f}" for row in rows]
        heads.append("mean rank")
    body = [
        " & ".join([escaped(row), *(column[number] for column in cells.values())]) for number, row in enumerate(rows)
    ]
    metrics = list(dict.fromkeys(worded(one.metric) for one in choices))
    what = f"Test {' or '.join(metrics)} in %, {WHEN}"
    tested = any(len(one.by_seed()) >= LEAST_SEEDS for one in choices)
    bold = " Bold: better than every other by a paired test over seeds." if tested else ""
    bold += "" if order is None else f" {escaped(order.sentence())}"
    lines = [
        r"\begin{table}",
        rf"  \caption{{{escaped(caption(choices, what))}{bold}}}",
        r"  \label{tab:sweep}",
        rf"  \begin{{tabular}}{{l{'r' * len(cells)}}}",
        r"    \toprule",
        rf"    {' & '.join(['algorithm', *heads])} \\",
        r"    \midrule",
        *(rf"    {line} \\" for line in body),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "% \\usepackage{booktabs}\n" + "\n".join(lines) + "\n"


def _head(condition: Values) -> str:
    """A condition above a column: "cora, louvain, clients = 5"."""
    words = (str(value) if key.endswith(".name") else in_words({key: value}) for key, value in condition.items())
    return ", ".join(words)


def placed_over(choices: Sequence[Chosen]) -> Ranks | None:
    """The algorithms' ranks over the conditions; None for fewer than two conditions, or for one algorithm."""
    means: dict[str, dict[str, float]] = {}
    for one in choices:
        mean = spread(one.values())[0]
        known = {one.algorithm: rank(one.metric, mean)} if math.isfinite(mean) else {}
        means.setdefault(in_words(one.condition), {}).update(known)
    names = list(dict.fromkeys(one.algorithm for one in choices))
    sets = {str(one.group.first.config["data"].get("name")) for one in choices}
    order = placed(means, names, len(sets)) if len(means) > 1 < len(names) else None
    return order if order is not None and len(order.places) else None


def by_condition(choices: Sequence[Chosen]) -> list[Record]:
    """A row for each condition and algorithm: its result, its rank, and the paired difference to the first algorithm,
    with its significance at a level of 5 % for all algorithms of the condition together (`cells.signs`)."""
    order, lines = placed_over(choices), []
    together: dict[str, list[Chosen]] = {}
    for one in choices:
        together.setdefault(in_words(one.condition), []).append(one)
    gaps_of = {
        where: [paired_differences(one.by_seed(), alike[0].by_seed()) for one in alike[1:]]
        for where, alike in together.items()
    }
    ways = {where: signs(gaps) for where, gaps in gaps_of.items()}
    for one in choices:
        where = in_words(one.condition)
        first, place = together[where][0], together[where].index(one)
        mean, deviation, seeds = spread(one.values())
        line = {"condition": where, "algorithm": one.algorithm, "metric": one.metric, "seeds": seeds, "mean": mean}
        line |= {"deviation": deviation}
        if order is not None and where in order.titles:
            line["rank"] = order.places[order.titles.index(where), order.names.index(one.algorithm)]
        if one is not first and (gaps := gaps_of[where][place - 1]):
            gap = effect(gaps)
            line |= {"against": first.algorithm, "difference": gap.mean, "low": gap.low, "high": gap.high}
            line |= {"pairs": gap.seeds, "significant": int(ways[where][place - 1] != 0)}
        lines.append(line)
    return lines


def _column(choices: Sequence[Chosen | None]) -> list[str]:
    cells = [Cell("--") if one is None else Cell(_percent(one)) for one in choices]
    metric = next((one.metric for one in choices if one is not None), PLAIN)
    compared = marked(cells, [{} if one is None else one.by_seed() for one in choices], metric)
    return [rf"\textbf{{{cell.text}}}" if cell.best else cell.text for cell in compared]


def _percent(one: Chosen) -> str:
    mean, deviation, count = spread(one.values())
    if not count:
        return "--"
    if one.metric in METRICS and NUMBER in METRICS[one.metric].of:
        return f"{mean:.3f}" + (rf" $\pm$ {deviation:.3f}" if count > 1 else "")
    return f"{100 * mean:.2f}" + (rf" $\pm$ {100 * deviation:.2f}" if count > 1 else "")


def caption(choices: Sequence[Chosen], what: str) -> str:
    """A caption of a table or figure of these runs: data, partition, noise, rounds, seeds, and the settings, chosen or
    constant."""
    configs = [one.group.first.config for one in choices]
    varied = {key for one in choices for key in one.condition}
    seeds = sorted({run.config.get("seed", 0) for one in choices for run in one.group.runs})
    several = f", mean and standard deviation over {counted(len(seeds), 'seed')} ({_ranges(seeds)})"
    parts = [
        f"{what}{several if len(seeds) > 1 else f', seed {seeds[0]}'}.",
        f"Data: {_same('data', configs, varied)}. Cut: {_same('partition', configs, varied)}.",
        *_noise(configs),
        f"Model: {_same('model', configs, varied | {key for one in choices for key in one.setting})}.",
        f"Rounds: {' or '.join(map(str, sorted({config['rounds'] for config in configs})))}.",
    ]
    settings: dict[str, dict[str, list[Chosen]]] = {}
    for one in choices:
        if one.setting:
            settings.setdefault(one.algorithm, {}).setdefault(in_words(one.setting), []).append(one)
    tuned = [
        f"{algorithm if len(values) == 1 else _named(one)}: {value}"
        for algorithm, values in settings.items()
        for value, alike in values.items()
        for one in (alike[:1] if len(values) == 1 else alike)
    ]
    some = " where several were tried" if any(one.tried == 1 for one in choices) else ""
    fixed = [words for key in _TRAINING if (words := _fixed(key, choices))]
    return " ".join(
        [
            *parts,
            *([f"Training: {'; '.join(fixed)}."] if fixed else []),
            *([f"Settings, chosen by validation{some}: {'; '.join(tuned)}."] if tuned else []),
        ]
    )


def _fixed(key: str, choices: Sequence[Chosen]) -> str:
    """ "optimizer = adam (fedavg, moon) or sgd (scaffold)": the values of a key that was not varied, with algorithms
    unless all share one value; "" if no algorithm has the key."""
    path, whose = f"algorithm.{key}", dict[str, list[str]]()
    for one in choices:
        value = one.group.first.config["algorithm"].get(key)
        if value is not None and path not in one.setting and path not in one.condition:
            whose.setdefault(str(value), []).append(one.algorithm)
    alike = len(whose) == 1 and set(*whose.values()) == {one.algorithm for one in choices}
    values = [value if alike else f"{value} ({', '.join(dict.fromkeys(names))})" for value, names in whose.items()]
    return f"{key.replace('_', ' ')} = {' or '.join(values)}" if values else ""


def _noise(configs: Sequence[Values]) -> list[str]:
    """A sentence on the kinds of noise and their rates, if there is any."""
    kinds_of_noise = []
    for kind in ("features", "edges", "labels"):
        rates = sorted({config.get("noise", {}).get(kind, 0) for config in configs})
        if any(rates):
            ways = dict.fromkeys(named(f"noise.{kind}", config) for config in configs)
            kinds_of_noise.append(f"{' or '.join(ways)} = {' or '.join(f'{rate:g}' for rate in rates)}")
    return [f"Noise: {'; '.join(kinds_of_noise)}."] if kinds_of_noise else []


def named(key: str, config: Values) -> str:
    """A key of the grid on an axis or in a caption; a key of noise by its effect on the data."""
    section, _, kind = key.partition(".")
    noise = config.get("noise", {})
    by = noise.get(f"{kind}_by", next((way for whose, way in _NOISES if whose == kind), ""))
    return _NOISES.get((kind, by), short(key)) if section == "noise" else short(key)


def _named(one: Chosen) -> str:
    return f"{one.algorithm} ({in_words(one.condition)})" if one.condition else one.algorithm


def _same(section: str, configs: Sequence[Values], varied: set[str]) -> str:
    """ "louvain (clients = 10, …)": the names, and the values that are equal in all runs and not varied."""
    tables = [flat(config.get(section, {})) for config in configs]
    names = list(dict.fromkeys(str(table.get("name", "")) for table in tables))
    alike = {
        key: value
        for key, value in tables[0].items()
        if key not in ("name", "path", "labels") and f"{section}.{key}" not in varied
        if all(table.get(key) == value for table in tables) and value not in ("", "none", None, False, [])
    }
    values = ", ".join(f"{key} = {value}" for key, value in alike.items())
    return " or ".join(names) + (f" ({values})" if values else "")


def _ranges(seeds: Sequence[int]) -> str:
    whole = len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1
    return f"{seeds[0]} to {seeds[-1]}" if whole else ", ".join(map(str, seeds))


def worded(metric: str) -> str:
    """A metric's name in a sentence."""
    return title_of(metric)


def escaped(text: str) -> str:
    """The text with LaTeX's special characters escaped."""
    return "".join(_SPECIAL.get(mark, mark) for mark in text)


def csv_of(groups: Sequence[Group], choices: Sequence[Chosen], keys: Sequence[str]) -> str:
    """A line of CSV per run: its directory, algorithm, seed and values of the grid's keys, whether its setting was
    chosen, and every number of its summary."""
    chosen = {one.group.runs[0].directory for one in choices}
    lines = []
    for group in groups:
        for run in group.runs:
            known = flat(run.config)
            about = {
                "run": run.directory.name,
                "algorithm": run.summary["algorithm"],
                "seed": run.config.get("seed", 0),
            }
            about |= {key: known.get(key, "") for key in keys} | {"chosen": int(group.runs[0].directory in chosen)}
            about |= {key: value for key, value in run.summary.items() if key in ("seconds", "bytes_up", "bytes_down")}
            known = run.summary["metrics"].items()
            lines.append(about | {key: value for key, value in known if is_number(value) and math.isfinite(value)})
    return _csv(lines)


def _csv(lines: Sequence[Record]) -> str:
    head = list(dict.fromkeys(key for line in lines for key in line))
    file = io.StringIO()
    writer = csv.DictWriter(file, head, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


def file_name(text: str) -> str:
    """Text as the name of a file."""
    signed = re.sub(r"-(?=[\d.])", "m", text.lower())  # -1 and 1 are different values
    return re.sub(r"[^a-z0-9]+", "-", signed).strip("-")


# ----------------------------------------------------------------------------------------------------
# A sweep's accuracy over a number of its grid and over rounds: data of figures, and SVG without further packages.


@dataclass(frozen=True)
class Chart:
    """Lines of a metric on test examples, one for each algorithm. name: stem of its files. unit: the metric. over: the
    x axis. where: the other conditions of all its runs, "" if nothing else is varied."""

    name: str
    unit: str
    over: str
    where: str
    caption: str
    lines: dict[str, list[Point]] = field(default_factory=dict)


SENT_MB = "MB sent by all clients"
CURVES = ("round", SENT_MB)  # x axes whose lines have no marks


def charts(choices: Sequence[Chosen]) -> list[Chart]:
    """A chart over each key with several numbers, for every combination of the other conditions."""
    result = []
    for key in dict.fromkeys(key for one in choices for key in one.condition):
        together: dict[str, list[Chosen]] = {}
        for one in choices:
            if is_number(one.condition.get(key)):
                rest = {other: value for other, value in one.condition.items() if other != key}
                together.setdefault(in_words(rest), []).append(one)
        for where, alike in together.items():
            if len({one.condition[key] for one in alike}) > 1 == len({one.metric for one in alike}):
                result.append(_over(key, where, alike))
    return result


def _over(key: str, where: str, alike: Sequence[Chosen]) -> Chart:
    lines: dict[str, list[Point]] = {}
    for one in sorted(alike, key=lambda one: one.condition[key]):
        mean, deviation, count = spread(one.values())
        if count:
            lines.setdefault(one.algorithm, []).append(Point(one.condition[key], mean, deviation if count > 1 else 0.0))
    over = named(key, alike[0].group.first.config)
    unit = f"test {worded(alike[0].metric)}"
    what = f"{unit.capitalize()} over {over}, {WHEN}"
    return Chart(file_name(f"over {key} {where}"), unit, over, where, caption(alike, what), lines)


def over_rounds(choices: Sequence[Chosen]) -> list[Chart]:
    """The metric on test examples, mean over clients, by round, in every condition."""
    return _curves(choices, "round", "rounds", lambda one: mean_curve(_tests(one)))


def over_bytes(choices: Sequence[Chosen]) -> list[Chart]:
    """The same over the bytes that all clients sent in training, in every condition in which they sent any."""

    def line(one: Chosen) -> list[Point]:
        sums = [run.sent() for run in one.group.runs]
        points = mean_curve(_tests(one))
        return [point._replace(at=mean_sent(sums, int(point.at)) / 1e6) for point in points]

    charts = _curves(choices, SENT_MB, "bytes", line)
    return [chart for chart in charts if any(line and line[-1].at for line in chart.lines.values())]


def _tests(one: Chosen) -> list[dict[int, float]]:
    return [run.curve(one.metric, "test", False) for run in one.group.runs]


def _curves(choices: Sequence[Chosen], over: str, name: str, line: Callable[[Chosen], list[Point]]) -> list[Chart]:
    together: dict[str, list[Chosen]] = {}
    for one in choices:
        together.setdefault(in_words(one.condition), []).append(one)
    charts = []
    for where, alike in together.items():
        unit = f"test {worded(alike[0].metric)}"
        what = caption(alike, f"{unit.capitalize()} over {name}, mean over clients")
        lines = {one.algorithm: line(one) for one in alike}
        charts.append(Chart(file_name(f"{name} {where}"), unit, over, where, what, lines))
    return charts


def draw(pictures: Sequence[Chart], folder: Path) -> list[str]:
    """Write each chart as SVG into the folder; returns the files."""
    files = []
    for chart in pictures:
        title = f"{chart.unit.capitalize()} over {chart.over}" + (f", {chart.where}" if chart.where else "")
        svg = curves(title, chart.unit, chart.lines, chart.over)
        files.append(save_picture(folder / f"{chart.name}.svg", svg))
    return files


_STYLE: Any = {"svg.hashsalt": "fedweave", "pdf.fonttype": 42, "font.size": 9, "axes.spines.top": False}
_STYLE |= {"axes.spines.right": False, "legend.frameon": False}
_STYLE |= {"legend.handlelength": 3.2}  # one dash with its gaps
_MARKS = "os^DvpX<>h"
WIDTH = 3.5  # width of a picture, inches
INSIDE = 5  # largest number of lines with a legend within the axes; a longer legend is below them
BESIDE = 0.4  # share of the smallest distance of two values over which the marks of all lines are spread
_UNDATED: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def check() -> None:
    """Raise an error if matplotlib is not installed.

    Raises:
        UserError: matplotlib is not installed; explains how to install it.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UserError("--figures needs matplotlib: pip install 'fedweave[figures]'.") from error


def save(pictures: Sequence[Chart], folder: Path) -> list[str]:
    """Write NAME.svg, NAME.pdf and NAME.tex, a `figure` with its caption, for each chart; returns the files.

    Raises:
        UserError: the folder cannot be written.
    """
    import matplotlib

    with plain_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    files = []
    with matplotlib.rc_context(_STYLE):
        for chart in pictures:
            kinds = {kind: _picture(chart, kind) for kind in _UNDATED} | {"tex": _with_caption(chart).encode()}
            for kind, content in kinds.items():
                files.append(str(folder / f"{chart.name}.{kind}"))
                write(Path(files[-1]), partial(_fill, content))
    return files


def _fill(content: bytes, file: BinaryIO) -> None:
    file.write(content)


def _picture(chart: Chart, kind: str) -> bytes:
    content = BytesIO()
    _drawn(chart).savefig(content, format=kind, metadata=_UNDATED[kind])
    return content.getvalue()


def _drawn(chart: Chart) -> "Figure":
    from matplotlib.figure import Figure

    columns = max(1, int(72 * WIDTH / (40 + 4.6 * max(map(len, chart.lines)))))  # columns of a legend of 8 points
    rows = -(-len(chart.lines) // columns) if len(chart.lines) > INSIDE else 0
    figure = Figure(figsize=(WIDTH, 2.6 + 0.17 * rows), layout="constrained")
    axes = figure.add_subplot()
    for at, (name, line) in enumerate(chart.lines.items()):
        x, y, error = zip(*line, strict=True)
        style: Record = {"color": COLORS[at % len(COLORS)], "linestyle": _dashed(DASHES[at % len(DASHES)])}
        if chart.over in CURVES:
            axes.plot(x, y, label=name, **style)
            low, high = (
                [mean + sign * deviation for mean, deviation in zip(y, error, strict=True)] for sign in (-1, 1)
            )
            axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)
        else:
            beside = [value + _beside(chart, at) for value in x]
            axes.errorbar(
                beside, y, error, label=name, marker=_MARKS[at % len(_MARKS)], markersize=4, capsize=2, **style
            )
    axes.set_xlabel(chart.over)
    axes.set_ylabel(chart.unit)
    if rows:
        figure.legend(loc="outside lower center", ncols=columns, fontsize=8, columnspacing=1.0)
    else:
        axes.legend()
    return figure


def _dashed(dash: str) -> str | tuple[float, list[float]]:
    """A dash pattern of SVG, two pixels wide, in matplotlib's line widths."""
    return (0, [float(length) / 2 for length in dash.split()]) if dash else "-"


def _beside(chart: Chart, at: int) -> float:
    """The shift of a line's marks to the right, so that marks of several lines do not cover one another."""
    values = sorted({point.at for line in chart.lines.values() for point in line})
    least = min((high - low for low, high in pairwise(values)), default=0.0)
    step = min(BESIDE * least / len(chart.lines), 0.012 * (values[-1] - values[0]))
    return step * (at - (len(chart.lines) - 1) / 2)


def _with_caption(chart: Chart) -> str:
    several = chart.over not in CURVES and len(chart.lines) > 1
    note = " Marks of one value are slightly shifted against one another." if several else ""
    lines = [
        "% \\usepackage{graphicx}",
        r"\begin{figure}",
        r"  \centering",
        rf"  \includegraphics{{{chart.name}.pdf}}",
        rf"  \caption{{{escaped(chart.caption + note)}}}",
        rf"  \label{{fig:{chart.name}}}",
        r"\end{figure}",
    ]
    return "\n".join(lines) + "\n"


COLUMNS = {
    "best_val/val/{}": "best val",
    "best_val/local/{}": "test then",
    "global/{}": "final global test",
    "local/{}": "final local test",
    "fairness/worst_{}": "worst client",
}
OF_POSITIVE = {  # additional columns if the selection metric is of a positive class
    "best_val/pooled/{}": "pooled then",
    "best_val/pooled/recall_at_1": "recall at 1 %",
    "best_val/pooled/recall": "recall at threshold",
}
NOTE = (
    "{}, mean ± standard deviation over seeds. Choose settings by “best val”, the mean over clients of the "
    "validation {} in the round where it is best; “test then” is the mean over clients on test examples in that "
    "round. “Final” is after the last round: global, the mean over clients, and the client with the worst result."
)
APART = "The runs have different selection metrics ([evaluation] metric), so no setting can be chosen among them."
AFTER = {"pooled/auc": "pooled AUC", "within/auc": "AUC within members", "global/macro_f1": "macro F1"}


def headings(groups: Sequence[Group], further: Mapping[str, str]) -> dict[str, str]:
    """{metric: heading} of the tables of such runs; further: additional columns."""
    metric = common_selection_metric(groups)
    headings_by_name = COLUMNS | (OF_POSITIVE if metric in selection.OF_POSITIVE else {})
    columns = {name.format(metric): words for name, words in headings_by_name.items()} if metric else AFTER
    return {**columns, **further, "seconds": "seconds"}


def results(groups: Sequence[Group], columns: Mapping[str, str]) -> ResultTable:
    """A row for each group of runs that differ only in the seed; columns: {metric: heading}."""
    shown = [name for name in columns if any(value is not None for group in groups for value in group.values(name))]
    rows = [
        (Cell(group.label), Cell(str(len(group.runs))), *(measured(group.values(name), number) for name in shown))
        for group in groups
    ]
    return ResultTable(("run", "seeds", *(columns[name] for name in shown)), tuple(rows))


def describe_numbers(groups: Sequence[Group], chosen: Sequence[Chosen] = ()) -> tuple[str, ...]:
    """A note on the numbers and the selection metric; chosen: the choice in every condition."""
    if not (metric := common_selection_metric(groups)):
        ways = dict.fromkeys(f"{title_of(one.metric)} ({in_words(one.condition)})" for one in chosen)
        return (f"Each condition has its own selection metric: {', '.join(ways)}.",) if ways else (APART,)
    words = title_of(metric)
    return (NOTE.format("Accuracies" if metric == PLAIN else words[0].upper() + words[1:], words),)


def lost(runs: Sequence[PlannedRun], failed: Mapping[str, str], grid: Sequence[str]) -> list[str]:
    """A sentence for each failed run, with its values of the grid's keys: the table has no row of it.

    failed: {name of the run: why}. grid: "section.key=value,value,…".
    """
    keys = [text.partition("=")[0].strip() for text in grid]
    return [f"{run.name}{_values(run, keys)} failed: {failed[run.name]}" for run in runs if run.name in failed]


def _values(run: PlannedRun, keys: Sequence[str]) -> str:
    """ " (key = value, …)" of the keys that a run has, or ""."""
    known = flat(run.config.plain())
    shown = ", ".join(f"{key} = {known[key]}" for key in keys if key in known)
    return f" ({shown})" if shown else ""


def markdown(result: ResultTable, notes: Sequence[str], lost: Sequence[str], above: Sequence[str] = ()) -> str:
    """The table as Markdown, after the text `above`; then its `notes` and the failed runs that it lacks."""
    without = [f"Not in the table: {counted(len(lost), 'failed run')}."] if lost else []
    return "\n\n".join([*above, rows_of(result), *notes, *without, *(f"- {sentence}" for sentence in lost)]) + "\n"


def rows_of(result: ResultTable) -> str:
    """A table as Markdown."""
    rule = ["---" if at < result.words else "---:" for at in range(len(result.head))]
    return markdown_table([result.head, rule, *([cell.text for cell in row] for row in result.rows)])


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
            function(name)
        if self.figures is not None:
            check()


def finish(
    console: "Console", folder: Path, runs: Sequence[PlannedRun], failed: Mapping[str, str], options: SweepOptions
) -> tuple[list[Group], list[Chosen]]:
    """Show and save the results of the runs that did not fail; returns their groups, and validation's choices.

    Raises:
        FedweaveError: all runs failed.
    """
    done = [run.directory for run in runs if run.name not in failed]
    if not done:
        raise FedweaveError(f"no run succeeded; the first error: {failed[runs[0].name]}")
    read = read_runs(done)
    extra = _measured(read, {run.directory: run.config for run in runs}, options.metrics)
    groups = grouped(read)
    columns = headings(groups, extra)
    apart = choosing.conditions(options.keys, options.over)
    chosen = choosing.choose(groups, options.keys, apart, options.grid)
    rows, notes, gone = results(groups, columns), [*describe_numbers(groups, chosen)], lost(runs, failed, options.keys)
    show_cells(console, rows)
    above, choice, compared = list[str](), None, groups
    if options.keys and chosen:
        best = choosing.table(chosen, columns)
        show_cells(console, best)
        about = [*choosing.describe_choices(chosen)]
        above = ["Settings chosen by validation:", rows_of(best)]
        choice = SelectedRuns(best, rows, (*notes, *about))
        notes += about
        compared = grouped([run for one in chosen for run in one.group.runs])
    condition_list = conditions(compared, apart, choice is not None)
    above += _compared(console, compared, condition_list)
    for note in (*notes, *(one for alike in choosing.by_condition(compared, apart) for one in unlike(alike))):
        console.print(note, highlight=False, markup=False)
    text = markdown(rows, notes, gone, [*above, *(["All:"] if above else [])])
    files = [folder / "sweep.md", folder / "report.html"]
    page = render([run for group in compared for run in group.runs], gone, choice, apart)
    for path, content in zip(files, (text, page), strict=True):
        _save(path, content)
    files += _for_papers(folder, groups, chosen, options)
    console.print(f"files: {', '.join(map(str, files))}", highlight=False, soft_wrap=True, markup=False)
    return groups, chosen


def compared_lines(groups: Sequence[Group], condition_list: Sequence[Condition]) -> list[str | ResultTable]:
    """The comparison of groups of runs, in each condition and over all conditions."""
    if len(condition_list) > 1:
        return over_conditions(condition_list)
    return (
        [*headlines(groups, gains(groups), condition_list[0].shown if condition_list else "")]
        if len(groups) > 1
        else []
    )


def _compared(console: "Console", groups: Sequence[Group], condition_list: Sequence[Condition]) -> list[str]:
    """Show the comparison of groups of runs, in each condition and over all; returns it as Markdown."""
    lines = compared_lines(groups, condition_list)
    for line in lines:
        if isinstance(line, ResultTable):
            show_cells(console, line)
        else:
            console.print(line, highlight=False, markup=False)
    return [rows_of(line) if isinstance(line, ResultTable) else line for line in lines]


def _measured(runs: Sequence[Run], configs: Mapping[Path, Config], names: Sequence[str]) -> dict[str, str]:
    """Add the results of the user's own functions on test examples to the runs' summaries; {metric: heading}."""
    columns = dict[str, str]()
    for name in names:
        metric = function(name)
        for run in runs:
            result = of_run(run.directory, metric, config=configs[run.directory])
            values = {f"own/local/{result.name}": result.local, f"own/pooled/{result.name}": result.pooled}
            run.summary["metrics"] |= {key: value for key, value in values.items() if math.isfinite(value)}
            columns |= {f"own/local/{result.name}": f"{result.name}, test", f"own/pooled/{result.name}": "pooled"}
    return columns


def figures(choices: Sequence[Chosen], folder: Path) -> list[Path]:
    """Write every chart of a sweep and its curves, with captions, into the folder; returns the files.

    Raises:
        UserError: matplotlib is not installed, or the folder cannot be written.
    """
    check()
    return [Path(path) for path in save([*charts(choices), *over_rounds(choices), *over_bytes(choices)], folder)]


def _for_papers(folder: Path, groups: Sequence[Group], chosen: Sequence[Chosen], options: SweepOptions) -> list[Path]:
    """Write the optional files, and charts over numbers of the grid; returns the files.

    Raises:
        FedweaveError: a table or figures are wanted, and no setting could be chosen.
    """
    if not chosen and (options.latex or options.figures is not None):
        raise FedweaveError(
            "--latex and --figures show the best by validation, and these runs have no validation examples, or no "
            "common selection metric; --csv has all numbers."
        )
    over = charts(chosen)
    files = [Path(path) for path in draw(over, folder)]
    if options.latex:
        files.append(_save(folder / "sweep.tex", latex(chosen)))
    if options.csv:
        files.append(_save(folder / "sweep.csv", csv_of(groups, chosen, options.keys)))
        if len({in_words(one.condition) for one in chosen}) > 1:
            files.append(_save(folder / "sweep-conditions.csv", _csv(by_condition(chosen))))
    if options.figures is not None:
        files += figures(chosen, options.figures)
    return files


def _save(path: Path, text: str) -> Path:
    write(path, lambda file: file.write(text.encode()))
    return path

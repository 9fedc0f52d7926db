"""A sweep's accuracy over a number of its grid and over rounds: what figures show, and SVG without further packages."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fedweave.core.records import Record
from fedweave.errors import UserError
from fedweave.experiment.runs.files import plain_errors, write
from fedweave.papers import pictures
from fedweave.papers.pictures import Point
from fedweave.report.colours import COLOURS, DASHES
from fedweave.report.conditions import said
from fedweave.report.reading import spread
from fedweave.sweep.choosing import Chosen, is_number
from fedweave.sweep.paper import WHEN, caption, escaped, file_name, named, worded

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Chart:
    """Lines of a metric on test examples, one for each algorithm. name: of its files. unit: the metric. over: what is
    across. where: what else is the same of all its runs, "" if nothing is varied."""

    name: str
    unit: str
    over: str
    where: str
    caption: str
    lines: dict[str, list[Point]] = field(default_factory=dict)


def charts(found: Sequence[Chosen]) -> list[Chart]:
    """One over each key of which there are several numbers, for every combination of the other conditions."""
    made = []
    for key in dict.fromkeys(key for one in found for key in one.condition):
        together: dict[str, list[Chosen]] = {}
        for one in found:
            if is_number(one.condition.get(key)):
                rest = {other: value for other, value in one.condition.items() if other != key}
                together.setdefault(said(rest), []).append(one)
        for where, alike in together.items():
            if len({one.condition[key] for one in alike}) > 1 == len({one.metric for one in alike}):
                made.append(_over(key, where, alike))
    return made


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


def over_rounds(found: Sequence[Chosen]) -> list[Chart]:
    """The metric on test examples, mean over clients, by round, in every condition."""
    together: dict[str, list[Chosen]] = {}
    for one in found:
        together.setdefault(said(one.condition), []).append(one)
    return [
        Chart(
            file_name(f"rounds {where}"),
            (unit := f"test {worded(alike[0].metric)}"),
            "round",
            where,
            caption(alike, f"{unit.capitalize()} over rounds, mean over clients"),
            {
                one.algorithm: pictures.averaged([run.curve(one.metric, "test", False) for run in one.group.runs])
                for one in alike
            },
        )
        for where, alike in together.items()
    ]


def draw(found: Sequence[Chart], folder: Path) -> list[str]:
    """Write each as SVG into the folder; the files written."""
    files = []
    for chart in found:
        title = f"{chart.unit.capitalize()} over {chart.over}" + (f", {chart.where}" if chart.where else "")
        drawn = pictures.curves(title, chart.unit, chart.lines, chart.over)
        files.append(pictures.save(folder / f"{chart.name}.svg", drawn))
    return files


_STYLE: Any = {"svg.hashsalt": "fedweave", "pdf.fonttype": 42, "font.size": 9, "axes.spines.top": False}
_STYLE |= {"axes.spines.right": False, "legend.frameon": False}
_STYLE |= {"legend.handlelength": 3.2}  # as long as a dash with its gaps
_MARKS = "os^DvpX<>h"
WIDTH = 3.5  # of a picture, inches
INSIDE = 5  # lines that a legend within the axes names; that of more stands below them
BESIDE = 0.4  # of the least distance of two values, over which the marks of all lines are spread
_UNDATED: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def check() -> None:
    """Refuse where matplotlib is not installed.

    Raises:
        UserError: it is not; says how to install it.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UserError("--figures needs matplotlib: pip install 'fedweave[figures]'.") from error


def save(found: Sequence[Chart], folder: Path) -> list[str]:
    """Write NAME.svg, NAME.pdf and NAME.tex, a `figure` with its caption, for each; the files written.

    Raises:
        UserError: the folder cannot be written.
    """
    import matplotlib

    with plain_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    files = []
    with matplotlib.rc_context(_STYLE):
        for chart in found:
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

    columns = max(1, int(72 * WIDTH / (40 + 4.6 * max(map(len, chart.lines)))))  # of a legend of 8 points
    rows = -(-len(chart.lines) // columns) if len(chart.lines) > INSIDE else 0
    figure = Figure(figsize=(WIDTH, 2.6 + 0.17 * rows), layout="constrained")
    axes = figure.add_subplot()
    for at, (name, line) in enumerate(chart.lines.items()):
        x, y, error = zip(*line, strict=True)
        style: Record = {"color": COLOURS[at % len(COLOURS)], "linestyle": _dashed(DASHES[at % len(DASHES)])}
        if chart.over == "round":
            axes.plot(x, y, label=name, **style)
            low, high = ([mean + sign * own for mean, own in zip(y, error, strict=True)] for sign in (-1, 1))
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
    """A line of SVG's dashes, two pixels wide, in matplotlib's widths of the line."""
    return (0, [float(length) / 2 for length in dash.split()]) if dash else "-"


def _beside(chart: Chart, at: int) -> float:
    """How far to the right the marks of a line stand, so that those of several do not cover one another."""
    values = sorted({point.at for line in chart.lines.values() for point in line})
    least = min((high - low for low, high in pairwise(values)), default=0.0)
    step = min(BESIDE * least / len(chart.lines), 0.012 * (values[-1] - values[0]))
    return step * (at - (len(chart.lines) - 1) / 2)


def _with_caption(chart: Chart) -> str:
    several = chart.over != "round" and len(chart.lines) > 1
    beside = " Marks of one value stand a little beside one another." if several else ""
    lines = [
        "% \\usepackage{graphicx}",
        r"\begin{figure}",
        r"  \centering",
        rf"  \includegraphics{{{chart.name}.pdf}}",
        rf"  \caption{{{escaped(chart.caption + beside)}}}",
        r"\end{figure}",
    ]
    return "\n".join(lines) + "\n"

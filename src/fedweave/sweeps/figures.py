"""Figures of a sweep for papers, drawn by matplotlib: SVG, PDF and a LaTeX `figure` with its caption."""

from collections.abc import Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedweave.core.types import Record
from fedweave.errors import UserError, option
from fedweave.experiment.runs.files import plain_errors, write
from fedweave.reports.colors import COLORS, DASHES
from fedweave.sweeps.charts import CURVES, Chart, charts_over_bytes, charts_over_keys, charts_over_rounds
from fedweave.sweeps.choosing import ChosenSetting
from fedweave.sweeps.latex import escape_latex

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLE: Any = {
    "svg.hashsalt": "fedweave",
    "pdf.fonttype": 42,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.handlelength": 3.2,  # one dash with its gaps
}
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
        raise UserError(
            f"{option('figures', None, 'save_figures')} needs matplotlib: pip install 'fedweave[figures]'."
        ) from error


def save_figures(choices: Sequence[ChosenSetting], folder: Path) -> list[Path]:
    """Write every chart of a sweep and its curves, with captions, into the folder; returns the files.

    Raises:
        UserError: matplotlib is not installed, or the folder cannot be written.
    """
    check()
    return save_charts([*charts_over_keys(choices), *charts_over_rounds(choices), *charts_over_bytes(choices)], folder)


def save_charts(charts: Sequence[Chart], folder: Path) -> list[Path]:
    """Write NAME.svg, NAME.pdf and NAME.tex, a `figure` with its caption, for each chart; returns the files.

    Raises:
        UserError: the folder cannot be written.
    """
    import matplotlib

    with plain_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    files = []
    with matplotlib.rc_context(_STYLE):
        for chart in charts:
            contents = {kind: _picture(chart, kind) for kind in _UNDATED}
            contents["tex"] = _latex_figure(chart).encode()
            for kind, content in contents.items():
                files.append(folder / f"{chart.name}.{kind}")
                _save(files[-1], content)
    return files


def _save(path: Path, content: bytes) -> None:
    write(path, lambda file: file.write(content))


def _picture(chart: Chart, kind: str) -> bytes:
    content = BytesIO()
    figure_of(chart).savefig(content, format=kind, metadata=_UNDATED[kind])
    return content.getvalue()


def figure_of(chart: Chart) -> "Figure":
    """The chart as a figure of matplotlib."""
    from matplotlib.figure import Figure

    longest_name = max(map(len, chart.lines))
    columns = max(1, int(72 * WIDTH / (40 + 4.6 * longest_name)))  # columns of a legend of 8 points
    rows = -(-len(chart.lines) // columns) if len(chart.lines) > INSIDE else 0
    figure = Figure(figsize=(WIDTH, 2.6 + 0.17 * rows), layout="constrained")
    axes = figure.add_subplot()
    for at in range(len(chart.lines)):
        _draw_line(axes, chart, at)
    axes.set_xlabel(chart.over)
    axes.set_ylabel(chart.unit)
    if rows:
        figure.legend(loc="outside lower center", ncols=columns, fontsize=8, columnspacing=1.0)
    else:
        axes.legend()
    return figure


def _draw_line(axes: "Axes", chart: Chart, at: int) -> None:
    """Draw the line number `at`: a curve in its band of one deviation, or marks with error bars."""
    name, points = list(chart.lines.items())[at]
    x, y, deviations = zip(*points, strict=True)
    style: Record = {"color": COLORS[at % len(COLORS)], "linestyle": _line_style(DASHES[at % len(DASHES)])}
    if chart.over in CURVES:
        axes.plot(x, y, label=name, **style)
        low = [mean - deviation for mean, deviation in zip(y, deviations, strict=True)]
        high = [mean + deviation for mean, deviation in zip(y, deviations, strict=True)]
        axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)
    else:
        style |= {"marker": _MARKS[at % len(_MARKS)], "markersize": 4, "capsize": 2}
        shift = _shift(chart, at)
        axes.errorbar([value + shift for value in x], y, deviations, label=name, **style)


def _line_style(dash: str) -> str | tuple[float, list[float]]:
    """A dash pattern of SVG, two pixels wide, in matplotlib's line widths."""
    return (0, [float(length) / 2 for length in dash.split()]) if dash else "-"


def _shift(chart: Chart, at: int) -> float:
    """The shift of a line's marks to the right, so that marks of several lines do not cover one another."""
    values = sorted({point.at for line in chart.lines.values() for point in line})
    smallest_distance = min((high - low for low, high in pairwise(values)), default=0.0)
    step = min(BESIDE * smallest_distance / len(chart.lines), 0.012 * (values[-1] - values[0]))
    return step * (at - (len(chart.lines) - 1) / 2)


def _latex_figure(chart: Chart) -> str:
    several = chart.over not in CURVES and len(chart.lines) > 1
    note = " Marks of one value are slightly shifted against one another." if several else ""
    lines = [
        r"% \usepackage{graphicx}",
        r"\begin{figure}",
        r"  \centering",
        rf"  \includegraphics{{{chart.name}.pdf}}",
        rf"  \caption{{{escape_latex(chart.caption + note)}}}",
        rf"  \label{{fig:{chart.name}}}",
        r"\end{figure}",
    ]
    return "\n".join(lines) + "\n"

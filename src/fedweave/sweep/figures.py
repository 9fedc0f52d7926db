"""A sweep's charts for a paper, as SVG and PDF with a caption in LaTeX; needs the extra `figures`."""

from collections.abc import Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from fedweave.errors import UserError
from fedweave.experiment.runs.files import plain_errors, write
from fedweave.report.colours import COLOURS
from fedweave.sweep.charts import Chart
from fedweave.sweep.paper import escaped

_STYLE: Any = {"svg.hashsalt": "fedweave", "pdf.fonttype": 42, "font.size": 9, "axes.spines.top": False}
_STYLE |= {"axes.spines.right": False, "legend.frameon": False}
_MARKS, _DASHES = "os^Dvp", ("-", "--", ":", "-.")
_UNDATED: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


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


def _drawn(chart: Chart) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.5, 2.6), layout="constrained")
    axes = figure.add_subplot()
    for at, (name, line) in enumerate(chart.lines.items()):
        x, y, error = zip(*line, strict=True)
        style: dict[str, Any] = {
            "color": COLOURS[at % len(COLOURS)],
            "linestyle": _DASHES[at // len(COLOURS) % len(_DASHES)],
        }
        if chart.over == "round":
            axes.plot(x, y, label=name, **style)
            low, high = ([mean + sign * own for mean, own in zip(y, error, strict=True)] for sign in (-1, 1))
            axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)
        else:
            axes.errorbar(x, y, error, label=name, marker=_MARKS[at % len(_MARKS)], markersize=4, capsize=2, **style)
    axes.set_xlabel(chart.over)
    axes.set_ylabel(chart.unit)
    axes.legend()
    return figure


def _with_caption(chart: Chart) -> str:
    lines = [
        "% \\usepackage{graphicx}",
        r"\begin{figure}",
        r"  \centering",
        rf"  \includegraphics{{{chart.name}.pdf}}",
        rf"  \caption{{{escaped(chart.caption)}}}",
        r"\end{figure}",
    ]
    return "\n".join(lines) + "\n"

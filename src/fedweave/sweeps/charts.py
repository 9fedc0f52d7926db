"""A sweep's metric over a number of its grid, over rounds and over bytes: the data of figures, and pictures in SVG."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedweave.experiment.runs.reading import spread
from fedweave.metrics.selection import title_of
from fedweave.reports.conditions import settings_text
from fedweave.reports.figures import mean_sent
from fedweave.reports.pictures import Point, curves, mean_curve, save_picture
from fedweave.sweeps.captions import WHEN, axis_label, caption
from fedweave.sweeps.choosing import ChosenSetting, is_number
from fedweave.sweeps.comparison import choices_by_condition

SENT_MB = "MB sent by all clients"
CURVES = ("round", SENT_MB)  # x axes whose lines have no marks


@dataclass(frozen=True)
class Chart:
    """Lines of a metric on test examples, one for each algorithm.

    name: stem of its files. unit: the metric. over: the x axis. where: the other conditions of all its runs, "" if
    nothing else is varied.
    """

    name: str
    unit: str
    over: str
    where: str
    caption: str
    lines: dict[str, list[Point]] = field(default_factory=dict)


def charts_over_keys(choices: Sequence[ChosenSetting]) -> list[Chart]:
    """A chart over each key with several numbers, for every combination of the other conditions."""
    charts = []
    for key in dict.fromkeys(key for choice in choices for key in choice.condition):
        by_rest: dict[str, list[ChosenSetting]] = {}  # {the other conditions: choices}
        for choice in choices:
            if is_number(choice.condition.get(key)):
                rest = {other: value for other, value in choice.condition.items() if other != key}
                by_rest.setdefault(settings_text(rest), []).append(choice)
        for where, its_choices in by_rest.items():
            several_values = len({choice.condition[key] for choice in its_choices}) > 1
            if several_values and len({choice.metric for choice in its_choices}) == 1:
                charts.append(_chart_over_key(key, where, its_choices))
    return charts


def _chart_over_key(key: str, where: str, choices: Sequence[ChosenSetting]) -> Chart:
    lines: dict[str, list[Point]] = {}
    for choice in sorted(choices, key=lambda choice: choice.condition[key]):
        mean, deviation, count = spread(choice.values())
        if count:
            point = Point(choice.condition[key], mean, deviation if count > 1 else 0.0)
            lines.setdefault(choice.algorithm, []).append(point)
    over = axis_label(key, choices[0].group.first.config)
    unit = f"test {title_of(choices[0].metric)}"
    text = caption(choices, f"{unit.capitalize()} over {over}, {WHEN}")
    return Chart(file_name(f"over {key} {where}"), unit, over, where, text, lines)


def charts_over_rounds(choices: Sequence[ChosenSetting]) -> list[Chart]:
    """The metric on test examples, mean over clients, by round, in every condition."""
    return _curve_charts(choices, "round", "rounds", _mean_test_curve)


def charts_over_bytes(choices: Sequence[ChosenSetting]) -> list[Chart]:
    """The same over the bytes that all clients sent in training, in every condition in which they sent any."""

    def curve(choice: ChosenSetting) -> list[Point]:
        sums = [run.bytes_sent() for run in choice.group.runs]
        return [point._replace(at=mean_sent(sums, int(point.at)) / 1e6) for point in _mean_test_curve(choice)]

    charts = _curve_charts(choices, SENT_MB, "bytes", curve)
    return [chart for chart in charts if any(line and line[-1].at for line in chart.lines.values())]


def _mean_test_curve(choice: ChosenSetting) -> list[Point]:
    return mean_curve([run.curve(choice.metric, "test", False) for run in choice.group.runs])


def _curve_charts(
    choices: Sequence[ChosenSetting], over: str, name: str, curve: Callable[[ChosenSetting], list[Point]]
) -> list[Chart]:
    charts = []
    for where, its_choices in choices_by_condition(choices).items():
        unit = f"test {title_of(its_choices[0].metric)}"
        text = caption(its_choices, f"{unit.capitalize()} over {name}, mean over clients")
        lines = {choice.algorithm: curve(choice) for choice in its_choices}
        charts.append(Chart(file_name(f"{name} {where}"), unit, over, where, text, lines))
    return charts


def save_svg(charts: Sequence[Chart], folder: Path) -> list[Path]:
    """Write each chart as SVG into the folder; returns the files."""
    files = []
    for chart in charts:
        title = f"{chart.unit.capitalize()} over {chart.over}" + (f", {chart.where}" if chart.where else "")
        files.append(folder / f"{chart.name}.svg")
        save_picture(files[-1], curves(title, chart.unit, chart.lines, chart.over))
    return files


def file_name(text: str) -> str:
    """Text as the name of a file."""
    with_sign = re.sub(r"-(?=[\d.])", "m", text.lower())  # -1 and 1 are different values
    return re.sub(r"[^a-z0-9]+", "-", with_sign).strip("-")

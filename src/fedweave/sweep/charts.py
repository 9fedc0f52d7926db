"""A sweep's accuracy over a number of its grid and over rounds: what figures show, and SVG without further packages."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedweave.papers import curves
from fedweave.papers import planes as drawing
from fedweave.papers.curves import Point
from fedweave.report.reading import spread
from fedweave.sweep.choosing import Chosen, is_number, said
from fedweave.sweep.paper import WHEN, caption, file_name, named, worded


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
            if len({one.condition[key] for one in alike}) > 1:
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
    unit = f"test {worded(found[0].metric)}" if found else ""
    what = f"{unit.capitalize()} over rounds, mean over clients"
    return [
        Chart(
            file_name(f"rounds {where}"),
            unit,
            "round",
            where,
            caption(alike, what),
            {
                one.algorithm: curves.averaged([run.curve(one.metric, "test", False) for run in one.group.runs])
                for one in alike
            },
        )
        for where, alike in together.items()
    ]


def draw(found: Sequence[Chart], folder: Path) -> list[str]:
    """Write each as SVG into the folder; the files written."""
    files = []
    for chart in found:
        path = folder / f"{chart.name}.svg"
        title = f"{chart.unit.capitalize()} over {chart.over}" + (f", {chart.where}" if chart.where else "")
        drawing.save(path, curves.svg(title, chart.unit, chart.lines, chart.over))
        files.append(str(path))
    return files

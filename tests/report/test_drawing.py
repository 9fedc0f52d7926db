"""How the page looks, by arithmetic: contrast in light and dark, room for every text, widths of a telephone."""

import re
import statistics
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from math import cos, radians, sin
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.filesize import decimal

from fedweave.core.federation import Sends, StepInfo
from fedweave.core.ledger import Ledger
from fedweave.core.mechanism import LDP
from fedweave.experiment.runs.reading import Group, Run
from fedweave.reports import colors, drawing, figures
from fedweave.reports.drawing import Axis
from fedweave.reports.pages import STYLE
from fedweave.reports.panels import Bars, Dots, ForestPlot, ForestRow, Heat, LineSeries, Panel, percent
from tests.refusals import check_facts

LIGHT, DARK = colors.PAPER
ADVANCE = 0.56  # of a letter to the size of its text: the mean of sans-serif fonts' digits and letters
VARIABLES = dict(re.findall(r"--(\w+): light-dark\((#\w{6}, #\w{6})\)", STYLE))


def pair(name: str) -> tuple[str, str]:
    light, dark = VARIABLES[name].split(", ")
    return light, dark


def test_contrast_is_that_of_wcag() -> None:
    """Against published ratios."""
    assert colors.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert colors.contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)
    assert colors.contrast("#ff0000", "#ffffff") == pytest.approx(4.0, abs=0.005)
    assert colors.contrast("#0000ff", "#ffffff") == pytest.approx(8.59, abs=0.005)


@pytest.mark.parametrize(
    ("text", "back"),
    [(text, "paper") for text in ("ink", "grey", "alarm", "blue")] + [("ink", "pale"), ("ink", "warn")],
)
def test_texts_stand_out_in_light_and_dark(text: str, back: str) -> None:
    assert pair("paper") == colors.PAPER
    for ink, paper in zip(pair(text), pair(back), strict=True):
        assert colors.contrast(ink, paper) >= colors.MIN_TEXT_CONTRAST


def both(tone: str) -> tuple[str, str]:
    found = re.findall(r"#\w{6}", tone)
    return found[0], found[-1]


def test_every_color_that_is_drawn_stands_out_in_light_and_dark() -> None:
    drawn = [*map(colors.run_tone, range(10)), figures.CONSTANT_TONE, *map(colors.tone, figures.EDGE_COLORS.values())]
    drawn += [tone for count in (2, 10, 15, 40) for tone in colors.class_tones(count)]
    for tone in drawn:
        for color, paper in zip(both(tone), colors.PAPER, strict=True):
            assert colors.contrast(color, paper) >= colors.MIN_MARK_CONTRAST, tone
    assert colors.legible("#0072b2", LIGHT) == "#0072b2"  # what stands out stays
    assert len(set(map(colors.run_tone, range(10)))) == len(set(colors.DASHES)) == 10


def texts(drawn: str) -> Iterator[tuple[str, np.ndarray]]:
    """Every text with the corners of its box, [4, 2]."""
    for text in ElementTree.fromstring(drawn).iter("text"):
        words, x, y = text.text or "", float(text.attrib["x"]), float(text.attrib["y"])
        wide = drawing.SIZE * ADVANCE * len(words)
        left = x - wide * {"start": 0.0, "middle": 0.5, "end": 1.0}[text.attrib["text-anchor"]]
        box = np.array([(left, y - 8), (left + wide, y - 8), (left + wide, y + 2), (left, y + 2)])
        if turned := re.fullmatch(r"rotate\((-?\d+) (\S+) (\S+)\)", text.attrib.get("transform", "")):
            angle, middle = radians(float(turned[1])), np.array([float(turned[2]), float(turned[3])])
            turn = np.array([(cos(angle), -sin(angle)), (sin(angle), cos(angle))])
            box = (box - middle) @ turn.T + middle
        yield words, box


def apart(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two convex quadrilaterals do not overlap: an edge of one separates them."""
    for box in (one, other):
        for edge in np.roll(box, -1, 0) - box:
            normal = np.array([-edge[1], edge[0]])
            mine, others = one @ normal, other @ normal
            if mine.max() <= others.min() + 1e-6 or others.max() <= mine.min() + 1e-6:
                return True
    return False


def check(drawn: str) -> None:
    _, _, width, height = map(float, ElementTree.fromstring(drawn).attrib["viewBox"].split())
    assert width <= 400 - 2 * 16  # a telephone less the page's margins
    found = list(texts(drawn))
    for words, box in found:
        inside = box.min() >= -0.5 and box[:, 0].max() <= width + 0.5 and box[:, 1].max() <= height + 0.5
        assert inside, words
    for (one, box), (other, next_box) in combinations(found, 2):
        assert apart(box, next_box), f"{one!r} lies on {other!r}"


NAMES = st.lists(st.text("abcdefghij-019 <&", min_size=1, max_size=30), min_size=1, max_size=60)
NUMBERS = st.floats(-1e7, 1e7) | st.floats(-1, 1)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(NAMES, st.lists(NUMBERS, min_size=1, max_size=60), st.booleans(), st.booleans())
def test_no_text_of_a_panel_over_names_is_cut_or_lies_on_another(
    names: list[str], numbers: list[float], stacked: bool, worded: bool
) -> None:
    y = [numbers[at % len(numbers)] for at in range(len(names))]
    words = {"below": "clients, lowest first", "beside": "test accuracy, less that alone"} if worded else {}
    bars = Bars("bars", [abs(one) for one in y], "#000000")
    form = percent if stacked else Panel("", ()).form
    check(drawing.panel_svg(Panel("t", (bars, bars), tuple(names), stacked=stacked, form=form, **words)))
    check(drawing.panel_svg(Panel("t", (Dots("dots", range(len(y)), y, "#000000"),), tuple(names), **words)))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(NUMBERS, min_size=1, max_size=30), st.integers(1, 100_000))
def test_no_text_of_curves_is_cut_or_lies_on_another(y: list[float], every: int) -> None:
    x = [every * (at + 1) for at in range(len(y))]
    check(drawing.panel_svg(Panel("t", (LineSeries("a", x, y, "#000000"),), below="round", beside="loss")))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(NAMES, st.lists(NUMBERS, min_size=1, max_size=60), st.booleans())
def test_no_text_of_a_forest_plot_is_cut_or_on_another(names: list[str], numbers: list[float], level: bool) -> None:
    rows = []
    for at, name in enumerate(names):
        value = numbers[at % len(numbers)]
        text = f"{value:.3g} [{value - 1:.2g}, {value + 1:.2g}]"
        rows.append(ForestRow(name, value, text, "#000000", value - 1, value + 1, value / 2))
    drawn = ForestPlot("t", tuple(rows), below="accuracy, member mean", other_tone="#000000")
    if level:
        drawn = replace(drawn, level=0.0, sides=("worse than local", "better than local"))
    check(drawing.panel_svg(drawn))


def test_rows_of_a_forest_plot_stand_where_their_numbers_are() -> None:
    """From the tick at 0 to the one at 1: the dots, the ends of the line, and what is written."""
    rows = (ForestRow("<a>", 0.5, "0.5 [0.25, 1]", "#000000", 0.25, 1.0), ForestRow("b", 0.0, "0", "#000000"))
    drawn = drawing.panel_svg(ForestPlot("t", rows))
    ticks = [*map(float, re.findall(r'class="grid" d="M([\d.]+) ', drawn))]
    [(begin, stop)] = re.findall(r'class="line" d="M([\d.]+) [\d.]+H([\d.]+)"', drawn)
    zero, one, low, high = min(ticks), max(ticks), float(begin), float(stop)
    assert (low - zero) / (one - zero) == pytest.approx(0.25, abs=0.01)
    assert high == pytest.approx(one, abs=0.1)
    check_facts(drawn, "&lt;a&gt;", "0.5 [0.25, 1]")


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (10, 10), (19, 20), (60, 60), (3, 60), (40, 3)])
def test_no_text_of_a_matrix_is_cut_or_lies_on_another(rows: int, columns: int) -> None:
    values = np.arange(rows * columns).reshape(rows, columns) / (rows * columns)
    written = tuple(tuple(f"{1000 * one:.0f}" for one in row) for row in values)
    names = [tuple(f"class {at}" for at in range(count)) for count in (rows, columns)]
    check(drawing.panel_svg(Heat("t", values, 1.0, *names, "predicted", "true", written)))
    check(drawing.panel_svg(Heat("t", values, 1.0, below="of the other", beside="clients")))


def test_squares_of_one_color_side_by_side_are_one() -> None:
    drawn = drawing.panel_svg(Heat("t", np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 1.0]]), 1.0))
    paths = {path.attrib["fill"]: path.attrib["d"] for path in ElementTree.fromstring(drawn).iter("path")}
    assert {fill: path.count("M") for fill, path in paths.items()} == {colors.shade(0): 2, colors.shade(1): 3}
    [width] = re.findall(r"M8\.0 10\.0h([\d.]+)v", paths[colors.shade(0)])
    assert float(width) == pytest.approx((drawing.WIDTH - drawing.RIGHT - 8) * 2 / 3, abs=0.1)


def test_bars_lines_and_dots_stand_where_their_numbers_are() -> None:
    """From 0 to 1 over the height between two ticks of the axis."""
    drawn = drawing.panel_svg(Panel("t", (Bars("b", [0.25, 1.0], "#0072b2"),), ("a", "<b>"), low=0.0, high=1.0))
    low, quarter, full = drawing.HEIGHT - 20.0, [], []
    for rect in ElementTree.fromstring(drawn).iter("rect"):
        (quarter if "a, b: 0.25" in "".join(rect.itertext()) else full).append(rect.attrib)
    [one], [other] = quarter, full
    assert float(one["height"]) == pytest.approx(float(other["height"]) / 4, abs=0.1)
    assert float(one["y"]) + float(one["height"]) == pytest.approx(low, abs=0.1)
    assert "&lt;b&gt;, b: 1" in drawn
    line = drawing.panel_svg(Panel("t", (LineSeries("l", [0, 10], [0.0, 1.0], "#0072b2"),)))
    [path] = re.findall(r'class="line"[^>]* d="M([^"]+)"', line)
    first, last = (point.split() for point in path.split("L"))
    assert (float(first[1]), float(last[1])) == (low, drawing.TOP)
    assert float(last[0]) > float(first[0])


def run(**tables: pa.Table | None) -> Run:
    empty = pa.table({})
    return Run(Path("r"), {}, {"seed": 0}, empty, tables.get("ledger", empty), None, {}, True, 1, 0.0, **{
        name: table for name, table in tables.items() if name != "ledger"
    })  # fmt: skip


@pytest.mark.parametrize("value", [0.0, 0.5, -3e7, 1e16, 1.6e37])
def test_one_value_alone_has_an_axis(value: float) -> None:
    axis = Axis(value, value, 0, 100)
    assert 0 <= axis.place(value) <= 100


def test_bytes_and_epsilon_add_up_over_rounds() -> None:
    noised = StepInfo({"w": Sends("w", LDP(1.5, "row"))})
    ledger = Ledger()
    for number in range(1, 4):
        ledger.record(number, 0, "step", list("ab"), "up", {"w": torch.zeros(5)}, 0.0, noised)
    shown = figures.traffic([Group("one", (run(ledger=ledger.table()),))])
    sent, cost = shown.panels
    each = ledger.bytes_up / 3
    assert (list(sent.marks[0].x), list(sent.marks[0].y)) == ([1, 2, 3], [each, 2 * each, 3 * each])
    assert list(cost.marks[0].y) == pytest.approx([1.5, 3.0, 4.5])
    check_facts(drawing.panel_svg(sent), f"one: {decimal(ledger.bytes_up)} at 3")
    check_facts(drawing.panel_svg(cost), "one: 4.5 at 3")
    assert figures.traffic([Group("one", (run(ledger=Ledger().table()),))]) is None


def evaluated(*accuracies: float) -> pa.Table:
    """One client's accuracy after each round."""
    count = len(accuracies)
    rows = {"round": [*range(1, count + 1)], "client": ["a"] * count, "split": ["test"] * count}
    return pa.table(rows | {"metric": ["accuracy"] * count, "value": [*accuracies]})


def test_accuracy_stands_over_what_clients_sent_in_training() -> None:
    """Of two seeds, of which the second sends twice as much; what clients receive and evaluations are left out."""
    runs = []
    for seed, entries in enumerate((5, 10)):
        ledger = Ledger()
        for number in (1, 2):
            for way, purpose in (("up", "training"), ("down", "training"), ("up", "evaluation")):
                ledger.purpose = purpose
                ledger.record(number, 0, "step", ["a"], way, {"w": torch.zeros(entries)})
        runs.append(replace(run(ledger=ledger.table()), metrics=evaluated(0.2, 0.4 + 0.2 * seed)))
    sent = [one.ledger.filter(pc.field("purpose") == "training").filter(pc.field("direction") == "up") for one in runs]
    each = statistics.fmean(pc.sum(one["bytes"]).as_py() / 2 for one in sent)
    silent = replace(run(ledger=Ledger().table()), metrics=evaluated(0.1, 0.3))
    shown = figures.accuracy_over_bytes([Group("fedavg", tuple(runs)), Group("local", (silent,))])
    [panel] = shown.panels
    line, dot = panel.marks
    assert (list(line.x), list(line.y)) == ([each, 2 * each], pytest.approx([0.2, 0.5]))
    assert (list(dot.x), list(dot.y)) == ([0.0], [0.3])  # where it ended
    check_facts(drawing.panel_svg(panel), f"at {decimal(round(2 * each))}")
    assert figures.accuracy_over_bytes([Group("local", (silent,))]) is None


def test_reliability_compares_probabilities_with_how_often_they_are_right() -> None:
    """Two bins by hand: of two predictions of .6 and .62 one is right, and one of .95 is right."""
    p = [0.6, 0.38, 0.95, 0.9]
    table = {"client": ["a", "a", "b", "b"], "split": ["test", "test", "test", "train"], "p_x": p}
    table |= {"true": ["x", "x", "x", "y"], "predicted": ["x", "y", "x", "x"], "p_y": [1 - one for one in p]}
    [panel] = figures.reliability(run(predictions=pa.table(table))).panels
    dots = panel.marks[1]
    assert (list(dots.x), list(dots.y), list(dots.labels)) == (pytest.approx([0.61, 0.95]), [0.5, 1.0], ["2", "1"])
    assert figures.reliability(run()) is None


def test_the_confusion_matrix_counts_test_examples() -> None:
    """Of the run's own predictions, with known classes; by hand."""
    table = pa.table(
        {
            "client": ["a", "a", "b", "b", "a", "global"],
            "split": ["test", "test", "test", "test", "train", "test"],
            "true": ["low", "high", "low", None, "low", "high"],
            "predicted": ["low", "low", "high", "low", "high", "high"],
            "p_high": [0.0] * 6,
            "p_low": [0.0] * 6,
        }
    )
    found = figures.confusions(run(predictions=table))
    own, joint = found.panels
    assert own.rows == own.columns == ("high", "low")
    assert own.texts == (("0", "1"), ("1", "1"))  # down the true class
    assert joint.texts == (("1", "0"), ("0", "0"))
    assert own.values.tolist() == [[0, 1], [0.5, 0.5]]
    assert figures.confusions(run(predictions=table.drop_columns(["true"]))) is None
    assert figures.confusions(run()) is None

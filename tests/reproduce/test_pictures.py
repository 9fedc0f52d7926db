"""Pictures of results: legends that fit, however many names they have, and labels that do not cover each other."""

import re

import pytest

from fedweave.papers import curves, planes, stacks
from fedweave.papers.curves import Point
from fedweave.papers.planes import EDGE, LETTER, WIDTH, Marker, begin, legend

NAMES = ["FairGFL", "FairGFL, normalised", "FedAvg", "FedAvg, FairGFL's mean step", "q-FedAvg", "Ditto", "FED-PUB"]


@pytest.mark.parametrize("count", [1, 3, 7])
def test_a_legend_stays_within_the_picture_and_above_its_lines(count: int) -> None:
    places, top = legend(NAMES[:count], 34)
    for (x, y), name in zip(places, NAMES, strict=False):
        assert x + 34 + LETTER * 12 * len(name) <= WIDTH
        assert y < top - 24  # where the unit stands
    assert len(set(places)) == count


def test_curves_have_their_names_at_the_places_of_the_legend() -> None:
    lines = {name: [Point(0, 0.5, 0.0), Point(1, 0.6, 0.0)] for name in NAMES}
    drawn = curves.svg("title", "accuracy", lines)
    names = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="start" font-size="12">', drawn)[1:]
    places, _ = legend(NAMES, 34)
    assert [(float(x), float(y)) for x, y in names] == [(round(x + 34, 1), y) for x, y in places]


def test_a_long_title_is_smaller() -> None:
    _, _, title = begin("t" * 200)
    size = float(re.search(r'font-size="([\d.]+)"', title)[1])  # type: ignore[index]
    assert 200 * LETTER * size <= WIDTH - 2 * EDGE + 1
    assert 'font-size="13"' in list(begin("short"))[2]


def test_labels_at_one_place_stand_in_a_row() -> None:
    line = [Marker("0.1", 1.0, 50.0, 0.0, 0.0), Marker("0.5", 1.0, 50.0, 0.0, 0.0), Marker("1", 9.0, 80.0, 0.0, 0.0)]
    drawn = planes.svg("title", ("gap", "accuracy"), {"method": line})
    assert re.findall(r'font-size="10">([^<]*)<', drawn) == ["0.1, 0.5", "1"]


def test_pieces_of_a_bar_are_as_long_as_their_shares() -> None:
    drawn = stacks.svg("title", ["a", "b"], {"one": [0.25, 0.75], "other": [0.5, 0.5]})
    wide = [float(width) for width in re.findall(r'<rect x="[\d.]+" y="[\d.]+" width="([\d.]+)"', drawn)][2:]
    length = WIDTH - stacks.LETTERS - 15
    assert wide == [round(length * share, 1) for share in (0.25, 0.75, 0.5, 0.5)]


def test_a_unit_of_several_splits_is_drawn_by_split() -> None:
    assert curves.units([("local", "F1"), ("global", "F1"), ("local", "loss")]) == {
        ("local", "F1"): "local F1",
        ("global", "F1"): "global F1",
        ("local", "loss"): "loss",
    }

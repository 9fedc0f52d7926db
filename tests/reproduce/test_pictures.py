"""Pictures of results: legends that fit, however many names they have, and labels that do not cover each other."""

import re

import pytest

from fedweave.papers.pictures import units
from fedweave.reports.drawing import WIDTH
from fedweave.reports.pictures import KEY, LETTER, NAME, Marker, Point, curves, legend, scatter, stacks
from tests.refusals import check_facts

NAMES = ["FairGFL", "FairGFL, normalized", "FedAvg", "FedAvg, FairGFL's mean step", "q-FedAvg", "Ditto", "FED-PUB"]


@pytest.mark.parametrize("count", [1, 3, 7])
def test_a_legend_stays_within_the_picture(count: int) -> None:
    spots = legend(NAMES[:count], 30)
    assert all(x + KEY + LETTER * NAME * len(name) <= WIDTH for (x, _), name in zip(spots, NAMES, strict=False))
    assert len(set(spots)) == count


def test_names_stand_at_the_places_of_the_legend_above_the_panel() -> None:
    lines = {name: [Point(0, 0.5, 0.0), Point(1, 0.6, 0.0)] for name in NAMES}
    drawn = curves("title", "accuracy", lines)
    names = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" font-size="11">', drawn)
    spots = legend(NAMES, 32)
    assert [(float(x), float(y)) for x, y in names] == [(round(x + KEY, 1), y) for x, y in spots]
    assert float(re.search(r'<svg y="([\d.]+)"', drawn)[1]) > spots[-1][1]


def test_a_long_title_stands_in_lines() -> None:
    lines = {"a": [Point(0, 0.5, 0.0)]}
    titles = [re.findall(r'font-size="12">(\w*)<', curves("t" * many, "", lines)) for many in (5, 200)]
    assert titles[0] == ["ttttt"]
    assert list("".join(titles[1])) == ["t"] * 200
    assert max(map(len, titles[1])) * LETTER * 12 <= WIDTH


def test_nothing_is_left_to_a_page_s_style() -> None:
    drawn = curves("title", "accuracy", {"a": [Point(0, 0.5, 0.1), Point(1, 0.6, 0.1)]})
    assert "class=" not in drawn
    assert "--c" not in drawn
    check_facts(drawn, 'stroke="#0072B2"')


def test_labels_at_one_place_stand_in_a_row() -> None:
    line = [Marker("0.1", 1.0, 50.0, 0.0, 0.0), Marker("0.5", 1.0, 50.0, 0.0, 0.0), Marker("one", 9.0, 80.0, 0.0, 0.0)]
    drawn = scatter("title", ("gap", "accuracy"), {"method": line})
    assert [words for words in re.findall(r">([^<>]+)</text>", drawn) if words in ("0.1, 0.5", "one")] == [
        "0.1, 0.5",
        "one",
    ]


def test_pieces_of_a_bar_are_as_high_as_their_shares() -> None:
    drawn = stacks("title", ["a", "b"], {"one": [0.25, 0.75], "other": [5, 5]})
    high = [float(height) for height in re.findall(r'width="[\d.]+" height="([\d.]+)"><title>', drawn)]
    assert [height / sum(high[::2]) for height in high] == pytest.approx([0.25, 0.5, 0.75, 0.5], abs=0.01)


def test_a_unit_of_several_splits_is_drawn_by_split() -> None:
    assert units([("local", "F1"), ("global", "F1"), ("local", "loss")]) == {
        ("local", "F1"): "local F1",
        ("global", "F1"): "global F1",
        ("local", "loss"): "loss",
    }

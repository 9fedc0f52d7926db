"""Runs in several conditions: compared within each, ranked over all, with no claim that a test does not support."""

import itertools
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import friedmanchisquare, ttest_rel, wilcoxon

from fedweave.experiment.runs.reading import Run, group_runs, read_run
from fedweave.reports.conditions import Condition, conditions, overview
from fedweave.reports.effects import UNDECIDED
from fedweave.reports.html import render
from fedweave.reports.ranks import rank_means, ranks
from tests import commands
from tests.refusals import check_facts
from tests.report.test_report import Page, edit_summary
from tests.report.test_report import runs as runs

VALUES = {  # of three seeds
    ("cora", "fedavg"): [0.80, 0.81, 0.82],
    ("cora", "local"): [0.70, 0.72, 0.71],
    ("pubmed", "fedavg"): [0.60, 0.90, 0.75],
    ("pubmed", "local"): [0.70, 0.72, 0.71],
}


def made(run: Run, dataset: str, name: str, seed: int, accuracy: float, **partition: object) -> Run:
    """The run as if it were another."""
    data, cut = run.section("data") | {"name": dataset}, run.section("partition") | partition
    config = {**run.config, "seed": seed, "data": data, "partition": cut, "algorithm": {"name": name}}
    metrics = run.summary["metrics"] | {"local/accuracy": accuracy}
    summary = run.summary | {"dataset": dataset, "algorithm": name, "seed": seed, "metrics": metrics}
    return replace(run, config=config, summary=summary)


@pytest.fixture(scope="module")
def several(runs: dict[str, Path]) -> list[Run]:
    """Two algorithms on two data sets."""
    run = read_run(runs["s0"])
    return [made(run, *what, seed, value) for what, own in VALUES.items() for seed, value in enumerate(own)]


def test_data_sets_are_conditions_in_which_runs_are_paired(several: list[Run]) -> None:
    found = conditions(group_runs(several))
    assert [(one.title, [group.label for group in one.groups]) for one in found] == [
        ("cora", ["fedavg", "local"]),
        ("pubmed", ["fedavg", "local"]),
    ]
    wanted = ttest_rel(VALUES["cora", "local"], VALUES["cora", "fedavg"]).confidence_interval(0.95)
    rows = [overview(one).rows[1] for one in found]
    assert rows[0][3].text == "▽ \N{MINUS SIGN}0.100"
    check_facts(rows[0][3].note, f"{abs(wanted.low):.2g}", f"{abs(wanted.high):.2g}")
    assert rows[1][3].text == "\N{MINUS SIGN}0.0400"  # the interval has 0 in it
    assert overview(found[0]).rows[0][3].text == "-"


def test_cuts_are_conditions_where_each_has_several_runs(runs: dict[str, Path]) -> None:
    """Of one run in each, such as one algorithm at several strengths of noise, all are compared with the first."""
    run = read_run(runs["s0"])
    cuts = [made(run, "cora", name, 0, 0.5, slack=slack) for name in ("fedavg", "local") for slack in (0.1, 0.2)]
    assert [one.title for one in conditions(group_runs(cuts))] == ["slack = 0.1", "slack = 0.2"]
    assert [len(one.groups) for one in conditions(group_runs(cuts[:2]))] == [2]
    assert [len(one.groups) for one in conditions(group_runs(cuts[:3]))] == [3]
    asked = conditions(group_runs(cuts), ["algorithm.name"])  # as a sweep says
    assert [(one.title, len(one.groups)) for one in asked] == [("algorithm = fedavg", 2), ("algorithm = local", 2)]


def test_a_page_of_several_conditions_compares_within_each(several: list[Run]) -> None:
    text = render(several)
    page = Page(text)
    order = [own["id"] or "" for tag, own in page.elements if tag == "section"]
    assert len(order) == len(set(order))
    assert [name for name in order if name.endswith("condition")] == ["part0-condition", "part1-condition"]
    assert [row[0] for row in page.tables["part1-condition"][0][1:]] == ["local", "fedavg"]  # what others are less
    assert page.tables["ranks"][0] == [
        ["rank", "cora", "pubmed", "mean"],
        ["fedavg", "1", "1", "1.00"],
        ["local", "2", "2", "2.00"],
    ]
    assert page.tables["part0-differences"][0][0][2] == "difference to local"
    marked = re.findall(r'aria-labelledby="([^"]+)"|id="([^"]+)"', text)
    ids = [name for _, name in marked if name]
    assert len(ids) == len(set(ids))


def test_ranks_by_hand_and_their_tests_by_scipy() -> None:
    """Equal numbers share places; a condition without a number of all is left out and named."""
    means = {
        "a": {"x": 0.9, "y": 0.8, "z": 0.7},
        "b": {"x": 0.5, "y": 0.5, "z": 0.4},
        "c": {"x": 0.1, "y": 0.2, "z": 0.3},
    }
    found = rank_means(means | {"d": {"x": 0.9, "y": 0.8}}, ["x", "y", "z"], 4)
    assert found.places.tolist() == [[1, 2, 3], [1.5, 1.5, 3], [3, 2, 1]]
    assert found.means == pytest.approx({"x": 5.5 / 3, "y": 5.5 / 3, "z": 7 / 3})
    columns = [[own[name] for own in means.values()] for name in "xyz"]
    assert found.p == pytest.approx(friedmanchisquare(*columns).pvalue)
    assert found.sentence().startswith(f"{UNDECIDED} over 3 conditions (Friedman's test, p = ")
    check_facts(found.sentence(), "d.")
    rng = np.random.default_rng(0)
    two = {str(at): {"x": value + 0.1, "y": value} for at, value in enumerate(rng.random(8))}
    tested = rank_means(two, ["x", "y"], 4)
    assert tested.p == pytest.approx(wilcoxon(np.full(8, 0.1) + rng.random(8) * 1e-9).pvalue)
    assert tested.sentence().startswith("Mean ranks over 8 conditions, 1 is best, differ (Wilcoxon's signed-rank test")
    check_facts(tested.sentence(), "4 data sets")
    equal = {title: {"x": value, "y": value} for title, value in (("a", 1.0), ("b", 1.0), ("c", 0.0))}
    assert rank_means(equal, "xy", 3).p == 1.0


def test_the_order_of_runs_does_not_matter_for_ranks(several: list[Run]) -> None:
    wanted = ranks(conditions(group_runs(several[::3]))).means
    for order in itertools.islice(itertools.permutations(several[::3]), 3):
        assert ranks(conditions(group_runs([*order]))).means == pytest.approx(wanted)


def test_compare_takes_runs_on_several_data_sets(runs: dict[str, Path], tmp_path: Path) -> None:
    folders = [runs["alone"], runs["s0"]]
    for name in ("alone", "s0"):
        other = shutil.copytree(runs[name], tmp_path / name)
        edit_summary(other, dataset="moons")
        folders.append(other)
    said = commands.run("compare", *map(str, folders))
    assert ("synthetic:" in said, "moons:" in said, "mean ranks over 2 conditions" in said) == (True, True, True)
    assert conditions(group_runs([read_run(folders[0]), read_run(folders[3])])) == []
    assert isinstance(conditions(group_runs([read_run(one) for one in folders]))[0], Condition)

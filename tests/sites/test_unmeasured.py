"""What a policy does not measure is undefined, in whatever is made of it, and `sites check` names it beforehand."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.datasets import load
from fedweave.experiment.rounds import train
from fedweave.partition import Louvain
from fedweave.sites.flare.sitefile import FINE
from fedweave.sites.operation.comparison import NUMBERS, compare_measures
from fedweave.sites.operation.experiments import hand_out
from fedweave.sites.operation.findings import Findings
from fedweave.sites.operation.site_check import check_site
from tests.privacy.authority import write_kits
from tests.sites.projects import SITES, experiment, joined, set_policy


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = tmp_path_factory.mktemp("unmeasured") / "project"
    for folder in ("server", *SITES):
        (project / folder).mkdir(parents=True)
        (project / folder / "privacy.secret").touch(mode=0o600)
        (project / folder / "privacy.secret").write_text("5" * 64)
    data = load("synthetic", nodes=600, classes=2, features=8, sensitive=True, seed=0)
    data = replace(data, y=data.y * (np.random.default_rng(0).random(data.nodes) < 0.1))
    hand_out(data, Louvain(clients=3).cut(data, 0), project, SITES)
    write_kits(project, SITES, 2048)
    return project


@pytest.fixture
def project(made: Path, tmp_path: Path) -> Path:
    """Three sites of people in two groups, of whom one in twenty is of class 1."""
    return Path(shutil.copytree(made, tmp_path / "project"))


# What ends the names of the numbers that each makes.
OF = {
    "classes": ("/macro_f1", "/recall", "/f1_positive", "groups/global/sp"),
    "loss": ("/loss",),
    "auc": ("local/auc", "global/auc", "within/auc"),
    "group_auc": ("auc_group0", "auc_group1"),
    "average_precision": ("local/average_precision", "global/average_precision", "within/average_precision"),
    "recall_at_1": ("local/recall_at_1", "global/recall_at_1", "within/recall_at_1"),
    "precision_at_1": ("local/precision_at_1", "global/precision_at_1"),
    "histogram": ("pooled/auc", "pooled/threshold"),
}


def run(
    project: Path, measures: Sequence[str] | None, scores: str = "sum", run: str = "r1", **rest: Any
) -> dict[str, float]:
    """The summary after two rounds of sites whose policies measure this."""
    for site in SITES:
        set_policy(project, "" if measures is None else f"measures = {list(measures)}", site)
    config = experiment("fedavg", rounds=2, algorithm_settings={"scores": scores, "lr": 0.1}, **rest)
    fed, algorithm, _ = joined(project, config, run)
    *_, last = train(algorithm, fed, 2, judging=config.evaluation)
    return dict(last.summary)


@pytest.mark.often("average_precision-sum", "average_precision-each", "histogram-sum", "classes-each")
@pytest.mark.parametrize("scores", ["sum", "each"])
@pytest.mark.parametrize("without", OF)
def test_what_no_policy_measures_is_undefined(project: Path, scores: str, without: str) -> None:
    """Whatever is left out, the run ends, and lacks the number by itself, as mean and as best."""
    found = run(project, [own for own in FINE if own != without], scores)
    assert found["global/accuracy"] > 0
    by_class = without == "classes" and scores == "each"  # in sums they leave anyway
    for name in OF[without] if without != "classes" or by_class else ():
        assert not [key for key in found if key.endswith(name)], name
    assert ("judged/average_precision" in found) == (not by_class)
    assert ("best_val/val/average_precision" in found) == (without != "average_precision" and not by_class)
    assert ("best_fair/round" in found) == (without != "average_precision" and not by_class)


@pytest.mark.parametrize("measures", [None, ["histogram"]])
def test_a_run_by_a_policy_as_sites_init_writes_it_ends(project: Path, measures: list[str] | None) -> None:
    """Three sites, groups, a rare class and scores in sums: nothing is best by a number that nobody measures."""
    found = run(project, measures)
    assert found["judged/average_precision"] == 1
    assert not [name for name in found if name.startswith("best_")]
    assert ("pooled/threshold" in found) == bool(measures)


def noted(
    project: Path, measures: Sequence[str], scores: str = "sum", sites: Sequence[str] = SITES, **rest: Any
) -> list[str]:
    """What a check says of measures."""
    for site in sites:
        set_policy(project, f"measures = {list(measures)}", site)
    config = experiment("fedavg", rounds=2, algorithm_settings={"scores": scores}, **rest)
    told = Findings(forms={site: {} for site in SITES})
    for site in SITES:
        check_site(project / site, config, SITES, told)
    compare_measures(told, config, SITES)
    assert not told.faults
    return [f"{whose}: {what}" for whose, what in told.notes if "policy.measures" in what]


def test_each_measure_says_what_it_makes() -> None:
    assert [*NUMBERS] == [*FINE] == [*OF, "ranks"]  # of links, see test_links_at_sites


def test_the_check_names_what_will_be_missing(project: Path) -> None:
    assert not noted(project, FINE)
    assert not noted(project, [own for own in FINE if own != "histogram"], "each")
    [said] = noted(project, [])
    assert said.startswith(", ".join(SITES))
    assert all(own in said for own in OF if own != "classes")
    assert "ranks" not in said
    assert "classes" not in said
    assert "No round" in said
    assert "No threshold" in said
    [said] = noted(project, [own for own in FINE if own != "histogram"])
    assert "No threshold" in said
    assert "No round" not in said
    [said] = noted(project, [], "each")
    assert "classes" in said
    assert "No threshold" not in said


def test_the_check_tells_sites_that_measure_from_those_that_do_not(project: Path) -> None:
    assert not noted(project, FINE)
    [said] = noted(project, [own for own in FINE if own != "auc"], sites=SITES[:1])
    assert said.startswith(f"{SITES[0]}: ")
    assert "No round" not in said

"""Between sites the result is the last round where the server lacks the models of the best: members have their own."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.experiment.runs.reading import read_run
from tests.sites.projects import experiment
from tests.sites.test_baselines import at_sites


@pytest.mark.often("local-False")
@pytest.mark.parametrize(("name", "has_models"), [("local", False), ("fedavg", True)])
def test_an_unfinished_run_names_the_round_that_a_finished_one_does(
    project: Path, tmp_path: Path, name: str, has_models: bool
) -> None:
    at_sites(project, tmp_path / "out", experiment(name, rounds=4, algorithm_settings={"lr": 3.0}))
    unfinished = tmp_path / "unfinished"
    shutil.copytree(tmp_path / "out", unfinished)
    (unfinished / "summary.json").unlink()
    found, expected = read_run(unfinished), read_run(tmp_path / "out")
    best = (expected.last_metrics or expected.summary["metrics"])["best_val/round"]
    assert best < 4, "the case tells nothing where the last round is the best"
    assert ("chosen_round" in expected.summary) == has_models
    assert found.summary.get("chosen_round") == expected.summary.get("chosen_round")
    assert found.summary["metrics"]["local/accuracy"] == pytest.approx(expected.summary["metrics"]["local/accuracy"])

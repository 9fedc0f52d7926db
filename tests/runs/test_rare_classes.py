"""Where a class is rare, average precision judges and not accuracy, and a sentence says so: on terminals, pages, in
sweeps."""

import json
import re
from pathlib import Path

import pytest

from tests.runs.rare import accounts
from tests.runs.test_cases_of_scores import called

SAID = "So average precision judges here"


@pytest.fixture(scope="module", params=[0.04, 0.2])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[bool, Path, str]:
    """Whether a class is rare, the folder of a run with FedAvg and one alone, and what the first one said."""
    root = tmp_path_factory.mktemp("banks")
    experiment = accounts(root, request.param)
    said = called("run", experiment, "--out", root / "fedavg")
    assert said.exit_code == 0, said.output
    assert called("run", experiment, "--algorithm", "local", "--out", root / "local").exit_code == 0
    return request.param < 0.1, root, " ".join(said.output.split())


def test_the_terminal(runs: tuple[bool, Path, str]) -> None:
    rare, root, said = runs
    found = json.loads((root / "fedavg" / "summary.json").read_text())["metrics"]
    if rare:
        assert found["scores/rarest"] == 6 / 150  # of 150 train nodes of which 12 / 2 are of class 1
        assert found["judged/average_precision"] == 1
    assert ("scores/rarest" in found, SAID in said, "average precision global" in said) == (rare, rare, rare)
    judged = "average precision" if rare else "accuracy"
    assert f"best mean validation {judged}" in said
    assert ("accuracy global" in said) == (not rare)
    assert found["best_val/val/average_precision" if rare else "best_val/val/accuracy"] > 0
    assert found["fairness/worst_average_precision" if rare else "fairness/worst_accuracy"] > 0
    assert found["pooled/threshold"] == 0.5 or rare


def test_pages(runs: tuple[bool, Path, str]) -> None:
    rare, root, _ = runs
    for name, given in {"one": ["fedavg"], "two": ["fedavg", "local"]}.items():
        page = root / f"{name}.html"
        assert called("report", *(root / run for run in given), "-o", page).exit_code == 0
        text = page.read_text()
        assert (SAID in text) == rare
        judged = "average precision" if rare else "accuracy"
        assert f"best mean validation {judged}" in text
        assert "worst client" in text
        leads = " ".join(re.findall('<p class="lead">([^<]*)', text))
        assert ("members gain" in leads or "gains" in leads) == (name == "two")
        assert judged in leads
        assert ("accuracy" in leads) == (not rare)


def test_a_sweep(runs: tuple[bool, Path, str]) -> None:
    rare, root, _ = runs
    said = called("sweep", root / "e.toml", "--seeds", "0-1", "--out", root / "sweep")
    assert said.exit_code == 0, said.output
    for text in (said.output, (root / "sweep" / "sweep.md").read_text()):
        assert "best val" in text
        assert ("Average precision, mean" in text) == rare
        assert ("recall" in text) == rare

"""A run whose secure sum cuts values says how many, in its summary, on the terminal and on its page."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedweave.cli import app
from tests import commands
from tests.refusals import check_facts

CASE = Path(__file__).parents[1] / "cases" / "secure-sum-bound"


def test_the_number_of_values_that_were_cut_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one step of length 5, 47 of 3 members' 50 weights each are beyond ±1; of ±50 none is."""
    case = Path(shutil.copytree(CASE, tmp_path / "case"))
    monkeypatch.chdir(case)
    wide = "algorithm.parts=[{name = 'secure_sum', bound = 50.0, bits = 64}]"
    told = {}
    settings = ["--set", "rounds=1", "--set", "data.normalize=none"]
    for name, more in (("tight", []), ("wide", ["--set", wide])):
        command = ["run", str(case / "tight.toml"), "--out", str(tmp_path / name), *settings, *more]
        result = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
        assert result.exit_code == 0, result.output
        told[name] = result.output
    check_facts(told["tight"], "47 of 150", "±1")
    assert not [word for word in told["wide"].split() if word == "150"]
    metrics = json.loads((tmp_path / "tight" / "summary.json").read_text())["metrics"]
    assert (metrics["secure_sum/cut"], metrics["secure_sum/values"]) == (47, 150)
    page = tmp_path / "tight.html"
    commands.run("report", tmp_path / "tight", "-o", page)
    check_facts(page.read_text(), "47 of 150")

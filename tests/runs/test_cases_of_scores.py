"""Small inputs on which scores once said something else than their names."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import Result
from typer.testing import CliRunner

from fedweave.cli import app

CASES = Path(__file__).parents[1] / "cases"


def called(*words: Any) -> Result:
    return CliRunner().invoke(app, [*map(str, words)])


def accuracies(path: Path) -> dict[str, float]:
    """{client: of its test examples}."""
    found: dict[str, list[bool]] = {}
    for row in pq.read_table(path).to_pylist():
        if row["split"] == "test":
            found.setdefault(row["client"], []).append(row["true"] == row["predicted"])
    return {client: sum(right) / len(right) for client, right in found.items()}


def test_a_client_without_training_examples_has_the_model_that_it_received(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three banks one trains; weight decay alone moved the others' models, to .25 for .95."""
    out = tmp_path / "run"
    monkeypatch.chdir(CASES / "idle-trained")
    fast = ("rounds=30", "algorithm.local_steps=20", "algorithm.lr=0.05")
    settings = [word for own in fast for word in ("--set", own)]
    assert called("run", "onetrain.toml", "--out", out, *settings).exit_code == 0
    metrics = pq.read_table(out / "metrics.parquet").to_pylist()
    last = {(row["client"], row["metric"]): row["value"] for row in metrics if row["round"] == 30}
    for client in ("b", "c"):
        assert last[client, "trained/accuracy"] == last[client, "accuracy"] == 0.95
    assert called("predict", out, "--model", "trained", "--out", out / "t.parquet").exit_code == 0
    assert {client: accuracies(out / "t.parquet")[client] for client in ("b", "c")} == {"b": 0.95, "c": 0.95}


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_run_in_which_nobody_trains_is_refused_before_it(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended with an AUC of .97 of random weights."""
    monkeypatch.chdir(CASES / "idle-trained")
    said = called(command, "notrain.toml", *(("--out", tmp_path / "run") if command == "run" else ()))
    assert said.exit_code == 2
    assert "nobody would train" in " ".join(said.output.split())
    assert not (tmp_path / "run").exists()


def test_a_run_in_which_nobody_is_tested_says_so_first_and_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its model may be all that is wanted, so that it is no mistake."""
    monkeypatch.chdir(CASES / "idle-trained")
    said = called("run", "notest.toml", "--out", tmp_path / "run")
    assert said.exit_code == 0
    first, last = " ".join(said.output.split()).split("round 3/3")
    assert "no client has a test example" in first
    assert "nobody was tested" in last

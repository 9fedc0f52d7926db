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

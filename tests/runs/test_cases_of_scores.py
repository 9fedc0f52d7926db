"""Small inputs on which scores once said something else than their names."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import Result
from typer.testing import CliRunner

from fedweave.cli import app
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train

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
    fast = ("rounds=30", "algorithm.local_steps=20", "algorithm.lr=0.05", "data.normalize=none")
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
    assert not (tmp_path / "run").exists()


def test_a_run_in_which_nobody_is_tested_says_so_first_and_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its model may be all that is wanted, so that it is not a mistake."""
    monkeypatch.chdir(CASES / "idle-trained")
    said = called("run", "notest.toml", "--out", tmp_path / "run")
    assert said.exit_code == 0
    assert "round 3/3" in " ".join(said.output.split())


def test_one_name_is_one_metric_for_every_algorithm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same MLP by four banks and on all their data: AUC .5895 stood beside .8630; like for like it is .6033."""
    monkeypatch.chdir(CASES / "centralized-auc")
    found = {}
    for name in ("fedavg", "centralized"):
        words = ("run", "e.toml", "--algorithm", name, "--out", tmp_path / name, "--set", "data.normalize=none")
        assert called(*words).exit_code == 0
        found[name] = json.loads((tmp_path / name / "summary.json").read_text())["metrics"]
    aucs = ("global/auc", "within/auc", "pooled/auc", "within/members")
    assert [found["fedavg"][name] for name in aucs] == pytest.approx([0.5895, 0.5895, 0.4864, 4], abs=1e-4)
    assert [found["centralized"][name] for name in aucs] == pytest.approx([0.6033, 0.6033, 0.8630, 4], abs=1e-4)


def test_one_client_with_all_data_is_scored_member_by_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worst client was its only one. By its predictions: each member's accuracy, and all of them together."""
    monkeypatch.chdir(CASES / "centralized-auc")
    out = tmp_path / "run"
    assert called("run", "e.toml", "--algorithm", "centralized", "--out", out).exit_code == 0
    assert called("predict", out, "--out", out / "p.parquet").exit_code == 0
    owner = dict(row.split(",")[:3:2] for row in Path("data/nodes.csv").read_text().splitlines()[1:])
    own: dict[str, list[bool]] = {}
    for row in pq.read_table(out / "p.parquet").to_pylist():
        if row["split"] == "test":
            own.setdefault(owner[row["id"]], []).append(row["true"] == row["predicted"])
    each = {member: sum(right) / len(right) for member, right in own.items()}
    summary = json.loads((out / "summary.json").read_text())
    metrics, rows = summary["metrics"], pq.read_table(out / "metrics.parquet").to_pylist()
    said = {row["client"]: row["value"] for row in rows if (row["split"], row["metric"]) == ("test", "accuracy")}
    assert {member: said[member] for member in "abcd"} == pytest.approx(each)
    assert metrics["fairness/worst_accuracy"] == pytest.approx(min(each.values()))
    assert metrics["fairness/accuracy_deviation"] > 0.1
    assert metrics["global/accuracy"] == pytest.approx(sum(map(sum, own.values())) / sum(map(len, own.values())))
    assert (summary["clients"], summary["members"]) == (1, 4)


@pytest.mark.often("partition1")
@pytest.mark.parametrize("partition", [{"name": "random"}, {"name": "label_skew", "test_nodes": 30, "majors": 1}])
def test_members_of_different_sizes_are_scored_alike_in_every_mode(partition: dict[str, Any]) -> None:
    """Loop and recorded batches; label skew has members share nodes."""
    data = {"name": "synthetic", "nodes": 400, "classes": 3, "features": 8}
    left = []
    for mode, record in (("loop", "never"), ("vmap", "always")):
        chosen = {"data": data, "partition": {**partition, "clients": 5}, "algorithm": {"name": "centralized"}}
        built = build(resolve({**chosen, "engine": {"mode": mode, "record": record}}))
        *_, last = train(built.algorithm, built.fed, 3)
        assert len(last.of_clients("accuracy")) == 5
        left.append(dict(last.summary))
    assert left[0] == pytest.approx(left[1], abs=1e-5)

"""`fedweave predict`: a run on a folder of parties, then the same and new nodes."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fedweave.apply.run_predictions import config_on, predictions
from fedweave.cli import app
from fedweave.experiment.config import resolve
from tests.refusals import refusal

CONFIG = """
seed = 1
rounds = {rounds}
eval_every = 0
[data]
name = "parties"
path = "{path}"
classes = 2
{more}
[partition]
name = "parties"
{partition}
train = 0.6
val = 0.1
test = 0.3
[model]
name = "gcnii"
hidden = 8
layers = 2
dropout = 0.0
[algorithm]
name = "{algorithm}"
{parameters}
"""
GLASU = 'batch = 0\nsteps = 4\noptimizer = "sgd"\nlr = 1.0'


def folder(root: Path, nodes: int, labelled: int) -> Path:
    """Two parties; the class of node i is i mod 2, and each party's features say so half-heartedly. The first nodes
    are the same in any such folder."""
    rng = np.random.default_rng(0)
    y, noise = np.arange(nodes) % 2, rng.normal(size=(100, 2, 2))
    for m, name in enumerate(("bank", "shop")):
        (root / name).mkdir(parents=True)
        label = ["" if m else f"{y[i]}," if i < labelled else "," for i in range(nodes)]
        lines = [f"n{i:03d},{label[i]}{2 * y[i] + noise[i, m, 0]:.5f},{noise[i, m, 1]:.5f}" for i in range(nodes)]
        (root / name / "nodes.csv").write_text("\n".join([f"id,{'' if m else 'label,'}a{m},b{m}", *lines]))
        links = [f"n{i:03d},n{i + 2:03d}" for i in range(nodes - 2)]
        (root / name / "edges.csv").write_text("\n".join(["source,target", *links]))
    return root


def run(
    tmp_path: Path,
    algorithm: str = "glasu",
    parameters: str = GLASU,
    more: str = "",
    partition: str = "",
    rounds: int = 2,
) -> Path:
    data, config, out = folder(tmp_path / "data", 60, 60), tmp_path / "x.toml", tmp_path / "run"
    config.write_text(
        CONFIG.format(
            path=data, algorithm=algorithm, parameters=parameters, more=more, partition=partition, rounds=rounds
        )
    )
    done = CliRunner().invoke(app, ["run", str(config), "--out", str(out), "--quiet"])
    assert done.exit_code == 0, done.output
    return out


def columns(table: pa.Table) -> dict[str, np.ndarray]:
    return {name: np.array(table[name].to_pylist()) for name in table.column_names}


def test_old_and_new_nodes(tmp_path: Path) -> None:
    out = run(tmp_path, rounds=40)
    said = CliRunner().invoke(app, ["predict", str(out)])
    assert said.exit_code == 0, said.output
    old = columns(pq.read_table(out / "predictions.parquet"))
    assert old["node"].tolist() == [*range(60)] * 2
    assert old["client"].tolist() == ["bank"] * 60 + ["shop"] * 60
    assert old["id"].tolist() == [f"n{i:03d}" for i in range(60)] * 2
    assert (old["predicted"] == old["node"] % 2).mean() > 0.9
    assert np.allclose(old["p_0"] + old["p_1"], 1, atol=1e-5)
    held = columns(pq.read_table(out / "partition.parquet"))
    for split in ("train", "val", "test"):
        counted = [int(((old["client"] == client) & (old["split"] == split)).sum()) for client in ("bank", "shop")]
        assert counted == held[split].tolist()
    CliRunner().invoke(app, ["report", str(out)])
    assert "(predictions.parquet)" in (out / "report.html").read_text()  # below the confusion of test nodes
    new = columns(predictions(out, folder(tmp_path / "new", 80, 60)))
    assert new["node"].tolist() == [*range(80)] * 2
    assert "split" not in new
    fresh = new["node"] >= 60
    assert (new["predicted"] == new["node"] % 2)[fresh].mean() > 0.9
    far = [*range(50), *range(60, 110)]  # beyond the reach of the new nodes' edges
    assert np.allclose(old["p_1"][far], new["p_1"][[*range(50), *range(80, 130)]], atol=1e-6)


def test_what_cannot_be_predicted_is_refused(tmp_path: Path) -> None:
    with refusal("user.no-run"):
        predictions(tmp_path)
    out = run(tmp_path)
    other = folder(tmp_path / "other", 60, 60)
    table = other / "bank" / "nodes.csv"
    header, *lines = table.read_text().splitlines()
    table.write_text("\n".join([f"{header},more", *(f"{line},1" for line in lines)]))
    with refusal("user.columns", "run's", "order: a0, b0"):
        predictions(out, other)
    table.write_text("\n".join([header.replace("a0,b0", "b0,a0"), *lines]))
    with refusal("user.columns", "b0, a0"):
        predictions(out, other)
    table.write_text(
        "\n".join([header.replace("label,", ""), *(line.replace(",0,", ",").replace(",1,", ",") for line in lines)])
    )
    (other / "shop" / "nodes.csv").unlink()
    with refusal("data.new-beside-old"):
        predictions(out, other)


def test_new_nodes_have_the_runs_classes_even_where_some_do_not_occur() -> None:
    document = {"data": {"name": "parties", "path": "old"}, "partition": {"name": "parties"}}
    config = resolve(document | {"model": {"name": "gcnii"}, "algorithm": {"name": "glasu"}})
    for labels, given in ((("claim", "ok"), None), ((), 2)):
        now = config_on(config, Path("new"), SimpleNamespace(labels=labels, classes=2)).data.values
        assert (now["labels"], now["classes"]) == (labels or None, given)


def test_only_who_has_labels_predicts_and_nothing_is_overwritten(tmp_path: Path) -> None:
    out = run(tmp_path, partition='labels = "holders"')
    said = CliRunner().invoke(app, ["predict", str(out), "--out", str(tmp_path / "p.csv")])
    assert said.exit_code == 0, said.output
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == '"client","node","id","split","true","predicted","p_0","p_1"'
    assert len(lines) == 61
    assert all(line.startswith('"bank"') for line in lines[1:])
    again = CliRunner().invoke(app, ["predict", str(out), "--out", str(tmp_path / "p.csv")])
    assert again.exit_code == 2
    assert "p.csv exists; name another file" in again.output
    assert "ends in .parquet or .csv" in CliRunner().invoke(app, ["predict", str(out), "--out", "p.txt"]).output


def test_scaled_features_and_choices_of_models_are_refused(tmp_path: Path) -> None:
    out = run(tmp_path / "a", more='normalize = "standard"')
    with refusal("user.scaling"):
        predictions(out, folder(tmp_path / "new", 80, 60))
    with refusal("user", "--model and --client"):
        predictions(out, model="global")
    with refusal("user.own-columns"):
        predictions(run(tmp_path / "b", "local", ""), folder(tmp_path / "other", 80, 60))


def test_gaps_between_groups_are_scored_where_one_party_has_labels_and_groups(tmp_path: Path) -> None:
    """The gap in predictions is what the table of predictions says; the shop has neither labels nor groups."""
    data, config, out = folder(tmp_path / "data", 60, 60), tmp_path / "x.toml", tmp_path / "run"
    file = data / "bank" / "nodes.csv"
    head, *lines = file.read_text().splitlines()
    groups = [str((7 * i // 3) % 2) for i in range(60)]
    told = [f"{line},{group}" for line, group in zip(lines, groups, strict=True)]
    file.write_text("\n".join([f"{head},sens", *told]))
    config.write_text(
        CONFIG.format(
            path=data, algorithm="glasu", parameters=GLASU, more="", partition='labels = "holders"', rounds=40
        )
    )
    done = CliRunner().invoke(app, ["run", str(config), "--out", str(out), "--quiet"])
    assert done.exit_code == 0, done.output
    own = columns(predictions(out))
    assert {*own["client"]} == {"bank"}
    tested = own["split"] == "test"
    shares = [(own["predicted"][tested & (np.array(groups)[own["node"]] == group)] == 1).mean() for group in ("0", "1")]
    summary = json.loads((out / "summary.json").read_text())["metrics"]
    assert summary["groups/global/sp"] == pytest.approx(abs(shares[0] - shares[1]), abs=1e-6)
    assert summary["groups/global/sp"] > 0.01
    said = CliRunner().invoke(app, ["check", str(config)])
    assert "gaps between groups of people are not measured" not in said.output

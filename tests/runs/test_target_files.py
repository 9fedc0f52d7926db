"""Runs on numbers and several labels, from users' files to predictions, metrics of one's own and exports."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from fedweave.apply.own_metrics import measure
from fedweave.apply.prediction_table import rmse_of
from fedweave.apply.run_predictions import predictions
from fedweave.cli import app
from fedweave.datasets import load
from fedweave.experiment.runs.data_form import read_form
from tests import commands
from tests.export.test_export import loaded
from tests.refusals import check_facts, refusal
from tests.runs.test_predictions import columns, made

NODES = 120
GRAPHS = 60


def nodes_folder(path: Path, seed: int = 0, log: bool = False) -> Path:
    """A ring of nodes whose price, in thousands, is their feature's; every tenth is unknown."""
    path.mkdir()
    rng = np.random.default_rng(seed)
    f, g = rng.standard_normal((2, NODES))
    price = np.exp(f) * 1000 if log else 250_000 + 40_000 * f
    rows = [
        f"n{at},{f[at]:.6f},{g[at]:.6f},{'' if at % 10 == 9 else f'{price[at]:.4f}'},{-2 * f[at]:.6f}"
        for at in range(NODES)
    ]
    (path / "nodes.csv").write_text("id,f,g,price,rent\n" + "\n".join(rows) + "\n")
    edges = [f"n{at},n{(at + 1) % NODES}" for at in range(NODES)]
    (path / "edges.csv").write_text("source,target\n" + "\n".join(edges) + "\n")
    return path


def graphs_folder(path: Path) -> Path:
    """Paths of 2 to 6 nodes: whether they are long, and whether their feature is positive, with gaps."""
    path.mkdir()
    rng = np.random.default_rng(1)
    graphs, nodes, edges = ["id,long,warm,cold"], ["id,graph,f,h"], ["source,target"]
    for at in range(GRAPHS):
        size, warm = int(rng.integers(2, 7)), rng.integers(0, 2)
        graphs.append(f"g{at},{int(size > 4)},{'NA' if at % 7 == 0 else warm},{'' if at % 5 == 0 else 1 - warm}")
        nodes += [f"g{at}n{node},g{at},{2 * warm - 1 + 0.1 * rng.standard_normal():.5f},1" for node in range(size)]
        edges += [f"g{at}n{node},g{at}n{node + 1}" for node in range(size - 1)]
    for name, lines in (("graphs", graphs), ("nodes", nodes), ("edges", edges)):
        (path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return path


def of_numbers(path: Path, *targets: str, **more: Any) -> dict[str, Any]:
    rest = [name for name in ("price", "rent") if name not in targets]
    return {"name": "folder", "path": str(path), "target": "number", "targets": [*targets], "ignore": rest} | more


MLP = {"name": "mlp", "hidden": 16}
FAST = {"name": "fedavg", "optimizer": "adam", "lr": 0.02, "local_steps": 5}
CUT = {"name": "random", "clients": 3, "train": 0.6, "val": 0.2, "test": 0.2}


def rmse(table: Any, split: str = "test", who: str | None = None) -> float:
    """By scikit-learn, of the rows whose number is known."""
    from sklearn.metrics import root_mean_squared_error

    held = columns(table.select(["client", "split", "true", "predicted"]).drop_null())
    use = (held["split"] == split) & (held["client"] != "global" if who is None else held["client"] == who)
    return float(root_mean_squared_error(held["true"][use].astype(float), held["predicted"][use].astype(float)))


@pytest.mark.often("False-own", "True-all", "True-none")
@pytest.mark.parametrize("how", ["own", "all", "none"])
@pytest.mark.parametrize("log", [False, True])
def test_predictions_are_in_the_datas_units(tmp_path: Path, how: str, log: bool) -> None:
    data = of_numbers(nodes_folder(tmp_path / "d", log=log), "price", target_normalize=how, target_log=log)
    summary = made(tmp_path / "run", FAST, data, 20, model=MLP, partition=CUT)
    table = predictions(tmp_path / "run")
    assert table.column_names == ["client", "node", "id", "split", "true", "predicted"]
    clients = [f"client-{at}" for at in range(3)]
    each = [rmse(table, who=client) for client in clients]
    assert np.mean(each) == pytest.approx(summary["local/rmse"], rel=1e-5)
    sent = pq.read_table(tmp_path / "run/ledger.parquet")["step"].to_pylist()
    assert ("(target scale)" in sent) == (how == "all")
    if how != "none":  # in the data's units a few steps of Adam reach nothing
        assert summary["local/rmse"] < 0.8 * summary["local/rmse_of_mean"]


def test_new_nodes_get_what_the_same_nodes_get(tmp_path: Path) -> None:
    """With one scale for all; by a client's own model, its own."""
    folder = nodes_folder(tmp_path / "d")
    made(tmp_path / "run", FAST, of_numbers(folder, "price", target_normalize="all", normalize="none"), model=MLP)
    own, new = predictions(tmp_path / "run"), predictions(tmp_path / "run", folder)
    before = dict(zip(own["id"].to_pylist(), own["predicted"].to_pylist(), strict=True))
    after = dict(zip(new["id"].to_pylist(), new["predicted"].to_pylist(), strict=True))
    assert before.keys() == after.keys()
    np.testing.assert_allclose([before[name] for name in after], [*after.values()], rtol=1e-6)
    assert rmse_of(new) is not None
    rows = [line.split(",")[:3] for line in (folder / "nodes.csv").read_text().splitlines()]
    unknown = tmp_path / "unknown"
    unknown.mkdir()
    (unknown / "nodes.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    (unknown / "edges.csv").write_text((folder / "edges.csv").read_text())
    bare = predictions(tmp_path / "run", unknown)
    assert bare.column_names == ["client", "node", "id", "predicted"]
    np.testing.assert_allclose(bare["predicted"].to_numpy(), new["predicted"].to_numpy())


def test_each_client_predicts_new_nodes_in_its_own_units(tmp_path: Path) -> None:
    folder = nodes_folder(tmp_path / "d")
    made(tmp_path / "run", FAST | {"name": "local"}, of_numbers(folder, "price", normalize="none"), model=MLP)
    own, new = predictions(tmp_path / "run"), predictions(tmp_path / "run", folder, "personal")
    after = {(row["client"], row["id"]): row["predicted"] for row in new.to_pylist()}
    for row in own.to_pylist():
        assert after[row["client"], row["id"]] == pytest.approx(row["predicted"], rel=1e-6)


def test_several_numbers_have_columns_each(tmp_path: Path) -> None:
    made(tmp_path / "run", FAST, of_numbers(nodes_folder(tmp_path / "d"), "rent", "price"), model=MLP, partition=CUT)
    table = predictions(tmp_path / "run")
    assert table.column_names[4:] == ["true_rent", "predicted_rent", "true_price", "predicted_price"]
    assert table["true_price"].null_count == NODES // 10
    form = read_form(tmp_path / "run")
    assert (form.targets["names"], form.outputs, np.shape(form.targets["scale"])) == (["rent", "price"], 2, (3, 2))

    def worst(y: np.ndarray, p: np.ndarray) -> float:
        assert y.shape == p.shape == (len(y), 2)
        return float(np.nanmax(np.abs(y - p)))

    assert measure(table, worst).pooled > 0


def test_metrics_of_ones_own_get_numbers_or_labels(tmp_path: Path) -> None:
    made(tmp_path / "run", FAST, of_numbers(nodes_folder(tmp_path / "d"), "price"), model=MLP, partition=CUT)
    table = predictions(tmp_path / "run")
    from sklearn.metrics import root_mean_squared_error

    assert measure(table, root_mean_squared_error).pooled == pytest.approx(rmse(table))
    (tmp_path / "mine.py").write_text("def mae(y, p):\n    return abs(y - p).mean()\n")
    said = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), "--metric", f"{tmp_path}/mine.py:mae"])
    assert (said.exit_code, "mae: mean over clients" in said.output) == (0, True), said.output


LABELS = {"target": "labels", "targets": ["long", "warm", "cold"]}


def test_several_labels_of_small_graphs(tmp_path: Path) -> None:
    from sklearn.metrics import roc_auc_score

    folder = graphs_folder(tmp_path / "d")
    data = {"name": "graphs", "path": str(folder)} | LABELS
    held, other = load(**data), load("graphs", str(folder), labels=["long", "warm", "cold"])
    np.testing.assert_array_equal(held.y, other.y)
    assert (held.target, held.targets) == (other.target, other.targets)
    model = {"name": "gin", "hidden": 16, "pool": "sum"}
    summary = made(tmp_path / "run", FAST | {"name": "centralized"}, data, 30, model=model, partition=CUT)
    table = predictions(tmp_path / "run")
    each = [
        name for label in ("long", "warm", "cold") for name in (f"true_{label}", f"predicted_{label}", f"p_{label}")
    ]
    assert table.column_names[4:] == each
    told = columns(table)
    assert (told["predicted_warm"] == (told["p_warm"] >= 0.5)).all()
    test, aucs = told["split"] == "test", []
    for label in ("long", "warm", "cold"):
        use = test & np.array([value is not None for value in told[f"true_{label}"]])
        aucs.append(roc_auc_score(told[f"true_{label}"][use].astype(int), told[f"p_{label}"][use]))
    assert summary["global/auc"] == pytest.approx(np.mean(aucs), abs=1e-9)
    assert summary["global/auc"] > 0.9
    new = predictions(tmp_path / "run", folder)
    assert new["p_warm"].to_pylist() == pytest.approx(table.sort_by("graph")["p_warm"].to_pylist(), abs=1e-5)


@pytest.mark.parametrize("log", [False, True])
def test_an_exported_model_answers_in_the_datas_units(tmp_path: Path, log: bool) -> None:
    pytest.importorskip("torch_geometric")
    folder = nodes_folder(tmp_path / "d", log=log)
    data = of_numbers(folder, "price", normalize="none", target_log=log)
    made(tmp_path / "run", FAST, data, model={"name": "gcn", "hidden": 16})
    expected = predictions(tmp_path / "run", folder)["predicted"].to_numpy()
    commands.run("export", tmp_path / "run")
    asked = {key: data[key] for key in ("target", "targets", "target_log", "ignore", "normalize")}
    held = load("folder", str(folder), **asked)
    with torch.no_grad():
        found = loaded(tmp_path / "run/export")(torch.as_tensor(np.asarray(held.x)), torch.from_numpy(held.edges))
    np.testing.assert_allclose(found[:, 0].numpy(), expected, rtol=1e-5)
    about = json.loads((tmp_path / "run/export/model.json").read_text())
    assert about["targets"]["kind"] == "number"
    check_facts((tmp_path / "run/export/README.md").read_text(), "units")


def test_an_onnx_graph_does_so_too(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    folder = nodes_folder(tmp_path / "d")
    made(tmp_path / "run", FAST, of_numbers(folder, "price", normalize="none"), model={"name": "gcn", "hidden": 16})
    commands.run("export", tmp_path / "run", "--format", "onnx")
    session = runtime.InferenceSession(str(tmp_path / "run/export/model.onnx"))
    held = load("folder", str(folder), target="number", targets=("price",), ignore=("rent",), normalize="none")
    given = {"x": np.asarray(held.x, np.float32), "edge_index": held.edges}
    assert [one.name for one in session.get_outputs()] == ["numbers"]
    expected = predictions(tmp_path / "run", folder)["predicted"].to_numpy()
    np.testing.assert_allclose(session.run(None, given)[0][:, 0], expected, rtol=1e-4)


def test_ratings_of_edges(tmp_path: Path) -> None:
    """As users rate films: a number of each edge, and new edges with none."""
    folder = tmp_path / "d"
    folder.mkdir()
    rng = np.random.default_rng(3)
    taste = rng.standard_normal(40)
    (folder / "nodes.csv").write_text("id,f\n" + "".join(f"{at},{taste[at]:.5f}\n" for at in range(40)))
    pairs = rng.permutation(40 * 39)[:300]
    rows = [(pair // 39, pair % 39 + (pair % 39 >= pair // 39)) for pair in pairs.tolist()]
    text = "source,target,stars\n" + "".join(f"{a},{b},{3 + taste[a] + taste[b]:.4f}\n" for a, b in rows)
    (folder / "edges.csv").write_text(text)
    data = {"name": "folder", "path": str(folder), "task": "edges", "target": "number", "targets": ["stars"]}
    summary = made(tmp_path / "run", FAST, data, 20, model=MLP, partition={"name": "random", "clients": 2})
    assert summary["local/rmse"] < 0.8 * summary["local/rmse_of_mean"]
    table = predictions(tmp_path / "run", folder)
    assert table.column_names[:2] == ["client", "edge"]
    assert {"source", "target", "true", "predicted"} <= set(table.column_names)
    assert rmse_of(table) is not None


def test_new_data_with_other_targets_is_refused(tmp_path: Path) -> None:
    data = load("folder", str(nodes_folder(tmp_path / "d")), target="number", targets=("price", "rent"))
    two = data.save(tmp_path / "two.npz")
    settings = {"name": "npz", "path": str(two), "target": "number"}
    made(tmp_path / "run", FAST, settings, model=MLP)
    one = load("npz", str(two), target="number", targets=("price",)).save(tmp_path / "one.npz")
    with refusal("data", "1 number (price)", "the run 2"):
        predictions(tmp_path / "run", one)


def test_check_says_what_is_odd(tmp_path: Path) -> None:
    folder = nodes_folder(tmp_path / "d", log=True)
    text = (folder / "nodes.csv").read_text().splitlines()
    (folder / "nodes.csv").write_text("\n".join([text[0] + ",same", *(f"{row},7" for row in text[1:])]) + "\n")
    (tmp_path / "a.toml").write_text(
        f'rounds = 2\n[data]\nname = "folder"\npath = "{folder}"\ntarget = "number"\ntargets = ["same", "rent"]\n'
        'ignore = ["price"]\n[partition]\nname = "random"\nclients = 3\n[model]\nname = "mlp"\n'
        '[algorithm]\nname = "fedavg"\nlr = 0.01\n'
    )
    said = commands.run("check", tmp_path / "a.toml")
    for text_ in ("2 numbers (same, rent)", "mean ± deviation", "the number same is 7 at all", "f has the same"):
        assert text_ in said, said

"""`fedweave predict` for horizontal runs: the accuracies of the run, and new nodes and graphs."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fedweave import datasets
from fedweave.algorithms import ALGORITHMS
from fedweave.apply.run_predictions import predictions
from fedweave.cli import app
from fedweave.core.algorithm import capabilities
from fedweave.datasets import npz
from fedweave.errors import DataError, UserError
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.runs.run import run
from fedweave.experiment.runs.trained import finished_config, load_trained
from fedweave.python.training import Silent
from tests import commands
from tests.contract.federations import OTHER_PARAMETERS
from tests.refusals import check_facts, refusal

HORIZONTAL = [name for name, kind in ALGORITHMS.items() if not capabilities(kind).predicts]
GRAPHS = [name for name in HORIZONTAL if capabilities(ALGORITHMS[name]).graph_level]
NODES = [name for name in HORIZONTAL if name not in (*GRAPHS, "cffl")]  # CFFL's server has graphs alone to validate on
MODELS: dict[str, dict[str, Any]] = {"fedego": {"name": "ego"}, "fedbn": {"norm": "batch"}}
SYNTHETIC = {"name": "synthetic", "nodes": 240, "features": 12, "classes": 2, "sensitive": True}

COLUMNS = ("age", "income", "debt")


def made(
    out: Path, algorithm: dict[str, Any], data: dict[str, Any], rounds: int = 2, resume: bool = False, **more: Any
) -> dict[str, Any]:
    """Run an experiment into `out`, evaluated at its end; returns its metrics."""
    model = more.pop("model", MODELS.get(algorithm["name"], {}))
    document = {
        "seed": 1,
        "rounds": rounds,
        "eval_every": 0,
        "data": data,
        "partition": more.pop("partition", {"name": "louvain", "clients": 4}),
        "model": model if model.get("name") == "sgc" else {"name": "gcn", "hidden": 16} | model,
        "algorithm": algorithm,
        "engine": {"threads": 1},
        **more,
    }
    return run(resolve(document), out, Silent(), resume)["metrics"]


def columns(table: Any) -> dict[str, np.ndarray]:
    return {name: np.array(table[name].to_pylist()) for name in table.column_names}


def accuracies(found: dict[str, np.ndarray], y: np.ndarray, split: str = "test") -> dict[str, float]:
    """{client: accuracy on its examples of the split}."""
    hit, used = found["predicted"] == y[found["node"]], found["split"] == split
    return {c: float(hit[used & (found["client"] == c)].mean()) for c in dict.fromkeys(found["client"][used].tolist())}


@pytest.mark.often("False-ditto")
@pytest.mark.parametrize("name", ["fedavg", "ditto", "dfedgnn", "fedgcn", "centralized"])
@pytest.mark.parametrize("holdout", [False, True])
def test_predictions_of_the_test_nodes_of_cora_have_the_accuracy_of_the_summary(
    tmp_path: Path, data_root: Path, name: str, holdout: bool
) -> None:
    data = {"name": "cora", "path": str(data_root)}
    cut = {"name": "louvain", "clients": 4, "holdout": holdout}
    summary = made(tmp_path / "run", {"name": name}, data, partition=cut)
    y = datasets.load("cora", str(data_root)).y
    for model, measured in ((None, "local"), ("trained", "trained")):
        found = accuracies(columns(predictions(tmp_path / "run", model=model)), y)
        judged = {"global": found.pop("global", None)}
        expected = of_union(tmp_path / "run", measured) if name == "centralized" else summary[f"{measured}/accuracy"]
        assert np.mean([*found.values()]) == pytest.approx(expected, abs=1e-12)
        if holdout and model is None and name != "dfedgnn":
            assert judged["global"] == pytest.approx(summary["global/accuracy"], abs=1e-12)


def test_clients_without_the_model_that_is_asked_for_are_named(tmp_path: Path) -> None:
    """With a quarter of eight clients in the one round, six never trained."""
    cut = {"name": "random", "clients": 8}
    made(tmp_path / "run", {"name": "fedavg", "participation": 0.25}, {"name": "digits"}, 1, partition=cut)
    said = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), "--model", "trained"])
    there = set(pq.read_table(tmp_path / "run/predictions.parquet")["client"].to_pylist())
    assert len(there) == 2
    left = ", ".join(f"client-{i}" for i in range(8) if f"client-{i}" not in there)
    check_facts(said.output, "6 clients", f"{left}")


def of_union(run: Path, model: str) -> float:
    """The test accuracy of one client that holds what all members do, from theirs: predictions are of that client."""
    metric = "trained/accuracy" if model == "trained" else "accuracy"
    rows = pq.read_table(run / "metrics.parquet").to_pylist()
    found = {row["client"]: row["value"] for row in rows if (row["split"], row["metric"]) == ("test", metric)}
    tested = {part["client"]: part["test"] for part in pq.read_table(run / "partition.parquet").to_pylist()}
    return sum(found[member] * many for member, many in tested.items()) / sum(tested.values())


@pytest.mark.often("fedavg", "fedego")
@pytest.mark.parametrize("name", NODES)
def test_every_algorithm_predicts_its_own_nodes_and_new_ones(tmp_path: Path, name: str) -> None:
    cut = {"name": "overlap"} if name == "fairgfl" else {"name": "louvain", "holdout": True}
    cut |= {"clients": 4}
    summary = made(tmp_path / "run", {"name": name} | OTHER_PARAMETERS.get(name, {}), SYNTHETIC, partition=cut)
    built = build(finished_config(tmp_path / "run"))
    found = columns(predictions(tmp_path / "run"))
    whole = accuracies(found, built.data.y)
    judged = whole.pop("global", None)
    if name == "fairgfl":  # its global model alone is tested
        assert judged == pytest.approx(summary["global/accuracy"], abs=1e-12)
    else:
        expected = of_union(tmp_path / "run", "local") if name == "centralized" else summary["local/accuracy"]
        assert np.mean([*whole.values()]) == pytest.approx(expected, abs=1e-12)
    assert np.stack([found["p_0"], found["p_1"]]).sum(0) == pytest.approx(1)
    new = columns(predictions(tmp_path / "run", graph(tmp_path / "new", 12, 7)))
    assert new["id"].tolist() == [f"n{i}" for i in range(7)] * (len(new["id"]) // 7)
    assert np.stack([new["p_0"], new["p_1"]]).sum(0) == pytest.approx(1)


def graph(root: Path, features: int, nodes: int, seed: int = 0) -> Path:
    """A path of unlabeled nodes n0, n1, …."""
    rng = np.random.default_rng(seed)
    root.mkdir(parents=True)
    x = rng.normal(size=(nodes, features))
    rows = [",".join([f"n{i}", *(f"{v:.6f}" for v in x[i])]) for i in range(nodes)]
    (root / "nodes.csv").write_text("\n".join([",".join(["id", *(f"f{c}" for c in range(features))]), *rows]))
    (root / "edges.csv").write_text("\n".join(["source,target", *(f"n{i},n{i + 1}" for i in range(nodes - 1))]))
    return root


def bank(
    root: Path, labelled: bool = True, order: tuple[str, ...] = ("age", "income", "debt"), nodes: int = 90
) -> Path:
    """Customers whose risk is low or high; the class shows in their income."""
    rng = np.random.default_rng(0)
    root.mkdir(parents=True)
    high = np.arange(nodes) % 2
    cells = {
        "age": rng.normal(50, 10, nodes),
        "income": 3e4 - 1e4 * high + rng.normal(0, 3e3, nodes),
        "debt": rng.normal(0, 1, nodes),
        "spare": np.zeros(nodes),
    }
    head = ["id", *(["label"] if labelled else []), *order]
    rows = [
        ",".join(
            [f"c{i}", *([("low", "high")[high[i]]] if labelled else []), *(f"{cells[name][i]:.4f}" for name in order)]
        )
        for i in range(nodes)
    ]
    (root / "nodes.csv").write_text("\n".join([",".join(head), *rows]))
    (root / "edges.csv").write_text("\n".join(["source,target", *(f"c{i},c{i + 2}" for i in range(nodes - 2))]))
    return root


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of FedAvg on customers, whose features were scaled over all of them."""
    root = tmp_path_factory.mktemp("bank")
    data = {"name": "folder", "path": str(bank(root / "data")), "normalize": "standard"}
    made(root / "run", {"name": "fedavg", "lr": 0.05}, data, 10, partition={"name": "random", "clients": 3})
    return root / "run"


def test_classes_have_their_names_and_nodes_their_ids(trained: Path) -> None:
    commands.run("predict", trained)
    table = pq.read_table(trained / "predictions.parquet")
    assert table.column_names == ["client", "node", "id", "split", "true", "predicted", "p_high", "p_low"]
    found = columns(table)
    assert sorted(found["id"]) == sorted(f"c{i}" for i in range(90))
    assert (found["predicted"] == np.where(found["p_high"] > found["p_low"], "high", "low")).all()
    truth = np.where(found["node"] % 2, "high", "low")
    assert (found["predicted"] == truth).mean() > 0.8
    again = commands.run("predict", trained, code=2)
    check_facts(again, "--out")
    CliRunner().invoke(app, ["predict", str(trained), "--out", str(trained / "p.csv")])
    assert pyarrow.csv.read_csv(trained / "p.csv").num_rows == 90


def test_new_nodes_whose_class_is_known_are_counted(trained: Path, tmp_path: Path) -> None:
    """By hand from the written table; of nodes without a class nothing is said."""
    new, out = bank(tmp_path / "new", nodes=31), tmp_path / "p.parquet"
    rows = (new / "nodes.csv").read_text().splitlines()
    first = rows[1].split(",")
    (new / "nodes.csv").write_text("\n".join([rows[0], ",".join([first[0], "", *first[2:]]), *rows[2:]]))
    said = CliRunner().invoke(app, ["predict", str(trained), "--data", str(new), "--out", str(out)])
    found = columns(pq.read_table(out))
    assert found["true"].tolist() == [None, *(("low", "high")[i % 2] for i in range(1, 31))]
    hits = sum(one == other for one, other in zip(found["true"], found["predicted"], strict=True))
    check_facts(" ".join(said.output.split()), "31", f"{hits / 30:.1%}")
    for again in (0, 2):  # a file of its own, never overwritten
        said = CliRunner().invoke(app, ["predict", str(trained), "--data", str(new)])
        assert said.exit_code == again
    assert pq.read_table(trained / "new-predictions.parquet").equals(pq.read_table(out))
    unknown = predictions(trained, bank(tmp_path / "unknown", False))
    assert "true" not in unknown.column_names


def owned(folder: Path, names: Sequence[str]) -> Path:
    """With a column that says whose each node is, in turn."""
    head, *rows = (folder / "nodes.csv").read_text().splitlines()
    rows = [f"{row},{names[at % len(names)]}" for at, row in enumerate(rows)]
    (folder / "nodes.csv").write_text("\n".join([f"{head},hospital", *rows]))
    return folder


def test_new_nodes_may_say_whose_they_are_or_not(tmp_path: Path) -> None:
    """Also somebody's who had no part in the run."""
    data = {"name": "folder", "path": str(owned(bank(tmp_path / "data"), ["north", "south"])), "owner": "hospital"}
    made(tmp_path / "run", {"name": "fedavg"}, data, partition={"name": "column"})
    plain = predictions(tmp_path / "run", bank(tmp_path / "new", False, nodes=31))
    for at, names in enumerate((["south"], ["east", "west", "north"])):
        said = predictions(tmp_path / "run", owned(bank(tmp_path / f"new{at}", False, nodes=31), names))
        assert said.equals(plain)


@pytest.mark.often("minmax", "row")
@pytest.mark.parametrize("how", ["standard", "minmax", "scale", "row", "none"])
def test_the_same_nodes_as_new_ones_are_predicted_alike(tmp_path: Path, how: str) -> None:
    """One client that holds all: its own nodes and the same tables without labels, columns in another order, give equal
    probabilities; of a part of the nodes alone this holds only if features are scaled as they were in training."""
    data = {"name": "folder", "path": str(bank(tmp_path / "data")), "normalize": how}
    made(tmp_path / "run", {"name": "fedavg"}, data, partition={"name": "random", "clients": 1}, model={"name": "mlp"})
    own = columns(predictions(tmp_path / "run"))
    new = columns(predictions(tmp_path / "run", bank(tmp_path / "new", False, ("debt", "age", "income"), 90)))
    place = {name: at for at, name in enumerate(own["id"].tolist())}
    at = [place[name] for name in new["id"].tolist()]
    assert new["p_high"] == pytest.approx(own["p_high"][at], abs=1e-6)
    few = tmp_path / "few"
    bank(few, False)
    rows = (few / "nodes.csv").read_text().splitlines()
    (few / "nodes.csv").write_text("\n".join([rows[0], *rows[1:8]]))
    (few / "edges.csv").write_text("source,target\nc0,c2")
    part = columns(predictions(tmp_path / "run", few))
    assert part["p_high"] == pytest.approx(own["p_high"][[place[name] for name in part["id"].tolist()]], abs=1e-6)


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (("age", "debt"), "'income'"),
        (("age", "debt", "income", "spare"), "'spare'"),
    ],
)
def test_other_columns_are_refused_by_name(trained: Path, tmp_path: Path, order: tuple[str, ...], said: str) -> None:
    with pytest.raises(DataError, match=said):
        predictions(trained, bank(tmp_path / "new", False, order))


def test_other_classes_models_and_clients_are_refused(trained: Path, tmp_path: Path) -> None:
    new = bank(tmp_path / "new")
    text = (new / "nodes.csv").read_text()
    (new / "nodes.csv").write_text(text.replace("high", "huge"))
    with refusal("data.unlike", "'huge'", "[data]"):
        predictions(trained, new)
    with refusal("user.no-client", "3 clients: client-0, client-1, client-2"):
        predictions(trained, client="client-7")
    made(tmp_path / "local", {"name": "local"}, SYNTHETIC)
    with refusal("user.no-global-model", "no global model"):
        predictions(tmp_path / "local", model="global")
    with pytest.raises(DataError, match="5 feature columns, and the run was trained on 12"):
        predictions(tmp_path / "local", graph(tmp_path / "other", 5, 4))
    for nothing in (tmp_path, tmp_path / "nowhere"):
        with refusal("user.no-run"):
            predictions(nothing)
    (tmp_path / "local/summary.json").unlink()
    with refusal("user.unfinished", "holds no finished run"):
        predictions(tmp_path / "local")


def test_personal_models_differ_and_the_global_one_does_not(tmp_path: Path) -> None:
    made(tmp_path / "run", {"name": "ditto"}, SYNTHETIC, 3)
    new = graph(tmp_path / "new", 12, 7)
    own = columns(predictions(tmp_path / "run", new, model="personal"))
    assert len({own["p_0"][7 * i] for i in range(4)}) == 4
    one = columns(predictions(tmp_path / "run", new, model="personal", client="client-2"))
    assert one["p_0"].tolist() == own["p_0"][own["client"] == "client-2"].tolist()
    overall = columns(predictions(tmp_path / "run", new))
    assert set(overall["client"]) == {"global"}
    assert not {*overall["p_0"]} & {*own["p_0"]}


@pytest.mark.often("fairgraphfl")
@pytest.mark.parametrize("name", [*GRAPHS, "fedavg", "cffl"])
def test_small_graphs(tmp_path: Path, name: str) -> None:
    data = {"name": "graphs", "path": str(molecules(tmp_path / "data", 60))}
    model = {"name": "star"} if name == "fedstar" else {"name": "gin", "pool": "sum"}
    given = {"name": name} | OTHER_PARAMETERS.get(name, {})
    cut = {"name": "graphs_iid", "clients": 3, "server_val": 0.2 * (name == "cffl")}
    summary = made(tmp_path / "run", given, data, model=model, partition=cut)
    found = columns(predictions(tmp_path / "run"))
    truth = np.where(found["graph"] % 2, "ring", "chain")
    used = found["split"] == "test"
    hit = found["predicted"] == truth
    own = {c: hit[used & (found["client"] == c)].mean() for c in sorted({*found["client"]})}
    if (overall := own.pop("global", None)) is not None:  # those without a global model have none
        assert overall == pytest.approx(summary["global/accuracy"], abs=1e-12)
    assert np.mean([*own.values()]) == pytest.approx(summary["local/accuracy"], abs=1e-12)
    new = columns(predictions(tmp_path / "run", molecules(tmp_path / "new", 8, labelled=False, kinds=("N",))))
    assert {"client", "graph", "id", "predicted", "p_chain", "p_ring"} == new.keys()
    assert len({*new["id"]}) == 8
    with refusal("data.unlike", "'X'"):
        predictions(tmp_path / "run", molecules(tmp_path / "bad", 8, labelled=False, kinds=("X",)))


def molecules(root: Path, graphs: int, labelled: bool = True, kinds: tuple[str, ...] = ("C", "N", "O")) -> Path:
    """Graphs of five nodes, every second one a ring."""
    root.mkdir(parents=True)
    head = ["id,label", *(f"m{g},{('chain', 'ring')[g % 2]}" for g in range(graphs))]
    nodes = [f"m{g}.{i},m{g},{kinds[(g + i) % len(kinds)]}" for g in range(graphs) for i in range(5)]
    edges = [f"m{g}.{i},m{g}.{(i + 1) % 5}" for g in range(graphs) for i in range(4 + g % 2)]
    (root / "graphs.csv").write_text("\n".join(head if labelled else [row.split(",")[0] for row in head]))
    (root / "nodes.csv").write_text("\n".join(["id,graph,label", *nodes]))
    (root / "edges.csv").write_text("\n".join(["source,target", *edges]))
    return root


def test_a_run_says_the_same_of_itself_after_predicting(trained: Path) -> None:
    before = (trained / "summary.json").read_text(), (trained / "checkpoint/state.safetensors").read_bytes()
    predictions(trained)
    predictions(trained, model="trained")
    assert before == ((trained / "summary.json").read_text(), (trained / "checkpoint/state.safetensors").read_bytes())
    assert json.loads(before[0])["algorithm"] == "fedavg"


@pytest.mark.often("x-features")
@pytest.mark.parametrize(
    ("changed", "what"), [("x", "features"), ("edges", "edges"), ("y", "labels"), ("sensitive", "sensitive attribute")]
)
def test_a_run_goes_on_with_its_own_data_alone(tmp_path: Path, changed: str, what: str) -> None:
    """Else half of its rounds would be of one graph, and test nodes of now might have trained before."""
    settings = {name: value for name, value in SYNTHETIC.items() if name != "name"}
    whole, path, out = datasets.load("synthetic", **settings), tmp_path / "own.npz", tmp_path / "run"
    own, fedavg = {"name": "npz", "path": str(path)}, {"name": "fedavg"}
    npz.write(whole, path)
    made(out, fedavg, own)
    other = {
        "x": whole.x * np.where(np.arange(whole.features) == 3, 1.5, 1.0).astype(np.float32),
        "edges": whole.edges[:, (whole.edges != 0).all(0)],
        "y": np.roll(whole.y, 1),
        "sensitive": None if whole.sensitive is None else 1 - whole.sensitive,
    }
    npz.write(replace(whole, **{changed: other[changed]}), path)
    for again in (
        lambda: made(out, fedavg, own, 3, resume=True),
        lambda: load_trained(out, finished_config(out), ""),
    ):
        with pytest.raises(UserError, match=rf"the data of .*run has changed since it was begun: {what}\. B"):
            again()
    assert json.loads((out / "summary.json").read_text())["rounds"] == 2
    npz.write(whole, path)
    made(out, fedavg, own, 3, resume=True)
    assert json.loads((out / "summary.json").read_text())["rounds"] == 3

"""The package as a user of Python or of the command line meets it."""

import ast
import inspect
import json
import re
import shutil
import tomllib
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
import torch

import fedweave
from fedweave.cli import init as starter
from fedweave.experiment.runs.trained import finished, trained
from tests.commands import SMALL, run
from tests.refusals import refusal

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("public")
    (folder / "small.toml").write_text(SMALL)
    run("run", str(folder / "small.toml"), "--out", str(folder / "run"), "-q")
    return folder / "run"


def test_public_names_are_all_listed_and_there() -> None:
    assert set(dir(fedweave)) == set(fedweave.__all__)
    assert {"load_run", "train", "Simulation", "algorithms", "__version__"} <= set(dir(fedweave))
    assert all(getattr(fedweave, name) is not None for name in fedweave.__all__)
    assert fedweave.__version__ == version("fedweave")
    with pytest.raises(AttributeError, match="'fedweave' has no attribute 'lode_run'"):
        fedweave.lode_run  # type: ignore[attr-defined]  # noqa: B018


def test_a_type_checker_sees_every_public_name_imported() -> None:
    """mypy reads what stands under TYPE_CHECKING, and no __getattr__ that would make every typo valid."""
    tree = ast.parse(inspect.getsource(fedweave))
    [seen] = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    names = {alias.name for node in ast.walk(seen) if isinstance(node, ast.ImportFrom) for alias in node.names}
    names |= {node.target.id for node in ast.walk(seen) if isinstance(node, ast.AnnAssign)}  # type: ignore[attr-defined]
    assert names == set(fedweave.__all__)
    assert not [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"]


def test_a_run_is_loaded_as_tables_configuration_and_models(saved: Path) -> None:
    found = fedweave.load_run(saved)
    assert isinstance(found.metrics, pa.Table)
    assert found.metrics.column_names == ["round", "client", "split", "metric", "value"]
    assert len(found.partition) == 3
    assert sum(found.ledger["bytes"].to_pylist()) == found.summary["bytes_up"] + found.summary["bytes_down"]
    assert (found.config.algorithm.name, found.config.general.rounds) == ("fedavg", 3)
    kept = trained(saved, finished(saved), "")
    assert torch.equal(found.weights()["0"]["weight"], kept.state["w"]["0"]["weight"])
    own = found.weights("trained", "client-1")
    assert torch.equal(own["0"]["weight"], kept.models("trained")["client-1"]["0"]["weight"])
    with refusal("user.no-client", "name a client"):
        found.weights("personal")
    with refusal("user.no-model", "'best'"):
        found.weights("best")


def test_of_a_run_between_sites_the_joint_model_is_loaded_and_no_other(saved: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(saved, tmp_path / "run"))
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(f'{config.partition("[engine]")[0]}[engine]\nname = "flare"\n')
    found = fedweave.load_run(run)
    assert torch.equal(found.weights()["0"]["weight"], fedweave.load_run(saved).weights()["0"]["weight"])
    with refusal("user.global-alone"):
        found.weights("personal", "client-1")


def test_what_is_not_a_run_is_refused_by_name(tmp_path: Path) -> None:
    with refusal("user.no-run", "run:", "config.toml"):
        fedweave.load_run(tmp_path)


def test_help_is_short_and_names_can_be_looked_up() -> None:
    for words in (["-h"], ["run", "-h"], ["sites", "init", "-h"]):
        assert "Usage" in run(*words)
    assert run("list", "algorithms").strip().endswith("fedweave list algorithms NAME")
    shown = run("list", "algorithms", "fedavg").splitlines()
    assert shown[0].startswith("fedavg ")
    assert any(line.strip().startswith("local_steps: int") for line in shown)
    assert not any(line.startswith("fedprox") for line in shown)
    assert "nodes: int" in run("list", "datasets", "synthetic")
    assert "Did you mean 'fedavg'?" in run("list", "algorithms", "fedavgg", code=2)


def test_overwrite_replaces_a_run_and_nothing_else(saved: Path, tmp_path: Path) -> None:
    config, other = str(saved.parent / "small.toml"), str(tmp_path / "run")
    run("run", config, "--out", other, "-q")
    (tmp_path / "run/report.html").write_text("of the first")
    (tmp_path / "run/notes.txt").write_text("mine")
    assert "replace it with --overwrite" in run("run", config, "--out", other, "-q", code=2)
    assert "unknown key" in run("run", config, "--set", "algorithm.x=1", "--out", other, "-q", "--overwrite", code=2)
    assert json.loads((tmp_path / "run/summary.json").read_text())["rounds"] == 3  # a mistake removes nothing
    late = run("run", config, "--set", 'algorithm.share=["9/*"]', "--out", other, "-q", "--overwrite", code=2)
    assert "names no weight of the model" in late  # found when training begins
    assert json.loads((tmp_path / "run/summary.json").read_text())["rounds"] == 3
    assert (tmp_path / "run/report.html").read_text() == "of the first"
    assert not (tmp_path / "run/.replaced").exists()
    assert len(fedweave.load_run(tmp_path / "run").metrics)
    run("run", config, "--set", "rounds=1", "--out", other, "-q", "--overwrite")
    assert json.loads((tmp_path / "run/summary.json").read_text())["rounds"] == 1
    assert not (tmp_path / "run/report.html").exists()
    assert (tmp_path / "run/notes.txt").read_text() == "mine"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    assert "--overwrite replaces only runs" in run(
        "run", config, "--out", str(tmp_path / "mine"), "--overwrite", code=2
    )
    assert (tmp_path / "mine/thesis.txt").exists()
    assert "choose one of them" in run("run", config, "--out", other, "--overwrite", "--resume", code=2)
    assert "holds nothing to continue; starting again" in run(
        "run", config, "--out", str(tmp_path / "typo"), "--resume", "--set", "rounds=1"
    )


def test_a_starter_configuration_can_be_checked_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "fedweave check experiment.toml" in run("init")
    said = run("check", "experiment.toml")
    assert "digits (1,797 nodes) · 10 clients" in said
    assert "64 features, 10 classes (0 to 9), 0 without a label" in said
    assert f"fedweave {version('fedweave')}" in said
    assert said.strip().endswith("no fault found")
    assert [path.name for path in tmp_path.iterdir()] == ["experiment.toml"]  # nothing is written
    assert "exists; name another file" in run("init", code=2)
    assert "Did you mean 'fedavg-cora'?" in run("init", "c.toml", "--from", "fedavg-cor", code=2)
    run("init", "cora.toml", "--from", "fedavg-cora")
    assert (tmp_path / "cora.toml").read_text() == (ROOT / "experiments/fedavg-cora.toml").read_text()


@pytest.mark.parametrize("name", ["own-tables", "own-members"])
def test_a_starter_for_own_data_runs_on_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for branch in ("north", "south"):
        folder = tmp_path / ("data" if name == "own-tables" else f"members/{branch}")
        folder.mkdir(parents=True, exist_ok=True)
        own = [[branch] if name == "own-tables" else [] for _ in range(30)]
        rows = [[f"{branch}{i}", str(i % 2), str(i % 3), *cells] for i, cells in enumerate(own)]
        with open(folder / "nodes.csv", "a") as nodes, open(folder / "edges.csv", "a") as edges:
            if not nodes.tell():
                nodes.write("id,label,age,branch\n" if name == "own-tables" else "id,label,age\n")
                edges.write("source,target\n")
            nodes.writelines(",".join(row) + "\n" for row in rows)
            edges.writelines(f"{one[0]},{other[0]}\n" for one, other in pairwise(rows))
    run("init", "mine.toml", "--from", name)
    # GCN mixes a node's own features with its neighbors', and often loses to a regression on tables
    assert "· sage ·" in run("check", "mine.toml")
    assert "60 nodes) · 2 clients" in run("check", "mine.toml")
    run("run", "mine.toml", "--set", "rounds=1", "--out", "out")
    assert json.loads((tmp_path / "out/summary.json").read_text())["clients"] == 2


def test_a_starter_for_small_graphs_runs_on_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    many = range(40)
    tables = {
        "graphs": ["id,label,lab,split", *(f"g{i},{i % 2},{'north' if i < 25 else 'south'},train" for i in many)],
        "nodes": ["id,graph,charge", *(f"g{i}-{j},g{i},{i * j % 5}" for i in many for j in range(4))],
        "edges": ["source,target", *(f"g{i}-{j},g{i}-{j + 1}" for i in many for j in range(3))],
    }
    for name, lines in tables.items():
        (tmp_path / f"data/{name}.csv").write_text("\n".join(lines) + "\n")
    run("init", "mine.toml", "--from", "own-graphs")
    said = run("check", "mine.toml")
    assert "40 graphs, 160 nodes) · 2 clients" in said
    assert "the data's own split (40 train, 0 val, 0 test) is not used" in said
    run("run", "mine.toml", "--set", "rounds=1", "--out", "out")
    assert json.loads((tmp_path / "out/summary.json").read_text())["clients"] == 2
    assert "on all clients' test examples" in run("contributions", "out")


def test_a_starter_for_parties_runs_on_their_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for at, party in enumerate(("bank", "clinic")):
        (tmp_path / "parties" / party).mkdir(parents=True)
        rows = [f"p{i},{i % 2},{(i * (at + 3)) % 7}\n" for i in range(40)]
        (tmp_path / "parties" / party / "nodes.csv").write_text("id,label,seen\n" + "".join(rows))
        edges = [f"p{i},p{i + 1 + at}\n" for i in range(37)]
        (tmp_path / "parties" / party / "edges.csv").write_text("source,target\n" + "".join(edges))
    assert "--labels holders" in run("init", "mine.toml", "--from", "own-parties")
    run("init", "holders.toml", "--from", "own-parties", "--labels", "holders")
    assert tomllib.loads((tmp_path / "holders.toml").read_text())["partition"]["labels"] == "holders"
    assert "no fault found" in run("check", "mine.toml")
    run("run", "mine.toml", "--set", "rounds=2", "--out", "out")
    assert json.loads((tmp_path / "out/summary.json").read_text())["clients"] == 2


def test_check_notes_whoever_trains_at_one_member_and_is_tested_at_another(tmp_path: Path) -> None:
    """p1 does; p2 has one split at both; p3 is at one member alone."""
    for member, rows in {"a": "p1,0,train,1\np2,1,train,0\np3,1,test,1\n", "b": "p1,0,test,1\np2,1,train,0\n"}.items():
        (tmp_path / "data" / member).mkdir(parents=True)
        (tmp_path / "data" / member / "nodes.csv").write_text(f"id,label,split,f\n{rows}")
        (tmp_path / "data" / member / "edges.csv").write_text("source,target\np1,p2\n")
    about = f"[data]\nname = 'members'\npath = '{tmp_path / 'data'}'\n"
    (tmp_path / "m.toml").write_text(about + "[partition]\nname = 'folders'\nuse_dataset_split = true\n")
    assert "note: 1 id trains at one member and is tested on at another" in run("check", str(tmp_path / "m.toml"))
    (tmp_path / "data" / "b" / "nodes.csv").write_text("id,label,split,f\np1,0,test,7\np2,1,train,0\n")
    told = run("check", str(tmp_path / "m.toml"))  # two nodes, as far as anybody can see, and a word on what may be
    assert "each counts as two nodes" in told
    assert "with the same features" not in told
    for member in ("a", "b"):  # numbers of rows are nobody's names
        for name in ("nodes", "edges"):
            file = tmp_path / "data" / member / f"{name}.csv"
            file.write_text(file.read_text().replace("p1", "1").replace("p2", "2").replace("p3", "3"))
    assert "at one member" not in run("check", str(tmp_path / "m.toml"))
    (tmp_path / "data" / "a" / "nodes.csv").write_text("id,label,split,f\np1,0,train,1\np2,1,train,0\np3,1,test,1\n")
    (tmp_path / "data" / "a" / "edges.csv").write_text("source,target\np1,p2\n")
    (tmp_path / "data" / "b" / "nodes.csv").write_text("id,label,split,f\np4,0,test,1\np2,1,train,0\n")
    (tmp_path / "data" / "b" / "edges.csv").write_text("source,target\np4,p2\n")
    assert "at one member" not in run("check", str(tmp_path / "m.toml"))


def test_check_names_faults_and_what_is_odd(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(SMALL)
    assert "unknown key" in run("check", str(tmp_path / "a.toml"), "--set", "model.hiden=3", code=2)
    for another in ("partition.majors=2", "algorithm.gamma=0.5"):
        told = " ".join(run("check", str(tmp_path / "a.toml"), "--set", another, code=2).split())
        assert f"{another.partition('=')[0]}: unknown key" in told
        assert re.search(r"It is a key of .*(label_skew|fedego)", told)
    for late, told in (
        (["algorithm.share=['9/*']"], "names no weight of the model"),
        (["algorithm.name='fairgfl'"], "needs a public sample"),
        (["algorithm.name='dp_fedavg'", "algorithm.epsilon=8.0", "algorithm.target_rounds=2"], "and the run has 3"),
    ):  # what the algorithm refuses when it begins
        words = [word for one in late for word in ("--set", one)]
        assert told in " ".join(run("check", str(tmp_path / "a.toml"), *words, code=2).split())
    nodes = run("check", str(tmp_path / "a.toml"), "--algorithm", "glasu", "--set", "model.name='gcnii'", code=2)
    assert '"glasu": needs clients with the same nodes' in " ".join(nodes.split())
    columns = ("--set", "partition={name='vertical', clients=3}")
    for command in ("check", "run"):
        mixed = run(command, str(tmp_path / "a.toml"), *columns, code=2)
        assert '"fedavg": would take each client\'s first column' in " ".join(mixed.split())
    for name in ("local", "standalone", "centralized"):
        assert "first column" not in run("check", str(tmp_path / "a.toml"), *columns, "--algorithm", name)
    odd = run("check", str(tmp_path / "a.toml"), "--set", "partition.test=0.0", "--set", "eval_every=0")
    assert "note: client-0, client-1, client-2 have no test node" in odd
    assert "3 rounds, evaluated at the end" in odd
    assert "model: 43 weights" in odd  # 6 * 4 + 4 + 4 * 3 + 3
    pulled = "note: proximal: with local_steps = 1 training ends before the penalty has a gradient; this is FedAvg's"
    one = ("--algorithm", "fedprox", "--set", "algorithm.local_steps=1")
    assert pulled in run("check", str(tmp_path / "a.toml"), *one)
    assert pulled in run("run", str(tmp_path / "a.toml"), *one, "--out", str(tmp_path / "pulled"))
    assert "Proximal" not in run("check", str(tmp_path / "a.toml"), *one[:3], "algorithm.local_steps=2")
    rare = tmp_path / "data"
    rare.mkdir()
    (rare / "nodes.csv").write_text("id,label,split,f\n1,a,train,0\n2,a,val,1\n3,b,test,2\n4,b,test,2\n")
    (rare / "edges.csv").write_text("source,target\n1,2\n3,4\n")
    (tmp_path / "b.toml").write_text(
        f"[data]\npath = '{rare}'\n[partition]\nname = 'random'\nclients = 1\nuse_dataset_split = true\n"
    )
    said = run("check", str(tmp_path / "b.toml"))
    assert "note: no client trains on class b, though the data have 2 examples of it" in said
    assert "note: classes of fewer than 3 examples: a, b; if a name is misspelt" in said
    scaled = run("check", str(tmp_path / "b.toml"), "--algorithm", "dp_fedavg", "--set", "data.normalize='minmax'")
    assert "note: data.normalize takes exact numbers over all clients' nodes, which are in no ε" in scaled
    assert "which are in no ε" not in run("check", str(tmp_path / "b.toml"), "--set", "data.normalize='minmax'")
    (rare / "nodes.csv").write_text("id,graph\n1,g\n2,g\n3,h\n4,h\n")
    (rare / "graphs.csv").write_text("id,label\ng,a\nh,b\n")
    bounded = ("--algorithm", "dp_fedavg", "--set", "data.name='graphs'", "--set", "model.pool='sum'")
    counted = "note: the number of one-hot columns for degrees or labels depends on all clients' data, and is in no ε"
    fixed = (*bounded, "--set", "partition.use_dataset_split=false")
    assert counted in run("check", str(tmp_path / "b.toml"), *fixed)
    assert "in no ε" not in run("check", str(tmp_path / "b.toml"), *fixed, "--set", "data.degrees=9")
    (rare / "graphs.csv").unlink()
    third = "id,label,sens,f\n1,no,m,0\n2,yes,f,1\n3,no,f,2\n4,yes,x,2\n"
    (rare / "nodes.csv").write_text(third)
    told = run("check", str(tmp_path / "b.toml"), "--set", "partition.use_dataset_split=false")
    assert "note: gaps compare only f and m; 1 people of x are in no gap" in told
    people = "id,label,sens,f\n1,no,m,0\n2,yes,f,1\n3,no,f,2\n4,yes,f,2\n"
    (rare / "nodes.csv").write_text(people)
    named = run("check", str(tmp_path / "b.toml"), "--set", "partition.use_dataset_split=false")
    assert "groups of people: f (0): 3, m (1): 1" in named
    assert "note: a prediction of yes (1) counts as favorable, the second of two by alphabet" in named
    assert 'data.favorable = "no"' in named
    told = run(
        "check", str(tmp_path / "b.toml"), "--set", "partition.use_dataset_split=false", "--set", "data.favorable='no'"
    )
    assert "note: a prediction of" not in told
    assert "a prediction of no (1) counts as favorable (data.favorable)" in told
    odd = run("check", str(tmp_path / "b.toml"), "--set", "data.groups=['m']", code=2)
    assert "sens 'f' is none of m" in odd
    assert "add it to data.groups" in odd
    (rare / "nodes.csv").write_text("id,label,split,f\n1,a,train,0\n2,a,val,1\n3,b,test,2\n4,b,test,2\n")
    assert "misspelt" not in run("check", str(tmp_path / "b.toml"), "--set", "data.labels=['a', 'b']")


def test_the_package_carries_the_experiments() -> None:
    assert starter.example_experiments().keys() == {path.stem for path in (ROOT / "experiments").glob("*.toml")}
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["fedweave"]
    edge_attrs = {path.name for pattern in data for path in (ROOT / "src/fedweave").glob(pattern)}
    templates = {path.name for path in (ROOT / "src/fedweave/reports/templates").iterdir()}
    experiments = {path.name for path in (ROOT / "experiments").glob("*.toml")}
    assert edge_attrs == {"py.typed", "printed.toml", *templates, *experiments}

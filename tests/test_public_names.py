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
from fedweave.experiment.runs.trained import finished_config, load_trained
from tests.commands import SMALL, refuse, run
from tests.refusals import refusal

ROOT = Path(__file__).parents[1]
COLUMNS = ["--set", "partition={name='vertical', clients=3}"]
STEPS = "algorithm.local_steps={}"


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
    with pytest.raises(AttributeError, match="lode_run"):
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
    kept = load_trained(saved, finished_config(saved), "")
    assert torch.equal(found.weights()["0"]["weight"], kept.state["w"]["0"]["weight"])
    kept = load_trained(saved, finished_config(saved), "", model="trained")
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
    assert run("list", "algorithms").strip().endswith("fedweave list algorithms NAME")
    shown = run("list", "algorithms", "fedavg").splitlines()
    assert shown[0].startswith("fedavg ")
    assert any(line.strip().startswith("local_steps: int") for line in shown)
    assert not any(line.startswith("fedprox") for line in shown)
    refuse(["list", "algorithms", "fedavgg"], "config.unknown-name", "'fedavgg'", "'fedavg'")


def test_overwrite_replaces_a_run_and_nothing_else(saved: Path, tmp_path: Path) -> None:
    config, other = str(saved.parent / "small.toml"), str(tmp_path / "run")
    run("run", config, "--out", other, "-q")
    (tmp_path / "run/report.html").write_text("of the first")
    (tmp_path / "run/notes.txt").write_text("mine")
    refuse(["run", config, "--out", other, "-q"], "user.not-empty", "--overwrite")
    again = ["run", config, "--out", other, "-q", "--overwrite"]
    refuse([*again, "--set", "algorithm.x=1"], "config.unknown-key", "algorithm.x")
    assert json.loads((tmp_path / "run/summary.json").read_text())["rounds"] == 3  # a mistake removes nothing
    refuse([*again, "--set", 'algorithm.share=["9/*"]'], "config.share", "'9/*'")  # found when training begins
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
    refuse(["run", config, "--out", tmp_path / "mine", "--overwrite"], "user.not-replaceable")
    assert (tmp_path / "mine/thesis.txt").exists()
    refuse([*again, "--resume"], "user", "--resume", "--overwrite")
    said = run("run", config, "--out", str(tmp_path / "typo"), "--resume", "--set", "rounds=1")
    assert said.count("nothing to continue") == 1


def test_a_starter_configuration_can_be_checked_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("init")
    said = run("check", "experiment.toml")
    assert all(fact in said for fact in ("1,797 nodes", "10 clients", "64 features", "10 classes", version("fedweave")))
    assert said.strip().endswith("no fault found")
    assert [path.name for path in tmp_path.iterdir()] == ["experiment.toml"]  # nothing is written
    refuse(["init"], "user", "experiment.toml")
    refuse(["init", "c.toml", "--from", "fedavg-cor"], "config.unknown-name", "--from", "'fedavg-cora'")
    run("init", "cora.toml", "--from", "fedavg-cora")
    assert (tmp_path / "cora.toml").read_text() == (ROOT / "experiments/fedavg-cora.toml").read_text()


@pytest.mark.parametrize("name", ["nodes", "members"])
def test_a_starter_for_own_data_runs_on_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for branch in ("north", "south"):
        folder = tmp_path / ("data" if name == "nodes" else f"members/{branch}")
        folder.mkdir(parents=True, exist_ok=True)
        own = [[branch] if name == "nodes" else [] for _ in range(30)]
        rows = [[f"{branch}{i}", str(i % 2), str(i % 3), *cells] for i, cells in enumerate(own)]
        with open(folder / "nodes.csv", "a") as nodes, open(folder / "edges.csv", "a") as edges:
            if not nodes.tell():
                nodes.write("id,label,age,branch\n" if name == "nodes" else "id,label,age\n")
                edges.write("source,target\n")
            nodes.writelines(",".join(row) + "\n" for row in rows)
            edges.writelines(f"{one[0]},{other[0]}\n" for one, other in pairwise(rows))
    run("init", "mine.toml", "--from", name)
    # GCN mixes a node's own features with its neighbors', and often loses to a regression on tables
    said = run("check", "mine.toml")
    assert all(fact in said for fact in ("· sage ·", "60 nodes", "2 clients"))
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
    run("init", "mine.toml", "--from", "molecules")
    owners = ("--set", "data.owner=lab", "--set", "partition={name = 'column'}", "--set", "data.fingerprint=none")
    said = run("check", "mine.toml", *owners)
    assert all(fact in said for fact in ("40 graphs, 160 nodes", "2 clients", "(40 train, 0 val, 0 test) is not used"))
    run("run", "mine.toml", "--set", "rounds=1", *owners, "--out", "out")
    assert json.loads((tmp_path / "out/summary.json").read_text())["clients"] == 2
    run("contributions", "out")


def test_a_starter_for_parties_runs_on_their_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for at, party in enumerate(("bank", "clinic")):
        (tmp_path / "parties" / party).mkdir(parents=True)
        rows = [f"p{i},{i % 2},{(i * (at + 3)) % 7}\n" for i in range(40)]
        (tmp_path / "parties" / party / "nodes.csv").write_text("id,label,seen\n" + "".join(rows))
        edges = [f"p{i},p{i + 1 + at}\n" for i in range(37)]
        (tmp_path / "parties" / party / "edges.csv").write_text("source,target\n" + "".join(edges))
    run("init", "mine.toml", "--from", "parties")
    run("init", "holders.toml", "--from", "parties", "--labels", "holders")
    assert tomllib.loads((tmp_path / "holders.toml").read_text())["partition"]["labels"] == "holders"
    run("check", "mine.toml")
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

    def trains_and_tests() -> tuple[bool, bool]:
        """Whether a note names an id at two members, and one two nodes of one id."""
        said = run("check", str(tmp_path / "m.toml"))
        return "1 id trains at one member" in said, "each counts as two nodes" in said

    assert trains_and_tests() == (True, False)
    (tmp_path / "data" / "b" / "nodes.csv").write_text("id,label,split,f\np1,0,test,7\np2,1,train,0\n")
    assert trains_and_tests()[1]  # two nodes, as far as anybody can see, and a word on what may be
    for member in ("a", "b"):  # numbers of rows are nobody's names
        for name in ("nodes", "edges"):
            file = tmp_path / "data" / member / f"{name}.csv"
            file.write_text(file.read_text().replace("p1", "1").replace("p2", "2").replace("p3", "3"))
    assert not trains_and_tests()[0]
    (tmp_path / "data" / "a" / "nodes.csv").write_text("id,label,split,f\np1,0,train,1\np2,1,train,0\np3,1,test,1\n")
    (tmp_path / "data" / "a" / "edges.csv").write_text("source,target\np1,p2\n")
    (tmp_path / "data" / "b" / "nodes.csv").write_text("id,label,split,f\np4,0,test,1\np2,1,train,0\n")
    (tmp_path / "data" / "b" / "edges.csv").write_text("source,target\np4,p2\n")
    assert not trains_and_tests()[0]


@pytest.mark.parametrize(
    ("words", "code", "facts"),
    [
        (["--set", "model.hiden=3"], "config.unknown-key", ("--set", "model.hiden", "'hidden'")),
        (["--set", "partition.majors=2"], "config.unknown-key", ("partition.majors", "label_skew")),
        (["--set", "algorithm.gamma=0.5"], "config.unknown-key", ("algorithm.gamma", "fedego")),
        (["--set", "algorithm.share=['9/*']"], "config.share", ("'9/*'",)),  # the algorithm, when it begins
        (["--set", "algorithm.name='fairgfl'"], "user.no-sample", ()),
        (
            ["--set", "algorithm={name='dp_fedavg', epsilon=8.0, target_rounds=2}"],
            "user.target-rounds",
            ("rounds = 3",),
        ),
        (["--algorithm", "glasu", "--set", "model.name='gcnii'"], "config.same-nodes", ('"glasu"',)),
        (COLUMNS, "config.columns", ('"fedavg"', "partition.name")),
    ],
)
def test_check_refuses(words: list[str], code: str, facts: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(SMALL)
    refuse(["check", tmp_path / "a.toml", *words], code, *facts)


@pytest.mark.parametrize("name", ["local", "standalone", "centralized"])
def test_check_takes_columns_where_no_client_takes_anothers(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(SMALL)
    run("check", tmp_path / "a.toml", *COLUMNS, "--algorithm", name)


NODES = "id,label,split,f\n1,a,train,0\n2,a,val,1\n3,b,test,2\n4,b,test,2\n"
PEOPLE = "id,label,sens,f\n1,no,m,0\n2,yes,f,1\n3,no,f,2\n4,yes,{fourth},2\n"
GRAPHS = ("--algorithm", "dp_fedavg", "--set", "data.name='graphs'", "--set", "model.pool='sum'")
ANY_SPLIT = ("--set", "partition.use_dataset_split=false")


@pytest.mark.parametrize(
    ("nodes", "words", "there", "absent"),
    [
        (NODES, (), ("no client trains on class b", "classes of fewer than 3 examples: a, b", "misspelt"), ()),
        (NODES, ("--set", "data.labels=['a', 'b']"), (), ("misspelt",)),
        (NODES, ("--set", "data.normalize='minmax'"), (), ("in no ε",)),
        (NODES, ("--algorithm", "dp_fedavg", "--set", "data.normalize='minmax'"), ("data.normalize", "in no ε"), ()),
        ("id,graph\n1,g\n2,g\n3,h\n4,h\n", (*GRAPHS, *ANY_SPLIT), ("in no ε",), ()),
        ("id,graph\n1,g\n2,g\n3,h\n4,h\n", (*GRAPHS, *ANY_SPLIT, "--set", "data.degrees=9"), (), ("in no ε",)),
        (PEOPLE.format(fourth="x"), ANY_SPLIT, ("only f and m; 1 people of x",), ()),
        (PEOPLE.format(fourth="f"), ANY_SPLIT, ("f (0): 3, m (1): 1", "yes (1)", 'data.favorable = "no"'), ()),
        (PEOPLE.format(fourth="f"), (*ANY_SPLIT, "--set", "data.favorable='no'"), ("no (1)",), ("yes (1)",)),
    ],
)
def test_check_notes_what_is_odd_about_data(
    nodes: str, words: tuple[str, ...], there: tuple[str, ...], absent: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "nodes.csv").write_text(nodes)
    (tmp_path / "edges.csv").write_text("source,target\n1,2\n3,4\n")
    if "graph" in nodes:
        (tmp_path / "graphs.csv").write_text("id,label\ng,a\nh,b\n")
    (tmp_path / "b.toml").write_text(
        f"[data]\npath = '{tmp_path}'\n[partition]\nname = 'random'\nclients = 1\nuse_dataset_split = true\n"
    )
    said = run("check", tmp_path / "b.toml", *words)
    assert [fact for fact in there if fact not in said] == [fact for fact in absent if fact in said] == []


def test_check_refuses_a_group_that_is_none_of_those_listed(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text(PEOPLE.format(fourth="f"))
    (tmp_path / "edges.csv").write_text("source,target\n1,2\n3,4\n")
    (tmp_path / "b.toml").write_text(f"[data]\npath = '{tmp_path}'\n[partition]\nname = 'random'\nclients = 1\n")
    refuse(["check", tmp_path / "b.toml", "--set", "data.groups=['m']"], "data.row", "sens", "'f'", "data.groups")


def test_check_notes_what_is_odd_about_a_run(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(SMALL)
    odd = run("check", str(tmp_path / "a.toml"), "--set", "partition.test=0.0", "--set", "eval_every=0")
    facts = ("client-0, client-1, client-2 have no test node", "evaluated at the end", "43 weights")
    assert [fact for fact in facts if fact not in odd] == []  # 6 * 4 + 4 + 4 * 3 + 3
    one = ("--algorithm", "fedprox", "--set")
    assert re.search("note: proximal: with local_steps = 1", run("check", tmp_path / "a.toml", *one, STEPS.format(1)))
    assert re.search("note: proximal: with local_steps = 1", run("run", tmp_path / "a.toml", *one, STEPS.format(1),
                                                                 "--out", tmp_path / "pulled"))  # fmt: skip
    assert not re.search("proximal: with", run("check", tmp_path / "a.toml", *one, STEPS.format(2)))


def test_the_package_carries_the_experiments() -> None:
    assert starter.example_experiments().keys() == {path.stem for path in (ROOT / "experiments").glob("*.toml")}
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["fedweave"]
    edge_attrs = {path.name for pattern in data for path in (ROOT / "src/fedweave").glob(pattern)}
    templates = {path.name for path in (ROOT / "src/fedweave/reports/templates").iterdir()}
    experiments = {path.name for path in (ROOT / "experiments").glob("*.toml")}
    assert edge_attrs == {"py.typed", "printed.toml", *templates, *experiments}

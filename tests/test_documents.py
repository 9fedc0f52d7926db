"""The code that README and ARCHITECTURE show runs as it stands."""

import ast
import csv
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch

from fedweave.algorithms import FedAvg
from fedweave.algorithms.parts import Round, Uniform
from fedweave.cli.contract import verdict
from fedweave.contract.subject import Subject
from fedweave.core import plugins
from fedweave.core.tree import Tree, leaves, nest
from fedweave.experiment.rounds import train
from fedweave.metrics.selection import of_result
from tests import commands
from tests.contract.federations import distance, federation, model
from tests.refusals import check_facts

ROOT = Path(__file__).parent.parent


def code(document: str, at: int = 0) -> str:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)[at]


def test_the_readme_trains_and_shows_the_ledger_from_any_folder(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(code("README.md"), {})
    *rounds, _ = [line for line in capsys.readouterr().out.splitlines() if re.match(r"\d+ 0\.\d+", line)]
    assert len(rounds) == 9
    assert float(rounds[-1].split()[1]) > 0.8


def test_the_files_that_the_architecture_page_names_are_there() -> None:
    """But for the one that its reader is to write."""
    words = re.findall(
        r"`([\w/.-]+\.py|[\w/-]+/)`", re.sub(r"```.*?```", "", (ROOT / "ARCHITECTURE.md").read_text(), flags=re.S)
    )
    missing = {word for word in words if not any((base / word).exists() for base in (ROOT, ROOT / "src/fedweave"))}
    assert missing == {"src/fedweave/algorithms/loss_weighted.py"}


def test_the_pages_that_messages_and_templates_name_are_there() -> None:
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "experiments").glob("*.toml")]
    pages = {page for file in files for page in re.findall(r"docs/[\w/-]+\.md", file.read_text(encoding="utf-8"))}
    assert "docs/data-format.md" in pages
    assert {page for page in pages if not (ROOT / page).exists()} == set()


def test_the_part_of_the_architecture_page_weighs_by_loss() -> None:
    space: dict[str, Any] = {}
    exec(code("ARCHITECTURE.md"), space)
    ends = []
    for mode in ("loop", "vmap"):
        fed = federation(mode=mode, dtype=torch.float64)
        *_, last = train(space["LossWeighted"](model(), q=2.0), fed, 8)
        ends.append(last)
    assert distance(ends[0].state, ends[1].state) <= 1e-9
    plain, even = (
        train(made, federation(dtype=torch.float64), 3)
        for made in (FedAvg(model(), parts=(Uniform(),)), space["LossWeighted"](model(), q=0.0))
    )
    assert distance([*plain][-1].state["w"], [*even][-1].state["w"]) <= 1e-12


def test_the_file_of_the_extending_page_runs_and_keeps_the_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved as it stands, by the commands below it; it is fedweave's own `fedavgm`."""
    monkeypatch.chdir(tmp_path)
    Path("my_file.py").write_text(code("docs/extending.md"))
    Path("experiment.toml").write_text('rounds = 3\n[data]\nname = "synthetic"\nnodes = 90\n[partition]\nclients = 3\n')
    for name, key in (("my_file.py:FedAvgM", "beta"), ("fedavgm", "momentum")):
        words = ["--set", f"algorithm.{key}=0.5", "--out", name.rpartition(":")[2], "-q"]
        words += ["--set", "algorithm.server_lr=1.0"] if name == "fedavgm" else []
        commands.run("run", "experiment.toml", "--algorithm", name, *words)
    mine, own = (json.loads(Path(name, "summary.json").read_text())["metrics"] for name in ("FedAvgM", "fedavgm"))
    assert mine["global/loss"] == pytest.approx(own["global/loss"], rel=1e-6)
    laws = ("--law", "nothing_but_bytes_passes", "--law", "one_client_is_ordinary_training")
    verdicts = commands.run("contract", "my_file.py:FedAvgM", *laws).splitlines()
    assert [line.split()[0] for line in verdicts] == ["holds", "declared"]


def test_the_data_and_the_partition_of_the_extending_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(code("docs/extending-data.md"))
    Path("own.toml").write_text('rounds = 2\n[data]\nname = "own.py:Shops"\n[partition]\nname = "own.py:Halves"\n')
    commands.run("run", "own.toml", "--out", "run", "-q")
    assert json.loads(Path("run/summary.json").read_text())["clients"] == 2


def test_the_first_run_of_the_page_on_molecules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its script and of its file; and new molecules are predicted as it says."""
    pytest.importorskip("rdkit", reason="needs RDKit: pip install 'fedweave[molecules]'")
    monkeypatch.chdir(tmp_path)
    exec(code("docs/molecules.md"), {})
    assert json.loads(Path("runs/molecules/summary.json").read_text())["clients"] == 3
    toml = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/molecules.md").read_text(), re.DOTALL)[0]
    Path("molecules.toml").write_text(toml)
    commands.run("run", "molecules.toml", "--set", "rounds=1", "--out", "again", "-q")
    Path("new").mkdir()
    Path("new/graphs.csv").write_text("id,smiles\nnaphthalene,c1ccc2ccccc2c1\nuranium,[U]\n")
    commands.run("predict", "runs/molecules", "--data", "new", "--out", "said.csv")
    with open("said.csv", newline="") as file:
        assert [row["id"] for row in csv.DictReader(file)] == ["naphthalene", "uranium"]


def test_feddyn_of_the_extending_page_takes_the_papers_steps() -> None:
    """Two rounds of one plain step each, by hand: with U_i(w) = −η ∇F_i(w), g_i = −α U_i(w_0) after the first; h is
    −α times all mean updates."""
    space: dict[str, Any] = {"__name__": "feddyn"}
    exec(code("docs/extending-parts.md", 1), space)
    alpha, lr = 0.3, 0.1
    plain: dict[str, Any] = {"local_steps": 1, "optimizer": "sgd", "lr": lr, "weight_decay": 0.0}
    fed, fedavg = federation(dtype=torch.float64), FedAvg(model(dropout=0.0), parts=(Uniform(),), **plain)
    first = fedavg.init(fed)

    def updates(w: Tree) -> torch.Tensor:
        return fed.map(fedavg.train, first | {"w": w}).matrix("update")

    def moved(w: Tree, by: torch.Tensor) -> Tree:
        at, found = 0, {}
        for path, leaf in sorted(leaves(w)):
            found[path], at = leaf + by[at : at + leaf.numel()].view(leaf.shape), at + leaf.numel()
        return nest(found)

    begun = updates(first["w"])
    once = moved(first["w"], 2 * begun.mean(0))
    again = updates(once) - lr * alpha * begun
    expected = moved(once, 2 * again.mean(0) + begun.mean(0))
    *_, last = train(space["FedDyn"](model(dropout=0.0), alpha=alpha, **plain), federation(dtype=torch.float64), 2)
    assert distance(last.state["w"], expected) <= 1e-12


def test_the_pull_of_the_extending_page_keeps_the_contract() -> None:
    """Stronger, so that it acts; its own strength is for users."""
    space: dict[str, Any] = {"__name__": "last"}
    exec(code("docs/extending-parts.md"), space)
    tried = Subject(space["FedProxLast"], {"mu": 50.0})
    assert verdict(tried, "all_clients_at_once_do_in_double_precision") == "holds"


def test_the_second_part_of_the_extending_page_weighs_by_roots_of_nodes() -> None:
    """Of 21, 40, 33, 57 and 12 nodes; the ledger says that their number leaves."""
    space: dict[str, Any] = {}
    exec(code("docs/extending.md", 1), space)
    made, fed = FedAvg(model(), parts=(space["RootOfNodes"](),)), federation(mode="vmap")
    part, sizes = space["RootOfNodes"](), torch.tensor([21.0, 40, 33, 57, 12])
    replies = fed.map(made.train, made.init(fed), clients=list(fed.clients))
    weights = part.weigh({}, Round(replies, torch.arange(5), {}, made.model))
    assert weights.tolist() == pytest.approx((sizes.sqrt() / sizes.sqrt().sum()).tolist())
    assert {row["key"] for row in fed.ledger.table().to_pylist() if row["direction"] == "up"} > {"nodes"}


@pytest.mark.slow
def test_the_demo_ends_as_the_readme_shows(tmp_path: Path) -> None:
    """With room for another processor."""
    experiment = str(ROOT / "experiments/digits.toml")
    commands.run("run", experiment, "-o", tmp_path / "demo")
    found, shown = of_result(json.loads((tmp_path / "demo/summary.json").read_text())), (ROOT / "README.md").read_text()
    rows = {"accuracy": "accuracy", "macro F1": "macro_f1", "AUC": "auc", "the most frequent class": "majority"}
    for title, name in rows.items():
        row = re.search(rf"^ +{title} +([\d.]+) +([\d.]+)", shown, re.MULTILINE)
        assert [found[f"{kind}/{name}"] for kind in ("global", "local")] == pytest.approx(
            [float(value) for value in row.groups()], abs=0.02
        )
    worst = re.search(r"([\d.]+) client-\d+$", shown, re.MULTILINE)
    assert found["fairness/worst_accuracy"] == pytest.approx(float(worst[1]), abs=0.1)


def test_the_runs_of_the_page_on_python_are_kept_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(code("docs/python-runs.md").replace("rounds=10", "rounds=2"), {})
    commands.run("compare", "runs/fedavg", "runs/fedprox", "runs/local")


def test_the_algorithm_over_calls_of_the_extending_page_takes_the_mean_gradients_step_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One local step of each client is one of the mean gradient, as FedAvg's of one step of SGD; two are not."""
    monkeypatch.chdir(tmp_path)
    Path("fsvrg.py").write_text(code("docs/extending-algorithms.md"))
    kind, net = plugins.load("fsvrg.py:FSVRG"), model(dropout=0.0)
    ends = {}
    for steps in (1, 2):
        plain = FedAvg(net, local_steps=steps, optimizer="sgd", lr=0.1, weight_decay=0.0)
        for made in (kind(net, local_steps=steps, lr=0.1), plain):
            *_, last = train(made, federation(dtype=torch.float64), 2)
            ends[steps, type(made).__name__] = last.state["w"]
    assert distance(ends[1, "FSVRG"], ends[1, "FedAvg"]) <= 1e-12
    assert distance(ends[2, "FSVRG"], ends[2, "FedAvg"]) > 1e-4
    laws = ("--law", "nothing_but_bytes_passes", "--law", "it_runs_the_steps_that_it_declares")
    verdicts = commands.run("contract", "fsvrg.py:FSVRG", *laws).splitlines()
    assert [line.split()[0] for line in verdicts] == ["holds", "holds"]


def test_the_examples_of_the_page_on_numbers_are_checked(
    tmp_path: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On tables as the page shows them."""
    page = (ROOT / "docs/quantities.md").read_text(encoding="utf-8")
    first, second = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    for name, folder, columns in (
        ("delaney", "esol", ["id", "log_solubility"]),
        ("tox21", "tox21", ["id", "NR-AR", "NR-AhR", "SR-p53", "smiles"]),
    ):
        (tmp_path / folder).mkdir()
        for table in ("graphs", "nodes", "edges"):
            held = pq.read_table(data_root / name / f"{table}.parquet")
            pyarrow.csv.write_csv(
                held.select(columns) if table == "graphs" else held, tmp_path / folder / f"{table}.csv"
            )
    rest = first.split("[partition]")[1]
    (tmp_path / "esol.toml").write_text(first)
    (tmp_path / "tox21.toml").write_text(f"rounds = 2\n{second}\n[partition]{rest}")
    monkeypatch.chdir(tmp_path)
    for name, said in (
        ("esol", "log_solubility: -3.05 ± 2.096, from -11.6 to 1.58"),
        ("tox21", "3 labels (NR-AR, NR-AhR"),
    ):
        assert said in commands.run("check", f"{name}.toml")


def hooks() -> list[str]:
    """The signatures of a part's hooks, as the code has them."""
    source = (ROOT / "src/fedweave/algorithms/parts/part.py").read_text()
    found = []
    for kind in (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)):
        for method in kind.body if kind.name == "Part" else ():
            if not isinstance(method, ast.FunctionDef) or method.name.startswith("_"):
                continue
            gives = ast.unparse(method.returns).strip("'") if method.returns is not None else "None"
            if any(ast.unparse(mark) == "property" for mark in method.decorator_list):
                found.append(f"{method.name}: {gives}")
                continue
            takes = ast.unparse(method.args).removeprefix("self").removeprefix(", ")
            found.append(f"{method.name}({takes})" + (f" -> {gives}" if gives != "None" else ""))
    return found


def test_the_page_on_hooks_has_every_signature() -> None:
    """In the order of the code, in two blocks."""
    page = (ROOT / "docs/hooks.md").read_text()
    section = page[page.index("## Signatures of all hooks") :]
    assert [
        line for block in re.findall(r"```text\n(.*?)```", section, re.DOTALL) for line in block.splitlines()
    ] == hooks()


def test_one_version_stands_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    check_facts((ROOT / "CITATION.cff").read_text(), f"version: {version}")
    check_facts((ROOT / "README.md").read_text(), f"version = {{{version}}}")
    check_facts((ROOT / "CHANGELOG.md").read_text(), f"## {version}, ")

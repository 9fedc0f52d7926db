"""Names of nodes that a user gives to commands are found as in tables: 7.0 is 7, and what looks alike is hinted at."""

import logging
from pathlib import Path

import pytest

from fedweave.apply.reasons import explain
from fedweave.apply.run_predictions import PairQuery, predictions
from fedweave.datasets import load
from fedweave.experiment.config import resolve
from fedweave.experiment.runs.run import run as run_experiment
from fedweave.partition.dirichlet import Dirichlet
from fedweave.partition.forgetting import Forget, places
from fedweave.python.training import Silent
from fedweave.sites.flare.holdings import Forgotten
from fedweave.sites.flare.site_data import training_graph
from fedweave.sites.flare.sitefile import SiteData
from tests.refusals import check_facts, refusal

UUID = "0000000c-9f2c-9cd0-4674-edea4000"
IDS = [*map(str, range(1, 9)), *(f"1,{at:03}" for at in range(8)), *(f"{{{UUID.upper()}{at:04}}}" for at in range(8))]
OTHERS = {"1000": ("'1,000'", "thousands"), f"{UUID}0003": (IDS[19], "case and brackets"), "07": ("'7'", "zeros")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("names")
    nodes = [f'"{name}",{at % 2},{("train", "val", "test")[at % 3]},{at / 7:.3f}' for at, name in enumerate(IDS)]
    (path / "nodes.csv").write_text("\n".join(["id,label,split,f", *nodes]) + "\n")
    edges = [f'"{name}","{IDS[(at + step) % len(IDS)]}"' for step in (1, 5) for at, name in enumerate(IDS)]
    (path / "edges.csv").write_text("\n".join(["source,target", *edges]) + "\n")
    return path


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(folder, tmp_path_factory.mktemp("run") / "run", task="links", rank_negatives=5)


def trained(folder: Path, directory: Path, **data: object) -> Path:
    """The folder of a run of one round on the nodes of `folder`."""
    document = {
        "rounds": 1,
        "data": {"name": "folder", "path": str(folder), **data},
        "partition": {"name": "random", "clients": 1},
        "model": {"name": "gcn", "hidden": 4},
        "algorithm": {"name": "fedavg"},
    }
    run_experiment(resolve(document), directory, Silent())
    return directory


def test_a_node_of_predict(run: Path) -> None:
    assert predictions(run, query=PairQuery(node="7.0")) == predictions(run, query=PairQuery(node="7"))
    for name, facts in OTHERS.items():
        with refusal("user.pairs", repr(name), *facts):
            predictions(run, query=PairQuery(node=name))


def test_pairs_of_predict(run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "pairs.csv").write_text("source,target\n7.0,3\n7,3.0\n7,3\n1000,3\n7,07\n8,nobody\n")
    with caplog.at_level(logging.WARNING):
        scores = predictions(run, query=PairQuery(tmp_path / "pairs.csv"))["score"].to_pylist()
    assert scores[0] == scores[1] == scores[2] is not None
    assert scores[3:] == [None] * 3
    [note] = [record.getMessage() for record in caplog.records if "pairs.csv" in record.getMessage()]
    check_facts(note, "zeros", "1 more")


def test_a_pair_of_explain(run: Path) -> None:
    assert explain(run, ("7.0", "3")).score == explain(run, ("7", "3")).score
    for name, facts in OTHERS.items():
        with refusal("explain.no-id", repr(name), *facts):
            explain(run, ("7", name))


def test_an_id_of_explain(folder: Path, tmp_path: Path) -> None:
    of_nodes = trained(folder, tmp_path / "run")
    assert explain(of_nodes, "7.0").score == explain(of_nodes, "7").score
    for name, facts in OTHERS.items():
        with refusal("explain.no-id", name, *facts):
            explain(of_nodes, name)


def test_ids_of_forget(folder: Path, tmp_path: Path) -> None:
    data = load("folder", str(folder))
    assert places(data, ("7.0", "7", "8")).tolist() == [6, 7]
    rest = Forget(ids=("7.0",)).apply(data, Dirichlet(clients=2, min_nodes=1).cut(data, 0))
    assert (~rest.nodes).nonzero()[0].tolist() == [6]
    for name, facts in OTHERS.items():
        with refusal("forget.no-id", repr(name), *facts):
            places(data, (name,))


def test_ids_that_a_site_forgets(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(folder)
    (tmp_path / "forget.txt").write_text("7.0\n{8}\n5\n7\n")
    site = SiteData(path="data", forget="forget.txt")
    forgotten = Forgotten.of(site, tmp_path)
    assert forgotten.ids == ("5", "7")
    assert forgotten.absent == 1
    assert training_graph(site, tmp_path).ids == tuple(name for name in IDS if name not in ("5", "7"))

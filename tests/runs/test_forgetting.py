"""A run without a client or without examples: what is left, that nothing else changes, and what an attack finds."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from scipy.stats import ks_2samp
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

import fedweave
from fedweave.apply.forgetting import forget
from fedweave.apply.forgetting_record import RECORD, digest
from fedweave.cli import app
from fedweave.core.tree import leaves
from fedweave.errors import UserError
from fedweave.experiment.build import build, ingredients
from fedweave.experiment.config import resolve
from fedweave.experiment.runs.data_form import form_of_config
from fedweave.experiment.runs.trained import finished_config, load_trained
from fedweave.partition import Dirichlet
from fedweave.partition.forgetting import Forget
from fedweave.privacy.attacks import separation
from fedweave.sites.flare.compliance import read_report
from tests import commands
from tests.contract.federations import state_after
from tests.partition.test_field_partitions import rings
from tests.refusals import refusal
from tests.runs.test_edges_as_examples import tables
from tests.runs.test_scoring import customers
from tests.runs.test_target_files import graphs_folder
from tests.sites.projects import make_project

DOCUMENT: dict[str, Any] = {
    "rounds": 4,
    "data": {"name": "digits"},
    "partition": {"name": "dirichlet", "clients": 4, "alpha": 1.0},
    "model": {"name": "gcn", "hidden": 8},
    "algorithm": {"name": "fedavg"},
    "evaluation": {"shelf": False},
}


def weights(run: Any) -> np.ndarray:
    return np.concatenate([leaf.numpy().ravel() for _, leaf in leaves(run.weights())])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return fedweave.run(DOCUMENT, tmp_path_factory.mktemp("forgetting") / "run", progress=False)


@pytest.mark.parametrize("sparse", [False, True])
def test_what_leaves_is_gone_and_the_rest_stays_as_it_was(sparse: bool) -> None:
    data = rings([0, 1, 2] * 4)
    x = 1 + np.arange(data.nodes * 2, dtype=np.float32).reshape(-1, 2)
    data = replace(data, x=sp.csr_matrix(x) if sparse else x)
    cut = Dirichlet(clients=3, min_nodes=1).cut(data, 0)
    some = cut.parts[2].nodes[:2].tolist()
    rest = Forget(("client-0",), tuple(map(str, some))).apply(data, cut)
    gone = {*cut.parts[0].nodes.tolist(), *some}
    assert rest.partition.names == ("client-1", "client-2")
    assert (rest.partition.parts[0].nodes == cut.parts[1].nodes).all()
    assert (rest.partition.parts[0].masks == cut.parts[1].masks).all()
    assert rest.partition.parts[1].nodes.tolist() == [node for node in cut.parts[2].nodes if node not in gone]
    dense = rest.data.x.toarray() if sparse else rest.data.x
    assert {*np.flatnonzero((dense == 0).all(1)).tolist()} == gone
    assert {*np.flatnonzero(rest.data.y < 0).tolist()} == gone
    assert not np.isin(rest.data.edges, [*gone]).any()
    kept = ~np.isin(data.edges, [*gone]).any(0)
    assert (rest.data.edges == data.edges[:, kept]).all()
    assert {*np.flatnonzero(~rest.nodes).tolist()} == gone


def test_what_others_hold_too_stays() -> None:
    """A node that two clients hold leaves with an id, and not with one of the clients."""
    data = rings([0, 1, 2] * 4)
    cut = Dirichlet(clients=2, min_nodes=1).cut(data, 0)
    first, second = cut.parts
    both = replace(
        first, nodes=np.arange(data.nodes), masks=np.ones((3, data.nodes), bool) & [[True], [False], [False]]
    )
    cut = replace(cut, parts=(both, second))
    rest = Forget(("client-0",)).apply(data, cut)
    assert np.flatnonzero(rest.nodes).tolist() == second.nodes.tolist()
    rest = Forget(("client-1",)).apply(data, cut)
    assert rest.nodes.all()
    node = int(second.nodes[0])
    rest = Forget(ids=(str(node),)).apply(data, cut)
    assert [node in part.nodes for part in rest.partition.parts] == [False, False]


@pytest.mark.parametrize(
    ("forgotten", "code"),
    [
        ({"clients": ["client-9"]}, "forget.no-client"),
        ({"clients": ["client-0", "client-1", "client-2", "client-3"]}, "forget.empty"),
        ({"ids": ["1797"]}, "forget.no-id"),
        ({"ids": [7]}, "config.value"),
        ({"moon": 1}, "config.unknown-key"),
    ],
)
def test_what_cannot_be_forgotten(forgotten: Any, code: str) -> None:
    with refusal(code):
        ingredients(resolve(DOCUMENT | {"forget": forgotten}))


@pytest.mark.parametrize(
    ("section", "code"),
    [
        ({"noise": {"features": 0.1}}, "forget.noise"),
        ({"engine": {"name": "flare"}}, "forget.sites"),
        (
            {"algorithm": {"name": "glasu"}, "partition": {"name": "vertical"}, "model": {"name": "gcn"}},
            "forget.vertical",
        ),
        ({"data": {"name": "folder", "path": "x", "external": "features", "normalize": "standard"}}, "forget.scaling"),
    ],
)
def test_sections_that_do_not_go_with_it(section: Any, code: str) -> None:
    with refusal(code):
        resolve(DOCUMENT | section | {"forget": {"clients": ["client-0"]}})


def test_columns_are_scaled_by_what_is_left(tmp_path: Path) -> None:
    """Standard scores of the remaining nodes, as scikit-learn makes them of these rows alone."""
    data = {"name": "folder", "path": str(customers(tmp_path / "data", 0)), "missing": ["debt"]}
    data["categories"] = {"job": ["clerk", "driver", "nurse"]}
    document = DOCUMENT | {"partition": {"name": "random", "clients": 3}}
    plain = ingredients(resolve(document | {"data": data | {"normalize": "none"}}))
    config = resolve(document | {"data": data | {"normalize": "standard"}, "forget": {"clients": ["client-0"]}})
    rest = ingredients(config)
    nodes = np.concatenate([part.nodes for part in rest.partition.parts])
    raw = plain.data.x.toarray() if sp.issparse(plain.data.x) else plain.data.x
    scaler = StandardScaler().fit(raw[nodes].astype(np.float64))
    np.testing.assert_allclose(np.asarray(rest.data.x[nodes]), scaler.transform(raw[nodes]), atol=1e-5)
    form = form_of_config(config, rest.data, rest.partition)
    np.testing.assert_allclose(form.scaling["shift"], scaler.mean_, rtol=1e-6)


def test_who_stays_trains_as_before(run: Any) -> None:
    """Alone, every client's model is the same to the bit whether another one is there or not."""
    local = DOCUMENT | {"algorithm": {"name": "local"}}
    both = []
    for section in ({}, {"forget": {"clients": ["client-1"]}}):
        built = build(resolve(local | section))
        state_after(built.algorithm, built.fed, 2)
        both.append({name: dict(leaves(one)) for name, one in built.fed.snapshot().items()})
    assert both[1].keys() == both[0].keys() - {"client-1"}
    for name, one in both[1].items():
        for path, leaf in one.items():
            np.testing.assert_array_equal(np.asarray(leaf), np.asarray(both[0][name][path]))


def test_the_exact_model_is_that_of_a_run_that_never_had_it(run: Any, tmp_path: Path) -> None:
    """The run by its document, with [forget], gives the same weights; and with features of what left set to noise,
    too."""
    result = run.forget("client-1", rounds=2, out=tmp_path / "f")
    exact, fast = (fedweave.load_run(tmp_path / "f" / name) for name in ("exact", "fast"))
    again = fedweave.run(DOCUMENT | {"forget": {"clients": ["client-1"]}}, tmp_path / "again", progress=False)
    np.testing.assert_array_equal(weights(exact), weights(again))
    np.testing.assert_array_equal(exact.partition["client"].to_pylist(), ["client-0", "client-2", "client-3"])
    data = fedweave.datasets.load("digits")
    cut = Dirichlet(clients=4, alpha=1.0).cut(data, 0)
    other = data.x.copy()
    other[cut.parts[1].nodes] = other[cut.parts[1].nodes][::-1] * 3
    rest = Forget(("client-1",)).apply(replace(data, x=other), cut)
    model = fedweave.models.GCN(hidden=8).build(data.features, data.classes)
    algorithm = fedweave.algorithms.FedAvg(model)
    fed = fedweave.federation(rest.data, rest.partition, algorithm, seed=0)
    *_, last = fedweave.train(algorithm, fed, rounds=4)
    ours = np.concatenate([leaf.numpy().ravel() for _, leaf in leaves(last.state["w"])])
    np.testing.assert_allclose(ours, weights(exact), atol=1e-6)
    models = result.record["models"]
    far = np.linalg.norm(weights(fast) - weights(exact)) / np.linalg.norm(weights(exact))
    assert models["fast"]["parameters"] == pytest.approx(far, rel=1e-5)
    assert models["exact"]["parameters"] == models["exact"]["predictions"] == models["exact"]["disagree"] == 0
    assert models["before"]["parameters"] == pytest.approx(
        np.linalg.norm(weights(run) - weights(exact)) / np.linalg.norm(weights(exact)), rel=1e-5
    )
    assert exact.summary["metrics"]["global/accuracy"] == pytest.approx(models["exact"]["metric"], abs=1e-9)
    assert result.table["model"].to_pylist() == ["before", "exact", "fast"]
    saved = json.loads((tmp_path / "f" / RECORD).read_text())
    assert saved == result.record
    assert saved["digest"] == digest(saved)
    assert digest(saved | {"metric": "auc"}) != saved["digest"]
    assert weights(run).shape == weights(exact).shape


def test_the_runs_folder_predicts_with_what_is_left(run: Any, tmp_path: Path) -> None:
    """The exact run is a run like any other: its predictions are of the numbers that the earlier run had."""
    ids = [str(number) for number in range(40)]
    run.forget(ids=ids, rounds=0, out=tmp_path / "f")
    commands.run("predict", tmp_path / "f/exact", "--out", tmp_path / "p.parquet")
    nodes = pq.read_table(tmp_path / "p.parquet")["node"].to_pylist()
    assert not {*nodes} & {*range(40)}
    assert max(nodes) == 1796
    assert not (tmp_path / "f/fast").exists()


def test_memory_shows_and_goes(tmp_path: Path) -> None:
    """Labels drawn at random can only be learned by heart: the attack finds a client that was trained on them, and
    neither in the exact model."""
    draw = np.random.default_rng(0)
    data = fedweave.datasets.load("digits")
    y = np.full(data.nodes, -1)
    y[draw.permutation(data.nodes)[:400]] = draw.integers(0, 2, 400)
    data = replace(data, y=y, classes=2, edges=data.edges[:, :0], labels=())
    model = fedweave.models.MLP(hidden=64, dropout=0.0).build(data.features, 2)
    cut = fedweave.partition.Random(clients=4, train=0.5, val=0.0, test=0.5).cut(data, 0)
    algorithm = fedweave.algorithms.FedAvg(model, lr=0.01, optimizer="adam", local_steps=5, weight_decay=0.0)
    fed = fedweave.federation(data, cut, algorithm, seed=0)
    [*fedweave.train(algorithm, fed, rounds=40, eval_every=40, out=tmp_path / "run")]
    record = fedweave.load_run(tmp_path / "run").forget("client-1", rounds=0).record
    before, exact = (record["models"][name]["attack"] for name in ("before", "exact"))
    assert before["auc"] > 0.7
    assert before["advantage"] > 1.5 * before["by_chance"]
    assert exact["advantage"] < exact["by_chance"]


def test_separation_against_scipy_and_scikit_learn() -> None:
    draw = np.random.default_rng(0)
    members, others = draw.normal(0.5, 1, 70), draw.normal(0, 1, 50)
    result = separation(members, others)
    assert result.advantage == pytest.approx(ks_2samp(members, others, alternative="less").statistic, abs=1e-12)
    assert result.auc == pytest.approx(roc_auc_score([1] * 70 + [0] * 50, [*members, *others]))
    exceeded = [separation(draw.normal(size=70), draw.normal(size=50)).advantage > result.by_chance for _ in range(400)]
    assert 0.01 < np.mean(exceeded) < 0.08
    assert separation(np.array([3.0, 4.0]), np.array([1.0, 2.0]))[:2] == (1.0, 1.0)


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        ([], 2, "--client"),
        (["--client", "client-9"], 2, "client-9"),
        (["--ids", "none.txt"], 2, "none.txt"),
        (["--client", "client-0", "--out", "."], 2, "--out"),
    ],
)
def test_refusals_on_the_command_line(run: Any, arguments: list[str], code: int, word: str) -> None:
    said = CliRunner().invoke(app, ["forget", str(run.directory), *arguments])
    assert said.exit_code == code
    assert word in said.output


def test_the_command_writes_record_page_and_signature(run: Any, tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')
    project = make_project(tmp_path / "project")
    ids = tmp_path / "ids.txt"
    ids.write_text("3\n5\n\n8\n")
    words = ["forget", str(run.directory), "--ids", str(ids), "--rounds", "1", "--out", str(tmp_path / "f"), "--quiet"]
    commands.run(*words, "--sign", project / "bank-a")
    report = read_report(tmp_path / "f/forgetting-signed.json", project / "bank-b/startup")
    assert [one.name for one in report.signatures] == ["bank-a"]
    page = (tmp_path / "f/forgetting.html").read_text()
    assert json.loads((tmp_path / "f" / RECORD).read_text())["digest"] in page
    changed = (tmp_path / "f/forgetting-signed.json").read_text().replace("Membership", "No membership")
    (tmp_path / "g.json").write_text(changed)
    with pytest.raises(UserError, match="changed"):
        read_report(tmp_path / "g.json")


def test_edges_as_examples_leave_one_by_one(tmp_path: Path) -> None:
    """Their ends stay, and so do parallel edges; the others keep features and splits."""
    data = {"name": "folder", "path": str(tables(tmp_path / "transfers")), "task": "edges", "directed": True}
    data |= {"edge_features": ["amount"], "edge_time": "day", "loops": "keep", "unlabeled": "unknown"}
    data |= {"owner": "bank", "edge_normalize": "standard", "groups": ["cash", "wire"]}
    document = DOCUMENT | {"data": data, "partition": {"name": "column"}, "model": {"name": "gine", "hidden": 4}}
    plain, rest = (ingredients(resolve(document | more)) for more in ({}, {"forget": {"ids": ["t0", "t7"]}}))
    numbers = [np.concatenate([part.examples for part in one.partition.parts]) for one in (plain, rest)]
    ids = plain.data.ids or tuple(map(str, range(plain.data.examples)))
    assert {ids[at] for at in numbers[0]} - {ids[at] for at in numbers[1]} == {"t0", "t7"}
    assert len(numbers[0]) == len(numbers[1]) + 2


def test_small_graphs_leave_as_a_whole(tmp_path: Path) -> None:
    data = {"name": "graphs", "path": str(graphs_folder(tmp_path / "graphs")), "target": "labels"}
    data |= {"targets": ["long", "warm", "cold"]}
    document = DOCUMENT | {"data": data, "partition": {"name": "graphs_iid", "clients": 2}, "model": {"name": "gin"}}
    run = fedweave.run(document, tmp_path / "run", progress=False)
    whole = load_trained(run.directory, finished_config(run.directory), "").built
    part = whole.partition.parts[0]
    some = [(whole.data.ids or [*map(str, range(whole.data.examples))])[at] for at in part.examples[:3]]
    result = run.forget(ids=some, rounds=1)
    assert result.record["forgotten"]["examples"] == 3
    left = load_trained(result.exact, finished_config(result.exact), "").built.partition.parts[0]
    assert left.examples.tolist() == part.examples[3:].tolist()
    assert (left.nodes == whole.data.nodes_of(part.examples[3:])).all()


def test_what_the_record_needs(run: Any, tmp_path: Path) -> None:
    """A run that is not finished, one of links, and a folder that is used are refused before anything is trained."""
    with refusal("forget.nothing"):
        forget(run.directory)
    unfinished = tmp_path / "run"
    shutil.copytree(run.directory, unfinished, ignore=shutil.ignore_patterns("summary.json", "forgotten"))
    with refusal("user.unfinished"):
        forget(unfinished, ["client-0"])
    (tmp_path / "used").mkdir()
    (tmp_path / "used/file").touch()
    with refusal("forget.out"):
        forget(run.directory, ["client-0"], out=tmp_path / "used")


def test_a_refused_training_leaves_no_folder(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise UserError("forget.clients: no client is left.", code="forget.empty")

    monkeypatch.setattr("fedweave.apply.forgetting.runs.run", refuse)
    with refusal("forget.empty"):
        forget(run.directory, ["client-0"], out=tmp_path / "new")
    assert not (tmp_path / "new").exists()

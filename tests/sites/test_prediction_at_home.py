"""Prediction at sites of horizontal runs: the simulation's numbers, each at home, and nothing leaves."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

import torch

from fedweave.core.ledger import Ledger
from fedweave.core.types import FRAMING
from fedweave.datasets.base import Dataset
from fedweave.datasets.features import NORMALIZE, OVER_NODES
from fedweave.errors import UserError
from fedweave.experiment.config import to_toml
from fedweave.experiment.rounds import train
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import CHECKPOINT, EARLIER, PREDICTIONS, SUMMARY
from fedweave.experiment.runs.outputs import probabilities
from fedweave.metrics.selection import Flagging, Judging
from fedweave.sites.flare.alignment import PartyData
from fedweave.sites.flare.federation import Flare
from fedweave.sites.flare.joining import FORM, RELATIONS, TARGET
from fedweave.sites.flare.journal import entries, journal_path
from fedweave.sites.flare.predicted import local_flagging
from fedweave.sites.flare.server import Server, _predict
from fedweave.sites.flare.sitefile import SITE_FILE, write_site_file
from fedweave.sites.operation.running import number_of, run
from tests import commands
from tests.refusals import check_facts, refusal
from tests.sites.projects import SITES, InProcess, experiment, joined, private, set_policy, simulated

ROUNDS = 2


def trained(project: Path, name: str = "fedavg", **settings: Any) -> tuple[Any, Any, Any]:
    """The experiment, its algorithm and the server's state after the rounds at the sites."""
    config = experiment(name, rounds=ROUNDS, **settings)
    fed, algorithm, _ = joined(project, config)
    *_, last = train(algorithm, fed, ROUNDS)
    fed.snapshot()
    return config, algorithm, last.state


def predict(
    project: Path, config: Any, algorithm: Any, state: Any, which: str = "personal", flags: Flagging | int | None = None
) -> Ledger:
    """Predict with the models of the run, in processes that have just begun."""
    fed = Flare(InProcess(project), SITES, ledger=Ledger(), seed=config.general.seed)
    fed.join(config.plain(), "r1", ROUNDS, predict=True, flags=flags)
    fed.restore({"round": ROUNDS})
    fed.begin(ROUNDS)
    algorithm.deploy(state, fed, which)
    return fed.ledger


def told(project: Path, site: str) -> dict[str, np.ndarray]:
    table = pq.read_table(project / site / "runs/r1/predictions.parquet")
    return {name: np.array(table[name].to_pylist()) for name in table.column_names}


@pytest.mark.often("dfedgnn-global")
@pytest.mark.parametrize(
    ("name", "which"),
    [
        ("fedavg", "global"),
        ("fedavg", "trained"),
        ("ditto", "personal"),
        ("fedego", "personal"),
        ("dfedgnn", "global"),
        ("dfedgnn", "personal"),
        ("local", "trained"),
    ],
)
def test_sites_predict_at_home_what_the_simulation_predicts(project: Path, name: str, which: str) -> None:
    config, algorithm, state = trained(project, name)
    before = {site: private(project, site) for site in SITES}
    if (name, which) == ("dfedgnn", "global"):
        with refusal("user.no-global-model", "no global model"):
            predict(project, config, algorithm, state, which)
        return
    journal = {site: len(entries(journal_path(project / site, "r1"))) for site in SITES}
    ledger = predict(project, config, algorithm, state, which)
    last, sim = simulated(config)
    sim.begin(ROUNDS)
    algorithm.deploy(last.state, sim, which)
    for site, client in zip(SITES, sim.clients, strict=True):
        found, graph = told(project, site), sim.graphs[client]
        expected = probabilities(algorithm.net, sim.snapshot()[client]["model"], graph)[graph.real].numpy()
        assert np.stack([found[f"p_{c}"] for c in range(10)], 1) == pytest.approx(expected, abs=1e-4)
        assert (found["predicted"] == expected.argmax(1)).all()
        assert private(project, site).keys() == before[site].keys()
        left = entries(journal_path(project / site, "r1"))[journal[site] :]
        assert {key.key for entry in left for key in entry.keys} == {*FORM} - {TARGET, RELATIONS}
    up = [row for row in ledger.table().to_pylist() if row["direction"] == "up" and row["step"] != "(join)"]
    assert up
    assert {row["key"] for row in up} == {FRAMING}


def test_sites_predict_whose_evaluations_are_used_up(project: Path) -> None:
    """What predicts is the step that scores; nothing of scores leaves."""
    for site in SITES:
        set_policy(project, f"evaluations = {ROUNDS}", site)
    predict(project, *trained(project))
    assert all((project / site / "runs/r1/predictions.parquet").exists() for site in SITES)


def test_a_step_that_scores_instead_is_refused(project: Path) -> None:
    """The dishonest counterpart: without the word that keeps the model at home, scores would leave."""
    config, algorithm, state = trained(project)
    fed = Flare(InProcess(project), SITES, ledger=Ledger(), seed=config.general.seed)
    fed.join(config.plain(), "r1", ROUNDS, predict=True)
    fed.restore({"round": ROUNDS})
    fed.begin(ROUNDS)
    with refusal("clients-missing", "run's"):
        fed.map(algorithm.score, *algorithm.evaluation_message(state, fed))
    assert not (project / "bank-a/runs/r1/predictions.parquet").exists()
    sent = [row for row in fed.ledger.table().to_pylist() if row["direction"] == "up"]
    assert not any(str(row["key"]).startswith("own/") for row in sent)


def customers(folder: Path, seed: int, nodes: int = 40) -> None:
    """Tables whose class shows in the second feature."""
    rng = np.random.default_rng(seed)
    y = np.arange(nodes) % 2
    x = np.stack([rng.normal(size=nodes), 3 * y + rng.normal(size=nodes)], 1)
    words = [f"{('low', 'high')[y[i]]},{('train', 'val', 'test')[i % 3]}" for i in range(nodes)]
    rows = [f"c{i},{words[i]},{x[i, 0]:.4f},{x[i, 1]:.4f}" for i in range(nodes)]
    folder.mkdir(exist_ok=True)
    (folder / "nodes.csv").write_text("\n".join(["id,label,split,age,debt", *rows]) + "\n")
    edges = "\n".join(f"c{i},c{i + 2}" for i in range(nodes - 2))
    (folder / "edges.csv").write_text(f"source,target\n{edges}\n")


@pytest.fixture
def banks(project: Path) -> Path:
    """The project with tables of named classes."""
    for at, site in enumerate(SITES):
        customers(project / site / "data", at)
        write_site_file(project / site / SITE_FILE, {"path": "data", "labels": ["low", "high"], "normalize": "row"})
    (project / "server/test.npz").unlink(missing_ok=True)
    return project


def test_new_customers_are_predicted_beside_the_old(banks: Path) -> None:
    config, algorithm, state = trained(banks)
    for name, line in (("nodes", "new,,,0.1,3.2\n"), ("edges", "new,c1\n")):
        with open(banks / f"bank-b/data/{name}.csv", "a") as file:
            file.write(line)
    predict(banks, config, algorithm, state)
    assert len(told(banks, "bank-a")["id"]) == 40
    found = told(banks, "bank-b")
    assert found.keys() == {"client", "node", "id", "split", "true", "predicted", "p_low", "p_high"}
    assert found["id"].tolist() == [*(f"c{i}" for i in range(40)), "new"]
    assert found["split"][-1] == ""
    assert found["predicted"][-1] in ("low", "high")
    with open(banks / "bank-b/data/nodes.csv") as file:
        classes = [line.split(",")[1] for line in file][1:]
    assert [own or "" for own in found["true"]] == classes  # the new one's is not known


def swap(banks: Path, site: str = "bank-b") -> None:
    """Swap the names of two columns in a site's table."""
    path = banks / site / "data/nodes.csv"
    path.write_text(path.read_text().replace("age,debt", "debt,age"))


def settle(banks: Path, site: str, **changed: Any) -> None:
    """Change settings in a site's file."""
    about = {"path": "data", "labels": ["low", "high"], "normalize": "row"} | changed
    write_site_file(banks / site / SITE_FILE, about)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (swap, r"features: not as in the run r1. Give the columns ['age', 'debt'], in this order."),
        (lambda banks: shutil.rmtree(banks / "bank-b/runs"), "the run r1 was not trained here"),
        (
            lambda banks: [settle(banks, site, labels=["high", "low"]) for site in SITES],
            r"classes: not as in the run r1. Write labels = ['low', 'high'] into site.toml.",
        ),
        (
            lambda banks: settle(banks, "bank-b", normalize="none"),
            r"scaling: not as in the run r1. Write normalize = 'row' into site.toml.",
        ),
    ],
)
def test_data_that_the_models_do_not_fit_is_refused(
    banks: Path, caplog: pytest.LogCaptureFixture, change: Any, said: str
) -> None:
    config, algorithm, state = trained(banks)
    change(banks)
    with refusal("clients-missing", "bank-b:"):
        predict(banks, config, algorithm, state)
    assert any(said in record.getMessage() for record in caplog.records)
    assert not (banks / "bank-b/runs/r1/predictions.parquet").exists()


def predict_as_the_server_does(project: Path, config: Any, algorithm: Any, state: Any, which: str = "personal") -> None:
    """The server's part of `fedweave sites predict`, with the sites in this process."""
    folder = project / "server/runs/r1"
    (folder / "checkpoint").mkdir(parents=True, exist_ok=True)
    (folder / SUMMARY).write_text('{"rounds": 2, "metrics": {}}')
    Checkpoint(round=ROUNDS, state=state, fed={"round": ROUNDS}).save(folder / CHECKPOINT)
    link, server = InProcess(project), Server("r1", SITES, to_toml(config.plain()), which)
    _predict(lambda: server._join(config, project / "server", folder, link), folder, which)


@pytest.mark.parametrize("quorum", [0.6, 1.0])
def test_a_site_that_was_asked_and_did_not_write_is_named_and_keeps_no_older_file(banks: Path, quorum: float) -> None:
    """With two columns swapped at one site, whatever the quorum of training: the others have new scores, that one none,
    and the scores of before are not where new ones belong."""
    config, algorithm, state = trained(banks, quorum=quorum)
    predict_as_the_server_does(banks, config, algorithm, state)
    first = {site: pq.read_table(banks / site / "runs/r1/predictions.parquet") for site in SITES}
    swap(banks)
    customers(banks / "bank-a/data", 7)
    with refusal("user", "1 of 3", "bank-b:", "bank-a, bank-c"):
        predict_as_the_server_does(banks, config, algorithm, state)
    assert not (banks / "bank-b/runs/r1/predictions.parquet").exists()
    assert pq.read_table(banks / "bank-b/runs/r1" / EARLIER).equals(first["bank-b"])
    assert not pq.read_table(banks / "bank-a/runs/r1/predictions.parquet").equals(first["bank-a"])
    assert pq.read_table(banks / "bank-c/runs/r1/predictions.parquet").equals(first["bank-c"])


def test_a_site_without_the_model_that_is_asked_for_is_named(banks: Path) -> None:
    """Of FedAvg with one client a round, those that were never called have no trained model."""
    config, algorithm, state = trained(banks, algorithm_settings={"participation": 0.1})
    with pytest.raises(UserError, match=r"1 of 3 .*bank-.:"):
        predict_as_the_server_does(banks, config, algorithm, state, "trained")


def test_scores_of_a_model_that_trains_on_are_set_aside(banks: Path) -> None:
    config, algorithm, state = trained(banks)
    predict(banks, config, algorithm, state)
    assert (banks / "bank-a/runs/r1/predictions.parquet").exists()
    fed = Flare(InProcess(banks), SITES, ledger=Ledger(), seed=config.general.seed)
    fed.join(config.plain(), "r1", ROUNDS)
    assert not (banks / "bank-a/runs/r1/predictions.parquet").exists()


@pytest.mark.slow
def test_the_command_fails_where_a_site_wrote_nothing(owned: Path, tmp_path: Path) -> None:
    """Real processes, with a quorum that training needs no third site for."""
    for at, site in enumerate(SITES):
        customers(owned / site / "data", at)
        write_site_file(owned / site / SITE_FILE, {"path": "data", "labels": ["low", "high"], "normalize": "row"})
    (owned / "server/test.npz").unlink(missing_ok=True)
    run(experiment("fedavg", rounds=2, quorum=0.6), owned, tmp_path / "out", False, lambda now: None)
    command = ["sites", "predict", str(tmp_path / "out"), "--sites", str(owned)]
    commands.run(*command)
    paths = {site: owned / site / "runs" / number_of(tmp_path / "out") / PREDICTIONS for site in SITES}
    before = {site: path.stat().st_mtime_ns for site, path in paths.items()}
    swap(owned)
    told = commands.run(*command, code=2)
    check_facts(told, "bank-b:")
    check_facts(told, "columns")  # from the log of the site, whose folder is on this machine
    assert not paths["bank-b"].exists()
    assert all(paths[site].stat().st_mtime_ns > before[site] for site in ("bank-a", "bank-c"))


@pytest.mark.parametrize("scaling", NORMALIZE)
def test_where_parties_scale_over_the_nodes_these_are_to_be_the_same_ones(scaling: str) -> None:
    """As many others would be scaled to other numbers than those that the models were trained on."""
    edges, y = np.zeros((2, 0), np.int64), np.array([0, 1])
    own, others = (Dataset("own", np.eye(2, dtype=np.float32), edges, y, 2, ids=("a", last)) for last in "bc")
    before, now = (PartyData(Path("own"), data, None, (), scaling).marks(data) for data in (own, others))
    assert (before["scaled over nodes"] != now["scaled over nodes"]) == (scaling in OVER_NODES)
    assert before["features"] == now["features"]


@pytest.mark.parametrize(
    ("evaluation", "positive"),
    [(Judging("average_precision"), 0), (Judging("auc", threshold="f1"), 0), (Judging("auc", 1), 1)],
)
def test_without_a_common_class_a_site_flags_its_own_rare_one_by_hand(evaluation: Judging, positive: int) -> None:
    """One of ten training examples is of class 0. In the validation set it is more probable than the others."""
    y = np.array([0] + [1] * 9 + [0, 1, 1])
    masks = np.zeros((3, 13), bool)
    masks[0, :10], masks[1, 10:] = True, True
    p = torch.tensor([0.5] * 10 + [0.9, 0.2, 0.1])  # of class 0
    data = Dataset("own", np.zeros((13, 1), np.float32), np.zeros((2, 0), np.int64), y, 2, public=masks)
    found = local_flagging(evaluation, data, torch.stack([p, 1 - p], 1))
    assert found is not None
    assert found.positive == positive
    if positive == 0:
        assert found.threshold == pytest.approx((0.9 + 0.2) / 2)
    common = local_flagging(evaluation, data, torch.stack([p, 1 - p], 1), 1)  # as at all other sites
    assert common is not None
    assert common.positive == 1

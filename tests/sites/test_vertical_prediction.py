"""Joint prediction between sites: the simulation's numbers, also for new nodes, and they stay with their owners."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.core.ledger import Ledger
from fedweave.core.tree import Tree
from fedweave.core.types import PREDICTION
from fedweave.experiment.rounds import train
from fedweave.sites.flare.federation import Flare
from fedweave.sites.flare.order import Order
from tests.contract.federations import algorithm as made
from tests.refusals import refusal
from tests.sites.projects import SITES, InProcess, bring, experiment, joined, private, simulated, tables
from tests.sites.test_vertical import rewrite


def trained(project: Path, tmp_path: Path, scaling: str = "standard", **settings: Any) -> tuple[Any, Any, Tree]:
    """The experiment, its algorithm and the server's state after three rounds at the sites."""
    sections: Any = tables(tmp_path / "data")
    sections["data"]["normalize"] = scaling
    config = experiment("glasu", rounds=3, algorithm_settings={"optimizer": "sgd", "lr": 0.5} | settings, **sections)
    bring(project, tmp_path / "data")
    for site in SITES:
        rewrite(project / site / "site.toml", "normalize = .*", f'normalize = "{scaling}"')
    fed, algorithm, _ = joined(project, config)
    *_, last = train(algorithm, fed, 3)
    fed.snapshot()
    return config, algorithm, last.state


def predict(project: Path, config: Any, algorithm: Any, state: Tree, run: str = "r1") -> Ledger:
    """Predict with the models of the run, in processes that have just begun."""
    fed = Flare(InProcess(project), SITES, ledger=Ledger(), seed=config.general.seed)
    fed.join(config.plain(), run, 3, vertical=True, predict=True)
    fed.restore({"round": 3})
    fed.begin(3)
    algorithm.predict(state, fed)
    return fed.ledger


def told(project: Path, site: str = "bank-a") -> dict[str, np.ndarray]:
    table = pq.read_table(project / site / "runs/r1/predictions.parquet")
    return {name: np.array(table[name].to_pylist()) for name in table.column_names}


@pytest.mark.often("settings0")
@pytest.mark.parametrize("settings", [{}, {"secure_sum": True}, {"exchanges": 1}])
def test_sites_predict_what_the_simulation_predicts_and_keep_it(
    project: Path, tmp_path: Path, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fedweave")
    config, algorithm, state = trained(project, tmp_path, **settings)
    before = {site: private(project, site) for site in SITES}
    ledger = predict(project, config, algorithm, state)
    last, sim = simulated(config)
    algorithm.predict(last.state, sim)
    found = told(project)
    expected = sim.snapshot()["bank-a"]["prediction"][:60].numpy()
    assert np.stack([found[f"p_c{c}"] for c in range(3)], 1) == pytest.approx(expected, abs=1e-5)
    assert found["predicted"].tolist() == [f"c{number}" for number in expected.argmax(1)]
    assert found["id"].tolist() == sorted(f"person{i}" for i in range(60))
    assert not [site for site in SITES[1:] if (project / site / "runs/r1/predictions.parquet").exists()]
    assert private(project, "bank-a").keys() == before["bank-a"].keys()
    said = "20 of 80 nodes get no score: not all parties have them"
    assert said in caplog.text
    steps = {(row["step"], row["key"]) for row in ledger.table().to_pylist() if row["direction"] == "up"}
    assert {key for step, key in steps if step.startswith("GLASU.")} <= {"h", "beyond", "(names and framing)"}


def newcomers(project: Path) -> None:
    """Five more nodes at every site, without label and split, each a neighbor of person 0."""
    for site in SITES:
        for name in ("nodes", "edges"):
            path = project / site / f"data/{name}.csv"
            columns = path.read_text().splitlines()[0].split(",")
            cells = {"id": "new{}", "source": "new{}", "target": "person0", "split": "", "label": ""}
            rows = [",".join(cells.get(column, "0.5") for column in columns).format(i) for i in range(5)]
            path.write_text(path.read_text() + "\n".join(rows) + "\n")


def test_a_job_that_predicts_has_each_step_once_after_the_round_whose_models_predict() -> None:
    """However many rounds the server says that there are: it could have representations of inputs of its choice."""
    order = Order(made("glasu", exchanges=1).calls(3), 5, 9, predict=True)
    order.admit("GLASU.infer_full", 5, 0)
    for round in (4, 5, 6, 9):
        with refusal("call-refused", "algorithm's order:", "GLASU.predict_proba"):
            order.admit("GLASU.infer_full", round, 0)
    order.admit("GLASU.predict_proba", 5, 0)
    assert order.purpose == PREDICTION
    with refusal("call-refused", "nothing more is expected in this job"):
        order.admit("GLASU.predict_proba", 6, 0)


@pytest.mark.slow
def test_new_nodes_are_predicted_beside_the_old(project: Path, tmp_path: Path) -> None:
    config, algorithm, state = trained(project, tmp_path, scaling="none")
    predict(project, config, algorithm, state)
    old = told(project)
    newcomers(project)
    predict(project, config, algorithm, state)
    both = told(project)
    assert both["id"].tolist() == sorted([*old["id"].tolist(), *(f"new{i}" for i in range(5))])
    new = [both["p_c0"][both["id"] == f"new{i}"][0] for i in range(5)]
    assert new == pytest.approx([new[0]] * 5)
    moved = [
        abs(p - both["p_c0"][both["id"] == node][0]) > 1e-6 for node, p in zip(old["id"], old["p_c0"], strict=True)
    ]
    assert moved[old["id"].tolist().index("person0")]


@pytest.mark.often("<lambda>-features: not as in the run r1. Give the columns ['f0', 'f1'], in this order.")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (newcomers, "scaled over nodes: not as in the run r1. Scale the features yourself"),
        (
            lambda project: rewrite(project / "bank-b/data/nodes.csv", "id,split,f0,f1", "id,split,f1,f0"),
            r"features: not as in the run r1. Give the columns ['f0', 'f1'], in this order.",
        ),
        (lambda project: shutil.rmtree(project / "bank-b/runs"), "the run r1 was not trained here"),
    ],
)
def test_data_that_the_models_do_not_fit_is_refused(
    project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Any, said: str
) -> None:
    config, algorithm, state = trained(project, tmp_path)
    change(project)
    with refusal("clients-missing", "bank-b:"):
        predict(project, config, algorithm, state)
    assert any(said in record.getMessage() for record in caplog.records)
    assert not (project / "bank-a/runs/r1/predictions.parquet").exists()

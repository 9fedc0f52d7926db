"""What a run leaves at a site scores there, alone: the numbers of `sites predict` and of the simulation."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.apply.drift import drift
from fedweave.apply.scorer import Scorer, scorer_at
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.experiment.runs.files import COLUMNS, HISTOGRAMS, PREDICTIONS, SCORER
from fedweave.experiment.runs.outputs import probabilities
from fedweave.metrics.selection import Flagging
from fedweave.sites.flare.journal import entries, journal_path
from fedweave.sites.flare.sitefile import SITE_FILE, write_site_file
from fedweave.sites.operation.running import predict as predict_at_sites
from fedweave.sites.operation.running import run
from tests import commands
from tests.refusals import check_facts, refusal
from tests.sites.projects import SITES, experiment, joined, make_project, processes, simulated
from tests.sites.test_prediction_at_home import ROUNDS, banks, customers, predict, told, trained

__all__ = ["banks"]


def scores(table: Any, classes: Any) -> np.ndarray:
    """[e, c]."""
    return np.stack([table[f"p_{name}"].to_numpy() for name in classes], 1)


@pytest.mark.parametrize(("name", "how"), [("fedavg", "each"), ("fedavg", "sum"), ("ditto", "each")])
def test_a_run_leaves_the_simulations_model_at_each_site(project: Path, name: str, how: str) -> None:
    """By its last evaluation, without any prediction; and nothing more leaves than before."""
    config, algorithm, _ = trained(project, name, algorithm_settings={"scores": "sum"} if how == "sum" else {})
    last, sim = simulated(config)
    sim.begin(ROUNDS)
    algorithm.deploy(last.state, sim, "personal")
    for site, client in zip(SITES, sim.clients, strict=True):
        expected = probabilities(algorithm.net, sim.snapshot()[client]["model"], sim.graphs[client])
        scorer = scorer_at(project / site)
        table = scorer.score(project / site / "data.npz")
        real = sim.graphs[client].real
        assert scores(table, range(10)) == pytest.approx(expected[real].numpy(), abs=1e-5)
        assert (scorer.client, scorer.round) == (site, ROUNDS)
        sent = {key.key for entry in entries(journal_path(project / site, "r1")) for key in entry.keys}
        assert "model" not in sent


@pytest.mark.parametrize("how", ["row", "auto"])
def test_a_site_scores_what_sites_predict_gives_it(banks: Path, how: str) -> None:
    """Old and new customers, the flags of all sites' threshold among them; later with no project around."""
    for site in SITES:
        write_site_file(banks / site / SITE_FILE, {"path": "data", "labels": ["low", "high"], "normalize": how})
    document = experiment("fedavg", rounds=ROUNDS).plain()
    config = resolve({**document, "evaluation": {"metric": "average_precision", "positive": "high"}})
    fed, algorithm, _ = joined(banks, config)
    *_, last = train(algorithm, fed, ROUNDS)
    fed.snapshot()
    before = Scorer.load(banks / "bank-a/runs/r1" / SCORER)
    for at, site in enumerate(SITES):
        customers(banks / site / "data", at, nodes=60)
    predict(banks, config, algorithm, last.state, flags=Flagging(1, 0.4))
    for site in SITES:
        expected = told(banks, site)
        table = scorer_at(banks / site).score(banks / site / "data")
        assert table["id"].to_pylist() == expected["id"].tolist()
        for name in ("p_low", "p_high", "score", "threshold"):
            np.testing.assert_allclose(table[name].to_numpy(), expected[name], atol=1e-5)
        assert table["flagged"].to_pylist() == expected["flagged"].tolist()
    assert before.flagging.threshold != 0.4
    expected = told(banks, "bank-a")
    shutil.copy(banks / "bank-a/runs/r1" / SCORER, banks / "one.safetensors")
    nodes = banks / "new"
    shutil.copytree(banks / "bank-a/data", nodes)
    shutil.rmtree(banks / "bank-a")
    table = scorer_at(banks / "one.safetensors").score(nodes)
    np.testing.assert_allclose(table["score"].to_numpy(), expected["score"], atol=1e-5)


def test_a_site_keeps_histograms_and_sees_drift(banks: Path) -> None:
    """Of its own data, for its own eyes: nothing of them is in the scorer, and none leaves."""
    for site in SITES:
        write_site_file(banks / site / SITE_FILE, {"path": "data", "labels": ["low", "high"], "normalize": "auto"})
    trained(banks)
    folder = banks / "bank-a/runs/r1"
    assert (folder / HISTOGRAMS).stat().st_mode & 0o077 == 0
    same = drift(banks / "bank-a", banks / "bank-a/data")
    assert {"age", "debt"} <= {one.name for one in same.shifts}
    assert max(one.stability for one in same.shifts if one.of == "node") < 1e-9
    new = Path(shutil.copytree(banks / "bank-a/data", banks / "new"))
    head, *rows = (new / "nodes.csv").read_text().splitlines()
    at = head.split(",").index("age")
    cells = [row.split(",") for row in rows]
    more = [[*row[:at], str(float(row[at]) + 1000), *row[at + 1 :]] for row in cells]
    (new / "nodes.csv").write_text("\n".join([head, *map(",".join, more)]) + "\n")
    assert "age" in {one.name for one in drift(banks / "bank-a", new).alarms}
    sent = {key.key for entry in entries(journal_path(banks / "bank-a", "r1")) for key in entry.keys}
    assert not [key for key in sent if "histogram" in key]
    (folder / HISTOGRAMS).unlink()
    with refusal("drift.none"):
        drift(banks / "bank-a", new)


def test_histograms_that_cannot_be_made_end_no_run(banks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def infinite(*about: object) -> None:
        raise ValueError("Out of range float values are not JSON compliant")

    monkeypatch.setattr("fedweave.sites.flare.predicted.reference", infinite)
    trained(banks)
    folder = banks / "bank-a/runs/r1"
    assert (folder / SCORER).exists()
    assert not (folder / HISTOGRAMS).exists()


def test_columns_that_the_site_had_not_are_refused(banks: Path) -> None:
    trained(banks)
    nodes = banks / "bank-b/data/nodes.csv"
    nodes.write_text(nodes.read_text().replace("age,debt", "age,loan"))
    with refusal("data", "debt"):
        scorer_at(banks / "bank-b").score(banks / "bank-b/data")


def test_a_later_run_without_a_model_is_named(banks: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained(banks)
    runs = banks / "bank-a/runs"
    scorer_at(banks / "bank-a")
    assert not [text for text in caplog.messages if "r2" in text]
    (runs / "r2").mkdir()
    shutil.copyfile(runs / "r1" / COLUMNS, runs / "r2" / COLUMNS)
    late = (runs / "r1" / SCORER).stat().st_mtime + 60
    os.utime(runs / "r2" / COLUMNS, (late, late))
    scorer_at(banks / "bank-a")
    check_facts(caplog.text, "r1", "r2")


def test_a_model_that_cannot_be_kept_ends_no_run(project: Path) -> None:
    """AdaFGL puts two models of its own together."""
    trained(project, "adafgl")
    with refusal("score.no-model"):
        scorer_at(project / "bank-a")


@pytest.mark.slow
def test_processes_leave_a_model_that_scores_alone(tmp_path: Path) -> None:
    """Real processes: the site's folder, and the export of `sites export`, give what `sites predict` gives."""
    banks = make_project(tmp_path / "banks")
    for at, site in enumerate(SITES):
        customers(banks / site / "data", at)
        write_site_file(banks / site / SITE_FILE, {"path": "data", "labels": ["low", "high"]})
    (banks / "server/test.npz").unlink(missing_ok=True)
    with processes(banks) as running:
        run(experiment(rounds=ROUNDS), running, tmp_path / "run", False, lambda now: None)
        predict_at_sites(running, tmp_path / "run", lambda now: None, "global")
    site = banks / "bank-a"
    [written] = site.glob(f"runs/*/{PREDICTIONS}")
    expected = scores(pq.read_table(written), ("low", "high"))
    out = ["--out", str(tmp_path / "export")]
    commands.run("sites", "export", tmp_path / "run", "--site", site, *out)
    assert scorer_at(site).run == scorer_at(tmp_path / "export").run
    for place in (site, tmp_path / "export"):
        scored = scorer_at(place).score(site / "data")
        np.testing.assert_allclose(scores(scored, ("low", "high")), expected, atol=1e-5)

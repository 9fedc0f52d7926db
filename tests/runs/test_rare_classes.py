"""Where a class is rare, average precision judges and not accuracy, and a sentence says so: on terminals, pages, in
sweeps."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedweave.metrics.ranking import threshold
from fedweave.metrics.selection import of_result
from fedweave.sweeps import scheduler
from tests.refusals import check_facts
from tests.runs.rare import accounts
from tests.runs.test_cases_of_scores import called
from tests.sweep.test_sweep import in_process

SAID = "So the selection metric is average precision"


@pytest.fixture(scope="module", params=[0.04, 0.3])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[bool, Path, str]:
    """Whether a class is rare, the folder of a run with FedAvg and one alone, and what the first one said."""
    root = tmp_path_factory.mktemp("banks")
    experiment = accounts(root, request.param)
    said = called("run", experiment, "--out", root / "fedavg")
    assert said.exit_code == 0, said.output
    assert called("run", experiment, "--algorithm", "local", "--out", root / "local").exit_code == 0
    return request.param < 0.25, root, " ".join(said.output.split())


@pytest.mark.often("0.04")
def test_the_terminal(runs: tuple[bool, Path, str]) -> None:
    rare, root, said = runs
    found = json.loads((root / "fedavg" / "summary.json").read_text())["metrics"]
    if rare:
        assert found["scores/rarest"] == 6 / 150  # of 150 train nodes of which 12 / 2 are of class 1
        assert found["judged/average_precision"] == 1
    assert ("scores/rarest" in found, SAID in said, "s/round, average precision 0" in said) == (rare, rare, rare)
    judged = "average precision" if rare else "accuracy"
    check_facts(said, f"{judged}")
    assert ("s/round, accuracy 0" in said) == (not rare)
    assert found["best_val/val/average_precision" if rare else "best_val/val/accuracy"] > 0
    assert found["fairness/worst_average_precision" if rare else "fairness/worst_accuracy"] > 0
    assert found["pooled/threshold"] == 0.5 or rare
    assert ("caught at 1 % of alerts: " in said, "of 3 positives among 1 alerts" in said) == (rare, rare)
    assert ("3 test examples of all members are of the positive class, 1 at the member" in said) == rare


def test_pages(runs: tuple[bool, Path, str]) -> None:
    rare, root, _ = runs
    for name, given in {"one": ["fedavg"], "two": ["fedavg", "local"]}.items():
        page = root / f"{name}.html"
        assert called("report", *(root / run for run in given), "-o", page).exit_code == 0
        text = page.read_text()
        assert (SAID in text) == rare
        judged = "average precision" if rare else "accuracy"
        check_facts(text, f"{judged}", "worst member")
        summary = text[text.index('<section id="summary">') :].partition("</section>")[0]
        first, _, further = summary.partition("All other metrics")
        alerts, loss = "Recall at 1 % of alerts, members ranked together", "Loss, all examples"
        assert alerts in first
        assert (loss in further, loss in first) == (rare, not rare)
        assert ("constant prediction" in text.partition("<details")[0]) == (not rare)
        if rare:
            notes = dict(re.findall(r'scope="row"[^>]*>\s*([^<]*?)\s*<span class="note">([^<]*)', summary))
            assert all("more probable class" in notes[f"Recall, {place}"] for place in ("all examples", "member mean"))
            assert "threshold" in notes["Recall, members ranked together"]
        leads = " ".join(re.findall('<p class="(?:lead|verdict)[^"]*">([^<]*)', text))
        assert ("members gain" in leads or "gains" in leads) == (name == "two")
        assert judged in leads.lower()
        assert ("aught at 1 % of alerts" in leads, bool(re.search(r"alerts: .*\d of 3", leads))) == (rare, rare)


def test_comparing(runs: tuple[bool, Path, str]) -> None:
    rare, root, _ = runs
    said = " ".join(called("compare", root / "local", root / "fedavg").output.split())
    assert ("Caught at 1 % of alerts: all members together, fedavg" in said) == rare
    assert ("each member by itself, local" in said) == rare


@pytest.mark.often("0.04")
def test_a_sweep(runs: tuple[bool, Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    rare, root, _ = runs
    monkeypatch.setattr(scheduler, "execute", in_process)
    said = called("sweep", root / "e.toml", "--seeds", "0-1", "--out", root / "sweep")
    assert said.exit_code == 0, said.output
    for text in (said.output, (root / "sweep" / "sweep.md").read_text()):
        check_facts(text, "chosen round")
        assert ("Average precision, mean" in text) == rare
        assert ("recall" in text) == rare


def test_predictions_and_exports_carry_the_threshold(runs: tuple[bool, Path, str]) -> None:
    """Who is flagged is who the summary says is caught; where no class is looked for, nobody is flagged."""
    rare, root, _ = runs
    run, summary = root / "fedavg", of_result(json.loads((root / "fedavg" / "summary.json").read_text()))
    assert called("predict", run, "-o", root / "flagged.parquet").exit_code == 0
    table = pq.read_table(root / "flagged.parquet")
    assert ({"score", "flagged", "threshold"} <= set(table.column_names)) == rare
    assert called("export", run, "-o", root / "export").exit_code == 0
    about = json.loads((root / "export" / "model.json").read_text())
    assert ("threshold" in about) == rare
    if rare:
        assert about["threshold"] == table["threshold"][0].as_py() == summary["pooled/threshold"]
        rows = [row for row in table.to_pylist() if row["split"] == "test"]
        positive = [row["flagged"] for row in rows if str(row["true"]) in ("1", "bad")]
        assert sum(positive) / len(positive) == pytest.approx(summary["pooled/recall"])
        check_facts((root / "export" / "README.md").read_text(), "flagged")


def test_models_of_ones_own_flag_by_each_members_own_validation_examples(runs: tuple[bool, Path, str]) -> None:
    rare, root, _ = runs
    assert called("predict", root / "local", "-o", root / "own.parquet").exit_code == 0
    table = pq.read_table(root / "own.parquet")
    assert ("flagged" in table.column_names) == rare
    if not rare:
        return
    rows = table.to_pylist()
    for client in sorted({row["client"] for row in rows}):
        own = [row for row in rows if row["client"] == client]
        val = [row for row in own if row["split"] == "val"]
        truth = np.array([str(row["true"]) in ("1", "bad") for row in val])
        at = threshold(np.array([row["score"] for row in val], np.float64), truth, "f1")
        assert {row["threshold"] for row in own} == {at}
        assert called("export", root / "local", "--client", client, "-o", root / f"of {client}").exit_code == 0
        assert json.loads((root / f"of {client}" / "model.json").read_text())["threshold"] == at


def test_the_chosen_round_catches_some_of_the_rare_class(tmp_path: Path) -> None:
    """Whose more probable class is the frequent one nearly everywhere."""
    experiment = accounts(tmp_path, 0.04)
    given = ["--set", "rounds=30", "--set", "eval_every=5", "--set", "algorithm.lr=0.02"]
    given += ["--set", "data.normalize=none"]  # scaled columns catch fewer of them in so few rounds
    assert called("run", experiment, *given, "--out", tmp_path / "run").exit_code == 0
    found = json.loads((tmp_path / "run" / "summary.json").read_text())["metrics"]
    assert found["best_val/pooled/recall"] > found["best_val/global/recall"]
    assert found["best_val/pooled/recall"] > 0

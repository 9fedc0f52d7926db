"""The lenders' page: a tiny run in three ways, its numbers against its counts, and what is said without the data."""

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from fedweave.errors import DataError
from tests.refusals import check_facts

EXAMPLE = Path(__file__).parents[2] / "examples" / "credit"
TINY = """
seed = 0
rounds = 4
eval_every = 2
data = {name = "synthetic", nodes = 300, classes = 2, features = 8, degree = 6.0, sensitive = true}
partition = {name = "louvain", clients = 3, train = 0.2, val = 0.2, test = 0.6}
model = {name = "gcn", hidden = 4, layers = 2, linear = true}
algorithm = {local_steps = 1, lr = 0.05}
"""


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, ModuleType]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    modules = {name: importlib.import_module(name) for name in ("training", "page", "story")}
    (tmp_path / "tiny.toml").write_text(TINY)
    monkeypatch.setattr(modules["training"], "EXPERIMENT", tmp_path / "tiny.toml")
    return modules


def outcome(example: dict[str, ModuleType], counts: Any, auc: Any) -> Any:
    counts = np.array(counts, float)
    sizes = np.ones(len(counts), np.int64)
    scores = {"accuracy": np.array(auc), "auc": np.array(auc)}
    return example["training"].Outcome(scores, counts, sizes, sizes, (), 1)


def test_one_command_makes_a_page_that_needs_nothing_else(example: dict[str, ModuleType], tmp_path: Path) -> None:
    page = tmp_path / "deep" / "page.html"
    assert example["story"].main(["--out", str(page)]) == 0
    html = page.read_text()
    assert html.count('class="panels"') == 3
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=", html)
    sentences = re.sub(r"<script.*?</script>", "", html, flags=re.S)
    check_facts(sentences, "model weights")
    assert not re.search(r"\bnan\b", re.sub(r"<[^>]+>", " ", sentences).lower())


def test_numbers_follow_from_counts(example: dict[str, ModuleType]) -> None:
    # by group, outcome and prediction: of 10 and 20 people 6 and 5 are approved
    found = outcome(example, [[[[2, 1], [2, 5]], [[10, 2], [5, 3]]]], [0.7])
    np.testing.assert_allclose(found.approved, [0.6, 0.25])
    np.testing.assert_allclose(found.approved_payers, [5 / 7, 3 / 8])
    assert (found.approval, found.bad_rate, found.refused_defaults) == (11 / 30, 3 / 11, 12 / 15)
    assert found.gaps["sp"] == pytest.approx(0.35)
    assert found.payers == [15 / 30]


@pytest.mark.slow
def test_the_error_of_an_auc_is_that_of_repeated_draws(example: dict[str, ModuleType]) -> None:
    """Hanley and McNeil's formula holds for exponential scores, of which these are."""
    rng, bad, good = np.random.default_rng(0), 40, 120
    y = np.repeat([0, 1], [bad, good])
    drawn = [roc_auc_score(y, np.concatenate([rng.exponential(1, bad), rng.exponential(2, good)])) for _ in range(400)]
    counts = [[[[bad, 0], [good, 0]], [[0, 0], [0, 0]]]]
    [error] = outcome(example, counts, [np.mean(drawn)]).auc_error
    assert error == pytest.approx(np.std(drawn), rel=0.1)


def test_what_left_is_the_ledgers_and_nothing_where_all_train_alone(example: dict[str, ModuleType]) -> None:
    alone, joined = (example["training"].train_lenders(name) for name in ("local", "fedavg"))
    assert alone.total == 0
    sent = {it.key: it for it in joined.sent if not it.judged}
    assert set(sent) == {"update", "n"}
    rounds, lenders, weights = 4, len(joined.customers), 8 * 4 + 4 + 4 * 4 + 4 + 4 * 2 + 2
    assert sent["update"].messages == rounds * lenders
    assert sent["update"].bytes == rounds * lenders * weights * 4
    assert joined.customers.sum() == 300


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["local", "fedavg"])
def test_the_round_is_each_lenders_own_alone_and_common_together(
    example: dict[str, ModuleType], algorithm: str
) -> None:
    trained = example["training"].train_lenders
    looks = [trained(algorithm, [setting]).scores["auc"] for setting in ("rounds=2", "eval_every=4")]
    chosen = trained(algorithm).scores["auc"]
    same = np.stack([chosen == look for look in looks])
    assert same.any(0).all()
    assert algorithm == "local" or same.all(1).any()


def test_gains_within_chance_are_not_counted(example: dict[str, ModuleType]) -> None:
    counts = [[[[100, 0], [100, 0]], [[100, 0], [100, 0]]]] * 3
    alone, joined = (outcome(example, counts, auc) for auc in ([0.6, 0.6, 0.6], [0.9, 0.62, 0.3]))
    assert example["page"].better(alone, joined) == {"up": 1, "down": 1, "same": 1}


def test_the_verdict_compares_gaps_with_chance(example: dict[str, ModuleType]) -> None:
    unfair = outcome(example, [[[[50, 50], [0, 100]], [[100, 0], [100, 0]]]], [0.7])
    assert "far more" in example["page"].verdict(unfair)["sp"]
    alike = outcome(example, [[[[50, 50], [50, 50]], [[50, 50], [50, 50]]]], [0.7])
    assert "no more" in example["page"].verdict(alike)["sp"]
    nobody = outcome(example, [[[[50, 0], [50, 0]], [[50, 0], [50, 0]]]], [0.7])
    assert "all customers the same" in example["page"].verdict(nobody)["eo"]


def test_without_the_data_the_exit_code_is_2_and_the_remedy_is_named(
    example: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(example["training"], "EXPERIMENT", EXAMPLE / "lenders.toml")
    monkeypatch.setenv("FEDWEAVE_DATA", str(tmp_path))
    monkeypatch.setenv("FEDWEAVE_CACHE", str(tmp_path))
    with pytest.raises(DataError):
        example["training"].train_lenders("local")
    assert example["story"].main(["--out", str(tmp_path / "page.html")]) == 2
    error = capsys.readouterr().err
    check_facts(error, "credit.npz", "$FEDWEAVE_DATA")
    assert not (tmp_path / "page.html").exists()


def test_a_wrong_setting_is_the_users_mistake(
    example: dict[str, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert example["story"].main(["--set", "algorithm.nothing=1", "--out", str(tmp_path / "page.html")]) == 2
    assert capsys.readouterr().err

"""What clients brought to a global model: by hand, against independent arithmetic, and as the run itself measured."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fedweave.accounts.contributions import (
    check_repetition,
    indivisible_shares,
    leave_one_out_gains,
    measure_contributions,
    observe_rounds,
    over_rounds,
)
from fedweave.core import model as models
from fedweave.core.tree import map_leaves
from fedweave.errors import UserError
from fedweave.experiment import config
from fedweave.experiment.build import build
from fedweave.experiment.runs.reading import read_run
from fedweave.incentives.coalitions import copies, round_value
from tests.commands import run
from tests.refusals import check_facts, refusal

ROUNDS = 3
CONFIG = f"""
rounds = {ROUNDS}
[data]
name = "synthetic"
nodes = 300
classes = 3
features = 8
[partition]
name = "label_skew"
clients = 4
majors = 2
test_nodes = 10
[model]
hidden = 4
[engine]
threads = 1
dtype = "float64"
"""


def fedweave(*words: object, code: int = 0) -> str:
    return " ".join(run(*words, code=code).split())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("contributions")
    (folder / "config.toml").write_text(CONFIG)
    fedweave("run", folder / "config.toml", "--out", folder / "run", "--quiet")
    return folder / "run"


def test_shapley_values_of_a_round_add_up_to_what_the_run_measured(finished: Path) -> None:
    for metric, sign in (("accuracy", 1), ("loss", -1), ("macro_f1", 1)):
        table = measure_contributions(finished, "2,3", metric)
        curve = read_run(finished).curve(metric, "test", pooled=True)
        for number in (2, 3):
            rows = [row for row in table.to_pylist() if row["round"] == number]
            gain = sum(row["shapley"] for row in rows)
            assert gain == pytest.approx(sign * (curve[number] - curve[number - 1]), abs=1e-9)
            assert {row["error"] for row in rows} == {0}


def test_members_are_paid_by_the_model_that_the_run_was_judged_by(tmp_path: Path) -> None:
    """FedGCN's clients convolve in advance, so that their layers are others than on the global test. Without one,
    their own test examples are judged, by their layers."""
    (tmp_path / "config.toml").write_text(CONFIG.replace('name = "label_skew"', 'name = "louvain"').replace(
        "majors = 2\ntest_nodes = 10\n", ""
    ))  # fmt: skip
    fedweave("run", tmp_path / "config.toml", "--algorithm", "fedgcn", "--out", tmp_path / "run", "--quiet")
    assert build(config.read(tmp_path / "run" / "config.toml")[0]).fed.test is None
    table = measure_contributions(tmp_path / "run", "2,3", "loss")
    curve = read_run(tmp_path / "run").curve("loss", "test", pooled=True)
    for number in (2, 3):
        gain = sum(row["shapley"] for row in table.to_pylist() if row["round"] == number)
        assert gain == pytest.approx(curve[number - 1] - curve[number], abs=1e-9)


@pytest.mark.parametrize("parts", ['["sparse_masks"]', '["trained_model"]'])
def test_where_clients_are_judged_by_models_of_their_own_nobody_is_paid_by_another(parts: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(CONFIG)
    words = ["--set", f"algorithm.parts={parts}", "--out", tmp_path / "run", "--quiet"]
    fedweave("run", tmp_path / "config.toml", "--algorithm", "fedavg", *words)
    with refusal("user.not-judged"):
        measure_contributions(tmp_path / "run")


@pytest.mark.parametrize("total", [0.4, 1.5])
def test_all_clients_together_make_the_rounds_own_step(finished: Path, total: float) -> None:
    """Weights need not sum to 1 (FairGFL, q-FedAvg)."""
    built = build(config.read(finished / "config.toml")[0])
    *_, (_, round, _) = observe_rounds(built.algorithm, built.fed, ROUNDS)
    weights = total * round.weights
    w = map_leaves(torch.add, round.w, round.replies.weighted_sum("update", weights))
    test = built.fed.test
    mask = test.masks[2]
    before, after = (
        float(torch.nn.functional.cross_entropy(models.apply(built.algorithm.model, tree, test)[mask], test.y[mask]))
        for tree in (round.w, w)
    )
    value = round_value(replace(round, weights=weights), built.algorithm.model, [test], "loss")
    everyone = torch.ones(1, len(round.at), dtype=torch.bool)
    assert float(value(everyone)) == pytest.approx(before - after, abs=1e-6)


def test_a_weight_below_0_is_refused(finished: Path) -> None:
    built = build(config.read(finished / "config.toml")[0])
    *_, (_, round, _) = observe_rounds(built.algorithm, built.fed, ROUNDS)
    weights = torch.tensor([0.5, 0.5, -0.25, 0.25], dtype=torch.float64)
    with refusal("user.negative-weight", f"{round.replies.clients[2]}'s weight is -0.25"):
        round_value(replace(round, weights=weights), built.algorithm.model, [], "loss")


def test_a_round_by_hand(finished: Path, oracles: ModuleType) -> None:
    """Every coalition's model mixed and judged one by one, and the Shapley values of the reference arithmetic."""
    built = build(config.read(finished / "config.toml")[0])
    *_, (_, round, _) = observe_rounds(built.algorithm, built.fed, ROUNDS)
    replies, n, test = list(round.replies), round.replies.stack("n").numpy(), built.fed.test
    mask = test.masks[2]

    def worth(coalition: frozenset[int]) -> float:
        w = round.w
        for i in coalition:
            share = n[i] / sum(n[j] for j in coalition)
            w = map_leaves(lambda a, b, share=share: a + share * b, w, replies[i]["update"])
        return float((models.apply(built.algorithm.model, w, test)[mask].argmax(1) == test.y[mask]).double().mean())

    expected = oracles.shapley(range(4), worth)
    table = measure_contributions(finished)
    assert np.allclose(table["shapley"].to_numpy(), [expected[i] for i in range(4)], atol=1e-12)
    everyone = frozenset(range(4))
    missed = [worth(everyone) - worth(everyone - {i}) for i in range(4)]
    assert np.allclose(table["leave_one_out"].to_numpy(), missed, atol=1e-12)
    assert (
        leave_one_out_gains(finished, "last").column("leave_one_out").to_pylist() == table["leave_one_out"].to_pylist()
    )
    alone = [worth(frozenset({i})) - worth(frozenset()) for i in range(4)]
    assert np.allclose(table["individual"].to_numpy(), alone, atol=1e-12)
    updates = round.updates.numpy()
    whole = (n / n.sum()) @ updates
    assert np.allclose(table["cosine"].to_numpy(), [oracles.cosine(u, whole) for u in updates], atol=1e-12)


def test_without_a_global_test_set_all_clients_test_examples_are_pooled(tmp_path: Path) -> None:
    """As the run's own global accuracy and loss are, to which Shapley values add up; one client has none of them."""
    cut = CONFIG.replace(
        'name = "label_skew"\nclients = 4\nmajors = 2\ntest_nodes = 10', 'name = "dirichlet"\nclients = 4'
    )
    (tmp_path / "config.toml").write_text(cut)
    fedweave("run", tmp_path / "config.toml", "--out", tmp_path / "run", "--quiet")
    said = fedweave("contributions", tmp_path / "run", "--rounds", "2,3")
    check_facts(said, "accuracy", "pooled")
    for metric, sign in (("accuracy", 1), ("loss", -1)):
        curve = read_run(tmp_path / "run").curve(metric, "test", pooled=True)
        for row in (
            measure_contributions(tmp_path / "run", "2,3", metric)
            .group_by("round")
            .aggregate([("shapley", "sum")])
            .to_pylist()
        ):
            gain = curve[row["round"]] - curve[row["round"] - 1]
            assert row["shapley_sum"] == pytest.approx(sign * gain, abs=1e-8)
    untested = tmp_path / "untested"
    fedweave("run", tmp_path / "config.toml", "--set", "partition.test=0.0", "--out", untested, "--quiet")
    fedweave("contributions", untested, code=2)


def test_gains_are_measured_on_the_data_as_the_run_changed_them(tmp_path: Path) -> None:
    """FedSage+ mends every client's graph before the first round."""
    cut = CONFIG.replace(
        'name = "label_skew"\nclients = 4\nmajors = 2\ntest_nodes = 10', 'name = "dirichlet"\nclients = 4'
    )
    mending = '[algorithm]\nname = "fedsage_plus"\nepochs = 1\nexchanges = 1\n'
    (tmp_path / "config.toml").write_text(cut.replace("[model]", f'{mending}[model]\nname = "sage"'))
    fedweave("run", tmp_path / "config.toml", "--out", tmp_path / "run", "--quiet")
    curve = read_run(tmp_path / "run").curve("loss", "test", pooled=True)
    gains = measure_contributions(tmp_path / "run", "3", "loss")["shapley"].to_numpy()
    assert gains.sum() == pytest.approx(curve[2] - curve[3], abs=1e-8)


def test_shares_of_a_budget(finished: Path) -> None:
    for row in measure_contributions(finished, "all").to_pylist():
        assert row["equal_share"] == 0.25
    table = measure_contributions(finished, "1", "loss")
    for scheme in ("individual", "shapley"):
        raw, share = table[scheme].to_numpy(), table[f"{scheme}_share"].to_numpy()
        assert np.allclose(share, raw / raw.sum())


def test_the_command_writes_a_row_per_round_and_client(finished: Path) -> None:
    check_facts(fedweave("contributions", finished, "--rounds", "all"), "3 rounds", "accuracy")
    table = pq.read_table(finished / "contributions.parquet")
    assert len(table) == ROUNDS * 4
    summed = {row["client"]: row for row in over_rounds(table).to_pylist()}
    for client, row in summed.items():
        own = [one["shapley"] for one in table.to_pylist() if one["client"] == client]
        assert row["shapley"] == pytest.approx(sum(own))


def test_standard_errors_of_independent_rounds_add_up_as_their_squares_do() -> None:
    columns = {"round": [1, 2], "client": ["a", "a"], "leave_one_out": [0.0, 0.0], "shapley": [0.5, 0.25]}
    table = over_rounds(pa.table(columns | {"error": [0.3, 0.4], "individual": [0.0, 0.0]}))
    assert table["error"].to_pylist() == [pytest.approx(0.5)]
    assert table["shapley"].to_pylist() == [0.75]


def test_shares_of_several_rounds_are_those_of_their_summed_gains() -> None:
    """By hand: in the second round gains cancel, so that it alone divides nothing; both together do."""
    rows = [(1, "a", 3.0), (1, "b", 1.0), (2, "a", -1.0), (2, "b", 1.0)]
    names = ("leave_one_out", "shapley", "error", "individual", "cosine", "cosine_shapley")
    share = {1: {"a": 0.75, "b": 0.25}, 2: dict.fromkeys("ab", float("nan"))}
    table = pa.Table.from_pylist(
        [
            {"round": round, "client": client, **dict.fromkeys(names, gain)}
            | {f"{scheme}_share": share[round][client] for scheme in ("equal", "union", "individual", "shapley")}
            for round, client, gain in rows
        ]
    )
    summed = over_rounds(table).to_pylist()
    assert [row["shapley"] for row in summed] == [2.0, 2.0]
    assert [row["cosine"] for row in summed] == [row["cosine_shapley"] for row in summed] == [1.0, 1.0]
    for scheme in ("equal", "union", "individual", "shapley"):
        assert [row[f"{scheme}_share"] for row in summed] == [0.5, 0.5]


def test_shares_by_which_nobody_can_be_paid_are_withheld_with_the_reason() -> None:
    """By hand: gains of .03 and -.02 leave .01 to divide by, three times of which the first would get."""
    gains = {"leave_one_out": [0.03, -0.02], "shapley": [0.01, 0.03], "error": [0.0, 0.0], "individual": [0.1, -0.1]}
    found = over_rounds(pa.table({"round": [1, 1], "client": ["a", "b"]} | gains))
    assert found["union_share"].to_pylist() == [pytest.approx(3), pytest.approx(-2)]
    without = indivisible_shares(found)
    assert [*without] == ["union_share", "individual_share"]
    check_facts(without["union_share"], "of b")
    assert without["individual_share"]
    assert indivisible_shares(found.slice(0, 0)) == {}
    assert [*indivisible_shares(pa.table({"client": [*"abcd"], "union_share": [-1.5, 1.0, 0.75, 0.75]}))] == [
        "union_share"
    ]
    assert indivisible_shares(pa.table({"client": [*"ab"], "union_share": [0.0, 1.0]})) == {}


def test_what_cannot_be_measured_is_refused(finished: Path, tmp_path: Path) -> None:
    fedweave("contributions", finished, "--rounds", "4", code=2)
    fedweave("contributions", finished, "--rounds", "²", code=2)
    check_facts(fedweave("contributions", finished, "--metric", "f1", code=2), "accuracy, loss, macro_f1")
    with refusal("user.no-run"):
        measure_contributions(tmp_path)
    settings = finished.parent / "config.toml"
    median = ["--set", 'algorithm.parts=["median"]']
    for name, words in (("fedadam", []), ("fedavg", median)):
        words += ["--set", "rounds=1", "--out", tmp_path / name, "--quiet"]
        fedweave("run", settings, "--algorithm", name, *words)
        with refusal("user.not-judged"):
            measure_contributions(tmp_path / name)


def test_more_than_twelve_clients_are_sampled(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(CONFIG.replace("clients = 4", "clients = 13"))
    fedweave("run", tmp_path / "config.toml", "--set", "rounds=1", "--out", tmp_path / "run", "--quiet")
    table, again = (measure_contributions(tmp_path / "run", metric="loss", permutations=20) for _ in range(2))
    assert table["shapley"].to_pylist() == again["shapley"].to_pylist()
    assert all(error > 0 for error in table["error"].to_pylist())
    gains = torch.tensor(table["shapley"].to_pylist())
    assert gains.isfinite().all()


def test_a_run_between_sites_is_refused_with_what_to_do(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    written = (run / "config.toml").read_text()
    (run / "config.toml").write_text(f'{written.partition("[engine]")[0]}[engine]\nname = "flare"\n')
    with refusal("contributions.unmeasured"):
        measure_contributions(run)


def test_a_repetition_that_ends_at_no_numbers_is_another_run() -> None:
    w = {"0": torch.tensor([3.0, 4.0])}
    check_repetition({"0": torch.tensor([3.0, 4.2])}, w, Path("run"))
    for other in (4.3, float("nan")):
        with refusal("user.other-model"):
            check_repetition({"0": torch.tensor([3.0, other])}, w, Path("run"))


@pytest.mark.parametrize("changed", ["seed", "lr", "labels", "majors"])
def test_nobody_is_paid_by_another_run_than_the_one_that_is_named(changed: str, finished: Path, tmp_path: Path) -> None:
    """Its configuration is repeated, which somebody may have changed since."""
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    text = (run / "config.toml").read_text()
    swap = {
        "seed": ("seed = 0", "seed = 5"),
        "lr": ("lr = 0.01", "lr = 0.2"),
        "labels": ("classes = 3", "classes = 4"),
        "majors": ("majors = 2", "majors = 1"),
    }
    assert swap[changed][0] in text
    (run / "config.toml").write_text(text.replace(*swap[changed], 1))
    said = {
        "seed": "data of .* has changed|clients of .* are not those",
        "lr": "ends at another model than it holds",
        "majors": "clients of .* are not those",
    }
    for rounds in ("last", "1"):
        with pytest.raises(UserError, match=said.get(changed, "has changed since it was begun")):
            measure_contributions(run, rounds)


def test_gains_are_in_what_judges_the_run(tmp_path: Path) -> None:
    """Unless another metric is asked for; one of a positive class needs such a class."""
    (tmp_path / "config.toml").write_text(
        CONFIG.replace("classes = 3", "classes = 2").replace("majors = 2", "majors = 1")
    )
    judged = ("--set", "evaluation.metric=average_precision", "--set", "evaluation.positive=0")
    fedweave("run", tmp_path / "config.toml", *judged, "--out", tmp_path / "run", "--quiet")
    check_facts(fedweave("contributions", tmp_path / "run"), "average_precision")
    table, curve = (
        measure_contributions(tmp_path / "run", "3"),
        read_run(tmp_path / "run").curve("average_precision", "test", True),
    )
    assert sum(table["shapley"].to_pylist()) == pytest.approx(curve[3] - curve[2], abs=1e-9)
    fedweave("run", tmp_path / "config.toml", "--out", tmp_path / "plain", "--quiet")
    check_facts(fedweave("contributions", tmp_path / "plain"), "accuracy")
    check_facts(fedweave("contributions", tmp_path / "plain", "--metric", "recall_at_1", code=2), "accuracy")
    summary = json.loads((tmp_path / "plain/summary.json").read_text())
    summary["metrics"]["scores/positive"] = 1.0  # as where a class is rare and a metric of none selects
    (tmp_path / "plain/summary.json").write_text(json.dumps(summary))
    fedweave("contributions", tmp_path / "plain", "--metric", "recall_at_1")


def test_the_last_round_of_a_run_that_stopped_early_is_the_one_it_stopped_after(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(CONFIG)
    early = ("--set", "evaluation.patience=1", "--set", "evaluation.min_delta=0.5")
    fedweave("run", tmp_path / "config.toml", *early, "--out", tmp_path / "run", "--quiet")
    assert measure_contributions(tmp_path / "run", "last")["round"].to_pylist() == [2] * 4


def test_copies_are_found_by_hand() -> None:
    updates = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 3.0, 0.1], [0.0, 0.0, 0.0]])
    assert copies(updates) == [(1, 2)]
    assert copies(updates, torch.tensor([2.0, 0.1, 0.0])) == [(1, 2), (0, -1)]
    assert copies(-updates, updates[0]) == [(1, 2)]
    assert copies(updates, torch.zeros(3)) == [(1, 2)]


def test_who_sends_a_copy_is_named_with_whose_it_is(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "a copy?" not in fedweave("contributions", finished, "--rounds", "all")
    monkeypatch.setattr(
        "fedweave.accounts.contributions.copies", lambda updates, last: [(0, 2), *[(1, -1)][last is None :]]
    )
    shown = fedweave("contributions", finished, "--rounds", "all")
    check_facts(shown, "client-2", "client-0", "3 rounds")
    check_facts(shown, "client-1", "2 rounds")

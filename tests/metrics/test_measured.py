"""What an evaluation says of its clients, of which split, by hand."""

import math
import re
from typing import Any

import pytest
import torch

from fedweave.core.algorithm import Evaluation
from fedweave.core.replies import Replies, ReplyBatch
from fedweave.metrics.classification import counts
from fedweave.metrics.kinds import DIVERGED
from fedweave.metrics.measured import DIVERGED_CLIENT, MISSING, ROUNDED_SCORES, measure
from fedweave.metrics.selection import Judging
from fedweave.reports.notes import alerts_clause, notes
from tests.refusals import refusal

NAMES = ("a", "b", "c")


def evaluation(losses: Any, hits: Any, counted: Any = (1.0,) * 3, examples: Any = ((10.0,) * 3,) * 3) -> Evaluation:
    """Of three clients, by client and split: mean losses, and shares of hits; `counted`: of two classes, or not."""
    loss, hit, many = (torch.tensor(given, dtype=torch.float64) for given in (losses, hits, examples))
    f1 = torch.stack([2 * hit * many, 2 * many], -1)[..., None].expand(3, 3, 2, 2) / 2
    own = {
        "loss": torch.stack([loss * many, many], -1),
        "accuracy": torch.stack([hit * many, many], -1),
        "f1": f1 * torch.tensor(counted, dtype=torch.float64)[:, None, None, None],
    }
    return Evaluation(Replies(NAMES, [ReplyBatch((0, 1, 2), {"own": own})], {}))


def test_each_number_is_of_its_split() -> None:
    """Training losses 1, 2, 3, test losses 1, 1, 4, validation losses 9."""
    losses = [[1.0, 9, 1], [2, 9, 1], [3, 9, 4]]
    hits = [[1.0, 0, 0.5], [1, 0, 0.2], [1, 0, 0.8]]
    rows, summary, *_ = measure(3, evaluation(losses, hits))
    assert summary["local/loss"] == summary["global/loss"] == 2.0
    assert summary["local/accuracy"] == pytest.approx(0.5)
    assert summary["fairness/test_loss_variance"] == pytest.approx(2.0)
    assert summary["fairness/train_loss_variance"] == pytest.approx(2 / 3)
    assert summary["fairness/accuracy_deviation"] == pytest.approx(math.sqrt(0.06))
    assert (summary["fairness/worst_accuracy"], summary["fairness/best_accuracy"]) == (0.2, 0.8)
    assert ROUNDED_SCORES not in summary
    told = {(row["client"], row["split"], row["metric"]): row["value"] for row in rows.to_pylist()}
    assert {row["round"] for row in rows.to_pylist()} == {3}
    assert [told["c", split, "loss"] for split in ("train", "val", "test")] == [3.0, 9.0, 4.0]
    assert told["global", "train", "fairness/train_loss_variance"] == pytest.approx(2 / 3)
    assert told["global", "test", "fairness/test_loss_variance"] == pytest.approx(2.0)


def test_the_mean_over_clients_is_not_that_over_examples() -> None:
    examples = [[10.0, 10, 30], [10, 10, 10], [10, 10, 0]]
    losses, hits = [[1.0] * 3] * 3, [[1.0, 1, 0.4], [1, 1, 0.8], [1, 1, 0]]
    _, summary, *_ = measure(0, evaluation(losses, hits, examples=examples))
    assert summary["local/accuracy"] == pytest.approx(0.6)  # of the two that have test examples
    assert summary["global/accuracy"] == pytest.approx((12 + 8) / 40)
    assert summary["fairness/undefined_clients"] == 1


def test_positives_and_alerts_are_counted() -> None:
    """Of 150, 20 and 30 test examples 2, 0 and 1 are positive; a hundredth is 2 together, and 2, 1 and 1 at members."""
    own = []
    for examples, positives in ((150, 2), (20, 0), (30, 1)):
        y, split = torch.zeros(examples + 10, dtype=torch.int64), torch.arange(examples + 10) < examples
        y[:positives] = y[-1] = 1
        score = torch.where(y == 1, 1.0, 0.0).double()
        own.append(counts(torch.stack([-score, score], 1), y, torch.stack([split & False, ~split, split])))
    pairs = {name: torch.stack([one[name] for one in own]) for name in own[0]}
    told = Evaluation(Replies(NAMES, [ReplyBatch((0, 1, 2), {"own": pairs})], {}))
    rows, found, *_ = measure(1, told, Judging(metric="average_precision", positive=1))
    counted = {name.removeprefix("positives/"): v for name, v in found.items() if name.startswith("positives/")}
    assert counted == {"test": 3, "test_fewest": 0, "val": 3, "val_fewest": 1, "alerts": 2, "alerts_within": 4}
    assert (found["fairness/undefined_average_precision"], found["fairness/undefined_clients"]) == (1, 0)
    assert {"positives/alerts"} <= set(rows["metric"].to_pylist())
    assert re.search(r"3 of 3 “fraud” among 4 alerts \(1\.000\)", alerts_clause(found, ["honest", "fraud"]))
    many = found | {"positives/test_fewest": 20.0}
    assert re.search("0 at the member with the fewest", notes(found)["few"])
    assert re.search("3 such validation examples", notes(found | {"best_val/round": 1})["few"])
    assert (notes(many).get("few"), bool(notes(many | {"best_val/round": 1}).get("few"))) == (None, True)
    assert not [name for name in measure(1, told, Judging("accuracy"))[1] if name.startswith("positives/")]


def test_who_was_asked_for_scores_and_sent_none_is_counted() -> None:
    told = evaluation([[1.0] * 3] * 3, [[1.0] * 3] * 3)
    assert MISSING not in measure(1, told)[1]
    told.clients.missing.update({"d": "failed", "e": "was away"})
    assert measure(1, told)[1][MISSING] == 2


def test_rounded_is_who_tells_hits_and_no_class() -> None:
    """A client without examples tells no class either, and has rounded nothing."""
    losses, hits = [[1.0] * 3] * 3, [[1.0] * 3] * 3
    examples = [[10.0] * 3, [10.0] * 3, [0.0] * 3]
    rows, summary, *_ = measure(0, evaluation(losses, hits, (1.0, 0.0, 1.0), examples))
    assert summary[ROUNDED_SCORES] == 1
    assert [row["client"] for row in rows.to_pylist() if row["metric"] == ROUNDED_SCORES] == ["b"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_client_whose_loss_is_not_finite_is_named(value: float) -> None:
    with refusal("diverged"):
        measure(3, evaluation([[1.0] * 3, [1.0, 1, value], [1.0] * 3], [[1.0] * 3] * 3))


def test_the_others_numbers_stay_without_a_client_whose_loss_is_not_finite() -> None:
    losses, hits = [[1.0] * 3, [1.0, 1, math.nan], [3.0] * 3], [[1.0] * 3, [0.0] * 3, [0.5] * 3]
    rows, summary, *_ = measure(3, evaluation(losses, hits), skip_diverged=True)
    assert (summary["local/loss"], summary["local/accuracy"]) == (2.0, 0.75)
    of_b = [(row["metric"], row["value"]) for row in rows.to_pylist() if row["client"] == "b"]
    assert of_b == [(DIVERGED_CLIENT, 1.0)]
    with refusal("diverged"):
        measure(3, evaluation([[math.nan] * 3] * 3, hits), skip_diverged=True)


def test_an_auc_within_members_says_of_how_many_it_is() -> None:
    """Of three members one has a single class among its test examples; 3 of 4 and 1 of 6 pairs are in order."""
    told = evaluation([[1.0] * 3] * 3, [[1.0] * 3] * 3)
    ordered = torch.tensor([[3.0, 4.0], [1.0, 6.0], [0.0, 0.0]], dtype=torch.float64)
    auc = ordered[:, None, :, None].expand(3, 3, 2, 2)
    own = {name: told.clients.stack(f"own/{name}") for name in ("loss", "accuracy", "f1")} | {"auc": auc}
    rows, summary, *_ = measure(1, Evaluation(Replies(NAMES, [ReplyBatch((0, 1, 2), {"own": own})], {})))
    assert summary["within/auc"] == summary["global/auc"] == pytest.approx(4 / 10)
    assert summary["local/auc"] == pytest.approx((3 / 4 + 1 / 6) / 2)
    assert summary["within/members"] == 2
    said = {(row["client"], row["split"], row["metric"]): row["value"] for row in rows.to_pylist()}
    assert said["global", "train", "within/members"] == 2


@pytest.mark.parametrize("split", range(3))
def test_a_mean_loss_that_no_model_has_that_learns_is_noted(split: int) -> None:
    losses = [[1.0] * 3 for _ in NAMES]
    losses[1][split] = 3e8
    assert measure(1, evaluation(losses, [[1.0] * 3] * 3))[1][DIVERGED] == pytest.approx(1e8)
    assert DIVERGED not in measure(1, evaluation([[500.0] * 3] * 3, [[1.0] * 3] * 3))[1]

"""Metrics of a positive class against scikit-learn and by hand, ties included; and what is judged by which metric."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from sklearn.metrics import (
    average_precision_score,
    brier_score_loss,
    f1_score,
    precision_score,
    recall_score,
    roc_auc_score,
)

from fedweave.core.algorithm import Evaluation
from fedweave.core.graph import make_graph
from fedweave.core.replies import Replies, ReplyBatch
from fedweave.errors import ConfigError
from fedweave.experiment.config import resolve
from fedweave.metrics import classification
from fedweave.metrics.classification import by_class, counts, mean_values, means, merge, values
from fedweave.metrics.measured import measure
from fedweave.metrics.pooled import Alarm, example_outputs, pooled_examples
from fedweave.metrics.ranking import calibration_error, hits_of_alerts, probabilities, scores, threshold
from fedweave.metrics.selection import (
    OF_POSITIVE,
    Judging,
    entries_of,
    flagging,
    near_constant,
    of_best,
    positive_class,
    positive_in,
    positive_of,
    selection_entries,
    selection_metric_of,
)
from fedweave.models import MODELS
from fedweave.reports.notes import RunFacts, notes
from tests.refusals import refusal

TINY = torch.tensor([[0.0, 3], [0, 2], [0, 2], [0, 1], [0, 0]]).double()  # margins 3, 2, 2, 1, 0
LABELS = torch.tensor([0, 1, 0, 1, 1])


def drawn(seed: int, n: int, coarse: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits with few positives, with many ties if `coarse`, labels, and two sets."""
    rng = np.random.default_rng(seed)
    margin = rng.integers(-2, 3, n).astype(float) if coarse else rng.standard_normal(n)
    y = (rng.random(n) < 0.2).astype(np.int64)
    logits = torch.from_numpy(np.stack([np.zeros(n), margin + y], 1))
    return logits, torch.from_numpy(y), torch.from_numpy(rng.choice(3, n, p=[0.6, 0.3, 0.1]) == np.arange(2)[:, None])


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**20), n=st.integers(1, 80), coarse=st.booleans(), positive=st.sampled_from([0, 1]))
def test_equal_scikit_learn(seed: int, n: int, coarse: bool, positive: int) -> None:
    logits, y, masks = drawn(seed, n, coarse)
    got = values(counts(logits, y, masks), positive)
    margin = (logits[:, positive] - logits[:, 1 - positive]).numpy()
    for name in ("average_precision", "recall_at_1", "precision_at_1"):  # which a receiver checks
        pair = counts(logits, y, masks)[name]
        assert (pair[:, 0] <= pair[:, 1]).all()
    for row, mask in enumerate(masks.numpy()):
        truth, score, guess = y.numpy()[mask] == positive, margin[mask], logits.argmax(1).numpy()[mask] == positive
        if not truth.any():
            assert math.isnan(got["average_precision"][row])
            continue
        exact = scores(score, truth, 0.5)
        average = average_precision_score(truth, score)
        assert got["average_precision"][row] == pytest.approx(average, abs=1e-9)
        assert exact["average_precision"] == pytest.approx(average, abs=1e-12)
        assert exact["brier"] == pytest.approx(brier_score_loss(truth, probabilities(score)), abs=1e-12)
        assert got["recall"][row] == pytest.approx(recall_score(truth, guess), abs=1e-12)
        assert got["f1_positive"][row] == pytest.approx(f1_score(truth, guess), abs=1e-12)
        assert got["precision"][row] == pytest.approx(precision_score(truth, guess, zero_division=0), abs=1e-12)
        assert got["recall_at_1"][row] == pytest.approx(exact["recall_at_1"], abs=1e-8)
        assert got["precision_at_1"][row] == pytest.approx(exact["precision_at_1"], abs=1e-8)


def test_means_over_members_of_the_positive_class_are_of_those_that_have_it() -> None:
    """One member without a positive example is in no mean, one that finds none counts as 0 in all."""
    positive, names = 1, ("average_precision", "recall_at_1", "precision_at_1", "recall", "precision", "f1_positive")
    guesses = [([0, 1, 1], [0, 0, 0]), ([1, 0, 0], [0, 1, 0]), ([0, 0, 0], [1, 0, 0])]  # guessed, true
    pairs = []
    for guessed, true in guesses:
        logits = torch.nn.functional.one_hot(torch.tensor(guessed), 2).double()
        pairs.append(counts(logits, torch.tensor(true), torch.ones(1, 3, dtype=torch.bool)))
    got = [values(own, positive) for own in pairs]
    assert [math.isnan(got[0][name][0]) for name in names] == [True] * 6
    assert not any(math.isnan(one[name][0]) for one in got[1:] for name in names)
    assert got[2]["precision"][0] == 0
    summed = merge([means(own) for own in pairs])
    for name in names:
        assert summed[name][0, 1, positive] == 2
        assert mean_values(summed, positive)[name][0] == pytest.approx((got[1][name][0] + got[2][name][0]) / 2)


def test_average_precision_of_ties_by_hand() -> None:
    """Scores 3 2 2 1 0 of labels 0 1 0 1 1: the tie has 1 of 3, the next 2 of 4, the last 3 of 5."""
    got = values(counts(TINY, LABELS, torch.ones(1, 5, dtype=torch.bool)))
    assert got["average_precision"][0] == pytest.approx((1 / 3 + 2 / 4 + 3 / 5) / 3, abs=1e-9)
    assert got["recall_at_1"][0] == 0.0  # one alert, and it is a false one
    assert got["precision_at_1"][0] == 0.0


@pytest.mark.parametrize(("share", "hits"), [(0.2, 0.0), (0.4, 0.5), (0.6, 1.0), (0.8, 2.0), (1.0, 3.0)])
def test_a_tie_at_the_border_of_alerts_counts_by_chance(share: float, hits: float) -> None:
    margin = (TINY[:, 1] - TINY[:, 0]).numpy()
    assert hits_of_alerts(margin, LABELS.numpy() == 1, share) == hits


def test_a_tie_at_the_border_counts_by_chance_at_clients_too() -> None:
    """Of 200 examples two are alerts; four tie for them, one of which is positive, of three in all."""
    margin, y = torch.zeros(200).double(), torch.zeros(200, dtype=torch.int64)
    margin[:4], y[:1], y[100:102] = 1, 1, 1
    got = values(counts(torch.stack([torch.zeros(200), margin], 1), y, torch.ones(1, 200, dtype=torch.bool)))
    assert (got["recall_at_1"][0], got["precision_at_1"][0]) == (pytest.approx(0.5 / 3), 0.25)


def test_counts_of_clients_add_up_in_any_order_to_the_bit() -> None:
    parts = [counts(*drawn(seed, 50, False)) for seed in range(4)]
    one, other = merge(parts), merge(parts[::-1])
    assert all(torch.equal(one[name], other[name]) for name in one)
    each = [values(part)["average_precision"][0] for part in parts]
    positives = [float(part["average_precision"][0, 1, 1]) for part in parts]
    assert values(one)["average_precision"][0] == pytest.approx(np.average(each, weights=positives))


def test_more_classes_than_two_have_no_positive_one() -> None:
    got = counts(torch.zeros(4, 3), torch.tensor([0, 1, 2, 2]), torch.ones(1, 4, dtype=torch.bool))
    assert not {"average_precision"} & set(got)
    assert not {"recall"} & set(values(got))


def test_calibration_by_hand() -> None:
    """Two bins: .1 and .3 of which one is positive, .9 of which none: |.4 - 1| + |.9 - 0| over 3."""
    p, truth = np.array([0.1, 0.3, 0.9]), np.array([True, False, False])
    assert calibration_error(p, truth, bins=2) == pytest.approx((0.6 + 0.9) / 3)
    assert calibration_error(np.ones(2), np.array([True, True])) == 0.0  # 1 is in the last bin


@pytest.mark.parametrize(
    ("how", "at"),
    [
        (0.7, 0.7),
        ("auto", 0.5),
        ("f1", 0.5),  # .8, .6 flagged: F1 .8 with one false alarm; halfway to .4
        ({"recall_at": 0.2}, 0.7),
        ({"cost": {"miss": 1, "alarm": 100}}, 0.7),
        ({"cost": {"miss": 100, "alarm": 1}}, 0.3),
    ],
)
def test_the_threshold_lies_halfway_to_the_next_score(how: object, at: float) -> None:
    p, truth = np.array([0.2, 0.8, 0.6, 0.4, 0.1]), np.array([False, True, False, True, False])
    truth = truth if how != "f1" else np.array([False, True, True, False, True])
    assert threshold(p, truth, how) == pytest.approx(at)


def test_where_alarms_cost_more_than_any_hit_nothing_is_flagged() -> None:
    p, truth = np.array([0.9, 0.2]), np.array([False, True])
    assert threshold(p, truth, {"cost": {"miss": 1, "alarm": 100}}) == pytest.approx(0.95)
    assert threshold(p, np.zeros(2, bool), "f1") == 0.5


def test_where_flagging_nobody_is_cheapest_certain_examples_are_not_flagged_either() -> None:
    how = {"cost": {"miss": 1.0, "alarm": 50.0}}
    assert threshold(np.array([1.0, 1.0, 0.5]), np.array([False, False, True]), how) > 1.0


@pytest.mark.parametrize(("how", "at"), [("f1", None), ({"recall_at": 0.01}, None), (0.3, 0.3), ("auto", 0.5)])
def test_a_threshold_that_was_to_be_chosen_and_was_not_is_none(how: object, at: float | None) -> None:
    """Where every member has a model of its own, nobody's examples are compared with another's."""
    found = flagging(Judging(positive=1, threshold=how), {"global/accuracy": 0.9})  # type: ignore[arg-type]
    assert (None if found is None else found.threshold) == at


def test_pooled_scores_are_of_all_members_side_by_side() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((90, 2)), (rng.random(90) < 0.3).astype(np.int64)
    edges, masks = np.zeros((2, 0), np.int64), np.repeat(np.arange(90)[None] % 3, 3, 0) == np.arange(3)[:, None]
    w = {"0": {"weight": torch.eye(2).double(), "bias": torch.zeros(2).double()}}
    graphs = [
        make_graph(x[a : a + 30], edges, y[a : a + 30], masks[:, a : a + 30], dtype=torch.float64) for a in (0, 30, 60)
    ]
    net = MODELS["mlp"](hidden=2, layers=1).build(2, 2)
    found = pooled_examples([[example_outputs(net, w, graph) for graph in graphs]], Alarm(1, "f1"))
    margin = x[:, 1] - x[:, 0]
    for split in range(3):
        own = masks[split]
        assert found["pooled/auc"][split] == pytest.approx(roc_auc_score(y[own], margin[own]), abs=1e-12)
        average = average_precision_score(y[own], margin[own])
        assert found["pooled/average_precision"][split] == pytest.approx(average, abs=1e-12)
    at = found["pooled/threshold"][2]
    flagged = probabilities(margin[masks[2]]) >= at
    assert found["pooled/recall"][2] == pytest.approx(recall_score(y[masks[2]], flagged))


def test_rare_of_two_classes_judges_average_precision_of_the_rarer() -> None:
    assert Judging().verdict(2, 0.01, 1) == {"judged/average_precision": 1.0}
    assert Judging().verdict(2, 0.01, 0) == {"judged/average_precision": 0.0}
    assert Judging(positive=1).verdict(2, 0.01, 0) == {"judged/average_precision": 1.0}
    assert Judging().verdict(7, 0.01, 3) == {"judged/macro_f1": -1.0}
    assert Judging().verdict(2, math.nan, 1) == {}
    assert Judging("accuracy").verdict(2, math.nan, 0) == {"judged/accuracy": -1.0}
    assert selection_metric_of({}) == selection_metric_of({"judged/accuracy": -1.0}) == "accuracy"
    assert positive_of({"judged/average_precision": 0.0}) == 0
    assert positive_of({"judged/macro_f1": -1.0}) is None


@pytest.mark.parametrize("metric", ["auto", "accuracy", "macro_f1", "auc", "average_precision", "recall_at_1"])
@pytest.mark.parametrize(
    ("given", "rarest", "rarer"), [(None, 0.1, 0), (None, 0.1, 1), (None, math.nan, 0), (1, 0.1, 0), (0, math.nan, 1)]
)
def test_the_positive_class_is_the_same_whichever_metric_selects(
    metric: str, given: int | None, rarest: float, rarer: int
) -> None:
    """The one that is named, else the rare one of two, else class 1; also of what an evaluation tells the next."""
    judging = Judging(metric, given)
    expected = given if given is not None else 1 if math.isnan(rarest) else rarer
    found = judging.verdict(2, rarest, rarer)
    for entries in (found, selection_entries(found | {"global/auc": 0.5}), of_best(found)):
        assert positive_class(judging, entries) == expected
    if found:
        assert entries_of(selection_metric_of(found), expected).items() >= found.items()


def test_more_classes_than_two_have_no_rare_one_that_is_looked_for() -> None:
    assert positive_in(Judging("auc").verdict(3, 0.01, 2)) is None


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**20), n=st.integers(2, 60), coarse=st.booleans())
def test_only_metrics_of_one_class_change_with_the_positive_class(seed: int, n: int, coarse: bool) -> None:
    pairs = counts(*drawn(seed, n, coarse))
    first, second = values(pairs, 0), values(pairs, 1)
    for name in first.keys() - OF_POSITIVE:
        np.testing.assert_array_equal(first[name], second[name])


def test_an_evaluation_measures_the_rare_class_whichever_metric_selects_by_hand() -> None:
    """Class 0 is one of ten in training. In the test its one example is ranked second of four: average precision 1/2.
    With three of ten it is not rare, and the three of class 1 are ranked 1, 2, 4 from their end: (1 + 1 + 3/4) / 3."""
    test_y, margin = torch.tensor([1, 0, 1, 1]), torch.tensor([0.0, 1.0, 2.0, 3.0])  # of class 1
    for rare, positive, expected in ((1, 0, 1 / 2), (3, 1, (1 + 1 + 3 / 4) / 3)):
        y = torch.cat([torch.arange(10) >= rare, test_y]).long()
        logits = torch.stack([torch.zeros(14), torch.cat([torch.ones(10), margin])], 1)
        masks = torch.zeros(3, 14, dtype=torch.bool)
        masks[0, :10], masks[2, 10:] = True, True
        own = {name: pair[None] for name, pair in counts(logits, y, masks).items()}
        replies = Replies(("a",), [ReplyBatch((0,), {"own": own})], {})
        for metric in ("auc", "accuracy", "average_precision"):
            found = measure(1, Evaluation(replies), Judging(metric)).summary
            assert found["global/average_precision"] == pytest.approx(expected), metric
            assert positive_class(Judging(metric), found) == positive
            assert (found.get("scores/positive"), positive_of(found)) == (
                (0.0 if rare == 1 else None, None) if metric in ("auc", "accuracy") else (None, positive)
            )


def test_the_note_on_a_rare_class_names_the_positive_one() -> None:
    metrics = {"scores/rarest": 0.1, "judged/auc": -1.0, "scores/positive": 0.0}
    assert "“default”" in notes(metrics, RunFacts(classes=("default", "repaid")))["rare"]
    assert "class 0" in notes(metrics)["rare"]
    assert "class 0" not in notes({"scores/rarest": 0.01, "judged/macro_f1": -1.0})["rare"]  # of several classes


def test_what_a_constant_prediction_reaches() -> None:
    labels = np.array([99.0, 1.0])
    found = {
        name: classification.chance(name, labels, 1) for name in ("accuracy", "auc", "average_precision", "recall_at_1")
    }
    assert found == {"accuracy": 0.99, "auc": 0.5, "average_precision": 0.01, "recall_at_1": 0.01}
    assert classification.chance("macro_f1", labels, 1) == pytest.approx(
        f1_score([0] * 99 + [1], [0] * 100, average="macro")
    )


def test_a_prediction_is_nearly_constant_where_a_class_is_hardly_predicted() -> None:
    assert near_constant(0.0, 0.2)
    assert near_constant(0.019, 0.2)
    assert near_constant(0.99, 0.7)
    assert not near_constant(0.03, 0.2)


SMALL = {"data": {"name": "synthetic"}}


@pytest.mark.parametrize(
    "table",
    [
        {"metric": "average_precision", "positive": "fraud", "threshold": {"recall_at": 0.01}},
        {"threshold": {"cost": {"miss": 50, "alarm": 1}}, "positive": 0},
        {"threshold": 0.25},
    ],
)
def test_the_section_evaluation_comes_back_as_it_was(table: dict) -> None:
    config = resolve(SMALL | {"evaluation": table})
    assert resolve(config.plain()).evaluation == config.evaluation
    assert {**{"metric": "auto"}, **table} == config.plain()["evaluation"]


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"metric": "gini"}, "evaluation.metric"),
        ({"threshold": 1.5}, "evaluation.threshold"),
        ({"threshold": {"cost": {"miss": 50}}}, "evaluation.threshold"),
        ({"metrics": "auc"}, "evaluation.metrics"),
    ],
)
def test_the_section_evaluation_is_refused_by_key(table: dict, told: str) -> None:
    with pytest.raises((ConfigError, ValidationError), match=told):
        resolve(SMALL | {"evaluation": table})


def test_the_positive_class_is_found_by_name_or_refused() -> None:
    assert Judging(positive="fraud").of(("ok", "fraud"), 2).positive == 1
    with refusal("config.no-class", "'froud'"):
        Judging(positive="froud").of(("ok", "fraud"), 2)
    with refusal("config.no-class", "positive: is 2"):
        Judging(positive=2).of((), 2)
    with refusal("config.classes", "the data has 7"):
        Judging(metric="average_precision").of((), 7)


def test_every_class_has_its_recall_precision_and_f1() -> None:
    rng = np.random.default_rng(0)
    logits, y = torch.from_numpy(rng.standard_normal((40, 3))), torch.from_numpy(rng.integers(0, 3, 40))
    pairs = {name: pair[0] for name, pair in counts(logits, y, torch.ones(1, 40, dtype=torch.bool)).items()}
    found, guess = by_class(pairs), logits.argmax(1)
    for name, score in (("recall", recall_score), ("precision", precision_score), ("f1", f1_score)):
        each = [found[f"{name}/{number}"] for number in range(3)]
        assert each == pytest.approx(score(y, guess, average=None).tolist(), abs=1e-12)

"""What an evaluation says of two groups of people, and which round it prefers, by hand."""

import math
from typing import Any

import numpy as np
import pytest

from fedweave.core.graph import TEST, TRAIN
from fedweave.metrics import groups as between_groups
from fedweave.metrics.groups import expected_gap

# Nodes by group, label and prediction. Client 0: group 0 has labels 0 0 1 1, predicted 0 1 0 1, group 1 labels 0 1,
# predicted 0 1. Client 1 has nobody of group 1: labels 0 1 1, predicted 0 1 1.
TABLES = np.array([[[[1, 1], [1, 1]], [[1, 0], [0, 1]]], [[[1, 0], [0, 2]], [[0, 0], [0, 0]]]], float)


def pairs() -> dict[str, np.ndarray]:
    """The same counts in all three splits."""
    return {"groups": np.repeat(TABLES[:, None], 3, 1)}


def everyone(groups: np.ndarray, unknown: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """The pairs, added up, of the people of `groups` [P, 3, 2, 2, 2] and of those of `unknown` group, [P, 3, 2, 2]."""
    table = groups.sum(2) + (0 if unknown is None else unknown)  # by label and prediction
    right, held, guessed = np.diagonal(table, axis1=-2, axis2=-1), table.sum(-1), table.sum(-2)
    each = {"groups": groups, "f1": np.stack([2 * right, held + guessed], 2), "classes": np.stack([guessed, held], 2)}
    return {name: pair.sum(0) for name, pair in each.items()}


def test_measures_of_clients_and_of_all() -> None:
    own = between_groups.measures(pairs(), np.full((2, 3), 0.6), np.full((2, 3), 0.9))
    whole = {name: pair.sum(0) for name, pair in pairs().items()}
    pooled = between_groups.measures(whole, np.full(3, 7 / 9), np.full(3, 0.8))
    np.testing.assert_array_equal(own["groups/sp"], [[0.0] * 3, [math.nan] * 3])
    np.testing.assert_allclose(own["groups/eo"][0], 0.5)  # 1/2 and 1/1
    np.testing.assert_allclose(own["groups/tradeoff_accuracy"][0], 0.6 / 0.5)
    np.testing.assert_allclose(pooled["groups/sp_signed"], 1 / 2 - 4 / 7)
    np.testing.assert_allclose(pooled["groups/sp_floor"], expected_gap(7, 2, 5))
    np.testing.assert_allclose(pooled["groups/tradeoff_auc"], 0.8 / (1 / 14 + 1 / 4))  # EO: 3/4 and 1/1
    found = between_groups.summary_of(own, pooled)
    assert found["groups/global/eo"] == pytest.approx(1 / 4)
    assert found["groups/median/eo"] == 0.5
    assert found["groups/median/eo_undefined"] == 1
    assert found["groups/median/accuracy_group0"] == pytest.approx((2 / 4 + 3 / 3) / 2)
    assert found["groups/median/accuracy_group0_undefined"] == 0


def test_what_is_said_of_the_run_is_of_test_examples() -> None:
    pair = {"groups": np.concatenate([pairs()["groups"][:, :2, ::-1], pairs()["groups"][:, 2:]], 1)}
    own = between_groups.measures(pair, np.full((2, 3), 0.6), np.full((2, 3), 0.9))
    pooled = between_groups.measures({"groups": pair["groups"].sum(0)}, np.full(3, 7 / 9), np.full(3, 0.8))
    found = between_groups.summary_of(own, pooled)
    assert found["groups/global/sp_signed"] == pytest.approx(1 / 2 - 4 / 7)
    assert found["groups/median/accuracy_group0"] == pytest.approx((2 / 4 + 3 / 3) / 2)


def test_without_groups_there_is_nothing() -> None:
    nothing: dict[str, Any] = {"accuracy": np.ones((2, 3, 2))}
    assert between_groups.measures(nothing, 0.5, 0.5) == {}
    assert between_groups.selection(nothing) == {}
    assert between_groups.summary_of({}, {}) == {}


def test_what_a_round_is_chosen_by() -> None:
    """Of all clients' validation examples together: of 9 people, 5 of label 1, 7 are right."""
    found = between_groups.selection(everyone(pairs()["groups"]))
    assert found == pytest.approx({"gaps": 1 / 14 + 1 / 4, "accuracy": 7 / 9, "constant": 5 / 9, "alike": 0})
    assert set(found) == set(between_groups.SELECTION)
    apart = pairs()["groups"]
    apart[:, [TRAIN, TEST]] = apart[:, [TRAIN, TEST], ..., ::-1]  # which say nothing in it
    assert between_groups.selection(everyone(apart)) == found
    assert math.isnan(between_groups.selection(everyone(pairs()["groups"][1:]))["gaps"])


def test_the_constant_prediction_is_that_of_the_most_frequent_label_and_not_of_predictions() -> None:
    """3 of 4 people are of label 1, and 2 are predicted so."""
    table = np.array([[[[1, 0], [1, 0]], [[0, 0], [0, 2]]]], float)
    assert between_groups.selection(everyone(np.repeat(table[:, None], 3, 1)))["constant"] == 3 / 4


def test_a_round_is_chosen_by_the_accuracy_on_people_of_unknown_group_too() -> None:
    """Of 9 + 6 people 7 + 1 are right; 5 + 5 are of label 1. Gaps stay those of known groups."""
    groups = pairs()["groups"]
    unknown = np.zeros((2, 3, 2, 2))
    unknown[0] = [[1, 0], [5, 0]]
    found = between_groups.selection(everyone(groups, unknown))
    assert found == pytest.approx({"gaps": 1 / 14 + 1 / 4, "accuracy": 8 / 15, "constant": 10 / 15, "alike": 0})


def test_the_fairest_round() -> None:
    def now(gaps: float, accuracy: float) -> dict[str, float]:
        return {"gaps": gaps, "accuracy": accuracy, "constant": 0.7}

    rounds = [now(0.0, 0.7), now(0.4, 0.72), now(0.4, 0.9), now(0.2, 0.71), now(math.nan, 0.95), now(0.1, 0.65)]

    def chosen(margin: float) -> int:
        best = 0
        for at, found in enumerate(rounds):
            best = at if between_groups.fairer(found, rounds[best], margin) else best
        return best

    assert chosen(0.0) == 3  # the constant prediction has no gaps and no say
    assert chosen(0.015) == 1  # the first of equally fair ones
    assert chosen(0.1) == 2
    assert chosen(0.3) == 4  # none is fair: the most accurate
    assert chosen(-0.06) == 0
    unknown, fair, constant = now(math.nan, 0.95), now(0.4, 0.72), now(0.0, 0.7)
    assert between_groups.fairer(fair, unknown, 0.0)  # a gap of which nothing is known is not fair, but accurate
    assert not between_groups.fairer(unknown, fair, 0.0)
    assert between_groups.fairer(unknown, constant, 0.0)


def test_no_constant_prediction_has_skill_and_one_that_is_even_and_right_has_all() -> None:
    """(TPR - FPR) (1 - (SP + EO) / 2), where accuracy / (SP + EO) is without a number of the former."""
    for predicted in (0, 1):
        table = np.zeros((3, 2, 2, 2))
        table[..., predicted] = [[90, 10], [80, 20]]
        found = between_groups.measures({"groups": table}, np.full(3, 0.85), np.full(3, 0.5))
        assert found["groups/tradeoff_skill"].tolist() == [0.0] * 3
        assert np.isnan(found["groups/tradeoff_accuracy"]).all()
        assert found["groups/predicted"].tolist() == [float(predicted)] * 3
    right = np.array([[[50.0, 0], [0, 50]]] * 2)
    found = between_groups.measures({"groups": np.stack([right] * 3)}, np.ones(3), np.ones(3))
    assert found["groups/tradeoff_skill"].tolist() == [1.0] * 3

"""Group fairness: a tiny case by hand, laws, and agreement with fairlearn, scikit-learn and formulas written apart."""

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from fairlearn.metrics import (
    MetricFrame,
    demographic_parity_difference,
    equal_opportunity_difference,
    equalized_odds_difference,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, roc_auc_score

from fedweave.metrics.classification import merge
from fedweave.metrics.groups import counts, over_clients, tradeoff, values
from tests.refusals import refusal

GAPS = ("sp", "eo", "equalised_odds")
SIGNED = ("sp_signed", "eo_signed", "fpr_signed")


class People:
    """Random nodes: margins on a coarse grid so that ties occur, a tenth of labels and attributes unknown."""

    def __init__(self, seed: int, nodes: int = 60) -> None:
        rng = np.random.default_rng(seed)
        margin = rng.integers(-6, 7, nodes) / 4
        shift = rng.standard_normal(nodes)
        self.logits = torch.from_numpy(np.stack([shift, shift + margin], 1))
        self.margin = (self.logits[:, 1] - self.logits[:, 0]).numpy()
        self.y, self.sensitive = (np.where(rng.random(nodes) < 0.1, -1, rng.integers(0, 2, nodes)) for _ in range(2))
        role = rng.integers(0, 3, nodes)
        self.masks = (role == np.arange(3)[:, None]) & (self.y >= 0)

    def counts(self, **options: bool) -> Any:
        tensors = (torch.from_numpy(array) for array in (self.y, self.sensitive, self.masks))
        return counts(self.logits, *tensors, **options)

    def judged(self, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Labels, predictions, groups and margins of a set's nodes whose group is known."""
        at = self.masks[row] & (self.sensitive >= 0)
        return self.y[at], (self.margin > 0)[at].astype(int), self.sensitive[at], self.margin[at]


def by_hand() -> Any:
    """Group 0: labels 1 1 0 0, predicted 1 0 1 0. Group 1: labels 1 1 1 0, predicted 1 1 0 0. One node of neither."""
    y = torch.tensor([1, 1, 0, 0, 1, 1, 1, 0, 1])
    predicted = torch.tensor([1, 0, 1, 0, 1, 1, 0, 0, 1])
    sensitive = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, -1])
    logits = torch.stack([1.0 - predicted, 2.0 * predicted], 1)
    return counts(logits, y, sensitive, torch.ones(1, 9, dtype=torch.bool))


def test_by_hand() -> None:
    pairs = by_hand()
    assert pairs["groups"].tolist() == [[[[1, 1], [1, 1]], [[1, 0], [1, 2]]]]
    assert pairs["group_auc"].tolist() == [[[2.0, 2.5], [4, 3]]]
    found = {name: value.tolist() for name, value in values(pairs).items()}
    assert found == {
        "sp": [0.0],  # 2/4 and 2/4
        "sp_signed": [0.0],
        "eo": [pytest.approx(1 / 6)],  # 1/2 and 2/3
        "eo_signed": [pytest.approx(1 / 6)],
        "fpr_signed": [-0.5],  # 1/2 and 0/1
        "equalised_odds": [0.5],
        "predicted": [0.5],
        "favorable": [0.625],
        "accuracy_group0": [0.5],
        "accuracy_group1": [0.75],
        "auc_group0": [0.5],
        "auc_group1": [pytest.approx(5 / 6)],  # of three pairs two right and one tied
    }
    assert values({name: pair[0] for name, pair in pairs.items()})["eo"] == pytest.approx(1 / 6)


@given(st.integers(0, 10**6), st.integers(0, 2))
@settings(deadline=None, max_examples=8)
def test_fairlearn_and_scikit_learn_agree(seed: int, row: int) -> None:
    people = People(seed)
    y, predicted, sensitive, margin = people.judged(row)
    found = {name: value[row] for name, value in values(people.counts()).items()}
    for s in (0, 1):
        mine = sensitive == s
        if mine.any():
            assert found[f"accuracy_group{s}"] == pytest.approx(accuracy_score(y[mine], predicted[mine]))
        if len(np.unique(y[mine])) == 2:
            assert found[f"auc_group{s}"] == pytest.approx(roc_auc_score(y[mine], margin[mine]))
    cells = {(s, label) for s, label in zip(sensitive, y, strict=True)}
    if len(cells) < 4:
        return  # fairlearn takes 0 for the rate of an empty group
    given_ = {"sensitive_features": sensitive}
    assert found["sp"] == pytest.approx(demographic_parity_difference(y, predicted, **given_))
    assert found["eo"] == pytest.approx(equal_opportunity_difference(y, predicted, **given_))
    assert found["equalised_odds"] == pytest.approx(equalized_odds_difference(y, predicted, **given_))
    rate = MetricFrame(metrics=lambda y, p: p.mean(), y_true=y, y_pred=predicted, **given_).by_group
    assert found["sp_signed"] == pytest.approx(rate[1] - rate[0])


@given(st.integers(0, 10**6), st.integers(1, 12))
@settings(deadline=None, max_examples=60)
def test_the_formulas_written_apart_agree(oracles: Any, seed: int, nodes: int) -> None:
    """Also where groups are empty."""
    people = People(seed, nodes)
    found = values(people.counts())
    for row in range(3):
        y, predicted, sensitive, _ = people.judged(row)
        sp, eo = oracles.parity_gap(predicted, sensitive), oracles.opportunity_gap(predicted, y, sensitive)
        assert found["sp_signed"][row] == pytest.approx(sp, abs=1e-12, nan_ok=True)
        assert found["eo_signed"][row] == pytest.approx(eo, abs=1e-12, nan_ok=True)


@given(st.integers(0, 10**6))
@settings(deadline=None, max_examples=30)
def test_swapping_the_groups_turns_the_signs(seed: int) -> None:
    people = People(seed)
    before = values(people.counts())
    people.sensitive = np.where(people.sensitive < 0, -1, 1 - people.sensitive)
    after = values(people.counts())
    for name in GAPS:
        np.testing.assert_array_equal(after[name], before[name])
    for name in SIGNED:
        np.testing.assert_array_equal(after[name], -before[name])
    for name in ("accuracy", "auc"):
        np.testing.assert_array_equal(after[f"{name}_group0"], before[f"{name}_group1"])


def test_counts_add_up_to_those_of_all_nodes_together() -> None:
    clients = [People(seed, nodes) for seed, nodes in enumerate((5, 40, 1, 80))]
    merged = merge([people.counts(auc=False) for people in clients])
    whole = People(0)
    whole.logits = torch.cat([people.logits for people in clients])
    whole.y, whole.sensitive = (
        np.concatenate([getattr(people, key) for people in clients]) for key in ("y", "sensitive")
    )
    whole.masks = np.concatenate([people.masks for people in clients], 1)
    assert torch.equal(merged["groups"], whole.counts(auc=False)["groups"])
    for name, value in values(merged).items():
        np.testing.assert_array_equal(value, values(whole.counts(auc=False))[name])


def test_stacked_clients_give_the_same_counts_as_each_alone() -> None:
    clients = [People(seed) for seed in range(4)]
    columns = (torch.from_numpy(np.stack([getattr(c, key) for c in clients])) for key in ("y", "sensitive", "masks"))
    stacked = torch.func.vmap(counts)(torch.stack([c.logits for c in clients]), *columns)
    for place, client in enumerate(clients):
        for name, pair in client.counts().items():
            assert torch.equal(stacked[name][place], pair)


def test_an_empty_group_has_no_gap() -> None:
    people = People(0)
    people.sensitive[:] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = values(people.counts())
    for name in (*GAPS, *SIGNED, "auc_group0"):
        assert np.isnan(found[name]).all()
    assert not np.isnan(found["accuracy_group1"]).any()


def test_tradeoffs_by_hand() -> None:
    assert tradeoff(0.6, 0.05, 0.15) == pytest.approx(3.0)
    np.testing.assert_array_equal(
        tradeoff(np.array([0.5, 0.5, 0.5]), np.array([0.25, 0.0, math.nan]), np.array([0.25, 0.0, 0.1])),
        [1.0, math.nan, math.nan],
    )


def test_medians_over_clients_by_hand() -> None:
    nan = math.nan
    own = {"sp": np.array([[0.4, nan, nan], [0.1, 0.2, nan], [0.2, 0.6, nan], [0.3, nan, nan]])}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = over_clients(own)
    np.testing.assert_allclose(found["sp"], [0.25, 0.4, nan])
    assert found["sp_undefined"].tolist() == [0, 2, 4]


def test_what_is_no_binary_question_is_refused() -> None:
    with refusal("data.two-classes"):
        counts(torch.zeros(2, 3), torch.zeros(2), torch.zeros(2), torch.ones(1, 2, dtype=torch.bool))

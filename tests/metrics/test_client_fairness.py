"""Client fairness: the paper's two formulas by hand, their laws, and clients that cannot be judged."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedweave.metrics.client_fairness import client_fairness, entropy, variance
from tests.refusals import refusal

LOSSES = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30).map(np.array)


def test_by_hand() -> None:
    """Test losses: shares 1/4, 1/4, 1/2; mean 4/3. Training losses: shares 0, 1/2, 1/2; mean 2. Accuracies: mean .5."""
    numbers, names = client_fairness(
        np.array([1.0, 1, 2]), np.array([0.5, 0.8, 0.2]), np.array([0.0, 3, 3]), ["a", "b", "c"]
    )
    assert numbers == pytest.approx(
        {
            "fairness/test_loss_variance": 2 / 9,
            "fairness/test_loss_entropy": 1.5 * math.log(2),
            "fairness/accuracy_deviation": math.sqrt(0.06),
            "fairness/worst_accuracy": 0.2,
            "fairness/best_accuracy": 0.8,
            "fairness/undefined_clients": 0,
            "fairness/train_loss_variance": 2,
            "fairness/train_loss_entropy": math.log(2),
        }
    )
    assert names == {"fairness/worst_client": "c", "fairness/best_client": "b"}


@given(LOSSES, st.floats(0.01, 100))
def test_entropy_laws(losses: np.ndarray, scale: float) -> None:
    """At most log P, reached by equal losses; blind to scale, to order and to a client without loss."""
    own = entropy(losses)
    assert -1e-12 <= own <= math.log(len(losses)) + 1e-9
    assert entropy(np.full(len(losses), scale)) == pytest.approx(math.log(len(losses)))
    assert entropy(losses * scale) == pytest.approx(own, abs=1e-9)
    assert entropy(losses[::-1]) == pytest.approx(own, abs=1e-9)
    assert entropy(np.append(losses, 0)) == pytest.approx(own, abs=1e-9)


@given(LOSSES, st.floats(-3, 3), st.floats(0, 100))
def test_variance_laws(losses: np.ndarray, scale: float, shift: float) -> None:
    """Over P, not P - 1: two copies of every client change nothing. Quadratic in scale, blind to a shift."""
    own, tolerance = variance(losses), 1e-7 * (1 + losses.max() ** 2)
    assert own >= 0
    assert variance(np.tile(losses, 2)) == pytest.approx(own, rel=1e-7, abs=tolerance)
    assert variance(losses * scale + shift) == pytest.approx(scale**2 * own, rel=1e-7, abs=10 * tolerance + 1e-7)
    assert variance(np.full(len(losses), shift)) == pytest.approx(0, abs=1e-9)


def test_perfect_models_are_equal() -> None:
    numbers, _ = client_fairness(np.zeros(4), np.ones(4), np.zeros(4), list("abcd"))
    assert numbers["fairness/test_loss_entropy"] == pytest.approx(math.log(4))
    assert numbers["fairness/test_loss_variance"] == 0


def test_one_client() -> None:
    numbers, names = client_fairness(np.array([0.7]), np.array([0.5]), np.array([0.1]), ["only"])
    assert numbers["fairness/test_loss_entropy"] == numbers["fairness/test_loss_variance"] == 0
    assert numbers["fairness/worst_accuracy"] == numbers["fairness/best_accuracy"] == 0.5
    assert set(names.values()) == {"only"}


def test_clients_that_cannot_be_judged_are_left_out_and_counted() -> None:
    nan = math.nan
    numbers, names = client_fairness(
        np.array([nan, 1, 3, nan, 2]), np.array([nan, 0.5, nan, 0.1, 0.9]), np.ones(5), ["a", "b", "c", "d", "e"]
    )
    assert numbers["fairness/undefined_clients"] == 3
    assert numbers["fairness/test_loss_variance"] == pytest.approx(2 / 3)  # of 1, 3 and 2
    assert numbers["fairness/test_loss_entropy"] == entropy(np.array([1.0, 3, 2]))
    assert numbers["fairness/accuracy_deviation"] == pytest.approx((0.32 / 3) ** 0.5)  # of .5, .1 and .9
    assert (numbers["fairness/worst_accuracy"], numbers["fairness/best_accuracy"]) == (0.1, 0.9)
    assert names == {"fairness/worst_client": "d", "fairness/best_client": "e"}


@pytest.mark.parametrize("clients", [0, 2])
def test_nobody_to_judge(clients: int) -> None:
    nothing = np.full(clients, math.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        numbers, names = client_fairness(nothing, nothing, nothing, ["a", "b"][:clients])
    assert numbers.pop("fairness/undefined_clients") == clients
    assert all(math.isnan(value) for value in numbers.values())
    assert names == {}


def test_infinite_losses_have_no_spread() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        numbers, _ = client_fairness(np.array([math.inf, 1]), np.array([0.1, 0.2]), np.ones(2), ["a", "b"])
    assert math.isnan(numbers["fairness/test_loss_variance"])
    assert math.isnan(numbers["fairness/test_loss_entropy"])


def test_equal_accuracies_name_the_first_client() -> None:
    _, names = client_fairness(np.ones(3), np.full(3, 0.5), np.ones(3), ["a", "b", "c"])
    assert set(names.values()) == {"a"}


def test_bad_input_is_refused() -> None:
    with refusal("data.lengths", "3 clients"):
        client_fairness(np.ones(2), np.ones(2), np.ones(2), ["a", "b", "c"])
    with refusal("data.loss", "'b'", "-1"):
        client_fairness(np.array([0.5, -1]), np.ones(2), np.ones(2), ["a", "b"])
    with refusal("data.loss", "'a'", "-2"):
        client_fairness(np.ones(2), np.ones(2), np.array([-2.0, 1]), ["a", "b"])


def test_a_model_that_memorizes_is_not_fair_for_its_training_losses() -> None:
    """Alone, each client's training loss is near 0 and so alike, while what it meets afterwards is not."""
    alone, _ = client_fairness(np.array([0.1, 2.0]), np.array([0.9, 0.3]), np.array([1e-3, 2e-3]), ["a", "b"])
    together, _ = client_fairness(np.array([0.5, 0.6]), np.array([0.8, 0.7]), np.array([0.2, 0.5]), ["a", "b"])
    assert alone["fairness/train_loss_variance"] < together["fairness/train_loss_variance"]
    assert alone["fairness/test_loss_variance"] > together["fairness/test_loss_variance"]

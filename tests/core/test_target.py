"""What is predicted, by the form of y; and the units of numbers."""

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, huber_loss, l1_loss, mse_loss

from fedweave.core.graph import make_graph
from fedweave.core.target import from_scale, is_labeled, kind_of, scale_of, to_scale
from fedweave.learn import Criterion

NUMBERS = np.array([[1.0, np.nan], [3.0, 2.0], [np.nan, np.nan], [5.0, 8.0]])
LABELS = np.array([[0, 1], [-1, -1], [1, -1], [1, 0]])


def test_the_form_says_what_is_predicted() -> None:
    assert [kind_of(y) for y in (np.array([0, -1]), NUMBERS, LABELS)] == ["class", "number", "labels"]
    assert is_labeled(NUMBERS).tolist() == [True, True, False, True]
    assert is_labeled(LABELS).tolist() == [True, False, True, True]


@pytest.mark.parametrize("log", [False, True])
def test_a_scale_is_undone(log: bool) -> None:
    """By hand: of 1, 3 and 5 the mean is 3 and the deviation √(8/3)."""
    scale = torch.from_numpy(scale_of(NUMBERS, log))
    if not log:
        assert scale[:2, 0].tolist() == pytest.approx([3, (8 / 3) ** 0.5])
    y = torch.from_numpy(NUMBERS)
    assert torch.allclose(from_scale(to_scale(y, scale), scale), y, equal_nan=True, rtol=0, atol=1e-12)


def test_a_scale_of_nothing_or_of_one_number_changes_no_spread() -> None:
    assert scale_of(np.array([[np.nan, 4.0], [np.nan, 4.0]])).tolist() == [[0, 4], [1, 1], [0, 0]]
    assert scale_of(NUMBERS, how="none").tolist() == [[0, 0], [1, 1], [0, 0]]


def test_a_graph_keeps_numbers_and_their_units() -> None:
    masks = np.array([[1, 1, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]], bool)
    graph = make_graph(np.ones((4, 1)), np.zeros((2, 0), int), NUMBERS, masks, scale=scale_of(NUMBERS[:2]))
    assert (graph.target, graph.y.dtype) == ("number", torch.float64)
    assert graph.y[4:].isnan().all()
    assert graph.masks[0, :4].tolist() == [True, True, False, False]  # without a number it is in no split
    assert graph.truth[:2, 0].tolist() == [-1, 1]
    assert graph.truth_at(torch.tensor([[1, 3]]))[0, :, 1].tolist() == [0, 6]


@pytest.mark.parametrize(
    ("name", "function"), [("mse", mse_loss), ("mae", l1_loss), ("huber", huber_loss), ("quantile", None)]
)
def test_losses_of_numbers_are_pytorchs_over_those_that_are_there(name: str, function: object) -> None:
    outputs = torch.tensor([[0.5, 1.0], [4.5, 2.5], [9.0, 9.0], [1.0, 1.0]], dtype=torch.float64)
    y, weight = torch.from_numpy(NUMBERS), torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    how = Criterion(number_loss=name, quantile=0.9)  # type: ignore[arg-type]
    loss = how.of(outputs, y, weight, y, weight > 0)
    there, truth = torch.tensor([0.5, 4.5, 2.5]), torch.tensor([1.0, 3.0, 2.0])
    if function is None:  # by hand: .9 · .5, .1 · 1.5, .1 · .5
        assert float(loss) == pytest.approx((0.45 + 0.15 + 0.05) / 3)
    else:
        assert float(loss) == pytest.approx(float(function(there, truth)), abs=1e-7)  # type: ignore[operator]


def test_the_loss_of_labels_is_pytorchs_over_those_that_are_there() -> None:
    outputs = torch.tensor([[0.5, -1.0], [7.0, 7.0], [2.0, 7.0], [-3.0, 0.1]], dtype=torch.float64)
    y, weight = torch.from_numpy(LABELS), torch.ones(4, dtype=torch.float64)
    there = y >= 0
    wanted = binary_cross_entropy_with_logits(outputs[there], y[there].double())
    assert float(Criterion().of(outputs, y, weight, y, weight > 0)) == pytest.approx(float(wanted), abs=1e-12)
    assert float(Criterion().of(outputs, y, 0 * weight, y, weight < 0)) == 0

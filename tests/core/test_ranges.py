"""What values can be: hand-worked cases of every range."""

import math

import pytest
import torch

from fedweave.core.ranges import LARGEST_COUNT, Pairs, Real, Whole


@pytest.mark.parametrize("good", [0, 5, torch.tensor([3, LARGEST_COUNT]), torch.tensor(7.0), True])
def test_counts(good: object) -> None:
    assert Whole().fault("n", good) == ""


@pytest.mark.parametrize("bad", [-1, 1.5, 10**15, math.inf, math.nan, "three", torch.tensor([3, -1])])
def test_what_is_no_count(bad: object) -> None:
    assert Whole().fault("n", bad).startswith("n is ")


@pytest.mark.parametrize(("bad", "said"), [(-0.1, "-0.1"), (math.inf, "inf"), (math.nan, "nan"), ("x", "numbers")])
def test_what_is_no_loss(bad: object, said: str) -> None:
    assert said in Real().fault("loss", bad)
    assert Real().fault("loss", 0.3) == ""
    assert Real(0.0, 1.0).fault("share", 1.5)


def of(total: float, count: float) -> torch.Tensor:
    """Pairs of three splits of which the first is given."""
    return torch.tensor([[total, count], [0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "total", "count"),
    [("loss", 12.5, 5), ("loss", 0, 0), ("accuracy", 5, 5), ("f1", 0, 3), ("auc", 2.5, 1e13)],
)
def test_scores(name: str, total: float, count: float) -> None:
    assert Pairs().fault(f"own/{name}", of(total, count)) == ""


@pytest.mark.parametrize(
    ("name", "total", "count", "said"),
    [
        ("accuracy", 5, 1, "counts more than there is"),
        ("loss", 1.0, 0, "counts more than there is"),
        ("loss", -1.0, 3, "the sum of own/loss is -1"),
        ("loss", math.nan, 3, "the sum of own/loss is nan"),
        ("accuracy", -1, 3, "the sum of own/accuracy is -1"),
        ("accuracy", 0, -3, "the count of own/accuracy is -3"),
        ("accuracy", 0, 1.5, "whole"),
        ("accuracy", 1, 1e15, "the count of own/accuracy is 1e+15"),
    ],
)
def test_what_is_no_score(name: str, total: float, count: float, said: str) -> None:
    assert said in Pairs().fault(f"own/{name}", of(total, count))


def test_scores_of_another_shape() -> None:
    assert Pairs().fault("own/loss", torch.zeros(3, 3))
    assert Pairs().fault("own/loss", "none")
    assert Pairs().fault("own/f1", torch.tensor([[[2.0, 4.0], [1.0, 5.0]]])) == "own/f1 counts more than there is"

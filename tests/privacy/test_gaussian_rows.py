"""Rows leave clipped and noised whatever they are: other members' messages can make them anything."""

import pytest
import torch

from fedweave.core import random
from fedweave.privacy.gaussian import GaussianRows

KEY = random.key(7)
TINY, HUGE = (5e-324, 1e-160, 1e-99, 1e-45, 1e-23, 1e-19), (3e38, 1e154, 1.7e308)
VALUES = (*TINY, 1.0, *HUGE, float("inf"), float("-inf"), float("nan"))


@pytest.mark.parametrize("clip", [1e-100, 1e-45, 1e-30, 1e-3, 1.0, 1e30])
@pytest.mark.parametrize(
    "value",
    [5e-324, 1e-160, 1e-99, 1e-45, 1e-23, 1e-19, 1.0, 3e38, 1e154, 1.7e308, float("inf"), float("-inf"), float("nan")],
)
def test_what_noise_is_added_to_is_a_clip_long_at_most(clip: float, value: float) -> None:
    """Beside the same noise alone, which the rows of 0 get."""
    rows = GaussianRows(clip, sigma=2.0)
    strange, none = (rows.apply(torch.full((5, 16), each, dtype=torch.float64), KEY) for each in (value, 0.0))
    assert strange.isfinite().all()
    assert float((strange - none).norm(dim=1).max()) <= clip * (1 + 1e-9)


@pytest.mark.parametrize("value", [3e38, float("inf"), float("nan")])
def test_rows_of_single_precision_are_finite_too(value: float) -> None:
    h = torch.zeros(6, 8)
    h[2] = value
    sent = GaussianRows(1.0, sigma=100.0).apply(h, KEY)
    assert sent.dtype == torch.float32
    assert sent.isfinite().all(), "what is not finite has no noise"


@pytest.mark.parametrize(("value", "length"), [(1e-25, 1.0), (1e-33, 4e-3), (1e25, 1.0)])
def test_norms_of_single_precision_neither_vanish_nor_overflow(value: float, length: float) -> None:
    """Squares of 1e-25 are 0 in float32, and those of 1e25 infinite: rows of either are clipped to 1e-30."""
    rows, key = GaussianRows(1e-30, sigma=1.0), random.key(3)
    sent, none = (rows.apply(torch.full((5, 16), each), key).double() for each in (value, 0.0))
    assert (sent - none).norm(dim=1) / 1e-30 == pytest.approx(length, rel=1e-3)


def test_short_rows_are_as_they_were_beside_the_noise() -> None:
    rows, h = GaussianRows(1.0, sigma=2.0), torch.full((3, 4), 0.1, dtype=torch.float64)
    assert torch.allclose(rows.apply(h, KEY) - rows.apply(0 * h, KEY), h, rtol=1e-12)

"""What tests of several algorithms share."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.algorithms.test_family_oracles import Problem


@pytest.fixture(scope="module")
def problem() -> "Problem":
    """The federation of `test_family_oracles`, in PyTorch and as arrays for the references."""
    from tests.algorithms.test_family_oracles import Problem

    return Problem()

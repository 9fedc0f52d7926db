"""What a refusal has to be: an error with its code, whose message gives names and numbers, in whatever words."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fedweave.errors import FedweaveError


@contextmanager
def refusal(code: str, *facts: str) -> Iterator[pytest.ExceptionInfo[FedweaveError]]:
    """What is done inside has to raise an error with `code`, whose message has each of `facts` in their order."""
    with pytest.raises(FedweaveError) as error:
        yield error
    said = str(error.value)
    assert error.value.code == code, said
    after = 0
    for fact in facts:
        assert fact in said[after:], f"{fact!r} is not in {said[after:]!r}"
        after = said.index(fact, after) + len(fact)

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
    assert error.value.code == code, error.value
    check_facts(str(error.value), *facts)


def check_facts(text: str, *facts: str) -> None:
    """`text`, in whatever words and lines, has each of `facts`, names and numbers, in their order."""
    text, after = " ".join(text.split()), 0
    for fact in facts:
        assert fact in text[after:], f"{fact!r} is not in {text[after:]!r}"
        after = text.index(fact, after) + len(fact)

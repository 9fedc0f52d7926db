"""What tests of sites share: private keys that are read once."""

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec

import pytest


@pytest.fixture(scope="session", autouse=True)
def keys() -> Iterator[None]:
    """A private key is checked whenever it is read, which takes longer than most tests; the same bytes once will do."""
    if find_spec("nvflare") is None:
        yield
        return
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    once = cache(load_pem_private_key)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedweave.sites.operation.issuing.load_pem_private_key", once)
        patch.setattr("fedweave.sites.protocols.identity.load_pem_private_key", once)
        yield

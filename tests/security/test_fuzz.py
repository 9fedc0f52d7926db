"""Whatever is damaged, the answer is a message (docs/security.md). A case's number is all that it needs to be repeated:
`python -m tests.security.fuzzing NUMBER`."""

import resource
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from tests.security.fuzzing import Stock, finding, make_stock

MEGABYTES = 600  # by which the process may grow


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Stock:
    return make_stock(Path(tmp_path_factory.mktemp("stock")))


def check(stock: Stock, numbers: range) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = [said for number in numbers if (said := finding(number, stock))]
    assert not found, f"{len(found)} of {len(numbers)} cases:\n" + "\n".join(found[:20])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES * 1024


def test_damage_is_answered_with_a_message(stock: Stock) -> None:
    check(stock, range(200))


@pytest.mark.slow
def test_damage_is_answered_with_a_message_20000_times(stock: Stock) -> None:
    check(stock, range(20_000))

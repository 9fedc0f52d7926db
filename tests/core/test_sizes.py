import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedweave.core import sizes
from fedweave.core.sizes import BLOCK, fits, padded_rows, size_class, size_classes


@pytest.mark.parametrize(("nodes", "rows"), [(0, 32), (1, 32), (32, 32), (33, 64), (64, 64), (65, 96)])
def test_the_fewest_rows_are_whole_blocks(nodes: int, rows: int) -> None:
    assert padded_rows(nodes) == rows


def test_classes_of_a_client_alone() -> None:
    found = sorted({size_class(nodes) // BLOCK for nodes in range(30 * BLOCK)})
    assert found == [1, 2, 3, 5, 7, 10, 13, 17, 22, 28, 36]


@settings(deadline=None)
@given(st.integers(0, 10**6))
def test_a_client_alone_takes_at_most_a_quarter_more(nodes: int) -> None:
    rows, least = size_class(nodes), padded_rows(nodes)
    assert rows % BLOCK == 0
    assert least <= rows <= 1.25 * least
    assert fits(rows, nodes)
    assert size_class(rows) == rows


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=40))
def test_a_population_takes_at_most_a_quarter_more_and_nobody_twice_as_much(nodes: list[int]) -> None:
    rows, least = size_classes(nodes), [padded_rows(count) for count in nodes]
    assert sum(rows) <= 1.25 * sum(least)
    assert all(fits(size, count) for size, count in zip(rows, nodes, strict=True))
    assert set(rows) <= set(least)
    ordered = sorted(zip(nodes, rows, strict=True))
    assert [size for _, size in ordered] == sorted(rows)


def test_populations_worked_by_hand() -> None:
    assert size_classes([]) == []
    assert size_classes([5, 30]) == [32, 32]
    assert size_classes([8 * 32] * 4 + [9 * 32] * 3 + [10 * 32] * 3) == [320] * 10  # 11 more than 89 blocks
    assert size_classes([32, 64]) == [32, 64]  # a third more
    assert size_classes([32, 3 * 32, 4 * 32, 4 * 32]) == [32, 128, 128, 128]  # one block of twelve
    assert size_classes([32] + [10 * 32] * 9) == [32] + [320] * 9  # cheap, but ten times what the first needs


def test_rows_that_cost_more_than_a_batch_are_not_added() -> None:
    few = sizes.ROWS_PER_BATCH // BLOCK
    assert size_classes([288] * few + [320] * few) == [320] * 2 * few
    assert size_classes([288] * (few + 1) + [320] * few) == [288] * (few + 1) + [320] * few


@pytest.mark.parametrize(("rows", "nodes", "may"), [(64, 32, True), (96, 32, False), (64, 65, False), (40, 20, False)])
def test_a_size_may_be_kept_up_to_twice_what_is_needed(rows: int, nodes: int, may: bool) -> None:
    assert fits(rows, nodes) == may

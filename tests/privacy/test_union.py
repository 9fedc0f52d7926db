"""A union of sets from one sum: exact, whoever has what, and nothing where the sum is of something else."""

import numpy as np
import pytest

from fedweave.privacy import union
from tests.refusals import refusal

KEY = bytes(range(32))


def of(numbers: range) -> np.ndarray:
    return union.hashes([f"e{number}" for number in numbers], KEY)


@pytest.mark.parametrize("sets", [[range(5)], [range(40), range(20, 60), range(20, 21)], [range(2000)] * 4])
def test_the_union_is_read_from_the_sum_alone(sets: list[range]) -> None:
    rows = union.rows_for(sum(map(len, sets)))
    total = sum(union.table(of(own), rows) for own in sets)
    names = sorted({number for own in sets for number in own})
    expected = np.unique(union.hashes([f"e{number}" for number in names], KEY), axis=0)
    found = union.union(total, len(sets))
    np.testing.assert_array_equal(found, expected)
    for own in sets:
        np.testing.assert_array_equal(found[union.places(of(own), found)], of(own))
    assert (union.places(of(range(9000, 9010)), found) == -1).all()


def test_the_order_in_which_parties_list_names_does_not_matter() -> None:
    rows = union.rows_for(30)
    np.testing.assert_array_equal(union.table(of(range(30)), rows), union.table(of(range(29, -1, -1)), rows))


def test_hashes_are_of_the_key() -> None:
    assert not (of(range(20)) == union.hashes([f"e{number}" for number in range(20)], b"another")).all(1).any()
    assert len(np.unique(of(range(5000)), axis=0)) == 5000


def test_as_many_as_a_table_is_for_are_found_in_it() -> None:
    """Ten tables of each size, whose keys differ."""
    for count in (1, 3, 30, 300):
        for key in range(10):
            own = union.hashes([str(number) for number in range(count)], bytes([key]))
            assert len(union.union(union.table(own, union.rows_for(count)), 1)) == count


@pytest.mark.parametrize(
    "spoil",
    [
        lambda total: total + np.eye(*total.shape, dtype=np.int64),
        lambda total: -total,
        lambda total: total * 4,
        lambda total: np.full_like(total, 7),
    ],
)
def test_a_sum_of_something_else_is_refused(spoil) -> None:
    total = union.table(of(range(50)), union.rows_for(50))
    with refusal("reply.entities"):
        union.union(spoil(total), 3)


def test_a_table_that_is_too_small_is_refused() -> None:
    with refusal("reply.entities"):
        union.union(union.table(of(range(500)), 400), 1)

"""What is asked of objects and memory themselves."""

import numpy as np
import torch

from fedweave.ops.identity import ByObject, Stamp, address, once, storage


def test_a_stamp_fits_the_same_tensor_until_somebody_writes_into_it() -> None:
    tensor = torch.zeros(3)
    stamp = Stamp.of(tensor)
    assert stamp.fits(tensor)
    assert not stamp.fits(tensor.clone())
    tensor[:1].add_(1)  # through a view
    assert not stamp.fits(tensor)


def test_views_share_a_storage_and_arrays_an_address() -> None:
    array = np.zeros(4, np.float32)
    one, other = torch.from_numpy(array), torch.from_numpy(array)
    assert storage(one) == storage(one[2:]) != storage(other)
    assert address(one) == address(other) != address(one.clone())


def test_equal_objects_are_told_apart_and_kept() -> None:
    kept, first = ByObject[str](), {"w": 1}
    kept[first] = "first"
    assert first in kept
    assert dict(first) not in kept
    assert len(kept) == 1


def test_what_stands_under_several_keys_is_made_once() -> None:
    made: list[dict[str, int]] = []
    tree = {"w": 1}
    found = once(lambda thing: made.append(thing) or len(made), {"a": tree, "b": tree, "c": dict(tree)})  # type: ignore[func-returns-value]
    assert found == {"a": 1, "b": 1, "c": 2}

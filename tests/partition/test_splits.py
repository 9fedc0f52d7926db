"""Masks inside clients: totals by hand, stratification and coverage as laws."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedweave.datasets.base import Dataset
from fedweave.partition import Random, notes_on_unused
from fedweave.partition.base import Partition
from fedweave.partition.splits import check_ratios, dataset_split, divide, group, per_class, sizes_of_splits, stratify
from tests.refusals import refusal

RATIOS = st.sampled_from([(0.2, 0.4, 0.4), (0.6, 0.2, 0.2), (1.0, 0.0, 0.0), (0.1, 0.2, 0.3), (0.01, 0.5, 0.49)])


def labelled(y: list[int] | np.ndarray, public: np.ndarray | None = None) -> Dataset:
    y = np.asarray(y)
    return Dataset("toy", np.zeros((len(y), 1)), np.zeros((2, 0), np.int64), y, 4, None, public)


@pytest.mark.parametrize(
    ("nodes", "ratios", "sizes"),
    [
        (10, (0.2, 0.4, 0.4), [2, 4, 4]),
        (11, (0.2, 0.4, 0.4), [2, 5, 4]),  # quotas 2.2, 4.4, 4.4
        (7, (0.6, 0.2, 0.2), [4, 2, 1]),  # quotas 4.2, 1.4, 1.4
        (10, (0.1, 0.2, 0.3), [1, 2, 3]),  # four nodes stay without a role
        (1, (0.2, 0.4, 0.4), [1, 0, 0]),  # whoever has a labeled node trains
        (2, (0.2, 0.4, 0.4), [1, 1, 0]),
        (0, (0.2, 0.4, 0.4), [0, 0, 0]),
    ],
)
def test_role_sizes_by_hand(nodes: int, ratios: tuple[float, float, float], sizes: list[int]) -> None:
    assert sizes_of_splits(np.array([nodes]), ratios).tolist() == [sizes]


@given(nodes=st.lists(st.integers(0, 300), min_size=1, max_size=8), ratios=RATIOS)
def test_role_sizes_are_within_one_node_of_the_ratios(nodes: list[int], ratios: tuple[float, float, float]) -> None:
    counts = np.array(nodes)
    sizes = sizes_of_splits(counts, ratios)
    assert (np.abs(sizes - counts[:, None] * np.array(ratios)) < 1).all()
    assert (sizes.sum(axis=1) <= counts).all()
    if sum(ratios) == 1:
        assert (sizes.sum(axis=1) == counts).all()


@given(y=st.lists(st.integers(-1, 3), min_size=6, max_size=120), ratios=RATIOS, seed=st.integers(0, 5))
def test_masks_of_any_labels(y: list[int], ratios: tuple[float, float, float], seed: int) -> None:
    data = labelled(y)
    held = group(np.arange(len(y)) % 3, 3)
    for part in divide(data, held, ratios, False, seed):
        own = data.y[part.nodes]
        sizes = sizes_of_splits(np.array([(own >= 0).sum()]), ratios)[0]
        assert part.masks.sum(axis=1).tolist() == sizes.tolist()
        assert part.masks.sum(axis=0).max() <= 1
        assert not part.masks[:, own < 0].any()
        classes = np.unique(own[own >= 0])
        assert len(np.unique(own[part.masks[0]])) == min(len(classes), sizes[0])


def test_every_role_has_its_share_of_every_class() -> None:
    y = np.repeat([0, 1, 2, 3], [500, 250, 100, 50])
    (part,) = divide(labelled(y), [np.arange(900)], (0.2, 0.4, 0.4), False, 0)
    table = np.array([np.bincount(y[mask], minlength=4) for mask in part.masks])
    assert table.tolist() == [[100, 50, 20, 10], [200, 100, 40, 20], [200, 100, 40, 20]]


def test_ties_do_not_favor_a_class() -> None:
    y = np.tile([0, 1, 2, 3], 500)  # 500 clients with one node of each class, one of which trains
    parts = divide(labelled(y), group(np.arange(2000) // 4, 500), (0.25, 0.25, 0.5), False, 0)
    trained = np.bincount([y[part.nodes[part.masks[0]]][0] for part in parts], minlength=4)
    assert trained.min() > 80  # 125 expected, standard deviation 9.7


def test_every_node_can_train() -> None:
    y = np.zeros(10, int)
    trained = sum(divide(labelled(y), [np.arange(10)], (0.2, 0.4, 0.4), False, s)[0].masks[0] for s in range(200))
    assert trained.min() > 15  # 40 expected, standard deviation 5.7
    assert trained.sum() == 400


def test_given_sizes_are_met() -> None:
    y = np.repeat([0, 1], 50)
    held = [np.arange(100), np.arange(10, 90)]
    parts = stratify(labelled(y), held, np.array([[30, 20, 50], [8, 2, 40]]), 0)
    assert [part.masks.sum(axis=1).tolist() for part in parts] == [[30, 20, 50], [8, 2, 40]]
    assert [np.bincount(y[part.nodes[part.masks[2]]]).tolist() for part in parts] == [[25, 25], [20, 20]]


def test_published_masks_without_unlabeled_nodes() -> None:
    public = np.array([[1, 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 0]], bool)
    first, second = dataset_split(labelled([0, 1, 2, -1], public), [np.array([0, 2]), np.array([1, 3])])
    assert first.masks.tolist() == [[True, False], [False, False], [False, True]]
    assert second.masks.tolist() == [[False, False], [True, False], [False, False]]


def test_no_published_split_is_an_error() -> None:
    with refusal("config.no-split", "use_dataset_split = true", "'toy'"):
        divide(labelled([0, 1]), [np.arange(2)], (0.5, 0.5, 0.0), True, 0)


def test_ratios_that_sum_to_one_in_decimals_are_accepted() -> None:
    assert 0.7 + 0.2 + 0.1 != 1
    check_ratios(0.7, 0.2, 0.1)


def test_group_by_hand() -> None:
    assert [nodes.tolist() for nodes in group(np.array([2, 0, 2, 0]), 4)] == [[1, 3], [], [0, 2], []]


@pytest.mark.slow
def test_equally_many_of_each_class_train_as_in_the_published_function() -> None:
    """Against PyG's `RandomNodeSplit`: as many of each class train, and as many others validate and test."""
    torch = pytest.importorskip("torch")
    transforms = pytest.importorskip("torch_geometric.transforms")
    geometric = pytest.importorskip("torch_geometric.data")
    y = np.repeat([0, 1, 2, 3], [60, 40, 25, 75])
    masks = per_class(labelled(y), 20, val=0.15, test=0.3, seed=0)
    split = transforms.RandomNodeSplit("random", num_train_per_class=20, num_val=30, num_test=60)
    published = split(geometric.Data(y=torch.tensor(y), num_nodes=200))
    assert np.bincount(y[masks[0]]).tolist() == np.bincount(y[published.train_mask.numpy()]).tolist() == [20] * 4
    for ours, theirs in ((masks[1], published.val_mask), (masks[2], published.test_mask)):
        assert ours.sum() == int(theirs.sum())
    assert masks.sum(0).max() == 1
    assert not np.array_equal(masks, per_class(labelled(y), 20, val=0.15, test=0.3, seed=1))
    unknown = labelled(np.where(np.arange(200) % 7, y, -1))
    assert not per_class(unknown, 20, val=0.1, test=0.2, seed=0)[:, unknown.y < 0].any()


@pytest.mark.parametrize(("train", "val"), [(26, 0.1), (25, 0.9)])
def test_too_few_of_a_class_or_to_validate_are_refused(train: int, val: float) -> None:
    data = labelled(np.repeat([0, 1, 2, 3], [60, 40, 25, 75]))
    with refusal("config.too-few", f"train_per_class = {train}, val = {val}", "'toy'", "25"):
        per_class(data, train, val, 0.1, seed=0)


@pytest.mark.parametrize(
    ("given", "said"),
    [({"split": "time", "train": 0.1}, "partition.train is"), ({"split": "time"}, ""), ({"train": 0.1}, "")],
)
def test_ratios_that_a_split_by_time_does_not_use_are_named(given: dict[str, Any], said: str) -> None:
    data, cut = labelled([0, 1, 0, 1]), Partition((), None)
    assert [note[: len(said)] for note in notes_on_unused(Random(2, **given), data, cut)] == [said] * bool(said)

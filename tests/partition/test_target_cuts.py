"""Cuts of data of which numbers or several labels are predicted, and the units that each client predicts in."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedweave.core.graph import TEST, TRAIN
from fedweave.core.ledger import Ledger
from fedweave.core.target import DIVISOR, LOG, SHIFT, scale_of
from fedweave.datasets.base import Dataset
from fedweave.datasets.synthetic import Synthetic
from fedweave.experiment.graphs import client_graphs, global_test_graph
from fedweave.partition import PARTITIONS, Noise, Random, cut, statistics
from fedweave.partition.base import Part, Partition
from fedweave.partition.client_data import pool_clients, shares
from fedweave.partition.scaling import meter_target_scaling, scale_targets
from tests.partition.test_partition_laws import blocks
from tests.refusals import refusal

NAN = float("nan")
RNG = np.random.default_rng(7)


def numbers(nodes: int = 400, gaps: float = 0.2, log: bool = False, how: str = "own") -> Dataset:
    """Two numbers for each node of a graph of blocks; where both are missing, it is unlabeled."""
    data = blocks(nodes)
    y = np.exp(RNG.standard_normal((nodes, 2))) * [1.0, 1000.0]
    y[RNG.random(y.shape) < gaps] = NAN
    scale = scale_of(y, log, how="none")
    return replace(
        data, y=y, classes=0, targets=("a", "b"), target_scale=scale, target_scaling=how, public=data.public & True
    )


def several(nodes: int = 400) -> Dataset:
    return replace(blocks(nodes), y=RNG.integers(-1, 2, (nodes, 3)), classes=0, targets=("a", "b", "c"))


@pytest.mark.parametrize("data", [numbers(), several()], ids=["numbers", "labels"])
@pytest.mark.parametrize("name", ["random", "louvain", "metis", "ego_networks"])
def test_cuts_that_go_by_no_class_split_what_is_labeled_at_random(name: str, data: Dataset) -> None:
    if name == "metis":
        pytest.importorskip("pymetis")
    kind = PARTITIONS[name]
    more = {"hops": 1} if name == "ego_networks" else {}
    found = cut(kind(clients=4, train=0.5, val=0.25, test=0.25, **more), data, 0)
    for part in found.parts:
        labeled = data.has_label[part.examples]
        assert not part.masks[:, ~labeled].any()
        if name != "ego_networks":
            sizes = part.masks.sum(1)
            assert sizes.sum() == labeled.sum()
            assert abs(sizes - np.array([0.5, 0.25, 0.25]) * labeled.sum()).max() <= 1


@pytest.mark.parametrize("name", ["dirichlet", "label_skew", "overlap", "louvain_plus"])
def test_cuts_by_class_refuse_and_name_others(name: str) -> None:
    for data in (numbers(), several()):
        with refusal("config.target", name, "Choose another partition"):
            cut(PARTITIONS[name](), data, 0)


def test_labels_may_be_removed_and_not_flipped() -> None:
    for data in (numbers(gaps=0), several()):
        found = cut(Random(clients=3), data, 0)
        with refusal("config.target", "flip"):
            Noise(labels=0.5).apply(data, found, 0)
        less, parts = Noise(labels=0.5, labels_by="remove").apply(data, found, 0)
        train = found.parts[0].masks[TRAIN]
        assert parts.parts[0].masks[TRAIN].sum() == train.sum() - round(train.sum() / 2)
        assert (~less.has_label).sum() > (~data.has_label).sum()


def by_hand(how: str, log: bool = False) -> tuple[Dataset, Partition]:
    """Three clients: of 1, 3 and 5; of 10 alone; and without a training example. Two nodes are the global test."""
    y = np.array([[1.0], [3.0], [5.0], [99.0], [10.0], [7.0], [2.0], [4.0]])
    nodes = len(y)
    data = Dataset("hand", np.ones((nodes, 1), np.float32), np.zeros((2, 0), np.int64), y, 0)
    data = replace(data, targets=("y",), target_scaling=how, target_scale=scale_of(y, log, how="none"))

    def part(examples: list[int], train: int) -> Part:
        masks = np.zeros((3, len(examples)), bool)
        masks[TRAIN, :train] = masks[TEST, train:] = True
        masks[TEST, :train] = False
        return Part.of(data, np.array(examples), masks)

    parts = part([0, 1, 2, 3], 3), part([4], 1), part([5], 0)
    return data, Partition(parts, test=np.array([6, 7]))


def test_own_scales_are_those_of_own_training_examples_alone() -> None:
    data, found = by_hand("own")
    data = scale_targets(data, found)
    spread = np.sqrt(8 / 3)
    typical = [(3 * 3 + 10) / 4, spread, 0]  # of 10 alone there is no deviation
    assert data.target_scale is not None
    np.testing.assert_allclose(data.target_scale[:, 0], typical)
    scales = [share.target_scale for share in shares(data, found.parts)]
    np.testing.assert_allclose(np.array(scales)[:, :, 0], [[3, spread, 0], [10, 1, 0], typical])
    graphs, test = client_graphs(data, found), global_test_graph(data, found)
    for graph, scale in zip([*graphs.values(), test], [*scales, data.target_scale], strict=True):
        assert graph is not None
        assert graph.scale is not None
        np.testing.assert_array_equal(graph.scale.numpy(), scale)
    assert graphs["client-0"].truth[:3, 0].tolist() == pytest.approx([-2 / spread, 0, 2 / spread])
    assert graphs["client-0"].y[3].item() == 99  # y stays in the data's units


def test_all_scale_alike_by_all_training_examples_and_say_so() -> None:
    data, found = by_hand("all")
    data = scale_targets(data, found)
    wanted = scale_of(np.array([[1.0], [3.0], [5.0], [10.0]]))
    for share in shares(data, found.parts):
        np.testing.assert_array_equal(share.target_scale, wanted)
    ledger = Ledger()
    meter_target_scaling(ledger, ["a", "b", "c"], data)
    sent = ledger.table().to_pylist()
    assert {(row["direction"], row["step"]) for row in sent} == {("up", "(target scale)"), ("down", "(target scale)")}
    silent = Ledger()
    meter_target_scaling(silent, ["a", "b"], by_hand("own")[0])
    meter_target_scaling(silent, ["a"], data)
    assert silent.table().num_rows == 0


def test_without_scaling_numbers_stay_and_logarithms_are_told() -> None:
    data, found = by_hand("none", log=True)
    [first, *_] = shares(scale_targets(data, found), found.parts)
    assert first.target_scale is not None
    assert first.target_scale[:, 0].tolist() == [0, 1, 1]
    data, found = by_hand("own", log=True)
    [first, *_] = shares(scale_targets(data, found), found.parts)
    assert first.target_scale is not None
    logs = np.log([1, 3, 5])
    np.testing.assert_allclose(first.target_scale[:, 0], [logs.mean(), logs.std(), 1])


def test_the_union_of_all_has_one_scale() -> None:
    data, found = by_hand("own")
    union = pool_clients(found, data)
    data = scale_targets(data, union)
    assert data.target_scale is not None
    wanted = scale_of(np.array([[1.0], [3.0], [5.0], [10.0]]))
    np.testing.assert_allclose(data.target_scale, wanted)
    [share] = shares(data, union.parts)
    np.testing.assert_array_equal(share.target_scale, wanted)


@pytest.mark.parametrize("how", ["own", "all"])
def test_test_examples_move_no_scale(how: str) -> None:
    """A cheat that scales by test examples would show here."""
    data, found = by_hand(how)
    other = data.y.copy()
    other[[3, 5, 6, 7]] = 1e6
    one, two = (scale_targets(held, found) for held in (data, replace(data, y=other)))
    for left, right in zip(shares(one, found.parts), shares(two, found.parts), strict=True):
        np.testing.assert_array_equal(left.target_scale, right.target_scale)


def test_a_number_that_a_client_lacks_has_the_typical_scale() -> None:
    y = np.array([[1.0, NAN], [3.0, NAN], [10.0, 4.0], [20.0, 8.0]])
    data = Dataset("gaps", np.ones((4, 1), np.float32), np.zeros((2, 0), np.int64), y, 0, targets=("a", "b"))
    data = replace(data, target_scale=scale_of(y, how="none"))
    train = np.array([[True, True], [False, False], [False, False]])
    found = Partition((Part.of(data, np.array([0, 1]), train), Part.of(data, np.array([2, 3]), train)))
    data = scale_targets(data, found)
    first, second = (np.asarray(share.target_scale) for share in shares(data, found.parts))
    assert first[:2].tolist() == [[2, 6], [1, 2]]
    assert second[:2].tolist() == [[15, 6], [5, 2]]


def test_tables_say_mean_and_deviation_or_how_many_are_1() -> None:
    data, found = by_hand("own")
    columns = statistics(data, found)
    assert columns["labels"] == [[4], [1], [1]]
    assert columns["means"] == [[27.0], [10.0], [7.0]]
    assert columns["deviations"][0] == pytest.approx([np.std([1, 3, 5, 99])])
    assert re.search("10 ± 0", str(cut(Random(clients=8), replace(data, y=np.full((8, 1), 10.0)), 0)))
    held = several()
    columns = statistics(held, cut(Random(clients=1), held, 0))
    assert columns["labels"] == [(held.y == 1).sum(0).tolist()]
    assert columns.keys().isdisjoint({"means"})


def test_people_of_whom_numbers_are_predicted_have_no_class_1() -> None:
    data, found = by_hand("own")
    columns = statistics(replace(data, sensitive=np.array([0, 1] * 4)), found)
    assert columns["groups"][0] == [2, 2]
    assert columns.keys().isdisjoint({"test_groups_class1"})


def test_classes_have_no_units() -> None:
    data = Synthetic().load(None, 0)
    found = cut(Random(clients=2), data, 0)
    assert scale_targets(data, found) is data
    assert all(graph.scale is None for graph in client_graphs(data, found).values())


def test_scale_rows_are_in_their_order() -> None:
    assert (SHIFT, DIVISOR, LOG) == (0, 1, 2)
    assert torch.tensor(scale_of(np.array([[2.0], [4.0]]))).tolist() == [[3], [1], [0]]


def test_a_typical_scale_needs_somebody_who_trains() -> None:
    data, found = by_hand("own")
    nobody = Partition(tuple(replace(part, masks=part.masks & False) for part in found.parts))
    scaled: Any = scale_targets(data, nobody).target_scale
    assert scaled.tolist() == [[0], [1], [0]]

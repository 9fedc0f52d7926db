"""A cut as a table, for readers and for programs."""

import re
from dataclasses import replace

import pytest

import fedweave
from fedweave.datasets import Dataset
from fedweave.partition import Partition, Random, statistics
from tests.refusals import refusal


@pytest.fixture(scope="module")
def data() -> Dataset:
    return fedweave.datasets.load("synthetic", nodes=60, classes=3, features=4)


def test_a_cut_prints_its_clients_sizes_labels_and_edges(data: Dataset) -> None:
    cut = Random(clients=3).cut(data, seed=0)
    known = statistics(data, cut)
    head, *rows, last = str(cut).splitlines()
    assert [word in head for word in ("client", "nodes", "edges kept", "train", "class 2")] == [True] * 5
    for at, row in enumerate(rows):
        name, nodes, kept, *_ = row.split()
        assert (name, int(nodes), int(kept)) == (f"client-{at}", known["nodes"][at], known["edges_kept"][at])
        assert [int(count) for count in row.split()[-3:]] == known["labels"][at]
    assert len(rows) == 3
    assert re.search(rf"\b{data.edges.shape[1] // 2} edges", last)


def test_many_clients_end_with_their_mean(data: Dataset) -> None:
    lines = str(Random(clients=25).cut(data, seed=0)).splitlines()
    assert len(lines) == 1 + 20 + 1 + 1
    assert lines[-2].split()[:2] == ["mean", f"{60 / 25:.1f}"]


def test_a_table_of_a_cut_is_arrows(data: Dataset) -> None:
    cut = Random(clients=3).cut(data, seed=0)
    table = cut.table()
    assert table["client"].to_pylist() == ["client-0", "client-1", "client-2"]
    assert table["labels"].to_pylist() == statistics(data, cut)["labels"]


def test_a_cut_of_ones_own_needs_its_data(data: Dataset) -> None:
    made = Random(clients=3).cut(data, seed=0)
    own = Partition(made.parts, names=("a", "b", "c"))
    assert replace(made).maker is None
    with refusal("user.no-data"):
        own.table()
    assert own.table(data)["client"].to_pylist() == ["a", "b", "c"]
    assert str(own).count("3 clients") == 1

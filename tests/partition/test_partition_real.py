"""Cuts of the citation graphs; needs the files of $FEDWEAVE_DATA."""

import math
import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from fedweave.datasets.base import Dataset
from fedweave.partition import Dirichlet, LabelSkew, Louvain, Random, statistics, totals

ROOT = Path(os.environ.get("FEDWEAVE_DATA", Path(__file__).parents[2] / "../shared/data"))


@cache
def real(name: str) -> Dataset:
    path = ROOT / name / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"{name} is not in {ROOT}; set FEDWEAVE_DATA")
    with np.load(path, allow_pickle=False) as file:
        y, edges = file["y"].astype(np.int64), np.unique(file["edge_index"].astype(np.int64), axis=1)
        x = sp.csr_matrix((file["x_data"], file["x_indices"], file["x_indptr"]), shape=tuple(file["x_shape"]))
        public = None
        if "train_idx" in file:
            public = np.array([np.isin(np.arange(len(y)), file[f"{role}_idx"]) for role in ("train", "val", "test")])
    return Dataset(name, x, edges, y, int(y.max()) + 1, None, public)


@pytest.mark.parametrize(
    ("name", "clients", "share"),
    [("cora", 10, 0.84), ("cora", 50, 0.74), ("cora", 100, 0.69), ("citeseer", 10, 0.93), ("citeseer", 100, 0.81)],
)
def test_louvain_keeps_most_edges(name: str, clients: int, share: float) -> None:
    data = real(name)
    cut = Louvain(clients=clients).cut(data, 0)
    held = [len(part.nodes) for part in cut.parts]
    assert sum(held) == data.nodes
    assert max(held) <= math.ceil(data.nodes / clients * 1.1)
    assert min(held) >= math.floor(data.nodes / clients * 0.85)
    whole = totals(data, cut)
    assert whole["edges_kept"] >= share * whole["edges"]


def test_default_ratios_on_cora() -> None:
    columns = statistics(real("cora"), Louvain().cut(real("cora"), 0))
    for nodes, *roles in zip(*(columns[name] for name in ("nodes", "train", "val", "test")), strict=True):
        assert sum(roles) == nodes
        assert all(abs(role - ratio * nodes) < 1 for role, ratio in zip(roles, (0.2, 0.4, 0.4), strict=True))


def test_louvain_holdout_on_citeseer() -> None:
    data = real("citeseer")
    cut = Louvain(clients=5, holdout=True).cut(data, 0)
    assert cut.test is not None
    held = np.concatenate([part.nodes for part in cut.parts])
    assert np.array_equal(np.sort(np.concatenate([held, cut.test])), np.arange(data.nodes))
    inside = np.isin(data.edges, cut.test)
    assert inside.all(axis=0).sum() > 3 * (inside.sum(axis=0) == 1).sum()  # a community: few edges leave it


@pytest.mark.parametrize(("name", "share", "clients"), [("cora", 0.3, 5), ("citeseer", 0.3, 5), ("dblp", 0.2, 10)])
def test_the_label_skew_of_the_paper(name: str, share: float, clients: int) -> None:
    data = real(name)
    cut = LabelSkew(clients=clients, share=share).cut(data, 0)
    assert cut.test is not None
    assert len(cut.test) == round(0.3 * data.nodes)
    for part in cut.parts:
        size = round(share * data.nodes)
        assert len(part.nodes) == size
        assert part.masks.sum(axis=1)[1:].tolist() == [round(0.2 * size), 300]
        assert np.sort(np.bincount(data.y[part.nodes]))[-3:].sum() >= round(0.8 * size)


def test_public_split_of_cora_is_shared_out() -> None:
    data = real("cora")
    for how in (Louvain(use_dataset_split=True), Random(use_dataset_split=True), Dirichlet(use_dataset_split=True)):
        columns = statistics(data, how.cut(data, 0))
        assert [sum(columns[role]) for role in ("train", "val", "test")] == [140, 500, 1000]


@pytest.mark.slow
def test_ten_thousand_clients() -> None:
    rng = np.random.default_rng(0)
    nodes = 500_000
    ends = np.stack([np.arange(nodes), np.roll(np.arange(nodes), -1)])
    edges = np.concatenate([ends, ends[::-1]], axis=1)
    edges = edges[:, np.lexsort(edges[::-1])]
    data = Dataset("ring", np.zeros((nodes, 1), np.float32), edges, rng.integers(0, 40, nodes), 40)
    cut = Random(clients=10_000).cut(data, 0)
    columns = statistics(data, cut)
    assert set(columns["nodes"]) == {50}
    assert sum(columns["train"]) == 100_000
    assert sum(columns["edges_kept"]) + sum(columns["edges_cut"]) / 2 == nodes


@pytest.mark.parametrize(
    ("name", "clients", "share", "tests", "alike", "reserved"),
    [("cora", 5, 0.5, 200, 0.86, 0.61), ("citeseer", 5, 0.5, 200, 0.88, 0.57), ("dblp", 10, 0.2, 300, 0.69, 0.44)],
)
def test_reserved_test_nodes_train_elsewhere_less_often(
    name: str, clients: int, share: float, tests: int, alike: float, reserved: float
) -> None:
    """How many test nodes some other client trains on; the two numbers are of seed 0 of the released script."""
    data = real(name)
    skew = LabelSkew(clients, 3, 0.8, share, 0.3, tests, 0.2, rest="all", short="fill", isolated="drop")
    found = []
    for cut in (skew.cut(data, 0), replace(skew, reserved=True).cut(data, 0)):
        trains = [set(part.nodes[part.masks[0]]) for part in cut.parts]
        shared = [
            np.mean(
                [any(node in other for j, other in enumerate(trains) if j != i) for node in part.nodes[part.masks[2]]]
            )
            for i, part in enumerate(cut.parts)
        ]
        found.append(float(np.mean(shared)))
    assert found == [pytest.approx(alike, abs=0.03), pytest.approx(reserved, abs=0.05)]

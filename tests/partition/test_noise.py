"""Noise at a rate: how much changes, where, and what stays."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.datasets.base import Dataset
from fedweave.experiment.build import ingredients
from fedweave.experiment.config import resolve
from fedweave.partition import Dirichlet, GraphsIID, LabelSkew, Noise, Partition, Perturbed
from fedweave.partition.base import Part
from tests.partition.test_field_partitions import rings
from tests.refusals import refusal

CUT = Dirichlet(clients=3, min_nodes=1)


def data_of(sparse: bool = False) -> Dataset:
    data = rings([0, 1, 2] * 4)
    x = 1 + np.arange(data.nodes * 4, dtype=np.float32).reshape(-1, 4)
    return Dataset(data.name, sp.csr_matrix(x) if sparse else x, data.edges, data.y, data.classes)


def owner(cut: Partition, nodes: int) -> np.ndarray:
    found = np.full(nodes, -1)
    for client, part in enumerate(cut.parts):
        found[part.nodes] = client
    return found


@pytest.mark.parametrize("sparse", [False, True])
def test_features_are_masked_at_the_rate(sparse: bool) -> None:
    data = data_of(sparse)
    cut = CUT.cut(data, 0)
    noised, same = Noise(features=0.25).apply(data, cut, 0)
    assert same is cut
    before, after = (x.toarray() if sp.issparse(x) else x for x in (data.x, noised.x))
    assert (after == 0).sum() == round(0.25 * before.size)
    assert (after == before)[after != 0].all()
    assert sp.issparse(noised.x) == sparse


def test_gauss_is_in_standard_deviations_of_the_column_and_spares_the_global_test() -> None:
    data = data_of()
    cut = LabelSkew(clients=2, majors=1, share=0.2, global_test=0.3, test_nodes=3).cut(data, 0)
    noised, _ = Noise(features=2.0, features_by="gauss").apply(data, cut, 0)
    held = np.unique(np.concatenate([part.nodes for part in cut.parts]))
    moved = (noised.x - data.x) / data.x.std(0)
    assert 1.7 < moved[held].std() < 2.3
    assert not moved[np.setdiff1d(np.arange(data.nodes), held)].any()
    assert cut.test is not None
    assert not moved[cut.test].any()


@pytest.mark.parametrize("how", ["drop", "rewire"])
def test_edges_inside_clients_change_at_the_rate_and_those_between_stay(how: Any) -> None:
    data = data_of()
    cut = CUT.cut(data, 1)
    noised, _ = Noise(edges=0.5, edges_by=how).apply(data, cut, 0)
    own = owner(cut, data.nodes)
    inside, after = (own[edges[0]] == own[edges[1]] for edges in (data.edges, noised.edges))
    as_set = [set(map(tuple, edges.T.tolist())) for edges in (data.edges[:, ~inside], noised.edges[:, ~after])]
    assert as_set[0] == as_set[1]
    old = set(map(tuple, data.edges[:, inside].T.tolist()))
    new = set(map(tuple, noised.edges[:, after].T.tolist()))
    pairs = len(old) // 2
    assert abs(len(old & new) // 2 - (pairs - round(0.5 * pairs))) <= 3  # rewiring may hit an edge that was there
    assert len(new - old) == 0 if how == "drop" else len(new) >= 0.9 * len(old)
    assert {(b, a) for a, b in new} == new
    assert not (noised.edges[0] == noised.edges[1]).any()


def test_rewired_edges_stay_in_their_small_graph() -> None:
    graph_of = np.repeat(np.arange(12), 10)
    plain = data_of()
    data = Dataset("small", plain.x, plain.edges, np.arange(12) % 3, 3, graph_of=graph_of)
    cut = GraphsIID(clients=2, global_test=0.0).cut(data, 0)
    noised, _ = Noise(edges=1.0, edges_by="rewire").apply(data, cut, 0)
    assert (graph_of[noised.edges[0]] == graph_of[noised.edges[1]]).all()
    assert noised.edges.shape != data.edges.shape or (noised.edges != data.edges).any()


@pytest.mark.parametrize("how", ["flip", "remove"])
def test_training_labels_alone_change(how: Any) -> None:
    data = data_of()
    cut = Dirichlet(clients=3, min_nodes=10, train=0.4, val=0.3, test=0.3).cut(data, 0)
    noised, after = Noise(labels=0.5, labels_by=how).apply(data, cut, 0)
    changed = noised.y != data.y
    for part, now in zip(cut.parts, after.parts, strict=True):
        train = part.nodes[part.masks[0]]
        assert changed[train].sum() == round(0.5 * len(train))
        assert not changed[part.nodes[part.masks[1] | part.masks[2]]].any()
        assert (now.masks[1:] == part.masks[1:]).all()
        assert now.masks[0].sum() == len(train) - (changed[train].sum() if how == "remove" else 0)
    assert (noised.y[changed] == -1).all() if how == "remove" else (noised.y >= 0).all()


def test_clients_that_share_nodes_have_labels_changed_at_the_rate_too() -> None:
    data = data_of()
    masks = np.zeros((3, data.nodes), bool)
    masks[0] = True
    cut = Partition(tuple(Part(np.arange(data.nodes), masks) for _ in range(5)))
    noised, _ = Noise(labels=0.25).apply(data, cut, 0)
    assert (noised.y != data.y).sum() == round(0.25 * data.nodes)
    with refusal("config.rewire"):
        Noise(edges=0.25, edges_by="rewire").apply(data, cut, 0)


def test_nothing_at_rate_0_and_the_same_with_the_same_seed() -> None:
    data = data_of()
    cut = CUT.cut(data, 0)
    assert Noise().apply(data, cut, 0) == (data, cut)
    one, two, other = (Noise(labels=0.5).apply(data, cut, seed)[0].y for seed in (1, 1, 2))
    assert (one == two).all()
    assert (one != other).any()


def test_what_cannot_be_is_refused() -> None:
    for wrong in ({"edges": 1.5}, {"labels": -0.1}, {"features": 2.0}, {"labels_by": "swap"}):
        with refusal("config.value", next(iter(wrong))):
            Noise(**wrong)  # type: ignore[arg-type]
    plain = data_of()
    led = replace(plain, edge_attrs=EdgeAttributes(plain.edges, directed=True))
    with refusal("config.noise-edges", "noise.edges"):
        Noise(edges=0.5).apply(led, CUT.cut(led, 0), 0)
    data = Dataset("small", plain.x, plain.edges, np.arange(12) % 3, 3, graph_of=np.repeat(np.arange(12), 10))
    own = Perturbed(clients=2, low=1, medium=1, global_test=0.0).cut(data, 0)
    with refusal("config.noise-edges", "noise.edges"):
        Noise(edges=0.5).apply(data, own, 0)


def test_a_configuration_with_noise_and_one_without() -> None:
    document: dict[str, Any] = {
        "data": {"name": "synthetic", "nodes": 60, "classes": 2, "features": 4},
        "partition": {"clients": 2},
        "noise": {"labels": 0.5, "labels_by": "remove"},
    }
    config = resolve(document)
    assert resolve(config.plain()) == config
    plain = resolve({key: value for key, value in document.items() if key != "noise"})
    assert plain.plain().keys().isdisjoint({"noise"})
    trained = [sum(int(part.masks[0].sum()) for part in ingredients(one).partition.parts) for one in (plain, config)]
    assert trained[1] == pytest.approx(trained[0] / 2, abs=1)
    with refusal("config.unknown-key", "noise.moon:"):
        resolve(document | {"noise": {"moon": 1}})

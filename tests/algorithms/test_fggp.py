"""FGGP's prototypes and centers against arithmetic that was written apart from it, and its laws."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedweave.algorithms import ALGORITHMS, fggp
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import TRAIN
from fedweave.core.tree import leaves
from fedweave.experiment.rounds import train
from tests.contract.federations import CLASSES, HIDDEN, distance, federation, graphs, model

SMALL: dict[str, Any] = {"width": 8, "near": 2}


def test_prototypes_are_those_of_the_reference(baselines: Any) -> None:
    graph, rng = graphs(torch.float64)["site-1"], np.random.default_rng(0)
    h, p = rng.normal(size=(graph.nodes, 5)), rng.dirichlet(np.ones(CLASSES), graph.nodes)
    mean, count = fggp.prototypes(torch.from_numpy(h), torch.from_numpy(p), graph)
    n, trains = int(graph.real.sum()), graph.masks[TRAIN].numpy()
    expected, known = baselines.fggp_prototypes(h[:n], p[:n], graph.y.clamp(min=0).numpy()[:n], trains[:n])
    assert np.abs(mean.numpy() - expected).max() < 1e-12
    assert ((count > 0).numpy() == known).all()
    assert int(count.sum()) == n


@pytest.mark.parametrize("count", [1, 2, 3, 7, 12, 30])
def test_centers_are_means_of_the_groups_of_the_reference(baselines: Any, count: int) -> None:
    rows = np.random.default_rng(count).normal(size=(count, 4))
    label, found = baselines.finch(rows), fggp.centers(rows)
    expected = np.stack([rows[label == group].mean(0) for group in range(label.max() + 1)])
    assert found.shape == expected.shape
    assert np.abs(found[np.lexsort(found.T)] - expected[np.lexsort(expected.T)]).max() < 1e-12
    assert len(found) <= max(1, count // 2)  # what the server makes room for


def test_answers_add_up_the_softmax_over_the_nearest_centers() -> None:
    center = torch.zeros(3, 2, 2, dtype=torch.float64)
    center[0, 0], center[0, 1], center[1, 0] = torch.tensor([[1.0, 0], [0, 1], [3, 4]]).double()
    h = torch.tensor([[2.0, 0.0], [0.0, 5.0]], dtype=torch.float64)
    share = np.exp(np.array([[1, 0, 0.6], [0, 1, 0.8]]) / 0.1)
    expected = np.stack([share[:, 0] + share[:, 1], share[:, 2]], 1) / share.sum(1, keepdims=True)
    found = fggp.log_probabilities(h, center, 30).exp().numpy()
    assert np.abs(found[:, :2] - expected).max() < 1e-9
    assert (found[:, 2] < 1e-9).all()  # a class without centers
    assert (fggp.log_probabilities(h, center, 1).argmax(1) == 0).all()


def test_the_contrast_is_cross_entropy_over_classes_of_both_views() -> None:
    z, known = torch.eye(3, dtype=torch.float64), torch.tensor([True, True, False])
    assert float(fggp.contrast(z, z, known, 0.5)) == pytest.approx(np.log(1 + 2 * np.exp(-2.0)))
    assert float(fggp.contrast(z, z, known & False, 0.5)) == 0
    assert float(fggp.contrast(z, z.roll(1, 0), ~known, 0.5)) == pytest.approx(0)  # one class: nothing to tell apart


def test_reconstruction_is_the_weighted_cross_entropy_of_pairs() -> None:
    graph, net = graphs(torch.float64)["site-1"], model(0.0)
    w = models.init(net, random.key(1), torch.float64)
    a, n = fggp.nearest_graph(models.embedded(net, w, graph), graph, 3), int(graph.real.sum())
    pairs = torch.randn(graph.nodes, graph.nodes, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    own = a[:n, :n]
    others = n * n - own.sum()
    plain = F.binary_cross_entropy_with_logits(pairs[:n, :n], own, pos_weight=others / own.sum())
    assert float(fggp.reconstruction(pairs, a, graph.real)) == pytest.approx(float(n * n / (2 * others) * plain))


def test_drawn_edges_are_symmetric_follow_their_chance_and_pass_gradients() -> None:
    graph, net = graphs(torch.float64)["site-1"], model(0.0)
    w, real = models.init(net, random.key(1), torch.float64), graph.real
    a = fggp.nearest_graph(models.embedded(net, w, graph), graph, 3)
    assert (a == a.T).all()
    assert (a.sum(1)[real] >= 4).all()  # itself and three more
    assert (a.sum(1)[~real] == 1).all()
    u = torch.rand(graph.nodes, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pairs = (u @ u.T).requires_grad_()
    kept = torch.stack([fggp.draw_edges(pairs, a, real, random.key(seed)) for seed in range(100)])
    assert ((kept - kept.round()).abs() < 1e-12).all()
    assert (kept == kept.transpose(1, 2)).all()
    off = real & real[:, None] & ~torch.eye(graph.nodes, dtype=torch.bool)
    chance = 0.5 * pairs / torch.where(real & real[:, None], pairs, 0.0).amax() + 0.5 * a
    assert float((kept.mean(0) - chance).detach()[off].abs().max()) < 0.25
    assert abs(float((kept.mean(0) - chance).detach()[off].mean())) < 0.01
    [slope] = torch.autograd.grad(kept.sum(), pairs)
    assert (slope[off] >= 0).all()
    assert (slope[off] > 0).any()


def ended(name: str, **options: Any) -> tuple[Any, set[tuple[str, str]], Any]:
    fed = federation()
    *_, last = train(ALGORITHMS[name](model(), **options), fed, 1, eval_every=0)
    said = {(row["direction"], row["key"]) for row in fed.ledger.table().to_pylist()}
    return last.state, {own for own in said if not own[1].startswith("global_test")}, fed


@pytest.mark.slow
def test_without_strength_it_is_fedavg_and_only_centers_cross() -> None:
    plain, keys, _ = ended("fedavg")
    off, _, _ = ended("fggp", answer="classifier", augment=0.0, align=0.0, **SMALL)
    for path, leaf in leaves(plain["w"]):
        assert torch.equal(leaf, dict(leaves(off["w"]))[path])
    classifier, told, _ = ended("fggp", answer="classifier", **SMALL)
    assert distance(classifier["w"], off["w"]) > 1e-4
    assert {key.rpartition("/")[2] for _, key in told - keys} == set(fggp.AUGMENTOR)
    centers, said, fed = ended("fggp", **SMALL)
    assert distance(classifier["w"], centers["w"]) == 0  # centers answer alone
    assert said - told == {("up", "prototype"), ("down", "NearestCentres/centre")}
    assert centers["parts"]["NearestCentres"]["centre"].shape == (CLASSES, len(fed.clients) // 2, HIDDEN)

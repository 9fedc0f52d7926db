"""Decoders of knowledge graphs against formulas in complex numbers, and pykeen where it is installed."""

import numpy as np
import pytest
import torch

from fedweave.core import model as models
from fedweave.core import random
from fedweave.models import Embedding, LightGCN
from fedweave.models.relations import DECODERS, complex_product, distmult, rotate, transe

H, T = torch.randn(2, 40, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
R = torch.randn(40, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
H[0] = T[0] = R[0] = 0.0


def paired(rows: torch.Tensor) -> np.ndarray:
    """Complex numbers of rows whose first half is real."""
    array = rows.numpy()
    return array[:, :3] + 1j * array[:, 3:]


def test_scores_by_hand():
    h, r, t = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -1.0]), torch.tensor([2.0, 1.0])
    assert float(distmult(h, r, t)) == 6 - 2
    assert float(transe(h, r, t)) == -(2 + 0)
    assert float(transe(h, r, t, 2)) == -2.0
    assert float(complex_product(h, r, t)) == 15.0  # (1 + 2i)(3 - i) = 5 + 5i, times 2 - i = 15 + 5i
    assert float(rotate(h, torch.tensor([np.pi / 2]), torch.tensor([-2.0, 1.0]))) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("score", "wanted"),
    [
        (distmult, lambda h, r, t: (h * r * t).sum(1)),
        (transe, lambda h, r, t: -np.abs(h + r - t).sum(1)),
        (lambda h, r, t: transe(h, r, t, 2.0), lambda h, r, t: -np.linalg.norm(h + r - t, axis=1)),
    ],
)
def test_real_scores_are_the_formulas(score, wanted):
    np.testing.assert_allclose(score(H, R, T).numpy(), wanted(H.numpy(), R.numpy(), T.numpy()), atol=1e-12)


def test_complex_scores_are_the_formulas():
    h, r, t = paired(H), paired(R), paired(T)
    np.testing.assert_allclose(complex_product(H, R, T).numpy(), (h * r * t.conj()).sum(1).real, atol=1e-12)
    angle = R[:, :3]
    wanted = -np.linalg.norm(h * np.exp(1j * angle.numpy()) - t, axis=1)
    np.testing.assert_allclose(rotate(H, angle, T).numpy(), wanted, atol=1e-12)


@pytest.mark.parametrize("name", ["distmult", "complex", "transe", "rotate"])
def test_scores_are_pykeens(name):
    modules = pytest.importorskip("pykeen.nn.modules")
    kinds = {"distmult": "DistMult", "complex": "ComplEx", "transe": "TransE", "rotate": "RotatE"}
    kind = getattr(modules, f"{kinds[name]}Interaction")
    decoder = DECODERS[name]
    relation = R[:, :3] if decoder.angles else R
    theirs = kind(p=1) if name == "transe" else kind()
    of = (lambda rows: torch.from_numpy(paired(rows))) if decoder.halves else (lambda rows: rows)
    turned = torch.polar(torch.ones_like(relation), relation) if name == "rotate" else of(relation)
    torch.testing.assert_close(theirs(of(H), turned, of(T)), decoder.score(H, relation, T), atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", DECODERS)
def test_first_vectors_are_within_their_bound_and_gradients_finite_at_zero(name):
    decoder = DECODERS[name]
    r = decoder.init(random.key(0), 500, 6)
    bound = np.pi if decoder.angles else 1.0  # sqrt(6 / 6)
    assert r.shape == (500, 3 if name == "rotate" else 6)
    assert 0.95 * bound < float(r.abs().max()) <= bound
    rows = [torch.zeros(1, width, requires_grad=True) for width in (6, r.shape[1], 6)]
    decoder.score(*rows).sum().backward()
    assert all(row.grad.isfinite().all() for row in rows)


def test_an_embedding_begins_alike_for_few_and_many_entities():
    for entities in (10, 5000):
        (layer,) = Embedding(16).build(entities, 16)
        weight = layer.init(random.key(0))["weight"]
        assert weight.shape == (entities, 16)
        assert float(weight.std()) == pytest.approx((6 / 16 / 3) ** 0.5, rel=0.2)


@pytest.mark.parametrize("layers", [1, 3])
def test_lightgcn_is_pygs(layers):
    """The mean over layers of vectors that pass along edges (`torch_geometric.nn.LightGCN`); one node has no edge."""
    import scipy.sparse as sp
    from torch_geometric.nn import LightGCN as Theirs

    from fedweave.core.graph import make_graph

    draw = np.random.default_rng(0)
    pairs = np.unique(draw.integers(0, 11, (2, 30)), axis=1)
    pairs = pairs[:, pairs[0] != pairs[1]]
    edges = np.unique(np.concatenate([pairs, pairs[::-1]], 1), axis=1)
    graph = make_graph(sp.eye(12, format="csr"), edges, np.zeros(12, np.int64), np.zeros((3, 12), bool))
    net = LightGCN(hidden=8, layers=layers).build(12, 8)
    w = models.init(net, random.key(0))
    theirs = Theirs(12, 8, layers)
    theirs.embedding.weight.data = w["0"]["weight"]
    wanted = theirs.get_embedding(torch.from_numpy(edges))
    torch.testing.assert_close(models.apply(net, w, graph)[:12], wanted, atol=1e-6, rtol=0)

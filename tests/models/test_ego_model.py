"""The `ego` model: its layers, its sizes, and the two orders of its convolutions."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import make_graph
from fedweave.models import MODELS, sage
from fedweave.sampling import ego_graphs
from fedweave.sampling.ego_graphs import Egos
from tests.random_graphs import random_graph


def floats(tree: Any) -> int:
    return sum(math.prod(leaf.shape) for layer in tree.values() for leaf in layer.values())


@pytest.mark.parametrize(("features", "theta"), [(1433, 734_208), (3703, 1_896_448)])
def test_reduction_layers_have_the_size_of_table_9(features: int, theta: int) -> None:
    """Cora and CiteSeer with hidden 512; the convolutions have two weights and a bias each, then the classifier."""
    w = models.init(MODELS["ego"]().build(features, 7), random.key(0))
    assert floats({"0": w["0"]}) == theta
    assert floats({key: w[key] for key in "123"}) == 2 * (2 * 512 * 512 + 512) + 512 * 7 + 7
    shared = models.init(MODELS["ego"](share_root_weight=True).build(features, 7), random.key(0))
    assert floats(w) - floats(shared) == 2 * 512 * 512


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("share", [False, True])
def test_layers_written_out(linear: bool, share: bool) -> None:
    """Dense arithmetic on a graph with isolated nodes, which are their own neighbors."""
    given, n = random_graph(24), 24
    links = given.edges.members[0].index
    links = links[:, (links > 3).all(0)]
    arrays = given.x[:n].numpy(), links, given.y[:n].numpy(), given.masks[:, :n].numpy()  # type: ignore[index, union-attr]
    graph = make_graph(*arrays, dtype=torch.float64)
    model = MODELS["ego"](hidden=5, dropout=0.3, share_root_weight=share, linear=linear).build(6, 3)
    w = models.init(model, random.key(1), torch.float64)
    a = torch.tensor(graph.edges.members[0].adjacency.toarray())[:n, :n].double()
    a = a / a.sum(1, keepdim=True).clamp(min=1)
    alone = a.sum(1) == 0
    assert alone.any()
    a = a + torch.diag(alone.double())
    h = torch.relu(graph.x[:n] @ w["0"]["weight"] + w["0"]["bias"])  # type: ignore[index]
    for layer in ("1", "2"):
        root = w[layer]["neigh" if share else "root"]
        h = h @ root + a @ h @ w[layer]["neigh"] + w[layer]["bias"]
        h = h if linear else torch.relu(h)
    expected = h @ w["3"]["weight"] + w["3"]["bias"]
    torch.testing.assert_close(models.apply(model, w, graph)[:n], expected, atol=1e-12, rtol=1e-12)
    assert not torch.equal(models.apply(model, w, graph, random.key(2))[:n], expected)


def test_dropout_at_the_ends_spares_the_first_convolution() -> None:
    """A layer's output with a key is its output without one, scaled or 0, where it drops and the same where not."""
    graph = random_graph(40)
    for dropped, dropping in (("all", [True, True, True, False]), ("ends", [True, False, True, False])):
        model = MODELS["ego"](hidden=5, dropout=0.5, dropped=dropped).build(6, 3)
        w, h, found = models.init(model, random.key(0), graph.x.dtype), graph.x, []  # type: ignore[union-attr]
        for i, layer in enumerate(model):
            plain, with_key = (layer.apply(w[str(i)], graph, h, key) for key in (None, random.key(i)))
            assert torch.equal(with_key[with_key != 0] > 0, plain[with_key != 0] > 0)
            found.append(not torch.equal(plain, with_key))
            h = plain
        assert found == dropping


def test_kaiming_normal_weights_have_torchs_moments() -> None:
    uniform, normal = (
        models.init(MODELS["ego"](hidden=300, initial=how).build(400, 5), random.key(0))
        for how in ("uniform", "kaiming")
    )
    source = torch.Generator().manual_seed(0)
    for layer, fan_in in (("0", 400), ("1", 300), ("3", 300)):
        for name, leaf in normal[layer].items():
            if name == "bias":
                assert torch.equal(leaf, uniform[layer][name])
                continue
            torchs = torch.nn.init.kaiming_normal_(torch.empty(leaf.shape[1], leaf.shape[0]), generator=source)
            assert float(leaf.std()) == pytest.approx(float(torchs.std()), rel=0.05)
            assert float(leaf.std()) == pytest.approx(math.sqrt(2 / fan_in), rel=0.05)
            assert abs(float(leaf.mean())) < 0.1 * float(leaf.std())


def test_the_other_order_puts_convolutions_first() -> None:
    model = MODELS["ego"](hidden=5, order="gnn-mlp").build(6, 3)
    assert [layer.operator for layer in model] == ["mean_or_self", "mean_or_self", None, None]
    assert Egos(hops=0).split(model) == 2
    plain = MODELS["ego"](hidden=5).build(6, 3)
    assert [layer.operator for layer in plain] == [None, "mean_or_self", "mean_or_self", None]
    assert [Egos(hops=hops).split(plain) for hops in (0, 1, 2)] == [3, 2, 1]


@pytest.mark.parametrize(("name", "hops"), [("gcn", 2), ("gcn", 1), ("mlp", 1), ("gat", 2), ("gcnii", 2), ("ego", 3)])
def test_models_that_cannot_run_on_egos_are_refused(name: str, hops: int) -> None:
    model = MODELS[name]().build(6, 3)
    with pytest.raises(ValueError, match=r"ego-graphs of \d hops need .* Choose model.name = 'ego', or 'sage'"):
        Egos(hops=hops).split(model)


@pytest.mark.parametrize("share", [False, True])
def test_the_order_of_operations_does_not_show(share: bool) -> None:
    """On an ego the mean comes before the product, on a graph after it: a star and its ego give the same center."""
    layer = sage.convolution(4, 3, share)
    w = {name: value.double() for name, value in layer.init(random.key(0)).items()}
    h = torch.tensor(random.generator(0, "star").standard_normal((4, 4)))
    star = np.array([[1, 2, 3], [0, 0, 0]])
    graph = make_graph(h.numpy(), star, np.zeros(4, int), np.zeros((3, 4), bool), dtype=torch.float64)
    whole = layer.apply(w, graph, graph.x, None)[0]
    alone = layer.apply(w, ego_graphs.ego_graph(h, 1, 3), h, None)
    assert alone.shape == (1, 3)
    torch.testing.assert_close(alone[0], whole, atol=1e-12, rtol=1e-12)

"""One client alone and the same client in a batch: the same bits, in outputs and in gradients."""

from collections.abc import Iterator

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import Graph, make_graph, stack
from fedweave.core.tree import Tree
from fedweave.models import MODELS
from fedweave.ops.linear import linear
from tests.random_graphs import dims_of, padded_alike

SIZES = (20, 300, 33, 64, 161)
NAMES = (*(name for name in MODELS if name != "star"), "shared")


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.slow)], ids=["1 thread", "2 threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """The CPU's kernels divide their work by threads, and may sum differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def client(nodes: int, features: int, classes: int, sparse: bool, dtype: torch.dtype) -> Graph:
    rng = random.generator(nodes, "same bits")
    pairs = rng.integers(0, nodes, (2, 2 * nodes))
    pairs = pairs[:, pairs[0] != pairs[1]]
    edges = np.unique(np.concatenate([pairs, pairs[::-1]], 1), axis=1)
    x = np.where(rng.random((nodes, features)) < 0.1, rng.standard_normal((nodes, features)), 0).astype(np.float32)
    masks = rng.random((3, nodes)) < 0.5
    return make_graph(sp.csr_matrix(x) if sparse else x, edges, rng.integers(0, classes, nodes), masks, dtype=dtype)


def gradients(loss: Tensor, w: Tree) -> Tree:
    tensors, spec = pytree.tree_flatten(w)
    return pytree.tree_unflatten(torch.autograd.grad(loss, tensors), spec)


def check_same_bits(model: models.Model, graphs: list[Graph], dtype: torch.dtype) -> None:
    """Each graph's outputs and gradients are, to the bit, those that it has in a batch with the others."""
    together = stack(padded_alike(graphs))
    keys = torch.stack([random.fold(random.key(1), site) for site in range(len(graphs))])
    each = [models.init(model, key, dtype) for key in keys]
    w = pytree.tree_map(lambda *tensors: torch.stack(tensors).requires_grad_(), *each)

    def loss(w: Tree, graph: Graph, key: Tensor) -> tuple[Tensor, Tensor]:
        logits = models.apply(model, w, graph, key)
        own = -logits.log_softmax(-1).gather(-1, graph.y.clamp(min=0)[:, None])[:, 0]
        return (own * graph.masks[0]).sum() / 16, logits

    dims = dims_of(together)
    losses, outputs = vmap(loss, in_dims=(0, dims, 0))(w, together, keys)
    batched = gradients(losses.sum(), w)
    for site, graph in enumerate(graphs):
        own = pytree.tree_map(lambda leaf, site=site: leaf[site].detach().clone().requires_grad_(), w)
        alone, logits = loss(own, graph, keys[site])
        count = int((graph.y >= 0).sum())
        assert torch.equal(outputs[site, :count], logits[:count])
        for layer, of_layer in gradients(alone, own).items():
            for weight, gradient in of_layer.items():
                assert gradient.any()
                assert torch.equal(batched[layer][weight][site], gradient), f"client {site}, {layer}/{weight}"


@pytest.mark.often(*(f"1 thread-1433-6-dtype3-sparse-{name}" for name in NAMES), "1 thread-100-7-dtype2-dense-ego")
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    ("features", "classes", "dtype"),
    [
        pytest.param(100, 7, torch.float32, marks=pytest.mark.slow),
        pytest.param(27, 2, torch.float32, marks=pytest.mark.slow),
        (100, 7, torch.float64),
        (1433, 6, torch.float32),
    ],
)
def test_models(name: str, sparse: bool, features: int, classes: int, dtype: torch.dtype) -> None:
    made = MODELS["sage"](share_root_weight=True) if name == "shared" else MODELS[name]()
    model = made.build(features, classes)
    check_same_bits(model, [client(nodes, features, classes, sparse, dtype) for nodes in SIZES], dtype)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fan_out", [1, 2, 7, 10, 64])
def test_linear(dtype: torch.dtype, fan_out: int) -> None:
    """Shapes that a plain `torch.bmm` or `torch.mm` fails on."""
    for fan_in in (1, 5, 33, 64):
        rng = torch.Generator().manual_seed(fan_in)
        h, w, pull = (
            torch.randn(3, *shape, dtype=dtype, generator=rng)
            for shape in ((320, fan_in), (fan_in, fan_out), (320, fan_out))
        )
        sizes = (320, 32, 224)
        for site, size in enumerate(sizes):
            h[site, size:] = pull[site, size:] = 0
        h.requires_grad_()
        w.requires_grad_()
        out = vmap(linear)(h, w)
        of_h, of_w = torch.autograd.grad((out * pull).sum(), (h, w))
        for site, size in enumerate(sizes):
            own_h, own_w = h[site, :size].detach().clone().requires_grad_(), w[site].detach().clone().requires_grad_()
            own = linear(own_h, own_w)
            alone = torch.autograd.grad((own * pull[site, :size]).sum(), (own_h, own_w))
            pairs = [(out[site, :size], own), (of_h[site, :size], alone[0]), (of_w[site], alone[1])]
            assert [torch.equal(*pair) for pair in pairs] == [True] * 3, (fan_in, size)

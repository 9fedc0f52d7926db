"""Products by oneDNN: right, and with bits that depend neither on other clients nor on padding."""

import time
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedweave.algorithms import FedAvg
from fedweave.core.model import Model
from fedweave.core.tree import Tree
from fedweave.experiment.rounds import train
from fedweave.models import GCN, GIN
from fedweave.ops import linear as gemm
from fedweave.ops import onednn
from fedweave.ops.linear import affine, gram, linear, product
from tests.contract.federations import CLASSES, FEATURES, distance, federation

SHAPES = [(1, 128, 128), (2, 132, 200), (97, 512, 512), (128, 192, 192), (513, 1433, 64), (1300, 128, 260)]
SHAPES += [(40, 1435, 13), (600, 767, 64)]  # widths that others pad


@pytest.fixture(autouse=True)
def by_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this processor is."""
    if not onednn.reliable():
        pytest.skip("this PyTorch has no oneDNN, or an old one")
    monkeypatch.setattr(onednn, "_faster", lambda: True)
    assert onednn.by_onednn(128, 128, torch.zeros(1))


def matrices(rows: int, fan_in: int, fan_out: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    made = torch.Generator().manual_seed(rows)
    shapes = (rows, fan_in), (fan_in, fan_out), (rows, fan_out), (fan_out,)
    h, w, g, bias = (torch.randn(*shape, generator=made) for shape in shapes)
    return h, w, g, bias


def padded(own: Tensor, rows: int, clients: int = 3) -> Tensor:
    """[P, n + rows, …]: the client's rows, then zeros, among other clients."""
    out = torch.ones(clients, len(own) + rows, *own.shape[1:])
    out[1] = 0
    out[1, : len(own)] = own
    return out


@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_right(shape: tuple[int, int, int]) -> None:
    h, w, g, bias = matrices(*shape)
    exact = [(h.double() @ w.double()), h.double().mT @ g.double()]
    torch.testing.assert_close(linear(h, w).double(), exact[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gram(h[None], g[None])[0].double(), exact[1], rtol=1e-4, atol=2e-4)
    wanted = torch.relu(exact[0] + bias.double())
    torch.testing.assert_close(affine(h, w, bias, relu=True).double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [0, 1, 200, 1000])
def test_bits_depend_neither_on_other_clients_nor_on_padding(shape: tuple[int, int, int], rows: int) -> None:
    h, w, g, bias = matrices(*shape)
    all_h, all_g = padded(h, rows), padded(g, rows)
    all_w = torch.stack([torch.zeros_like(w), w, torch.ones_like(w)])
    n = len(h)
    assert torch.equal(product(h[None], w[None])[0], product(all_h, all_w)[1, :n])
    assert torch.equal(product(g[None], w.mT[None])[0], product(all_g, all_w.mT)[1, :n])
    assert torch.equal(gram(h[None], g[None])[0], gram(all_h, all_g)[1])

    def gradients(h: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        leaves = [it.clone().requires_grad_() for it in (h, w, bias)]
        out = affine(*leaves, relu=True)
        (out * g).sum().backward()
        return out.detach()[:n], leaves[0].grad[:n], leaves[1].grad, leaves[2].grad  # type: ignore[index, return-value]

    for alone, among in zip(gradients(h, g), gradients(all_h[1], all_g[1]), strict=True):
        assert torch.equal(alone, among)


@pytest.mark.parametrize("shape", SHAPES)
def test_columns_of_zeros_would_change_no_bits_so_that_features_are_not_copied(shape: tuple[int, int, int]) -> None:
    h, w, g, _ = matrices(*shape)
    more = torch.nn.functional.pad
    assert torch.equal(linear(h, w), linear(more(h, (0, 3)), more(w, (0, 0, 0, 3))))
    assert torch.equal(gram(h[None], g[None]), gram(more(h, (0, 3))[None], g[None])[:, : h.shape[1]])
    sizes = []

    class Sizes(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.nn.functional.pad:
                sizes.append(args[0].numel())
            return function(*args, **kwargs or {})

    with Sizes():
        product(h[None], w[None]), gram(h[None], g[None])
    assert not sizes or max(sizes) < h.numel()


def test_a_part_of_a_matrix_is_multiplied_as_fast_and_to_the_same_bits() -> None:
    """oneDNN's own product takes a thousand times as long where the right side's rows have gaps, or are one row."""
    h, _, g, _ = matrices(128, 1436, 64)
    apart = torch.cat([g, g], 1)[:, :64]
    assert torch.equal(gram(h[None], apart[None]), gram(h[None], g[None]))
    same = g[:1].expand(128, -1)
    assert torch.equal(gram(h[None], same[None]), gram(h[None], same.contiguous()[None]))
    took = []
    for right in (g, apart, same):
        begun = time.process_time()
        gram(h[None], right[None])
        took.append(time.process_time() - begun)
    assert max(took) < 0.1  # 0.3 s before, and 0.4 ms now


def test_affine_is_linear_with_the_bias_and_relu_after_it() -> None:
    h, w, _, bias = matrices(97, 512, 512)
    assert torch.equal(affine(h, w, bias, relu=True), torch.relu(linear(h, w) + bias))


def test_what_is_not_a_number_stays_so() -> None:
    h, w, _, bias = matrices(97, 512, 512)
    h[5, 7] = torch.nan
    out = affine(h, w, bias, relu=True)
    assert out[5].isnan().all()
    assert out.isfinite().all(1).sum() == 96


def test_other_tensors_are_not_its() -> None:
    assert not onednn.by_onednn(8, 8, torch.zeros(1))
    assert not onednn.by_onednn(512, 512, torch.zeros(1, dtype=torch.float64))


@pytest.mark.often("GIN")
@pytest.mark.parametrize("kind", [GCN, GIN])
def test_clients_one_by_one_and_all_at_once_give_the_same_bits(
    kind: type[GCN | GIN], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model that is wide enough, whose numbers are those of MKL but for rounding."""
    calls, product = [0], onednn._linear

    def counted(*args: Any) -> Tensor:
        calls[0] += 1
        return product(*args)

    monkeypatch.setattr(onednn, "_linear", counted)
    algorithm: Any = FedAvg(wide(kind), local_steps=3)
    loop, vmap = (weights(algorithm, mode) for mode in ("loop", "vmap"))
    used = calls[0]
    assert used > 0
    assert distance(loop, vmap) == 0
    monkeypatch.setattr(gemm, "by_onednn", lambda *_: False)
    assert distance(vmap, weights(algorithm, "vmap")) < 1e-4
    assert calls[0] == used


def weights(algorithm: Any, mode: str) -> Tree:
    """Of the server's model after two rounds."""
    *_, last = train(algorithm, federation(mode=mode), 2)
    found: Tree = last.state["w"]
    return found


def wide(kind: type[GCN | GIN]) -> Model:
    return kind(hidden=128, layers=3).build(FEATURES, CLASSES)

"""FedEgo's theorem 4.1: how ego-graphs are aligned before they are mashed does not matter to linear SAGE layers."""

import pytest
import torch
from torch import Tensor

from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.tree import Tree, map_leaves
from fedweave.models import MODELS
from fedweave.sampling import ego_graphs

BATCH, HIDDEN, CLASSES = 5, 6, 3


def rings(hops: int, fan_out: int) -> list[range]:
    """Positions of every ring."""
    ends = [ego_graphs.positions(hop, fan_out) for hop in range(hops + 1)]
    return [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def misaligned(egos: Tensor, hops: int, fan_out: int, seed: int) -> Tensor:
    """[b, positions, k] with every ego's positions permuted within its rings: also away from their parents."""
    rng = torch.Generator().manual_seed(seed)
    places = [
        torch.cat([torch.randperm(len(ring), generator=rng) + ring.start for ring in rings(hops, fan_out)])
        for _ in range(len(egos))
    ]
    return torch.stack([own[place] for own, place in zip(egos, places, strict=True)])


def personal(hops: int, share: bool, linear: bool) -> tuple[models.Model, Tree]:
    """Personalization layers and classifier, with their weights; biases well away from 0."""
    build = MODELS["ego"](hidden=HIDDEN, layers=hops, dropout=0.0, share_root_weight=share, linear=linear).build
    model = build(4, CLASSES)
    return model[1:], map_leaves(lambda leaf: leaf + 0.1, models.init(model, random.key(hops), torch.float64))


def logits_and_slopes(model: models.Model, w: Tree, egos: Tensor, fan_out: int) -> tuple[Tensor, Tree]:
    """The center of the mashed ego, and the gradients with which a server would train on it."""
    mashed = egos.mean(0)

    def loss(w: Tree) -> tuple[Tensor, Tensor]:
        out = models.apply(model, w, ego_graphs.ego_graph(mashed, 1, fan_out), first=1)[0]
        return -out.log_softmax(-1)[0], out

    grads, out = torch.func.grad(loss, has_aux=True)(w)
    return out, grads


@pytest.mark.parametrize("share", [False, True], ids=["two weights", "one weight"])
@pytest.mark.parametrize("fan_out", [1, 2, 3, 4])
@pytest.mark.parametrize("hops", [1, 2, 3])
def test_alignment_does_not_matter_to_linear_layers(hops: int, fan_out: int, share: bool) -> None:
    """The theorem assumes one weight for a node and its neighbors; with two it holds as well."""
    model, w = personal(hops, share, linear=True)
    rng = torch.Generator().manual_seed(fan_out)
    egos = torch.randn(BATCH, ego_graphs.positions(hops, fan_out), HIDDEN, generator=rng, dtype=torch.float64)
    out, grads = logits_and_slopes(model, w, egos, fan_out)
    for seed in range(3):
        other, others = logits_and_slopes(model, w, misaligned(egos, hops, fan_out, seed), fan_out)
        torch.testing.assert_close(other, out, atol=1e-12, rtol=1e-12)
        map_leaves(lambda a, b: torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12), others, grads)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("hops", [2, 3])
def test_it_matters_to_layers_with_relu(hops: int, share: bool) -> None:
    model, w = personal(hops, share, linear=False)
    rng = torch.Generator().manual_seed(7)
    egos = torch.randn(BATCH, ego_graphs.positions(hops, 3), HIDDEN, generator=rng, dtype=torch.float64)
    out, _ = logits_and_slopes(model, w, egos, 3)
    other, _ = logits_and_slopes(model, w, misaligned(egos, hops, 3, seed=0), 3)
    assert (out - other).abs().max() > 1e-3


def test_nodes_that_change_rings_matter_even_to_linear_layers() -> None:
    model, w = personal(2, share=False, linear=True)
    egos = torch.randn(BATCH, 7, HIDDEN, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    out, _ = logits_and_slopes(model, w, egos, 2)
    for swapped in ([1, 0, 2, 3, 4, 5, 6], [0, 3, 2, 1, 4, 5, 6]):
        other, _ = logits_and_slopes(model, w, egos[:, swapped], 2)
        assert (out - other).abs().max() > 1e-3


def test_one_hop_of_relu_sees_no_alignment() -> None:
    """With a single layer ReLU comes after the only mean, so that alignment cannot matter."""
    model, w = personal(1, share=False, linear=False)
    egos = torch.randn(BATCH, 5, HIDDEN, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    out, _ = logits_and_slopes(model, w, egos, 4)
    other, _ = logits_and_slopes(model, w, misaligned(egos, 1, 4, seed=0), 4)
    torch.testing.assert_close(other, out, atol=1e-12, rtol=1e-12)

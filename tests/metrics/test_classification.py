"""Classification metrics against scikit-learn, by hand, and their laws: additive, order-free, the same in a batch."""

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, log_loss, roc_auc_score
from torch import Tensor
from torch.func import vmap

from fedweave.core import random
from fedweave.core.tree import Tree
from fedweave.metrics.classification import average_ranks, counts, merge, values
from fedweave.metrics.rank_sums import GRID
from tests.refusals import refusal


def drawn(seed: int, n: int, classes: int, coarse: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [n, c] (with many ties if `coarse`), labels [n] with some -1, and masks [3, n] without those."""
    rng = random.generator(seed, "metrics")
    logits = rng.integers(-1, 2, (n, classes)).astype(float) if coarse else 3 * rng.standard_normal((n, classes))
    y = rng.integers(-1, classes, n)
    split = rng.choice(4, n, p=[0.6, 0.2, 0.05, 0.15])  # 3: in no set
    masks = (split == np.arange(3)[:, None]) & (y >= 0)
    return torch.from_numpy(logits), torch.from_numpy(y), torch.from_numpy(masks)


def exhaustive_auc(score: np.ndarray, positive: np.ndarray) -> list[float]:
    """[correctly ordered pairs with ties counted half, pairs] by looking at every pair."""
    high, low = score[positive][:, None], score[~positive][None, :]
    return [float((high > low).sum() + (high == low).sum() / 2), float(high.size * low.size)]


CASES = {"seed": st.integers(0, 2**20), "n": st.integers(1, 60), "classes": st.integers(2, 6), "coarse": st.booleans()}


@settings(max_examples=20, deadline=None)
@given(**CASES)
def test_equal_scikit_learn(seed: int, n: int, classes: int, coarse: bool) -> None:
    logits, y, masks = drawn(seed, n, classes, coarse)
    got = values(counts(logits, y, masks))
    log_p = torch.log_softmax(logits, 1).numpy()
    for row, mask in enumerate(masks.numpy()):
        truth, guess = y.numpy()[mask], logits.argmax(1).numpy()[mask]
        if not len(truth):
            assert all(math.isnan(value[row]) for value in got.values())
            continue
        labels = range(classes)
        assert got["loss"][row] == pytest.approx(log_loss(truth, np.exp(log_p[mask]), labels=labels), abs=1e-9)
        assert got["accuracy"][row] == pytest.approx(accuracy_score(truth, guess), abs=1e-12)
        assert got["f1"][row] == pytest.approx(f1_score(truth, guess, average="micro"), abs=1e-12)
        assert got["macro_f1"][row] == pytest.approx(f1_score(truth, guess, average="macro"), abs=1e-12)
        each = [
            roc_auc_score(truth == k, log_p[mask, k]) if 0 < (truth == k).sum() < len(truth) else math.nan
            for k in ((1,) if classes == 2 else labels)
        ]
        defined = [value for value in each if not math.isnan(value)]
        expected = np.mean(defined) if defined else math.nan
        assert got["auc"][row] == pytest.approx(expected, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("classes", [2, 4])
def test_examples_that_a_model_is_sure_of_do_not_tie(classes: int) -> None:
    """In single precision the log-probability of a class is 0 beyond a margin of 17; its order is that of doubles."""
    rng = random.generator(0, "sure")
    logits = torch.from_numpy(20 * rng.standard_normal((400, classes)))
    y = torch.from_numpy(rng.integers(0, classes, 400))
    found = values(counts(logits.float(), y, torch.ones(1, 400, dtype=torch.bool)))["auc"][0]
    odds = logits - torch.stack(
        [logits[:, [j for j in range(classes) if j != k]].logsumexp(1) for k in range(classes)], 1
    )
    each = [roc_auc_score(y == k, odds[:, k]) for k in ((1,) if classes == 2 else range(classes))]
    assert found == pytest.approx(np.mean(each), abs=1e-4)
    ties = [roc_auc_score(y == k, logits.float().log_softmax(1)[:, k]) for k in range(classes)]
    assert abs(np.mean(ties[1:2] if classes == 2 else ties) - np.mean(each)) > 5e-4, "what ties would make of it"


def test_multiclass_auc_is_scikit_learns_one_vs_rest() -> None:
    logits, y, masks = drawn(1, 300, 4)
    chosen = masks[0]
    expected = roc_auc_score(y[chosen], logits[chosen].softmax(1), multi_class="ovr", average="macro")
    assert values(counts(logits, y, masks))["auc"][0] == pytest.approx(expected, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(**CASES)
def test_auc_pairs_are_all_pairs(seed: int, n: int, classes: int, coarse: bool) -> None:
    logits, y, masks = drawn(seed, n, classes, coarse)
    auc = counts(logits, y, masks)["auc"]
    log_p = torch.log_softmax(logits, 1).numpy()
    for row, mask in enumerate(masks.numpy()):
        for k in range(classes):
            assert auc[row, :, k].tolist() == exhaustive_auc(log_p[mask, k], y.numpy()[mask] == k)


def test_by_hand() -> None:
    """Five nodes, logits log p: the fourth is unlabeled, the fifth in another split; the third is wrong."""
    p = torch.tensor([[0.75, 0.25], [0.25, 0.75], [0.75, 0.25], [0.5, 0.5], [0.125, 0.875]], dtype=torch.float64)
    y = torch.tensor([0, 1, 1, -1, 1])
    masks = torch.tensor([[True, True, True, False, False], [False, False, False, False, True], [False] * 5])
    got = counts(p.log(), y, masks)
    assert got["loss"][:, 1].tolist() == [3, 1, 0]
    assert got["loss"][0, 0].item() == pytest.approx(-2 * math.log(0.75) - math.log(0.25), abs=2e-9)
    assert got["accuracy"].tolist() == [[2, 3], [1, 1], [0, 0]]
    assert got["f1"].tolist() == [[[2, 2], [3, 3]], [[0, 2], [0, 2]], [[0, 0], [0, 0]]]
    assert got["classes"].tolist() == [[[2, 1], [1, 2]], [[0, 1], [0, 1]], [[0, 0], [0, 0]]]
    assert got["auc"].tolist() == [[[1.5, 1.5], [2, 2]], [[0, 0], [0, 0]], [[0, 0], [0, 0]]]
    read = values(got)
    assert read["f1"][0] == pytest.approx(2 / 3)
    assert read["macro_f1"].tolist()[:2] == pytest.approx([2 / 3, 1])
    assert read["auc"][0] == 0.75
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(math.isnan(value[2]) for value in values(got).values())
    assert math.isnan(read["auc"][1])


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**20), sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5), classes=st.integers(2, 5)
)
def test_merged_is_pooled(seed: int, sizes: list[int], classes: int) -> None:
    clients = [drawn(seed + i, n, classes, coarse=i == 0) for i, n in enumerate(sizes)]
    each = [counts(*client) for client in clients]
    logits, y, masks = (torch.cat(parts, -1 if i == 2 else 0) for i, parts in enumerate(zip(*clients, strict=True)))
    together = counts(logits, y, masks)
    merged = merge(each)
    for name in ("loss", "accuracy", "f1"):
        assert torch.equal(merged[name], together[name])
    assert merged["auc"].tolist() == sum(pairs["auc"] for pairs in each).tolist()  # type: ignore[attr-defined]
    backwards = merge(each[::-1])
    assert all(torch.equal(merged[name], backwards[name]) for name in merged)


def test_pooled_auc_never_compares_clients() -> None:
    """Two clients rank perfectly on scales of their own; all nodes together would not."""
    y, masks = torch.tensor([0, 1]), torch.ones(1, 2, dtype=torch.bool)
    low, high = (torch.tensor([[0.0, shift], [0.0, shift + 1]]) for shift in (-5.0, 5.0))
    each = [counts(logits, y, masks) for logits in (low, high)]
    assert values(merge(each))["auc"] == [1]
    whole = counts(torch.cat([low, high]), torch.cat([y, y]), torch.ones(1, 4, dtype=torch.bool))
    assert values(whole)["auc"] == [0.75]


def padded(tensor: Tensor, n: int, value: Any, dim: int = 0) -> Tensor:
    shape = list(tensor.shape)
    shape[dim] = n - shape[dim]
    return torch.cat([tensor, tensor.new_full(shape, value)], dim)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 7])
def test_batch_equals_loop(dtype: torch.dtype, classes: int) -> None:
    sizes = (5, 288, 31, 100)
    clients = [drawn(i, n, classes, coarse=i == 2) for i, n in enumerate(sizes)]
    clients = [(logits.to(dtype), y, masks) for logits, y, masks in clients]
    n = max(sizes)
    logits = torch.stack([padded(client[0], n, 0) for client in clients])
    y = torch.stack([padded(client[1], n, -1) for client in clients])
    masks = torch.stack([padded(client[2], n, False, 1) for client in clients])
    batched = vmap(counts)(logits, y, masks)
    for i, client in enumerate(clients):
        alone = counts(*client)
        assert all(torch.equal(batched[name][i], alone[name]) for name in alone)
    read = values(batched)
    assert read["loss"].shape == read["auc"].shape == (4, 3)
    one = values(merge([counts(*client) for client in clients]))
    summed = values({name: pair.sum(0) for name, pair in batched.items()})
    assert all(np.array_equal(one[name], summed[name], equal_nan=True) for name in one)


def test_one_model_on_a_batch_of_masks_and_its_gradient_path() -> None:
    """Shared logits, masks of each client; logits that require a gradient are not an obstacle."""
    logits, y, _ = drawn(3, 50, 3)
    split = torch.from_numpy(random.generator(0, "masks").integers(0, 4, (4, 1, 50)))
    masks = (split == torch.arange(3)[:, None]) & (y >= 0)
    batched = vmap(counts, in_dims=(None, None, 0))(logits.requires_grad_(), y, masks)
    for i in range(4):
        alone = counts(logits, y, masks[i])
        assert all(torch.equal(batched[name][i], alone[name]) for name in alone)


def test_without_auc_and_classes() -> None:
    case = drawn(0, 20, 3)
    cheap, whole = counts(*case, whole=False), counts(*case)
    assert cheap.keys() == whole.keys() - {"auc", "classes"}
    assert not {"auc"} & set(values(cheap))
    assert all(torch.equal(cheap[name], whole[name]) for name in cheap)


def test_counts_stay_exact_where_float32_would_not() -> None:
    """9,001 nodes of each class, ordered perfectly but for one pair: 81,018,001 pairs."""
    n = 9001
    score = torch.arange(2 * n, dtype=torch.float32)
    score[[n - 1, n]] = score[[n, n - 1]]
    logits = torch.stack([torch.zeros(2 * n), score / 4096], 1)
    y = (torch.arange(2 * n) >= n).long()
    auc = counts(logits.double(), y, torch.ones(1, 2 * n, dtype=torch.bool))["auc"]
    assert auc[0, :, 1].tolist() == [n * n - 1, n * n]


def test_diverged_models_are_seen() -> None:
    logits = torch.tensor([[0.0, math.nan], [0.0, 1.0]])
    y = torch.tensor([0, 1])
    got = values(counts(logits, y, torch.tensor([[True, True], [False, True]])))
    assert math.isnan(got["loss"][0])
    assert got["loss"][1] == pytest.approx(math.log1p(math.exp(-1)), abs=1e-7)


def test_losses_lie_on_the_grid() -> None:
    logits, y, masks = drawn(9, 200, 5)
    total = counts(logits, y, masks)["loss"][:, 0] / GRID
    assert torch.equal(total, total.round())


def test_scalars_without_leading_axes() -> None:
    pairs: Tree = {"loss": torch.tensor([3.0, 2.0]), "f1": torch.tensor([[2.0, 0, 0], [4.0, 1, 0]])}
    assert values(pairs) == {"loss": 1.5, "f1": 0.4, "macro_f1": 0.25}
    assert all(type(value) is float for value in values(pairs).values())


def test_nothing_to_merge_is_refused() -> None:
    with refusal("data.no-clients", "at least one client"):
        merge([])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_of_each_sign_are_ranked_and_both_zeros_tie(dtype: torch.dtype) -> None:
    score = torch.tensor([-0.0, 0.0, -3.0, 2.5, -1e-30, 1e30, -torch.inf], dtype=dtype)
    ranks = average_ranks(score[:, None], torch.ones(1, 1, 7, dtype=torch.bool))
    assert ranks.tolist() == [[4.5, 4.5, 2, 6, 3, 7, 1]]


def test_what_belongs_to_no_set_or_to_another_changes_no_pair() -> None:
    logits, y, masks = drawn(5, 90, 3)
    pairs = counts(logits, y, masks)
    alone = counts(logits[masks[1]], y[masks[1]], torch.ones(1, int(masks[1].sum()), dtype=torch.bool))
    assert all(torch.equal(pairs[name][1], alone[name][0]) for name in pairs)


def test_pairs_of_many_examples_are_counted_exactly() -> None:
    """200,000 examples have 10^10 pairs; single precision holds whole numbers to 1.7 · 10^7."""
    rng = np.random.default_rng(0)
    score = torch.from_numpy(rng.normal(size=200_000).round(3).astype(np.float32))
    y = torch.from_numpy((rng.random(200_000) < 0.3).astype(np.int64))
    masks = torch.ones(1, 200_000, dtype=torch.bool)
    pairs = counts(torch.stack([-score, score], 1), y, masks)["auc"][0, :, 1]
    positive, negative = score[y == 1].double().numpy(), np.sort(score[y == 0].double().numpy())
    below = np.searchsorted(negative, positive, "left").sum() + np.searchsorted(negative, positive, "right").sum()
    assert pairs.tolist() == [below / 2, len(positive) * len(negative)]

"""The references solve the same problem: equal weights and scores without dropout, and they learn."""

import os
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
import torch.nn.functional as F

from benchmarks.baselines import Tally, glorot, normalize_adjacency, plain_pyg, random_cora, sparse_loop
from fedweave.core import random
from fedweave.errors import DataError

CLASSES = 3
CORA = Path(os.environ.get("FEDWEAVE_DATA", Path(__file__).parents[2] / "../shared/data")) / "cora" / "cora.npz"
RUNS = {
    "plain_pyg": plain_pyg,
    "sparse_loop": sparse_loop,
    "by_hand": lambda *a, **k: sparse_loop(*a, by_hand=True, **k),
}


def synthetic():
    """Four unequal clients: one has an isolated node and nodes in no split, the last no train node."""
    draw = random.generator(0, "test_baselines")
    parts = []
    for n in (9, 14, 5, 7):
        upper = np.triu(draw.random((n, n)) < 0.3, 1)
        upper[0] = False
        edges = np.stack(np.nonzero(upper | upper.T))
        split = draw.integers(0, 4, n)
        split[0] = 0
        masks = split == [[0], [1], [2]]
        x = sp.random(n, 11, 0.3, format="csr", random_state=draw, data_rvs=draw.standard_normal)
        parts.append((x, edges, draw.integers(0, CLASSES, n), masks))
    parts[3][3][0] = False
    return parts


def start():
    return glorot(11, 8, CLASSES)


def dense_fedavg(parts, rounds, weights):
    """The workload once more, as formulas: dense matrices and Adam (Kingma and Ba 2015, algorithm 1) written out."""
    now = [weights["0"]["weight"], weights["0"]["bias"], weights["1"]["weight"], weights["1"]["bias"]]
    now = [value.double() for value in now]
    size = [part[3][0].sum() for part in parts]
    for _ in range(rounds):
        total = [torch.zeros_like(value) for value in now]
        for (x, edges, y, masks), k in zip(parts, size, strict=True):
            if k == 0:
                continue
            x, a = torch.tensor(x.toarray()), torch.tensor(normalize_adjacency(edges, len(y)).toarray())
            train, y = torch.tensor(masks[0]), torch.tensor(y)
            w = [value.clone().requires_grad_() for value in now]
            m, v = [torch.zeros_like(value) for value in w], [torch.zeros_like(value) for value in w]
            for t in range(1, 4):
                z = a @ torch.relu(a @ x @ w[0] + w[1]) @ w[2] + w[3]
                grads = torch.autograd.grad(F.cross_entropy(z[train], y[train]), w)
                for i, grad in enumerate(grads):
                    g = grad + 5e-4 * w[i].detach()
                    m[i], v[i] = 0.9 * m[i] + 0.1 * g, 0.999 * v[i] + 0.001 * g * g
                    step = 0.01 * (m[i] / (1 - 0.9**t)) / (torch.sqrt(v[i] / (1 - 0.999**t)) + 1e-8)
                    w[i] = (w[i].detach() - step).requires_grad_()
            total = [s + value.detach() * (k / sum(size)) for s, value in zip(total, w, strict=True)]
        now = total
    return {"0": {"weight": now[0], "bias": now[1]}, "1": {"weight": now[2], "bias": now[3]}}


@pytest.mark.parametrize("name", RUNS)
def test_three_rounds_equal_the_formulas(name):
    parts = synthetic()
    weights, scores, seconds = RUNS[name](parts, 3, start(), dropout=0.0, dtype=torch.float64)
    expected = dense_fedavg(parts, 3, start())
    for layer in ("0", "1"):
        for kind in ("weight", "bias"):
            torch.testing.assert_close(weights[layer][kind], expected[layer][kind], rtol=1e-9, atol=1e-10)
    assert len(scores) == len(seconds) == 3
    for i, (x, edges, y, masks) in enumerate(parts):
        a, w = torch.tensor(normalize_adjacency(edges, len(y)).toarray()), expected
        h = torch.relu(a @ torch.tensor(x.toarray()) @ w["0"]["weight"] + w["0"]["bias"])
        z = a @ h @ w["1"]["weight"] + w["1"]["bias"]
        for split in range(3):
            inside = torch.tensor(masks[split])
            loss = F.cross_entropy(z[inside], torch.tensor(y)[inside], reduction="sum")
            torch.testing.assert_close(scores[-1].loss[i, split], loss, rtol=1e-8, atol=1e-9)
            right = (z.argmax(1)[inside].numpy() == y[masks[split]]).sum()
            assert scores[-1].confusion[i, split].trace() == right
            assert scores[-1].confusion[i, split].sum() == masks[split].sum()


def test_every_round_has_the_same_scores_in_all_references():
    parts = synthetic()
    first, *others = (run(parts, 3, start(), dropout=0.0, dtype=torch.float64)[1] for run in RUNS.values())
    for other in others:
        for a, b in zip(first, other, strict=True):
            torch.testing.assert_close(a.loss, b.loss, rtol=1e-9, atol=1e-10)
            assert torch.equal(a.confusion, b.confusion)
    assert not torch.equal(first[0].loss, first[2].loss)


def test_dropout_changes_the_result_and_is_a_function_of_the_seed():
    parts = synthetic()
    for run in RUNS.values():
        plain, one, again, other = (
            run(parts, 2, start(), dropout=rate, seed=seed)[0]["0"]["weight"]
            for rate, seed in ((0.0, 1), (0.5, 1), (0.5, 1), (0.5, 2))
        )
        assert torch.equal(one, again)
        assert not torch.allclose(one, plain)
        assert not torch.allclose(one, other)


def test_dropout_gradient_by_hand_equals_autograd():
    parts = synthetic()
    one, other = (sparse_loop(parts, 3, start(), dtype=torch.float64, by_hand=hand)[0] for hand in (False, True))
    torch.testing.assert_close(one["0"]["weight"], other["0"]["weight"], rtol=1e-9, atol=1e-10)


def test_confusion_by_hand():
    masks = np.array([[True, False, False], [False, False, False], [False, True, True]])
    part = (sp.csr_matrix((3, 1)), np.zeros((2, 0), np.int64), np.array([0, 1, 1]), masks)
    scores = Tally([part], 2)(torch.log(torch.tensor([[0.75, 0.25], [0.8, 0.2], [0.4, 0.6]])))
    assert scores.confusion[0].tolist() == [[[1, 0], [0, 0]], [[0, 0], [0, 0]], [[0, 0], [1, 1]]]
    np.testing.assert_allclose(scores.loss[0], [-np.log(0.75), 0, -np.log(0.2 * 0.6)], rtol=1e-6)
    assert scores.accuracy(2) == 0.5


def test_bad_masks_are_refused():
    x, edges, y, masks = synthetic()[0]
    with pytest.raises(DataError, match="more than one split"):
        sparse_loop([(x, edges, y, np.ones_like(masks))], 1, start())
    with pytest.raises(DataError, match="no client has a train node"):
        plain_pyg([(x, edges, y, np.zeros_like(masks))], 1, start())


@pytest.mark.often("by_hand")
@pytest.mark.skipif(not CORA.exists(), reason=f"{CORA} is not there")
@pytest.mark.parametrize("name", RUNS)
def test_cora_is_learnt(name, monkeypatch):
    monkeypatch.setenv("FEDWEAVE_DATA", str(CORA.parents[1]))
    parts = random_cora(10)
    assert sum(len(part[2]) for part in parts) == 2708
    _, scores, _ = RUNS[name](parts, 20, glorot(1433, 64, 7))
    assert 0.66 < scores[-1].accuracy(2) < 0.85
    assert scores[-1].accuracy(0) > scores[-1].accuracy(2)

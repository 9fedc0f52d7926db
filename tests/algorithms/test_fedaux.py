"""FedAux against arithmetic that was written apart from it, and its laws."""

from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.fedaux import mix, scores, smooth
from fedweave.algorithms.fedpub import SparseMasks
from fedweave.core import model as models
from fedweave.core import random
from fedweave.experiment.rounds import train
from tests.contract.federations import distance, federation, graphs, model

SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.3, "weight_decay": 0.0, "local_steps": 2}
rng = np.random.default_rng(0)
H, A = rng.normal(size=(7, 3)), rng.normal(size=3)


@pytest.mark.parametrize(("how", "named"), [("text", "paper"), ("script", "script")])
def test_scores_and_smoothing_are_those_of_the_reference(baselines: Any, how: str, named: str) -> None:
    h, real = torch.from_numpy(np.vstack([H, np.zeros((2, 3))])), torch.arange(9) < 7
    s = scores(h, torch.from_numpy(A), how)
    expected = baselines.aux_scores(H, A, named)
    assert s[:7].numpy() == pytest.approx(expected, abs=1e-12)
    for sigma, law in ((0.4, None), (1e-3, H), (1e6, np.tile(H.mean(0), (7, 1)))):
        z = smooth(h, s, real, sigma)[:7].numpy()
        assert np.abs(z - (baselines.aux_smooth(H, expected, sigma) if law is None else law)).max() < 1e-9


def test_shares_are_those_of_the_reference_and_of_those_that_train(baselines: Any) -> None:
    a, everyone = rng.normal(size=(4, 3)), torch.ones(4, dtype=torch.bool)
    for alpha in (0.0, 1.0, 10.0):
        assert np.abs(mix(torch.from_numpy(a), everyone, alpha).numpy() - baselines.aux_mix(a, alpha)).max() < 1e-12
    some = everyone.clone()
    some[2] = False
    found = mix(torch.from_numpy(a), some, 1.0)
    assert not found[:, 2].any()
    assert found.sum(1).tolist() == pytest.approx([1.0] * 4)
    assert mix(torch.from_numpy(a), ~everyone, 0.0).tolist() == [[0.25] * 4] * 4


def test_what_the_model_answers_does_not_depend_on_the_order_of_nodes_and_a_node_alone_keeps_itself() -> None:
    made = ALGORITHMS["fedaux"](model(0.0))
    w = models.init(made.trained, random.key(1), torch.float64)
    assert w["1"]["aux"].shape == (8,)
    assert w["2"]["weight"].shape[0] == 16
    h = torch.from_numpy(rng.normal(size=(1, 3)))
    assert smooth(h, h[:, 0], torch.ones(1, dtype=torch.bool), 1.0).equal(h)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    h, real = torch.from_numpy(H), torch.ones(7, dtype=torch.bool)
    s = scores(h, torch.from_numpy(A), "text")
    assert torch.allclose(smooth(h, s, real, 1.0)[order], smooth(h[order], s[order], real, 1.0), atol=1e-12)


def test_at_alpha_0_all_share_the_plain_mean_and_for_a_large_one_nobody_shares() -> None:
    ends = {}
    for alpha in (0.0, 1e12):
        made = ALGORITHMS["fedaux"](model(0.0), alpha=alpha, **SGD)
        *_, last = train(made, federation(dtype=torch.float64), 2)
        ends[alpha] = last.state["own"]
    for tree in ends[0.0].values():
        for leaf in tree.values():
            assert (leaf - leaf[:1]).abs().max() < 1e-12
    name, graph = next(iter(graphs(torch.float64).items()))
    alone = federation(dtype=torch.float64, clients={name: graph})
    *_, own = train(ALGORITHMS["fedaux"](model(0.0), **SGD), alone, 2)
    first, kept = ({layer: {key: leaf[0] for key, leaf in tree.items()} for layer, tree in end.items()}
                   for end in (ends[1e12], own.state["own"]))  # fmt: skip
    assert distance(first, kept) < 1e-7  # a cosine with itself is not quite 1, nor those of others so far below


def test_one_vector_leaves_in_the_update_besides_the_weights_and_masks_may_be_added() -> None:
    fed = federation()
    list(train(ALGORITHMS["fedaux"](model()), fed, 1))
    up = {row["key"]: row for row in fed.ledger.table().to_pylist() if row["direction"] == "up"}
    assert {key for key in up if key.startswith("update")} == {
        f"update/{path}" for path in ("0/weight", "0/bias", "1/aux", "2/weight", "2/bias")
    }
    list(train(ALGORITHMS["fedaux"](model(), parts=(SparseMasks(),)), federation(), 2))

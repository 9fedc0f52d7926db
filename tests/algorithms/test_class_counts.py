"""Classes weighed by all members' counts, which no member's own are told of."""

from typing import Any

import pytest
import torch

from fedweave.core.graph import TRAIN
from fedweave.core.tree import leaves
from fedweave.errors import ConfigError
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.learn import Criterion, class_counts
from tests.refusals import refusal


def made(clients: int = 3, mode: str = "loop", **settings: Any) -> Any:
    data = {"name": "synthetic", "nodes": 120, "classes": 3, "features": 5}
    algorithm = {"name": "fedavg", "class_weight": "balanced", "parts": ["class_counts"]} | settings
    return build(
        resolve(
            {"seed": 2, "rounds": 2, "data": data, "partition": {"name": "dirichlet", "clients": clients, "alpha": 0.3}}
            | {"model": {"name": "gcn", "hidden": 4}, "algorithm": algorithm}
            | {"engine": {"name": "simulation", "mode": mode}}
        )
    )


def after(built: Any) -> Any:
    *_, last = train(built.algorithm, built.fed, 2)
    return dict(leaves(last.state["w"]))


@pytest.mark.often("weights1")
@pytest.mark.parametrize("weights", [{"class_weight": "balanced"}, {"class_weight": "none", "logit_adjustment": 1.0}])
def test_all_members_count_by_the_classes_of_all(weights: Any) -> None:
    """By hand: weights n / (C n_c) of everybody's training examples, given to each as numbers."""
    built = made(**weights)
    total = sum(class_counts(graph.y, graph.masks[TRAIN], 3) for graph in built.fed.graphs.values())
    found = after(built)
    assert torch.equal(built.algorithm.composed["ClassCounts"].init(built.fed, {})["classes"], total.long())
    if weights["class_weight"] == "balanced":
        numbers = (total.sum() / (3 * total)).tolist()
        for path, leaf in after(made(class_weight=numbers, parts=[])).items():
            assert torch.allclose(leaf, found[path], atol=1e-6)
    own = after(made(parts=[], **weights))
    assert any(not torch.allclose(leaf, found[path], atol=1e-4) for path, leaf in own.items())
    for path, leaf in after(made(mode="vmap", **weights)).items():
        assert torch.equal(leaf, found[path])


def test_counts_leave_in_a_secure_sum_before_the_first_round_alone() -> None:
    built = made(parts=["class_counts", "secure_sum"])
    after(built)
    rows = [row for row in built.fed.ledger.table().to_pylist() if "class_counts" in row["key"]]
    assert {(row["round"], row["step"], row["direction"]) for row in rows} == {(0, "ClassCounts.count_classes", "up")}
    assert all("secure sum of all clients" in row["mechanism"] for row in rows)


def test_a_loss_by_given_counts_needs_none_of_its_own() -> None:
    logits, y = torch.randn(6, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 0, 0, 0, 0, 1])
    loss, weight = Criterion("balanced"), torch.ones(6)
    one = loss.by(torch.tensor([10, 30])).of(logits, y, weight, y, weight > 0)
    assert float(one) == pytest.approx(float(Criterion((2.0, 2 / 3)).of(logits, y, weight, y, weight > 0)))
    assert loss.by(None) is loss


def test_the_bias_starts_at_the_logarithms_of_all_members_shares() -> None:
    """All other weights start as without it, and outputs of zeros give each class its share."""
    built = made(class_weight="none", parts=[{"name": "class_counts", "start_bias": True}])
    plain = made(class_weight="none", parts=["class_counts"])
    total = sum(class_counts(graph.y, graph.masks[TRAIN], 3) for graph in built.fed.graphs.values())
    ours, theirs = (dict(leaves(one.algorithm.init(one.fed)["w"])) for one in (built, plain))
    last = "1/bias"
    torch.testing.assert_close(torch.softmax(ours[last], 0).double(), total / total.sum(), atol=1e-6, rtol=0)
    assert not theirs[last].any()
    assert all(torch.equal(ours[path], theirs[path]) for path in ours if path != last)
    assert all(leaf.isfinite().all() for leaf in after(built).values())


@pytest.mark.parametrize("settings", [
    {"class_weight": "balanced"},  # whose loss takes the shares out
    {"class_weight": "none", "logit_adjustment": 1.0},
])  # fmt: skip
def test_a_loss_that_takes_shares_out_starts_from_none(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="start_bias"):
        made(parts=[{"name": "class_counts", "start_bias": True}], **settings)


def test_a_bias_that_stays_at_its_client_has_no_common_start() -> None:
    built = made(class_weight="none", parts=[{"name": "class_counts", "start_bias": True}], share=["0/*"])
    with refusal("config.share"):
        built.algorithm.init(built.fed)

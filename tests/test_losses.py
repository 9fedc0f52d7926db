"""Losses that weigh classes: against torch, by hand, under vmap; and in every algorithm that has a cross-entropy."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, vmap

from fedweave.algorithms import ALGORITHMS
from fedweave.contract.subject import Subject, distance
from fedweave.errors import ConfigError
from fedweave.experiment.config import resolve
from fedweave.experiment.loading import with_class_numbers
from fedweave.learn import Criterion, cross_entropy
from tests.refusals import refusal

LOGITS = torch.from_numpy(np.random.default_rng(0).standard_normal((6, 3)))
TARGET = torch.tensor([0, 0, 0, 1, 2, 1])
WEIGHT = torch.tensor([1.0, 1, 1, 1, 1, 0]).double()  # the last one does not train
COUNTS = {"y": TARGET, "train": WEIGHT > 0}


def loss(**settings: Any) -> torch.Tensor:
    return Criterion(**settings).of(LOGITS, TARGET, WEIGHT, **COUNTS)


def test_without_settings_it_is_the_cross_entropy_to_the_bit() -> None:
    assert torch.equal(loss(), cross_entropy(LOGITS, TARGET, WEIGHT))


@pytest.mark.parametrize(
    ("given", "weights"),
    [("balanced", [5 / 9, 5 / 3, 5 / 3]), ((1.0, 2.0, 30.0), [1, 2, 30]), ({"2": 30.0}, [1, 1, 30])],
)
def test_weights_divide_by_their_sum_as_torch_does(given: Any, weights: list[float]) -> None:
    expected = F.cross_entropy(LOGITS[:5], TARGET[:5], torch.tensor(weights, dtype=torch.float64))
    assert float(loss(class_weight=given)) == pytest.approx(float(expected), abs=1e-12)


def test_the_focal_loss_by_hand() -> None:
    p = torch.softmax(LOGITS[:5], 1)[range(5), TARGET[:5]]
    assert float(loss(focal=2.0)) == pytest.approx(float((-((1 - p) ** 2) * p.log()).mean()), abs=1e-12)


def test_logits_are_adjusted_by_the_shares_of_the_classes() -> None:
    shares = torch.tensor([3 / 5, 1 / 5, 1 / 5], dtype=torch.float64)
    expected = F.cross_entropy(LOGITS[:5] + 1.5 * shares.log(), TARGET[:5])
    assert float(loss(logit_adjustment=1.5)) == pytest.approx(float(expected), abs=1e-12)


def test_soft_targets_are_shares_of_every_class() -> None:
    """An example that is half of either class weighs as two halves."""
    counts = torch.tensor([3.0, 1.0]).double()
    logits, truth = torch.tensor([[1.0, -1.0]]).double(), torch.tensor([[0.5, 0.5]]).double()
    log_p = torch.log_softmax(logits, 1)[0]
    expected = -(2 / 3 * 0.5 * log_p[0] + 2 * 0.5 * log_p[1]) / (1 / 3 + 1)
    assert float(Criterion("balanced").soft(logits, truth, counts)) == pytest.approx(float(expected), abs=1e-12)


@pytest.mark.parametrize("settings", [{"class_weight": "balanced"}, {"focal": 0.5}, {"logit_adjustment": 1.0}])
def test_without_examples_it_is_0_and_so_is_its_gradient(settings: dict[str, Any]) -> None:
    nobody = torch.zeros(6).double()

    def of(logits: torch.Tensor) -> torch.Tensor:
        return Criterion(**settings).of(logits, TARGET, nobody, TARGET, nobody > 0)

    assert float(of(LOGITS)) == 0
    assert torch.equal(grad(of)(LOGITS), torch.zeros_like(LOGITS))


def test_a_class_without_an_example_changes_no_gradient_to_nan() -> None:
    y = torch.tensor([1, 1, 1, 1, 1, 0])
    for settings in ({"class_weight": "balanced"}, {"logit_adjustment": 1.0}, {"focal": 0.5}):
        how = Criterion(**settings)
        found = grad(partial(_loss, how, y))(100 * LOGITS)
        assert found.isfinite().all()


def _loss(how: Criterion, y: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return how.of(logits, y, WEIGHT, y, WEIGHT > 0)


def test_clients_side_by_side_have_their_own_counts() -> None:
    rng = np.random.default_rng(1)
    logits, y = torch.from_numpy(rng.standard_normal((4, 9, 2))), torch.from_numpy(rng.integers(0, 2, (4, 9)))
    train = torch.from_numpy(rng.random((4, 9)) < 0.7)
    for how in (Criterion("balanced", 2.0, 1.0), Criterion((1.0, 3.0)), Criterion({"1": 3.0})):

        def one(z: torch.Tensor, own: torch.Tensor, chosen: torch.Tensor, how: Criterion = how) -> torch.Tensor:
            return how.of(z, own, chosen.double(), own, chosen)

        each = torch.stack([one(*client) for client in zip(logits, y, train, strict=True)])
        assert torch.allclose(vmap(one)(logits, y, train), each, atol=1e-12)


def test_names_of_classes_become_numbers_where_the_data_is_known() -> None:
    config = resolve({"data": {"name": "synthetic"}, "algorithm": {"class_weight": {"fraud": 30.0}}})
    assert with_class_numbers(config.algorithm, ("ok", "fraud"), 2).values["class_weight"] == (1.0, 30.0)
    with refusal("config.no-class", "'fraud'"):
        with_class_numbers(config.algorithm, ("ok", "bad"), 2)
    with refusal("config.no-class", "'fraud'"):
        Criterion(config.algorithm.values["class_weight"]).of(LOGITS, TARGET, WEIGHT, **COUNTS)


def test_noise_on_single_examples_takes_no_weights() -> None:
    with pytest.raises((ValueError, ConfigError), match="class_weight"):
        resolve(
            {
                "data": {"name": "synthetic"},
                "model": {"name": "mlp"},
                "algorithm": {"class_weight": "balanced", "parts": ["dp_examples"], "optimizer_state": "fresh"},
            }
        ).check_made()


WEIGHED = {"class_weight": "balanced", "focal": 1.0, "logit_adjustment": 0.5}
OF_ALL_KINDS = ("fedavg", "local", "fedego", "glasu", "dfedgnn", "fairgraphfl", "graphfl", "fedsage", "fairaug")


@pytest.mark.often("fedavg", "glasu")
@pytest.mark.parametrize("name", OF_ALL_KINDS)
def test_every_algorithm_with_a_cross_entropy_weighs_classes_alike_for_one_client_and_for_all(name: str) -> None:
    subject = Subject(ALGORITHMS[name])
    plain = subject.run(1, 1, mode="loop", dtype=torch.float64)
    one = subject.run(1, 1, WEIGHED, mode="loop", dtype=torch.float64)
    together = subject.run(1, 1, WEIGHED, mode="vmap", record="always", dtype=torch.float64)
    assert distance(one.final, together.final) < 1e-9
    assert distance(one.final["clients"], plain.final["clients"]) > 1e-9

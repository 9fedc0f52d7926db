"""FedTGP's margin and loss against arithmetic that was written apart from it, and its laws."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.fedtgp import TrainedPrototypes, contrast, first, margin, prototypes
from fedweave.experiment.rounds import train
from tests.contract.federations import CLASSES, HIDDEN, distance, federation, graphs, model

SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.3, "weight_decay": 0.0, "local_steps": 2}


def ended(rounds: int = 2, **options: Any) -> tuple[Any, Any]:
    fed = federation(dtype=torch.float64)
    *_, last = train(ALGORITHMS["fedtgp"](model(0.0), **{**SGD, **options}), fed, rounds)
    return last, fed


def sent(seed: int = 0) -> tuple[Any, Any]:
    """Prototypes [P, C, d] and counts [P, C] of which some are missing, and class 2 is everybody's."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 3, size=(4, 5))
    counts[:, 2], counts[:, 4] = 1, 0
    return rng.normal(size=(4, 5, 3)) * (counts > 0)[:, :, None], counts


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_margin_and_loss_are_those_of_the_reference(baselines: Any, seed: int) -> None:
    rows, counts = sent(seed)
    told = torch.from_numpy(counts > 0)
    by = margin(torch.from_numpy(rows), told)
    assert float(by) == pytest.approx(baselines.tgp_margin(rows, counts), abs=1e-12)
    q = np.random.default_rng(9).normal(size=(5, 3))
    at, label = np.nonzero(counts)
    known = np.flatnonzero(counts.sum(0))  # the softmax is over these
    expected = baselines.tgp_loss(rows[at, label], np.searchsorted(known, label), q[known], float(by))
    assert float(contrast(torch.from_numpy(rows), told, torch.from_numpy(q), by)) == pytest.approx(expected, abs=1e-9)


def test_by_hand() -> None:
    """Two classes at their centers a distance of 5 apart; three classes by the nearest; one class."""
    q = torch.tensor([[0.0, 0], [3, 4]], dtype=torch.float64)
    both = torch.ones(1, 2, dtype=torch.bool)
    assert float(margin(q[None], both)) == pytest.approx(5)
    found = [float(contrast(q[None], both, q, torch.tensor(by))) for by in (0.0, 1.0, 5.0)]
    assert found[0] == pytest.approx(math.log(1 + math.exp(-5)), rel=1e-4)
    assert found[0] < found[1] < found[2]  # the loss grows with the margin
    one = torch.tensor([[True, False]])
    assert [float(margin(q[None], one)), float(contrast(q[None], one, q, torch.tensor(0.0)))] == [0, 0]


def test_training_brings_prototypes_to_those_that_were_sent() -> None:
    _, counts = sent()
    rows = (np.eye(5, 3) + np.arange(5)[:, None]) * (counts > 0)[:, :, None]  # each class's alike
    part = TrainedPrototypes(steps=100)

    class Told:
        def stack(self, key: str) -> Any:
            return torch.from_numpy({"prototype": rows, "count": counts}[key])

    after = part.update({"key": torch.tensor(1)}, type("Round", (), {"replies": Told()}))  # type: ignore[arg-type]
    told = torch.from_numpy(counts > 0)
    by = margin(torch.from_numpy(rows), told)
    start = prototypes(first(torch.tensor(1), 5, 3))
    losses = [float(contrast(torch.from_numpy(rows), told, q, by)) for q in (start, after["prototype"])]
    assert losses[1] < 0.8 * losses[0]
    assert after["known"].tolist() == [True] * 4 + [False]
    again = part.update(after, type("Round", (), {"replies": Told()}))  # type: ignore[arg-type]
    assert float(contrast(torch.from_numpy(rows), told, again["prototype"], by)) < losses[1]  # it goes on


@pytest.mark.slow
def test_without_strength_it_is_local_training_from_common_weights() -> None:
    _, fed = ended(lam=0.0, rounds=3, steps=1)
    for name, graph in graphs(torch.float64).items():
        alone = federation(dtype=torch.float64, clients={name: graph})
        *_, last = train(ALGORITHMS["fedavg"](model(0.0), **SGD), alone, 3)
        assert distance(fed.snapshot()[name]["w"], last.state["w"]) < 1e-12


def test_where_nobody_sends_a_class_nothing_is_trained() -> None:
    last, _ = ended(minimum=10**6)
    state = last.state["parts"]["TrainedPrototypes"]
    assert not state["known"].any()
    assert distance(state["w"], first(state["key"], CLASSES, HIDDEN)) == 0


def test_only_prototypes_cross() -> None:
    _, fed = ended()
    rows = [row for row in fed.ledger.table().to_pylist() if row["purpose"] == "training"]
    down = {row["key"]: row["reveals"] for row in rows if row["direction"] == "down"}
    assert down["TrainedPrototypes/prototype"]
    assert not any(key.startswith("TrainedPrototypes/w") for key in down)
    assert {row["key"] for row in rows if row["direction"] == "up"} >= {"prototype", "count"}
    assert not any(row["key"].startswith("update") for row in rows)

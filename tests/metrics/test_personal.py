"""Clients' own models on the global test set, by hand and in a run."""

import numpy as np
import pytest
import torch

from fedweave.algorithms import Local
from fedweave.metrics.classification import counts
from fedweave.metrics.personal import personal
from fedweave.rounds import train
from tests.contract.federations import federation, model


def test_what_clients_own_models_predict_on_the_global_test() -> None:
    """Test labels 1, 0, 0, 2; one client's model says 0, 0, 2, 2, the other's always 1."""
    y, masks = torch.tensor([1, 0, 0, 2]), torch.tensor([[False] * 4, [False] * 4, [True] * 4])
    said = torch.tensor([[0, 0, 2, 2], [1, 1, 1, 1]])
    each = [counts(torch.nn.functional.one_hot(classes, 3).float(), y, masks, True) for classes in said]
    found = personal({name: np.stack([pairs[name].numpy() for pairs in each]) for name in each[0]})
    assert {name: value.tolist() for name, value in found.items()} == {
        "global_test/accuracy": [0.5, 0.25],
        "global_test/predicted/0": [0.5, 0.0],
        "global_test/predicted/1": [0.0, 1.0],
        "global_test/predicted/2": [0.5, 0.0],
        "global_test/true/0": [0.5, 0.5],
        "global_test/true/1": [0.25, 0.25],
        "global_test/true/2": [0.25, 0.25],
    }
    assert personal({}) == {}


def test_a_run_keeps_what_clients_own_models_do_on_the_global_test() -> None:
    """The mean over clients is the run's global accuracy, and shares sum to one."""
    algorithm = Local(model(), local_steps=2)
    *_, last = train(algorithm, federation(), 1)
    assert last.metrics is not None
    rows = {(row["client"], row["metric"]): row["value"] for row in last.metrics.to_pylist() if row["split"] == "test"}
    clients = sorted({client for client, _ in rows} - {"global"})
    own = [rows[client, "global_test/accuracy"] for client in clients]
    assert np.mean(own) == pytest.approx(last.summary["global/accuracy"], abs=1e-12)
    for client in clients:
        for kind in ("predicted", "true"):
            shares = [value for (of, name), value in rows.items() if of == client and f"global_test/{kind}/" in name]
            assert sum(shares) == pytest.approx(1)

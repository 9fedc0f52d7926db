"""Clients' own models on the global test set, by hand and in a run."""

import numpy as np
import pytest
import torch

from fedweave.algorithms import Local
from fedweave.algorithms.scoring import personal_score, score
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.federation import Client
from fedweave.experiment.rounds import train
from fedweave.metrics.classification import counts, personal
from tests.contract.federations import federation, global_test, graphs, model
from tests.random_graphs import replace_fields


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


def test_each_score_is_of_its_model_its_layers_and_its_examples() -> None:
    """On the global test layers turn every logit around; a client that never trained has no trained model to judge."""
    net, graph, test = model(0.0), graphs()["site-1"], global_test()
    last = net[-1]
    around = (*net[:-1], replace_fields(last, apply=lambda *given: -last.apply(*given)))
    w = models.init(net, random.key(0), torch.float32)
    client = Client(graph, {}, random.key(1), random.key(2), test)
    found = personal_score(net, w, client, test_model=around)
    for key, layers, data in (("own", net, graph), ("global_test", around, test)):
        wanted = counts(models.apply(layers, w, data), data.y, data.masks)
        assert torch.equal(found[key]["classes"], wanted["classes"])
        assert torch.equal(found[key]["loss"], wanted["loss"])
    assert not any(pairs.any() for pairs in found["trained"].values())
    for own in (w, models.init(net, random.key(3), torch.float32)):
        client.state["w"] = own
        wanted = counts(models.apply(net, own, graph), graph.y, graph.masks)
        assert torch.equal(score(net, w, client)["trained"]["loss"], wanted["loss"])


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

"""FedProto against arithmetic that was written apart from it, and its laws."""

from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.fedproto import ClassPrototypes, class_means
from fedweave.algorithms.parts import Outputs
from fedweave.algorithms.parts.part import Forward
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.federation import Client
from fedweave.core.graph import TRAIN
from fedweave.core.tree import Tree
from fedweave.core.types import FRAMING
from fedweave.experiment.rounds import train
from fedweave.models import MODELS
from tests.contract.federations import (
    CLASSES,
    FEATURES,
    HIDDEN,
    Recorder,
    distance,
    federation,
    graphs,
    model,
    state_after,
)

SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.3, "weight_decay": 0.0, "local_steps": 2}


def ended(rounds: int = 2, fed: Any = None, net: Any = None, **options: Any) -> tuple[Any, Any]:
    fed = fed or federation(dtype=torch.float64)
    *_, last = train(ALGORITHMS["fedproto"](net or model(0.0), **{**SGD, **options}), fed, rounds)
    return last, fed


def of_clients(fed: Any) -> tuple[np.ndarray, np.ndarray, list[Any]]:
    """Class means [P, C, d] and counts [P, C] of the clients' trained models, and their embeddings."""
    means, counts, all_of = [], [], []
    for (_, graph), own in zip(graphs(torch.float64).items(), fed.snapshot().values(), strict=True):
        h = models.embedded(model(0.0), own["w"], graph)
        mean, count = class_means(h, graph, CLASSES)
        means.append(mean.numpy())
        counts.append(count.numpy())
        all_of.append((h.numpy(), graph.y.numpy(), graph.masks[TRAIN].numpy()))
    return np.stack(means), np.stack(counts), all_of


@pytest.mark.parametrize("how", ["size", "mean"])
def test_prototypes_are_those_of_the_reference(baselines: Any, how: Any) -> None:
    last, fed = ended(how=how, minimum=1)
    means, counts, all_of = of_clients(fed)
    for at, (h, y, train_nodes) in enumerate(all_of):
        mean, count = baselines.class_means(h[train_nodes], y[train_nodes], CLASSES)
        assert np.abs(mean - means[at]).max() < 1e-12
        assert (count == counts[at]).all()
    q, known = baselines.fedproto_server(means, counts, how)
    state = last.state["parts"]["ClassPrototypes"]
    assert np.abs(state["prototype"].numpy() - q).max() < 1e-9
    assert (state["known"].numpy() == known).all()


def test_the_term_is_that_of_the_reference(baselines: Any) -> None:
    graph, net = graphs(torch.float64)["site-1"], model(0.0)
    w = models.init(net, random.key(1), torch.float64)
    q = torch.randn(CLASSES, HIDDEN, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    known = torch.tensor([True] * (CLASSES - 1) + [False])
    given: Tree = {"prototype": q, "known": known}
    found = ClassPrototypes(2.0).objective(Outputs(Forward(w, net, graph, None), given, {}))  # type: ignore[arg-type]
    rows = graph.masks[TRAIN]
    h, y = models.embedded(net, w, graph)[rows].numpy(), graph.y[rows].numpy()
    assert float(found) == pytest.approx(2 * baselines.fedproto_term(h, y, q.numpy(), known.numpy()), abs=1e-12)


@pytest.mark.slow
def test_without_strength_it_is_local_training_from_common_weights() -> None:
    """Each client's model is the one that FedAvg of a single client trains."""
    _, fed = ended(lam=0.0, rounds=3)
    fed.begin(0)
    for name, graph in graphs(torch.float64).items():
        alone = federation(dtype=torch.float64, clients={name: graph})
        *_, last = train(ALGORITHMS["fedavg"](model(0.0), **SGD), alone, 3)
        assert distance(fed.snapshot()[name]["w"], last.state["w"]) < 1e-12


def test_a_class_that_nobody_sends_stays_as_it_was() -> None:
    part = ClassPrototypes()
    last, _ = ended(minimum=10**6)
    state = last.state["parts"]["ClassPrototypes"]
    assert not state["known"].any()
    assert not state["prototype"].any()
    assert part.download({}, torch.arange(2)) == ({}, {})


def test_a_class_of_one_example_is_not_sent() -> None:
    """Its mean would be that example's embedding."""
    fed = federation(Recorder, dtype=torch.float64)
    state_after(ALGORITHMS["fedproto"](model(0.0), **SGD), fed, 1)
    _, counts, _ = of_clients(fed)
    assert (counts == 1).any()  # otherwise this tests nothing
    sent, told = fed.heard.stack("prototype"), fed.heard.stack("count")
    assert ((told == 0) | (told >= 2)).all()
    assert not sent[told == 0].any()


def test_only_prototypes_cross() -> None:
    _, fed = ended()
    rows = [row for row in fed.ledger.table().to_pylist() if row["purpose"] == "training" and row["key"] != FRAMING]
    crossed = {(row["direction"], row["key"]): row for row in rows}
    assert crossed.keys() == {
        ("up", "prototype"), ("up", "count"), ("down", "init"),
        ("down", "ClassPrototypes/prototype"), ("down", "ClassPrototypes/known"),
    }  # fmt: skip
    assert crossed["down", "ClassPrototypes/prototype"]["reveals"] == "of each class, the mean embedding over members"
    assert crossed["up", "prototype"]["shape"].startswith(f"[{CLASSES}, {HIDDEN}]")


@pytest.mark.often("vmap")
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_the_nearest_prototype_answers(baselines: Any, mode: str) -> None:
    net = MODELS["gcn"](hidden=HIDDEN, layers=2, dropout=0.0, linear=True).build(FEATURES, CLASSES)
    fed = federation(dtype=torch.float64, mode=mode)
    last, fed = ended(fed=fed, net=net, head="prototype")
    made = ALGORITHMS["fedproto"](net, head="prototype", **SGD)
    state = last.state["parts"]["NearestPrototype"]
    for name, graph in graphs(torch.float64).items():
        own = fed.snapshot()[name]
        client = Client(graph, dict(own), torch.tensor(0), torch.tensor(0), None)
        w = made.used(client, {"init": torch.tensor(0), "NearestPrototype": state})
        ours = models.apply(net, w, graph).argmax(1)[graph.real].numpy()
        h = models.embedded(net, own["w"], graph)[graph.real].numpy()
        assert (ours == baselines.nearest(h, state["prototype"].numpy(), state["known"].numpy())).all()

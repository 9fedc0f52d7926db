"""Pooled scores against scikit-learn and by hand; what a mean within members covers; which class is rare."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.scoring import measure
from fedweave.contract.subject import Subject
from fedweave.core import model as models
from fedweave.core import random
from fedweave.core.graph import SPLITS, TEST, make_graph
from fedweave.engines.simulation import Simulation
from fedweave.experiment.rounds import train
from fedweave.metrics.classification import rarest
from fedweave.metrics.pooled import pooled_examples
from fedweave.models import MODELS


def trained(name: str, **settings: Any) -> tuple[Any, Any, Any]:
    """(algorithm, federation, what two rounds left)."""
    subject = Subject(ALGORITHMS[name])
    algorithm, fed = subject.build(**settings), subject.federation()
    *_, last = train(algorithm, fed, 2)
    return algorithm, fed, last


def test_all_members_examples_are_compared_with_each_other() -> None:
    """As scikit-learn has it, of each class against the rest."""
    algorithm, fed, last = trained("fedavg")
    graphs = fed.graphs.values()
    logits = torch.cat([models.apply(algorithm.net, last.state["w"], graph) for graph in graphs])
    y = torch.cat([graph.y for graph in graphs]).numpy()
    found = pooled_examples(fed.example_outputs(algorithm.net, last.state["w"], fed.clients))["pooled/auc"]
    for at in range(len(SPLITS)):
        mask = torch.cat([graph.masks[at] for graph in graphs]).numpy()
        score = torch.softmax(logits.double(), -1).numpy()[mask]
        one_against_rest = [roc_auc_score(y[mask] == k, score[:, k]) for k in range(logits.shape[1])]
        assert found[at] == pytest.approx(np.mean(one_against_rest), abs=1e-6)
    assert last.summary["pooled/auc"] == found[TEST]
    rows = last.metrics.to_pylist()
    assert sum(row["metric"] == "pooled/auc" and row["client"] == "global" for row in rows) == len(SPLITS)


@pytest.mark.often("ditto", "glasu")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_only_the_model_that_everybody_uses_has_pooled_scores(name: str) -> None:
    """Where there are any, that model's loss at every member is the one that the evaluation says."""
    algorithm, fed, last = trained(name)
    w = algorithm.evaluated_model(last.state) if hasattr(algorithm, "evaluated_model") else None
    assert ("pooled/auc" in last.summary) == (w is not None)
    if w is None:
        return
    losses = last.of_clients("loss")
    for client, graph in fed.graphs.items():
        total, count = measure(algorithm.net, w, graph)["loss"][TEST]
        assert float(total / count) == pytest.approx(losses[client], abs=1e-5)


def test_these_have_pooled_scores() -> None:
    names = ("fedavg", "f2gnn", "fedprox", "ditto", "fedpub", "local")
    assert [name for name in names if "pooled/auc" in trained(name)[2].summary] == ["fedavg", "f2gnn", "fedprox"]


@pytest.mark.parametrize(
    ("counts", "share"),
    [
        ([75, 25], None),  # of two, a quarter is enough
        ([78, 22], 0.22),
        ([80, 10, 10], None),  # of more, a tenth
        ([81, 9, 10], 0.09),
        ([25] * 40, None),  # none of forty classes can have a tenth
        ([100] * 7 + [1], 1 / 701),
        ([100, 0], 0.0),  # tested on, never trained on
    ],
)
def test_a_class_is_rare_below_a_quarter_of_two_a_tenth_or_where_there_are_many_a_third_of_an_equal_share(
    counts: list[int], share: float | None
) -> None:
    classes = np.zeros((3, 2, len(counts) + 1))  # and one of which nobody has an example
    classes[0, 1, :-1] = counts
    classes[2, 1, :-1] = 5
    found = rarest(classes)
    assert np.isnan(found) if share is None else found == pytest.approx(share)


@pytest.mark.parametrize("sizes", [(3, 5, 2), (4, 4, 4)])
def test_a_batch_of_clients_says_of_their_examples_what_each_alone_says(sizes: tuple[int, ...]) -> None:
    """Rows that fill a batch up are nobody's examples."""
    rng = np.random.default_rng(0)
    graphs = {}
    for at, nodes in enumerate(sizes):
        masks = rng.random((3, nodes)) < 0.5
        edges = np.array([np.arange(nodes - 1), np.arange(1, nodes)])
        graphs[f"client-{at}"] = make_graph(rng.standard_normal((nodes, 3)), edges, rng.integers(2, size=nodes), masks)
    net = MODELS["gcn"](hidden=4).build(3, 2)
    w = models.init(net, random.key(0), torch.float32)
    alone, together = (Simulation(graphs, classes=2, mode=mode) for mode in ("loop", "vmap"))
    [one], [other] = (fed.example_outputs(net, w, ["client-2", "client-0", "client-1"]) for fed in (alone, together))
    assert len(one) == len(other) == 3
    for client, said in zip(one, other, strict=True):
        assert client.keys() == said.keys()
        assert torch.allclose(client["outputs"], said["outputs"], rtol=0, atol=1e-6)
        assert torch.equal(client["y"], said["y"])
        assert torch.equal(client["masks"], said["masks"])


def test_workers_send_the_scores_class_by_class() -> None:
    """What is compared is what one process compares."""
    subject, results = Subject(ALGORITHMS["fedavg"]), []
    for options in ({}, subject.shard_options(2)):
        algorithm, fed = subject.build(), subject.federation(**options)
        *_, last = train(algorithm, fed, 2)
        parts = [*fed.example_outputs(algorithm.net, last.state["w"], fed.clients)]
        results.append((pooled_examples(parts)["pooled/auc"], last.summary["pooled/auc"]))
    assert len(parts) > 1
    assert np.array_equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]

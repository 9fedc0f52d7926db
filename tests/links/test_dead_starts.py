"""Models of links that tell no pairs apart: what foretells them, and what a run says of them."""

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from fedweave import models
from fedweave.algorithms import FedAvg
from fedweave.core.links import Links
from fedweave.datasets.base import Dataset
from fedweave.datasets.links import as_links
from fedweave.engines.simulation import Simulation
from fedweave.experiment.build import federation
from fedweave.experiment.first_step import first_step_notes
from fedweave.experiment.rounds import train
from fedweave.metrics.selection import TIED
from fedweave.models.edges import on_examples
from fedweave.models.links import OnPairs
from fedweave.partition import Random
from fedweave.reports.notes import RunFacts, notes
from tests.links.test_links import random_data
from tests.targets import Example, numbers, split

FIRST_STEP, TIES = "the first step of Adam", "all scores were equal"


def made(data: Dataset, decoder: str = "dot", norm: Any = "none", **settings: Any) -> tuple[FedAvg, Simulation]:
    links = as_links(data, Links(rank_negatives=0))
    net = OnPairs(models.GCN(hidden=4, norm=norm), decoder).build(links.features)
    algorithm = FedAvg(net, **settings)
    return algorithm, federation(links, Random(clients=2).cut(links, 0), algorithm)


def of_length(total: float, sparse: bool = False) -> Dataset:
    """Each node's features add up to `total`; half of them are negative."""
    data = random_data()
    x = np.full((data.nodes, 4), total / 4, np.float32) * np.array([1, -1, 1, -1], np.float32)
    return replace(data, x=sp.csr_matrix(x) if sparse else x)


@pytest.mark.parametrize("sparse", [False, True])
def test_the_first_step_is_foretold_by_the_rate_and_the_rows_sums(sparse: bool) -> None:
    for total, lr, expected in ((49.0, 0.01, False), (51.0, 0.01, True), (51.0, 0.001, False), (0.6, 1.0, True)):
        algorithm, fed = made(of_length(total, sparse), lr=lr)
        found = first_step_notes([algorithm], fed.graphs)
        assert bool(found) == expected, total
        if expected:
            assert f"up to {total * lr:.2g} (lr {lr:g}, times {total:.3g}," in found[0]


@pytest.mark.parametrize(("decoder", "norm", "optimizer"), [
    ("cosine", "none", "adam"), ("dot", "layer", "adam"), ("dot", "none", "sgd"),
])  # fmt: skip
def test_other_models_do_not_stop_so(decoder: str, norm: str, optimizer: str) -> None:
    algorithm, fed = made(of_length(1000.0), decoder, norm, optimizer=optimizer)
    assert first_step_notes([algorithm], fed.graphs) == []


def test_a_federation_says_it_before_the_first_round(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        made(of_length(1000.0))
    assert sum(FIRST_STEP in record.getMessage() for record in caplog.records) == 1


def test_a_run_whose_scores_tie_says_so_once_and_advises_no_more_rounds(caplog: pytest.LogCaptureFixture) -> None:
    """Features of zeros, and biases at 0: each product is 0, and so is each gradient."""
    algorithm, fed = made(of_length(0.0), lr=0.01)
    with caplog.at_level(logging.WARNING):
        summaries = [step.summary for step in train(algorithm, fed, 5)]
    assert [summary[TIED] for summary in summaries] == [1, 2, 3, 4, 5]
    assert sum(TIES in record.getMessage() for record in caplog.records) == 1
    worse = dict(summaries[-1]) | {"reference/adamic_adar/accuracy": 0.9}
    sentences = notes(worse, RunFacts())
    assert "last 5 evaluations" in sentences["tied"]
    alive = notes({name: value for name, value in worse.items() if name != TIED}, RunFacts())
    for subject, advice in (("one class", "or more rounds"), ("shelf", "Or train longer")):
        assert advice in alive[subject]
        assert advice not in sentences[subject]


@pytest.mark.parametrize("example", ["node", "edge", "graph"])
@pytest.mark.parametrize("classes", [2, 3])
def test_classes_of_examples_without_a_difference_are_ties_too(
    example: Example, classes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """All hidden units are 0 at all nodes, so each example has the last biases as its scores."""
    data = numbers(example)
    edge_attrs = data.edge_attrs
    if edge_attrs is not None and edge_attrs.features is not None:
        edge_attrs = edge_attrs._replace(features=np.zeros_like(edge_attrs.features))
    y = np.digitize(data.y[:, 0], np.quantile(data.y[:, 0], np.arange(1, classes) / classes))
    as_classes = {"y": y, "classes": classes, "targets": (), "target_scale": None, "edge_attrs": edge_attrs}
    data = replace(data, x=np.zeros_like(data.x), sensitive=None, **as_classes)  # type: ignore[arg-type]
    plugin = models.GCN(hidden=4, pool="mean" if example == "graph" else "none")
    algorithm = FedAvg(on_examples(plugin, data.edge_attrs).build(data.features, data.outputs))
    fed = federation(data, split(data), algorithm)
    with caplog.at_level(logging.WARNING):
        *_, last = train(algorithm, fed, 4)
    assert last.summary[TIED] == 4
    assert sum(TIES in record.getMessage() for record in caplog.records) == 1
    assert "tied" in notes(last.summary, RunFacts())


def test_a_resumed_run_goes_on_counting() -> None:
    algorithm, fed = made(of_length(0.0), lr=0.01)
    first = [*train(algorithm, fed, 2)][-1]
    again = train(algorithm, fed, 3, resume=(2, first.state), summary=first.summary)
    assert next(again).summary[TIED] == 3


def test_scores_that_differ_are_not_ties() -> None:
    algorithm, fed = made(random_data(), lr=0.01)
    assert all(TIED not in step.summary for step in train(algorithm, fed, 2))

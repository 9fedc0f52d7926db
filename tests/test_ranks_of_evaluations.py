"""Evaluations between, which leave out the metrics that sort examples: what remains is as before, to the bit."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedweave.algorithms import FedAvg
from fedweave.algorithms.scoring import measure
from fedweave.core.graph import SPLIT_PAIRS
from fedweave.core.links import Links
from fedweave.core.types import FRAMING
from fedweave.datasets.base import Dataset
from fedweave.datasets.links import as_links
from fedweave.engines.loop import Loop
from fedweave.experiment.build import Built, build, federation
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import RoundResult, train
from fedweave.metrics import pooled
from fedweave.metrics.selection import OF_ORDER, TIED, Judging
from fedweave.models.gcn import GCN
from fedweave.models.links import DECODERS, OnPairs
from fedweave.partition import Random
from fedweave.privacy.accountant import bounds
from tests.contract.federations import algorithm as registered
from tests.contract.federations import federation as people
from tests.links.test_links import random_data
from tests.targets import numbers, several_labels

ROUNDS = 6
DOCUMENT: dict[str, Any] = {
    "rounds": ROUNDS,
    "data": {"name": "synthetic", "nodes": 240, "features": 8, "classes": 2},
    "partition": {"name": "random", "clients": 4},
    "algorithm": {"name": "fedavg", "local_steps": 1},
}


def train_document(ranks: str, **sections: Any) -> tuple[Built, list[RoundResult]]:
    """What a run with `evaluation.ranks` gives, round by round."""
    evaluation = {**sections.pop("evaluation", {}), "ranks": ranks}
    config = resolve({**DOCUMENT, **sections, "evaluation": evaluation})
    built = build(config)
    judging = config.evaluation.of(built.data.labels, built.data.classes, built.data.target)
    stopping = config.evaluation.stopping
    return built, [*train(built.algorithm, built.fed, config.general.rounds, judging=judging, stopping=stopping)]


def rows(step: RoundResult) -> dict[tuple[str, str, str], float]:
    table = [] if step.metrics is None else step.metrics.to_pylist()
    return {(row["client"], row["split"], row["metric"]): row["value"] for row in table}


def sorts(step: RoundResult) -> bool:
    """Whether a round has a metric for which examples are sorted."""
    return any(name.rpartition("/")[2] in OF_ORDER for _, _, name in rows(step))


def check_subset(some: RoundResult, everything: RoundResult) -> None:
    """Every number is one of the complete evaluation's, and what is missing follows from sorted examples."""
    have, all_rows = rows(some), rows(everything)
    assert have.items() <= all_rows.items()
    for _, _, name in all_rows.keys() - have.keys():
        assert name.startswith(("within/", "positives/")) or name.rpartition("/")[2] in OF_ORDER


CASES: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "three classes": {"data": {"name": "synthetic", "nodes": 240, "features": 8, "classes": 3}},
    "own models": {"algorithm": {"name": "fedper", "local_steps": 1}},
    "recorded": {"engine": {"record": "always"}},
    "loop": {"engine": {"mode": "loop"}},
    "all in one": {"algorithm": {"name": "centralized", "local_steps": 1}},
}


@pytest.mark.often("fedavg", "recorded")
@pytest.mark.parametrize("case", CASES)
def test_between_only_what_sorts_examples_is_left_out(case: str) -> None:
    whole_built, whole = train_document("all", **CASES[case])
    some_built, some = train_document("needed", **CASES[case])
    assert [sorts(step) for step in whole] == [True] * ROUNDS
    # Where the server has no model of all clients, each round that is the best so far has all metrics.
    between = [case == "own models" and step.summary["best_val/round"] == step.round for step in whole[1:-1]]
    assert [sorts(step) for step in some] == [True, *between, True]
    for one, other in zip(some, whole, strict=True):
        check_subset(one, other)
    assert rows(some[-1]) == rows(whole[-1])
    assert some[-1].summary == whole[-1].summary
    bytes_up, bytes_before = (built.fed.ledger.bytes_evaluation for built in (some_built, whole_built))
    assert bytes_up == bytes_before if all(between) else bytes_up < bytes_before


def test_few_examples_are_sorted_every_time_by_default() -> None:
    assert all(sorts(step) for step in train_document("auto")[1])


@pytest.mark.parametrize("metric", ["auc", "average_precision"])
def test_a_metric_that_sorts_and_selects_is_in_every_evaluation(metric: str) -> None:
    assert all(sorts(step) for step in train_document("needed", evaluation={"metric": metric})[1])


@pytest.mark.parametrize(
    ("algorithm", "evaluation"),
    [
        ({"name": "fedavg_ft", "local_steps": 1, "tune_steps": 2}, {"patience": 2}),
        ({"name": "fedavg", "local_steps": 1}, {"metric": "f1_positive"}),
    ],
)
def test_the_chosen_round_has_all_metrics(algorithm: dict[str, Any], evaluation: dict[str, Any]) -> None:
    sections = {"algorithm": algorithm, "evaluation": evaluation, "model": {"name": "gcn", "dropout": 0.5}}
    _, whole = train_document("all", **sections, rounds=12)
    _, some = train_document("needed", **sections, rounds=12)
    assert len(some) == len(whole)
    assert some[-1].summary == whole[-1].summary
    best = int(some[-1].summary["best_val/round"])
    later = some[-1].reranked
    rows_later = {} if later is None else rows(replace(some[-1], metrics=later))
    assert rows(some[best - 1]) | rows_later == rows(whole[best - 1])
    assert not all(map(sorts, some))


@pytest.mark.parametrize("algorithm", [{"name": "fedavg"}, {"name": "ditto"}])
def test_the_ledger_has_one_reply_of_each_client_in_a_round(algorithm: dict[str, Any]) -> None:
    """That with all metrics, where a round has them; of the keys that are sent, with the same bytes as in any round."""
    built, _ = train_document("needed", algorithm=algorithm, evaluation={"patience": 3}, rounds=8)
    rows_up = [
        row
        for row in built.fed.ledger.table().to_pylist()
        if (row["purpose"], row["direction"]) == ("evaluation", "up")
    ]
    seen = {(row["round"], row["client"], row["key"]) for row in rows_up}
    assert len(seen) == len(rows_up)
    sizes: dict[str, set[int]] = {}
    for row in rows_up:
        if row["key"] != FRAMING:
            sizes.setdefault(row["key"], set()).add(row["bytes"])
    assert all(len(each) == 1 for each in sizes.values())
    assert built.fed.ledger.bytes_evaluation == sum(
        row["bytes"] for row in built.fed.ledger.table().to_pylist() if row["purpose"] == "evaluation"
    )


def test_intervals_are_measured_for_the_chosen_and_the_last_round_only(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = list[int]()
    monkeypatch.setattr(pooled, "average_precision_interval", lambda *of: (measured.append(len(of[0])), (0.0, 1.0))[1])
    _, steps = train_document("all", evaluation={"metric": "average_precision"}, rounds=12)
    best = [int(step.summary["best_val/round"]) for step in steps]
    assert len({*best}) > 2
    assert len(measured) == (1 if best[-1] == len(steps) else 2)
    assert steps[-1].summary["best_val/pooled/average_precision_high"] == 1.0


def test_an_evaluation_that_costs_epsilon_is_made_once_in_a_round() -> None:
    sections = {
        "data": {"name": "synthetic", "nodes": 60, "features": 8, "classes": 2},
        "partition": {"name": "vertical", "clients": 2},
        "model": {"name": "gcnii", "layers": 2, "hidden": 4},
        "algorithm": {"name": "glasu", "clip": 1.0, "sigma": 1.0},
        "evaluation": {"metric": "accuracy", "patience": 5},
    }
    spent = []
    for ranks in ("all", "needed"):
        built, _ = train_document(ranks, **sections)
        spent.append(bounds(built.fed.ledger.table()))
    assert spent[0]
    assert spent[0] == spent[1]


def test_numbers_keep_their_errors() -> None:
    data = numbers(count=120)
    results = []
    for ranks in ("all", "needed"):
        algorithm = FedAvg(GCN(hidden=8).build(5, 1), local_steps=1, lr=0.01)
        fed = federation(data, Random(clients=3).cut(data, 0), algorithm)
        results.append([*train(algorithm, fed, ROUNDS, judging=Judging(ranks=ranks))])
    for whole, some in zip(*results, strict=True):
        check_subset(some, whole)
    assert results[0][-1].summary == results[1][-1].summary


@pytest.mark.parametrize("kind", ["labels", "numbers"])
def test_the_chosen_round_has_all_metrics_of_each_target(kind: str) -> None:
    data = several_labels("node", count=120) if kind == "labels" else numbers(count=120, targets=2)
    judging = Judging(metric="accuracy" if kind == "labels" else "auto")
    results = []
    for ranks in ("all", "needed"):
        algorithm = FedAvg(GCN(hidden=8).build(5, data.outputs), local_steps=3, lr=0.1)
        fed = federation(data, Random(clients=3).cut(data, 0), algorithm)
        results.append([*train(algorithm, fed, 12, judging=replace(judging, ranks=ranks))])
    whole, some = results
    assert some[-1].summary == whole[-1].summary
    best = int(some[-1].summary["best_val/round"])
    assert best not in (1, 12)
    assert any(name.startswith("best_val/per_target/") for name in some[-1].summary)
    later = some[-1].reranked
    rows_later = {} if later is None else rows(replace(some[-1], metrics=later))
    assert rows(some[best - 1]) | rows_later == rows(whole[best - 1])


def test_where_groups_are_compared_every_metric_is_in_every_evaluation() -> None:
    fed = people(name="f2gnn")
    fed.examples = 100
    steps = [*train(registered("f2gnn"), fed, 3, judging=Judging(ranks="needed"))]
    assert all(map(sorts, steps))


def test_equal_scores_are_counted_in_every_evaluation() -> None:
    plain = random_data()
    data = replace(plain, x=np.zeros_like(plain.x), y=plain.y % 2, classes=2)
    algorithm = FedAvg(GCN(hidden=8).build(5, 2), local_steps=1)
    fed = federation(data, Random(clients=2).cut(data, 0), algorithm)
    *_, last = train(algorithm, fed, ROUNDS, judging=Judging("accuracy", ranks="needed"))
    assert last.summary[TIED] == ROUNDS


@pytest.mark.parametrize("decoder", DECODERS)
def test_links_without_their_candidates_have_the_same_loss(decoder: str) -> None:
    data: Dataset = as_links(random_data(), Links(rank_negatives=20))
    algorithm = FedAvg(OnPairs(GCN(hidden=8), decoder).build(5))
    fed = federation(data, Random(clients=2).cut(data, 0), algorithm, mode="loop")
    assert isinstance(fed.executor, Loop)
    w = algorithm.init(fed)["w"]
    for graph in fed.graphs.values():
        assert len(graph.extra[SPLIT_PAIRS]) < len(graph.y) / 2
        whole, some = measure(algorithm.net, w, graph), measure(algorithm.net, w, graph, ranks="none")
        assert {"mrr", "auc"} <= whole.keys() - some.keys()
        for name, pair in some.items():
            tolerance = 1e-6 if decoder == "mlp" else 0.0
            assert torch.allclose(pair, whole[name], rtol=tolerance, atol=tolerance), name

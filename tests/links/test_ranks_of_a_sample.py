"""Evaluations may rank a sample of the links: always the same, and each by the numbers that it has among all. All links
of the round that is the result are ranked."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch

from fedweave.accounts.compliance import disclose
from fedweave.algorithms import ALGORITHMS, FedAvg
from fedweave.algorithms.scoring import measure
from fedweave.core import link_examples, model
from fedweave.core.graph import QUERY_COUNT, RANKED_LINKS, SOURCE, TEST, VAL, Graph
from fedweave.core.link_examples import LinkExamples, is_sampled, sample_ranks
from fedweave.core.links import Links
from fedweave.datasets.base import Dataset
from fedweave.datasets.links import as_links
from fedweave.engines.simulation import Simulation
from fedweave.experiment.build import federation
from fedweave.experiment.config import Config, resolve
from fedweave.experiment.graphs import graph_of, links_of
from fedweave.experiment.rounds import RoundResult, train
from fedweave.experiment.runs import run as runs
from fedweave.experiment.runs.files import METRICS, read_table
from fedweave.experiment.runs.reading import read_run
from fedweave.export.card import card
from fedweave.export.source import source
from fedweave.metrics import link_ranks
from fedweave.metrics.selection import OF_RANKS, RANKS_SAMPLED, Judging, Ranks, sample_words
from fedweave.metrics.stopping import Stopping
from fedweave.models.gcn import GCN
from fedweave.models.links import OnPairs
from fedweave.partition import Random
from fedweave.reports.first_screen import first_screen, places_table
from tests.links.test_demands_of_links import shop
from tests.links.test_links import random_data

ROUNDS = 6
DATA: dict[str, Any] = {
    "candidates": lambda: as_links(random_data(), Links(rank_negatives=20, ratios=(0.5, 0.2, 0.3))),
    "messages by split": lambda: as_links(random_data(), Links(rank_negatives=5, message="train+val")),
    "all nodes": lambda: as_links(random_data(), Links(rank_negatives="all", ratios=(0.5, 0.2, 0.3))),
    "lists": lambda: shop(rank_negatives="all"),
}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of few links."""
    monkeypatch.setattr(link_examples, "SAMPLE", 12)
    monkeypatch.setattr(link_examples, "SAMPLE_OF_CLIENT", 5)


def graph_with(data: Dataset, links: LinkExamples) -> Graph:
    return graph_of(data, data.features, torch.float64, links=links)


def evaluated(links: LinkExamples) -> np.ndarray:
    return np.flatnonzero(links.masks[[VAL, TEST]].any(0) & (links.ranks[QUERY_COUNT] > 0))


@pytest.mark.parametrize("name", DATA)
def test_a_sample_of_all_links_gives_the_numbers_of_all(name: str) -> None:
    data = DATA[name]()
    links = links_of(data)
    graph = graph_with(data, links._replace(sample=evaluated(links)))
    algorithm = FedAvg(OnPairs(GCN(hidden=8)).build(data.features))
    w = algorithm.init(federation(data, Random(clients=1).cut(data, 0), algorithm, dtype=torch.float64))["w"]
    whole, sampled = measure(algorithm.net, w, graph), measure(algorithm.net, w, graph, ranks="sample")
    assert "mrr" in whole
    assert ("ndcg_at_20" in whole) == (name == "lists")
    assert whole.keys() == sampled.keys()
    for metric, pair in whole.items():
        assert torch.equal(pair, sampled[metric]), metric


@pytest.mark.parametrize("name", DATA)
def test_each_link_of_the_sample_has_its_rank_among_all(name: str) -> None:
    data = DATA[name]()
    links = links_of(data)
    rows = evaluated(links)
    if name == "lists":  # users with all their links
        some_users = np.unique(links.pairs[SOURCE, rows])[::3]
        sample = rows[np.isin(links.pairs[SOURCE, rows], some_users)]
    else:
        sample = rows[1::3]
    graph = graph_with(data, links._replace(sample=sample))
    algorithm = FedAvg(OnPairs(GCN(hidden=8)).build(data.features))
    w = algorithm.init(federation(data, Random(clients=1).cut(data, 0), algorithm, dtype=torch.float64))["w"]
    net = algorithm.net
    of_links = link_ranks.rank_metrics(model.infer(net, w, graph), graph, model.count_above(net, w, graph))
    is_drawn = torch.zeros(len(graph.y), dtype=torch.bool)
    is_drawn[torch.from_numpy(sample)] = True
    expected = link_ranks.sum_links(of_links, graph.masks & is_drawn)
    sampled = measure(net, w, graph, ranks="sample")
    for metric, pair in expected.items():
        assert torch.allclose(pair, sampled[metric], atol=1e-12), metric
    everything = measure(net, w, graph)
    for metric in sampled.keys() - {*OF_RANKS}:
        assert torch.allclose(sampled[metric], everything[metric], atol=1e-12), metric


@pytest.mark.usefixtures("few")
def test_a_sample_is_in_proportion_and_every_client_has_some() -> None:
    sizes = (2000, 100, 6, 0)
    clients = []
    for seed, size in enumerate(sizes):
        data = as_links(random_data(60, size + 20, seed), Links(rank_negatives=3, ratios=(0.5, 0.25, 0.25)))
        clients.append(links_of(data))
    sampled = sample_ranks(clients)
    for split in (VAL, TEST):
        there = [int((links.masks[split] & (links.ranks[QUERY_COUNT] > 0)).sum()) for links in clients]
        drawn = [int(links.masks[split][links.sample].sum()) for links in sampled if links.sample is not None]
        shares = [12 * count // sum(there) for count in there]
        assert drawn == [min(count, max(5, share)) for count, share in zip(there, shares, strict=True)]
    for one, other in zip(sampled, sample_ranks(clients), strict=True):
        assert one.sample is not None
        assert np.array_equal(one.sample, other.sample)


def test_few_links_are_all_ranked() -> None:
    links = [links_of(DATA[name]()) for name in ("candidates", "candidates")]
    assert all(one.sample is None for one in sample_ranks(links))
    assert not is_sampled(np.array([5000, 5000]), False)
    assert is_sampled(np.array([10, 5001]), False)
    assert not is_sampled(np.array([10, 5001]), True)


@pytest.mark.usefixtures("few")
def test_users_are_drawn_with_all_their_links() -> None:
    links = links_of(DATA["lists"]())
    [sampled] = sample_ranks([links])
    rows = evaluated(links)
    users = links.pairs[SOURCE]
    assert sampled.sample is not None
    assert 0 < len(sampled.sample) <= 24 < len(rows)
    assert set(sampled.sample) == set(rows[np.isin(users[rows], users[sampled.sample])])


def links_federation(mode: str = "vmap") -> tuple[FedAvg, Simulation]:
    data = as_links(random_data(80, 900, seed=2), Links(rank_negatives=10, ratios=(0.5, 0.2, 0.3)))
    algorithm = FedAvg(OnPairs(GCN(hidden=8)).build(5), local_steps=2, lr=0.02)  # round 4 is the best
    return algorithm, federation(data, Random(clients=3).cut(data, 0), algorithm, mode=mode, dtype=torch.float64)


def train_links(
    ranks: Ranks, mode: str = "vmap", metric: str = "mrr", rounds: int = ROUNDS, stopping: Stopping | None = None
) -> tuple[Simulation, list[RoundResult]]:
    algorithm, fed = links_federation(mode)
    return fed, [*train(algorithm, fed, rounds, judging=Judging(metric, ranks=ranks), stopping=stopping)]


def rows(step: RoundResult) -> dict[tuple[str, str, str], float]:
    table = [] if step.metrics is None else step.metrics.to_pylist()
    return {(row["client"], row["split"], row["metric"]): row["value"] for row in table}


def without_ranks(numbers: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in numbers.items() if not name.endswith((*OF_RANKS, RANKS_SAMPLED))}


def of_ranks(numbers: dict[tuple[str, str, str], float]) -> dict[tuple[str, str, str], float]:
    return {name: value for name, value in numbers.items() if name[2].endswith(OF_RANKS)}


def is_sampled_in(numbers: dict[tuple[str, str, str], float]) -> float | None:
    return numbers.pop(("global", "test", RANKS_SAMPLED), None)


@pytest.mark.usefixtures("few")
def test_only_the_chosen_round_ranks_all_links() -> None:
    fed, some = train_links("needed")
    _, whole = train_links("all")
    assert fed.samples_ranks
    chosen = int(some[-1].summary["best_val/round"])
    for one, other in zip(some, whole, strict=True):
        mine, theirs = rows(one), rows(other)
        assert (is_sampled_in(mine), one.summary[RANKS_SAMPLED]) == (1.0, 1.0)
        assert is_sampled_in(theirs) is None
        assert RANKS_SAMPLED not in other.summary
        assert mine.keys() == theirs.keys()
        assert {name: mine[name] for name in mine.keys() - of_ranks(mine).keys()} == {
            name: theirs[name] for name in theirs.keys() - of_ranks(theirs).keys()
        }
        assert of_ranks(mine) != of_ranks(theirs)
    of_chosen = rows(whole[chosen - 1])
    assert 1 < chosen < ROUNDS
    assert some[-1].summary["best_val/global/mrr"] == of_chosen["global", "test", "mrr"]
    assert some[-1].reranked is not None
    assert set(some[-1].reranked["round"].to_pylist()) == {chosen}
    again = rows(replace(some[-1], metrics=some[-1].reranked))
    assert is_sampled_in(again) == 0
    assert of_ranks(of_chosen).items() <= again.items() <= of_chosen.items()
    assert all(step.reranked is None for step in some[:-1])


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("rounds", [1, 4])
def test_a_chosen_last_round_ranks_all_links(rounds: int) -> None:
    _, some = train_links("needed", rounds=rounds)
    _, whole = train_links("all", rounds=rounds)
    assert some[-1].summary["best_val/round"] == rounds
    assert some[-1].summary[RANKS_SAMPLED] == 0
    assert some[-1].reranked is None
    assert of_ranks(rows(some[-1])) == of_ranks(rows(whole[-1]))


@pytest.mark.usefixtures("few")
def test_without_validation_the_last_round_ranks_all_links() -> None:
    data = as_links(random_data(80, 900, seed=2), Links(rank_negatives=10, ratios=(0.8, 0.0, 0.2)))
    steps = {}
    for ranks in ("needed", "all"):
        algorithm = FedAvg(OnPairs(GCN(hidden=8)).build(5), local_steps=2, lr=0.02)
        fed = federation(data, Random(clients=3).cut(data, 0), algorithm, dtype=torch.float64)
        steps[ranks] = [*train(algorithm, fed, 2, judging=Judging("mrr", ranks=ranks))]  # type: ignore[arg-type]
    some, whole = steps["needed"], steps["all"]
    assert "best_val/round" not in some[-1].summary
    assert [step.summary[RANKS_SAMPLED] for step in some] == [1, 0]
    assert of_ranks(rows(some[0])) != of_ranks(rows(whole[0]))
    assert of_ranks(rows(some[1])) == of_ranks(rows(whole[1]))


@pytest.mark.usefixtures("few")
def test_members_models_are_ranked_when_they_are_the_best_so_far() -> None:
    """Members' own models of an earlier round are not there to be ranked at the end."""
    summaries = {}
    for ranks in ("needed", "all"):
        data = as_links(random_data(80, 900, seed=2), Links(rank_negatives=10, ratios=(0.5, 0.2, 0.3)))
        algorithm = ALGORITHMS["local"](OnPairs(GCN(hidden=8)).build(5), local_steps=2, lr=0.02)
        fed = federation(data, Random(clients=3).cut(data, 0), algorithm, dtype=torch.float64)
        *_, last = train(algorithm, fed, ROUNDS, judging=Judging("mrr", ranks=ranks))  # type: ignore[arg-type]
        summaries[ranks] = last.summary
    some, whole = summaries["needed"], summaries["all"]
    assert some[RANKS_SAMPLED] == (some["best_val/round"] != ROUNDS)
    if some["best_val/round"] == whole["best_val/round"]:
        assert some["best_val/local/mrr"] == whole["best_val/local/mrr"]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("mode", ["vmap", "loop"])
def test_the_ledger_has_each_evaluated_round_once(mode: str) -> None:
    """By hand: a round is one message down and one reply of each client, whatever else a simulation compares."""
    whole, some = (train_links(ranks, mode)[0].ledger for ranks in ("all", "needed"))
    table = some.table()
    evaluation = table.filter(pc.equal(table["purpose"].cast(pa.string()), "evaluation"))
    counts = pc.value_counts(evaluation.filter(pc.equal(evaluation["key"].cast(pa.string()), "own/loss"))["round"])
    assert {count["values"]: count["counts"] for count in counts.to_pylist()} == dict.fromkeys(range(1, ROUNDS + 1), 3)
    assert some.bytes_evaluation == pc.sum(evaluation["bytes"]).as_py() == whole.bytes_evaluation
    assert some.sizes() == whole.sizes()


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("more", [{}, {"stopping": Stopping(patience=2), "rounds": 20}])
def test_rounds_are_compared_by_the_same_links(more: dict[str, Any]) -> None:
    fed, steps = train_links("needed", **more)
    scores = {}
    for step in steps:  # what the sample says of each round's model
        with fed.scoring("sample"):
            replies = FedAvg(OnPairs(GCN(hidden=8)).build(5)).evaluate(step.state, fed).clients
        pair = replies.stack("own/mrr")[:, VAL]  # [P, 2]
        scores[step.round] = float((pair[:, 0] / pair[:, 1]).mean())
    best = max(scores, key=lambda number: (scores[number], -number))
    assert int(steps[-1].summary["best_val/round"]) == best
    assert steps[-1].summary["best_val/val/mrr"] == pytest.approx(scores[best], abs=1e-12)


@pytest.mark.usefixtures("few")
def test_executors_draw_the_same_sample() -> None:
    (_, one), (_, other) = (train_links("needed", mode) for mode in ("vmap", "loop"))
    for step, expected in zip(one, other, strict=True):
        assert rows(step) == pytest.approx(rows(expected), abs=1e-9)


@pytest.mark.usefixtures("few")
def test_a_run_that_goes_on_chooses_the_same_round() -> None:
    _, whole = train_links("needed")
    judging = Judging("mrr", ranks="needed")
    algorithm, fed = links_federation()
    start = next(step for step in train(algorithm, fed, ROUNDS, judging=judging) if step.round == 3)
    algorithm, other = links_federation()
    other.restore(fed.snapshot())
    at = 3, start.state
    again = [*train(algorithm, other, ROUNDS, resume=at, summary=start.summary, judging=judging)]
    assert [step.round for step in again] == [4, 5, 6]
    assert again[-1].summary == whole[-1].summary
    assert [rows(step) for step in again] == [rows(step) for step in whole[3:]]


def links_config(ranks: str) -> Config:
    return resolve({
        "seed": 2,
        "rounds": ROUNDS,
        "data": {"name": "synthetic", "task": "links", "nodes": 200, "features": 8, "rank_negatives": 10},
        "partition": {"name": "random", "clients": 3},
        "model": {"hidden": 8},
        "algorithm": {"local_steps": 1, "lr": 0.1},
        "engine": {"checkpoint_seconds": 100.0, "threads": 1},
        "evaluation": {"metric": "mrr", "ranks": ranks, "shelf": False, "alone": False},
    })  # fmt: skip


def interrupt(config: Config, directory: Path, stop: int) -> None:
    rounds = runs.running(config, directory, runs.Quiet())
    for _ in range(stop):
        next(rounds)
    rounds.close()


def run_links(directory: Path, ranks: str, stop: int = 0) -> dict[str, Any]:
    """What a run's files have; stop: the round after which it is interrupted and goes on."""
    config = links_config(ranks)
    if stop:
        interrupt(config, directory, stop)
    summary = runs.run(config, directory, runs.Quiet(), resume=bool(stop))
    table = read_table(directory, METRICS).to_pylist()
    values = {(row["round"], row["client"], row["split"], row["metric"]): row["value"] for row in table}
    assert len(values) == len(table)
    return {"summary": summary["metrics"], "rows": values}


@pytest.mark.usefixtures("few")
def test_a_run_has_all_ranks_of_its_chosen_round(tmp_path: Path) -> None:
    whole, some = run_links(tmp_path / "whole", "all"), run_links(tmp_path / "some", "needed")
    chosen = int(some["summary"]["best_val/round"])
    assert 1 < chosen < ROUNDS
    for number in range(1, ROUNDS + 1):
        mine = {name[1:]: value for name, value in some["rows"].items() if name[0] == number}
        theirs = {name[1:]: value for name, value in whole["rows"].items() if name[0] == number}
        assert is_sampled_in(mine) == (number != chosen)
        assert (of_ranks(mine) == of_ranks(theirs)) == (number == chosen)
    for stop in (chosen - 1, chosen, ROUNDS - 1):
        assert run_links(tmp_path / str(stop), "needed", stop) == some


def test_only_ranks_are_of_a_sample() -> None:
    assert sample_words("mrr", True) != sample_words("mrr", False) == sample_words("auc", True) == ""


@pytest.mark.usefixtures("few")
def test_ranks_of_a_sample_are_named_in_pages_and_cards(tmp_path: Path) -> None:
    """The chosen round of a run under way is of the sample, too; that of a finished run is not."""
    words, config = sample_words("mrr", True), links_config("needed")
    interrupt(config, tmp_path, ROUNDS - 1)
    begun = read_run(tmp_path)
    assert begun.summary["chosen_round"] < ROUNDS - 1
    assert [words in row[0].text for row in places_table(begun, ()).rows[:2]] == [True, True]
    assert words in repr(first_screen(begun, disclose(begun)).tiles[0])

    runs.run(config, tmp_path, runs.Quiet(), resume=True)
    ended = read_run(tmp_path)
    assert ended.summary["chosen_round"] < ROUNDS
    rows = places_table(ended, ()).rows
    assert [words in row[0].text for row in rows] == [number == 1 for number in range(len(rows))]  # the last round's
    assert words not in repr(first_screen(ended, disclose(ended)).tiles[0])
    for when in ("chosen", "last"):
        text = card(ended, source(tmp_path, None, None, when=when), None, "")
        assert (words in text) == (when == "last")


@pytest.mark.usefixtures("few")
def test_another_metric_of_order_is_of_all_examples() -> None:
    _, some = train_links("needed", metric="auc")
    _, whole = train_links("all", metric="auc")
    for one, other in zip(some, whole, strict=True):
        assert rows(one)["global", "val", "auc"] == rows(other)["global", "val", "auc"]
    chosen, last = some[-1].summary["best_val/round"], some[-1].summary
    assert chosen != ROUNDS
    assert without_ranks(last) == without_ranks(whole[-1].summary)
    assert last["best_val/global/mrr"] == whole[-1].summary["best_val/global/mrr"]


@pytest.mark.usefixtures("few")
def test_a_union_ranks_all_its_links() -> None:
    data = as_links(random_data(80, 900), Links(rank_negatives=10))
    algorithm = ALGORITHMS["centralized"](OnPairs(GCN(hidden=8)).build(5))
    assert not federation(data, Random(clients=3).cut(data, 0), algorithm).samples_ranks


def test_a_graph_without_a_sample_is_itself() -> None:
    data = DATA["candidates"]()
    graph = graph_with(data, links_of(data))
    assert RANKED_LINKS not in graph.extra
    assert graph.with_sampled_ranks is graph

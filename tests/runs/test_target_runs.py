"""Runs that learn numbers or several labels: the same numbers however they are computed, kept, resumed and reported."""

import json
from dataclasses import replace
from functools import partial
from math import isfinite

import numpy as np
import pytest
import torch

import fedweave
from fedweave.accounts.contributions import leave_one_out_gains
from fedweave.algorithms import FedAvg, Local
from fedweave.algorithms.parts import GraphCrossEntropy, SampledCrossEntropy
from fedweave.contract.subject import ShardedRecorder
from fedweave.core import model as models
from fedweave.core.graph import TRAIN
from fedweave.core.target import from_scale
from fedweave.experiment.rounds import train
from fedweave.experiment.runs.reading import read_runs
from fedweave.incentives.coalitions import GAINS_IN
from fedweave.metrics.intervals import BIN_ERROR
from fedweave.metrics.selection import Judging
from fedweave.models.edges import on_examples
from fedweave.models.gcn import GCN
from fedweave.models.gin import GIN
from fedweave.models.gine import GINE
from fedweave.models.sage import SAGE
from fedweave.partition.scaling import distance_of_targets
from fedweave.reports.html import render
from fedweave.reports.notes import RunFacts, notes
from tests.refusals import refusal
from tests.targets import numbers, several_labels, split

PLUGINS = {
    "node": GCN(hidden=8, layers=2),
    "graph": GIN(hidden=8, layers=2, pool="sum"),
    "edge": GINE(hidden=8, layers=2),
}
CASES = [(numbers, "node"), (numbers, "graph"), (numbers, "edge"), (several_labels, "graph")]
JUDGING = Judging(intervals=0.8)


def algorithm_on(data, kind=FedAvg, plugin=None, **settings):
    plugin = on_examples(plugin or PLUGINS[data.example], data.edge_attrs)
    return kind(plugin.build(data.features, data.outputs), **settings)


def summary_of(data, rounds=3, mode="vmap", judging=None, **settings):
    algorithm = algorithm_on(data, **settings)
    fed = fedweave.federation(data, split(data), algorithm, seed=0, mode=mode)
    *_, last = fedweave.train(algorithm, fed, rounds, eval_every=0, judging=judging)
    return dict(last.summary)


@pytest.mark.parametrize(("make", "example"), CASES)
def test_clients_at_once_have_the_numbers_of_one_after_the_other(make, example):
    data = make(example, targets=2)
    loop, together = (summary_of(data, mode=mode) for mode in ("loop", "vmap"))
    assert loop.keys() == together.keys()
    assert {name: loop[name] for name in loop} == pytest.approx(together, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("how", ["own", "all"])
def test_a_model_starts_at_the_mean_of_the_training_examples(how):
    """Of nodes without features only a model's biases are left, and they start at 0: a scaled number's mean."""
    data = numbers("node")
    data = replace(data, x=np.zeros_like(data.x), target_scaling=how)
    algorithm = algorithm_on(data)
    fed = fedweave.federation(data, split(data), algorithm, seed=0)
    w = algorithm.init(fed)["w"]
    trained = {client: graph.y[graph.masks[TRAIN], 0] for client, graph in fed.graphs.items()}
    everyone = torch.cat([*trained.values()])
    for client, graph in fed.graphs.items():
        start = from_scale(models.infer(algorithm.net, w, graph), graph.scale)[:, 0]
        mean = (trained[client] if how == "own" else everyone).mean()
        torch.testing.assert_close(start, mean.expand_as(start), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("make", "example"), [CASES[0], CASES[3]])
def test_clients_dealt_to_several_executors_have_the_same_numbers(make, example):
    data = make(example)
    algorithm = algorithm_on(data)
    one = fedweave.federation(data, split(data), algorithm, seed=0)
    graphs = {client: one.graphs[client] for client in one.clients}
    made = partial(algorithm_on, data)
    several = ShardedRecorder(graphs, classes=data.classes, shards=2, rebuild=made, seed=0)
    *_, first = train(algorithm, one, 2, judging=Judging())
    *_, second = train(algorithm, several, 2, judging=Judging())
    assert first.summary == second.summary
    assert first.metrics.equals(second.metrics)


@pytest.mark.parametrize("size", [1e-3, pytest.param(1.0, marks=pytest.mark.slow), 1e6])
def test_a_sum_of_scores_tells_what_scores_of_each_do(size):
    data = numbers("node", targets=2)
    scale = data.target_scale * np.array([[size], [size], [1.0]])
    data = replace(data, y=data.y * size, target_scale=scale, sensitive=None)
    each, total = (summary_of(data, scores=scores, judging=JUDGING) for scores in ("each", "sum"))
    alike = [f"{kind}/{name}" for kind in ("global", "local") for name in ("rmse", "mae", "r2", "pearson", "nrmse")]
    assert {name: total[name] for name in alike} == pytest.approx({name: each[name] for name in alike}, rel=1e-9)
    assert "pooled/spearman" in each
    assert "pooled/spearman" not in total
    for at in range(2):
        ratio = total[f"intervals/half_width/{at}"] / each[f"intervals/half_width/{at}"]
        assert 1 - 1e-6 <= ratio <= (1 + BIN_ERROR) * (1 + 1e-6)


def test_labels_in_a_sum_have_the_same_scores():
    data = several_labels("graph")
    each, total = (summary_of(data, scores=scores) for scores in ("each", "sum"))
    alike = [f"{kind}/{name}" for kind in ("global", "local") for name in ("auc", "average_precision", "accuracy")]
    assert {name: total[name] for name in alike} == pytest.approx({name: each[name] for name in alike}, rel=1e-9)


@pytest.mark.often("sampled-numbers", "batched-several_labels")
@pytest.mark.parametrize("make", [numbers, several_labels])
@pytest.mark.parametrize(
    ("example", "plugin", "part"),
    [
        ("node", SAGE(hidden=8, layers=2), SampledCrossEntropy(batch=8, fan_out=3)),
        ("graph", GIN(hidden=16, layers=2, pool="mean", dropout=0.0), GraphCrossEntropy(batch=8)),
    ],
    ids=["sampled", "batched"],
)
def test_mini_batches_learn_what_is_no_class(make, example, plugin, part):
    data = make(example, targets=2)
    name = "local/loss"
    first = summary_of(data, 1, plugin=plugin, parts=(part,), lr=0.0001)[name]
    assert summary_of(data, 8, plugin=plugin, parts=(part,), lr=0.02, local_steps=5)[name] < 0.9 * first


@pytest.mark.parametrize("make", [numbers, several_labels])
def test_one_mini_batch_of_all_graphs_is_the_whole_step(make):
    data, plugin = make("graph", targets=2), GIN(hidden=8, layers=2, pool="mean", dropout=0.0)
    whole = summary_of(data, 2, plugin=plugin)
    batched = summary_of(data, 2, plugin=plugin, parts=(GraphCrossEntropy(batch=100),))
    assert batched["local/loss"] == pytest.approx(whole["local/loss"], rel=1e-4)


@pytest.mark.often("FedAvg-mse", "Local-mae", "FedAvg-huber", "Local-quantile")
@pytest.mark.parametrize("loss", ["mse", "mae", "huber", "quantile"])
@pytest.mark.parametrize("kind", [FedAvg, Local])
def test_every_loss_of_numbers_trains(loss, kind):
    data = numbers("node")
    first, last = (summary_of(data, rounds, kind=kind, number_loss=loss) for rounds in (1, 12))
    assert last["local/mae"] < first["local/mae"]


def test_a_high_quantile_lies_above_most_numbers():
    data = numbers("node", count=200)
    low, high = (summary_of(data, 30, number_loss="quantile", quantile=q)["global/mae"] for q in (0.5, 0.95))
    assert low < high  # and which share lies below:
    algorithm = algorithm_on(data, number_loss="quantile", quantile=0.95)
    fed = fedweave.federation(data, split(data), algorithm, seed=0)
    *_, last = fedweave.train(algorithm, fed, 40, eval_every=0)
    shares = []
    for client in fed.clients:
        graph = fed.graphs[client]
        with torch.no_grad():
            above = models.infer(algorithm.net, last.state["w"], graph) > graph.truth
        shares.append(above[graph.masks[0]].double().mean().item())
    assert np.mean(shares) > 0.8


def test_a_label_with_few_positives_counts_by_its_weight():
    data = several_labels("node", count=200)
    rare = np.where(np.arange(200) % 8 == 0, data.y[:, 0], 0)
    data = replace(data, y=np.stack([rare, data.y[:, 1]], 1), targets=("rare", "usual"))
    plain, balanced = (summary_of(data, 5, class_weight=weight) for weight in ("none", "balanced"))
    by_hand = summary_of(data, 5, class_weight=(5.0, 1.0))
    assert len({plain["global/loss"], balanced["global/loss"], by_hand["global/loss"]}) == 3


@pytest.mark.parametrize(("make", "example"), [CASES[1], CASES[3]])
def test_a_run_that_is_resumed_ends_as_one_that_was_not(make, example, tmp_path):
    data = replace(make(example), sensitive=None)
    algorithm, judging = algorithm_on(data), JUDGING if make is numbers else None

    def run(out, rounds, resume=False):
        fed = fedweave.federation(data, split(data), algorithm, seed=0)
        for _ in fedweave.train(algorithm, fed, rounds, judging=judging, out=tmp_path / out, resume=resume):
            pass
        return json.loads((tmp_path / out / "summary.json").read_text())["metrics"]

    whole = run("whole", 4)
    run("halved", 2)
    assert run("halved", 4, True) == whole
    if make is numbers:
        assert isfinite(whole["intervals/half_width/0"])
    text = render(read_runs([tmp_path / "whole"]))
    for word in ("RMSE", "RMSE of y0") if make is numbers else ("AUC of y0", "AUC"):
        assert word in text


@pytest.mark.parametrize(
    ("make", "judging", "code"),
    [
        (numbers, Judging("auc"), "config.metric"),
        (numbers, Judging("accuracy"), "config.metric"),
        (numbers, Judging(positive=1), "config.no-class"),
        (several_labels, Judging("rmse"), "config.metric"),
        (several_labels, Judging("macro_f1"), "config.metric"),
        (several_labels, Judging(intervals=0.9), "config.intervals"),
    ],
)
def test_metrics_of_another_target_are_refused(make, judging, code):
    data = make("node", count=20)
    with refusal(code):
        judging.of(data.labels, data.classes, data.target)


def test_the_round_of_lowest_error_is_the_best():
    data = numbers("node")
    algorithm = algorithm_on(data, lr=0.05)
    fed = fedweave.federation(data, split(data), algorithm, seed=0)
    validated, best = [], []
    for step in fedweave.train(algorithm, fed, 12):
        rows = [r for r in step.metrics.to_pylist() if r["metric"] == "rmse" and r["split"] == "val"]
        validated.append(np.mean([r["value"] for r in rows if r["client"] != "global"]))
        best.append(step.summary["best_val/round"])
    assert best == [1 + int(np.argmin(validated[: at + 1])) for at in range(12)]


@pytest.mark.parametrize(("make", "judges"), [(numbers, "rmse"), (several_labels, "auc")])
def test_what_members_bring_is_measured_in_what_judges(make, judges, tmp_path):
    data = replace(make("graph"), sensitive=None)
    algorithm = algorithm_on(data)
    fed = fedweave.federation(data, split(data), algorithm, seed=0)
    for _ in fedweave.train(algorithm, fed, 2, out=tmp_path / "run"):
        pass
    gains = leave_one_out_gains(tmp_path / "run", "last", "auto")
    assert gains.schema.metadata[GAINS_IN].decode() == judges
    assert np.isfinite(gains["leave_one_out"].to_numpy()).all()
    with refusal("user"):
        leave_one_out_gains(tmp_path / "run", "last", "macro_f1")


def test_units_of_members_with_other_means_are_noted_where_they_share_a_model():
    data = replace(numbers("node"), target_scaling="own")
    cut = split(data)
    own = [data.y[part.examples[part.masks[0]], 0] for part in cut.parts]
    by_hand = np.std([y.mean() for y in own]) / np.sqrt(np.mean([y.var() for y in own]))
    assert distance_of_targets(data, cut) == pytest.approx(by_hand, abs=1e-12)
    for how in ("all", "none"):
        assert distance_of_targets(replace(data, target_scaling=how), cut) is None
    assert "units" in notes({"targets/apart": 0.3, "global/rmse": 1.0})
    assert "units" not in notes({"targets/apart": 0.2, "global/rmse": 1.0})
    assert "units" not in notes({"targets/apart": 0.3, "local/rmse": 1.0})
    followed = RunFacts.of_summary({}, {"algorithm": {"parts": [{"name": "own_share", "alone": True}]}})
    assert "units" not in notes({"targets/apart": 0.3, "global/rmse": 1.0}, followed)


def test_intervals_that_cover_too_few_beyond_chance_are_noted():
    found = {"intervals/nominal": 0.9, "intervals/least_coverage": 0.85}
    assert "coverage" in notes(found | {"intervals/coverage": 0.84})
    assert "coverage" not in notes(found | {"intervals/coverage": 0.86})

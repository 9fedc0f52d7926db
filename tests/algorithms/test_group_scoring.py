"""Gaps between groups of people in a federation: they are fairlearn's and scikit-learn's on all predictions together,
and clients without a sensitive attribute send what they always sent."""

from typing import Any

import numpy as np
import pytest
import torch
from fairlearn.metrics import demographic_parity_difference, equal_opportunity_difference, equalized_odds_difference
from sklearn.metrics import roc_auc_score

from fedweave.algorithms import ALGORITHMS
from fedweave.core import model as models
from fedweave.core.graph import TEST, Graph, make_graph
from fedweave.engines.simulation import Simulation
from fedweave.experiment.rounds import RoundResult, train
from fedweave.metrics.measured import GLOBAL
from fedweave.models import MODELS
from tests.contract.federations import FEATURES, arrays, distance

SIZES = (40, 70, 33)


def people(seed: int, nodes: int, sensitive: bool = True) -> Graph:
    """Two classes, of which group 1 is in the first more often."""
    x, edges, y, masks = arrays(nodes, seed)
    rng = np.random.default_rng(seed)
    group = (rng.random(nodes) < 0.3 + 0.4 * (y == 0)).astype(int)
    known = np.where(rng.random(nodes) < 0.05, -1, group)
    return make_graph(x, edges, (y > 0).astype(int), masks, known if sensitive else None, torch.float64)


def net(classes: int = 2) -> Any:
    return MODELS["gcn"](hidden=8, dropout=0.0).build(FEATURES, classes)


def federation(sensitive: bool = True, held: bool = False, **options: Any) -> Simulation:
    test = people(99, 60, sensitive) if held else None
    clients = {f"site-{i}": people(i, nodes, sensitive) for i, nodes in enumerate(SIZES)}
    return Simulation(clients, classes=2, test=test, **options)


def last(fed: Simulation, name: str = "fedavg", rounds: int = 15, **options: Any) -> RoundResult:
    *_, step = train(ALGORITHMS[name](net(), **options), fed, rounds, fair_margin=-1.0)
    return step


def judged(graphs: list[Graph], w: Any) -> tuple[np.ndarray, ...]:
    """Labels, predictions, groups and margins of all test nodes whose group is known."""
    found = []
    for graph in graphs:
        logits = models.apply(net(), w, graph)
        at = graph.masks[TEST] & (graph.sensitive >= 0)
        margin = logits[:, 1] - logits[:, 0]
        found.append([part[at].numpy() for part in (graph.y, (margin > 0).long(), graph.sensitive, margin)])
    return tuple(np.concatenate(part) for part in zip(*found, strict=True))


def rows(step: RoundResult, client: str, split: str = "test") -> dict[str, float]:
    assert step.metrics is not None
    table = step.metrics.to_pylist()
    return {row["metric"]: row["value"] for row in table if (row["client"], row["split"]) == (client, split)}


@pytest.mark.often("True")
@pytest.mark.parametrize("held", [False, True])
def test_gaps_of_the_global_model_are_those_of_all_predictions_together(held: bool) -> None:
    fed = federation(held=held)
    step = last(fed)
    graphs = [fed.test] if held else [fed.graphs[client] for client in fed.clients]
    y, predicted, sensitive, margin = judged(graphs, step.state["w"])  # type: ignore[arg-type]
    given = {"sensitive_features": sensitive}
    wanted = {
        "sp": demographic_parity_difference(y, predicted, **given),
        "eo": equal_opportunity_difference(y, predicted, **given),
        "equalised_odds": equalized_odds_difference(y, predicted, **given),
    }
    assert wanted["sp"] > 0
    found = rows(step, GLOBAL)
    for name, value in wanted.items():
        assert step.summary[f"groups/global/{name}"] == pytest.approx(value)
        assert found[f"groups/{name}"] == pytest.approx(value)
    if held:  # else the pairs are those within a client
        for s in (0, 1):
            area = roc_auc_score(y[sensitive == s], margin[sensitive == s])
            assert step.summary[f"groups/global/auc_group{s}"] == pytest.approx(area)
    accuracy = step.summary["global/accuracy"]
    assert found["groups/tradeoff_accuracy"] == pytest.approx(accuracy / (wanted["sp"] + wanted["eo"]))


def test_gaps_of_every_client_and_their_median() -> None:
    fed = federation()
    step, own = last(fed), []
    for client in fed.clients:
        y, predicted, sensitive, margin = judged([fed.graphs[client]], step.state["w"])
        found = rows(step, client)
        own.append(demographic_parity_difference(y, predicted, sensitive_features=sensitive))
        assert found["groups/sp"] == pytest.approx(own[-1])
        assert abs(found["groups/sp_signed"]) == found["groups/sp"]
        assert found["groups/auc_group1"] == pytest.approx(roc_auc_score(y[sensitive == 1], margin[sensitive == 1]))
    assert step.summary["groups/median/sp"] == pytest.approx(np.median(own))
    assert step.summary["groups/median/sp_undefined"] == 0


@pytest.mark.often("ditto")
@pytest.mark.parametrize("name", ["local", "dfedgnn", "ditto", "cgsv"])
def test_where_clients_have_models_of_their_own_all_is_the_mean_over_them(name: str) -> None:
    step = last(federation(held=True), name)
    assert 0 <= step.summary["groups/global/sp"] <= 1
    assert step.summary.keys() >= {"groups/median/eo"}


@pytest.mark.often("vmap")
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_without_a_sensitive_attribute_nothing_changes(mode: str) -> None:
    """Same weights, and the same messages but for the counts of groups, which are declared."""
    with_, without = federation(mode=mode), federation(sensitive=False, mode=mode)
    ends = [last(fed) for fed in (with_, without)]
    assert distance(ends[0].state, ends[1].state) == 0
    assert not [name for name in ends[1].summary if "groups" in name or "fair/" in name]
    kinds = ["step", "client", "direction", "key", "shape", "bytes", "reveals"]
    sent = [
        [tuple(row.values()) for row in fed.ledger.table().select(kinds).to_pylist() if "framing" not in row["key"]]
        for fed in (with_, without)
    ]
    more = [row for row in sent[0] if "group" in row[3]]
    assert [row for row in sent[0] if row not in more] == sent[1]
    assert {(row[0], row[3]) for row in more} == {("FedAvg.score", "own/groups"), ("FedAvg.score", "own/group_auc")}
    assert all("sensitive group" in row[6] for row in more)


def test_three_classes_have_no_favorable_one() -> None:
    fed = federation()
    *_, step = train(ALGORITHMS["fedavg"](net(3)), fed, 1)
    assert not [name for name in step.summary if "groups" in name]


def test_the_fairest_round_is_kept_with_its_test_results() -> None:
    steps = list(train(ALGORITHMS["fedavg"](net()), federation(), 6, fair_margin=-1.0))
    gaps = [rows(step, GLOBAL, "val")["groups/selection/gaps"] for step in steps]
    best = steps[int(np.argmin(gaps))]
    end = steps[-1].summary
    assert end["best_fair/round"] == best.round
    assert end["best_fair/val/gaps"] == min(gaps)
    assert end["best_fair/val/margin"] == -1.0
    for name in ("global/accuracy", "global/classes_predicted", "groups/global/sp", "groups/median/eo"):
        assert end[f"best_fair/{name}"] == best.summary[name]
    strict = [*train(ALGORITHMS["fedavg"](net()), federation(), 6, fair_margin=1.0)]
    accuracies = [rows(step, GLOBAL, "val")["groups/selection/accuracy"] for step in strict]
    assert strict[-1].summary["best_fair/round"] == 1 + int(np.argmax(accuracies))

"""The training loop: what it refuses, and what it says of trained models and of the best round."""

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch

from fedweave.algorithms import ALGORITHMS, FedAvg
from fedweave.algorithms.cgsv import CosineValue
from fedweave.algorithms.parts import Part, Round
from fedweave.core import model as models
from fedweave.core.graph import TEST
from fedweave.core.tree import Tree, map_leaves
from fedweave.errors import FedweaveError, UserError
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.config.toml import override
from fedweave.experiment.rounds import train
from fedweave.metrics.best_rounds import best_validated, fairest, selection, validated
from fedweave.metrics.measured import METRICS_SCHEMA, SELECTION
from fedweave.reports.notes import members_clause, notes
from tests.contract.federations import algorithm, federation, model
from tests.refusals import refusal


def test_divergence_is_an_error_that_names_round_and_remedy() -> None:
    algorithm = FedAvg(model(), optimizer="sgd", lr=1e30)
    with refusal("diverged") as error:
        list(train(algorithm, federation(), 10))
    advice = str(error.value).partition("bound the updates (")[2].partition(").")[0]
    document = {"algorithm": {"name": "fedavg"}, "data": {"name": "digits"}}
    override(document, advice.replace(" = [", "=[", 1))
    assert [type(part).__name__ for part in resolve(document).algorithm.make(model()).parts] == ["Clip"]


@pytest.mark.parametrize("name", ["local", "dfedgnn"])
def test_divergence_of_models_that_the_server_never_sees_is_an_error(name: str) -> None:
    made = ALGORITHMS[name](model(), optimizer="sgd", lr=1e30)
    with refusal("diverged"):
        list(train(made, federation(), 10))


@pytest.mark.parametrize("name", ["qfedavg", "f2gnn"])
def test_divergence_is_no_fault_of_the_weights_that_it_leads_to(name: str) -> None:
    made = ALGORITHMS[name](model(classes=2), optimizer="sgd", lr=1e30)
    with pytest.raises(FedweaveError, match="training diverged: ") as error:
        list(train(made, federation(name="f2gnn"), 10, eval_every=0))
    assert not isinstance(error.value, UserError)


@pytest.mark.parametrize(("rounds", "eval_every"), [(0, 1), (3, -1)])
def test_impossible_lengths_are_refused(rounds: int, eval_every: int) -> None:
    with refusal("user.rounds", f"rounds is {rounds} and eval_every {eval_every}"):
        list(train(FedAvg(model()), federation(), rounds, eval_every))


@pytest.mark.parametrize("method", ["init", "round"])
@pytest.mark.parametrize(
    ("odd", "what"),
    [
        (lambda state: None, "is a NoneType"),
        (lambda state: state | {"seen": {"of": {"clients": [1, 2]}}}, "holds a list at 'seen/of/clients'; only dense"),
        (lambda state: state | {"seen": np.zeros(2)}, "holds a ndarray at 'seen'"),
        (lambda state: state | {"seen": {3: 1.0}}, "has the key 3 under 'seen'"),
    ],
)
def test_a_state_that_no_checkpoint_can_hold_is_refused_at_once(method: str, odd: Any, what: str) -> None:
    """And not when the checkpoint is written, after rounds of work."""
    of_family = getattr(FedAvg, method)
    kind = type("Mine", (FedAvg,), {method: lambda self, *given: odd(of_family(self, *given))})
    with pytest.raises(
        UserError, match=rf"^Mine\.{method}: is to give the server's state, a tree; what it gives {what}"
    ):
        list(train(kind(model()), federation(), 1, eval_every=0))


@pytest.mark.parametrize("rounds", [1, 2])
def test_no_training_starts_where_another_has_ended(rounds: int) -> None:
    """Clients would begin with moments and personal models, and their bytes would be counted with those of before."""
    made, fed = ALGORITHMS["ditto"](model()), federation()
    *_, last = train(made, fed, rounds)
    with refusal("user.trained-before", "fedweave.federation", "`resume`"):
        list(train(FedAvg(model()), fed, 1))
    assert [step.round for step in train(made, fed, rounds + 1, resume=(last.round, last.state))] == [rounds + 1]


def rows(step: Any, split: str, metric: str) -> dict[str, float]:
    table = step.metrics.to_pylist()
    return {row["client"]: row["value"] for row in table if (row["split"], row["metric"]) == (split, metric)}


def test_every_clients_trained_model_is_judged_beside_the_global_one() -> None:
    """On its own nodes, by the weights that its last training left; one that never trained has no such model."""
    fed, made = federation(), FedAvg(model(dropout=0.0), participation=0.4)
    first, *_, last = train(made, fed, 6)
    took_part = {client for client, state in fed.snapshot().items() if state}
    for step in (first, last):
        own, trained = rows(step, "test", "accuracy"), rows(step, "test", "trained/accuracy")
        assert set(own) == {*fed.clients, "global"}
        assert step.summary["trained/accuracy"] == pytest.approx(sum(trained.values()) / len(trained))
    assert len(rows(first, "train", "trained/loss")) == 2  # two clients have trained yet
    assert set(trained) == took_part
    with torch.no_grad():
        for client in took_part:
            graph, w = fed.graphs[client], fed.snapshot()[client]["w"]
            hits = models.apply(made.model, w, graph).argmax(-1) == graph.y
            assert trained[client] == pytest.approx(float(hits[graph.masks[TEST]].double().mean()))
    assert rows(last, "train", "trained/loss") != rows(last, "train", "loss")


def test_what_a_round_measured_at_clients_is_found_by_name() -> None:
    *_, before, last = train(FedAvg(model(), parts=(CosineValue(),)), federation(), 4, eval_every=4)
    assert last.of_clients("accuracy") == {
        client: value for client, value in rows(last, "test", "accuracy").items() if client != "global"
    }
    known = last.of_clients("value", "server")
    assert known == rows(last, "server", "value")
    assert before.of_clients("value", "server").keys() == known.keys()  # of a round that was not evaluated
    with pytest.raises(KeyError, match=r"round 4 has no 'acuracy' .* split 'test'; there it has .*accuracy"):
        last.of_clients("acuracy")
    with pytest.raises(KeyError, match="there it has nothing"):
        before.of_clients("accuracy")


LATER = ("pooled/", "per_class/", "best_val/pooled/")  # of the chosen and the last round, at the end


def test_a_round_without_evaluation_has_no_numbers() -> None:
    steps = list(train(FedAvg(model()), federation(), 5, eval_every=2))
    assert [step.evaluated for step in steps] == [False, True, False, True, True]
    lasting = [{name for name in step.summary if not name.startswith(LATER)} for step in steps]
    assert len(steps[-1].summary) > len(lasting[-1]), "of the last round alone"
    assert [names == lasting[-1] for names in lasting] == [step.evaluated for step in steps]
    with pytest.raises(KeyError, match=r"global/accuracy.*round 3: this round was not evaluated \(eval_every\)"):
        steps[2].summary["global/accuracy"]
    with pytest.raises(KeyError, match=r"'acuracy' is not in the summary of round 4: it has global/"):
        steps[3].summary["acuracy"]
    assert steps[-1].summary["best_val/round"] in (2, 4, 5)  # the best of all evaluations, not of the last


@dataclass(frozen=True)
class Counted(Part):
    """How often each client was called; undefined for the first."""

    def init(self, fed: Any, w: Tree) -> Tree:
        return {"calls": torch.zeros(len(fed.clients), dtype=torch.float64)}

    def update(self, state: Tree, round: Round) -> Tree:
        return {"calls": state["calls"].index_add(0, round.at, torch.ones(len(round.at), dtype=torch.float64))}

    def measures(self, state: Tree) -> dict[str, torch.Tensor]:
        return {"calls": state["calls"].index_fill(0, torch.tensor([0]), math.nan)}


def test_what_the_server_knows_of_each_client_is_kept_after_every_round() -> None:
    fed = federation()
    steps = list(train(FedAvg(model(), parts=(Counted(),)), fed, 3, eval_every=0))
    for number, step in enumerate(steps, start=1):
        assert rows(step, "server", "calls") == dict.fromkeys(fed.clients[1:], float(number))
    assert [set(step.metrics["split"].to_pylist()) == {"server"} for step in steps] == [True, True, False]


def test_parts_that_measure_the_same_name_are_told_apart() -> None:
    fed = federation()
    *_, last = train(FedAvg(model(), parts=(Counted(), Counted())), fed, 1)
    measured = {row["metric"] for row in last.metrics.to_pylist() if row["split"] == "server"}
    assert measured == {"Counted.calls", "Counted2.calls"}


def test_a_local_model_is_its_own_trained_one() -> None:
    *_, last = train(algorithm("local"), federation(), 2)
    for split in ("train", "val", "test"):
        own = rows(last, split, "loss")
        assert rows(last, split, "trained/loss") == {client: own[client] for client in own if client != "global"}


def test_what_rounds_are_chosen_by_is_what_the_rows_say() -> None:
    steps = [step for step in train(algorithm("fedavg"), federation(), 2) if step.metrics is not None]
    means = [validated(step.metrics, "accuracy") or 0.0 for step in steps]
    assert steps[-1].summary["best_val/val/accuracy"] == max(means) > 0
    for step, mean in zip(steps, means, strict=True):
        own = [value for client, value in rows(step, "val", "accuracy").items() if client != "global"]
        assert mean == pytest.approx(sum(own) / len(own))


class Refuses(FedAvg):
    """Diverges, and cannot be evaluated then."""

    def round(self, state: Tree, fed: Any) -> Tree:
        return {"w": map_leaves(lambda own: own * math.nan, state["w"])}

    def evaluate(self, state: Tree, fed: Any) -> Any:
        raise UserError("scores are not numbers")


def test_a_state_that_is_not_finite_is_named_whatever_its_evaluation_says() -> None:
    with refusal("diverged"):
        [*_] = train(Refuses(model()), federation(), 1)


def evaluation(number: int, *val: float) -> pa.Table:
    clients = [(f"c{i}", "val", "accuracy", value) for i, value in enumerate(val)]
    others = [("c0", "test", "accuracy", 0.99), ("c0", "val", "f1", 0.99), ("global", "val", "accuracy", 0.99)]
    columns = zip(*((number, *row) for row in [*clients, *others]), strict=True)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, METRICS_SCHEMA, strict=True)],
                    METRICS_SCHEMA)  # fmt: skip


def test_the_best_round_is_the_first_with_the_best_mean_validation_accuracy() -> None:
    best: dict[str, float] = {}
    for number, val in enumerate([(0.5, 0.1), (0.4, 0.8), (0.8, 0.4), (0.3, 0.3), ()], 1):
        summary = {"global/accuracy": number / 10, "local/accuracy": number / 20, "local/loss": 1.0}
        best = best_validated(number, validated(evaluation(number, *val), "accuracy"), summary, summary | best)
    assert best == {
        "best_val/round": 2,
        "best_val/val/accuracy": pytest.approx(0.6),
        "best_val/global/accuracy": 0.2,
        "best_val/local/accuracy": 0.1,
        "best_val/local/loss": 1.0,
    }
    assert best_validated(1, validated(evaluation(1), "accuracy"), {}, {}) == {}


def test_rounds_are_best_among_those_that_lack_the_fewest_clients() -> None:
    """Without c1, which has the worst scores, the mean over clients rises by itself."""
    best: dict[str, float] = {}
    chosen = []
    for number, val in enumerate([(0.9,), (0.5, 0.1), (0.95,), (0.6, 0.2), (0.99,)], 1):
        summary = {"scores/missing": 1.0} if len(val) == 1 else {}
        best = best_validated(number, validated(evaluation(number, *val), "accuracy"), summary, summary | best)
        chosen.append((best["best_val/round"], best.get("best_val/missing")))
    assert chosen == [(1, 1.0), (2, None), (2, None), (4, None), (4, None)]


def test_the_fairest_round_is_one_that_lacks_the_fewest_clients() -> None:
    best: dict[str, float] = {}
    chosen = []
    for number, (gaps, missing) in enumerate([(0.1, 1), (0.3, 0), (0.0, 1), (0.2, 0)], 1):
        found = {"gaps": gaps, "accuracy": 0.9, "constant": 0.5}
        rows = [(number, "global", "val", f"{SELECTION}{name}", value) for name, value in found.items()]
        columns = zip(zip(*rows, strict=True), METRICS_SCHEMA, strict=True)
        table = pa.table([pa.array(column, field.type) for column, field in columns], METRICS_SCHEMA)
        summary = {"scores/missing": float(missing)} if missing else {}
        best = fairest(number, selection(table), summary, summary | best)
        chosen.append((best["best_fair/round"], best.get("best_fair/missing")))
    assert chosen == [(1, 1.0), (2, None), (2, None), (4, None)]


def test_evaluation_of_a_sample_has_its_clients_numbers_and_changes_no_training() -> None:
    document = {
        "rounds": 2,
        "data": {"name": "synthetic", "nodes": 240, "features": 8, "classes": 2},
        "partition": {"name": "random", "clients": 8},
        "algorithm": {"name": "fedavg", "participation": 0.5, "local_steps": 1},
    }
    whole, some = (build(resolve(document | more)) for more in ({}, {"evaluation": {"clients": 3}}))
    everyone, sample = ([*train(own.algorithm, own.fed, 2)] for own in (whole, some))
    assert torch.equal(everyone[-1].state["w"]["0"]["weight"], sample[-1].state["w"]["0"]["weight"])
    assert len(some.fed.evaluated_clients) == 3
    for before, after in zip(everyone, sample, strict=True):
        scores = after.of_clients("accuracy")
        assert scores == {client: before.of_clients("accuracy")[client] for client in some.fed.evaluated_clients}
        assert (after.summary["scores/sampled"], after.summary["scores/clients"]) == (3, 8)
        assert before.summary.keys().isdisjoint({"scores/sampled"})
    assert re.search("3 of 8 clients", notes(sample[-1].summary)["sampled"])
    assert members_clause({"within/members": 3.0, "scores/sampled": 3.0}, 8) == ""
    rows = some.fed.ledger.table().filter(pc.field("purpose") == "evaluation")
    assert {*rows["client"].to_pylist()} == {*some.fed.evaluated_clients}

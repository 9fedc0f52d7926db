"""What a party without labels, or the server, reads of the label holder's predictions in what it receives."""

import tomllib
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.vertical.aggregation import PREDICTIONS
from fedweave.cli.init import example_experiments
from fedweave.core.federation import Step, step_info
from fedweave.core.graph_arrays import graph_arrays
from fedweave.core.replies import Replies
from fedweave.core.tree import Tree
from fedweave.engines.simulation import Simulation
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.models import MODELS
from tests.refusals import refusal

TEMPLATE = tomllib.loads(example_experiments()["parties"])
ENDS_THERE = {"name": "gcn", "hidden": 16, "layers": 2}
TRIED = {"gcn": ENDS_THERE, "template": TEMPLATE["model"]}
CUT = {"name": "vertical", "clients": 2, "labels": "first", "train": 0.6, "val": 0.2, "test": 0.2}
DATA = {"name": "synthetic", "nodes": 300, "classes": 3, "features": 16}
LEARNED = 30  # rounds


class Listening(Simulation):
    """A server that follows the protocol and keeps the last aggregate of a prediction, and a second party without
    labels that keeps every aggregate that it is sent."""

    server: Tensor
    rows: Replies
    party: list[Tensor]

    def map(
        self, step: Step, shared: Tree | None = None, each: Any = None, clients: Sequence[str] | None = None
    ) -> Replies:
        heard = (shared or {}) | (each or {}).get(self.clients[1], {})
        if step.__name__ == "predict_proba":
            self.server = heard["h"]
        if "h" in heard and self.clients[1] in (clients or self.clients):
            self.party.append(heard["h"])
        replies = super().map(step, shared, each, clients)
        if step.__name__ == "infer_full":
            self.rows = replies
        return replies


@cache
def joint(name: str, exchanges: int = 1, rounds: int = 2, **settings: Any) -> tuple[Listening, Tensor, Tree]:
    """Who listens, what the holder predicts [n, classes], and the first weights of its model's last layer. What
    aggregates tell takes a model that has learned; which of them are sent does not."""
    given = {key: value for key, value in TEMPLATE["algorithm"].items() if key != "secure_sum"}
    given |= {"exchanges": exchanges} | settings
    built = build(resolve({"data": DATA, "partition": CUT, "model": TRIED[name], "algorithm": given}))
    fed = Listening(built.fed.graphs, classes=built.data.classes)
    fed.party = []
    *_, last = train(built.algorithm, fed, rounds, eval_every=10)
    other = fed.snapshot()[fed.clients[1]]["w"]
    built.algorithm.predict(last.state, fed)
    return fed, fed.snapshot()[fed.clients[0]]["prediction"], other[max(other, key=int)]


def test_where_the_model_ends_at_the_exchange_its_last_aggregate_is_the_predictions() -> None:
    for exchanges in (1, 2):
        fed, predicted, _ = joint("gcn", exchanges)
        assert float((torch.softmax(fed.server, -1) - predicted).abs().max()) < 1e-6


def test_with_the_templates_model_it_is_not() -> None:
    """The server knows what the holder's last layer began with, and tries that: its probabilities are others. Which
    class is the most probable it finds all the same, as docs/vertical.md says."""
    fed, predicted, first = joint("template", 1, LEARNED)
    assert fed.server.shape[1] == TEMPLATE["model"]["hidden"] != predicted.shape[1]
    guess = torch.softmax(fed.server @ first["weight"] + first["bias"], -1)
    assert float((guess - predicted).abs().max()) > 0.1
    assert float((guess.argmax(1) == predicted.argmax(1)).double().mean()) > 0.6


@pytest.mark.parametrize(("exchanges", "settings"), [(1, {}), (2, {}), (2, {"backward": "exchanged", "steps": 1})])
@pytest.mark.parametrize("name", TRIED)
def test_a_party_without_labels_gets_no_row_of_the_last_aggregate(
    name: str, exchanges: int, settings: dict[str, Any]
) -> None:
    """Neither in training nor in an evaluation or a prediction; of an earlier exchange it gets hidden ones."""
    model = TRIED[name]
    fed, predicted, _ = joint(name, exchanges, **settings)
    assert any(len(h) == 0 for h in fed.party)
    assert (max(map(len, fed.party)) > 0) == (exchanges == 2)
    assert all(h.shape[1] == model["hidden"] for h in fed.party if len(h))
    width = predicted.shape[1] if model is ENDS_THERE else model["hidden"]
    assert any(h.shape == (0, width) for h in fed.party)


def test_where_sums_are_secure_every_party_is_told_the_same() -> None:
    """Else no sum could be opened; docs/vertical.md says so."""
    fed, _, _ = joint("template", 1, LEARNED, secure_sum=True)
    assert fed.party
    assert all(len(h) for h in fed.party)


def right(fed: Listening, rows: Any) -> float:
    """The share of all labels that a logistic regression finds from `rows` if it knows a tenth of the labels."""
    graph, n = fed.graphs[fed.clients[0]], len(graph_arrays(fed.graphs[fed.clients[1]]).x)
    y, rows = graph.y[:n].numpy(), np.asarray(rows)[:n]
    known = np.arange(n) % 10 == 0
    fitted = LogisticRegression(C=100.0, max_iter=500).fit(rows[known], y[known])
    return float(fitted.score(rows[~known], y[~known]))


def columns_of_the_party(fed: Listening) -> np.ndarray:
    return np.asarray(graph_arrays(fed.graphs[fed.clients[1]]).x)


def test_a_party_without_labels_reads_them_off_the_aggregate_of_a_secure_sum() -> None:
    """Its own columns tell it less. Without a secure sum it is sent no row (above)."""
    fed, _, _ = joint("template", 1, LEARNED, secure_sum=True)
    assert right(fed, fed.party[-1]) > right(fed, columns_of_the_party(fed)) + 0.1


def test_the_server_reads_labels_off_a_partys_representations_unless_they_have_noise() -> None:
    """At a party that has no labels."""
    plain, noised = (joint("template", 1, LEARNED, sigma=sigma)[0] for sigma in (0.0, 1.0))
    key = next(path for path in plain.rows.paths if path.split("/")[0] == "h")
    assert right(plain, plain.rows.stack(key)[1]) > right(plain, columns_of_the_party(plain)) + 0.1
    key = next(path for path in noised.rows.paths if path.split("/")[0] == "h")
    assert right(noised, noised.rows.stack(key)[1]) < 0.45  # chance is a third


@pytest.mark.parametrize("name", ["glasu", "vfgnn", "vfl", "simulated_centralized"])
@pytest.mark.parametrize(("model", "tells"), [("gcn", True), ("gat", True), ("gcnii", False)])
def test_declarations_say_which_it_is(name: str, model: str, tells: bool) -> None:
    made = ALGORITHMS[name](MODELS[model]().build(8, 3))
    assert (PREDICTIONS in step_info(made.infer_full).sends) == tells
    assert ("h" in step_info(made.infer_full).sends) != tells
    for step in (made.update, made.score, made.predict_proba):
        assert ("prediction of each" in step_info(step).hears["h"]) == tells
    assert bool(made.notes) == tells


def test_who_trains_alone_tells_nobody() -> None:
    assert not ALGORITHMS["standalone"](MODELS["gcn"]().build(8, 3)).notes


def test_a_policy_forbids_predictions_and_lets_representations_leave() -> None:
    pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')
    from fedweave.core.algorithm import calls_of
    from fedweave.sites.flare.foresight import check_declared
    from fedweave.sites.flare.sitefile import Rules

    for model, key, refused in (
        ("gcn", PREDICTIONS, True),
        ("gcnii", PREDICTIONS, False),
        ("gcn", "h", True),  # whoever denies all representations denies these, too
        ("gcnii", "h", True),
    ):
        made = ALGORITHMS["glasu"](MODELS[model]().build(8, 3))
        rules, calls = Rules(deny=(key,)), calls_of(made, "glasu", 2)
        if refused:
            with refusal("call-refused", "policy.deny"):
                check_declared(rules, calls, True, 2)
        else:
            check_declared(rules, calls, True, 2)

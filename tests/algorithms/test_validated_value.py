"""Values of updates by themselves, on validation examples: by hand, of members that cheat, and as pay."""

import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from fedweave.accounts.contributions import observe_rounds
from fedweave.accounts.statements import account
from fedweave.core import model as models
from fedweave.core.graph import TEST
from fedweave.core.tree import add, leaves, nest
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.experiment.runs.reading import read_run
from fedweave.incentives.coalitions import COPIED, measured_by
from fedweave.incentives.payoffs import impartial_shares
from tests.algorithms.adversaries import AGENT
from tests.algorithms.values_of_lies import CHEATS, prepared, rounds, share
from tests.incentives.test_pay import run as paid_run
from tests.refusals import refusal

PARTS_OF_IT = ["norm_bound", "validated_value"]
CONFIG: dict[str, Any] = {
    "data": {"name": "synthetic", "nodes": 200, "classes": 3, "features": 6},
    "partition": {"name": "random", "clients": 4},
    "model": {"name": "gcn", "hidden": 4},
}
SMALL: dict[str, Any] = {
    "data": {"name": "mutag"},
    "partition": {"name": "graphs_iid", "clients": 3, "server_val": 0.2},
    "model": {"name": "gin", "pool": "sum", "hidden": 4, "layers": 2},
}


def by_hand(round: Any, accuracy: Any) -> torch.Tensor:
    """The accuracy of w plus each update, scaled to the median length, minus that of w."""
    lengths = torch.stack([torch.cat([round.update(p)[i].flatten() for p, _ in leaves(round.w)]).double().norm()
                           for i in range(len(round.at))])  # fmt: skip
    gains = []
    for i, length in enumerate(lengths):
        factor = float(lengths.median() / length)
        update = nest({path: round.update(path)[i] * factor for path, _ in leaves(round.w)})
        gains.append(accuracy(add(round.w, update)) - accuracy(round.w))
    return torch.tensor(gains, dtype=torch.float64)


def test_values_are_those_of_each_update_by_itself() -> None:
    built, plain = (
        build(resolve(CONFIG | {"algorithm": {"name": "fedavg", "parts": parts}}))
        for parts in (PARTS_OF_IT, ["norm_bound"])
    )
    graphs = list(plain.fed.graphs.values())

    def accuracy(w: Any) -> float:
        right = sum(
            int((models.apply(plain.algorithm.net, w, graph).argmax(-1) == graph.y)[graph.masks[TEST]].sum())
            for graph in graphs
        )
        return right / sum(int(graph.masks[TEST].sum()) for graph in graphs)

    steps = [*train(built.algorithm, built.fed, 2)]
    for (_, round, _), step in zip(observe_rounds(plain.algorithm, plain.fed, 2), steps, strict=True):
        measured = built.algorithm.measures(step.state, built.fed)
        with torch.no_grad():
            assert torch.allclose(measured["validated"], by_hand(round, accuracy), atol=1e-6)
        assert COPIED not in measured
        assert measured["validated"].any()
    rows = built.fed.ledger.table().to_pylist()
    shapes = {row["shape"] for row in rows if row["key"] == "tried/accuracy" and row["direction"] == "up"}
    assert shapes == {"[5, 2] float64"}  # four updates, and the model before


def test_a_server_values_them_on_examples_of_its_own(data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDWEAVE_DATA", str(data_root))
    part = {"name": "validated_value", "on": "server"}
    built = build(resolve(SMALL | {"algorithm": {"name": "fedavg", "parts": ["norm_bound", part]}}))
    plain = build(resolve(SMALL | {"algorithm": {"name": "fedavg", "parts": ["norm_bound"]}}))
    graph = plain.fed.held["validation"]

    def accuracy(w: Any) -> float:
        hits = models.infer(plain.algorithm.net, w, graph).argmax(-1) == graph.y
        return float((hits & (graph.y >= 0)).sum() / (graph.y >= 0).sum())

    [step] = train(built.algorithm, built.fed, 1)
    [(_, round, _)] = observe_rounds(plain.algorithm, plain.fed, 1)
    with torch.no_grad():
        expected = by_hand(round, accuracy)
    assert torch.allclose(built.algorithm.measures(step.state, built.fed)["validated"], expected, atol=1e-6)
    assert not any(row["key"].startswith("tried") for row in built.fed.ledger.table().to_pylist())


@pytest.mark.parametrize(
    ("code", "document"),
    [
        ("config.value", {"algorithm": {"name": "fedavg", "parts": ["validated_value"]}}),
        ("config.value", {"algorithm": {"name": "fedavg", "parts": [*PARTS_OF_IT, "secure_sum"]}}),
        ("config.value", {"algorithm": {"name": "fedavg", "parts": [*PARTS_OF_IT, "coalition_value"]}}),
        (
            "config.server-val",
            {"algorithm": {"name": "fedavg", "parts": ["norm_bound", {"name": "validated_value", "on": "server"}]}},
        ),
    ],
    ids=["any length", "hidden updates", "two values", "no examples at the server"],
)
def test_what_it_cannot_value_is_refused(code: str, document: dict[str, Any]) -> None:
    fact = "secure_sum" if "secure_sum" in document["algorithm"]["parts"] else "validated_value"
    with refusal(code, fact):
        built = build(resolve(CONFIG | document))
        next(train(built.algorithm, built.fed, 1))


@cache
def honest(data: str, seed: int) -> float:
    return share(rounds(prepared(data, seed, PARTS_OF_IT), seed, None), "validated")


@pytest.mark.slow
@pytest.mark.often("digits-0")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("data", ["digits", "cora"])
def test_what_is_no_work_earns_no_more_than_work(
    data: str, seed: int, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDWEAVE_DATA", str(data_root))
    shares = {
        what: share(rounds(prepared(data, seed, PARTS_OF_IT), seed, lie), "validated")
        for what, lie in CHEATS.items()
        if lie
    }
    ten = shares.pop("ten times its update")
    assert ten <= 1.02 * honest(data, seed)  # rounding to whole examples, and the median of the lengths
    assert max(shares.values()) < 0.01  # noise may by chance gain an example of one member
    assert honest(data, seed) > 0.1


def test_copies_are_known_and_worth_nothing() -> None:
    """The first member sends the second one's update; then, from the second round on, the last global update."""
    built = build(resolve(CONFIG | {"algorithm": {"name": "fedavg", "parts": PARTS_OF_IT}}))
    copied = rounds(built, 0, CHEATS["a copy of another's update"], 2)
    for measured in copied:
        assert measured["validated"][:2].tolist() == [0, 0]
        assert measured[COPIED][1] == AGENT
    _, second = rounds(built, 0, CHEATS["the last global update"], 2)
    assert second["validated"][AGENT] == 0
    assert second[COPIED][AGENT] == 4  # no client's place: the number of clients


def test_pay_follows_it(tmp_path: Path) -> None:
    directory = paid_run(tmp_path / "pay", PARTS_OF_IT, by="validated")
    run = read_run(directory)
    members = sorted(run.server_values("validated"))
    rows = [run.server_values(measured_by("validated", judge)) for judge in range(len(members))]
    by = torch.tensor([[math.fsum(row[member].values()) for member in members] for row in rows], dtype=torch.float64)
    owed = impartial_shares(by) * 1000.01
    lines = {line["member"]: float(line["pay"]) for line in account(run).table.to_pylist()}
    assert lines == pytest.approx(dict(zip(members, owed.tolist(), strict=True)), abs=0.02)

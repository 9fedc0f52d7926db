"""Values of what clients brought to a round, by models that are tried at all of them."""

from typing import Any

import numpy as np
import pytest
import torch

from fedweave.accounts.contributions import observe_rounds
from fedweave.core.replies import Replies
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.rounds import train
from fedweave.incentives.coalitions import COPIED, evaluation_graphs, measured_by, round_value
from fedweave.incentives.payoffs import impartial_shares
from fedweave.incentives.shapley import exact, leave_one_out
from fedweave.metrics.selection import Judging
from tests.algorithms import cheats
from tests.refusals import refusal

# What the cheats are tried on: their member is the first of five, with a fifth of the test examples.
CHEATED: dict[str, Any] = {
    "data": {"name": "synthetic", "nodes": 600, "classes": 3, "features": 6, "signal": 0.8},
    "partition": {"name": "random", "clients": 5},
    "model": {"name": "gcn", "hidden": 8},
    "engine": {"mode": "loop"},
}

CONFIG: dict[str, Any] = {
    "data": {"name": "synthetic", "nodes": 200, "classes": 3, "features": 6},
    "partition": {"name": "random", "clients": 4},
    "model": {"name": "gcn", "hidden": 4},
    "engine": {"mode": "loop"},
}
VALUES = {
    "coalition_value": ("shapley", ["coalition_value"]),
    "validated_value": ("validated", ["norm_bound", "validated_value"]),
}


def states(rounds: int, judges: Judging | None = None, **settings: Any) -> list[dict[str, Any]]:
    built = build(
        resolve(CONFIG | {"algorithm": {"name": "fedavg", "parts": [{"name": "coalition_value"} | settings]}})
    )
    steps = train(built.algorithm, built.fed, rounds, judging=judges)
    return [built.algorithm.measures(step.state, built.fed) for step in steps]


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1", "auc"])
def test_values_are_those_of_the_run_done_again_by_the_metric_that_selects(metric: str) -> None:
    built = build(resolve(CONFIG | {"algorithm": {"name": "fedavg"}}))
    _, graphs = evaluation_graphs(built.fed)
    rounds = zip(observe_rounds(built.algorithm, built.fed, 2), states(2, Judging(metric)), strict=True)
    for (_, round, _), measured in rounds:
        value = round_value(round, built.algorithm.net, graphs, metric)
        with torch.no_grad():
            assert torch.allclose(measured["shapley"], exact(value, 4).values, atol=1e-6)
            assert torch.allclose(measured["leave_one_out"], leave_one_out(value, 4), atol=1e-6)
            for at, graph in enumerate(graphs):
                alone = exact(round_value(round, built.algorithm.net, [graph], metric), 4).values
                assert torch.allclose(measured[measured_by("shapley", at)], alone, atol=1e-6)
        assert not measured["shapley_error"].any()


def test_a_rare_class_is_valued_by_its_average_precision() -> None:
    """A constant prediction has the highest accuracy: by accuracy no update would be worth anything."""
    data = {"name": "transfers", "accounts": 1500, "transfers": 6000, "fraud": 0.03}
    rare = CONFIG | {"algorithm": {"name": "fedavg", "parts": ["coalition_value"]}, "data": data}
    built = build(resolve(rare))
    [step] = train(built.algorithm, built.fed, 1)
    metrics = dict(step.summary)
    assert metrics["judged/average_precision"] is not None
    gains = built.algorithm.measures(step.state, built.fed)["shapley"]
    before = metrics["within/average_precision"] - float(gains.sum())
    assert 0 <= before <= 1  # the values sum to what the round gained in average precision
    assert float(gains.abs().sum()) > 0


def test_many_clients_are_valued_by_orders_of_joining_and_rounds_between_not_at_all() -> None:
    first, second = states(2, exact=1, permutations=200, every=2)
    assert all(first[name].isnan().all() for name in ("shapley", "leave_one_out"))
    _, exactly = states(2)
    assert (second["shapley_error"] > 0).any()
    assert ((second["shapley"] - exactly["shapley"]).abs() <= 4 * second["shapley_error"] + 1e-9).all()
    assert torch.equal(second["leave_one_out"], exactly["leave_one_out"])
    assert float(second["shapley"].sum()) == pytest.approx(float(exactly["shapley"].sum()))


@pytest.mark.parametrize(("clients", "settings"), [(4, {}), (20, {"permutations": 4})])
def test_no_more_messages_try_models_than_sites_are_told_to_expect(clients: int, settings: dict[str, int]) -> None:
    """Those of orders of joining come before those without one client."""
    config = CONFIG | {"partition": {"name": "random", "clients": clients}}
    parts = [{"name": "coalition_value"} | settings]
    built = build(resolve(config | {"algorithm": {"name": "fedavg", "parts": parts}}))
    [_] = train(built.algorithm, built.fed, 1, eval_every=0)
    rows = built.fed.ledger.table().to_pylist()
    calls = {row["call"] for row in rows if row["key"] == "tried/accuracy" and row["direction"] == "up"}
    assert 0 < len(calls) <= built.algorithm.calls(clients).round.count(built.algorithm.try_out)


@pytest.mark.parametrize("other", ["secure_sum", "median", "server_adam", "functional_mix"])
def test_what_hides_updates_or_makes_another_model_of_them_is_refused(other: str) -> None:
    with refusal("config.value", "coalition_value"):
        build(resolve(CONFIG | {"algorithm": {"name": "fedavg", "parts": ["coalition_value", other]}}))


# --- members that lie about what they count --------------------------------------------------------------------------


def test_a_budget_is_divided_impartially_by_hand() -> None:
    gains = torch.tensor([[9.0, 3.0, 1.0], [0.0, 9.0, -1.0], [1.0, 1.0, 9.0]])
    # the first gives 3/4 and 1/4, the second finds no gain and gives half each, the third half each
    assert impartial_shares(gains).tolist() == pytest.approx([1 / 3, 5 / 12, 1 / 4])
    assert impartial_shares(torch.rand(2, 2)).tolist() == [0.5, 0.5]
    assert impartial_shares(torch.zeros(1, 1)).tolist() == [1.0]


def test_what_members_report_never_changes_their_own_share() -> None:
    """And k of them together move the others' shares by no more than k / N in all."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        count = int(rng.integers(2, 8))
        gains = torch.from_numpy(rng.normal(size=(count, count)))
        liars = rng.permutation(count)[: int(rng.integers(1, count))]
        lies = gains.clone()
        lies[liars] = torch.from_numpy(rng.normal(scale=100, size=(len(liars), count)))
        honest, shares = impartial_shares(gains), impartial_shares(lies)
        assert float(shares.sum()) == pytest.approx(1)
        assert bool((shares >= 0).all())
        assert float((shares - honest).relu().sum()) <= len(liars) / count + 1e-9
        alone = gains.clone()
        alone[liars[0]] = lies[liars[0]]
        assert impartial_shares(alone)[liars[0]] == honest[liars[0]]  # to the bit


def shares_of(
    monkeypatch: pytest.MonkeyPatch, part: str, lie: cheats.Lie | None, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shares after three rounds in which the first member of five lies, and in proportion to all members' counts."""
    name, parts = VALUES[part]
    with monkeypatch.context() as patch:
        if lie:
            cheats.Liar(0, 5, lie).install(patch)
        built = build(resolve(CHEATED | {"seed": seed, "algorithm": {"name": "fedavg", "parts": parts}}))
        steps = [*train(built.algorithm, built.fed, 3, eval_every=0)]
    measured = [built.algorithm.measures(step.state, built.fed) for step in steps]
    by = torch.stack([sum(one[measured_by(name, judge)] for one in measured) for judge in range(5)])  # type: ignore[call-overload]
    together = torch.stack([one[name] for one in measured]).sum(0).relu()
    return impartial_shares(by), together / together.sum()


@pytest.mark.often("slander-validated_value")
@pytest.mark.parametrize("part", VALUES)
@pytest.mark.parametrize("lie", cheats.LIES)
def test_who_lies_about_its_counts_gains_nothing(monkeypatch: pytest.MonkeyPatch, part: str, lie: str) -> None:
    """Divided by all counts together, the same lies took up to the whole budget."""
    honest, _ = shares_of(monkeypatch, part, None)
    shares, together = shares_of(monkeypatch, part, cheats.LIES[lie])
    assert shares[0] == honest[0]
    assert float((shares - honest).relu().sum()) <= 1 / 5
    if (lie, part) in (("slander", "validated_value"), ("boast", "coalition_value")):
        assert float(together[0]) > 0.9


def test_who_sends_anothers_update_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second member sends a hundredth more than the first."""
    real = Replies.stack

    def stack(replies: Replies, path: str, **more: Any) -> torch.Tensor:
        leaf = real(replies, path, **more)
        return torch.cat([leaf[:1], 1.01 * leaf[:1], leaf[2:]]) if path.startswith("update") else leaf

    assert not any(COPIED in measured for measured in states(2))
    monkeypatch.setattr(Replies, "stack", stack)
    for measured in states(2):
        assert measured[COPIED][1] == 0
        assert measured[COPIED].isnan().tolist() == [True, False, True, True]

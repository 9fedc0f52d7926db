"""What members brought, measured between sites: what coalitions' models reach at each site."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')
import torch

from fedweave.accounts.contributions import measure_contributions
from fedweave.core.tree import map_leaves
from fedweave.errors import ClientsMissing
from fedweave.experiment.rounds import train
from fedweave.experiment.runs.reading import read_run
from fedweave.sites.flare.journal import journal_path, read_journal
from tests import commands
from tests.algorithms.cheats import Liar, impossible
from tests.refusals import refusal
from tests.sites.projects import SITES, experiment, joined, set_policy, simulated
from tests.sites.test_refused_rounds import job

COALITIONS = 8  # of three sites


def valued(**settings: Any) -> Any:
    return experiment(rounds=2, algorithm_settings={"parts": ["coalition_value"]} | settings)


def test_sites_value_each_other_as_the_simulation_does(project: Path, tmp_path: Path) -> None:
    config, out = valued(), tmp_path / "out"
    job(project, out, config)
    expected, sim = simulated(config)
    names = dict(zip(sim.clients, SITES, strict=True))
    table = measure_contributions(out, "all").to_pylist()
    last = expected.state["parts"]["CoalitionValue"]
    for name in ("shapley", "leave_one_out"):
        found = {row["client"]: row[name] for row in table if row["round"] == 2}
        assert found == pytest.approx(
            {names[client]: own for client, own in zip(sim.clients, last[name].tolist(), strict=True)}
        )
    run, [shares] = read_run(out), [[row["equal_share"] for row in table if row["round"] == 1]]
    assert shares == pytest.approx([1 / 3] * 3)
    ledger = [row for row in run.ledger.to_pylist() if row["key"] == "tried/accuracy" and row["direction"] == "up"]
    assert {row["shape"] for row in ledger} == {f"[{COALITIONS}, 2] float64"}
    assert "an evaluation for each" in ledger[0]["reveals"]
    commands.run("contributions", out, "--rounds", "all")


def test_sites_value_updates_by_themselves_as_the_simulation_does(project: Path, tmp_path: Path) -> None:
    config, out = valued(parts=["norm_bound", "validated_value"]), tmp_path / "out"
    job(project, out, config)
    expected, _ = simulated(config)
    last = expected.state["parts"]["ValidatedValue"]["validated"].tolist()
    table = measure_contributions(out, "all").to_pylist()
    assert [row["validated"] for row in table if row["round"] == 2] == pytest.approx(last)
    assert {"validated_share", "equal_share"} <= table[0].keys()
    assert "shapley" not in table[0]
    rows = read_run(out).ledger.to_pylist()
    shapes = {row["shape"] for row in rows if row["key"] == "tried/accuracy" and row["direction"] == "up"}
    assert shapes == {"[4, 2] float64"}
    commands.run("contributions", out, "--rounds", "all")


def test_a_run_of_sites_without_the_part_names_it(project: Path, tmp_path: Path) -> None:
    job(project, tmp_path / "out", experiment(rounds=1))
    with refusal("contributions.unmeasured", "algorithm.parts =", "without secure_sum") as error:
        measure_contributions(tmp_path / "out")
    assert error.value.code == "contributions.unmeasured"


def test_each_model_is_an_evaluation_of_the_policy(project: Path) -> None:
    planned = 2 * (COALITIONS + 1)
    set_policy(project, f"evaluations = {planned - 1}")
    with refusal("clients-missing", "policy.evaluations:", "18"):
        joined(project, valued())
    set_policy(project, f"evaluations = {planned}")
    fed, algorithm, _ = joined(project, valued())
    list(train(algorithm, fed, 2))
    entries = read_journal(journal_path(project / "bank-b", "r1")).entries
    assert sum(entry.step.endswith("try_out") and entry.direction == "up" for entry in entries) == 2
    with refusal("clients-missing", "policy.evaluations"):
        joined(project, valued(), run="r2")


def test_a_server_that_tries_more_models_than_it_said_is_refused(project: Path) -> None:
    """A message with thousands of models would be an oracle for labels."""
    set_policy(project, "evaluations = 40")
    fed, algorithm, _ = joined(project, valued())
    state = algorithm.init(fed)
    fed.map(algorithm.train, {"w": state["w"]})
    many = map_leaves(lambda leaf: torch.stack([leaf] * 41), state["w"])
    with refusal("clients-missing", "bank-b:", "policy.evaluations"):
        fed.map(algorithm.try_out, {"models": many})


@pytest.mark.often("1-messages0-", "1-messages2-9 so far", "2-messages4-tries 0 in it")
@pytest.mark.parametrize(
    ("every", "messages", "refused"),
    [(1, [8], ""), (1, [4, 4], ""), (1, [5, 4], r"9 so far"), (1, [65], r"65 of them"), (2, [1], r"tries 0 in it")],
)
def test_no_more_models_are_tried_than_the_algorithm_tries(
    project: Path, every: int, messages: list[int], refused: str
) -> None:
    """Whatever the policy says, in the rounds alone that end with a valuation."""
    part = {"name": "coalition_value", "every": every}
    fed, algorithm, _ = joined(project, valued(parts=[part]))
    state = algorithm.init(fed)
    fed.map(algorithm.train, {"w": state["w"]})
    for at, count in enumerate(messages, 1):
        many = map_leaves(lambda leaf, count=count: torch.stack([leaf] * count), state["w"])
        if refused and at == len(messages):
            with pytest.raises(ClientsMissing, match=f"bank-b: .*{refused}"):
                fed.map(algorithm.try_out, {"models": many})
        else:
            fed.map(algorithm.try_out, {"models": many})


@pytest.mark.parametrize("rule", ["score_epsilon = 1.0", "round_scores = 10"])
def test_hits_on_labels_as_they_are_stay_where_scores_are_coarser(project: Path, rule: str) -> None:
    set_policy(project, rule)
    with refusal("clients-missing", f"policy.{rule.split()[0]}: tried"):
        joined(project, valued())


@pytest.mark.parametrize("measures", [[], ["average_precision"]])
def test_no_more_leaves_of_tried_models_than_the_policy_lets_of_scores(project: Path, measures: list[str]) -> None:
    set_policy(project, f"measures = {measures}")
    fed, algorithm, _ = joined(project, valued())
    state = algorithm.init(fed)
    fed.map(algorithm.train, {"w": state["w"]})
    replies = fed.map(algorithm.try_out, {"models": map_leaves(lambda leaf: leaf[None], state["w"])})
    place = replies.clients.index("bank-b")
    withheld = {path: not replies.stack(path)[place].any() for path in replies.readable}
    assert not withheld["tried/accuracy"]
    assert withheld["tried/f1"]
    assert withheld["tried/labels"]


def test_a_site_that_claims_more_hits_than_examples_is_refused(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Liar(1, 3, impossible).install(monkeypatch)
    with refusal("clients-missing", "tried/accuracy"):
        job(project, tmp_path / "out", valued())

"""What every default owes: on skewed labels, not to be worse than FedAvg by much, nor than a constant prediction."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedweave.algorithms import ALGORITHMS
from fedweave.errors import UserError
from fedweave.experiment.build import build
from fedweave.experiment.config import parameters, resolve, with_algorithm
from fedweave.experiment.rounds import train

LOSS = 0.12  # of accuracy to FedAvg; CGSV nearly has it, whose clients get a part of the joint update alone
OTHERWISE = {"dp_fedavg", "pooled_gnn"}  # noise for more members than ten; rounds of one mini-batch of 16 nodes


def ended(name: str) -> dict[str, float]:
    """The last round's numbers of an algorithm as it comes, on Cora's labels at ten clients."""
    document: dict[str, Any] = {
        "rounds": 100,
        "eval_every": 0,
        "data": {"name": "cora"},
        "partition": {"name": "dirichlet", "alpha": 0.5, "clients": 10},
        "model": {"name": "gcn"},
        "algorithm": {"name": name},
    }
    made = build(resolve(document))
    *_, last = train(made.algorithm, made.fed, document["rounds"], eval_every=0)
    return last.summary


@pytest.fixture(scope="module")
def fedavg(data_root: Path) -> Iterator[float]:
    """FedAvg's accuracy, with the data in its place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDWEAVE_DATA", str(data_root))
        yield ended("fedavg")["global/accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - OTHERWISE))
def test_a_default_is_no_trap(name: str, fedavg: float) -> None:
    try:
        found = ended(name)
    except UserError as error:
        pytest.skip(f"{name} needs other data or another model: {error}")
    accuracy = found.get("global/accuracy", found["local/accuracy"])
    assert accuracy > fedavg - LOSS
    assert found["local/accuracy"] > found["local/majority"]


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_an_experiment_keeps_its_pace_where_both_algorithms_have_the_same_alone(name: str) -> None:
    """FedAvg's Adam at 0.02 is not a pace for SGD; what is neither learning rate nor optimizer is kept."""
    table = {"name": "fedavg", "lr": 0.02, "optimizer": "adam", "local_steps": 7}
    document, exchanged = with_algorithm({"algorithm": table}, name)
    before, own = (parameters("algorithm", ALGORITHMS[one]) for one in ("fedavg", name))
    pace = [key for key in ("lr", "optimizer") if key in own]
    alike = all(key in own and own[key].default == before[key].default for key in ("lr", "optimizer"))
    now = document["algorithm"]
    assert {key: now.get(key) for key in pace} == {key: table[key] if alike else None for key in pace}
    assert ("local_steps" in now) == ("local_steps" in own)
    assert set(exchanged.replaced) == (set() if alike else set(pace))


def test_what_a_server_learns_by_is_its_own() -> None:
    """Of momentum 0.5, of Adam 0.003."""
    document, _ = with_algorithm({"algorithm": {"name": "fedavgm", "server_lr": 0.7, "lr": 0.02}}, "fedadam")
    assert document["algorithm"] == {"name": "fedadam", "lr": 0.02}


@pytest.mark.parametrize(
    ("name", "kept"), [("ditto", []), ("fedavg_ft", []), ("fedprox", ["own_share"]), ("local", [])]
)
def test_a_part_that_decides_what_the_new_algorithm_decides_is_dropped(name: str, kept: list[str]) -> None:
    document, exchanged = with_algorithm({"algorithm": {"name": "fedavg", "parts": ["own_share"]}}, name)
    assert document["algorithm"].get("parts", []) == kept
    assert exchanged.dropped == (() if kept else ("parts own_share",))

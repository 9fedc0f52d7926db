"""A run whose steps are too short and too few to learn anything says so before it begins."""

from pathlib import Path
from typing import Any

import pytest

from fedweave.experiment import config
from fedweave.reports.clients import small_steps_note

EXPERIMENTS = sorted((Path(__file__).parents[2] / "experiments").glob("*.toml"))


def note(rounds: int = 30, algorithm: str = "fairgraphfl", **more: Any) -> str:
    top = {key: more.pop(key) for key in ("init_from",) if key in more}
    document = {"rounds": rounds, **top, "data": {"name": "proteins"}, "algorithm": {"name": algorithm, **more}}
    return small_steps_note(config.resolve(document))


def test_thirty_short_steps_are_noted_by_how_far_they_reach() -> None:
    """FairGraphFL's default, one step a round of Adam at .001, which the paper runs for 200 rounds."""
    text = note()
    assert all(fact in text for fact in ("0.001", "30 rounds", "1 step", "0.03", "algorithm.local_steps"))
    assert note(algorithm="fedavg", lr=0.001, local_steps=1)


@pytest.mark.parametrize(
    "enough",
    [
        {"rounds": 200},
        {"lr": 0.01},
        {"local_steps": 4},
        {"optimizer": "sgd"},  # how long its steps are depends on the gradient
        {"rounds": 3},  # a try
        {"init_from": "runs/before"},
        {"algorithm": "glasu"},  # has steps of its own
    ],
)
def test_nothing_is_noted_where_steps_reach_or_are_not_known(enough: dict[str, Any]) -> None:
    assert note(**enough) == ""


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_no_experiment_of_ours_is_so_slow(path: Path) -> None:
    made, _ = config.read(path)
    assert small_steps_note(made) == ""

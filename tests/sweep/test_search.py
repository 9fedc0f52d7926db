"""Settings that Optuna proposes: within what is sought, the same ones again, by how validation went."""

from pathlib import Path
from typing import Any

import pytest

from fedweave.experiment.runs import run as runs
from fedweave.reports import terminal
from fedweave.sweeps.runs import PlannedRun
from fedweave.sweeps.search import SAMPLERS, Search, run_search
from tests import commands
from tests.sweep.test_sweep import SMALL

pytest.importorskip("optuna")
LR, MU = "algorithm.lr=1e-3..1e-1,log", "algorithm.mu=.1,1"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path / "small.toml"


def here(done: list[str]) -> Any:
    """Does what is not done yet, in this process."""

    def execute(asked: list[PlannedRun]) -> dict[str, str]:
        for one in asked:
            if not one.finished():
                runs.run(one.config, one.directory, terminal.Terminal(terminal.screen(quiet=True)))
                done.append(one.name)
        return {}

    return execute


@pytest.mark.often("tpe")
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_each_algorithm_is_sought_by_itself_and_the_same_again_finds_all_done(
    config: Path, tmp_path: Path, sampler: str
) -> None:
    done: list[str] = []
    asked = (config, tmp_path, "3", "fedavg,fedprox", ["rounds=1"], [LR, MU], [], 2, sampler, here(done))
    found, failed, _ = run_search(*asked)
    assert not failed
    assert sorted(done) == sorted(run.name for run in found)
    rates = [run.config.algorithm.values["lr"] for run in found]
    assert len(found) == 4
    assert all(1e-3 <= rate <= 1e-1 for rate in rates)
    assert {run.config.algorithm.values.get("mu") for run in found} <= {None, 0.1, 1.0}
    again, *_ = run_search(*asked)
    assert [run.name for run in again] == [run.name for run in found]
    assert len(done) == 4


def test_what_a_range_holds_is_as_the_setting_is_declared(config: Path, tmp_path: Path) -> None:
    """Numbers between of a float, though the ends are whole; whole ones of an int; each algorithm in its own range."""
    grid = ["algorithm.focal=0..4", "model.hidden=2..9", "fedprox:algorithm.focal=7..9"]
    found, *_ = run_search(
        config,
        tmp_path,
        "0",
        "fedavg,fedprox",
        [],
        grid,
        [],
        3,
        "random",
        lambda asked: {run.name: "" for run in asked},
    )
    focal = {(run.config.algorithm.name, run.config.algorithm.values["focal"]) for run in found}
    assert all(value % 1 for _, value in focal)
    assert all(7 <= value <= 9 if name == "fedprox" else 0 <= value <= 4 for name, value in focal)
    assert all(isinstance(run.config.model.values["hidden"], int) for run in found)


def test_what_did_better_on_validation_is_sought_near() -> None:
    """TPE against a function that is known; a setting that failed is none."""
    search = Search({}, {"algorithm.lr": ["1e-4..1", "log"]}, "tpe", 0)
    import optuna

    space = {"lr": optuna.distributions.FloatDistribution(1e-4, 1.0, log=True)}
    tried = []
    for _ in range(40):
        search.trial = search.study.ask(space)
        tried.append(search.trial.params["lr"])
        search.study.tell(search.trial, -abs(search.trial.params["lr"] - 0.01))
    late = tried[-15:]
    assert sum(0.002 < rate < 0.05 for rate in late) >= 10
    search.trial, search.runs = search.study.ask(space), [PlannedRun("a", None, Path())]
    search.report({"a": "it failed"})
    assert search.study.trials[-1].state == optuna.trial.TrialState.FAIL


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--grid", LR], "--search"),
        (["--grid", LR, "--search", "2", "--shard", "1/2"], "--shard"),
        (["--grid", LR, "--search", "2", "--sampler", "grid"], "--sampler grid"),
        (["--search", "2"], "--grid"),
        (["--grid", "partition.clients=2..5", "--grid", LR, "--search", "2"], "compared over"),
    ],
)
def test_what_cannot_be_sought_is_refused(config: Path, options: list[str], says: str) -> None:
    found = commands.run("sweep", config, *options, code=2)
    assert says in found

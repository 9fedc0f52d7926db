"""`fedweave tune`: only validation decides, it is never worse there, and it goes on as if nothing had stopped it."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fedweave
from fedweave.cli import app
from fedweave.experiment.config import load, resolve
from fedweave.experiment.config.plugins import parameters, registry
from fedweave.experiment.runs import run as runs
from fedweave.python.training import Silent
from fedweave.sweeps import space, tuning
from fedweave.sweeps.tuning import FAILED, FINISHED, STOPPED, Tuning, TuningTrial, run_tuning
from tests.refusals import refusal

pytest.importorskip("optuna")
SMALL = """
rounds = 6
[data]
name = "synthetic"
nodes = 60
classes = 2
features = 4
[partition]
clients = 2
[model]
hidden = 3
[algorithm]
local_steps = 1
[engine]
threads = 1
"""


class Watch:
    """Stops the tuning, as Ctrl-C does, when trial `at` was evaluated."""

    def __init__(self, at: int = -1) -> None:
        self.at = at

    def begin(self, number: int, setting: Any) -> None:
        pass

    def evaluate(self, number: int, round: int, value: float) -> None:
        if number == self.at:
            raise KeyboardInterrupt

    def end(self, trial: TuningTrial) -> None:
        pass


def tune(document: Any, folder: Path, trials: int, seeds: Sequence[int] = (0,), at: int = -1) -> Tuning:
    return run_tuning(document, folder, seeds, trials, None, Watch(at))


def small(**changes: Any) -> dict[str, Any]:
    """The small experiment; algorithm={"lr": .1} changes these keys of a section."""
    document = tomllib.loads(SMALL)
    for section, keys in changes.items():
        if isinstance(keys, dict):
            document[section] = {**document.get(section, {}), **keys}
        else:
            document[section] = keys
    return document


def without_time(found: Tuning) -> list[TuningTrial]:
    return [replace(trial, seconds=0.0) for trial in found.trials]


def test_a_setting_that_does_not_learn_is_left_behind_and_the_result_is_what_a_run_of_it_has(tmp_path: Path) -> None:
    """Planted: a rate with which nothing moves. The value is that of `run` with each seed, in its best round."""
    asleep = small(algorithm={"lr": 1e-9})
    found = tune(asleep, tmp_path / "tuned", 9, (0, 1))
    assert found.trials[0].setting == {}
    assert found.best.value is not None
    assert found.trials[0].value is not None
    assert found.best.value > found.trials[0].value + 0.05
    assert found.best.setting["algorithm.lr"] > 1e-4
    assert {trial.outcome for trial in found.trials} <= {FINISHED, STOPPED}
    for seed, value in zip((0, 1), found.best.by_seed, strict=True):
        config = resolve(found.document | {"seed": seed})
        summary = runs.run(config, tmp_path / f"run-{seed}", Silent())
        assert summary["metrics"][f"best_val/val/{found.metric}"] == pytest.approx(value, abs=0)


def test_what_was_stopped_goes_on_to_the_same_trials(tmp_path: Path) -> None:
    whole = tune(small(), tmp_path / "whole", 5)
    for at in (0, 3):
        with pytest.raises(KeyboardInterrupt):
            tune(small(), tmp_path / "parts", 5, at=at)
    tune(small(), tmp_path / "parts", 4)
    assert without_time(tune(small(), tmp_path / "parts", 5)) == without_time(whole)
    assert [trial.number for trial in whole.trials] == list(range(5))


def test_labels_of_test_examples_change_nothing(tmp_path: Path) -> None:
    """With those of validation examples exchanged instead, the values differ: the counterpart that looks."""
    rng = np.random.default_rng(0)
    label, split = rng.integers(0, 2, 80), np.arange(80) % 4  # half of them train
    x = rng.normal(size=(80, 3)) + label[:, None]
    edges = np.unique(np.sort(rng.integers(0, 80, (160, 2)), axis=1), axis=0)
    edges = edges[edges[:, 0] != edges[:, 1]]

    def found(name: str, exchanged: int) -> list[TuningTrial]:
        labels = np.where(split == exchanged, 1 - label, label)
        folder = tmp_path / name
        folder.mkdir()
        names = np.array(["train", "train", "val", "test"])[split]
        rows = [f"{i},{labels[i]},{names[i]},{','.join(map(str, x[i]))}" for i in range(80)]
        (folder / "nodes.csv").write_text("\n".join(["id,label,split,a,b,c", *rows]) + "\n")
        (folder / "edges.csv").write_text("\n".join(["source,target", *(f"{u},{v}" for u, v in edges)]) + "\n")
        data = {"name": "folder", "path": str(folder), "normalize": "none"}
        cut = {"name": "random", "clients": 2, "use_dataset_split": True}
        document = {"rounds": 6, "data": data, "partition": cut, "engine": {"threads": 1}}
        return without_time(tune(document, tmp_path / f"{name}-tuned", 4))

    plain = found("plain", -1)
    assert found("test", 3) == plain
    assert [trial.value for trial in found("val", 2)] != [trial.value for trial in plain]


def test_a_trial_that_diverges_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = small(algorithm={"optimizer": "sgd", "lr": 0.01})
    only_rates = replace(space.space_of(document), shared={"algorithm.lr": (0.01, 1e30)}, models={"gcn": {}}, first=())
    monkeypatch.setattr(tuning, "space_of", lambda _: only_rates)
    found = tune(document, tmp_path, 6)
    failed = [trial for trial in found.trials if trial.outcome == FAILED]
    assert failed
    assert all(trial.setting == {"algorithm.lr": 1e30} and "finite" in trial.reason for trial in failed)
    assert found.best.setting == {}


def test_time_ends_a_tuning_after_one_trial_at_least(tmp_path: Path) -> None:
    found = run_tuning(small(), tmp_path, (0,), None, 0.0, Watch())
    [trial] = found.trials
    assert (trial.number, trial.rounds, trial.outcome) == (0, 1, FINISHED)
    assert found.document == small()


@pytest.mark.parametrize(
    ("code", "document"),
    [
        ("user.no-validation", small(partition={"train": 0.5, "val": 0.0, "test": 0.5})),
        ("tune.init-from", small(init_from="runs/other")),
    ],
)
def test_what_cannot_be_tuned_is_refused(tmp_path: Path, code: str, document: Any) -> None:
    for _ in range(3):  # and again, for the same reason
        with refusal(code):
            tune(document, tmp_path, 2)


def test_a_folder_of_another_experiment_is_refused_until_overwritten(tmp_path: Path) -> None:
    tune(small(), tmp_path, 1)
    for other, seeds in ((small(rounds=3), (0,)), (small(), (0, 1))):
        with refusal("tune.other", str(tmp_path), "overwrite = True"):
            tune(other, tmp_path, 1, seeds)
    run_tuning(small(rounds=3), tmp_path, (0,), 1, None, Watch(), overwrite=True)


EDGES = {"name": "transfers", "preset": "small", "task": "edges"}
LINKS = {"name": "synthetic", "nodes": 60, "classes": 2, "features": 4, "task": "links"}


@pytest.mark.parametrize(
    ("task", "document", "keys"),
    [
        ("nodes", small(), ["model.name", "algorithm.name", "algorithm.lr"]),
        ("edges", {"data": EDGES, "partition": {"name": "column"}, "model": {"name": "gine"}}, ["model.name"]),
        ("links", {"data": LINKS}, ["link_prediction.loss", "link_prediction.negatives"]),
        ("entities", {"data": {"name": "umls", "task": "links"}, "model": {"name": "embedding", "decoder": "distmult"},
                      "partition": {"name": "edges", "by": "relation"}, "algorithm": {"name": "fede"}},
         ["algorithm.local_steps"]),
        ("graphs", {"data": {"name": "mutag"}, "partition": {"name": "random"}, "model": {"name": "gin"}},
         ["algorithm.batch_size"]),
        ("parties", {"data": {"name": "cora"}, "partition": {"name": "vertical"}, "model": {"name": "gcnii"},
                     "algorithm": {"name": "glasu"}}, ["algorithm.lr"]),
    ],
)  # fmt: skip
def test_each_task_has_a_space_of_valid_settings_with_the_experiments_own(
    task: str, document: Any, keys: Sequence[str]
) -> None:
    assert space.task_of(resolve(document)) == task
    found = space.space_of(document)
    assert set(keys) <= set(found.shared)
    for model, choices in found.models.items():
        for key, values in choices.items():
            for value in values if isinstance(values, tuple) else (values.low, values.high):
                resolve(found.apply({"model.name": model, key: value})).check_made()
    for key, values in found.shared.items():
        for value in values if isinstance(values, tuple) else (values.low, values.high):
            resolve(found.apply({key: value})).check_made()
    own = found.starts()[0]
    assert set(own) == {*found.shared, *found.models[resolve(document).model.name]}


@pytest.mark.parametrize("setting", ["residual", "input_layer", "jump", "norm"])
def test_settings_of_models_are_tried_where_this_version_has_them(setting: str) -> None:
    found = space.space_of(small())
    for model, choices in found.models.items():
        assert (f"model.{setting}" in choices) == (setting in parameters("model", registry("model")[model]))


def test_what_protects_members_stays(tmp_path: Path) -> None:
    """Parts, scores and the algorithm that needs them are in every proposal."""
    algorithm = {"name": "fedavg", "scores": "sum", "parts": ["secure_sum"]}
    document = small(algorithm=algorithm)
    found = space.space_of(document)
    for name in ("algorithm.scores", "algorithm.parts", "data.normalize", "algorithm.share"):
        assert name not in found.shared
    for name in found.shared.get("algorithm.name", ()):  # type: ignore[union-attr]
        proposed = resolve(found.apply({"algorithm.name": name})).algorithm
        assert "secure_sum" in [part.name for part in proposed.values["parts"]]
        assert proposed.values["scores"] == "sum"
    assert "algorithm.name" not in space.space_of(small(algorithm={"name": "dp_fedavg"})).shared


def test_the_command_writes_what_run_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(SMALL)
    done = CliRunner().invoke(app, ["tune", "small.toml", "--trials", "2", "--set", "rounds=2"])
    assert done.exit_code == 0, done.output
    folder = Path("tuned/small")
    for name in ("tuned.toml", "tune.html", "trials.csv"):
        assert (folder / name).is_file()
        assert str(folder / name) in done.output
    assert re.search(r"^# 2 trials of 1 seed", (folder / "tuned.toml").read_text(), re.M)
    assert load(folder / "tuned.toml")["rounds"] == 2
    assert CliRunner().invoke(app, ["run", str(folder / "tuned.toml"), "-q"]).exit_code == 0


def test_python_has_the_result_as_an_object(tmp_path: Path) -> None:
    found = fedweave.tune(small(rounds=2), trials=2, out=tmp_path / "tuned", progress=False)
    assert found.config.general.rounds == 2
    assert found.trials["outcome"].to_pylist()[0] == FINISHED
    assert "<table>" in found._repr_html_()
    assert repr(found).startswith("Tuned(2 trials, validation accuracy=")
    again = fedweave.tune(small(rounds=2), trials=2, out=tmp_path / "tuned", progress=False)
    assert again.trials.equals(found.trials)

"""Runs that were put together in Python, and what the commands make of them."""

import logging
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import fedweave
from fedweave.algorithms import ALGORITHMS
from fedweave.algorithms.parts import Part, Uniform
from fedweave.cli import app
from fedweave.datasets import Dataset
from fedweave.experiment.config import dumps, resolve
from fedweave.experiment.runs.files import read_table
from fedweave.partition import Partition
from fedweave.sweeps.plan import plan_runs
from tests.refusals import check_facts, refusal

DOCUMENT: dict[str, Any] = {
    "rounds": 3,
    "seed": 1,
    "data": {"name": "synthetic", "nodes": 90, "classes": 3, "features": 6},
    "partition": {"name": "random", "clients": 3},
    "model": {"hidden": 4},
    "algorithm": {"name": "fedprox", "mu": 0.2, "local_steps": 2, "parts": ["uniform"]},
}


class Net(nn.Module):
    """A linear layer."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(features, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.layer(x)


@dataclass(frozen=True)
class Halved(Part):
    """Half of every weight; a part that stands in this file."""

    by: float = 0.5

    def weigh(self, state: Any, round: Any) -> Tensor:
        clients = len(round.replies.clients)
        return torch.full((clients,), self.by / clients, dtype=torch.float64)


def command(*words: object) -> Any:
    return CliRunner().invoke(app, [*map(str, words)])


def built(seed: int = 1, cut_seed: int | None = None) -> tuple[Dataset, Partition]:
    data = fedweave.datasets.load("synthetic", nodes=90, classes=3, features=6, seed=seed)
    return data, fedweave.partition.Random(clients=3).cut(data, seed=seed if cut_seed is None else cut_seed)


def trained(out: Path, data: Dataset, cut: Partition, algorithm: Any = None, rounds: int = 3, **more: Any) -> Any:
    if algorithm is None:
        model = fedweave.models.GCN(hidden=4).build(data.features, data.classes)
        algorithm = ALGORITHMS["fedprox"](model, mu=0.2, local_steps=2, parts=(Uniform(),))
    fed = fedweave.federation(data, cut, algorithm, seed=1)
    *_, last = fedweave.train(algorithm, fed, rounds, out=out, **more)
    return last


def test_a_run_put_together_in_python_is_the_commands(tmp_path: Path) -> None:
    """The same numbers, files and configuration as of the same experiment by its file."""
    (tmp_path / "e.toml").write_text(dumps(DOCUMENT))
    ran = fedweave.run(tmp_path / "e.toml", out=tmp_path / "run")
    last = trained(tmp_path / "python", *built())
    saved = fedweave.load_run(tmp_path / "python")
    assert saved.config == ran.config == resolve(DOCUMENT)
    assert saved.summary["metrics"] == pytest.approx(ran.summary["metrics"])
    assert last.summary["global/loss"] == saved.summary["metrics"]["global/loss"]
    assert saved.ledger["bytes"].to_pylist() == ran.ledger["bytes"].to_pylist()
    assert saved.partition.equals(ran.partition)
    assert {path.name for path in (tmp_path / "python").iterdir()} == {
        path.name for path in (tmp_path / "run").iterdir()
    }


def test_commands_take_a_run_from_python(tmp_path: Path) -> None:
    for name in ("one", "two"):
        trained(tmp_path / name, *built())
    for words in (
        ("predict", tmp_path / "one"),
        ("report", tmp_path / "one", tmp_path / "two", "-o", tmp_path / "page.html"),
        ("compare", tmp_path / "one", tmp_path / "two"),
        ("ledger", tmp_path / "one"),
    ):
        done = command(*words)
        assert done.exit_code == 0, done.output
    [swept], _ = plan_runs(tmp_path / "one" / "config.toml", tmp_path / "sweep", "1", "", [], [])
    assert swept.config == fedweave.load_run(tmp_path / "one").config


def test_an_experiment_is_a_dict_a_path_or_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = fedweave.run(DOCUMENT)
    assert first.directory == Path("runs/synthetic-fedprox-s1")
    again = fedweave.run(resolve(DOCUMENT), out="again")
    assert again.summary["metrics"] == first.summary["metrics"]
    with refusal("user.not-empty", "not empty"):
        fedweave.run(DOCUMENT, out="again")
    assert fedweave.run(DOCUMENT, out="again", resume=True).summary == again.summary
    assert fedweave.run(DOCUMENT | {"rounds": 4}, out="again", overwrite=True).summary["rounds"] == 4
    with refusal("config.unknown-key", "rouds"):
        fedweave.run({**DOCUMENT, "rouds": 3})


def test_data_of_ones_own_is_saved_beside_its_runs_once(tmp_path: Path) -> None:
    """Also a cut of one's own, by owners: predict trains nothing anew and needs them as they were."""
    data, cut = built()
    own = replace(data, name="mine", x=np.asarray(data.x) * 2)
    byhand = Partition(cut.parts, names=("north", "south", "west"))
    for name in ("one", "two"):
        trained(tmp_path / name, own, byhand)
    [file] = tmp_path.glob("*.npz")
    config = fedweave.load_run(tmp_path / "one").config
    assert (config.folder, config.partition.name) == (str(file), "column")
    assert config.data.values["normalize"] == "none"  # as the features were when the run was made
    assert fedweave.load_run(tmp_path / "one").partition["client"].to_pylist() == ["north", "south", "west"]
    done = command("predict", tmp_path / "one")
    assert done.exit_code == 0, done.output
    assert command("compare", tmp_path / "one", tmp_path / "two").exit_code == 0


def test_data_that_was_saved_is_named_by_its_file(tmp_path: Path) -> None:
    data, _ = built()
    own = replace(data, name="mine")
    own.save(tmp_path / "mine.npz")
    trained(tmp_path / "runs" / "one", own, fedweave.partition.Random(clients=3).cut(own, seed=1))
    assert fedweave.load_run(tmp_path / "runs" / "one").config.folder == str(tmp_path / "mine.npz")
    assert not list((tmp_path / "runs").glob("*.npz"))


def test_another_seed_of_the_cut_or_the_data_is_not_taken_for_the_runs(tmp_path: Path) -> None:
    trained(tmp_path / "cut", *built(cut_seed=5))
    assert fedweave.load_run(tmp_path / "cut").config.partition.name == "column"
    trained(tmp_path / "data", *built(seed=5))
    assert fedweave.load_run(tmp_path / "data").config.data.name == "npz"
    for name in ("cut", "data"):
        done = command("predict", tmp_path / name)
        assert done.exit_code == 0, done.output


def test_a_part_of_a_file_of_ones_own_is_named_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, cut = built()
    model = fedweave.models.ModuleKind(Net)().build(data.features, data.classes)
    trained(tmp_path / "run", data, cut, fedweave.algorithms.FedAvg(model, parts=(Halved(0.25),)))
    config = (tmp_path / "run" / "config.toml").read_text()
    check_facts(config, f"{Path(__file__).resolve()}:Net")
    check_facts(config, f"{Path(__file__).resolve()}:Halved")
    monkeypatch.setenv("FEDWEAVE_FILES", __file__)
    [part] = fedweave.load_run(tmp_path / "run").config.algorithm.values["parts"]
    assert part.values == {"by": 0.25}
    done = command("predict", tmp_path / "run")
    assert done.exit_code == 0, done.output


def test_what_no_file_names_is_said_and_reported_but_not_predicted_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, cut = built()
    with caplog.at_level(logging.WARNING):
        trained(tmp_path / "run", data, cut, fedweave.algorithms.FedAvg(Net(data.features, data.classes)))
    check_facts(caplog.text, "Net")
    assert fedweave.load_run(tmp_path / "run").summary["rounds"] == 3
    for words in (("report", tmp_path / "run"), ("compare", tmp_path / "run", tmp_path / "run2")):
        if words[0] == "compare":
            trained(tmp_path / "run2", data, cut)
        done = command(*words)
        assert done.exit_code == 0, done.output
    for words in (("predict", tmp_path / "run"), ("sweep", tmp_path / "run" / "config.toml", "--seeds", "0")):
        done = command(*words)
        assert done.exit_code == 2
        check_facts(done.output, "Net")


def test_a_run_that_is_left_early_is_saved_and_goes_on(tmp_path: Path) -> None:
    data, cut = built()
    model = fedweave.models.GCN(hidden=4).build(data.features, data.classes)
    algorithm = fedweave.algorithms.FedAvg(model)

    def fed() -> Any:
        return fedweave.federation(data, cut, algorithm, seed=1)

    for step in fedweave.train(algorithm, fed(), rounds=6, out=tmp_path / "run"):
        if step.round == 2:
            break
    assert read_table(tmp_path / "run", "metrics.parquet")["round"].to_pylist()[-1] == 2
    rest = [step.round for step in fedweave.train(algorithm, fed(), rounds=6, out=tmp_path / "run", resume=True)]
    assert rest == [3, 4, 5, 6]
    *_, whole = fedweave.train(algorithm, fed(), rounds=6)
    saved = fedweave.load_run(tmp_path / "run")
    assert saved.summary["metrics"]["global/loss"] == pytest.approx(whole.summary["global/loss"])


def test_pooled_algorithms_get_one_client(tmp_path: Path) -> None:
    data, cut = built()
    model = fedweave.models.GCN(hidden=4).build(data.features, data.classes)
    algorithm = ALGORITHMS["centralized"](model, local_steps=2)
    assert len(fedweave.federation(data, cut, algorithm).clients) == 1
    trained(tmp_path / "run", data, cut, algorithm)
    ran = fedweave.run(DOCUMENT | {"algorithm": {"name": "centralized", "local_steps": 2}}, out=tmp_path / "same")
    saved = fedweave.load_run(tmp_path / "run")
    assert saved.config == ran.config
    assert saved.summary["metrics"] == pytest.approx(ran.summary["metrics"])


def test_what_a_run_in_python_cannot_be_is_refused_before_it_trains(tmp_path: Path) -> None:
    data, cut = built()
    model = fedweave.models.GCN(hidden=4).build(data.features, data.classes)
    algorithm = fedweave.algorithms.FedAvg(model)
    bare = fedweave.Simulation(fedweave.client_graphs(data, cut), classes=data.classes)
    with refusal("user.value", "fedweave.federation"):
        fedweave.train(algorithm, bare, 1, out=tmp_path / "run")
    with refusal("user.value", "True or False"):
        fedweave.train(algorithm, bare, 1, resume=(1, {}), out=tmp_path / "run")
    for argument in ("resume", "overwrite"):
        with refusal("user.value", argument):
            fedweave.train(algorithm, bare, 1, **{argument: True})
    assert not (tmp_path / "run").exists()


def test_a_class_of_a_package_that_does_not_run_by_itself_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "__init__.py").touch()
    (tmp_path / "nets" / "base.py").write_text("from torch.nn import Linear, Module\n")
    (tmp_path / "nets" / "own.py").write_text(
        "from .base import Linear, Module\n\n\nclass Own(Module):\n    def __init__(self, features, classes):\n"
        "        super().__init__()\n        self.layer = Linear(features, classes)\n\n"
        "    def forward(self, x, edge_index):\n        return self.layer(x)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    data, cut = built()
    model = fedweave.models.ModuleKind(import_module("nets.own").Own)().build(data.features, data.classes)
    trained(tmp_path / "run", data, cut, fedweave.algorithms.FedAvg(model))
    check_facts(caplog.text, "Own")
    assert fedweave.load_run(tmp_path / "run").summary["rounds"] == 3

"""A run whose clients are on another device: from a configuration to rounds, files, resuming and predictions."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.apply.run_predictions import predictions
from fedweave.core.algorithm import capabilities
from fedweave.engines import devices
from fedweave.experiment import build as building
from fedweave.experiment.config import resolve
from fedweave.experiment.runs.files import CHECKPOINT, METRICS
from fedweave.experiment.runs.run import run
from fedweave.python.training import Silent
from tests.contract.federations import OTHER_PARAMETERS
from tests.refusals import check_facts
from tests.runs.test_predictions import molecules
from tests.stand_in import DEVICE, present

DATA = {"name": "synthetic", "nodes": 90, "classes": 2, "features": 8, "sensitive": True}
PARTS = {
    "secure sums": {"parts": ["secure_sum"]},
    "privacy noise": {"parts": [{"name": "dp", "clip": 1.0, "sigma": 1.0}]},
    "sampled neighborhoods": {"parts": [{"name": "sampled_cross_entropy", "batch": 8}]},
    "a kept optimizer, a part of the clients": {"optimizer_state": "kept", "participation": 0.5},
    "data that changes": {"parts": [{"name": "drift", "share": 0.5}]},
    "median": {"parts": ["median"]},
}


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A machine on which "cuda" is the stand-in; what was asked for."""
    asked: list[str] = []

    def choose_device(wanted: str, *more: Any) -> torch.device:
        asked.append(wanted)
        return DEVICE if wanted == "cuda" else torch.device("cpu")

    with present():
        monkeypatch.setattr(building, "choose_device", choose_device)
        monkeypatch.setattr(devices, "choose_device", choose_device)
        yield asked


def document(folder: Path, name: str, **settings: Any) -> dict[str, Any]:
    kind = capabilities(ALGORITHMS[name])
    found: dict[str, Any] = {"rounds": 2, "data": DATA, "partition": {"name": "random", "clients": 3}}
    found["model"] = {"name": "gcn", "hidden": 8} | ({"norm": "batch"} if name == "fedbn" else {})
    if kind.graph_level or name == "cffl":
        data = folder / "data"
        found["data"] = {"name": "graphs", "path": str(data if data.exists() else molecules(data, 40))}
        found["partition"] = {"name": "graphs_iid", "clients": 3, "server_val": 0.2 * (name == "cffl")}
        found["model"] = {"name": "star"} if name == "fedstar" else {"name": "gin", "pool": "sum", "hidden": 8}
    elif kind.vertical:
        found["partition"] = {"name": "vertical", "clients": 3}
        found["model"] = {"name": "gcnii", "hidden": 8, "layers": 4}
    elif name == "fedego":
        found["model"] = {"name": "ego", "hidden": 8}
    elif name == "fairgfl":
        found["partition"] = {"name": "overlap", "clients": 3}
    others = {} if name == "vfl" else OTHER_PARAMETERS.get(name, {})
    given = {"name": name} | others | settings
    return found | {"algorithm": given, "engine": {"dtype": "float64", "record": "always", "checkpoint_seconds": 0}}


def on(device: str, folder: Path, wanted: dict[str, Any], **how: Any) -> dict[str, Any]:
    wanted = wanted | {"engine": wanted["engine"] | {"device": device}}
    return run(resolve(wanted), folder / f"run-{device}", Silent(), **how)


def same(folder: Path, wanted: dict[str, Any]) -> None:
    """A run on the stand-in has the numbers of one on the host."""
    here, there = (on(device, folder, wanted) for device in ("cpu", "cuda"))
    assert (here["devices"], there["devices"]) == (["cpu"], [str(DEVICE)])
    assert there["metrics"] == pytest.approx(here["metrics"], abs=1e-9)
    assert there["bytes_up"] == here["bytes_up"]


@pytest.mark.often("fedavg")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_runs_there_and_predicts_from_its_files(name: str, tmp_path: Path, there: list[str]) -> None:
    same(tmp_path, document(tmp_path, name))
    where = tmp_path / "run-cuda"
    found, expected = (predictions(folder).to_pydict() for folder in (where, tmp_path / "run-cpu"))
    assert found["predicted"] == expected["predicted"]


@pytest.mark.slow
@pytest.mark.parametrize("settings", PARTS.values(), ids=PARTS)
def test_parts_run_there(settings: dict[str, Any], tmp_path: Path, there: list[str]) -> None:
    same(tmp_path, document(tmp_path, "fedavg", **settings))


@pytest.mark.slow
@pytest.mark.parametrize("after", ["cpu", "cuda"])
def test_a_checkpoint_is_read_on_any_device(after: str, tmp_path: Path, there: list[str]) -> None:
    wanted = document(tmp_path, "fedavg", optimizer_state="kept", parts=[{"name": "drift", "share": 0.5}])
    whole = on("cpu", tmp_path / "whole", wanted)
    before = {"cpu": "cuda", "cuda": "cpu"}[after]
    on(before, tmp_path, wanted | {"rounds": 1})
    (tmp_path / f"run-{before}").rename(tmp_path / f"run-{after}")
    resumed = on(after, tmp_path, wanted, resume=True)
    assert resumed["metrics"] == pytest.approx(whole["metrics"], abs=1e-9)
    assert pq.read_table(tmp_path / f"run-{after}" / METRICS)["round"].to_pylist()[-1] == 2


def test_a_run_from_a_machine_with_a_gpu_is_used_on_one_without(tmp_path: Path) -> None:
    with present(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "choose_device", lambda wanted, *more: DEVICE)
        on("cuda", tmp_path, document(tmp_path, "fedavg"))
    where = tmp_path / "run-cuda"
    check_facts((where / "config.toml").read_text(), 'device = "cuda"')
    assert json.loads((where / "summary.json").read_text())["devices"] == [str(DEVICE)]
    assert (where / CHECKPOINT).exists()
    assert len(predictions(where)) == 90

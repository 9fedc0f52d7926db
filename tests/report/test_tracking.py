"""Trackers get the numbers of the run's own files."""

import importlib.util
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from fedweave.experiment.config import resolve
from fedweave.experiment.runs import run as runs
from fedweave.reports import tracking
from fedweave.reports.tracking import Tracking, open_trackers
from tests import commands
from tests.refusals import refusal

DOCUMENT: dict[str, Any] = {
    "data": {"name": "synthetic", "nodes": 90, "classes": 3, "features": 6},
    "partition": {"clients": 3},
    "model": {"hidden": 4},
    "algorithm": {"local_steps": 1},
    "engine": {"threads": 1},
}


class Kept:
    """A tracker that keeps what it is told."""

    def __init__(self, directory: Path, settings: dict[str, Any], done: int) -> None:
        self.settings, self.done = settings, done
        self.told, self.finished = list[tuple[int, dict[str, float]]](), None

    def numbers(self, round: int, found: dict[str, float]) -> None:
        self.told.append((round, dict(found)))

    def close(self, finished: bool) -> None:
        self.finished = finished


def run(directory: Path, watch: Any, rounds: int = 3, resume: bool = False) -> dict[str, Any]:
    return runs.run(resolve(DOCUMENT | {"rounds": rounds, "eval_every": 2}), directory, watch, resume)


def test_every_round_is_told_with_what_was_measured_in_it(tmp_path: Path) -> None:
    made: list[Kept] = []
    watch = Tracking([lambda *about: made.append(Kept(*about)) or made[-1]])
    summary = run(tmp_path / "run", watch)
    [kept] = made
    assert (kept.done, kept.finished, kept.settings["rounds"]) == (0, True, 3)
    assert [number for number, _ in kept.told] == [1, 2, 3]
    assert ["global/accuracy" in found for _, found in kept.told] == [False, True, True]
    last = kept.told[-1][1]
    assert last["global/accuracy"] == summary["metrics"]["global/accuracy"]
    assert last["bytes/up"] == summary["bytes_up"]
    assert last["bytes/evaluation"] == summary["bytes_evaluation"]


def test_a_run_that_patience_ends_is_finished(tmp_path: Path) -> None:
    made: list[Kept] = []
    document = DOCUMENT | {"rounds": 200, "evaluation": {"patience": 1, "min_delta": 0.5}}
    watch = Tracking([lambda *about: made.append(Kept(*about)) or made[-1]])
    summary = runs.run(resolve(document), tmp_path / "run", watch)
    assert summary["rounds"] < 200
    assert made[0].finished is True


def test_one_tracker_that_fails_leaves_none_open(tmp_path: Path) -> None:
    class Failing(Kept):
        def close(self, finished: bool) -> None:
            raise RuntimeError("no server")

    made: list[Kept] = []
    kept = lambda *about: made.append(Kept(*about)) or made[-1]  # noqa: E731
    assert run(tmp_path / "run", Tracking([kept, Failing, kept]))["rounds"] == 3  # the run itself has ended well
    assert [tracker.finished for tracker in made] == [True, True]


def test_a_tracker_that_fails_is_named(tmp_path: Path) -> None:
    def fails(*about: Any) -> Kept:
        raise RuntimeError("no server\nat all")

    with refusal("tracker.failed", "(RuntimeError:"):
        run(tmp_path / "run", Tracking([fails]))


def test_an_absent_extra_and_an_unknown_name_say_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with refusal("user.not-installed", '"fedweave[mlflow]"'):
        open_trackers(["mlflow"])
    with refusal("user.no-tracker", "tensorboard, mlflow, wandb"):
        open_trackers(["neptune"])
    config = tmp_path / "c.toml"
    config.write_text('[data]\nname = "digits"\n')
    commands.run("run", config, "--track", "tensorboard", "--out", tmp_path / "out", code=2)
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not importlib.util.find_spec("tensorboard"), reason='needs pip install "fedweave[tensorboard]"')
def test_tensorboard_reads_the_runs_numbers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(tmp_path / "run", open_trackers(["tensorboard"]))
    summary = run(tmp_path / "run", open_trackers(["tensorboard"]), rounds=4, resume=True)
    read = EventAccumulator(str(tmp_path / "run/tensorboard"))
    read.Reload()
    assert [event.step for event in read.Scalars("global/accuracy")] == [2, 3, 4]
    assert read.Scalars("global/accuracy")[-1].value == pytest.approx(summary["metrics"]["global/accuracy"])
    assert [event.step for event in read.Scalars("seconds")] == [1, 2, 3, 4]


@pytest.mark.skipif(not importlib.util.find_spec("mlflow"), reason='needs pip install "fedweave[mlflow]"')
def test_mlflow_continues_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run(tmp_path / "run", open_trackers(["mlflow"]))
    summary = run(tmp_path / "run", open_trackers(["mlflow"]), rounds=4, resume=True)
    kept = json.loads((tmp_path / "run/mlflow.json").read_text())
    client = MlflowClient(kept["uri"])
    found = client.get_run(kept["run"])
    assert found.info.status == "FINISHED"
    assert found.data.params["data.name"] == "synthetic"
    assert found.data.metrics["global/accuracy"] == pytest.approx(summary["metrics"]["global/accuracy"])
    assert [one.step for one in client.get_metric_history(kept["run"], "seconds")] == [1, 2, 3, 4]


@pytest.mark.skipif(not importlib.util.find_spec("wandb"), reason='needs pip install "fedweave[wandb]"')
def test_weights_and_biases_stays_offline_and_continues_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the environment says; from Python no address but this machine's own is connected to."""
    connect = socket.socket.connect

    def local(self: socket.socket, address: Any) -> None:
        assert self.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1", "localhost"), address
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "true")
    run(tmp_path / "run", open_trackers(["wandb"]))
    summary = run(tmp_path / "run", open_trackers(["wandb"]), rounds=4, resume=True)
    importlib.import_module("wandb").teardown()  # as at the end of the process: its files are written out
    name = json.loads((tmp_path / "run/wandb.json").read_text())["run"]
    files = [*(tmp_path / "run/wandb").glob(f"offline-run-*/run-{name}.wandb")]
    assert len(files) == 2  # before it was resumed, and after
    rows = {row["_step"]: row for file in files for row in history(file)}
    assert sorted(rows) == [1, 2, 3, 4]
    assert {step for step, row in rows.items() if "global/accuracy" in row} == {2, 3, 4}
    assert rows[4]["global/accuracy"] == pytest.approx(summary["metrics"]["global/accuracy"])
    assert rows[4]["bytes/up"] == summary["bytes_up"]


def history(file: Path) -> list[dict[str, Any]]:
    """The numbers of an offline run: records of LevelDB's log format (blocks of 32 KiB; each piece has a checksum, a
    length and a kind: 1 whole, 2 first, 3 middle, 4 last), behind a head of seven bytes."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole, rows = file.read_bytes(), 7, b"", list[dict[str, Any]]()
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # no piece begins so late in a block
            at += 32768 - at % 32768
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (2, 3):
            continue
        record = wandb_internal_pb2.Record.FromString(whole)
        whole = b""
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows

"""Runs: files as promised, and a run stopped at any moment resumes to the same numbers."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedweave.algorithms import ALGORITHMS
from fedweave.core.graph import SPLITS
from fedweave.core.ledger import Ledger
from fedweave.core.stacked import is_stacked, unstack_states
from fedweave.core.tree import encode
from fedweave.datasets.base import Dataset
from fedweave.errors import FedweaveError, UserError
from fedweave.experiment import build, config
from fedweave.experiment.runs import run as runs
from fedweave.experiment.runs import saving
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import PARTS, lock, read_table
from fedweave.experiment.runs.resuming import Interrupted
from fedweave.partition.base import Partition
from tests.contract.changing import KINDS
from tests.refusals import refusal
from tests.reproduce.tiny import changed

SETTINGS: dict[str, Any] = {
    "seed": 5,
    "rounds": 4,
    "data": {"name": "synthetic", "nodes": 90, "classes": 3, "features": 8},
    "partition": {"clients": 3},
    "model": {"hidden": 4},
    "algorithm": {"local_steps": 1},
    "engine": {"checkpoint_seconds": 0.0, "threads": 1},
    "evaluation": {"shelf": True},  # rows that come after the last round
}


def resolved(**changes: Any) -> config.Config:
    return config.resolve(changed(SETTINGS, **changes))


class Quiet:
    """Watches; calls `at_round[n]` after round n."""

    def __init__(self, **at_round: Any) -> None:
        self.rounds: list[int] = []
        self.signals: list[int] = []
        self.started: int | None = None
        self.at_round = at_round

    def begin(self, config: Any, built: Any, directory: Path, done: int) -> None:
        self.started = done

    def step(self, reached: Any) -> None:
        self.rounds.append(reached.round)
        for action in self.at_round.get(f"r{reached.round}", ()):
            action()

    def alone(self, done: int, rounds: int) -> None:
        for action in self.at_round.get(f"alone{done}", ()):
            action()

    def stopping(self, number: int) -> None:
        self.signals.append(number)

    def end(self) -> None:
        pass


def send(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def final_numbers(directory: Path) -> tuple[Any, ...]:
    """Everything that must not depend on interruptions."""
    summary = json.loads((directory / "summary.json").read_text())
    for key in ("seconds", "seconds_per_round", "peak_rss_mb"):
        summary.pop(key)
    summary.get("shelf", {}).pop("seconds", None)
    metrics = pq.read_table(directory / "metrics.parquet").to_pylist()
    ledger = pq.read_table(directory / "ledger.parquet").drop_columns(["seconds", "at"]).to_pylist()
    return summary, metrics, ledger


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    runs.run(resolved(), directory, Quiet())
    return directory


def test_files_of_a_run(whole: Path) -> None:
    kept = {str(path.relative_to(whole)) for path in whole.rglob("*") if path.is_file()}
    assert kept == {
        "config.toml",
        "columns.parquet",
        "partition.parquet",
        "metrics.parquet",
        "ledger.parquet",
        "summary.json",
        "checkpoint/state.safetensors",
        ".lock",
    }
    assert config.read(whole / "config.toml")[0] == resolved()
    metrics = pq.read_table(whole / "metrics.parquet")
    assert metrics.schema.names == ["round", "client", "split", "metric", "value"]
    assert set(metrics["round"].to_pylist()) == {1, 2, 3, 4}
    assert set(metrics["client"].to_pylist()) == {"client-0", "client-1", "client-2", "global"}
    assert set(metrics["split"].to_pylist()) == set(SPLITS)
    cut = pq.read_table(whole / "partition.parquet").to_pydict()
    assert cut["client"] == ["client-0", "client-1", "client-2"]
    assert sum(cut["nodes"]) == 90


def test_summary_has_the_promised_keys_and_the_last_rounds_numbers(whole: Path) -> None:
    summary = json.loads((whole / "summary.json").read_text())
    assert list(summary) == [
        "algorithm",
        "dataset",
        "features",
        "class_count",
        "clients",
        "devices",
        "rounds",
        "eval_every",
        "chosen_round",
        "seed",
        "seconds",
        "seconds_per_round",
        "peak_rss_mb",
        "bytes_up",
        "bytes_down",
        "bytes_evaluation",
        "shelf",
        "metrics",
    ]
    assert [summary[key] for key in ("algorithm", "dataset", "clients", "rounds", "seed")] == [
        "fedavg",
        "synthetic",
        3,
        4,
        5,
    ]
    assert summary["seconds_per_round"] == pytest.approx(summary["seconds"] / 4)
    assert 50 < summary["peak_rss_mb"] < 20_000
    rows = pq.read_table(whole / "metrics.parquet").to_pylist()
    last = {(r["client"], r["metric"]): r["value"] for r in rows if r["round"] == 4 and r["split"] == "test"}
    assert summary["metrics"]["global/accuracy"] == last["global", "accuracy"]
    own = [last[f"client-{i}", "accuracy"] for i in range(3)]
    assert summary["metrics"]["local/accuracy"] == pytest.approx(np.mean(own))
    ledger = pq.read_table(whole / "ledger.parquet").to_pylist()
    for way in ("up", "down"):
        assert summary[f"bytes_{way}"] == sum(row["bytes"] for row in ledger if row["direction"] == way) > 0


@pytest.mark.parametrize(
    ("before", "apart", "large"),
    [
        *(pytest.param(before, 1, large, marks=pytest.mark.slow) for before in (True, False) for large in (1 << 18, 0)),
        (False, 5, 0),  # rows beside the tables, from the third round on
    ],
)
def test_crash_at_any_write_resumes_to_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path, before: bool, apart: int, large: int
) -> None:
    monkeypatch.setattr(saving, "_LARGE", large)

    class Crash(BaseException):
        pass

    real, calls = os.replace, 0

    def crash_at(count: int) -> Callable[[Any, Any], None]:
        def replace(source: Any, target: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == count and before:
                raise Crash
            real(source, target)
            if calls == count:
                raise Crash

        return replace

    for count in range(1, 100, apart):
        directory, calls = tmp_path / f"run{count}", 0
        monkeypatch.setattr(os, "replace", crash_at(count))
        try:
            runs.run(resolved(), directory, Quiet())
        except Crash:
            (directory / ".metrics.parquet.123.tmp").write_bytes(b"half a file")
            monkeypatch.setattr(os, "replace", real)
            runs.run(resolved(), directory, Quiet(), resume=True)
            assert final_numbers(directory) == final_numbers(whole), f"crash at write {count}"
            rows = read_table(directory, "metrics.parquet")
            assert rows.equals(pq.read_table(directory / "metrics.parquet"))
            assert rows["round"].to_pylist() == sorted(rows["round"].to_pylist())
            assert not [*(directory / PARTS).glob("*")]
            left = [path.name for path in directory.rglob("*.tmp")]
            assert left == [] or (count, before) == (16, False)  # after the last write nothing is left to resume
        else:
            break
    assert calls == 16, "three files before training, three after each of four rounds, and the summary"


def test_the_rows_of_a_long_ledger_are_in_its_file_also_after_that_is_gone(tmp_path: Path, whole: Path) -> None:
    """`_LARGE` of 0 makes any ledger a long one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saving, "_LARGE", 0)
        made = build.build(resolved())
        runs.run(resolved(), tmp_path / "run", Quiet(), here=runs.RunBackend(build=lambda _: made))
    assert final_numbers(tmp_path / "run") == final_numbers(whole)
    (tmp_path / "run/ledger.parquet").unlink()
    ledger, rows = made.fed.ledger, final_numbers(whole)[2]
    assert ledger.table().drop_columns(["seconds", "at"]).to_pylist() == rows
    assert ledger.since(len(rows) - 3).drop_columns(["seconds", "at"]).to_pylist() == rows[-3:]
    assert not ledger._written
    assert ledger.bytes_up == json.loads((whole / "summary.json").read_text())["bytes_up"]


@pytest.mark.parametrize("count", [4, 6, 9, 10, 13, 19, 20])
def test_a_crash_between_checkpoints_leaves_no_row_of_later_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path, count: int
) -> None:
    """Every round's rows are written at once, a checkpoint after every round. The last crash is after the last
    tables, and before the checkpoint that knows of them."""
    monkeypatch.setattr(saving, "_BUFFER", 1)
    monkeypatch.setattr(saving, "_LARGE", 0)
    real, calls = os.replace, 0

    class Crash(BaseException):
        pass

    def replace(source: Any, target: Any) -> None:
        nonlocal calls
        real(source, target)
        calls += 1
        if calls == count:
            raise Crash

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(Crash):
        runs.run(resolved(), tmp_path / "run", Quiet())
    monkeypatch.setattr(os, "replace", real)
    runs.run(resolved(rounds=3) if count < 9 else resolved(), tmp_path / "run", Quiet(), resume=True)
    runs.run(resolved(), tmp_path / "run", Quiet(), resume=True)
    assert final_numbers(tmp_path / "run") == final_numbers(whole)
    assert not [*(tmp_path / "run" / PARTS).glob("*")]


@pytest.mark.often("fedprox", "drifting")
@pytest.mark.parametrize("algorithm", ["fedavg", "local", "fedprox", *KINDS])
def test_stop_and_resume_equals_uninterrupted(tmp_path: Path, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if algorithm in KINDS:
        monkeypatch.setitem(ALGORITHMS, algorithm, KINDS[algorithm])
    settings = resolved(algorithm={"name": algorithm}, engine={"checkpoint_seconds": 100.0})
    runs.run(settings, tmp_path / "whole", Quiet())
    watch = Quiet(r2=[send(signal.SIGINT)])
    with refusal("interrupted", "SIGINT; 2 of 4") as stopped:
        runs.run(settings, tmp_path / "parts", watch)
    assert (stopped.value.signal, watch.signals, watch.rounds) == (signal.SIGINT, [signal.SIGINT], [1, 2])
    again = Quiet()
    runs.run(settings, tmp_path / "parts", again, resume=True)
    assert (again.started, again.rounds) == (2, [3, 4])
    assert final_numbers(tmp_path / "parts") == final_numbers(tmp_path / "whole")
    data = Checkpoint.load(tmp_path / "parts/checkpoint/state.safetensors").data
    versions = dict.fromkeys(["client-0", "client-1", "client-2"], 4) if algorithm in KINDS else {}
    assert {client: kept["version"] for client, kept in data.items()} == versions


def test_many_clients_of_which_some_are_called_stop_and_resume(tmp_path: Path) -> None:
    """Their states are saved together (`core.stacked`)."""
    many = {
        "data": {"nodes": 600},
        "partition": {"clients": 100},
        "algorithm": {"name": "fedper", "participation": 0.6},
        "engine": {"checkpoint_seconds": 100.0},
        "evaluation": {"shelf": False},
    }
    runs.run(resolved(**many), tmp_path / "whole", Quiet())
    with refusal("interrupted", "2 of 4"):
        runs.run(resolved(**many), tmp_path / "parts", Quiet(r2=[send(signal.SIGINT)]))
    assert is_stacked(Checkpoint.load(tmp_path / "parts/checkpoint/state.safetensors").fed)
    runs.run(resolved(**many), tmp_path / "parts", Quiet(), resume=True)
    assert final_numbers(tmp_path / "parts") == final_numbers(tmp_path / "whole")
    one, other = (Checkpoint.load(tmp_path / name / "checkpoint/state.safetensors").fed for name in ("whole", "parts"))
    assert encode(unstack_states(one)) == encode(unstack_states(other))


def test_sigterm_stops_too_and_handlers_are_put_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted) as stopped:
        runs.run(resolved(), tmp_path / "run", Quiet(r1=[send(signal.SIGTERM)]))
    assert stopped.value.signal == signal.SIGTERM
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_checkpoints_take_a_tenth_of_a_run_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that take five seconds come every fifty, though one a second was asked for; a round takes two."""
    clock, saved, save = [0.0], list[int](), saving.RunFiles.save

    def slow(files: Any, *args: Any, **kwargs: Any) -> None:
        clock[0] += 5
        save(files, *args, **kwargs)
        saved.append(files.saved)

    monkeypatch.setattr(saving.RunFiles, "save", slow)
    monkeypatch.setattr(runs, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    watch = Quiet(**{f"r{number}": [lambda: clock.__setitem__(0, clock[0] + 2)] for number in range(1, 61)})
    runs.run(resolved(rounds=60, engine={"checkpoint_seconds": 1.0}), tmp_path / "run", watch)
    assert saved == [1, 24, 47, 60]


def test_second_signal_abandons_the_round(tmp_path: Path, whole: Path) -> None:
    watch = Quiet(r3=[send(signal.SIGINT), send(signal.SIGINT)])
    with refusal("interrupted", "2 of 4"):
        runs.run(resolved(), tmp_path / "run", watch)
    runs.run(resolved(), tmp_path / "run", Quiet(), resume=True)
    assert final_numbers(tmp_path / "run") == final_numbers(whole)


@pytest.mark.slow
def test_kill_9_and_resume(tmp_path: Path) -> None:
    settings = resolved(rounds=200, eval_every=50)
    (tmp_path / "c.toml").write_text(config.dumps(settings.plain()))
    command = [sys.executable, "-m", "fedweave", "run", str(tmp_path / "c.toml"), "--out", str(tmp_path / "killed")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    checkpoint, deadline = tmp_path / "killed" / "checkpoint" / "state.safetensors", time.monotonic() + 60
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    process.kill()
    output, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, output.decode()
    reached = Checkpoint.load(checkpoint).round
    assert 0 < reached < 200
    watch, rarely = Quiet(), resolved(rounds=200, eval_every=50, engine={"checkpoint_seconds": 100.0})
    runs.run(rarely, tmp_path / "killed", watch, resume=True)
    assert watch.started == reached
    runs.run(rarely, tmp_path / "whole", Quiet())
    assert final_numbers(tmp_path / "killed") == final_numbers(tmp_path / "whole")


def test_extending_a_finished_run(tmp_path: Path) -> None:
    runs.run(resolved(), tmp_path / "run", Quiet())
    with refusal("user.rounds-done"):
        runs.run(resolved(rounds=3), tmp_path / "run", Quiet(), resume=True)
    watch = Quiet()
    assert runs.run(resolved(), tmp_path / "run", watch, resume=True)["rounds"] == 4
    assert watch.started is None, "a finished run is not touched"
    runs.run(resolved(rounds=6), tmp_path / "run", watch, resume=True)
    assert watch.rounds == [5, 6]
    runs.run(resolved(rounds=6), tmp_path / "whole", Quiet())
    assert final_numbers(tmp_path / "run") == final_numbers(tmp_path / "whole")


def test_predictions_of_fewer_rounds_go_when_a_run_goes_on(tmp_path: Path) -> None:
    """A page would show them as the new models'."""
    runs.run(resolved(rounds=1), tmp_path / "run", Quiet())
    (tmp_path / "run/predictions.parquet").write_bytes(b"of one round")
    runs.run(resolved(rounds=1), tmp_path / "run", Quiet(), resume=True)
    assert (tmp_path / "run/predictions.parquet").exists()
    runs.run(resolved(rounds=2), tmp_path / "run", Quiet(), resume=True)
    assert not (tmp_path / "run/predictions.parquet").exists()


def test_directories_that_are_refused(tmp_path: Path, whole: Path) -> None:
    with refusal("user.not-empty", "resume = True", "overwrite = True"):
        runs.run(resolved(), whole, Quiet())
    (tmp_path / "thesis.txt").write_text("mine")
    with refusal("user.no-run"):
        runs.run(resolved(), tmp_path, Quiet(), resume=True)
    with refusal("user.unusable-file", "another place"):
        runs.run(resolved(), tmp_path / "thesis.txt" / "run", Quiet())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_what_is_refused_before_a_round_leaves_the_place_free(tmp_path: Path) -> None:
    """fairgfl wants a public sample, which this partition has none of."""
    refused = resolved(algorithm={"name": "fairgfl"})
    with refusal("user.no-sample", "needs a public sample"):
        runs.run(refused, tmp_path / "run", Quiet())
    assert runs.run(resolved(rounds=1), tmp_path / "run", Quiet())["rounds"] == 1


def test_a_run_that_fails_in_its_first_round_leaves_the_place_free(tmp_path: Path) -> None:
    with refusal("diverged", "training diverged"):
        runs.run(resolved(algorithm={"lr": 1e38}), tmp_path / "run", Quiet())
    assert runs.run(resolved(rounds=1), tmp_path / "run", Quiet())["rounds"] == 1


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with lock(tmp_path / "run"), refusal("user.locked", f"process {os.getpid()}"):
        runs.run(resolved(), tmp_path / "run", Quiet())
    runs.run(resolved(), tmp_path / "run", Quiet())


def test_bad_data_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        runs.run(resolved(partition={"clients": 1000}), tmp_path / "run", Quiet())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.often("ledger.parquet", "checkpoint/state.safetensors")
@pytest.mark.parametrize("name", ["checkpoint/state.safetensors", "metrics.parquet", "ledger.parquet"])
def test_damage_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(Interrupted):
        runs.run(resolved(), tmp_path / "run", Quiet(r2=[send(signal.SIGINT)]))
    path = tmp_path / "run" / name
    blob = path.read_bytes()
    for bad in (
        b"",
        blob[: len(blob) // 2],
        blob[: len(blob) // 3] + bytes(len(blob) - len(blob) // 3 - 8) + blob[-8:],
    ):
        path.write_bytes(bad)
        with pytest.raises(FedweaveError, match=rf"(?s){path.name} is damaged.*another directory"):
            runs.run(resolved(), tmp_path / "run", Quiet(), resume=True)
    path.write_bytes(blob)
    runs.run(resolved(), tmp_path / "run", Quiet(), resume=True)


def test_undefined_metrics_are_null(tmp_path: Path) -> None:
    class Fed:
        clients, members, computes_on = ("client-0",), (), ()
        ledger, test = Ledger(), None

    data = Dataset("d", np.zeros((1, 1), np.float32), np.zeros((2, 0), np.int64), np.zeros(1, np.int64), 1)
    built = build.Built(data, Partition(()), None, cast(Any, Fed()))
    last = Checkpoint(2, 3.0, summary={"global/f1": float("nan"), "global/accuracy": 0.5})
    files = SimpleNamespace(reached=last, missed={}, shelf={}, shelf_joint={}, diverged_alone=[], best_round=None)
    summary = runs._summary(resolved(), built, cast(Any, files), tmp_path, (), 100.0)
    assert summary["metrics"] == {"global/f1": None, "global/accuracy": 0.5}
    assert summary["seconds_per_round"] == 1.5

"""Files of a run: whole or not at all, one writer, and reading without torch."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pytest
import torch

from fedweave.core.federation import StepInfo
from fedweave.core.ledger import Ledger
from fedweave.errors import FedweaveError, UserError
from fedweave.experiment.runs import files, saving
from fedweave.metrics.measured import METRICS_SCHEMA
from tests.refusals import refusal

TABLE = pa.table({"round": [1, 2], "value": [0.5, 0.25]})


def test_full_disk_keeps_the_old_content(tmp_path: Path) -> None:
    files.write(tmp_path / "file", lambda file: file.write(b"old"))

    def fill(file: BinaryIO) -> None:
        file.write(b"half of the n")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with refusal("disk-full", "resume") as error:
        files.write(tmp_path / "file", fill)
    assert not isinstance(error.value, UserError)
    assert (tmp_path / "file").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_what_a_large_table_gets_is_filed_beside_it_until_that_is_as_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "_LARGE", 4)
    path, rows = tmp_path / files.METRICS, [(1, f"c{i}", "test", "loss", float(i)) for i in range(20)]
    (tmp_path / "checkpoint").mkdir()
    whole = pa.table([pa.array(column) for column in zip(*rows, strict=True)], METRICS_SCHEMA)
    table = saving.Growing(path, METRICS_SCHEMA)
    for count, beside in ((3, []), (5, [3]), (6, []), (6, []), (8, [6]), (10, [6, 8]), (12, [])):
        before = path.read_bytes() if path.exists() else b""
        table.save(False, whole.slice(table.rows, count - table.rows))
        assert [first for first, _ in files.parts_of(path)] == beside
        assert path.read_bytes() == before or not beside
        assert files.read_table(tmp_path, files.METRICS).to_pylist() == whole.slice(0, count).to_pylist()
    files.write_table(path, whole.slice(0, 12))  # killed before what is beside it was removed
    assert len(files.read_table(tmp_path, files.METRICS)) == 12
    table.save(True, whole.slice(12, 1))
    assert [path.name for path in tmp_path.rglob("*.parquet")] == [files.METRICS]


def metrics_of(*rounds: int) -> pa.Table:
    rows = [(round, "c0", "test", metric, 1.0) for round in rounds for metric in ("loss", "pooled/auc")]
    return pa.table([pa.array(column) for column in zip(*rows, strict=True)], METRICS_SCHEMA)


def test_rows_go_to_files_as_they_come_and_a_resume_keeps_those_of_its_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "_BUFFER", 5)
    monkeypatch.setattr(saving, "_LARGE", 4)
    path = tmp_path / files.METRICS
    table = saving.Growing(path, METRICS_SCHEMA)
    for round in (1, 2, 3):
        table.add(metrics_of(round))
    assert [first for first, _ in files.parts_of(path)] == [0], "six rows are too many for memory"
    table.save(whole=False)
    assert files.read_table(tmp_path, files.METRICS).equals(metrics_of(1, 2, 3))
    for round in (4, 5, 6, 7):
        table.add(metrics_of(round))
    assert [first for first, _ in files.parts_of(path)] == [6], "of which no checkpoint knows"
    assert table.rows == 14
    assert pa.concat_tables(table.tables()).equals(metrics_of(1, 2, 3, 4, 5, 6, 7))

    def lasting(rows: pa.Table) -> pa.Table:
        return saving.rows_to_keep(rows, 3)

    kept = [row for row in metrics_of(1, 2, 3).to_pylist() if row["metric"] == "loss"]
    resumed = saving.Growing.resume(path, METRICS_SCHEMA, 3, lasting)
    assert resumed.rows == 3
    assert pa.concat_tables(resumed.tables()).to_pylist() == kept
    resumed.save(whole=False, rows=metrics_of(4))
    assert files.read_table(tmp_path, files.METRICS).to_pylist() == kept + metrics_of(4).to_pylist()
    again = saving.Growing.resume(path, METRICS_SCHEMA, 3, lasting)  # killed before the checkpoint of round 4
    assert pa.concat_tables(again.tables()).to_pylist() == kept
    with refusal("file.damaged", "the checkpoint needs 9"):
        saving.Growing.resume(path, METRICS_SCHEMA, 9, lasting)


def test_rows_of_a_round_are_replaced_wherever_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "_BUFFER", 5)
    monkeypatch.setattr(saving, "_LARGE", 4)
    table = saving.Growing(tmp_path / files.METRICS, METRICS_SCHEMA)
    for round in (1, 2, 3, 4):  # rounds 1 to 3 are in a file, round 4 is in memory
        table.add(metrics_of(round))
    before = metrics_of(1, 2, 3, 4).to_pylist()
    for round in (2, 4):
        rows = [row | {"value": 7.0} for row in before if row["round"] == round and row["metric"] == "loss"]
        table.replace(pa.Table.from_pylist(rows * 2, METRICS_SCHEMA))
        before = [row for row in before if row["round"] != round or row["metric"] != "loss"] + rows * 2
        assert pa.concat_tables(table.tables()).to_pylist() == before
        assert table.rows == len(before)
    table.save(whole=True, rows=metrics_of(5))
    assert files.read_table(tmp_path, files.METRICS).to_pylist() == before + metrics_of(5).to_pylist()


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_reading_a_table_starts_no_thread_that_may_outlive_python(tmp_path: Path) -> None:
    files.write_table(tmp_path / "table.parquet", pa.table({name: ["x"] * 999 for name in "abcdefgh"}))
    code = (
        "import os, sys; from pathlib import Path; from fedweave.experiment.runs.files import read_table\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "read_table(Path(sys.argv[1]), 'table.parquet')\n"
        "print(len(os.listdir('/proc/self/task')) - before)\n"
    )
    told = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "0"


def test_a_place_that_cannot_be_written_is_the_users_matter(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    for path in (tmp_path / "thesis.txt" / "file", tmp_path / "not" / "there" / "file"):
        with refusal("user.unusable-file", "cannot be used", "another place"):
            files.write(path, lambda file: file.write(b"new"))


def test_what_cannot_be_read_is_not_told_to_be_written_elsewhere(tmp_path: Path) -> None:
    with refusal("user.unusable-file", "it is a folder"):
        files.read(tmp_path)


def test_tables_come_back_or_are_named(tmp_path: Path) -> None:
    files.write_table(tmp_path / "t.parquet", TABLE)
    assert files.read_table(tmp_path, "t.parquet").equals(TABLE)
    with refusal("user.no-file", "u.parquet"):
        files.read_table(tmp_path, "u.parquet")
    (tmp_path / "t.parquet").write_bytes((tmp_path / "t.parquet").read_bytes()[:-9])
    with refusal("file.damaged", "t.parquet") as error:
        files.read_table(tmp_path, "t.parquet")
    assert not isinstance(error.value, UserError)


def test_lock_names_its_holder_and_dies_with_it(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom fedweave.experiment.runs.files import lock\n"
        "with lock(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    try:
        with refusal("user.locked", f"process {holder.pid}"), files.lock(tmp_path / "run"):
            pass
    finally:
        holder.kill()
        holder.communicate()
    with files.lock(tmp_path / "run"):
        assert (tmp_path / "run" / files.LOCK).read_text() == str(os.getpid())


def test_what_an_attempt_leaves_does_not_count_as_used(tmp_path: Path) -> None:
    assert not files.is_used(tmp_path / "absent")
    with files.lock(tmp_path / "run"):
        (tmp_path / "run" / "checkpoint").mkdir()
        (tmp_path / "run" / "checkpoint" / ".state.safetensors.1.tmp").write_bytes(b"half")
    assert not files.is_used(tmp_path / "run")
    files.remove_leftovers(tmp_path / "run")
    assert list((tmp_path / "run" / "checkpoint").iterdir()) == []
    (tmp_path / "run" / "checkpoint" / "other").touch()
    assert files.is_used(tmp_path / "run")
    assert files.is_used(tmp_path / "run" / "checkpoint" / "other")


@pytest.mark.parametrize("absent", [["to", "applied"], ["applied"]])
def test_an_older_ledger_is_read_and_continued(tmp_path: Path, absent: list[str]) -> None:
    """From before clients could send to peers, and before mechanisms were values."""
    ledger = Ledger()
    ledger.record(1, 0, "A.train", ("a", "b"), "up", {"w": torch.zeros(3)}, info=StepInfo.of({"w": "weights"}))
    files.write_table(tmp_path / files.LEDGER, ledger.table().drop_columns(absent))
    old = files.read_table(tmp_path, files.LEDGER)
    assert all(old[name].null_count == len(old) > 0 for name in absent)
    again = Ledger()
    again.restore(old)
    assert (again.bytes_up, again.table().schema) == (ledger.bytes_up, ledger.table().schema)


def test_a_table_for_spreadsheets_has_no_formula(tmp_path: Path) -> None:
    table = pa.table({"member": ["=1+1", "bank-a", None], "paid": [-1.5, 2.0, 0.0]})
    files.write_csv(tmp_path / "t.csv", table, spreadsheet=True)
    assert (tmp_path / "t.csv").read_text().splitlines() == ['"member","paid"', '"\'=1+1",-1.5', '"bank-a",2', ",0"]
    files.write_csv(tmp_path / "t.csv", table)
    assert (tmp_path / "t.csv").read_text().splitlines() == ['"member","paid"', '"=1+1",-1.5', '"bank-a",2', ",0"]


def test_a_page_replaces_pages_alone(tmp_path: Path) -> None:
    """A slip of the name costs nobody a table."""
    (tmp_path / "patients.csv").write_text("id,label\n1,ill\n")
    with refusal("user.no-page", "patients.csv", "HTML"):
        files.write_page(tmp_path / "patients.csv", "<!doctype html><p>new")
    assert (tmp_path / "patients.csv").read_text() == "id,label\n1,ill\n"
    (tmp_path / "page.html").write_text("<!DOCTYPE html><p>old")
    (tmp_path / "empty").touch()
    for name in ("page.html", "empty", "absent"):
        files.write_page(tmp_path / name, "<!doctype html><p>new")
        assert (tmp_path / name).read_text() == "<!doctype html><p>new"


@pytest.mark.parametrize("devices", [[1], [None], ["cpu", 2], [["cpu"]]])
def test_a_device_that_is_no_text_is_damage(tmp_path: Path, devices: list[object]) -> None:
    """A page writes devices side by side."""
    path = tmp_path / "summary.json"
    path.write_text(json.dumps({"rounds": 1, "metrics": {}, "devices": devices}))
    with pytest.raises(FedweaveError, match="damaged"):
        files.read_summary(path)
    path.write_text(json.dumps({"rounds": 1, "metrics": {}, "devices": ["cpu"]}))
    assert files.read_summary(path)["devices"] == ["cpu"]

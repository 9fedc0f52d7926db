"""Which runs a table needs, where they are kept, and what cannot be run."""

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedweave import algorithms
from fedweave.papers import grid
from tests.reproduce.tiny import cell, document, finish, table


def names(path: Path, **changes: Any) -> list[str]:
    [planned] = grid.plan(table(cell("a", **changes)), path, grid.Stock())
    return [run.name for run in planned.runs]


def test_a_run_is_named_by_algorithm_data_seed_and_all_other_settings(tmp_path: Path) -> None:
    zero, one = names(tmp_path)
    assert zero.startswith("fedavg-synthetic-s0-")
    assert one == zero.replace("-s0-", "-s1-")
    assert names(tmp_path, algorithm={"lr": 0.01}) == [zero, one]  # the default, spelled out
    different = [names(tmp_path, **change)[0] for change in (
        {"algorithm": {"lr": 0.02}}, {"rounds": 21}, {"partition": {"clients": 3}}, {"data": {"nodes": 61}},
    )]  # fmt: skip
    assert len({zero, *different}) == 5


def test_cells_share_runs_and_first_seeds_come_first(tmp_path: Path) -> None:
    cells = cell("a"), cell("a", split="local"), cell("b", model={"hidden": 5})
    planned = grid.plan(table(*cells, seeds=3), tmp_path, grid.Stock())
    assert [run.directory.parent for run in planned[0].runs] == [tmp_path / "runs"] * 3
    assert planned[0].runs == planned[1].runs
    assert grid.count(planned) == 6
    seeds = [run.config.general.seed for run in grid.unfinished(planned)]
    assert seeds == [0, 0, 1, 1, 2, 2]
    finish(planned[0].runs[1], global_accuracy=0.5)
    left = [run.name for run in grid.unfinished(planned)]
    assert len(left) == 5
    assert planned[0].runs[1].name not in left


def test_a_run_of_fewer_rounds_or_without_summary_is_not_finished(tmp_path: Path) -> None:
    [planned] = grid.plan(table(cell("a"), seeds=1), tmp_path, grid.Stock())
    [run] = planned.runs
    finish(run, global_accuracy=0.5)
    assert run.finished()
    longer = replace(run, config=replace(run.config, general=replace(run.config.general, rounds=21)))
    assert not longer.finished()
    (run.directory / "summary.json").unlink()
    assert not run.finished()


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"algorithm": {"name": "nowhere"}}, "there is no algorithm 'nowhere' yet"),
        ({"data": {"name": "nodata"}}, "there is no data set 'nodata' yet"),
        ({"partition": {"rest": "all", "slack": 0.2}}, "louvain has no rest yet"),
        (
            {"model": {"name": "nomodel"}, "partition": {"name": "nopartition"}},
            "there is no partition 'nopartition' yet; there is no model 'nomodel' yet",
        ),
    ],
)
def test_what_does_not_exist_is_not_available_and_gets_no_runs(
    tmp_path: Path, change: dict[str, Any], status: str
) -> None:
    [planned] = grid.plan(table(cell("a", **change)), tmp_path, grid.Stock())
    assert (planned.runs, planned.status) == ((), f"not available: {status}")


def test_it_is_available_as_soon_as_it_is_registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = document(algorithm={"name": "graphfl"})
    monkeypatch.delitem(algorithms.ALGORITHMS, "graphfl", raising=False)
    assert grid.Stock().lacks(wanted) == "there is no algorithm 'graphfl' yet"
    monkeypatch.setitem(algorithms.ALGORITHMS, "graphfl", algorithms.FedAvg)
    assert grid.Stock().lacks(wanted) == ""


def test_absent_data_is_not_available_and_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(*_: Any, **__: Any) -> None:
        asked.append(1)
        raise socket.gaierror("no network in this test")

    monkeypatch.delenv("FEDWEAVE_DATA", raising=False)
    monkeypatch.setenv("FEDWEAVE_CACHE", str(tmp_path))
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    change = {"data": {"name": "cora"}, "algorithm": {"local_steps": 2}}
    absent = document(**change) | {"data": {"name": "cora"}}
    cells = [replace(cell(row), document=absent) for row in "ab"]
    for planned in grid.plan(table(*cells), tmp_path, grid.Stock()):
        assert planned.runs == ()
        assert planned.status.startswith("not available: cora: https://github.com could not be reached")
    assert len(asked) == 1


def test_a_value_that_is_refused_is_a_failure_not_an_absence(tmp_path: Path) -> None:
    [planned] = grid.plan(table(cell("a", model={"hidden": 0})), tmp_path, grid.Stock())
    assert planned.runs == ()
    assert planned.status.startswith("failed: ")
    assert "hidden" in planned.status


def test_a_quick_look_is_one_seed_a_tenth_of_the_rounds_and_the_first_data_at_hand() -> None:
    digits = replace(cell("b"), document=document() | {"data": {"name": "digits"}})
    missing = cell("c", data={"name": "nodata"})
    short = grid.quick(table(missing, cell("a"), digits, cell("d", rounds=5)), grid.Stock())
    assert [(it.row, it.document["rounds"]) for it in short.cells] == [("a", 2), ("d", 1)]
    assert short.seeds == 1
    assert [it.row for it in grid.quick(table(missing), grid.Stock()).cells] == ["c"]

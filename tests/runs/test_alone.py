"""The same model at each member alone, beside a run: the algorithm `local`, with a round that each member's validation
examples choose; and no number of the run changes."""

import json
import math
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from fedweave.algorithms import ALGORITHMS, Local
from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.local import local_of
from fedweave.engines import recovery
from fedweave.engines.engine import LocalEngine
from fedweave.engines.recovery import RecoveringChannel
from fedweave.engines.sharded import Shard, Sharded
from fedweave.errors import FedweaveError
from fedweave.experiment import build
from fedweave.experiment.config import Config, resolve
from fedweave.experiment.rounds import RoundResult, train
from fedweave.experiment.runs import alone
from fedweave.experiment.runs import run as runs
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import CHECKPOINT, SHARED
from fedweave.experiment.runs.reading import group_runs, read_run
from fedweave.experiment.runs.resuming import Interrupted
from fedweave.experiment.runs.shared import measure_once
from fedweave.metrics.measured import DIVERGED_CLIENT, METRICS_SCHEMA
from fedweave.metrics.selection import DIVERGED_ALONE, Judging
from fedweave.metrics.stopping import Stopping
from fedweave.python.training import Silent
from fedweave.reports.gains import gain_sentences, member_gains
from fedweave.reports.html import render
from fedweave.reports.terminal import show_result
from tests.contract.federations import algorithm
from tests.engines.test_recovery import Mortal
from tests.links.test_knowledge_graphs import document as entities
from tests.links.test_knowledge_graphs import triples
from tests.links.test_link_runs import document as links
from tests.links.test_link_runs import tables
from tests.refusals import check_facts, refusal
from tests.reproduce.tiny import changed
from tests.runs.test_predictions import molecules
from tests.runs.test_runs import SETTINGS, Quiet, final_numbers, send
from tests.runs.test_target_files import nodes_folder, of_numbers

EVALUATION = {"shelf": False, "alone": True}


def config(**changes: Any) -> Config:
    evaluation = EVALUATION | changes.pop("evaluation", {})
    return resolve(changed(SETTINGS, **{"rounds": 5, "evaluation": evaluation, **changes}))


def numbers(directory: Path) -> tuple[Any, ...]:
    summary, metrics, ledger = final_numbers(directory)
    summary.pop("alone_seconds", None)
    return summary, metrics, ledger


def alone_rows(directory: Path) -> pd.DataFrame:
    rows = pq.read_table(directory / "metrics.parquet").to_pandas()
    return rows[rows["metric"].str.startswith("alone/")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the same model at each member alone."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    runs.run(config(), directory, Silent())
    return directory


def test_no_number_of_the_run_changes(whole: Path, tmp_path: Path) -> None:
    runs.run(config(evaluation={"alone": False}), tmp_path / "run", Silent())
    summary, metrics, ledger = numbers(whole)
    found = [name for name in summary["metrics"] if name.startswith("alone/")]
    assert {"alone/local/accuracy", "alone/local/macro_f1", "alone/local/loss"} <= {*found}
    for name in found:
        del summary["metrics"][name]
    metrics = [row for row in metrics if not row["metric"].startswith("alone/")]
    assert (summary, metrics, ledger) == numbers(tmp_path / "run")
    one, other = (Checkpoint.load(place / CHECKPOINT) for place in (whole, tmp_path / "run"))
    assert {**one.summary, "alone/seconds": 0}.keys() - other.summary.keys() == {*found, "alone/seconds"}
    check_equal({"state": one.state, "fed": one.fed}, {"state": other.state, "fed": other.fed})


def check_equal(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            check_equal(value, other[key])
    else:
        assert np.array_equal(np.asarray(one), np.asarray(other))


def by_hand(directory: Path, patience: int) -> tuple[dict[str, int], dict[str, float]]:
    """{member: its best round} and {member: its test accuracy there}, of a run of `local`."""
    table = pq.read_table(directory / "metrics.parquet").to_pandas()
    table = table[(table["metric"] == "accuracy") & (table["client"] != "global")]
    rounds, accuracies = {}, {}
    for client, rows in table.groupby("client"):
        val = rows[rows["split"] == "val"].set_index("round")["value"]
        test = rows[rows["split"] == "test"].set_index("round")["value"]
        best = 1
        for number in val.index:
            if val[number] > val[best]:
                best = number
            if patience and number - best >= patience:
                break
        rounds[client], accuracies[client] = best, test[best]
    return rounds, accuracies


@pytest.mark.parametrize(("mode", "patience"), [("vmap", 0), ("vmap", 2), ("loop", 0)])
def test_it_is_what_local_gives_in_the_best_round_of_each_member(tmp_path: Path, mode: str, patience: int) -> None:
    """The algorithm `local`, in a run of its own, has each member's accuracies."""
    settings: dict[str, Any] = {"rounds": 20, "engine": {"mode": mode}, "algorithm": {"lr": 0.005}}
    told = runs.run(config(evaluation={"patience": patience}, **settings), tmp_path / "run", Silent())
    settings["algorithm"] |= {"name": "local"}
    runs.run(config(evaluation={"alone": False}, **settings), tmp_path / "local", Silent())
    rounds, accuracies = by_hand(tmp_path / "local", patience)
    rows = alone_rows(tmp_path / "run")
    rows = rows[rows["split"] == "test"].set_index(["metric", "client"])["value"]
    assert rows["alone/round"].to_dict() == rounds
    assert rows["alone/accuracy"].to_dict() == pytest.approx(accuracies, abs=1e-12)
    assert told["metrics"]["alone/local/accuracy"] == pytest.approx(np.mean([*accuracies.values()]), abs=1e-12)
    assert len({*rounds.values()}) > 1  # the members stop at different rounds
    if patience:
        assert rounds != by_hand(tmp_path / "local", 0)[0]


def test_members_choose_by_validation_and_stop_on_their_own() -> None:
    """a: its best round is 2, ties go to the first; it has stopped before 5, where it would be better. b: no validation
    examples, hence the last round. c: better from round to round. Two diverge in round 4: d has no result, and e, which
    has stopped in round 3, keeps its own."""
    values: dict[str, list[Any]] = {
        "a": [(0.1, 1.0), (0.5, 2.0), (0.5, 3.0), (0.4, 4.0), (0.9, 5.0)],
        "b": [(None, 1.0), (None, 2.0), (None, 3.0), (None, 4.0), (None, 5.0)],
        "c": [(0.1, 1.0), (0.2, 2.0), (0.3, 3.0), (0.4, 4.0), (0.5, 5.0)],
        "d": [(0.1, 1.0), (0.2, 2.0), (0.3, 3.0), math.nan, math.nan],
        "e": [(0.9, 4.0), (0.2, 2.0), (0.3, 3.0), math.nan, math.nan],
    }
    members: dict[str, alone.MemberResult] = {}
    for at in range(5):
        rows = []
        for client, entries in values.items():
            if entries[at] is math.nan:
                rows.append((at + 1, client, "train", DIVERGED_CLIENT, 1.0))
                continue
            val, test = entries[at]
            rows += [] if val is None else [(at + 1, client, "val", "accuracy", val)]
            rows += [(at + 1, client, "test", "accuracy", test), (at + 1, "global", "test", "accuracy", 9.0)]
        table = METRICS_SCHEMA.empty_table().from_pylist(
            [dict(zip(METRICS_SCHEMA.names, row, strict=True)) for row in rows], METRICS_SCHEMA
        )
        step = RoundResult(at + 1, {}, table, {"global/accuracy": 1.0})
        alone._add_round(members, step, "accuracy", {}, Stopping(patience=2))
    assert members.pop("d") == alone.MemberResult(stopped=True, diverged=4)
    found = {client: (member.round, member.test["accuracy"], member.stopped) for client, member in members.items()}
    assert found == {"a": (2, 2.0, True), "b": (5, 5.0, False), "c": (5, 5.0, False), "e": (1, 4.0, True)}
    result = alone.AloneResult(members, 1.5)
    assert result.means == {"alone/local/accuracy": 4.0, "alone/seconds": 1.5}
    rows = result.rows(7, "accuracy").to_pylist()
    assert {"round": 7, "client": "a", "split": "val", "metric": "alone/accuracy", "value": 0.5} in rows
    assert [row["value"] for row in rows if row["client"] == "global"] == [4.0]


def diverging_folder(path: Path) -> Path:
    """Rings of three members' nodes; the features of member c are so large that steps of SGD overflow."""
    path.mkdir()
    rng = np.random.default_rng(0)
    nodes, edges = ["id,owner,f,g,label"], ["source,target"]
    for owner, scale in (("a", 1.0), ("b", 1.0), ("c", 1e10)):
        for at in range(30):
            f, g = scale * rng.standard_normal(2)
            nodes.append(f"{owner}{at},{owner},{f},{g},{int(f > 0)}")
            edges.append(f"{owner}{at},{owner}{(at + 1) % 30}")
    (path / "nodes.csv").write_text("\n".join(nodes) + "\n")
    (path / "edges.csv").write_text("\n".join(edges) + "\n")
    return path


@pytest.mark.parametrize("mode", ["vmap", "loop"])
def test_a_member_that_diverges_alone_takes_no_value_from_the_others(
    tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Joint training bounds each member's update; alone nothing does."""
    data = {"name": "folder", "path": str(diverging_folder(tmp_path / "data")), "owner": "owner", "normalize": "none"}
    document = {
        "rounds": 10,
        "data": data,
        "partition": {"name": "column", "train": 0.4, "val": 0.3, "test": 0.3},
        "model": {"hidden": 4},
        "algorithm": {
            "name": "fedavg",
            "optimizer": "sgd",
            "lr": 0.5,
            "local_steps": 1,
            "parts": ["cross_entropy", "clip"],
        },
        "engine": {"mode": mode},
        "evaluation": EVALUATION,
    }
    summary = runs.run(resolve(document), tmp_path / "run", Silent())
    check_facts(summary["note"], "diverged", "c")
    check_facts(caplog.text, "diverged", "c")
    rows = alone_rows(tmp_path / "run")
    assert rows[rows["client"] == "c"]["metric"].tolist() == [DIVERGED_ALONE]
    assert rows[rows["client"] == "c"]["value"].item() >= 1
    accuracies = rows[(rows["metric"] == "alone/accuracy") & (rows["split"] == "test")].set_index("client")["value"]
    assert {*accuracies.index} == {"a", "b"}
    assert summary["metrics"]["alone/local/accuracy"] == pytest.approx(accuracies.mean(), abs=1e-12)
    (tmp_path / "run" / "summary.json").unlink()
    assert runs.run(resolve(document), tmp_path / "run", Silent(), resume=True)["note"] == summary["note"]


def test_who_had_stopped_keeps_its_result_if_all_models_diverge_later(monkeypatch: pytest.MonkeyPatch) -> None:
    one = config(rounds=20, algorithm={"lr": 0.005}, evaluation={"patience": 1})
    built = build.build(one)

    def trained() -> alone.AloneResult:
        result = alone.train_alone(one, built, Judging(), {"judged/accuracy": -1.0}, lambda *done: None, lambda: False)
        assert result is not None
        return result

    whole, train = trained(), alone.train

    def diverging(*args: Any, **settings: Any) -> Iterator[RoundResult]:
        for step in train(*args, **settings):
            yield step
            if step.round == 2:
                raise FedweaveError("all diverged", code="diverged")

    monkeypatch.setattr(alone, "train", diverging)
    results = trained().members
    stopped = {client for client, member in whole.members.items() if member.round == 1}
    assert stopped
    assert stopped < {*results}
    for client, member in results.items():
        assert member == (whole.members[client] if client in stopped else alone.MemberResult(stopped=True, diverged=3))


def on_workers(one: Config, spool: Path, deaths: list[int]) -> tuple[build.Built, Mortal]:
    """The run with its first client at one worker, and the others at one that dies at these requests."""
    built = build.build(one.in_process())
    first, *others = built.fed.clients
    mortal = Mortal(lambda: build.worker(one.plain(), others), deaths, False)
    safe = Mortal(lambda: build.worker(one.plain(), [first]), [], False)
    shards = [Shard([first], safe()), Shard(others, RecoveringChannel("worker 2", mortal, spool))]
    fed = LocalEngine(Sharded(built.fed.clients, shards), classes=built.fed.classes, seed=one.general.seed)
    return replace(built, fed=fed), mortal


@pytest.mark.parametrize("algorithm", [{"name": "ditto"}, {"name": "fedavg", "parts": ["cross_entropy", "drift"]}])
@pytest.mark.parametrize("deaths", [[], [43, 4]])
def test_workers_train_it_where_their_clients_are(
    algorithm: dict[str, Any], deaths: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one process does, also if a worker is lost meanwhile; afterwards clients have their states and data back."""
    monkeypatch.setattr(recovery, "_CALLS", 3)
    one = config(rounds=5, algorithm=algorithm, engine={"name": "ray"})
    there, mortal = on_workers(one, tmp_path / "spool", deaths)
    results = []
    for built in (build.build(one.in_process()), there):
        for step in train(built.algorithm, built.fed, one.general.rounds):
            summary = step.summary
        before = {"states": built.fed.snapshot(), "data": built.fed.snapshot_data()}
        assert any(before.values())
        result = alone.train_alone(one, built, Judging(), summary, lambda *done: None, lambda: False)
        assert result is not None
        check_equal({"states": built.fed.snapshot(), "data": built.fed.snapshot_data()}, before)
        results.append(result.members)
    assert results[0] == results[1]
    assert mortal.made == 1 + len(deaths)


def test_lower_is_better_for_errors() -> None:
    member = alone.MemberResult(round=1, score=2.0)
    assert member.is_improved_by("rmse", 1.0)
    assert not member.is_improved_by("rmse", 2.0)
    assert not member.is_improved_by("accuracy", 1.0)
    assert not member.is_improved_by("accuracy", None)


def test_a_run_that_is_killed_while_it_trains_gives_the_same(whole: Path, tmp_path: Path) -> None:
    def die() -> None:
        raise OSError("killed")

    with pytest.raises(OSError, match="killed"):
        runs.run(config(), tmp_path / "run", Quiet(alone3=[die]))
    assert not (tmp_path / "run" / "summary.json").exists()
    again = Quiet()
    runs.run(config(), tmp_path / "run", again, resume=True)
    assert again.rounds == []  # no round of the run is repeated
    assert numbers(tmp_path / "run") == numbers(whole)


def test_ctrl_c_stops_it_and_resuming_gives_the_same(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(Interrupted) as error:
        runs.run(config(), tmp_path / "run", Quiet(alone2=[send(signal.SIGINT)]))
    check_facts(str(error.value), "SIGINT", "5 of 5")
    runs.run(config(), tmp_path / "run", Silent(), resume=True)
    assert numbers(tmp_path / "run") == numbers(whole)


def test_a_run_that_is_killed_before_its_summary_does_not_train_again(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.run(config(), tmp_path / "run", Silent())
    (tmp_path / "run" / "summary.json").unlink()
    monkeypatch.setattr(runs, "train_alone", None)
    runs.run(config(), tmp_path / "run", Silent(), resume=True)
    assert numbers(tmp_path / "run") == numbers(whole)


def test_more_rounds_train_it_again(whole: Path, tmp_path: Path) -> None:
    told = runs.run(config(rounds=3), tmp_path / "run", Silent())
    assert "alone/local/accuracy" in told["metrics"]
    runs.run(config(), tmp_path / "run", Silent(), resume=True)
    assert numbers(tmp_path / "run") == numbers(whole)


def test_it_may_be_left_out_of_a_run_that_was_stopped_in_it(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        runs.run(config(), tmp_path / "run", Quiet(alone2=[send(signal.SIGINT)]))
    told = runs.run(config(evaluation={"alone": False}), tmp_path / "run", Silent(), resume=True)
    assert told["rounds"] == 5
    assert "alone_seconds" not in told
    assert alone_rows(tmp_path / "run").empty


def setting(value: object) -> dict[str, Any]:
    return {"evaluation": {"alone": value}}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, True),
        ({"algorithm": {"name": "fedprox"}}, True),
        ({"algorithm": {"name": "local"}}, False),
        ({"algorithm": {"name": "centralized"}}, False),
        ({"algorithm": {"name": "fedgcn"}}, False),
        ({"algorithm": {"name": "dfedgnn"}}, False),
        ({"partition": {"clients": 1}}, False),
        ({"partition": {"clients": 4}}, False),
        ({"partition": {"clients": 4}, **setting(True)}, True),
        ({"init_from": "elsewhere"}, False),
        ({"init_from": "elsewhere", **setting(True)}, True),
        (setting(False), False),
    ],
)
def test_who_gets_it(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], wanted: bool) -> None:
    monkeypatch.setattr(alone, "MAX_CLIENTS", 3)
    settings = changed(SETTINGS, **{"evaluation": {"alone": "auto"}, "algorithm": {"name": "fedavg"}})
    if changes.get("algorithm"):
        settings["algorithm"] = changes["algorithm"]
    resolved = resolve(changed(settings, **{key: value for key, value in changes.items() if key != "algorithm"}))
    built = build.build(resolved)
    assert alone.is_wanted(resolved, built) is wanted


def test_it_is_refused_where_it_cannot_be(tmp_path: Path) -> None:
    with refusal("config.alone", "evaluation.alone = true"):
        runs.run(config(algorithm={"name": "local"}), tmp_path / "run", Silent())
    assert not (tmp_path / "run").exists()


FAMILY = sorted(name for name in ALGORITHMS if isinstance(algorithm(name), FedAvg))


@pytest.mark.parametrize("name", FAMILY)
def test_every_algorithm_of_the_family_has_its_local(name: str) -> None:
    one = algorithm(name)
    local = local_of(one)
    if local is None:
        assert one.net is not one.model
        return
    assert isinstance(local, Local)
    assert (local.model, local.lr, local.local_steps, local.optimizer) == (
        one.model,
        one.lr,
        one.local_steps,
        one.optimizer,
    )


def with_folder(folder: Path, kind: str) -> tuple[dict[str, Any], str]:
    """A document of each kind of examples, and its selection metric."""
    if kind == "links":
        tables(folder / "data")
        return links(folder / "data", rank_negatives=0), "average_precision"
    if kind == "entities":
        return entities(triples(folder), {"name": "fedavg"}), "mrr"
    document: dict[str, Any] = {"rounds": 2, "partition": {"name": "random", "clients": 2}, "model": {"name": "gin"}}
    if kind == "numbers":
        return document | {"data": of_numbers(nodes_folder(folder / "data"), "price")}, "rmse"
    data = {"name": "graphs", "path": str(molecules(folder / "data", 40))}
    return document | {"data": data, "partition": {"name": "graphs_iid", "clients": 2}}, "accuracy"


@pytest.mark.parametrize("kind", ["links", "entities", "numbers", "graphs"])
def test_all_kinds_of_examples_have_it(tmp_path: Path, kind: str) -> None:
    document, metric = with_folder(tmp_path, kind)
    document["evaluation"] = {"alone": True, "shelf": False}
    told = runs.run(resolve(document), tmp_path / "run", Silent())["metrics"]
    assert f"local/{metric}" in told
    assert np.isfinite(told[f"alone/local/{metric}"])
    rows = alone_rows(tmp_path / "run")
    values = rows[(rows["metric"] == f"alone/{metric}") & (rows["split"] == "test")]["value"]
    assert told[f"alone/local/{metric}"] == pytest.approx(values.mean(), abs=1e-12)


def test_runs_of_a_sweep_with_the_same_settings_train_it_once(whole: Path, tmp_path: Path) -> None:
    (tmp_path / SHARED).mkdir()
    begun = list[str]()

    def go(name: str, **changes: Any) -> dict[str, float]:
        observer = Quiet(alone0=[lambda: begun.append(name)])
        told = runs.run(config(**changes), tmp_path / name, observer)["metrics"]
        return {key: value for key, value in told.items() if key.startswith("alone/")}

    first = go("fedavg")
    assert first == go("fedprox", algorithm={"name": "fedprox", "mu": 0.1})
    assert begun == ["fedavg"]
    expected = json.loads((whole / "summary.json").read_text())["metrics"]
    assert first == {key: value for key, value in expected.items() if key.startswith("alone/")}
    assert alone_rows(tmp_path / "fedprox").equals(alone_rows(tmp_path / "fedavg"))
    assert go("other-lr", algorithm={"lr": 0.2}) != first
    assert go("other-seed", seed=6) != first
    assert begun == ["fedavg", "other-lr", "other-seed"]


def test_a_file_that_is_not_whole_is_trained_again(tmp_path: Path) -> None:
    path, begun = tmp_path / "a.json", list[int]()
    path.write_text('{"members": {"a"')
    result = alone.AloneResult({"a": alone.MemberResult(2, 0.1 + 0.2, {"auc": 1 / 3}, {}, True)}, 2.5)

    def measure() -> alone.AloneResult:
        begun.append(len(begun))
        return result

    for _ in range(2):  # the second time it is in the file
        assert measure_once(path, measure, alone.AloneResult.of_record, lambda: False) == result
    assert begun == [0]


def test_the_terminal_has_its_row_and_its_cost(whole: Path) -> None:
    console = Console(record=True, width=160)
    summary = json.loads((whole / "summary.json").read_text())
    show_result(console, summary, whole)
    text = console.export_text()
    check_facts(text, "alone", f"{summary['metrics']['alone/local/accuracy']:.3f}")
    check_facts(text, "cost", "5 rounds", "alone", f"{summary['alone_seconds']:.1f} s")


def test_the_page_shows_who_gains(whole: Path) -> None:
    """A member's gain is its result in the round that validation chose, less the same model's alone."""
    one = read_run(whole)
    [gain] = member_gains(group_runs([one]))
    rows = one.metrics.to_pandas()
    rows = rows[(rows["split"] == "test") & (rows["client"] != "global")]
    best = one.summary["metrics"]["best_val/round"]
    joint = rows[(rows["metric"] == "accuracy") & (rows["round"] == best)].set_index("client")["value"]
    alone_there = rows[rows["metric"] == "alone/accuracy"].set_index("client")["value"]
    assert gain.by_client == pytest.approx((joint - alone_there).to_dict(), abs=1e-12)
    metrics = one.summary["metrics"]
    expected = metrics["best_val/local/accuracy"] - metrics["alone/local/accuracy"]
    assert np.mean([*gain.by_client.values()]) == pytest.approx(expected, abs=1e-12)
    assert gain_sentences([gain])[0].startswith("With fedavg")
    check_facts(render([one]), "What joining brings each member", "client-0")

"""What sites reach alone, measured at home: the simulation's numbers, and only what policies let leave."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from typer.testing import CliRunner

from fedweave.cli import app
from fedweave.errors import FedweaveError
from fedweave.experiment.config import Config, resolve
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import LEDGER, METRICS, SUMMARY, read_summary, read_table
from fedweave.experiment.runs.resuming import Interrupted, Stop
from fedweave.experiment.runs.run import run
from fedweave.experiment.shelf import runs as shelf_runs
from fedweave.experiment.shelf.members import Effort
from fedweave.python.training import Silent
from fedweave.reports.verdict import verdict_of
from fedweave.sites.flare import baselines
from fedweave.sites.flare.audit import compare, compare_alone
from fedweave.sites.flare.journal import entries
from fedweave.sites.flare.own_results import last_verdict, read_baselines, verdict_at_site
from fedweave.sites.flare.policy import Spent
from fedweave.sites.flare.server import Progress, Server, backend
from fedweave.sites.flare.sitefile import FINE
from fedweave.sites.operation.experiments import hand_out, split
from tests.refusals import check_facts, refusal
from tests.sites.projects import SITES, InProcess, cut_again, experiment, set_policy
from tests.sites.test_carrying_at_sites import on_transfers, transfers
from tests.sites.test_graphs_at_sites import of_graphs
from tests.sites.test_graphs_at_sites import whole as whole
from tests.sites.test_links_at_sites import of_links, tables
from tests.sites.test_target_sites import of_numbers

BOTH = {"shelf": "auto", "alone": True}
ALL = f"measures = {[*FINE]}"
OWN_TESTS = {"name": "louvain", "clients": 3, "holdout": False}
PEOPLE = {"name": "synthetic", "nodes": 300, "classes": 2, "features": 6}


@pytest.fixture(autouse=True)
def _quick_shelves(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default, too, and without boosting, which takes longest."""
    monkeypatch.setattr("fedweave.experiment.runs.run.shelf_of_run", shelf_runs.shelf_of_run)
    monkeypatch.setattr(shelf_runs, "EFFORTS", (Effort(trees=0),))


def at_sites(project: Path, out: Path, config: Config, number: str = "r1", stop: Stop | None = None) -> None:
    """A run of the server and the sites in this process."""
    build = partial(Server(number, SITES, "")._join, root=project / "server", folder=out, link=InProcess(project))
    run(config, out, Progress(), True, backend(build, stop or Stop(lambda number: None)))


def simulation(config: Config, out: Path) -> dict[str, Any]:
    engine = {"name": "simulation", "mode": "loop"}
    return run(resolve({**config.plain(), "engine": engine}), out, Silent())


def alone(summary: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in summary["metrics"].items() if key.startswith(("shelf/local", "alone/local"))}


def of_members(out: Path) -> dict[tuple[str, str], float]:
    rows = read_table(out, METRICS).to_pylist()
    names = dict(zip([f"client-{i}" for i in range(3)], SITES, strict=True))
    found = {}
    for row in rows:
        named = row["metric"].startswith(("shelf/", "alone/")) and row["metric"] != "alone/round"
        if named and row["client"] != "global" and row["split"] == "test":
            found[names.get(row["client"], row["client"]), row["metric"]] = row["value"]
    return found


def sent(project: Path, site: str) -> list[str]:
    """The keys that left for what the site reaches alone."""
    keys = []
    for entry in entries(project / site / "ledgers/r1.jsonl"):
        if entry.step in ("(shelf)", "(alone)") and entry.direction == "up":
            keys += [line.key for line in entry.keys]
    return keys


def cases(tmp_path: Path, whole: Path, case: str) -> Any:
    evaluation = {"evaluation": BOTH}
    if case == "nodes":
        settings = {"shelf": True, "metric": "average_precision", "positive": 1, "patience": 2}
        return experiment("fedavg", data=PEOPLE, partition=OWN_TESTS, evaluation=BOTH | settings)
    if case == "global test":
        return experiment("fedavg", rounds=2, **evaluation)
    if case == "links":
        return of_links(tables(tmp_path / "d"), **evaluation)
    if case in ("edges", "exchange"):
        external = {"external": "exchange"} if case == "exchange" else {}
        return on_transfers(transfers(tmp_path / "d"), "sage", "auto", **external, **evaluation)
    if case == "graphs":
        return resolve(of_graphs("fedavg", whole).plain() | evaluation)
    return resolve(of_numbers(tmp_path).plain() | evaluation)


@pytest.mark.often("nodes", "links")
@pytest.mark.parametrize("case", ["nodes", "global test", "links", "edges", "exchange", "graphs", "numbers"])
def test_sites_reach_alone_what_members_of_the_simulation_do(
    project: Path, whole: Path, tmp_path: Path, case: str
) -> None:
    config = cases(tmp_path, whole, case)
    (project / "server/test.npz").unlink(missing_ok=True)
    hand_out(*split(config, SITES), project, SITES, config)  # with policies that measure all
    at_sites(project, tmp_path / "out", config)
    summary, expected = read_summary(tmp_path / "out" / SUMMARY), simulation(config, tmp_path / "sim")
    found, told = alone(expected), alone(summary)
    assert any(key.startswith("shelf/local") for key in found)
    assert any(key.startswith("alone/local") for key in found)
    assert told.keys() == found.keys()
    shelves = {key: value for key, value in found.items() if key.startswith("shelf/")}
    assert {key: told[key] for key in shelves} == pytest.approx(shelves, abs=1e-9)
    assert told == pytest.approx(found, abs=1e-3)
    ours, theirs = of_members(tmp_path / "out"), of_members(tmp_path / "sim")
    assert ours == pytest.approx(theirs, abs=1e-3)
    verdict = verdict_of(summary)
    assert verdict is not None
    assert verdict.alone.keys() == {"shelf", "alone"}
    for site in SITES:  # a member sees its own, also what the server does not know
        own, record = verdict_at_site(project / site / "runs/r1"), read_baselines(project / site / "runs/r1")
        assert own is not None
        assert own.alone["shelf"] == ours[site, f"shelf/{own.metric}"]
        assert record["shelf"]["tool"]
        assert set(sent(project, site)) <= {f"own/{kind}/{name}" for kind in BOTH for name in record[kind]["values"]}
        check_audit(project / site, tmp_path / "out")


def check_audit(site: Path, out: Path) -> None:
    """A site finds what it sent of what it reaches alone in the run's ledger and numbers, and each change of these."""
    ledger, metrics = read_table(out, LEDGER), read_table(out, METRICS)
    assert compare(site, "r1", ledger) == ([], [])
    assert compare_alone(site, "r1", metrics) == []
    messages = ledger.to_pylist()
    keys = [row["key"] if row["client"] == site.name else "" for row in messages]
    at = next(at for at, key in enumerate(keys) if key.startswith("own/shelf/"))
    without = pa.Table.from_pylist([*messages[:at], *messages[at + 1 :]], ledger.schema)
    assert [len(lines) for lines in compare(site, "r1", without)] == [0, 1]
    rows = metrics.to_pylist()
    names = [row["metric"] if row["client"] == site.name else "" for row in rows]
    at = next(at for at, name in enumerate(names) if name.startswith("shelf/"))
    assert site.name in {row["client"] for row in rows if row["metric"].startswith("alone/")}
    off = {"value": rows[at]["value"] * (1 + 1e-6) + 1e-6}
    for change in (off, {"metric": "shelf/recall_at_20"}):  # a millionth off, and never sent
        changed = rows[at] | change
        table = pa.Table.from_pylist([*rows[:at], changed, *rows[at + 1 :]], metrics.schema)
        lines = compare_alone(site, "r1", table) or ()
        assert [line.split(":")[0] for line in lines] == sorted({rows[at]["metric"], changed["metric"]})
    of_site = [row for row in rows if row["client"] == site.name and row["metric"].startswith(("shelf/", "alone/"))]
    without = pa.Table.from_pylist([row for row in rows if row not in of_site], metrics.schema)
    lost = {row["metric"] for row in of_site if row["split"] == "test"} - {"alone/round"}
    assert {line.split(":")[0] for line in compare_alone(site, "r1", without) or ()} == lost


def test_a_number_of_a_site_that_sent_none_is_found_in_the_run(tmp_path: Path) -> None:
    site = tmp_path / "bank-a"
    (site / "ledgers").mkdir(parents=True)
    (site / "ledgers/r1.jsonl").touch()
    rows = [{"round": 2, "client": "bank-a", "split": "test", "metric": "local/accuracy", "value": 0.5}]
    assert compare_alone(site, "r1", pa.Table.from_pylist(rows)) is None
    rows += [rows[0] | {"metric": "shelf/auc"}]
    assert len(compare_alone(site, "r1", pa.Table.from_pylist(rows)) or ()) == 1


POLICIES = {
    "": "none",  # as `sites init` writes it
    f"{ALL}\nround_scores = 5": "none",
    f"{ALL}\nscore_epsilon = 2.0": "none",
    f"{ALL}\nevaluations = 2": "none",
    f"{ALL}\ndeny = ['own/shelf', 'own/alone']": "none",
    f"{ALL}\ncalls = {{shelf = 0}}": "alone",
    "measures = ['loss']": "loss",
    ALL: "all",
}


@pytest.mark.parametrize("policy", POLICIES)
def test_only_what_the_policy_measures_leaves(project: Path, tmp_path: Path, policy: str) -> None:
    """And the site has its values in any case."""
    config = cut_for(project)
    for site in SITES:
        set_policy(project, policy if site == "bank-b" else ALL, site)
    at_sites(project, tmp_path / "out", config)
    keys = sent(project, "bank-b")
    kinds = {key.split("/")[1] for key in keys if key.startswith("own/")}
    names = {key.rpartition("/")[2] for key in keys if key.startswith("own/")}
    expected = {"none": set(), "alone": {"alone"}}.get(POLICIES[policy], {"shelf", "alone"})
    assert kinds == expected
    if not expected:
        assert not keys
    if POLICIES[policy] == "loss":
        assert names == {"loss", "accuracy"}
    members = {client for client, _ in of_members(tmp_path / "out")}
    assert members == ({*SITES} if expected else {"bank-a", "bank-c"})
    record = read_baselines(project / "bank-b/runs/r1")
    assert record["shelf"]["values"].keys() >= {"accuracy", "macro_f1"}
    assert record["alone"]["values"].keys() >= {"accuracy", "macro_f1"}
    assert "joint" in record
    summary = read_summary(tmp_path / "out" / SUMMARY)
    mean = np.mean([value for (_, name), value in of_members(tmp_path / "out").items() if name == "shelf/accuracy"])
    assert summary["metrics"]["shelf/local/accuracy"] == pytest.approx(mean)
    assert ("bank-b" in (summary.get("note") or "")) == (not expected)
    assert "missed" not in summary
    rows = read_table(tmp_path / "out", LEDGER).to_pylist()
    theirs = [row["key"] for row in rows if row["client"] == "bank-b" and row["key"].startswith(("own/sh", "own/al"))]
    assert sorted(theirs) == sorted(keys)


def cut_for(project: Path, **more: Any) -> Config:
    config = experiment("fedavg", data=PEOPLE, partition=OWN_TESTS, **({"evaluation": BOTH, "rounds": 2} | more))
    cut_again(project, config)
    return config


def test_sums_of_scores_stay_sums(project: Path, tmp_path: Path) -> None:
    """Where the server gets scores of all sites together, it gets none of a single one's own models."""
    config = cut_for(project, algorithm_settings={"scores": "sum"})
    for site in SITES:
        set_policy(project, ALL, site)
    at_sites(project, tmp_path / "out", config)
    assert not alone(read_summary(tmp_path / "out" / SUMMARY))
    for site in SITES:
        assert not sent(project, site)
        verdict = verdict_at_site(project / site / "runs/r1")
        assert verdict is not None
        assert verdict.alone.keys() == {"shelf", "alone"}


def test_each_result_counts_as_an_evaluation(project: Path, tmp_path: Path) -> None:
    config = cut_for(project)
    set_policy(project, ALL)
    at_sites(project, tmp_path / "out", config)
    spent = Spent.of(entries(project / "bank-b/ledgers/r1.jsonl"))
    assert spent.evaluations == 2 + 2


def test_parties_with_labels_have_a_shelf_of_their_own_columns(project: Path, tmp_path: Path) -> None:
    config = experiment("glasu", rounds=2, partition={"labels": "first"}, evaluation={"shelf": "auto"})
    cut_again(project, config)
    for site in SITES:
        set_policy(project, ALL, site)
    at_sites(project, tmp_path / "out", config)
    expected = alone(simulation(config, tmp_path / "sim"))
    assert expected
    assert alone(read_summary(tmp_path / "out" / SUMMARY)) == pytest.approx(expected, abs=1e-9)
    assert read_baselines(project / SITES[1] / "runs/r1")["shelf"]["values"] == {}
    with refusal("config.alone"):
        document = config.plain() | {"evaluation": {"alone": True}}
        at_sites(project, tmp_path / "other", resolve(document), "r2")


def test_a_long_training_is_asked_for_again(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that needs several requests ends with the same numbers, and a stop leaves a run that goes on."""
    config = cut_for(project)
    for site in SITES:
        set_policy(project, ALL, site)
    at_sites(project, tmp_path / "out", config)
    once = of_members(tmp_path / "out")

    asked, stop, honest = list[str](), Stop(lambda number: None), InProcess.exchange

    def exchange(self: InProcess, request: str, blobs: Any) -> Any:
        asked.append(json.loads(request)["kind"])
        if asked.count("alone") == 2:
            stop.signal = 15
        return honest(self, request, blobs)

    monkeypatch.setattr(InProcess, "exchange", exchange)
    again = resolve(config.plain() | {"engine": config.engine.plain() | {"timeout": 1e-6}})
    with pytest.raises(Interrupted):
        at_sites(project, tmp_path / "again", again, "r2", stop)
    at_sites(project, tmp_path / "again", again, "r2")
    assert asked.count("alone") > 4
    assert asked.count("shelf") == 1
    assert of_members(tmp_path / "again") == pytest.approx(once, abs=1e-9)
    assert {"joint", "shelf", "alone"} <= read_baselines(project / "bank-b/runs/r2").keys()


def test_a_run_that_is_killed_while_it_is_saved_has_each_number_once(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, save = cut_for(project), Checkpoint.save

    def fail(self: Checkpoint, path: Path) -> None:
        if any(name.startswith("shelf/") for name in self.summary):
            raise OSError("killed")
        save(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "save", fail)
        with pytest.raises(OSError, match="killed"):
            at_sites(project, tmp_path / "out", config)
    at_sites(project, tmp_path / "out", config, "r2")
    rows = read_table(tmp_path / "out", METRICS).to_pylist()
    names = [(row["client"], row["metric"]) for row in rows if row["metric"].startswith(("shelf/", "alone/"))]
    assert names
    assert len(names) == len({*names})


def test_a_training_alone_that_fails_leaves_the_joint_result(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And `sites status` goes on showing the last verdict that there is."""
    config = cut_for(project, evaluation={"shelf": True, "alone": False}, rounds=1)
    at_sites(project, tmp_path / "out", config)
    before = last_verdict(project / "bank-b")

    def diverge(*_: Any) -> Iterator[int]:
        raise FedweaveError("the model diverged", code="diverged")
        yield

    monkeypatch.setattr(baselines, "rounds_alone", diverge)
    of_second = {"evaluation": {"shelf": False, "alone": True}}
    at_sites(project, tmp_path / "second", resolve(config.plain() | of_second), "r2")
    record = read_baselines(project / "bank-b/runs/r2")
    assert "accuracy" in record["joint"]["values"]
    assert "alone" not in record
    assert before is not None
    assert last_verdict(project / "bank-b") == before


def test_an_owner_reads_it_beside_what_has_left(project: Path, tmp_path: Path) -> None:
    config = cut_for(project)
    set_policy(project, "")
    at_sites(project, tmp_path / "out", config)
    value = read_baselines(project / "bank-b/runs/r1")["shelf"]["values"]["accuracy"]
    told = CliRunner().invoke(app, ["audit", str(project / "bank-b")], env={"COLUMNS": "300"})
    assert told.exit_code == 0, told.output
    check_facts(told.output, f"{value:.3f}")
    page = tmp_path / "page.html"
    assert CliRunner().invoke(app, ["audit", str(project / "bank-b"), "-o", str(page)]).exit_code == 0
    check_facts(page.read_text(), f"{value:.3f}")
    shown = CliRunner().invoke(app, ["sites", "status", str(project), "--seconds", "0.5"], env={"COLUMNS": "300"})
    check_facts(shown.output, f"{value:.3f}")


def test_sites_whose_only_tests_are_the_global_ones_have_a_verdict(project: Path, tmp_path: Path) -> None:
    """The joint model's result is then of the same examples as the shelf's."""
    partition = {"name": "louvain", "clients": 3, "train": 0.7, "val": 0.3, "test": 0.0, "holdout": True}
    config = experiment("fedavg", rounds=2, partition=partition, evaluation=BOTH)
    (project / "server/test.npz").unlink(missing_ok=True)
    hand_out(*split(config, SITES), project, SITES, config)
    at_sites(project, tmp_path / "out", config)
    summary = read_summary(tmp_path / "out" / SUMMARY)
    for site in SITES:
        own = verdict_at_site(project / site / "runs/r1")
        assert own is not None
        assert set(own.alone) == {"shelf"}
        assert own.joint == pytest.approx(summary["metrics"]["global/accuracy"], abs=1e-6)

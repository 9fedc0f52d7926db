"""GLASU's tables: numbers as printed, experiments that resolve and share runs, times by hand, and tiny real runs."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedweave.core.ledger_columns import SCHEMA
from fedweave.datasets import DATASETS
from fedweave.experiment import config
from fedweave.experiment.runs import run as runs
from fedweave.metrics.measured import METRICS_SCHEMA
from fedweave.papers import glasu, glasu_script, grid, pictures
from fedweave.papers.glasu import DELAY, GLASU, experiment
from fedweave.papers.paper import PaperCell, PaperTable
from fedweave.papers.quantities import (
    Duration,
    best_on_test,
    client_accuracy,
    curve,
    duration,
    first_accuracy_of,
    mean_accuracy,
    saving,
    seconds,
    seconds_to,
)
from fedweave.papers.selection import PROTOCOLS
from fedweave.papers.table import assemble, headings, row_texts
from fedweave.python.training import Silent
from fedweave.reports.colors import COLORS
from fedweave.reports.pictures import curves, mean_curve
from fedweave.sweeps.runs import PlannedRun
from tests.reproduce.tiny import AllThere, cell, finish, table

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
SECTIONS = ("data", "partition", "model", "algorithm")
ALL = {f"table {n}": it for n, it in GLASU.tables.items()} | {f"figure {n}": it for n, it in GLASU.figures.items()}
DELAYED = ", 50 ms per exchange"


@cache
def planned(name: str) -> dict[tuple[str, str], grid.PlannedCell]:
    found = {(it.cell.row, it.cell.column): it for it in grid.plan(ALL[name], Path("somewhere"), AllThere())}
    assert len(found) == len(ALL[name].cells)  # no two cells have one place
    return found


def test_what_the_paper_says_of_its_numbers_holds() -> None:
    paper = {(it.row, it.column): it.paper.value for it in GLASU.tables[3].cells}
    for dataset in ("PubMed", "Amsterdam"):
        whole, *fewer = (paper[f"{dataset}, Runtime", column] or math.nan for column in ("K=4", "K=2", "K=1"))
        for column, runtime in zip(("K=2", "K=1"), fewer, strict=True):
            assert paper[f"{dataset}, Saving", column] == pytest.approx(100 * (1 - runtime / whole), abs=0.06)
    assert glasu.THRESHOLDS == {"PubMed": 82, "Amsterdam": 89}
    for it in GLASU.tables[4].cells:
        if "Accuracy" in it.row and it.paper.value is not None:
            assert it.paper.value >= glasu.THRESHOLDS[it.row.split(",")[0]]


@pytest.mark.parametrize("name", ALL)
def test_every_experiment_resolves_updates_equally_and_its_algorithm_accepts_its_model(name: str) -> None:
    assert ALL[name].seeds == 5
    for document in [it for own in ALL[name].cells for it in (own.document, own.baseline) if it is not None]:
        assert [grid.unknown(section, document[section]) for section in SECTIONS] == [""] * 4
        resolved = config.resolve(document | {"seed": 0})
        facts = DATASETS[resolved.data.name].facts
        resolved.algorithm.make(resolved.model.make().build(facts.features, facts.classes))
        steps = resolved.algorithm.values.get("steps", 1)
        assert resolved.general.rounds * steps == 2000
        assert resolved.general.rounds // resolved.general.eval_every == (2000 // 80 if steps > 1 else 2000 // 400)


def test_cells_that_ask_for_the_same_experiment_are_one_run() -> None:
    names = {
        planned(table)[place].runs[0].name
        for table, place in (
            ("table 2", ("PubMed", "GLASU-4")),
            ("table 3", ("PubMed, Accuracy", "K=2")),
            ("table 3", (f"PubMed, Runtime{DELAYED}", "K=2")),
            ("table 4", ("PubMed, Runtime", "Q=4")),
            ("table 5", ("PubMed, GLASU", "M=3")),
            ("figure 3", ("GCNII", "PubMed")),
        )
    }
    assert len(names) == 1
    for dataset in ("CiteSeer", "PubMed"):
        for row, column in (("Cent.", "Cent."), ("StAl.", "StAl."), ("GLASU", "GLASU-4")):
            three = planned("table 5")[f"{dataset}, {row}", "M=3"].runs
            assert three == planned("table 2")[dataset, column].runs
    assert grid.count(planned("table 2").values()) == 35 * 5
    assert grid.count(planned("table 3").values()) == 6 * 5
    assert grid.count(planned("table 4").values()) == 8 * 5
    assert grid.count(planned("table 5").values()) == 2 * (1 + 3 + 3) * 5
    assert planned("table 3")["PubMed, Saving", "K=1"].baseline == planned("table 3")["PubMed, Accuracy", "K=4"].runs


def test_methods_are_what_their_names_say() -> None:
    resolved = {it.column: config.resolve(it.document).plain() for it in GLASU.tables[2].cells if it.row == "Cora"}
    assert {column: it["algorithm"]["name"] for column, it in resolved.items()} == {
        "Cent.": "pooled_gnn", "StAl.": "standalone", "Sim.": "simulated_centralized", "GLASU-1": "glasu",
        "GLASU-4": "glasu",
    }  # fmt: skip
    edges = {column: it["partition"]["edges"] for column, it in resolved.items()}
    assert edges == {"Cent.": 0.8, "StAl.": 0.8, "Sim.": 1.0, "GLASU-1": 0.8, "GLASU-4": 0.8}
    one, four = resolved["GLASU-1"], resolved["GLASU-4"]
    assert set(config.differences(one, four)) == {"rounds", "eval_every", "algorithm.steps"}
    natural = {it.column: it.document["partition"] for it in GLASU.tables[2].cells if it.row == "Venice"}
    assert natural["GLASU-4"]["name"] == "parties"
    assert (natural["Sim."]["edges"], natural["Sim."]["widths"]) == (1.0, [365, 102, 512])


@pytest.mark.parametrize("dataset", ["Cora", "CiteSeer", "PubMed"])
def test_shipped_experiments_are_the_tables_own_looked_at_less_often(dataset: str) -> None:
    shipped, _ = config.read(EXPERIMENTS / f"glasu-{dataset.lower()}.toml")
    own = config.resolve(experiment(dataset, "GLASU", steps=4)).plain()
    assert config.differences(shipped.plain(), own) == ["eval_every"]


def test_the_shipped_script_is_the_protocols_own() -> None:
    shipped, _ = config.read(EXPERIMENTS / "glasu-cora-script.toml")
    [cell] = [it for it in GLASU.tables[2].cells if (it.row, it.column) == ("Cora", "GLASU-4")]
    own = config.resolve(PROTOCOLS["glasu"]["script"].cell(cell).document).plain()
    assert config.differences(shipped.plain(), own) == []


def test_the_scripts_protocol_by_method() -> None:
    protocol = PROTOCOLS["glasu"]["script"]
    cells = {(it.row, it.column): protocol.cell(it) for it in GLASU.tables[2].cells}
    for (dataset, column), it in cells.items():
        resolved = config.resolve(it.document | {"seed": 0})
        facts = DATASETS[resolved.data.name].facts
        resolved.algorithm.make(resolved.model.make().build(facts.features, facts.classes))
        rounds = 2048 if dataset == "PubMed" else 1024
        assert it.document["rounds"] == rounds  # whatever Q
        assert it.document["algorithm"]["decay_every"] == rounds * (8 if column == "StAl." else 12) // 32
        assert (it.document["partition"].get("blocks") == "random") == (it.document["partition"]["name"] == "vertical")
        exchanged = it.document["algorithm"].get("backward") == "exchanged"
        assert exchanged == (column in ("Sim.", "GLASU-1"))
        assert (it.document["algorithm"]["lr"] == 0.8) == (exchanged and dataset == "Cora")
        assert (it.quantity is glasu_script.THIRD) == (column == "StAl.")
    natural = cells["Venice", "GLASU-4"].document["partition"]
    assert (natural["train"], natural["val"], natural["test"]) == (0.2, 0.3, 0.5)
    for name, train in (("CiteSeer", 504), ("PubMed", 960), ("Cora", 420)):
        facts = DATASETS[name.lower()].facts
        drawn = cells[name, "GLASU-4"].document["partition"]
        assert drawn["train_per_class"] * facts.classes == train
        assert [round(drawn[use] * facts.nodes) for use in ("val", "test")] == [500, 1000]


def test_the_best_round_and_one_client_alone_by_hand(tmp_path: Path) -> None:
    [plan] = grid.plan(table(replace(cell("a"), quantity=mean_accuracy()), seeds=1), tmp_path, grid.Stock())
    trained(plan.runs[0], {1: (0.6, 0.8, 0.1), 2: (0.8, 0.9, 0.4), 3: (0.5, 0.9, 0.7)})
    run = plan.runs[0].directory
    assert best_on_test("local", run) == pytest.approx(0.7)
    assert best_on_test("global", run) == pytest.approx(0.99)
    third = client_accuracy(2)
    assert third.best is not None
    assert (third.read(run), third.best(run)) == (pytest.approx(70), pytest.approx(70))
    first = client_accuracy(0)
    assert first.best is not None
    assert (first.read(run), first.best(run)) == (pytest.approx(50), pytest.approx(80))
    [row] = assemble([plan], {})
    assert (row.ours, row.best_on_test, row.status) == (50.0, pytest.approx(70), "measured")
    heads = headings([row])
    assert heads[heads.index("difference") + 1 :][:2] == ["best round, chosen on test", "its difference"]
    assert row_texts(row, heads)[heads.index("best round, chosen on test")] == "70.0"


def ledger(rows: Sequence[tuple[int, int, str, float]]) -> pa.Table:
    """(round, call, step, seconds) of each of two clients, a message down and one up, with a key and framing each."""
    lines = [
        dict.fromkeys(SCHEMA.names, "") | {"at": None, "round": round, "call": call, "step": step, "bytes": 8}
        | {"direction": way, "client": client, "key": key, "seconds": took if way == "up" and key == "h" else 0.0}
        for round, call, step, took in rows for client in ("a", "b") for way in ("down", "up") for key in ("h", "()")
    ]  # fmt: skip
    return pa.Table.from_pylist(lines, SCHEMA)


LEDGER = [
    (0, 0, "GLASU.begin", 100.0),
    (1, 0, "GLASU.infer", 0.5),
    (1, 1, "GLASU.update", 1.0),
    (1, 2, "GLASU.infer_full", 100.0),
    (1, 3, "GLASU.score", 100.0),
    (2, 0, "GLASU.infer", 0.25),
    (2, 1, "GLASU.infer", 0.25),
    (2, 2, "GLASU.update", 1.5),
]


def test_durations_by_hand() -> None:
    assert duration(ledger(LEDGER)) == Duration(2 * (0.5 + 1.0 + 0.25 + 0.25 + 1.5), 5)
    assert duration(ledger(LEDGER), last_round=1) == Duration(3.0, 2)
    assert duration(ledger(LEDGER), last_round=1).delayed(0.05) == pytest.approx(3.1)
    assert duration(ledger([])) == Duration(0.0, 0)


def trained(run: PlannedRun, accuracies: dict[int, tuple[float, ...]], faster: float = 1.0) -> None:
    """A finished run: {round: accuracies of the clients} and LEDGER's times, so many times `faster`."""
    finish(run, local_accuracy=0.5)
    rows = [
        {"round": number, "client": client, "split": split, "metric": "accuracy"}
        | {"value": value if split == "test" else 1.0}
        for number, values in accuracies.items()  # the pooled rows and those of other splits are not read
        for client, value in zip(("global", "a", "b", "c"), (0.99, *values), strict=False)
        for split in ("test", "val")
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows, METRICS_SCHEMA), run.directory / "metrics.parquet")
    times = [(*line, took / faster) for *line, took in LEDGER]
    pq.write_table(ledger(times), run.directory / "ledger.parquet")


def test_time_to_accuracy_by_hand_and_not_reached_is_no_failure(tmp_path: Path) -> None:
    [plan] = grid.plan(table(cell("a")), tmp_path, grid.Stock())
    slow, quick = plan.runs
    trained(slow, {1: (0.6, 0.8), 2: (0.8, 0.9)})
    trained(quick, {1: (0.8, 0.9), 2: (0.7, 0.8)})
    assert curve(slow.directory) == pytest.approx({1: 70.0, 2: 85.0})
    assert first_accuracy_of(82).read(slow.directory) == pytest.approx(85)
    assert seconds_to(82).read(slow.directory) == 7.0
    assert seconds_to(82, 0.05).read(slow.directory) == pytest.approx(7.25)
    assert seconds_to(82, 0.05).read(quick.directory) == pytest.approx(3.1)
    assert seconds(0.05).read(quick.directory) == pytest.approx(7.25)

    def shown(wanted: float) -> Any:
        [row] = assemble([replace(plan, cell=replace(plan.cell, quantity=seconds_to(wanted)))], {})
        return row.ours, row.seeds, row.status

    assert shown(82) == (5.0, 2, "measured")
    assert shown(85) == (5.0, 2, "measured")  # "at least"
    trained_once = replace(plan, runs=(slow,))
    [row] = assemble([replace(trained_once, cell=replace(plan.cell, quantity=first_accuracy_of(90)))], {})
    assert (row.ours, row.seeds, row.status) == (None, 0, "N/A in 1 of 1 runs: not reached")
    pq.write_table(pq.read_table(slow.directory / "metrics.parquet").slice(0, 6), slow.directory / "metrics.parquet")
    assert shown(82) == (3.0, 1, "N/A in 1 of 2 runs: not reached")
    (quick.directory / "ledger.parquet").write_bytes(b"?")
    assert shown(82)[2].startswith(f"failed: {quick.name}: ")


def test_a_share_that_all_clients_reach_is_reached_in_the_mean(tmp_path: Path) -> None:
    [plan] = grid.plan(table(cell("a"), seeds=1), tmp_path, grid.Stock())
    trained(plan.runs[0], {1: (0.57,) * 3})
    assert 100 * 0.57 < 57  # a rounding error
    assert first_accuracy_of(57).read(plan.runs[0].directory) == 57


def test_savings_are_of_pairs_of_runs_with_the_same_seed(tmp_path: Path) -> None:
    whole = cell("whole", model={"hidden": 5})
    part = replace(cell("part"), quantity=saving(), baseline=whole.document)
    [plan] = grid.plan(table(part), tmp_path, grid.Stock())
    assert grid.count([plan]) == len(grid.unfinished([plan])) == 4  # the baseline is run, too
    for at, run in enumerate(plan.runs):
        trained(run, {2: (0.5, 0.5)}, faster=(4, 2)[at])
        trained(plan.baseline[at], {2: (0.5, 0.5)})
    [row] = assemble([plan], {})
    assert (row.ours, row.seeds, row.status) == (pytest.approx((75 + 50) / 2), 2, "measured")
    assert saving(0.05).read(plan.runs[1].directory, plan.baseline[1].directory) == pytest.approx(
        100 * (1 - 3.75 / 7.25)
    )
    [row] = assemble([plan], {plan.baseline[0].name: "it burnt"})
    assert (row.ours, row.status) == (pytest.approx(50), f"failed: {plan.baseline[0].name}: it burnt")
    short = grid.quick(table(part), grid.Stock()).cells[0]
    assert short.baseline["rounds"] == short.document["rounds"] == 2
    absent = replace(part, baseline=whole.document | {"algorithm": {"name": "nowhere"}})
    assert grid.plan(table(absent), tmp_path, grid.Stock())[0].status == (
        "not available: there is no algorithm 'nowhere' yet"
    )


def test_a_quick_look_is_evaluated_on_its_way() -> None:
    often = replace(cell("a"), document=cell("a").document | {"eval_every": 10, "rounds": 500})
    [short] = grid.quick(replace(table(often), quick=80), grid.Stock()).cells
    assert (short.document["rounds"], short.document["eval_every"]) == (6, 3)
    [short] = grid.quick(replace(table(cell("a")), quick=5), grid.Stock()).cells
    assert (short.document["rounds"], short.document["eval_every"]) == (4, 0)


def test_the_picture_has_means_bands_and_escaped_names(tmp_path: Path) -> None:
    lines = {
        "one <seed>": mean_curve([{10: 50.0, 20: 60.0}]),
        "two": mean_curve([{10: 40.0, 20: 60.0, 30: 1.0}, {10: 50.0, 20: 80.0}]),
    }
    assert lines["two"] == [(10, 45.0, pytest.approx(50**0.5)), (20, 70.0, pytest.approx(200**0.5))]
    picture = ElementTree.fromstring(curves("Title & more", "%", lines))
    space = {"s": "http://www.w3.org/2000/svg"}
    texts = [it.text for it in picture.findall(".//s:text", space)]
    assert texts[0] == "Title & more"
    assert {"one <seed>", "two", "round", "%", "40", "60", "80"} <= set(texts)
    paths = picture.findall("s:svg[@role]/s:path", space)
    assert len([it for it in paths if it.get("fill-opacity")]) == 1  # one seed has no band
    [first] = [it.get("d") or "" for it in paths if it.get("stroke") == COLORS[0]]
    [(x1, y1), (x2, y2)] = [tuple(map(float, point.split())) for point in first.removeprefix("M").split("L")]
    words = picture.findall("s:svg[@role]/s:text", space)
    levels = {it.text: float(it.get("y") or 0) - 4 for it in words if it.get("text-anchor") == "end"}
    across = {it.text: float(it.get("x") or 0) for it in words if it.get("text-anchor") == "middle"}
    assert (x1, x2) == (pytest.approx(across["10"], abs=0.1), pytest.approx(across["20"], abs=0.1))
    assert y1 == pytest.approx((levels["40"] + levels["60"]) / 2, abs=0.1)
    assert y2 == pytest.approx(levels["60"], abs=0.1)

    drawn = replace(cell("a"), quantity=replace(cell("a").quantity, curve=curve))
    [plan] = grid.plan(table(drawn), tmp_path, grid.Stock())
    assert pictures.draw_curves(tmp_path / "figure", "Figure", "round", [plan], []) == []
    trained(plan.runs[0], {1: (0.6, 0.8), 2: (0.8, 0.9)})
    assert pictures.draw_curves(tmp_path / "figure", "Figure", "round", [plan], []) == [str(tmp_path / "figure.svg")]
    assert ElementTree.parse(tmp_path / "figure.svg").getroot().findtext("s:text", namespaces=space) == "Figure"


ROUNDS = 2


def small(document: config.Document) -> config.Document:
    """The experiment on 60 nodes with ten features, a narrow model, and the engine that records no steps."""
    data = {"name": "synthetic", "nodes": 60, "classes": 2, "features": 10, "degree": 4.0}
    split = {
        key: value for key, value in document["partition"].items() if key not in ("use_dataset_split", "train_on_rest")
    }
    model, engine = document["model"] | {"hidden": 4}, {"mode": "loop"}
    short = {"rounds": ROUNDS, "eval_every": 1, "data": data, "partition": split, "model": model, "engine": engine}
    return document | short


@pytest.mark.slow
def test_the_tables_kinds_of_runs_on_a_tiny_graph(tmp_path: Path) -> None:
    """Their exchanges follow from K: K down, K - 1 or more to agree on the nodes, one for the local steps."""
    chosen = [it for it in GLASU.tables[2].cells if it.row == "Cora"]
    chosen += [it for it in GLASU.tables[3].cells if it.row.startswith("PubMed")]
    chosen += [it for it in GLASU.tables[5].cells if it.row.startswith("PubMed") and it.column == "M=5"]
    chosen += [*GLASU.figures[3].cells]
    reach = {"always": 0, "never": 101}
    whole = experiment("PubMed", "GLASU", steps=16)
    chosen += [PaperCell(row, "Q=16", "", whole, seconds_to(wanted, DELAY)) for row, wanted in reach.items()]
    short = [replace(it, document=small(it.document), baseline=it.baseline and small(it.baseline)) for it in chosen]
    plan = grid.plan(PaperTable("tiny", tuple(short), 1), tmp_path, grid.Stock())
    for run in grid.unfinished(plan):
        runs.run(run.config, run.directory, Silent())
    rows = {(row.row, row.column): row for row in assemble(plan, {})}
    assert rows.pop(("never", "Q=16")).status == "N/A in 1 of 1 runs: not reached"
    assert {row.status for row in rows.values()} == {"measured"}
    for row in rows.values():
        assert row.unit != "%" or "Saving" in row.row or 0 <= row.ours <= 100
    for k in (4, 2, 1):
        plain, delayed = (rows[f"PubMed, Runtime{more}", f"K={k}"].ours or 0 for more in ("", DELAYED))
        assert 0 < plain < delayed
        exchanges = 2 * k  # K - 1 lists of nodes, K representations, one call for the local steps
        assert delayed - plain == pytest.approx(DELAY * exchanges * ROUNDS)
    saved = rows["PubMed, Saving", "K=1"].ours
    times = [rows["PubMed, Runtime", f"K={k}"].ours or 0 for k in (4, 1)]
    assert saved == pytest.approx(100 * (1 - times[1] / times[0]))
    assert len(mean_curve([curve(plan[0].runs[0].directory)])) == 2

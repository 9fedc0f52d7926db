"""F²GNN's tables: numbers as printed, experiments that resolve and share runs, ratios and pictures, tiny runs."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import fair_grid
from fedweave.experiment import config
from fedweave.experiment.runs import run as runs
from fedweave.metrics.measured import METRICS_SCHEMA
from fedweave.papers import f2gnn, grid, pictures
from fedweave.papers.f2gnn import F2GNN, METHODS, OURS, PENALTY, experiment
from fedweave.papers.group_quantities import median_score, one_class, percent, tradeoff
from fedweave.papers.paper import PaperTable, Quantity
from fedweave.papers.table import TableRow, assemble, mean_and_spread
from fedweave.python.training import Silent
from fedweave.sweeps.runs import PlannedRun
from tests.refusals import check_facts
from tests.reproduce.tiny import AllThere, cell, finish, table

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
ALL = {f"table {n}": it for n, it in F2GNN.tables.items()} | {f"figure {n}": it for n, it in F2GNN.figures.items()}


@cache
def planned(name: str) -> dict[tuple[str, str, str], grid.PlannedCell]:
    plan = grid.plan(ALL[name], Path("somewhere"), AllThere())
    found = {(it.cell.row, it.cell.column, it.cell.split): it for it in plan}
    assert len(found) == len(ALL[name].cells)  # no two cells have one place
    assert {it.status for it in found.values()} == {""}
    return found


def names(cells: Any) -> set[str]:
    return {run.name for it in cells for run in it.runs}


@pytest.mark.parametrize("dataset", ["Pokec-z", "Pokec-n"])
@pytest.mark.parametrize("name", ["Accuracy", "AUC"])
def test_the_papers_own_trade_offs_are_ratios_of_its_means_and_its_baselines_are_not(dataset: str, name: str) -> None:
    one = {(it.row, it.column): it.paper.value or 0 for it in F2GNN.tables[1].cells if it.split == "global"}
    two = {(it.row, it.column): it.paper.value or 0 for it in F2GNN.tables[2].cells}

    def share(method: str) -> float:
        row = f"{dataset}, {method}"
        own = one[row, name] / (one[row, "ΔSP"] + one[row, "ΔEO"])
        return two[row, f"{name} / (ΔSP + ΔEO)"] / own

    assert share("F²GNN") == pytest.approx(1, abs=2e-3)
    assert abs(share("FairFed") - 1) > 0.2
    assert abs(share("FairAug+FL") - 1) > 0.2


@pytest.mark.often("figure 3")
@pytest.mark.parametrize("name", ALL)
def test_every_experiment_resolves_with_its_seeds(name: str) -> None:
    found = planned(name).values()
    assert {len(it.runs) for it in found} == ({f2gnn.CURVE_SEEDS} if name == "figure 3" else {20, 5})
    for run in {it.runs[0].name: it.runs[0] for it in found}.values():
        made = run.config.algorithm.make(run.config.model.make().build(10, 2))
        assert made.participation == 0.1
    seeds = {key[0].split(",")[0]: len(it.runs) for key, it in planned("table 1").items()}
    assert seeds == {"NBA": 20, "German": 20, "Credit": 5, "Bail": 5, "Pokec-z": 5, "Pokec-n": 5}


def test_cells_that_ask_for_the_same_experiment_are_one_run() -> None:
    everything = planned("table 1").values()
    assert len(names(everything)) == (20 + 20 + 5 + 5) * len(METHODS) + 2 * 5 * 3
    assert names(planned("table 2").values()) == names(everything)
    whole = {key[0]: it for key, it in planned("figure 2").items()}
    for dataset in OURS:
        assert names([whole[f"{dataset}, F²GNN"]]) <= names(everything)
        assert not names([whole[f"{dataset}, without server part"]]) & names(everything)
    chosen = f2gnn.CHOICES[PENALTY, "Bail"]["alpha"]
    penalties = [it for key, it in planned("figure 3").items() if key[0] == f"Bail, {PENALTY}, {chosen:g}"]
    assert penalties
    assert names(penalties) <= names(everything)


def test_methods_differ_only_in_their_algorithm_and_ablations_in_one_switch() -> None:
    resolved = {method: config.resolve(experiment("Bail", method)).plain() for method in METHODS}
    for other in resolved.values():
        assert {key.split(".")[0] for key in config.differences(resolved["F²GNN"], other)} <= {"algorithm"}
    for label, switch in (("without client part", "client"), ("without server part", "server")):
        document = experiment("Bail", "F²GNN", **f2gnn.ABLATIONS[label])
        assert config.differences(resolved["F²GNN"], config.resolve(document).plain()) == [f"algorithm.{switch}"]
    [penalty] = resolved[PENALTY]["algorithm"]["parts"]
    assert (penalty["name"], penalty["alpha"]) == ("fair_penalty", f2gnn.CHOICES[PENALTY, "Bail"]["alpha"])


@pytest.mark.parametrize("dataset", OURS)
def test_shipped_experiments_are_the_tables_own_but_for_what_is_chosen(dataset: str) -> None:
    shipped, _ = config.read(EXPERIMENTS / f"f2gnn-{dataset.lower()}.toml")
    own = config.resolve(experiment(dataset, "F²GNN")).plain()
    chosen = {f"algorithm.{name}" for grid in f2gnn.GRIDS["F²GNN"] for name in grid}
    assert set(config.differences(shipped.plain(), own)) <= {"rounds", "eval_every", *chosen}


def test_a_choice_of_its_own_is_used_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(f2gnn.CHOICES, ("F²GNN", "Bail"), {"alpha": 0.25})
    assert experiment("Bail", "F²GNN")["algorithm"]["alpha"] == 0.25
    assert experiment("Credit", "F²GNN")["algorithm"]["alpha"] == f2gnn.CHOICES[("F²GNN",)]["alpha"]
    assert experiment("Bail", "F²GNN", alpha=5.0)["algorithm"]["alpha"] == 5.0
    check_facts(f2gnn._pareto().notes[0], "F²GNN Bail alpha 0.25")


def groups(run: PlannedRun, **metrics: float) -> None:
    """A finished run whose summary has `metrics` ("_" for "/", "__" for "_"), and clients' scores of two rounds."""
    named = {name.replace("__", "?").replace("_", "/").replace("?", "_"): value for name, value in metrics.items()}
    finish(run, **{name: value for name, value in named.items() if "_" not in name})
    path = run.directory / "summary.json"
    found = json.loads(path.read_text())
    path.write_text(json.dumps(found | {"metrics": named}))
    rows = [
        {"round": number, "client": client, "split": split, "metric": "auc", "value": value + number}
        for number in (10, run.config.general.rounds)
        for client, value in (("global", 0.9), ("a", 0.1), ("b", 0.2), ("c", 0.6))
        for split in ("test", "val")
    ]
    pq.write_table(pa.Table.from_pylist(rows, METRICS_SCHEMA), run.directory / "metrics.parquet")


def test_quantities_of_both_rounds_by_hand(tmp_path: Path) -> None:
    [plan] = grid.plan(table(cell("a"), seeds=1), tmp_path, grid.Stock())
    groups(
        plan.runs[0], global_accuracy=0.8, groups_global_sp=0.03, groups_global_eo=0.01, groups_median_sp=0.2,
        best__fair_round=10, best__fair_global_accuracy=0.7, best__fair_groups_global_sp=0.01,
        best__fair_groups_global_eo=0.01, best__fair_groups_global_sp__floor=0.005,
        global_classes__predicted=2.0, best__fair_global_classes__predicted=1.0,
    )  # fmt: skip
    run = plan.runs[0].directory
    assert percent("global/accuracy", "last").read(run) == 80
    assert percent("global/accuracy", "fairest").read(run) == 70
    assert percent("groups/global/sp", "last").read(run) == 3
    assert percent("groups/global/sp_floor", "fairest").read(run) == 0.5
    assert (one_class("last").read(run), one_class("fairest").read(run)) == (0, 100)
    assert percent("groups/median/sp", "last").read(run) == 20
    assert percent("groups/median/sp", "fairest").read(run) is None
    assert median_score("auc", "fairest").read(run) == pytest.approx(100 * 10.2)
    assert median_score("auc", "last").read(run) == pytest.approx(100 * 20.2)
    assert median_score("accuracy", "last").read(run) is None
    ratio = tradeoff("accuracy", "fairest")
    assert ratio.per is not None
    assert (ratio.read(run), ratio.per(run)) == (70, 2)


def test_a_trade_off_is_the_ratio_of_means_with_the_deviation_of_the_jackknife() -> None:
    rng = np.random.default_rng(0)
    above, below = rng.uniform(60, 80, 9), rng.uniform(0, 5, 9)
    ours, spread = mean_and_spread(list(zip(above, below, strict=True)))
    assert ours == pytest.approx(above.mean() / below.mean())
    left_out = np.array([np.delete(above, at).mean() / np.delete(below, at).mean() for at in range(9)])
    error = np.sqrt(8 / 9 * ((left_out - left_out.mean()) ** 2).sum())  # Efron and Stein 1981
    assert spread == pytest.approx(3 * error)
    assert mean_and_spread([(value, 1.0) for value in above]) == (
        pytest.approx(above.mean()), pytest.approx(above.std(ddof=1))
    )  # fmt: skip
    assert mean_and_spread([(70.0, 0.0), (60.0, 0.0)]) == (None, None)
    assert mean_and_spread([(70.0, 0.0), (60.0, 2.0)]) == (65.0, None)
    assert mean_and_spread([]) == (None, None)


def test_a_division_by_nothing_is_no_number_and_no_failure(tmp_path: Path) -> None:
    constant = replace(cell("a"), quantity=Quantity("", lambda run: 70.0, per=lambda run: 0.0))
    plan = grid.plan(table(constant), tmp_path, grid.Stock())
    [row] = assemble(plan, {})
    assert (row.ours, row.spread, row.seeds, row.status) == (None, None, 2, "undefined: its divisor is 0 in all runs")


def test_cells_may_have_seeds_of_their_own(tmp_path: Path) -> None:
    both = grid.plan(table(replace(cell("a"), seeds=3), cell("b", model={"hidden": 5})), tmp_path, grid.Stock())
    assert [len(it.runs) for it in both] == [3, 2]
    assert {it.seeds for it in grid.quick(table(replace(cell("a"), seeds=3)), grid.Stock()).cells} == {0}


def measured(name: str, column: str, ours: float | None, spread: float | None = None) -> TableRow:
    return TableRow(
        name, column, "global", "%", None, None, ours, spread, None, None, None, 1, None, "measured", 2, (ours,)
    )


def test_pictures_have_a_panel_per_data_set_and_a_line_per_method(tmp_path: Path) -> None:
    numbers = {"Bail, F²GNN, 0.1": (4.0, 90.0), "Bail, F²GNN, 5": (1.0, 80.0), "Bail, FedAvg": (6.0, 91.0)}
    rows = [measured(name, column, value, 0.5) for name, both in numbers.items()
            for column, value in zip(("gap", "score"), both, strict=True)]  # fmt: skip
    rows += [measured("NBA, FedAvg", "gap", 1.0), measured("NBA, FedAvg", "score", None)]
    found = pictures.markers_by_data_set(("gap", "score"), rows)
    assert {
        panel: {line: [it.label for it in spots] for line, spots in lines.items()} for panel, lines in found.items()
    } == {"Bail": {"F²GNN": ["0.1", "5"], "FedAvg": [""]}}
    assert pictures.draw_planes(tmp_path / "figure", "Title & more", ("gap", "score"), rows) == [
        str(tmp_path / "figure-bail.svg")
    ]
    picture = ElementTree.parse(tmp_path / "figure-bail.svg").getroot()
    space = {"s": "http://www.w3.org/2000/svg"}
    texts = [it.text for it in picture.findall(".//s:text", space)]
    assert texts[0] == "Title & more: Bail"
    assert {"gap, %", "score, %", "F²GNN", "FedAvg", "0.1", "5"} <= set(texts)
    dots = [it.get("d") or "" for it in picture.findall(".//s:g/s:path", space)]
    places = [tuple(map(float, dot[1:].partition("m")[0].split())) for dot in dots]
    (x1, y1), (x2, y2) = places[:2]
    assert x1 - x2 == pytest.approx((places[-1][0] - x2) * 3 / 5, abs=0.2)
    assert y1 < y2  # the better score is higher up


def small(document: config.Document) -> config.Document:
    """The experiment on 120 nodes, a narrow model, and the engine that records no steps."""
    data = {"name": "synthetic", "nodes": 120, "classes": 2, "features": 8, "degree": 4.0, "sensitive": True}
    partition, model = document["partition"] | {"clients": 10}, document["model"] | {"hidden": 4}
    short = {"rounds": 2, "eval_every": 1, "data": data, "partition": partition, "model": model}
    return document | short | {"engine": {"mode": "loop"}}


def test_the_tables_kinds_of_runs_on_a_tiny_graph(tmp_path: Path) -> None:
    cells = [it for n in (1, 2) for it in F2GNN.tables[n].cells if it.row.startswith("NBA")]
    cells += [it for it in F2GNN.figures[2].cells if it.row.startswith("NBA")]
    short = [replace(it, document=small(it.document), seeds=1) for it in cells]
    plan = grid.plan(PaperTable("tiny", tuple(short), 1), tmp_path, grid.Stock())
    assert grid.count(plan) == len(METHODS) + 2
    for run in grid.unfinished(plan):
        runs.run(run.config, run.directory, Silent())
    for row in assemble(plan, {}):
        assert row.status in ("measured", "undefined: its divisor is 0 in all runs") or row.status.startswith("N/A")
        assert row.ours is None or row.ours >= 0
        assert row.unit != "%" or row.ours is None or row.ours <= 100
        assert row.column not in ("Accuracy", "AUC") or row.ours is not None
    for run in grid.unfinished(plan):
        pytest.fail(f"{run.name} is not finished")
    found = fair_grid.validation_scores(plan[0].runs[0].directory)
    assert {"accuracy", "constant", "round"} <= set(found)


def test_candidates_are_ranked_by_validated_trade_offs_above_the_constant_prediction() -> None:
    constant = {"accuracy": 0.7, "constant": 0.7, "gaps": 0.0}
    fair = {"accuracy": 0.72, "constant": 0.7, "gaps": 0.01}
    unfair = {"accuracy": 0.9, "constant": 0.7, "gaps": 0.2}
    unknown = {"accuracy": 0.9, "constant": 0.7}
    assert max(constant, fair, unfair, unknown, key=fair_grid.rank) == fair
    assert max(constant, unfair, key=fair_grid.rank) == unfair
    assert max(constant, unknown, key=fair_grid.rank) == unknown
    nearly = {"accuracy": 0.71, "constant": 0.7, "gaps": 0.0001, "alike": 1.0}
    assert max(nearly, unfair, key=fair_grid.rank) == unfair

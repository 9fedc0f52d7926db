"""FairGraphFL's tables: numbers as printed, experiments that resolve, and what is read of tiny real runs."""

import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedweave.accounts.contributions import measure_contributions
from fedweave.datasets import DATASETS
from fedweave.experiment import config
from fedweave.experiment.runs import run as runs
from fedweave.experiment.runs.reading import read_run
from fedweave.metrics.measured import METRICS_SCHEMA
from fedweave.papers import grid
from fedweave.papers.fairgraphfl import ABLATIONS, FAIRGRAPHFL, METHOD, METHODS, experiment
from fedweave.papers.paper import PaperCell, PaperTable
from fedweave.papers.reward_quantities import GAINS_FILE, contribution, fairness
from fedweave.papers.table import assemble
from fedweave.python.training import Silent
from tests.refusals import refusal
from tests.report.test_accounts import write_graphs

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
SECTIONS = ("data", "partition", "model", "algorithm")
ALL = {f"table {n}": it for n, it in FAIRGRAPHFL.tables.items()} | {
    f"figure {n}": it for n, it in FAIRGRAPHFL.figures.items()
}
SPLIT_BY_SEED = ", split by seed"


def found(name: str) -> dict[tuple[str, str, str, str], PaperCell]:
    cells = {(it.row, it.column, it.split, it.quantity.unit): it for it in ALL[name].cells}
    assert len(cells) == len(ALL[name].cells)  # no two cells have one place
    return cells


def test_every_experiment_resolves_and_all_methods_train_alike() -> None:
    documents = [
        it
        for name, own in ALL.items()
        if name != "table 5"
        for cell in own.cells
        for it in (cell.document, cell.baseline)
    ]
    for document in {str(it): it for it in documents if it is not None}.values():
        assert [grid.unknown(section, document[section]) for section in SECTIONS] == [""] * 4
        resolved = config.resolve(document | {"seed": 0})
        facts = DATASETS[resolved.data.name].facts
        algorithm: Any = resolved.algorithm.make(resolved.model.make().build(facts.features, facts.classes))
        trained = algorithm.local_steps, algorithm.optimizer, algorithm.lr, algorithm.weight_decay
        assert trained == (1, "adam", 1e-3, 5e-4)
        assert resolved.general.rounds == 200
        assert algorithm.optimizer_state == "kept"


@pytest.mark.parametrize("dataset", ["PROTEINS", "DD", "IMDB-BINARY"])
def test_shipped_experiments_are_the_tables_own(dataset: str) -> None:
    shipped, _ = config.read(EXPERIMENTS / f"fairgraphfl-{dataset.lower()}.toml")
    assert config.differences(shipped.plain(), config.resolve(experiment(dataset)).plain()) == []


def test_baselines_are_local_training_on_the_split_of_the_run() -> None:
    for it in [*ALL["table 2"].cells, *ALL["table 4"].cells]:
        if it.quantity.unit == "correlation":
            assert it.baseline["partition"] == it.document["partition"]
            assert (it.baseline["algorithm"]["name"], it.baseline["model"]["name"]) == ("local", "gin")
    cells = found("table 2")
    fixed = cells["FedAvg", "DD", "local", "correlation"].baseline
    assert fixed == cells["Self-train", "DD", "local", "accuracy"].document
    assert fixed["partition"]["split_seed"] == 0
    assert "split_seed" not in cells["FedAvg", f"DD{SPLIT_BY_SEED}", "local", "accuracy"].document["partition"]


def test_ablations_change_what_their_names_say() -> None:
    whole = config.resolve(experiment("PROTEINS")).plain()
    changed = {
        name: config.differences(whole, config.resolve(experiment("PROTEINS", **it)).plain())
        for name, it in ABLATIONS.items()
    }
    assert [*changed.values()] == [
        [], ["algorithm.alignment"], ["algorithm.alpha2"], ["algorithm.rewards"], ["algorithm.weights"],
        ["algorithm.prototypes"],
    ]  # fmt: skip


def test_graphs_that_are_not_to_be_had_are_said(tmp_path: Path) -> None:
    status = {it.status for it in grid.plan(ALL["table 5"], tmp_path, grid.Stock())}
    assert status == {"not available: there is no data set 'twitter-real-graph-partial' yet"}


ROUNDS = 5


def small(document: config.Document | None, folder: Path, rounds: int) -> config.Document | None:
    """The experiment on a folder of little graphs with a narrow model, for some rounds."""
    if document is None:
        return None
    data = {"name": "tu", "path": str(folder)}
    model = document["model"] | {"hidden": 4, "layers": 1}
    short = {"rounds": rounds, "eval_every": 0, "data": data, "model": model, "engine": {"mode": "loop", "threads": 1}}
    return document | short


def made(tmp_path: Path, cells: list[PaperCell], rounds: int = ROUNDS) -> dict[tuple[str, str, str, str], Any]:
    """The rows of `cells`' tiny runs."""
    folder = tmp_path / "graphs"
    if not folder.exists():
        write_graphs(folder, 240)
    short = [
        replace(it, document=small(it.document, folder, rounds) or {}, baseline=small(it.baseline, folder, rounds))
        for it in cells
    ]
    plan = grid.plan(PaperTable("tiny", tuple(short), 1), tmp_path, grid.Stock())
    for run in grid.unfinished(plan):
        runs.run(run.config, run.directory, Silent())
    return {(row.row, row.column, row.split, row.unit): row for row in assemble(plan, {})}


@pytest.mark.slow
def test_every_method_is_judged(tmp_path: Path) -> None:
    rows = made(tmp_path, [it for it in ALL["table 2"].cells if it.column == "PROTEINS"], rounds=1)
    assert {row for row, *_ in rows} == {*METHODS}
    for (_, _, _, unit), row in rows.items():
        if row.ours is None:
            assert (unit, row.status) == ("correlation", "N/A in 1 of 1 runs: all clients are equally accurate")
        else:
            assert (-1 if unit == "correlation" else 0) <= row.ours <= 1


def run_of(tmp_path: Path, algorithm: str, server_val: float = 0.0) -> Path:
    """The directory of the one run of that algorithm where the server validates on such a share."""
    runs = [it for it in (tmp_path / "runs").glob(f"{algorithm}-*") if it.is_dir()]
    [run] = [it for it in runs if read_run(it).section("partition")["server_val"] == server_val]
    return run


def with_accuracies(run: Path, values: list[float]) -> None:
    rows = [(1, f"client-{i}", "test", "accuracy", value) for i, value in enumerate(values)]
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    pq.write_table(pa.table(columns, METRICS_SCHEMA), run / "metrics.parquet")


@pytest.mark.slow
def test_fairness_is_the_correlation_with_the_same_agents_alone(tmp_path: Path) -> None:
    places = [(method, "PROTEINS", "local", "correlation") for method in ("FedAvg", "CFFL")]
    made(tmp_path, [found("table 2")[place] for place in places], rounds=1)
    run, alone, other = (run_of(tmp_path, *it) for it in (("fedavg", 0.0), ("local", 0.0), ("local", 0.1)))
    own, together = [0.1 * i for i in range(10)], [0.5, 0.6, 0.4, 0.7, 0.7, 0.5, 0.9, 0.8, 0.9, 1.0]
    with_accuracies(alone, own)
    with_accuracies(run, together)
    assert fairness().read(run, alone) == pytest.approx(np.corrcoef(own, together)[0, 1])
    with refusal("paper.other-data", "hold other data"):
        fairness().read(run, other)
    with_accuracies(run, [0.5] * 10)
    assert fairness().read(run, alone) is None


def test_contributions_are_those_of_the_run_told_again(tmp_path: Path) -> None:
    rows = made(tmp_path, [it for it in ALL["figure 1"].cells if it.column.startswith("FedAvg")])
    run = run_of(tmp_path, "fedavg")
    table = measure_contributions(run, "all").to_pylist()
    for agent in range(5):
        own = {it["round"]: it["leave_one_out"] for it in table if it["client"] == f"client-{agent}"}
        for part in range(5):  # of five rounds
            row = rows[f"agent {agent + 1}", f"FedAvg, part {part + 1}", "global", "accuracy"]
            assert (row.ours, row.status) == (pytest.approx(own[part + 1]), "measured")
    whole = fmean(it["leave_one_out"] for it in table[::5])
    assert contribution(0, 0, 1).read(run) == pytest.approx(whole)
    kept = pq.read_table(run / GAINS_FILE)
    assert kept.num_rows == 5 * ROUNDS
    pq.write_table(kept.slice(0, 5), run / GAINS_FILE)  # not of all rounds: measured again
    assert contribution(0, 0, 1).read(run) == pytest.approx(whole)
    assert pq.read_table(run / GAINS_FILE).equals(kept)


@pytest.mark.slow
def test_payoffs_by_quality(tmp_path: Path) -> None:
    rows = made(tmp_path, [it for it in ALL["figure 3"].cells if it.column.startswith("PROTEINS")], rounds=2)
    assert {row.status for row in rows.values()} == {"measured"}
    counts = {"low": 3, "medium": 3, "high": 4}
    for name in (METHOD, "equal", "union", "individual", "shapley", "without graph diversity"):
        paid = {of: rows[name, f"PROTEINS, {of}", "", "share"].ours for of in counts}
        assert sum(paid[of] * count for of, count in counts.items()) == pytest.approx(1)
        kept = rows[name, "PROTEINS, low < medium < high", "", "share of runs"].ours
        assert kept == float(paid["low"] < paid["medium"] < paid["high"])
    assert rows["equal", "PROTEINS, low", "", "share"].ours == pytest.approx(0.1)
    sizes = {
        it["client"]: it["train"]
        for it in read_run(next(iter((tmp_path / "runs").glob("fair*")))).partition.to_pylist()
    }
    volume = {client: math.log1p(size) for client, size in sizes.items()}
    low = fmean(value for client, value in volume.items() if client.startswith("low")) / sum(volume.values())
    assert rows["individual", "PROTEINS, low", "", "share"].ours == pytest.approx(low)

"""FairGFL's tables: numbers as printed, the paper's bytes from shapes, overlaps by hand, and tiny real runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedweave.datasets import DATASETS, load
from fedweave.experiment import config
from fedweave.experiment.runs import run as runs
from fedweave.papers import fairgfl, grid, overlap_quantities, pictures
from fedweave.papers.differences import differences
from fedweave.papers.fairgfl import FAIRGFL, NORMALIZED, OURS, PLAIN, SCALED, STEP, experiment
from fedweave.papers.paper import PaperTable
from fedweave.papers.table import assemble
from fedweave.partition.overlap import HIGH, LOW, NONE, Overlap
from fedweave.python.training import Silent
from tests.refusals import check_facts

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
SECTIONS = ("data", "partition", "model", "algorithm")
ALL = {f"table {n}": it for n, it in FAIRGFL.tables.items()} | {f"figure {n}": it for n, it in FAIRGFL.figures.items()}
NOT_HERE = "Ogbn-arxiv"  # of which Table IV has bytes alone


def test_the_papers_bytes_follow_from_shapes() -> None:
    for it in FAIRGFL.tables[4].cells:
        assert it.quantity.expected is not None
        assert round(it.quantity.expected(it.document), 2) == it.paper.value


def test_every_experiment_resolves_and_its_algorithm_accepts_its_model() -> None:
    documents = {str(it.document): it.document for own in ALL.values() for it in own.cells if it.row != NOT_HERE}
    for document in documents.values():
        assert [grid.unknown(section, document[section]) for section in SECTIONS] == [""] * 4
        resolved = config.resolve(document | {"seed": 0})
        facts = DATASETS[resolved.data.name].facts
        resolved.algorithm.make(resolved.model.make().build(facts.features, facts.classes))


@pytest.mark.parametrize("dataset", fairgfl.DATASETS)
def test_shipped_experiments_are_the_tables_own_for_longer(dataset: str) -> None:
    shipped, _ = config.read(EXPERIMENTS / f"fairgfl-{dataset.lower()}.toml")
    own = config.resolve(experiment(dataset)).plain()
    assert set(config.differences(shipped.plain(), own)) <= {"rounds", "eval_every"}


def test_rows_differ_in_what_their_names_say() -> None:
    ours, other, plain, scaled = (
        config.resolve(experiment("Cora", method)).plain() for method in (OURS, NORMALIZED, PLAIN, SCALED)
    )
    assert config.differences(ours, other) == ["algorithm.normalize"]
    assert set(config.differences(plain, scaled)) == {
        "algorithm.name", "algorithm.momentum", "algorithm.server_lr",
    }  # fmt: skip
    assert (scaled["algorithm"]["momentum"], scaled["algorithm"]["server_lr"]) == (0.0, STEP["Cora"][0.1])
    for key in ("local_steps", "optimizer", "lr", "weight_decay", "optimizer_state"):
        assert ours["algorithm"][key] == plain["algorithm"][key]
    assert experiment("Cora", SCALED, 0.0) == experiment("Cora", PLAIN, 0.0)


@pytest.mark.parametrize("dataset", fairgfl.DATASETS)
def test_scaled_steps_are_the_mean_weights_of_the_true_overlaps(dataset: str, data_root: Path) -> None:
    data = load(dataset.lower(), path=str(data_root))
    for n in (0.05, 0.2):
        pairs = [Overlap(overlap=n).cut(data, seed).pairs for seed in range(fairgfl.SEEDS)]
        means = [(1 / (1 + (0.8 * it["nodes"] + 0.2 * it["links"]).sum(1))).mean() for it in pairs]
        assert STEP[dataset][n] == pytest.approx(np.mean(means), abs=6e-4)


def small(document: config.Document) -> config.Document:
    """The experiment on 120 nodes with ten features, six clients and a narrow model, for two rounds."""
    data = {"name": "synthetic", "nodes": 120, "classes": 2, "features": 10, "degree": 4.0}
    algorithm = dict(document["algorithm"])
    if algorithm["name"] == "fairgfl":
        algorithm |= {"code_size": 16, "encoder_rounds": 5}
    split, model = document["partition"] | {"clients": 6}, document["model"] | {"hidden": 4}
    changes = {"data": data, "partition": split, "model": model, "algorithm": algorithm, "engine": {"mode": "loop"}}
    return document | changes | {"rounds": 2, "eval_every": 1}


def planned(tmp_path: Path, found: PaperTable) -> list[grid.PlannedCell]:
    cells = [it for it in found.cells if it.document["data"]["name"] == "cora"]
    short = replace(found, cells=tuple(replace(it, document=small(it.document)) for it in cells), seeds=1)
    return grid.plan(short, tmp_path, grid.Stock())


def rows_of(tmp_path: Path, found: PaperTable) -> list[Any]:
    plan = planned(tmp_path, found)
    for run in grid.unfinished(plan):
        runs.run(run.config, run.directory, Silent())
    return assemble(plan, {})


@pytest.mark.slow
def test_tables_and_figures_on_a_tiny_graph(tmp_path: Path) -> None:
    overlaps = (", overlap 0", ", overlap 0.1")
    some = replace(
        FAIRGFL.figures[8], cells=tuple(it for it in FAIRGFL.figures[8].cells if it.column.endswith(overlaps))
    )
    made = {name: rows_of(tmp_path, some if name == "figure 8" else found) for name, found in ALL.items()}
    assert {row.status for rows in made.values() for row in rows} == {"measured"}
    found = {(name, row.row, row.column, row.unit): row for name, rows in made.items() for row in rows}

    codes, links = found["table 4", "Cora", "Features", "bytes"], found["table 4", "Cora", "Links", "bytes"]
    assert (codes.ours, links.ours) == (64 * 16 / 8, 64 * 64 / 8)  # bits
    model = found["table 4", "Cora", "Model", "bytes"]
    assert model.ours == 4 * (11 * 4 + 5 * 2)
    assert found["table 4", "Cora", "Ratio", "%"].ours == pytest.approx(100 * (128 + 512) / model.ours)

    true = [found["table 3", f"{name} overlap", "Cora, true", "share"].ours for name in ("no", "low", "high")]
    assert true[0] == 0 < true[1] < true[2]
    assert 2 * sum(true) == pytest.approx(1)  # two clients in each group
    whole = found["table 3", "overlapping", "Cora, true", "share"].ours
    assert whole == pytest.approx((true[1] + true[2]) / 2)

    fresh, once = (
        [found["table 5", name, f"{n} answer{'s' * (n > 1)}", "%"] for n in (1, 5, 10, 20, 30)]
        for name in ("fresh noise each time", "noise drawn once")
    )
    assert all(row.ours == pytest.approx(row.expected, abs=1.0) for row in fresh + once)
    assert len({row.ours for row in once}) == 1
    assert [row.ours for row in fresh] == sorted(row.ours for row in fresh)

    compared = differences(made["figure 8"], FAIRGFL.figures[8].against)
    assert {(it.row, it.against) for it in compared} == {
        (OURS, PLAIN), (OURS, SCALED), (NORMALIZED, PLAIN), (NORMALIZED, SCALED), (SCALED, PLAIN),
    }  # fmt: skip
    assert all(it.seeds == 1 for it in compared)
    assert {it.difference for it in compared if it.row == SCALED and it.column.endswith("overlap 0")} == {0.0}
    _drawn(tmp_path, made["figure 8"])


def _drawn(out: Path, by_overlap: list[Any]) -> None:
    """A picture for each data set and quantity, over rounds or overlaps; a curve ends at the table's number."""
    plan = planned(out, FAIRGFL.figures[7])
    over_rounds = pictures.draw_curves(out / "7", "Privacy", "round", plan, [])
    units = ("accuracy", "loss", "variance", "entropy")
    assert [Path(file).name for file in over_rounds] == [f"7-cora-{unit}.svg" for unit in units]
    for it in plan:
        [run] = it.runs
        found = it.cell.quantity.curve(run.directory)
        assert found[max(found)] == it.cell.quantity.read(run.directory)
    over_overlaps = pictures.draw_curves(out / "8", "Overlap", "overlap", [], by_overlap)
    assert [Path(file).name for file in over_overlaps][:2] == ["8-cora-accuracy.svg", "8-cora-variance.svg"]
    picture = Path(over_overlaps[0]).read_text()
    check_facts(picture, ">overlap<")
    check_facts(picture, ">Overlap: Cora<")
    assert all(picture.count(f">{row}<") == 1 for row in ("FairGFL", "FairGFL, normalized", "FedAvg"))


def test_overlaps_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three clients, of which the last two share: 1 with 2 half of its nodes, 2 with 1 all."""
    true = np.array([[0, 0, 0], [0, 0, 0.5], [0, 1.0, 0]])
    estimated = np.array([[0, 0.1, 0], [0.1, 0, 0.7], [0, 1.0, 0]])

    pairs = {"nodes": true, "nodes_estimated": estimated}

    class Read:
        def __init__(self) -> None:
            self.pairs = pairs

        def section(self, name: str) -> config.Document:
            return {"name": "overlap", "clients": 3}

    monkeypatch.setattr(overlap_quantities, "read_run", lambda run: Read())
    share = {
        (matrix, group): overlap_quantities.sharing(matrix, (group,)).read(tmp_path)
        for matrix in ("nodes", "nodes_estimated")
        for group in (NONE, LOW, HIGH)
    }
    wanted = {"nodes": (0, 1 / 3, 2 / 3), "nodes_estimated": (0.1 / 1.9, 0.8 / 1.9, 1.0 / 1.9)}
    assert share == {
        (matrix, group): pytest.approx(value)
        for matrix, of in wanted.items()
        for group, value in zip((NONE, LOW, HIGH), of, strict=True)
    }
    assert overlap_quantities.sharing("nodes", (LOW, HIGH)).read(tmp_path) == pytest.approx(0.5)
    assert overlap_quantities.pair_auc().read(tmp_path) == 1.0
    assert overlap_quantities.rank_correlation().read(tmp_path) == pytest.approx(1.0)
    pairs["nodes_estimated"] = np.array([[0, 0.6, 0], [0.1, 0, 0.5], [0, 1.0, 0]])
    assert overlap_quantities.pair_auc().read(tmp_path) == pytest.approx(7 / 8)  # .6 is above .5, of 2 · 4 pairs

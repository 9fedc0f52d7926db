"""`eval_every = "auto"`: the counted work by hand, and the same rounds however a run is carried out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import fedweave
from fedweave.algorithms import FedAvg
from fedweave.core.sizes import ROWS_PER_BATCH
from fedweave.experiment.build import Built, build
from fedweave.experiment.config import resolve
from fedweave.experiment.loading import facts_of_shards
from fedweave.experiment.rounds import is_evaluated
from fedweave.experiment.runs.files import CONFIG, METRICS
from fedweave.experiment.runs.run import run, running
from fedweave.experiment.sharding import write_shards
from fedweave.experiment.work import evaluation_interval, with_interval, work_of
from tests.contract.federations import federation, model
from tests.refusals import refusal
from tests.runs.test_runs import Quiet

NODES = 160
DATA = {"name": "synthetic", "nodes": NODES, "classes": 2, "features": 6}


def document(rounds: int = 40, steps: int = 1, eval_every: object = "auto", **changes: Any) -> dict[str, Any]:
    return {
        "seed": 1,
        "rounds": rounds,
        "eval_every": eval_every,
        "data": DATA,
        "partition": {"name": "random", "clients": 3},
        "model": {"name": "gcn", "hidden": 4},
        "algorithm": {"name": "fedavg", "local_steps": steps},
        "engine": {"name": "simulation"},
        "evaluation": {"alone": False, "shelf": False},
    } | changes


def built(**changes: Any) -> Built:
    return build(resolve(document(**changes)))


def evaluated_rounds(directory: Path) -> list[int]:
    table = pq.read_table(directory / METRICS)
    rounds: list[int] = pc.unique(table.filter(pc.field("metric") == "accuracy")["round"]).to_pylist()
    return sorted(rounds)


def test_work_of_whole_graphs_by_hand() -> None:
    """A step is two passes over all nodes, an evaluation three; each pass has the fixed cost of a call."""
    assert work_of(built(steps=4)) == (4 * 2 * (NODES + ROWS_PER_BATCH), 3 * (NODES + ROWS_PER_BATCH))


@pytest.mark.parametrize(
    ("steps", "rounds", "expected"),
    [
        (1, 100, 5),  # 3 · 3 / 2, rounded up
        (3, 100, 2),
        (5, 100, 1),
        (1, 30, 3),  # a tenth of the rounds
        (1, 19, 1),
    ],
)
def test_intervals_by_hand(steps: int, rounds: int, expected: int) -> None:
    assert evaluation_interval(built(steps=steps), rounds) == expected


def test_a_step_on_sampled_neighbors_is_a_part_of_a_pass() -> None:
    parts = [{"name": "sampled_cross_entropy", "batch": 1, "fan_out": 2}]
    made = built(algorithm={"name": "fedavg", "local_steps": 2, "parts": parts})
    rows = 3 * (1 + 2) ** 2  # of three clients, through two layers
    assert work_of(made)[0] == 2 * 2 * (rows + ROWS_PER_BATCH)


def test_heads_sample_no_neighbors() -> None:
    """The head of edges reads both ends of a transfer; the two layers of GINE sample messages of one way."""
    parts = [{"name": "sampled_cross_entropy", "batch": 1, "fan_out": 2}]
    made = built(
        data={"name": "transfers", "preset": "small", "task": "edges"},
        partition={"name": "edges", "by": "random", "clients": 3},
        model={"name": "gine", "hidden": 4, "layers": 2},
        algorithm={"name": "fedavg", "local_steps": 2, "parts": parts},
    )
    rows = 3 * 2 * (1 + 2) ** 2  # of three clients, around two ends
    assert work_of(made)[0] == 2 * 2 * (rows + ROWS_PER_BATCH)


def test_mini_batches_that_read_the_whole_graph_are_whole_passes() -> None:
    algorithm = {"name": "fedavg", "local_epochs": 2, "batch_size": 10, "optimizer_state": "fresh"}
    made = built(algorithm=algorithm)
    steps = [2 * -(-count // 10) for count in made.columns["train"]]
    rows = sum(count * nodes for count, nodes in zip(steps, made.columns["nodes"], strict=True))
    assert work_of(made)[0] == 2 * (rows + max(steps) * ROWS_PER_BATCH)


def test_work_of_links_by_hand() -> None:
    data = {**DATA, "task": "links", "rank_negatives": 7}
    algorithm = {"name": "fedavg", "local_steps": 2, "parts": [{"name": "link_prediction", "negatives": 3}]}
    made = built(data=data, algorithm=algorithm)
    links = {split: sum(made.columns[split]) for split in ("train", "val", "test")}
    one_pass = NODES * 6 / 32 + 2 * (NODES + 2 * sum(made.columns["edges_kept"]))
    of_step = 2 * links["train"] * (1 + 3)
    pairs = 2 * sum(links.values())  # each link, and one that is none
    ranked = 7 * (links["val"] + links["test"])
    assert work_of(made) == pytest.approx(
        (
            2 * 2 * (one_pass + of_step + ROWS_PER_BATCH),
            3 * (one_pass + ROWS_PER_BATCH) + 2 * 2 * pairs + 2 * ranked,
        )
    )


def test_more_work_in_a_round_never_makes_evaluations_rarer() -> None:
    intervals = [evaluation_interval(built(steps=steps), 1000) for steps in range(1, 8)]
    assert intervals == sorted(intervals, reverse=True)
    assert intervals[-1] == 1


def test_a_sample_of_clients_is_less_work() -> None:
    whole, sample = work_of(built())[1], work_of(built(evaluation={"clients": 1}))[1]
    assert sample - 3 * ROWS_PER_BATCH == pytest.approx((whole - 3 * ROWS_PER_BATCH) / 3)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    directory = tmp_path_factory.mktemp("whole")
    return directory, run(resolve(document()), directory, Quiet())


def test_a_run_is_that_of_the_number(whole: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    directory, summary = whole
    every = summary["eval_every"]
    assert every == 4
    assert evaluated_rounds(directory) == [number for number in range(1, 41) if is_evaluated(number, 40, every)]
    assert run(resolve(document(eval_every=every)), tmp_path, Quiet())["metrics"] == summary["metrics"]
    assert 'eval_every = "auto"' in (directory / CONFIG).read_text()  # runs of other seeds are of the same experiment


def test_a_resumed_run_evaluates_the_same_rounds(whole: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    directory, summary = whole
    going = running(resolve(document()), tmp_path, Quiet())
    for _ in range(7):
        next(going)
    going.close()
    assert run(resolve(document()), tmp_path, Quiet(), resume=True)["metrics"] == summary["metrics"]
    assert evaluated_rounds(tmp_path) == evaluated_rounds(directory)


@pytest.mark.parametrize("engine", [{"mode": "loop"}, {"chunk": 1}, {"record": "never"}])
def test_executors_have_the_same_number(engine: dict[str, Any]) -> None:
    assert work_of(built(engine={"name": "simulation", **engine})) == work_of(built())


def test_shards_have_the_same_number_opened_or_not(tmp_path: Path) -> None:
    write_shards(resolve(document()), tmp_path / "shards")
    of_shards = document(data={"name": "shards", "path": str(tmp_path / "shards")})
    del of_shards["partition"]
    opened = build(resolve(of_shards))
    facts = facts_of_shards(resolve(of_shards | {"engine": {"name": "ray"}}))
    assert facts is not None
    assert work_of(opened) == work_of(replace(opened, facts=facts)) == work_of(built())


def test_python_evaluates_the_same_rounds(whole: tuple[Path, dict[str, Any]]) -> None:
    directory, _ = whole
    made = built()
    algorithm = made.algorithm
    fed = fedweave.federation(made.data, made.partition, algorithm, seed=1)
    steps = fedweave.train(algorithm, fed, 40, eval_every="auto")
    assert [step.round for step in steps if step.evaluated] == evaluated_rounds(directory)


def test_without_its_data_a_federation_is_refused() -> None:
    with refusal("user.value", "eval_every"):
        fedweave.train(FedAvg(model()), federation(), 3, eval_every="auto")


@pytest.mark.parametrize("value", ["often", -1, 1.5])
def test_other_values_are_refused(value: object) -> None:
    with refusal("config.value", "eval_every"):
        resolve(document(eval_every=value))


def test_between_sites_each_round_is_evaluated() -> None:
    config = resolve(document(engine={"name": "flare"}))
    assert with_interval(config, object()).general.eval_every == 1
    assert np.all([is_evaluated(number, 40, "auto") for number in range(1, 41)])

"""Numbers of single clients, held against a small run's own tables."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fedweave import datasets
from fedweave.experiment.config import resolve
from fedweave.experiment.runs import run as runs
from fedweave.papers.fedego_figures import fact, label_share, of_client
from fedweave.python.training import Silent
from tests.reproduce.tiny import document

DATA = {"name": "synthetic", "nodes": 120, "classes": 3, "features": 6}
SKEW = {"name": "label_skew", "clients": 2, "majors": 2, "share": 0.5, "test_nodes": 10, "global_test": 0.25}


@pytest.fixture(scope="module", params=["local", "fedavg"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two clients with a global test."""
    whole: dict[str, Any] = document(rounds=3) | {"data": DATA, "partition": SKEW}
    whole["algorithm"] = {"name": request.param, "local_steps": 1}
    path = tmp_path_factory.mktemp(request.param) / "run"
    runs.run(resolve(whole), path, Silent())
    return path


def test_facts_are_of_the_data_and_of_the_partition(made: Path) -> None:
    data = datasets.load(**DATA)
    assert fact("nodes").read(made) == 120
    assert fact("edges").read(made) == len({frozenset(edge) for edge in data.edges.T.tolist()})
    assert fact("classes").read(made) == 3
    assert fact("clients").read(made) == 2
    assert fact("client share").read(made) == 0.5
    assert fact("global test share").read(made) == 0.25


def test_scores_of_one_client(made: Path) -> None:
    """A model of all has one score on the global test; own models have one each, whose mean is the run's."""
    rows = [row for row in pq.read_table(made / "metrics.parquet").to_pylist() if row["round"] == 3]
    last = {(row["client"], row["metric"]): row["value"] for row in rows if row["split"] == "test"}
    names = sorted({row["client"] for row in rows} - {"global", "server"})
    own = [of_client(at, "accuracy", "test", "F1").read(made) for at in (0, 1)]
    assert own == [last[name, "accuracy"] for name in names]
    outside = [of_client(at, "global_test/accuracy", "test", "F1").read(made) for at in (0, 1)]
    assert None not in outside
    assert sum(value or 0 for value in outside) / 2 == pytest.approx(last["global", "accuracy"])


def test_shares_of_labels(made: Path) -> None:
    held = pq.read_table(made / "partition.parquet").to_pylist()
    for at in (0, 1):
        labels = held[at]["labels"]
        assert [label_share(at, label).read(made) for label in range(3)] == [n / sum(labels) for n in labels]
    said = [of_client(0, f"global_test/predicted/{label}", "test", "share").read(made) for label in range(3)]
    true = [of_client(0, f"global_test/true/{label}", "test", "share").read(made) for label in range(3)]
    if "local" in str(made):
        assert sum(value or 0 for value in said) == pytest.approx(1)
        assert sum(value or 0 for value in true) == pytest.approx(1)
    else:
        assert said == true == [None] * 3  # clients of FedAvg have no models of their own there

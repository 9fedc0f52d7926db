"""The shelf with joint columns: what members reach that join and keep their tools."""

from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
import torch

import fedweave
from fedweave.core.graph import TRAIN, VAL
from fedweave.core.target import CLASS, LABELS, NUMBER
from fedweave.experiment.build import Built, build
from fedweave.experiment.config import resolve
from fedweave.experiment.runs.outputs import Predicted
from fedweave.experiment.shelf.columns import NEIGHBORS, OWN
from fedweave.experiment.shelf.joint import JOINT, joint_columns, joint_shelf, score_columns
from fedweave.experiment.shelf.runs import examples_of, shelf_of_run
from fedweave.metrics.selection import Judging
from fedweave.partition.client_data import shares
from fedweave.partition.folds import folds_of

DOCUMENT: dict[str, Any] = {
    "rounds": 3,
    "data": {"name": "synthetic", "nodes": 400, "classes": 2, "features": 4},
    "partition": {"name": "random", "clients": 2, "train": 0.4, "val": 0.3, "test": 0.3},
    "model": {"hidden": 4},
    "algorithm": {"name": "fedavg", "local_steps": 1},
    "engine": {"threads": 1},
}
AUC = {"judged/auc": -1.0}


@pytest.fixture(scope="module")
def built() -> Built:
    return build(resolve(DOCUMENT))


def says(built: Built, p: np.ndarray) -> list[Predicted]:
    """A joint model that gives the second class of each example of the data the probability p [e]."""
    both = torch.from_numpy(np.stack([1 - p, p], 1))
    return [
        Predicted(name, both[part.examples], part.examples, part.masks)
        for name, part in zip(built.fed.clients, built.partition.parts, strict=True)
    ]


def auc(built: Built, p: np.ndarray | None = None) -> float:
    """What members reach on average, on their shelf or with such joint columns."""
    judging = Judging("auc")
    if p is None:
        return shelf_of_run(built, judging, True, AUC, 0).metrics["shelf/local/auc"]
    return joint_shelf(built, says(built, p), judging, True, AUC, 0).metrics["shelf_joint/local/auc"]


def test_what_the_others_know_is_added(built: Built) -> None:
    """Scores that order nine of ten pairs of examples lift the shelf to at least that."""
    noise = np.random.default_rng(0).normal(0, 0.55, built.data.examples)
    p = 1 / (1 + np.exp(-2 * (built.data.y - 0.5 + noise)))
    assert auc(built) < 0.85
    assert auc(built, p) > 0.88


def test_columns_without_a_meaning_are_left_on_the_shelf(built: Built) -> None:
    """Validation examples choose, so that noise costs little."""
    p = np.random.default_rng(0).random(built.data.examples)
    assert auc(built, p) > auc(built) - 0.02


def test_leaked_columns_would_cost_more(built: Built) -> None:
    """A cheat: scores that know the labels of training examples only. Tools trust them, validation examples do not."""
    p = np.random.default_rng(0).random(built.data.examples)
    for part in built.partition.parts:
        trained = part.examples[part.masks[TRAIN]]
        p[trained] = np.where(built.data.y[trained] == 1, 0.99, 0.01)
    leaked = joint_shelf(built, says(built, p), Judging("auc"), True, AUC, 0)
    assert JOINT not in " ".join(leaked.tools["local"])  # none of the tools that read them is chosen
    assert leaked.metrics["shelf_joint/local/auc"] == pytest.approx(auc(built))


def test_sets_of_columns(built: Built) -> None:
    """The scores; these beside all that the member has; and the vectors beside these."""
    part = built.partition.parts[0]
    [share] = shares(built.data, [part])
    examples = examples_of(share)
    p = torch.full((len(part.examples), 2), 0.5, dtype=torch.float64)
    one = Predicted("client-0", p, part.examples, vectors=torch.ones(len(p), 3))
    sets = joint_columns(examples, one)
    width = examples.columns[NEIGHBORS].shape[1]
    assert [*examples.columns] == [OWN, NEIGHBORS]
    assert [columns.shape[1] for columns in sets.values()] == [1, width + 1, width + 4]
    assert [columns.shape[1] for columns in joint_columns(examples, says(built, np.full(400, 0.5))[0]).values()] == [
        1,
        width + 1,
    ]


def test_scores_as_columns() -> None:
    """By hand: the log-odds of two classes, the logarithms of three, the logits of labels, and numbers."""
    two = score_columns(np.array([[0.2, 0.8], [0.5, 0.5]]), CLASS)
    np.testing.assert_allclose(two, [[np.log(4)], [0]], atol=1e-6)
    three = score_columns(np.array([[0.2, 0.3, 0.5]]), CLASS)
    np.testing.assert_allclose(three, np.log([[0.2, 0.3, 0.5]]), atol=1e-6)
    labels = score_columns(np.array([[0.8, 0.5, 0.0]]), LABELS)
    np.testing.assert_allclose(labels, [[np.log(4), 0, np.log(1e-6)]], atol=1e-5)
    np.testing.assert_array_equal(score_columns(np.array([[7.5]]), NUMBER), [[7.5]])


def test_a_run_measures_it(tmp_path: Any) -> None:
    """Rows of members whose mean is in the summary; the same numbers twice; a finished run stays as it is."""
    document = DOCUMENT | {"evaluation": {"metric": "auc", "joint_columns": 2, "shelf": True}}
    run = fedweave.run(document, out=tmp_path / "run")
    name = "shelf_joint/local/auc"
    value = run.summary["metrics"][name]
    rows = run.metrics.filter(pc.equal(run.metrics["metric"], "shelf_joint/auc"))
    assert rows["client"].to_pylist() == ["client-0", "client-1"]
    assert value == pytest.approx(np.mean(rows["value"].to_pylist()))
    assert sum(run.summary["shelf_joint"]["local"].values()) == 2
    assert {path.name for path in (tmp_path / "run" / "folds").iterdir()} == {"1-of-2", "2-of-2"}
    again = fedweave.run(document, out=tmp_path / "again")
    assert again.summary["metrics"] == run.summary["metrics"]
    assert run.embeddings(folds=2).column_names[:4] == ["client", "node", "split", "fold"]


def test_a_run_that_was_killed_in_the_further_runs_goes_on(tmp_path: Any) -> None:
    document = DOCUMENT | {"evaluation": {"metric": "auc", "joint_columns": 2, "shelf": True}}
    run = fedweave.run(document, out=tmp_path / "run")
    for name in ("summary.json", "folds/2-of-2/summary.json"):
        (tmp_path / "run" / name).unlink()
    again = fedweave.run(document, out=tmp_path / "run", resume=True)
    assert again.summary["metrics"] == run.summary["metrics"]
    assert again.metrics.sort_by([("metric", "ascending"), ("client", "ascending")]).equals(
        run.metrics.sort_by([("metric", "ascending"), ("client", "ascending")])
    )


def test_validation_is_not_trained_on(built: Built) -> None:
    """The examples that choose are of no fold."""
    folds = folds_of(built.data, built.partition, 3, 0)
    for part in built.partition.parts:
        assert not folds[part.examples[part.masks[VAL]]].any()

"""The reference that knows no graph equals scikit-learn called directly, on real nodes and small graphs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, roc_auc_score
from sklearn.preprocessing import StandardScaler

from fedweave.datasets import load
from fedweave.datasets.base import Dataset
from fedweave.experiment.config import resolve
from fedweave.experiment.runs.run import run
from fedweave.experiment.runs.without_graph import Examples, features_of
from fedweave.experiment.runs.without_graph import scores as reference
from fedweave.metrics.selection import RAREST
from fedweave.partition import Random
from fedweave.partition.base import Partition
from fedweave.python.training import Silent
from fedweave.reports.notes import notes
from tests.refusals import check_facts
from tests.runs.test_predictions import made
from tests.runs.test_target_files import nodes_folder, of_numbers
from tests.targets import numbers, several_labels

CUT = {"name": "random", "clients": 3, "train": 0.5, "val": 0.1, "test": 0.4}
ASKED: dict[str, Any] = {"evaluation": {"features": True}}


def split(data: Dataset, clients: int = 3) -> Partition:
    """The cut of the run."""
    return Random(clients=clients, train=0.5, val=0.1, test=0.4).cut(data, 1)


def fitted(x: np.ndarray, y: np.ndarray, large: np.ndarray) -> Any:
    """A regression on features [n, d], of which the columns `large` are scaled."""
    scaler = StandardScaler().fit(x[:, large]) if len(large) else None

    def scaled(x: np.ndarray) -> np.ndarray:
        x = x.astype(np.float64)
        if scaler is not None:
            x[:, large] = scaler.transform(x[:, large])
        return x.astype(np.float32)

    model = LogisticRegression(max_iter=1000).fit(scaled(x), y)
    return lambda other: model.predict_proba(scaled(other))


def scores(y: np.ndarray, p: np.ndarray) -> dict[str, float]:
    found = {"accuracy": accuracy_score(y, p.argmax(1)), "macro_f1": f1_score(y, p.argmax(1), average="macro")}
    if p.shape[1] == 2:
        return found | {"auc": roc_auc_score(y, p[:, 1]), "average_precision": average_precision_score(y, p[:, 1])}
    return found | {"auc": roc_auc_score(y, p, multi_class="ovr")}


def check(found: dict[str, Any], x: np.ndarray, y: np.ndarray, parts: Partition, large: np.ndarray) -> None:
    """`found` of a summary is what scikit-learn gives, of each client and of all."""
    held = [(x[part.examples], y[part.examples], part.masks) for part in parts.parts]
    each = [scores(y[m[2]], fitted(x[m[0]], y[m[0]], large)(x[m[2]])) for x, y, m in held]
    for name in each[0]:
        expected = np.mean([own[name] for own in each])
        assert found[f"features/local/{name}"] == pytest.approx(expected, abs=1e-9), name
    train = [np.concatenate([own[at][own[2][0]] for own in held]) for at in range(2)]
    whole = fitted(train[0], train[1], large)
    p = [whole(x[m[2]]) for x, _, m in held]
    truth = [y[m[2]] for _, y, m in held]
    expected = np.mean(np.concatenate(p).argmax(1) == np.concatenate(truth))
    assert found["features/global/accuracy"] == pytest.approx(expected, abs=1e-9)
    if p[0].shape[1] == 2:  # within members, as "global/auc" is
        pairs = np.array([(one == 1).sum() * (one == 0).sum() for one in truth])
        area = np.array([roc_auc_score(one, own[:, 1]) for one, own in zip(truth, p, strict=True)])
        assert found["features/global/auc"] == pytest.approx((pairs * area).sum() / pairs.sum(), abs=1e-9)


def test_nodes_with_amounts(tmp_path: Path, data_root: Path) -> None:
    """German credit as published: its amounts and durations are scaled, by training examples alone."""
    path = str(data_root / "german/german.npz")
    given = {"name": "npz", "path": path, "sens_feature": True, "normalize": "none"}
    found = made(tmp_path / "run", {"name": "fedavg"}, given, 1, partition=CUT, **ASKED)
    with np.load(path) as held:
        x = sp.csr_matrix((held["x_data"], held["x_indices"], held["x_indptr"]), tuple(held["x_shape"])).toarray()
        y = held["y"]
    large = np.flatnonzero((x > 10).any(0) & ((x == 0).mean(0) < 0.05) | (x > 100).any(0))
    assert 0 < len(large) < x.shape[1]
    check(found, x, y, split(load(**given)), large)


def test_nodes_with_words(tmp_path: Path, data_root: Path) -> None:
    """Cora's words, seven classes, stay as they are."""
    given = {"name": "cora", "path": str(data_root)}
    found = made(tmp_path / "run", {"name": "fedavg"}, given, 1, partition=CUT, **ASKED)
    data = load(**given)
    check(found, np.asarray(data.x.toarray()), data.y, split(data), np.zeros(0, np.int64))


def test_small_graphs(tmp_path: Path, data_root: Path) -> None:
    """MUTAG: sums and means of its atoms' kinds; sums go beyond 10 and are scaled where they do at a client."""
    given = {"name": "mutag", "path": str(data_root)}
    model = {"name": "gin", "pool": "mean", "hidden": 8}
    found = made(tmp_path / "run", {"name": "fedavg"}, given, 1, model=model, partition=CUT | {"clients": 1}, **ASKED)
    data = load(**given)
    x, of = np.asarray(sp.csr_matrix(data.x).toarray(), np.float64), np.asarray(data.graph_of)
    sums = np.stack([x[of == graph].sum(0) for graph in range(data.examples)])
    means = np.stack([x[of == graph].mean(0) for graph in range(data.examples)])
    both = np.concatenate([sums, means], 1).astype(np.float32)
    [part] = split(data, 1).parts
    rows = both[part.examples][part.masks[0]]
    odd = ((rows > 10) | (rows % 1 != 0)).any(0)
    some = 20 * (rows == 0).sum(0) >= len(rows)  # atoms that some molecules lack
    large = np.flatnonzero(odd & (~some | (rows > 100).any(0)))
    check(found, both, data.y, Partition((part,)), large)


@pytest.mark.parametrize(("make", "learner"), [(numbers, Ridge()), (several_labels, LogisticRegression(max_iter=1000))])
def test_each_number_or_label_is_learned_of_the_examples_that_have_it(make: Any, learner: Any) -> None:
    data = make("node", targets=2)
    x, train = np.asarray(data.x), np.asarray(data.public)[0]
    found = reference(Examples(features_of(data), data.y, np.asarray(data.public)), features_of(data), 2)
    for at in range(2):
        known = train & ~(np.isnan(data.y[:, at]) | (data.y[:, at] == -1))
        assert known.sum() < train.sum()
        scaler = StandardScaler().fit(x[known])
        fitted_one = learner.fit(scaler.transform(x[known]), data.y[known, at])
        predicted = getattr(fitted_one, "decision_function", fitted_one.predict)(scaler.transform(x))
        np.testing.assert_allclose(found[:, at], predicted, atol=1e-4)


def test_numbers_of_a_run_are_in_the_datas_units(tmp_path: Path) -> None:
    """A price that is linear in a feature."""
    folder = nodes_folder(tmp_path / "data")
    found = made(tmp_path / "run", {"name": "fedavg"}, of_numbers(folder, "price"), 1, partition=CUT, **ASKED)
    for which in ("local", "global"):
        assert 0 < found[f"features/{which}/rmse"] < 0.2 * found[f"{which}/rmse_of_mean"]


def test_it_is_left_out_where_nobody_wants_it(tmp_path: Path) -> None:
    document = {
        "rounds": 1,
        "data": {"name": "digits"},
        "partition": CUT,
        "model": {"name": "gcn", "hidden": 8},
        "algorithm": {"name": "fedavg"},
        "evaluation": {"features": False},
    }
    found = run(resolve(document), tmp_path / "run", Silent())["metrics"]
    assert not any(name.startswith("features/") for name in found)


def test_a_model_below_it_is_noted() -> None:
    """By the metric that judges, and only then."""
    found = {
        "global/accuracy": 0.7,
        "features/global/accuracy": 0.8,
        "local/accuracy": 0.9,
        "features/local/accuracy": 0.8,
    }
    said = notes(found)["features"]
    assert all(value in said for value in ("0.700", "0.800"))
    assert "features" not in notes(found | {"global/accuracy": 0.8})
    area = {"global/accuracy": 0.9, "global/auc": 0.75}
    check_facts(notes(found | area | {"features/global/auc": 0.8})["features"], "0.800")
    assert "features" not in notes(found | area | {"features/global/auc": 0.76})
    rare = {"judged/average_precision": 1.0, RAREST: 0.03, "global/average_precision": 0.5}
    assert "features" not in notes(found | rare | {"features/global/average_precision": 0.4})
    assert "features" in notes(found | rare | {"features/global/average_precision": 0.6})

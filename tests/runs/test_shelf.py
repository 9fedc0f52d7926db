"""What members reach alone with the tools on their shelf: as scikit-learn gives it called directly, by hand on tiny
graphs, and in runs of each kind of examples."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from scipy.stats import ttest_1samp
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, roc_auc_score
from sklearn.preprocessing import StandardScaler

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.graph import SOURCE, TARGET, TEST, TRAIN, VAL
from fedweave.datasets import load
from fedweave.datasets.base import Dataset
from fedweave.experiment.build import build
from fedweave.experiment.config import resolve
from fedweave.experiment.runs.files import SHARED
from fedweave.experiment.runs.run import run
from fedweave.experiment.shelf import members
from fedweave.experiment.shelf import runs as shelf_runs
from fedweave.experiment.shelf.columns import ENDS, GRAPHS, NEIGHBORS, OWN, columns_of
from fedweave.experiment.shelf.learners import LabeledRows, Lesson, boosting, forest, regression
from fedweave.experiment.shelf.members import Effort, Examples, Judge, Tool, fit_shelf
from fedweave.experiment.shelf.pair_scores import REFERENCES
from fedweave.experiment.shelf.pairs import (
    Attachment,
    Frequency,
    PairExamples,
    draw_links,
    learning_seconds,
    pair_examples,
    scoring_seconds,
)
from fedweave.experiment.shelf.runs import examples_of
from fedweave.metrics.measured import METRICS_SCHEMA
from fedweave.metrics.selection import Judging
from fedweave.partition import Random
from fedweave.partition.client_data import shares
from fedweave.python.training import Silent
from fedweave.reports.notes import notes
from fedweave.reports.verdict import verdict_of, verdict_of_seeds
from tests.links.test_knowledge_graphs import document, triples
from tests.links.test_link_runs import tables
from tests.refusals import check_facts
from tests.runs.test_predictions import made
from tests.runs.test_target_files import nodes_folder, of_numbers
from tests.targets import numbers, several_labels

CUT = {"name": "random", "clients": 3, "train": 0.5, "val": 0.1, "test": 0.4}
ASKED: dict[str, Any] = {"evaluation": {"shelf": True}}
LINE = EdgeAttributes(
    np.array([[0, 1, 2], [1, 2, 0]]), True, None, np.array([[10.0], [20.0], [40.0]], np.float32), np.arange(3.0)
)


def triangle(**fields: Any) -> Dataset:
    """Three nodes with the columns 1, 2, 4 in a circle of directed edges with amounts."""
    x, y = np.array([[1.0], [2.0], [4.0]], np.float32), np.array([0, 1, 0])
    ends = np.array([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]])
    return Dataset("triangle", x, ends, y, 2, public=np.eye(3, dtype=bool), **fields)


def test_columns_of_neighbors() -> None:
    """Without a direction: the mean of the two others and log(1 + 2)."""
    columns = columns_of(triangle())
    np.testing.assert_array_equal(columns[OWN], [[1], [2], [4]])
    three = np.log(3)
    np.testing.assert_allclose(columns[NEIGHBORS], [[1, 3, three], [2, 2.5, three], [4, 1.5, three]], rtol=1e-6)


def test_columns_by_direction() -> None:
    """What leads to a node comes first, then what leads from it, each with the sums of amounts."""
    columns = columns_of(triangle(edge_attrs=LINE))[NEIGHBORS]
    two = np.log(2)
    expected = [[1, 4, two, 40, 2, two, 10], [2, 1, two, 10, 4, two, 20], [4, 2, two, 20, 1, two, 40]]
    np.testing.assert_allclose(columns, expected, rtol=1e-6)


def test_columns_see_no_later_edges() -> None:
    """The training node 0 knows only the first edge, the validation node 1 two, the test node 2 all."""
    columns = columns_of(triangle(edge_attrs=LINE._replace(split_times=(0.0, 1.0))))[NEIGHBORS]
    two = np.log(2)
    expected = [[1, 0, 0, 0, 2, two, 10], [2, 1, two, 10, 4, two, 20], [4, 2, two, 20, 1, two, 40]]
    np.testing.assert_allclose(columns, expected, rtol=1e-6)


def test_columns_of_edges_are_those_of_both_ends() -> None:
    attributes = LINE._replace(examples=True)
    columns = columns_of(triangle(edge_attrs=attributes))
    np.testing.assert_array_equal(columns[OWN], [[10, 1, 2], [20, 2, 4], [40, 4, 1]])
    assert columns[NEIGHBORS].shape == (3, 3 + 2 * 6)


def test_ratings_have_a_bias_for_each_end() -> None:
    """Two users and two films: mean + user + film by a ridge regression with penalty 10, as numpy solves it."""
    x = sp.csr_matrix(np.eye(4, dtype=np.float32))
    ends = np.array([[0, 0, 1], [2, 3, 2]])
    y = np.array([[5.0], [3.0], [1.0]])
    attributes = EdgeAttributes(ends, True, examples=True)
    data = Dataset("films", x, ends, y, 0, public=np.ones((3, 3), bool), edge_attrs=attributes)
    columns = columns_of(data)
    assert [*columns] == [ENDS]
    one = np.zeros((3, 8))
    one[np.arange(3), ends[0]] = one[np.arange(3), 4 + ends[1]] = 1
    np.testing.assert_array_equal(columns[ENDS].toarray(), one)
    centered, means = one - one.mean(0), y[:, 0] - y.mean()
    weights = np.linalg.solve(centered.T @ centered + 10 * np.eye(8), centered.T @ means)
    shelf = fit_shelf(examples_of(data), Judge("rmse", 1, 1), 1)
    assert shelf is not None
    np.testing.assert_allclose(shelf.predict(columns)[:, 0], centered @ weights + y.mean(), atol=1e-3)


def test_sparse_columns_are_the_same() -> None:
    dense, data = columns_of(triangle(edge_attrs=LINE)), triangle(edge_attrs=LINE)
    sparse = columns_of(Dataset("s", sp.csr_matrix(data.x), data.edges, data.y, 2, public=data.public, edge_attrs=LINE))
    for name, matrix in sparse.items():
        np.testing.assert_allclose(matrix.toarray(), dense[name], rtol=1e-6)


def test_columns_of_small_graphs() -> None:
    """Two graphs, of two joined nodes and of one: sums, means, and how many nodes and edge ends."""
    x = np.array([[1.0], [3.0], [5.0]], np.float32)
    ends, graph_of = np.array([[0, 1], [1, 0]]), np.array([0, 0, 1])
    data = Dataset("two", x, ends, np.array([0, 1]), 2, public=np.ones((3, 2), bool), graph_of=graph_of)
    columns = columns_of(data)[GRAPHS]
    columns = columns.toarray() if sp.issparse(columns) else columns
    np.testing.assert_array_equal(columns, [[4, 2, 2, 2], [5, 5, 1, 0]])


def lesson(trees: int = 200) -> tuple[Lesson, np.ndarray]:
    """300 rows of three classes, and rows to predict."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(500, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] * x[:, 2] > 0)
    return Lesson(LabeledRows(x[:300], y[:300]), LabeledRows(x[300:400], y[300:400]), 3, trees), x[400:]


def test_boosting_is_scikit_learns() -> None:
    asked, x = lesson()
    (x_train, y), (x_val, y_val) = asked.train, asked.val
    direct = HistGradientBoostingClassifier(max_iter=200, early_stopping=True, random_state=0)
    expected = direct.fit(x_train, y, X_val=x_val, y_val=y_val).predict_proba(x)
    assert 10 <= direct.n_iter_ < 200
    np.testing.assert_allclose(np.exp(boosting(asked)(x)), expected, atol=1e-9)


@pytest.mark.parametrize("learner", [regression, boosting, forest])
def test_classes_that_training_lacks_are_never_predicted(learner: Any) -> None:
    asked, x = lesson(trees=10)
    few = asked._replace(train=LabeledRows(asked.train.x, 2 * (asked.train.y > 0)))  # validation has class 1, too
    scores = learner(few)(x)
    assert scores.shape == (len(x), 3)
    assert set(scores.argmax(1)) == {0, 2}
    one = asked._replace(train=LabeledRows(asked.train.x, np.ones_like(asked.train.y)))
    assert set(learner(one)(x).argmax(1)) == {1}


@pytest.mark.parametrize(("make", "learner"), [(numbers, Ridge()), (several_labels, LogisticRegression(max_iter=1000))])
def test_each_number_or_label_is_learned_of_the_examples_that_have_it(make: Any, learner: Any) -> None:
    data = make("node", targets=2)
    x, train = np.asarray(data.x), np.asarray(data.public)[0]
    scores = regression(Lesson(LabeledRows(x[train], data.y[train]), LabeledRows(x[:0], data.y[:0]), 2))(x)
    for at in range(2):
        known = train & ~(np.isnan(data.y[:, at]) | (data.y[:, at] == -1))
        assert known.sum() < train.sum()
        scaler = StandardScaler().fit(x[known])
        fitted_one = learner.fit(scaler.transform(x[known]), data.y[known, at])
        predicted = getattr(fitted_one, "decision_function", fitted_one.predict)(scaler.transform(x))
        np.testing.assert_allclose(scores[:, at], predicted, atol=1e-4)


def product_examples(**fields: Any) -> Examples:
    """The class is the sign of a product of two columns, which no regression can learn."""
    x = np.random.default_rng(1).normal(size=(900, 2)).astype(np.float32)
    masks = np.zeros((3, 900), bool)
    masks[0, :500] = masks[1, 500:700] = masks[2, 700:] = True
    return Examples({OWN: x}, (x[:, 0] * x[:, 1] > 0).astype(np.int64), masks, **fields)


AUC = Judge("auc", 1, 2)


def test_validation_chooses_the_tool() -> None:
    examples = product_examples()
    shelf = fit_shelf(examples, AUC, 1)
    assert shelf is not None
    assert shelf.title == "boosting on own columns"
    assert shelf.value > 0.95
    assert fit_shelf(examples, AUC, 1, Effort(trees=0)).title == "logistic regression on own columns"  # type: ignore[union-attr]
    linear = examples._replace(y=(examples.columns[OWN][:, 0] > 0).astype(np.int64))
    assert fit_shelf(linear, AUC, 1).title == "logistic regression on own columns"  # type: ignore[union-attr]


def test_test_examples_choose_nothing() -> None:
    """With other labels of test examples every prediction is the same; with other ones of training it is not."""
    examples = product_examples()
    x, other = {OWN: examples.columns[OWN][700:]}, examples.y.copy()
    expected = fit_shelf(examples, AUC, 1).predict(x)  # type: ignore[union-attr]
    other[700:] = 1 - other[700:]
    np.testing.assert_array_equal(fit_shelf(examples._replace(y=other), AUC, 1).predict(x), expected)  # type: ignore[union-attr]
    other[:500] = 1 - other[:500]
    cheat = fit_shelf(examples._replace(y=other), AUC, 1).predict(x)  # type: ignore[union-attr]
    assert np.abs(cheat - expected).max() > 1


def test_more_columns_join_the_choice() -> None:
    """As the outputs of a joint model do: another set of columns, which is better."""
    examples = product_examples()
    joint = np.concatenate([examples.columns[OWN], examples.y[:, None]], 1).astype(np.float32)
    shelf = fit_shelf(examples._replace(columns=examples.columns | {"joint columns": joint}), AUC, 1)
    assert shelf is not None
    assert shelf.tool.columns == "joint columns"


def test_training_examples_are_held_out_without_validation_examples() -> None:
    examples = product_examples()
    examples.masks[1] = False
    shelf = fit_shelf(examples, AUC, 1)
    assert shelf is not None
    assert shelf.title == "boosting on own columns"
    examples.masks[0] = False
    assert fit_shelf(examples, AUC, 1) is None


def test_drawn_rows_are_the_same_each_time() -> None:
    examples = product_examples()
    draws = [fit_shelf(examples, AUC, seed, Effort(rows=100)).predict(examples.columns) for seed in (1, 1, 2)]  # type: ignore[union-attr]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])


def test_auto_computes_less_of_more() -> None:
    examples = product_examples()
    assert shelf_runs.choose_effort([examples], 2, "auto") == Effort()
    many = shelf_runs.choose_effort([examples] * 100, 2, "auto")
    assert many is not None
    assert 0 < many.trees < 200
    assert "trees" in shelf_runs.savings([examples], many)
    assert shelf_runs.choose_effort([examples] * 100_000, 2, "auto") is None
    assert shelf_runs.choose_effort([examples] * 100_000, 2, True) == Effort()


def linked(tmp_path: Path, **data: Any) -> PairExamples:
    tables(tmp_path / "data")
    document = {"data": {"path": str(tmp_path / "data"), "task": "links", **data}, "model": {"name": "gcn"}}
    built = build(resolve(document | {"partition": {"name": "random", "clients": 1}}))
    [share] = shares(built.data, built.partition.parts[:1])
    return pair_examples(share)


@pytest.mark.parametrize("rank_negatives", [10, "all"])
def test_auto_scores_a_part_of_many_links(tmp_path: Path, rank_negatives: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    member = linked(tmp_path, rank_negatives=rank_negatives)
    assert shelf_runs.choose_pair_effort([member] * 2, "auto") == (Effort(), 1.0)
    fewer, more = (learning_seconds(member, rows) for rows in (10, 1_000))
    assert 0 < fewer <= more
    scoring = scoring_seconds(member)
    monkeypatch.setattr(shelf_runs, "AUTO_SECONDS", scoring)  # less than a fit takes
    effort, share = shelf_runs.choose_pair_effort([member] * 4, "auto")
    assert (effort, share) == (shelf_runs.EFFORTS[-1], pytest.approx(1 / 8))
    assert shelf_runs.choose_pair_effort([member] * 4, True) == (Effort(), 1.0)
    part, again = (draw_links(member, share, 5) for _ in range(2))
    np.testing.assert_array_equal(part.links.masks, again.links.masks)
    np.testing.assert_array_equal(part.links.masks[TRAIN], member.links.masks[TRAIN])
    for split in (VAL, TEST):
        assert not (part.links.masks[split] & ~member.links.masks[split]).any()
        for y in (0, 1):
            of_class = member.links.masks[split] & (member.links.y == y)
            assert (part.links.masks[split] & (member.links.y == y)).sum() == math.ceil(share * of_class.sum())
    assert scoring_seconds(part) < scoring / 2


def test_a_run_says_which_part_of_its_links_the_shelf_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables(tmp_path / "data")
    document = {"rounds": 1, "data": {"path": str(tmp_path / "data"), "task": "links"}, "model": {"name": "gcn"}}
    built = build(resolve(document | {"partition": {"name": "random", "clients": 2}}))
    whole = shelf_runs.shelf_of_run(built, Judging(), "auto", {"judged/auc": 1.0}, 0)
    assert "drawn" not in whole.facts()
    assert whole.metrics == shelf_runs.shelf_of_run(built, Judging(), True, {"judged/auc": 1.0}, 0).metrics
    monkeypatch.setattr(shelf_runs, "AUTO_SECONDS", 1e-4)
    results = [shelf_runs.shelf_of_run(built, Judging(), "auto", {"judged/auc": 1.0}, 0) for _ in range(2)]
    assert results[0].metrics == results[1].metrics != whole.metrics
    check_facts(results[0].facts()["drawn"], "links")


def test_scores_of_pairs_by_hand() -> None:
    """Nodes 0 and 1 have the neighbors 2 and 3 in common, of degree 2 and 3; 3 also knows 4."""
    ends = np.array([[0, 1, 0, 1, 3], [2, 2, 3, 3, 4]])
    both = np.concatenate([ends, ends[::-1]], 1)
    adjacency = sp.csr_matrix((np.ones(10), (both[0], both[1])), shape=(5, 5))
    pair = [np.array([0]), np.array([1]), np.array([0])]
    expected = {
        "common_neighbors": 2,
        "adamic_adar": 1 / np.log(2) + 1 / np.log(3),
        "resource_allocation": 1 / 2 + 1 / 3,
        "preferential_attachment": 4,
    }
    for name, reference in REFERENCES.items():
        products = reference(adjacency)
        assert products.of_pairs(*pair) == pytest.approx([expected[name]]), name
        assert products.of_all(pair[0], np.arange(5), pair[2], TARGET)[0, 1] == pytest.approx(expected[name])


def test_training_links_do_not_count_themselves() -> None:
    """A training link of the star 0 - 1, 0 - 2 has degrees 2 and 1; without itself 1 and 0."""
    adjacency = sp.csr_matrix((np.ones(4), ([0, 1, 0, 2], [1, 0, 2, 0])), shape=(3, 3))
    attachment = Attachment(*REFERENCES["preferential_attachment"](adjacency), adjacency)
    pairs = np.array([0, 1]), np.array([1, 2]), np.array([0, 0])
    np.testing.assert_array_equal(attachment.of_pairs(*pairs), [2, 1])
    np.testing.assert_array_equal(attachment.of_training(*pairs, np.array([1, 0])), [0, 1])


def test_frequencies_of_entities_by_hand() -> None:
    """Relation 0 leads twice to node 2, once to node 1; relation 1 once to node 0."""
    trained = np.array([[0, 1, 0, 2], [2, 2, 1, 0], [0, 0, 0, 1]])
    tails, heads = Frequency.of(trained, TARGET, 3), Frequency.of(trained, SOURCE, 3)
    relation = np.array([0, 1, 2])  # no training link is of relation 2
    pool = np.arange(3)
    np.testing.assert_array_equal(tails.of_all(pool, pool, relation, TARGET), [[0, 1, 2], [1, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(heads.of_all(pool, pool, relation, TARGET), [[2] * 3, [0] * 3, [0] * 3])
    pair = np.array([0]), np.array([2]), np.array([0])
    np.testing.assert_array_equal(tails.of_pairs(*pair), [2])
    np.testing.assert_array_equal(tails.of_training(*pair, np.array([1])), [1])


def test_ranks_of_entities_in_a_run(tmp_path: Path) -> None:
    """Every tool ranks all entities, and the best by validation is what a member reaches alone."""
    config = {**document(triples(tmp_path), {"name": "fedavg"}), "rounds": 1, "evaluation": {"shelf": True}}
    found = run(resolve(config), tmp_path / "run", Silent())["metrics"]
    assert 0 < found["shelf/local/mrr"] < 1
    assert 0 < found["shelf/pooled/mrr"] < 1


def test_local_and_pooled_of_a_run(tmp_path: Path, data_root: Path) -> None:
    """Wide columns of words: regressions, which scikit-learn gives called directly."""
    given = {"name": "cora", "path": str(data_root)}
    found = made(tmp_path / "run", {"name": "fedavg"}, given, 1, partition=CUT, **ASKED)
    data = load(**given)
    parts = Random(clients=3, train=0.5, val=0.1, test=0.4).cut(data, 1).parts
    summary = read_summary(tmp_path / "run")
    x, y = sp.csr_matrix(data.x), data.y
    each = [accuracy_of(x[part.examples], y[part.examples], part.masks) for part in parts]
    own = "logistic regression on own columns"
    assert summary["shelf"]["pooled"] == {"logistic regression on own and neighbors' columns": 1}
    assert own not in summary["shelf"]["local"]  # neighbors help at every member
    assert found["shelf/local/accuracy"] > np.mean(each) + 0.02
    assert found["shelf/pooled/accuracy"] > found["shelf/local/accuracy"]
    rows = pq.read_table(tmp_path / "run" / "metrics.parquet").to_pylist()
    of_members = {row["client"]: row["value"] for row in rows if row["metric"] == "shelf/accuracy"}
    assert np.mean([*of_members.values()]) == pytest.approx(found["shelf/local/accuracy"])
    assert len(of_members) == 3


def accuracy_of(x: Any, y: np.ndarray, masks: np.ndarray) -> float:
    train, _, test = masks
    model = LogisticRegression(max_iter=1000).fit(x[train], y[train])
    return float(accuracy_score(y[test], model.predict(x[test])))


def read_summary(directory: Path) -> Any:
    from fedweave.experiment.runs.files import SUMMARY
    from fedweave.experiment.runs.files import read_summary as of_file

    return of_file(directory / SUMMARY)


def test_boosting_of_a_run_equals_it_called_directly(
    tmp_path: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """German credit, with the columns as published: by each member, and by all members' examples together."""
    monkeypatch.setattr(members, "tools_for", lambda examples, effort: [Tool("boosting", boosting, OWN)])
    given = {"name": "german", "path": str(data_root)}
    document = {"partition": CUT, "evaluation": {"shelf": True, "metric": "auc"}}
    found = made(tmp_path / "run", {"name": "fedavg"}, given, 1, **document)
    data = load(**given)
    x = np.asarray(data.x.toarray() if sp.issparse(data.x) else data.x)
    parts = [(x[p.examples], data.y[p.examples], p.masks) for p in Random(**arguments()).cut(data, 1).parts]
    whole = tuple(
        np.concatenate(arrays, axis) for arrays, axis in zip(zip(*parts, strict=True), (0, 0, 1), strict=True)
    )
    for which, learned in (("local", parts), ("pooled", [whole] * len(parts))):
        areas = []
        for (x_own, y_own, masks), (x_test, y_test, test_masks) in zip(learned, parts, strict=True):
            train, val, _ = masks
            model = HistGradientBoostingClassifier(max_iter=200, early_stopping=True)
            model.fit(x_own[train], y_own[train], X_val=x_own[val], y_val=y_own[val])
            areas.append(roc_auc_score(y_test[test_masks[2]], model.predict_proba(x_test[test_masks[2]])[:, 1]))
        assert found[f"shelf/{which}/auc"] == pytest.approx(np.mean(areas), abs=1e-9), which


def arguments() -> dict[str, Any]:
    return {name: value for name, value in CUT.items() if name != "name"}


def test_a_run_gives_the_same_shelf_twice(tmp_path: Path) -> None:
    document = {"data": {"name": "digits"}, "partition": CUT, "model": {"name": "gcn", "hidden": 8}, "rounds": 1}
    document |= {"algorithm": {"name": "fedavg"}, "evaluation": {"shelf": True}}
    results = [run(resolve(document), tmp_path / name, Silent())["metrics"] for name in ("a", "b")]
    assert results[0] == results[1]
    assert any(name.startswith("shelf/") for name in results[0])
    without = run(resolve(document | {"evaluation": {"shelf": False}}), tmp_path / "c", Silent())
    assert not any(name.startswith("shelf/") for name in without["metrics"])
    assert "shelf" not in without
    assert verdict_of(without) is None


def test_runs_of_a_sweep_share_a_shelf(tmp_path: Path) -> None:
    """Another algorithm takes the shelf of the first run from the folder beside it; another seed has its own."""
    document = {"data": {"name": "digits"}, "partition": CUT, "model": {"name": "gcn", "hidden": 8}, "rounds": 1}
    document |= {"algorithm": {"name": "fedavg"}, "evaluation": {"shelf": True}}
    folder = tmp_path / SHARED
    folder.mkdir()
    first = run(resolve(document), tmp_path / "a", Silent())
    [shared] = folder.glob("shelf-*.json")
    written = json.loads(shared.read_text())
    shared.write_text(json.dumps(written | {"seconds": 123.0}))
    other = run(resolve(document | {"algorithm": {"name": "fedprox"}}), tmp_path / "b", Silent())
    assert other["shelf"] == first["shelf"] | {"seconds": 123.0}
    name = "shelf/local/accuracy"
    assert other["metrics"][name] == first["metrics"][name]
    run(resolve(document | {"seed": 5}), tmp_path / "c", Silent())
    assert len([*folder.glob("shelf-*.json")]) == 2


def test_numbers_of_a_run_are_in_the_datas_units(tmp_path: Path) -> None:
    """A price that is linear in a feature."""
    folder = nodes_folder(tmp_path / "data")
    found = made(tmp_path / "run", {"name": "fedavg"}, of_numbers(folder, "price"), 1, partition=CUT, **ASKED)
    for which in ("local", "pooled"):
        assert 0 < found[f"shelf/{which}/rmse"] < 0.2 * found["local/rmse_of_mean"]


def test_the_label_holder_among_parties_has_a_shelf(tmp_path: Path) -> None:
    """Its own third of the columns; the pooled shelf has all columns."""
    document = {
        "rounds": 1,
        "data": {"name": "digits"},
        "partition": {"name": "vertical", "clients": 3, "labels": "first"},
        "model": {"name": "gcn", "hidden": 8},
        "algorithm": {"name": "glasu"},
        "evaluation": {"shelf": True},
    }
    summary = run(resolve(document), tmp_path / "run", Silent())
    assert sum(summary["shelf"]["local"].values()) == 1
    assert 0.5 < summary["metrics"]["shelf/local/accuracy"] < summary["metrics"]["shelf/pooled/accuracy"]


def test_small_graphs_of_a_run(tmp_path: Path, data_root: Path) -> None:
    given = {"name": "mutag", "path": str(data_root)}
    model = {"name": "gin", "pool": "mean", "hidden": 8}
    found = made(tmp_path / "run", {"name": "fedavg"}, given, 1, model=model, partition=CUT, **ASKED)
    assert found["shelf/local/accuracy"] > 0.7
    assert all(f"on {GRAPHS}" in tool for tool in read_summary(tmp_path / "run")["shelf"]["local"])


def summary_of(**metrics: float) -> dict[str, Any]:
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    shelf = {"local": {"boosting on own columns": 2}, "seconds": 1.0}
    chosen = {"chosen_round": int(named["best_val/round"])} if "best_val/round" in named else {}
    return {"metrics": named | {"judged/auc": -1.0}, "shelf": shelf} | chosen


@pytest.mark.parametrize(
    ("metrics", "sign", "facts"),
    [
        (
            {"local__auc": 0.886, "shelf__local__auc": 0.861, "alone__local__auc": 0.822},
            1,
            ("0.886", "alone 0.822", "shelf 0.861", "0.025 above shelf"),
        ),
        (
            {"local__auc": 0.886, "best_val__local__auc": 0.8, "best_val__round": 7.0}
            | {"shelf__local__auc": 0.7, "alone__local__auc": 0.82},
            -1,
            ("0.800", "chosen round 7", "0.020 below alone"),
        ),
        ({"local__auc": 0.8861, "shelf__local__auc": 0.886}, 0, ("0.886",)),
    ],
)
def test_verdict(metrics: dict[str, float], sign: int, facts: tuple[str, ...]) -> None:
    verdict = verdict_of(summary_of(**metrics))
    assert verdict is not None
    assert verdict.sign == sign
    check_facts(verdict.sentence, *facts)
    check_facts(verdict.tools_sentence, "boosting on own columns")


def test_verdict_where_lower_is_better() -> None:
    metrics = {"local/rmse": 2.0, "shelf/local/rmse": 3.0, "judged/rmse": -1.0}
    verdict = verdict_of({"metrics": metrics})
    assert verdict is not None
    assert (verdict.gain, verdict.sign) == (1.0, 1)
    check_facts(verdict.sentence, "1.000 below shelf")
    assert verdict_of({"metrics": {"local/accuracy": 0.5}}) is None


@pytest.mark.parametrize(("gains", "sign"), [((0.1, 0.12, 0.11), 1), ((0.3, -0.05, 0.08), 0), ((0.1, 0.12), 1)])
def test_a_verdict_claims_no_more_than_the_interval_over_members_shows(gains: tuple[float, ...], sign: int) -> None:
    """By SciPy's test of the members' paired differences; two members have no interval."""
    rows = []
    for place, gain in enumerate(gains):
        rows += [(3, f"m{place}", "test", "auc", 0.5 + gain), (3, f"m{place}", "test", "alone/auc", 0.5)]
    columns = dict(zip(METRICS_SCHEMA.names, map(list, zip(*rows, strict=True)), strict=True))
    summary = summary_of(local__auc=0.5 + float(np.mean(gains)), alone__local__auc=0.5)
    verdict = verdict_of(summary, pa.table(columns, METRICS_SCHEMA))
    assert verdict is not None
    assert verdict.sign == sign
    if len(gains) > 2:
        wanted = ttest_1samp(gains, 0).confidence_interval(0.95)
        assert verdict.interval is not None
        assert verdict.interval[:2] == pytest.approx((wanted.low, wanted.high))
    else:
        assert verdict.interval is None


def test_verdict_over_seeds() -> None:
    """Means over the seeds; a run in which all train alone has none."""
    values = {"local__auc": 0.9, "shelf__local__auc": 0.7}, {"local__auc": 0.8, "shelf__local__auc": 0.6}
    verdict = verdict_of_seeds([summary_of(**metrics) for metrics in values])
    assert verdict is not None
    assert verdict.joint == pytest.approx(0.85)
    assert verdict.alone == pytest.approx({"shelf": 0.65})
    assert verdict.tools == {"boosting on own columns": 4}
    assert verdict_of_seeds([summary_of(**values[0]) | {"algorithm": "local"}]) is None


def test_a_model_below_it_is_noted() -> None:
    """By the metric that selects, and only then."""
    found = {"local/accuracy": 0.7, "shelf/local/accuracy": 0.8, "shelf/pooled/accuracy": 0.9}
    sentence = notes(found)["shelf"]
    assert all(value in sentence for value in ("0.700", "0.800", "0.900"))
    assert "shelf" not in notes(found | {"local/accuracy": 0.9})
    assert "0.800" not in notes(found | {"local/accuracy": 0.85})["shelf"]

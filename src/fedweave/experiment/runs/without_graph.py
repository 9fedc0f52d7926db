"""A reference that knows no graph: a regression (scikit-learn) on the features of examples alone, logistic of classes
and of each of several labels, ridge of numbers."""

import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
import torch

from fedweave.algorithms.scoring import pairs_of
from fedweave.core.graph import TEST, TRAIN
from fedweave.core.target import CLASS, NUMBER, kind_of, where_known
from fedweave.core.tree import Tree
from fedweave.core.types import Record
from fedweave.datasets.base import Dataset
from fedweave.datasets.features import AUTO, apply_scaling, scaling
from fedweave.experiment.build import Built
from fedweave.metrics.classification import merge
from fedweave.metrics.kinds import kind_by
from fedweave.metrics.measured import of_splits
from fedweave.metrics.selection import WITHOUT_GRAPH, Judging, metrics_of, positive_class
from fedweave.partition.base import client_ids
from fedweave.partition.client_data import global_test_part, shares

MAX_FITS = 40  # clients times classes, up to which "auto" fits a regression for each client
MAX_ENTRIES = 1e8  # nonzero features times classes, up to which "auto" fits the one of all
ITERATIONS = 1_000
_ABSENT = -1e30  # score of a class that no training example is of
Features: TypeAlias = "np.ndarray | sp.csr_matrix"


class Examples(NamedTuple):
    """One client's examples: features [e, d], classes int64 [e] and bool [3, e], how they are used."""

    x: Features
    y: np.ndarray
    masks: np.ndarray


def without_graph(built: Built, judging: Judging, enabled: bool | str, metrics: Record) -> dict[str, float]:
    """Test metrics of the reference, with the names of the models' metrics: "features/local/…", the mean over clients
    that each train on their own examples, and "features/global/…", for one model that trains on all clients' examples,
    tested on the examples of "global/…".

    {} where parties hold columns of the same nodes, or where there are no features or training examples. enabled:
    False for none, True for both, "auto" for what costs little compared with rounds. metrics: of the run's summary.
    """
    # 1. The examples of each client, and those to test on.
    data, partition = built.data, built.partition
    if not enabled or any(part.columns is not None for part in partition.parts):
        return {}
    nonzeros = data.x.nnz if isinstance(data.x, sp.csr_matrix) else data.x.size
    if enabled == "auto" and float(nonzeros) * data.outputs > MAX_ENTRIES:
        return {}
    names = client_ids(len(partition.parts), partition.names)
    examples = dict(zip(names, map(_examples_of, shares(data, partition.parts)), strict=True))
    evaluated = [examples[name] for name in built.fed.evaluated_clients or names]
    has_training = any(client.masks[TRAIN].any() for client in examples.values())
    if not evaluated[0].x.shape[1] or not has_training:
        return {}
    global_test = global_test_part(data, partition)
    tests = evaluated if global_test is None else [*map(_examples_of, shares(data, [global_test]))]

    # 2. A regression for each client, and one for all.
    positive = positive_class(judging, metrics)
    local_values = []
    if enabled is True or len(evaluated) * data.outputs <= MAX_FITS:
        for client in evaluated:
            if client.masks[TRAIN].any():
                local_values.append(_values(_test_metrics(client, [client], data.outputs)[0], positive))
    together = _test_metrics(_join([*examples.values()]), tests, data.outputs)
    global_values = _values(merge(together), positive)

    # 3. Their metrics, as far as they are defined.
    metric_names = metrics_of(data.target, data.classes)
    results = dict[str, float]()
    for name in metric_names:
        results[f"{WITHOUT_GRAPH}/local/{name}"] = _mean([values.get(name, np.nan) for values in local_values])
    for name in metric_names:
        results[f"{WITHOUT_GRAPH}/global/{name}"] = float(global_values.get(name, np.nan))
    return {name: value for name, value in results.items() if not np.isnan(value)}


def _values(pairs: Tree, positive: int) -> Record:
    return {name: float(value) for name, value in kind_by(pairs).values(pairs, positive).items()}


def rows_of(round: int, results: Mapping[str, float]) -> pa.Table:
    """The results of `without_graph` as rows of metrics.parquet."""
    return of_splits(round, {name: np.array([np.nan, np.nan, value]) for name, value in results.items()})


def features_of(data: Dataset) -> Features:
    """The features [e, d] of a client's examples: the features of a node; the sums and means over a small graph's
    nodes; or the features of an edge and of its source and its target."""
    if data.graph_of is not None:
        nodes_of = sp.csr_matrix((np.ones(data.nodes, np.float32), (data.graph_of, np.arange(data.nodes))))
        sums, sizes = nodes_of @ data.x, np.asarray(nodes_of.sum(1)).ravel()  # [graphs, d], [graphs]
        return _beside(sums, sp.diags(1 / sizes.clip(1)) @ sums)
    if data.edge_attrs is None or not data.edge_attrs.examples:
        return data.x
    source, target = data.edge_attrs.ends
    edge_features = [] if data.edge_attrs.features is None else [data.edge_attrs.features]
    return _beside(*edge_features, data.x[source], data.x[target])


def scores(train: Examples, x: Features, classes: int) -> np.ndarray:
    """float64 [m, c]: scores, whose softmax is the probabilities, of examples with features x [m, d], by
    `LogisticRegression(max_iter=1000)` on the training examples of `train`. Columns that "auto" would scale
    (`datasets.features.normalize`) are scaled by these examples; a single class is always predicted. For t labels
    float64 [m, t], the logits of one regression each; for t numbers the predictions of `Ridge()`."""
    if kind_of(train.y) != CLASS:
        return np.stack([_predict_target(train, x, at) for at in range(classes)], 1)
    from sklearn.exceptions import ConvergenceWarning  # takes long to import
    from sklearn.linear_model import LogisticRegression

    x_train, y = train.x[train.masks[TRAIN]], train.y[train.masks[TRAIN]]
    classes_in_training, result = np.unique(y), np.full((x.shape[0], classes), _ABSENT)  # [c'], [m, c]
    if len(classes_in_training) == 1:
        result[:, classes_in_training] = 0.0
        return result
    numbers = scaling(x_train, AUTO)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = LogisticRegression(max_iter=ITERATIONS).fit(apply_scaling(x_train, AUTO, *numbers), y)
    score = fitted.decision_function(apply_scaling(x, AUTO, *numbers)).reshape(x.shape[0], -1)
    if len(classes_in_training) == 2:  # one column, of the second class
        score = np.concatenate([np.zeros_like(score), score], 1)
    result[:, classes_in_training] = score
    return result


def _predict_target(train: Examples, x: Features, at: int) -> np.ndarray:
    """One number or label, float64 [m], by the training examples that have it; without any 0."""
    from sklearn.linear_model import Ridge  # takes long to import

    known = train.masks[TRAIN] & where_known(train.y)[:, at]
    x_train, y = train.x[known], train.y[known, at]
    if not known.any():
        return np.zeros(x.shape[0])
    if kind_of(train.y) == NUMBER:
        numbers = scaling(x_train, AUTO)
        model = Ridge().fit(apply_scaling(x_train, AUTO, *numbers), y)
        predicted: np.ndarray = model.predict(apply_scaling(x, AUTO, *numbers))
        return predicted
    two = scores(Examples(x_train, y, np.ones((3, len(y)), bool)), x, 2)
    logits: np.ndarray = two[:, 1] - two[:, 0]
    return logits


def _examples_of(data: Dataset) -> Examples:
    return Examples(features_of(data), data.y, np.asarray(data.public))


def _test_metrics(train: Examples, on: Sequence[Examples], classes: int) -> list[Tree]:
    """The `scoring.pairs_of` a regression that learns from `train`, on the test examples of each item
    `on`."""
    all_scores = scores(train, _join(on).x, classes)
    ends = np.cumsum([len(examples.y) for examples in on])[:-1]
    results = []
    for score, examples in zip(np.split(all_scores, ends), on, strict=True):
        y, mask = torch.from_numpy(examples.y), torch.from_numpy(examples.masks[TEST:])  # [e], [1, e]
        pairs = pairs_of(torch.from_numpy(score), y, mask, None)
        results.append({name: pair[0] for name, pair in pairs.items()})
    return results


def _join(clients: Sequence[Examples]) -> Examples:
    x, y, masks = zip(*clients, strict=True)
    rows = sp.vstack(x, format="csr") if any(map(sp.issparse, x)) else np.concatenate(x)
    return Examples(rows, np.concatenate(y), np.concatenate(masks, 1))


def _beside(*x: Features) -> Features:
    return sp.hstack(x, format="csr") if any(map(sp.issparse, x)) else np.concatenate(x, 1)


def _mean(values: Sequence[float]) -> float:
    defined = [value for value in values if not np.isnan(value)]
    return float(np.mean(defined)) if defined else float("nan")

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
from fedweave.datasets.features import AUTO, rescaled, scaling
from fedweave.experiment.build import Built
from fedweave.metrics.classification import merge
from fedweave.metrics.kinds import kind_by
from fedweave.metrics.measured import of_splits
from fedweave.metrics.selection import WITHOUT_GRAPH, Judging, looked_for, measured_of
from fedweave.partition.base import client_ids
from fedweave.partition.client_data import global_test_part, shares

MOST_FITS = 40  # clients times classes, up to which "auto" fits a regression for each client
MOST_ENTRIES = 1e8  # nonzero features times classes, up to which "auto" fits the one of all
ITERATIONS = 1_000
_ABSENT = -1e30  # score of a class that no training example is of
Features: TypeAlias = "np.ndarray | sp.csr_matrix"


class Held(NamedTuple):
    """One client's examples: features [e, d], classes int64 [e] and bool [3, e], how they are used."""

    x: Features
    y: np.ndarray
    masks: np.ndarray


def without_graph(built: Built, judging: Judging, asked: bool | str, metrics: Record) -> dict[str, float]:
    """What the reference reaches on test examples, by the metrics of the models: "features/local/…", the mean over
    clients that each train on their own examples, and "features/global/…", of one that trains on all clients', on the
    examples of "global/…".

    {} where parties hold columns of the same nodes, or where there are no features or training examples. asked: False
    for none, True for both, "auto" for what costs little beside rounds. metrics: of the run's summary.
    """
    cut = built.partition
    if asked is False or any(part.columns is not None for part in cut.parts):
        return {}
    names = client_ids(len(cut.parts), cut.names)
    classes, positive = built.data.outputs, looked_for(judging, metrics)
    if asked == "auto" and _entries(built.data) > MOST_ENTRIES:
        return {}
    held = dict(zip(names, map(_held, shares(built.data, cut.parts)), strict=True))
    clients = [held[name] for name in built.fed.judged or names]
    if not clients[0].x.shape[1] or not any(own.masks[TRAIN].any() for own in held.values()):
        return {}
    tests = [] if (test := global_test_part(built.data, cut)) is None else [*map(_held, shares(built.data, [test]))]
    alone = clients if asked is True or len(clients) * classes <= MOST_FITS else []
    kept = measured_of(built.data.target, built.data.classes)
    each = [_values(_judged(one, [one], classes)[0], positive) for one in alone if one.masks[TRAIN].any()]
    together = _values(merge(_judged(_joined([*held.values()]), tests or clients, classes)), positive)
    found = {f"{WITHOUT_GRAPH}/local/{name}": _mean([one.get(name, np.nan) for one in each]) for name in kept}
    found |= {f"{WITHOUT_GRAPH}/global/{name}": float(together.get(name, np.nan)) for name in kept}
    return {name: value for name, value in found.items() if not np.isnan(value)}


def _values(pairs: Tree, positive: int) -> Record:
    return {name: float(value) for name, value in kind_by(pairs).values(pairs, positive).items()}


def rows_of(round: int, found: Mapping[str, float]) -> pa.Table:
    """What `without_graph` found as rows of metrics.parquet."""
    return of_splits(round, {name: np.array([np.nan, np.nan, value]) for name, value in found.items()})


def features_of(own: Dataset) -> Features:
    """The features [e, d] of a client's examples: a node's own, the sums and the means of those of a small graph's
    nodes, or an edge's own and those of its source and its target."""
    if own.graph_of is not None:
        of = sp.csr_matrix((np.ones(own.nodes, np.float32), (own.graph_of, np.arange(own.nodes))))
        sums, sizes = of @ own.x, np.asarray(of.sum(1)).ravel()
        return _beside(sums, sp.diags(1 / sizes.clip(1)) @ sums)
    if own.edge_attrs is None or not own.edge_attrs.examples:
        return own.x
    source, target = own.edge_attrs.ends
    edge_attrs = [] if own.edge_attrs.features is None else [own.edge_attrs.features]
    return _beside(*edge_attrs, own.x[source], own.x[target])


def scores(train: Held, x: Features, classes: int) -> np.ndarray:
    """float64 [m, c]: scores, whose softmax is the probabilities, of examples with features x [m, d], by
    `LogisticRegression(max_iter=1000)` on the training examples of `train`. Columns that "auto" would scale
    (`datasets.features.normalize`) are scaled by these examples; with one class alone that is predicted. Of t labels
    float64 [m, t], logits by such a regression each; of t numbers what `Ridge()` predicts."""
    if kind_of(train.y) != CLASS:
        return np.stack([_of_target(train, x, at) for at in range(classes)], 1)
    from sklearn.exceptions import ConvergenceWarning  # takes long to import
    from sklearn.linear_model import LogisticRegression

    own, y = train.x[train.masks[TRAIN]], train.y[train.masks[TRAIN]]
    known, found = np.unique(y), np.full((x.shape[0], classes), _ABSENT)
    if len(known) == 1:
        found[:, known] = 0.0
        return found
    numbers = scaling(own, AUTO)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = LogisticRegression(max_iter=ITERATIONS).fit(rescaled(own, AUTO, *numbers), y)
    score = fitted.decision_function(rescaled(x, AUTO, *numbers)).reshape(x.shape[0], -1)
    found[:, known] = score if len(known) > 2 else np.concatenate([np.zeros_like(score), score], 1)
    return found


def _of_target(train: Held, x: Features, at: int) -> np.ndarray:
    """One number or label, float64 [m], by the training examples that have it; without any 0."""
    from sklearn.linear_model import Ridge  # takes long to import

    there = train.masks[TRAIN] & where_known(train.y)[:, at]
    x_train, y = train.x[there], train.y[there, at]
    if not there.any():
        return np.zeros(x.shape[0])
    if kind_of(train.y) == NUMBER:
        numbers = scaling(x_train, AUTO)
        predicted: np.ndarray = Ridge().fit(rescaled(x_train, AUTO, *numbers), y).predict(rescaled(x, AUTO, *numbers))
        return predicted
    two = scores(Held(x_train, y, np.ones((3, len(y)), bool)), x, 2)
    logits: np.ndarray = two[:, 1] - two[:, 0]
    return logits


def _held(own: Dataset) -> Held:
    return Held(features_of(own), own.y, np.asarray(own.public))


def _judged(train: Held, on: Sequence[Held], classes: int) -> list[Tree]:
    """The `scoring.pairs_of` a regression that learns from `train`, on the test examples of each of those it is judged
    `on`."""
    every, ends = _joined(on), np.cumsum([len(held.y) for held in on])[:-1]
    found = []
    for score, held in zip(np.split(scores(train, every.x, classes), ends), on, strict=True):
        given = torch.from_numpy(score), torch.from_numpy(held.y), torch.from_numpy(held.masks[TEST:])
        found.append({name: pair[0] for name, pair in pairs_of(*given, None).items()})
    return found


def _joined(each: Sequence[Held]) -> Held:
    x = [held.x for held in each]
    stacked = sp.vstack(x, format="csr") if any(map(sp.issparse, x)) else np.concatenate(x)
    return Held(stacked, np.concatenate([held.y for held in each]), np.concatenate([held.masks for held in each], 1))


def _beside(*x: Features) -> Features:
    return sp.hstack(x, format="csr") if any(map(sp.issparse, x)) else np.concatenate(x, 1)


def _entries(data: Dataset) -> float:
    x = data.x
    return float(x.nnz if isinstance(x, sp.csr_matrix) else x.size) * data.outputs


def _mean(each: Sequence[float]) -> float:
    known = [value for value in each if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")

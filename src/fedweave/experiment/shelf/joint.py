"""The shelf with joint columns: what a member reaches that joins and keeps its tools. They read its own columns, its
neighbors', and what the joint model says of each example."""

import time
from collections.abc import Sequence

import numpy as np

from fedweave.core.graph import TRAIN
from fedweave.core.target import CLASS, NUMBER, kind_of
from fedweave.core.types import Record
from fedweave.experiment.build import Built
from fedweave.experiment.runs.outputs import Predicted
from fedweave.experiment.shelf.columns import DESCRIPTORS, Columns, beside
from fedweave.experiment.shelf.members import Examples, Judge, fit_shelf, tested
from fedweave.experiment.shelf.runs import (
    AUTO_MOLECULES,
    LOCAL,
    ShelfResult,
    ShelfValues,
    choose_effort,
    examples_of,
    member_seed,
    result_of,
    savings,
    unscaled,
    values_on_tests,
)
from fedweave.metrics.selection import SHELF_JOINT, Judging, positive_class, selection_metric_of
from fedweave.partition.base import client_ids
from fedweave.partition.client_data import shares

JOINT = "joint scores"
LEAST = 1e-6  # probability in a logarithm


def joint_shelf(
    built: Built, predictions: Sequence[Predicted], judging: Judging, enabled: bool | str, metrics: Record, seed: int
) -> ShelfResult:
    """The shelf of every evaluated member (`shelf.runs.shelf_of_run`) with further sets of columns, `joint_columns`, of
    which its validation examples choose one or none. Only members with test examples of their own have it.

    predictions: of all examples, of training examples by models that did not learn their labels
    (`experiment.runs.fold_runs`). enabled: see `shelf_of_run`, whose effort each member's shelf has.
    """
    start = time.process_time()
    data, partition = built.data, built.partition
    names = client_ids(len(partition.parts), partition.names)
    evaluated = built.fed.evaluated_clients or names
    judge = Judge(selection_metric_of(metrics), positive_class(judging, metrics), data.outputs)
    described = enabled is True or data.examples <= AUTO_MOLECULES
    members = dict[str, tuple[Examples, Predicted]]()
    by_client = {one.client: one for one in predictions}
    union = predictions[0] if len(built.fed.clients) == 1 else None  # the one client where all data is pooled
    raw = unscaled(data)
    for name, part, share in zip(names, partition.parts, shares(raw, partition.parts), strict=True):
        examples = examples_of(share, described)
        one = by_client.get(name, union)
        if one is not None and name in evaluated and examples.masks[TRAIN].any() and tested(examples):
            members[name] = examples, _at(one, part.examples)
    plain = [examples for examples, _ in members.values()]
    effort = choose_effort(plain, judge.outputs, enabled)
    values, titles = dict[str, Record](), list[str]()
    if effort is not None:
        for name, (examples, predicted) in members.items():
            columns = examples.columns | joint_columns(examples, predicted)
            shelf_examples = examples._replace(columns=columns)
            shelf = fit_shelf(shelf_examples, judge, member_seed(seed, name), effort)
            if shelf is not None:
                titles.append(shelf.title)
                values[name] = values_on_tests(shelf, shelf_examples, judge)
    drawn = f"{LOCAL}: {savings(plain, effort)}" if plain and savings(plain, effort) else ""
    result = ShelfValues({LOCAL: values}, {LOCAL: titles}, drawn)
    return result_of(result, SHELF_JOINT, data, time.process_time() - start)


def joint_columns(examples: Examples, predicted: Predicted) -> Columns:
    """Further sets of columns of a member's examples: the joint model's scores; these beside the widest set that it has
    by itself; and beside both the vectors that the model's last layer reads."""
    scores = score_columns(predicted.probability.double().cpu().numpy(), kind_of(examples.y))  # [e, s]
    result = {JOINT: scores}
    names = [name for name in examples.columns if name != DESCRIPTORS]
    if names:
        widest = examples.columns[names[-1]]
        result[f"{names[-1]}, {JOINT}"] = beside(widest, scores)
        if predicted.vectors is not None:
            vectors = predicted.vectors.float().cpu().numpy()  # [e, d]
            result[f"{names[-1]}, {JOINT} and vectors"] = beside(widest, scores, vectors)
    return result


def score_columns(p: np.ndarray, kind: str) -> np.ndarray:
    """Predictions [e, c] as columns: numbers as they are, logarithms of the probabilities of classes, of two classes
    and of labels the logits; float32."""
    if kind == NUMBER:
        return p.astype(np.float32)
    logs, rest = np.log(p.clip(LEAST)), np.log((1 - p).clip(LEAST))
    if kind != CLASS:
        return np.asarray(logs - rest, np.float32)
    return np.asarray(logs[:, 1:] - logs[:, :1] if p.shape[1] == 2 else logs, np.float32)


def _at(one: Predicted, examples: np.ndarray) -> Predicted:
    """The predictions of these examples int64 [k], in this order, without padding."""
    rows = np.searchsorted(one.examples, examples)
    vectors = None if one.vectors is None else one.vectors[rows]
    return Predicted(one.client, one.probability[rows], examples, vectors=vectors)

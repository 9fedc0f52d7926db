"""What a run's models say of training examples whose labels they did not learn: for each fold of these, a further run
without the fold's labels.

The scores of different runs are comparable, their vectors are not: a layer's units are determined up to a rotation, or
less. Each client therefore rotates the vectors of a further run onto those of the run itself, by the examples outside
training, of which both runs have learned no label (`rotation`)."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedweave.errors import UserError, option
from fedweave.experiment.config import Config
from fedweave.experiment.requirements import check
from fedweave.experiment.runs.files import FOLDS
from fedweave.experiment.runs.outputs import Predicted, example_predictions
from fedweave.experiment.runs.trained import Trained, finished_config, load_trained
from fedweave.experiment.stages import Configured
from fedweave.partition.folds import Fold, folds_of

PRIOR = 0.01  # weight of no rotation, as a share of the largest weight that the examples can have
MIN_EXAMPLES = 8  # examples by which agreement is measured


class OutOfFold(NamedTuple):
    """Predictions of a run's examples by models that did not learn their labels.

    folds: int64 [e] for each of the predictions, the fold of each example, 0 of examples outside training, which are
    predicted by the run itself. agreement: R² of the further runs' vectors with the run's, mean over clients and folds,
    as they are and after rotation, on examples that the rotation does not know; None with too few examples.
    """

    predictions: list[Predicted]
    folds: list[np.ndarray]
    agreement: tuple[float, float] | None


def fold_config(config: Config, number: int, count: int) -> Config:
    """The experiment of a run without the labels of one fold, and without references that nothing reads.

    Raises:
        ConfigError: no labels can be withheld in such an experiment.
    """
    evaluation = replace(config.evaluation, shelf=False, alone=False, joint_columns=0)
    result = replace(config, fold=Fold(of=count, number=number), evaluation=evaluation)
    check(Configured.of(result))
    return result


def out_of_fold(
    run: Trained,
    count: int,
    train: Callable[[Config, Path], object],
    model: str | None = None,
    client: str | None = None,
    with_vectors: bool = True,
) -> OutOfFold:
    """The predictions of `example_predictions`, where each training example is predicted by the model of a further run
    without its label. The further runs are in the run's folder `FOLDS`; finished ones are used again.

    count: number of folds, and of further runs. train: (configuration, folder) runs it, or continues it.

    Raises:
        UserError: see `example_predictions`; no labels can be withheld in such an experiment.
    """
    if count < 2:
        raise UserError(
            f"{option('folds', count)}: one fold is all training examples. Give 2 or more.", code="user.folds"
        )
    if run.config.fold is not None:
        raise UserError(
            f"{option('folds')}: the run is one of a fold's own, without some labels ([fold]). Take the run itself.",
            code="user.folds",
        )
    experiments = [fold_config(run.config, number, count) for number in range(1, count + 1)]
    predictions = example_predictions(run, model, client, with_vectors)
    fold_of = folds_of(run.built.data, run.built.partition, count, run.config.general.seed)  # [examples of the data]
    folds = [fold_of[one.examples] for one in predictions]
    results = [Predicted(one.client, one.probability.clone(), one.examples, one.masks) for one in predictions]
    vectors = [None if one.vectors is None else one.vectors.clone() for one in predictions]
    agreements = list[tuple[float, float]]()
    for number, experiment in enumerate(experiments, 1):
        folder = run.directory / FOLDS / f"{number}-of-{count}"
        folder.parent.mkdir(exist_ok=True)
        train(experiment, folder)
        without = load_trained(folder, finished_config(folder), "", run.when)
        by_client = {one.client: one for one in example_predictions(without, model, client, with_vectors)}
        for at, one in enumerate(predictions):
            other, rows = by_client.get(one.client), torch.from_numpy(np.flatnonzero(folds[at] == number))
            if other is None:
                raise UserError(
                    f"{option('folds')}: {one.client} never trained in {folder}. Take {option('model', 'personal')}.",
                    code="user.folds",
                )
            results[at].probability[rows] = other.probability[rows]
            result_vectors = vectors[at]
            if result_vectors is None or one.vectors is None or other.vectors is None:
                continue
            reference = torch.from_numpy(np.flatnonzero(folds[at] == 0))
            source, goal = _numbers(other.vectors[reference]), _numbers(one.vectors[reference])  # [m, d]
            rotated = rotation(source, goal).apply(_numbers(other.vectors[rows]))
            result_vectors[rows] = torch.from_numpy(rotated).to(result_vectors.dtype)
            if len(source) >= MIN_EXAMPLES:
                agreements.append(agreement(source, goal))
    finished = [replace(one, vectors=rows) for one, rows in zip(results, vectors, strict=True)]
    mean = tuple(np.mean(agreements, 0).tolist()) if agreements else None
    return OutOfFold(finished, folds, mean)


class Rotation(NamedTuple):
    """x -> (x - center) turn + target, with an orthogonal turn [d, d]."""

    center: np.ndarray
    turn: np.ndarray
    target: np.ndarray

    def apply(self, rows: np.ndarray) -> np.ndarray:
        """The rows [m, d], rotated."""
        result: np.ndarray = (rows - self.center) @ self.turn + self.target
        return result


def rotation(rows: np.ndarray, goal: np.ndarray) -> Rotation:
    """The rotation (or reflection) that brings rows [m, d] closest to those of `goal` in squares: orthogonal
    Procrustes (Schönemann 1966) of both around their means.

    Both runs begin with the same weights, so that where examples do not decide, as with fewer of them than d, nothing
    turns: the identity counts as `PRIOR` of the largest weight that the examples can have."""
    from scipy.linalg import orthogonal_procrustes  # takes long to import

    width = rows.shape[1]
    if not len(rows):
        return Rotation(np.zeros(width), np.eye(width), np.zeros(width))
    center, target = rows.mean(0), goal.mean(0)
    a, b = rows - center, goal - target
    weight = PRIOR * np.linalg.norm(a) * np.linalg.norm(b) / width
    prior = np.sqrt(max(weight, np.finfo(float).tiny)) * np.eye(width)
    turn, _ = orthogonal_procrustes(np.concatenate([a, prior]), np.concatenate([b, prior]))
    return Rotation(center, turn, target)


def agreement(rows: np.ndarray, goal: np.ndarray) -> tuple[float, float]:
    """R² of rows [m, d] as those of `goal`, before and after a rotation: on every second of them, rotated by the
    others."""
    rotated = rotation(rows[::2], goal[::2]).apply(rows[1::2])
    rest = goal[1::2]
    total = max(float(np.square(rest - rest.mean(0)).sum()), np.finfo(float).tiny)
    before, after = np.square(rows[1::2] - rest).sum(), np.square(rotated - rest).sum()
    return 1 - float(before) / total, 1 - float(after) / total


def _numbers(rows: Tensor) -> np.ndarray:
    return rows.double().cpu().numpy()

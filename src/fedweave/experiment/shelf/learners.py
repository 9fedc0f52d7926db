"""The tools on a member's shelf, all of scikit-learn: a regression, gradient boosting and a random forest.

Each learns from rows of columns and gives a function of further rows: of classes the scores float64 [m, c], whose
softmax is the probabilities; of t labels float64 [m, t], the logits of one model each; of t numbers the predictions.
"""

import math
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeAlias

import numpy as np

from fedweave.core.graph_arrays import Matrix
from fedweave.core.target import CLASS, NUMBER, kind_of, where_known
from fedweave.core.types import Kind
from fedweave.datasets.features import AUTO, apply_scaling, scaling

ITERATIONS = 1_000  # of a logistic regression
FOREST_TREES = 100
FOREST_COLUMNS = 0.1  # share of the columns that a node of a tree chooses from
PATIENCE = 10  # trees without a lower loss on validation examples
ABSENT = -1e30  # score of a class that no training example is of
LEAST = 1e-12  # probability in a logarithm
Predict: TypeAlias = Callable[[Matrix], np.ndarray]


class LabeledRows(NamedTuple):
    """Examples to learn from: columns [m, d] and what is known of each, [m] or [m, t] (`core.target`)."""

    x: Matrix
    y: np.ndarray


class Lesson(NamedTuple):
    """One thing to learn: rows to train on, rows to stop by (with 0 rows there is no early stopping), and how.

    outputs: c of a class, t of numbers or labels. trees: at most so many. seed: of everything that is drawn. alpha: the
    penalty of a ridge regression.
    """

    train: LabeledRows
    val: LabeledRows
    outputs: int
    trees: int = 200
    seed: int = 0
    alpha: float = 1.0


def regression(lesson: Lesson) -> Predict:
    """`LogisticRegression(max_iter=1000)` of classes and labels, `Ridge` of numbers. Columns that "auto" would scale
    (`datasets.features.normalize`) are scaled by the training rows; a single class is always predicted."""
    return _for_each_target(lesson, _fit_regression)


def boosting(lesson: Lesson) -> Predict:
    """`HistGradientBoostingClassifier` or `…Regressor` with the defaults of scikit-learn, at most `trees` trees, which
    stop when the loss on the rows of `val` has not fallen for 10 trees. Columns must be dense."""
    return _for_each_target(lesson, _fit_boosting)


def forest(lesson: Lesson) -> Predict:
    """`RandomForestClassifier` or `…Regressor` with 100 trees."""
    return _for_each_target(lesson, _fit_forest)


def one_thread() -> AbstractContextManager[object]:
    """A context in which the learners add up in one order, so that a run gives the same bits twice."""
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(1)
    return limits


def _for_each_target(lesson: Lesson, fit: Callable[[Lesson, Kind], Predict]) -> Predict:
    """One model of a class; a model for each label or number, of the rows that have it."""
    y = lesson.train.y
    kind = kind_of(y)
    if kind == CLASS:
        return fit(lesson, kind)
    known_train, known_val = where_known(y), where_known(lesson.val.y)
    models = list[Predict]()
    for at in range(lesson.outputs):
        train, val = known_train[:, at], known_val[:, at]
        if not train.any():
            models.append(_zeros)
            continue
        one = lesson._replace(
            train=LabeledRows(lesson.train.x[train], y[train, at]),
            val=LabeledRows(lesson.val.x[val], lesson.val.y[val, at]),
        )
        models.append(fit(one, kind) if kind == NUMBER else _logit(fit(one._replace(outputs=2), CLASS)))
    return lambda x: np.stack([predict(x) for predict in models], 1)


def _zeros(x: Matrix) -> np.ndarray:
    return np.zeros(x.shape[0])


def _logit(of_two: Predict) -> Predict:
    """The logit of the second of two classes, [m], from their scores."""

    def predict(x: Matrix) -> np.ndarray:
        scores = of_two(x)
        logits: np.ndarray = scores[:, 1] - scores[:, 0]
        return logits

    return predict


def _fit_regression(lesson: Lesson, kind: Kind) -> Predict:
    from sklearn.exceptions import ConvergenceWarning  # takes long to import
    from sklearn.linear_model import LogisticRegression, Ridge

    x, y = lesson.train
    if kind == CLASS and len(np.unique(y)) == 1:
        return _one_class(int(y[0]), lesson.outputs)
    numbers = scaling(x, AUTO)
    scaled = apply_scaling(x, AUTO, *numbers)
    if kind == NUMBER:
        ridge = Ridge(alpha=lesson.alpha).fit(scaled, y)
        return lambda x: np.asarray(ridge.predict(apply_scaling(x, AUTO, *numbers)), np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        logistic = LogisticRegression(max_iter=ITERATIONS).fit(scaled, y)

    def predict(x: Matrix) -> np.ndarray:
        score = logistic.decision_function(apply_scaling(x, AUTO, *numbers)).reshape(x.shape[0], -1)
        if len(logistic.classes_) == 2:  # one column, of the second class
            score = np.concatenate([np.zeros_like(score), score], 1)
        return _at_classes(score, logistic.classes_, lesson.outputs)

    return predict


def _fit_boosting(lesson: Lesson, kind: Kind) -> Predict:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    (x, y), (x_val, y_val) = lesson.train, lesson.val
    if kind == CLASS:
        classes = np.unique(y)
        if len(classes) == 1:
            return _one_class(int(y[0]), lesson.outputs)
        learned = np.isin(y_val, classes)  # scikit-learn refuses others
        x_val, y_val = x_val[learned], y_val[learned]
    stops = len(y_val) > 0
    learner = HistGradientBoostingClassifier if kind == CLASS else HistGradientBoostingRegressor
    model = learner(
        max_iter=lesson.trees,
        learning_rate=0.1 if lesson.trees >= 100 else 0.2,  # fewer trees have to go further
        early_stopping=stops,
        n_iter_no_change=PATIENCE,
        random_state=lesson.seed,
    )
    validation = {"X_val": x_val, "y_val": y_val} if stops else {}
    model.fit(x, y, **validation)
    return _predict_with(model, kind, lesson.outputs)


def _fit_forest(lesson: Lesson, kind: Kind) -> Predict:
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    x, y = lesson.train
    if kind == CLASS and len(np.unique(y)) == 1:
        return _one_class(int(y[0]), lesson.outputs)
    learner = RandomForestClassifier if kind == CLASS else RandomForestRegressor
    trees = min(FOREST_TREES, lesson.trees)
    model = learner(n_estimators=trees, max_features=FOREST_COLUMNS, random_state=lesson.seed, n_jobs=1)
    return _predict_with(model.fit(x, y), kind, lesson.outputs)


def _predict_with(model: object, kind: Kind, outputs: int) -> Predict:
    if kind == NUMBER:
        return lambda x: np.asarray(model.predict(x), np.float64)  # type: ignore[attr-defined]

    def predict(x: Matrix) -> np.ndarray:
        score = np.log(np.maximum(model.predict_proba(x), LEAST))  # type: ignore[attr-defined]
        return _at_classes(score, model.classes_, outputs)  # type: ignore[attr-defined]

    return predict


def _one_class(number: int, outputs: int) -> Predict:
    """Always the one class of the training rows."""
    return lambda x: _at_classes(np.zeros((x.shape[0], 1)), np.array([number]), outputs)


def _at_classes(score: np.ndarray, classes: np.ndarray, outputs: int) -> np.ndarray:
    """Scores of the classes of training, [m, c'], in the columns of all classes, float64 [m, c]."""
    result = np.full((len(score), outputs), ABSENT)
    result[:, classes.astype(np.int64)] = score
    return result


def seconds(
    learner: Callable[[Lesson], Predict], rows: int, width: int, entries: float, models: int, trees: int
) -> float:
    """About how long one core takes to learn from `rows` rows of `width` columns with `entries` numbers that are not 0.

    models: how many are fitted: classes of more than two, labels, numbers. trees: as in `Lesson`. Measured with
    scikit-learn 1.9 on 150 to 30,000 rows; it decides what a run does, so that no clock does.
    """
    if learner is regression:
        return 0.01 + 5e-7 * entries * models
    if learner is boosting:
        each = 2e-3 + 5e-6 * width * min(31, rows / 20) + 1e-8 * rows * width
        return 0.5 * trees * models * each  # early stopping leaves out half
    return 1e-8 * min(FOREST_TREES, trees) * models * rows * math.log2(rows + 2) * FOREST_COLUMNS * width

"""The shelf of one member: every tool learns from its training examples, its validation examples choose."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

from fedweave.core import random
from fedweave.core.graph import TEST, TRAIN, VAL
from fedweave.core.graph_arrays import Matrix, dense
from fedweave.core.target import CLASS, NUMBER, is_labeled, kind_of
from fedweave.core.tree import Tree
from fedweave.core.types import Record
from fedweave.experiment.shelf import learners
from fedweave.experiment.shelf.columns import DESCRIPTORS, ENDS, FINGERPRINTS, Columns, join_rows
from fedweave.experiment.shelf.learners import LabeledRows, Lesson, Predict
from fedweave.metrics.kinds import kind_by, pairs_of
from fedweave.metrics.selection import rank

MAX_COLUMNS = 500  # of which boosting reads; it needs them dense
FILLED = 1 << 26  # numbers of a sparse matrix that may be filled for boosting
HELD_OUT = 0.2  # share of the training examples that choose where a member has no validation examples
PENALTIES = {FINGERPRINTS: 10.0, ENDS: 10.0}  # of a ridge regression on many columns that are mostly 0; 1 on others


class Examples(NamedTuple):
    """One member's examples, which `fit_shelf` learns from and `Shelf.predict` scores.

    columns: {name of a set of columns: [e, d]}, which the shelf tries one by one. y: [e] or [e, t] (`core.target`).
    masks: bool [3, e], train, val and test.
    """

    columns: Columns
    y: np.ndarray
    masks: np.ndarray

    @classmethod
    def join(cls, members: Sequence["Examples"]) -> "Examples":
        """The examples of all members, one member after the other."""
        y, masks = [member.y for member in members], [member.masks for member in members]
        return cls(join_rows([member.columns for member in members]), np.concatenate(y), np.concatenate(masks, 1))


class Judge(NamedTuple):
    """What chooses: the run's selection metric, the class that it describes if it is of one, and the number of classes,
    numbers or labels."""

    metric: str
    positive: int
    outputs: int

    def values(self, scores: np.ndarray, y: np.ndarray, mask: np.ndarray) -> Record:
        """All metrics of scores on the examples of a mask bool [e], by name; NaN where one is not defined."""
        return self.values_of(self.pairs(scores, y, mask))

    def pairs(self, scores: np.ndarray, y: np.ndarray, mask: np.ndarray) -> Tree:
        """The (sum, count) pairs behind these metrics, which add up over members."""
        pairs = pairs_of(torch.from_numpy(scores), torch.from_numpy(y), torch.from_numpy(mask[None]), kind_of(y))
        return {name: pair[0] for name, pair in pairs.items()}

    def values_of(self, pairs: Tree) -> Record:
        """All metrics of such pairs."""
        return {name: float(value) for name, value in kind_by(pairs).values(pairs, self.positive).items()}

    def quality(self, values: Record) -> tuple[float, float]:
        """What is compared: the selection metric and, where it is not defined or ties, the loss; larger is better."""
        value, loss = values.get(self.metric, math.nan), values.get("loss", math.nan)
        first = -math.inf if math.isnan(value) else rank(self.metric, value)
        return first, -math.inf if math.isnan(loss) else -loss


@dataclass(frozen=True)
class Effort:
    """How much a shelf may compute. trees: of boosting, at most; 0 for no boosting and no forest. rows: training rows,
    drawn if there are more."""

    trees: int = 200
    rows: int = 100_000


@dataclass(frozen=True)
class Tool:
    """A learner with the set of columns that it reads."""

    name: str
    learner: Callable[[Lesson], Predict]
    columns: str
    alpha: float = 1.0

    @property
    def title(self) -> str:
        """ "boosting on own columns"."""
        return f"{self.name} on {self.columns}"


@dataclass(frozen=True)
class Shelf:
    """The tool that was best on a member's validation examples, fitted. value: the selection metric there."""

    tool: Tool
    scores: Predict
    value: float

    @property
    def title(self) -> str:
        """ "boosting on own columns"."""
        return self.tool.title

    def predict(self, columns: Mapping[str, Matrix]) -> np.ndarray:
        """float64 [m, c] or [m, t], the scores of examples with these sets of columns (`shelf.learners`)."""
        return self.scores(_readable(self.tool, columns[self.tool.columns]))


def fit_shelf(examples: Examples, judge: Judge, seed: int, effort: Effort | None = None) -> Shelf | None:
    """What a member reaches alone: each tool learns from its training examples, and the one that is best on its
    validation examples by the selection metric stays.

    Without validation examples a fifth of the training examples, drawn, takes their place. More training examples than
    `effort.rows` are drawn. None without a labeled training example or without columns. seed: of what is drawn.
    """
    effort = effort or Effort()
    known = is_labeled(examples.y)
    train, val = (np.flatnonzero(examples.masks[split] & known) for split in (TRAIN, VAL))
    generator = random.generator(seed, "shelf")
    if not len(val) and len(train) > 1:
        order = generator.permutation(len(train))
        held_out = max(1, round(HELD_OUT * len(train)))
        train, val = np.sort(train[order[held_out:]]), np.sort(train[order[:held_out]])
    train, val = (_draw(rows, effort.rows, generator) for rows in (train, val))
    best: Shelf | None = None
    best_quality = (-math.inf, -math.inf)
    if not len(train):
        return None
    with learners.one_thread():
        for tool in tools_for(examples, effort):
            x = examples.columns[tool.columns]
            rows, val_rows = LabeledRows(_readable(tool, x[train]), examples.y[train]), _readable(tool, x[val])
            lesson = Lesson(
                rows, LabeledRows(val_rows, examples.y[val]), judge.outputs, effort.trees, seed % (1 << 32), tool.alpha
            )
            scores = tool.learner(lesson)
            values = judge.values(scores(val_rows), examples.y[val], np.ones(len(val), bool)) if len(val) else {}
            shelf = Shelf(tool, scores, values.get(judge.metric, math.nan))
            if best is None or judge.quality(values) > best_quality:
                best, best_quality = shelf, judge.quality(values)
    return best


def tools_for(examples: Examples, effort: Effort) -> Iterator[Tool]:
    """The tools for these columns: a regression and, for up to 500 dense columns, boosting on each set; on fingerprints
    a regression and a forest on the widest set."""
    regression = "ridge regression" if kind_of(examples.y) == NUMBER else "logistic regression"
    molecules = FINGERPRINTS in examples.columns
    for name, x in examples.columns.items():
        if name == DESCRIPTORS:
            continue  # 2,265 columns of unlike scales are for trees
        yield Tool(regression, learners.regression, name, PENALTIES.get(name, 1.0))
        if effort.trees and x.shape[1] <= MAX_COLUMNS and x.shape[0] * x.shape[1] <= FILLED:
            yield Tool("boosting", learners.boosting, name)
    if molecules and effort.trees:
        widest = DESCRIPTORS if DESCRIPTORS in examples.columns else FINGERPRINTS
        yield Tool("random forest", learners.forest, widest)


def seconds_of(examples: Examples, effort: Effort, outputs: int) -> float:
    """About how long `fit_shelf` takes on one core (`learners.seconds`)."""
    trained = min(int(examples.masks[TRAIN].sum()), effort.rows)
    models = 1 if kind_of(examples.y) == CLASS and outputs <= 2 else outputs
    total = 0.0
    for tool in tools_for(examples, effort):
        x = examples.columns[tool.columns]
        nonzeros = x.nnz if isinstance(x, sp.csr_matrix) else x.size
        entries = nonzeros * trained / max(1, x.shape[0])
        total += learners.seconds(tool.learner, trained, x.shape[1], entries, models, effort.trees)
    return total


def _readable(tool: Tool, x: Matrix) -> Matrix:
    """The columns in the form that the tool reads: trees of boosting need dense ones, fingerprints are faster so."""
    if tool.learner is learners.boosting or tool.columns in (FINGERPRINTS, DESCRIPTORS):
        return dense(x)
    return x


def _draw(rows: np.ndarray, most: int, generator: np.random.Generator) -> np.ndarray:
    """At most so many of the rows, sorted."""
    if len(rows) <= most:
        return rows
    return np.sort(generator.choice(rows, most, replace=False))


def tested(examples: Examples) -> bool:
    """Whether there is a labeled test example."""
    return bool((examples.masks[TEST] & is_labeled(examples.y)).any())

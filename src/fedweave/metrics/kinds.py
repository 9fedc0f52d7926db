"""The metrics of each kind of target (`core.target`), from the pairs that clients send: classes, numbers, labels."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from fedweave.core.graph import TEST, TRAIN, VAL
from fedweave.core.tree import Tree
from fedweave.core.types import LABELS, NUMBER, Values
from fedweave.metrics import classification, groups, labels, numbers
from fedweave.metrics.classification import ratio, values
from fedweave.metrics.client_fairness import client_fairness
from fedweave.metrics.rank_sums import ALERTS
from fedweave.metrics.score_histograms import MARGINS
from fedweave.metrics.selection import (
    NRMSE,
    PLAIN,
    POSITIVES,
    RAREST,
    Judging,
    lower,
    of_members,
    positive_class,
    positive_of,
    selection_metric_of,
)

DIVERGED = "scores/diverged"  # the largest mean loss on some examples, if it is too large for a model that learns
EXPLODED = 1e3  # nats; guessing has log(classes)

Measured = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]
Pairs = Mapping[str, np.ndarray]  # by metric, with any leading axes


class Classes:
    """Metrics where an example has one class."""

    always: tuple[str, ...] = classification.ALWAYS
    ordering: tuple[str, ...] = ("auc", "average_precision", "recall_at_1")  # only compared within a client
    each = "per_class"  # prefix of the metrics of each class or target

    def verdict(self, everyone: Pairs, judging: Judging) -> dict[str, float]:
        """The summary's entry for the selection metric; {} where it is the accuracy."""
        if "classes" not in everyone:
            return judging.verdict(0, math.nan, 1)
        counts = everyone["classes"]
        trained = counts[TRAIN, classification.TRUE]
        rarest_class = len(trained) - 1 - int(trained[::-1].argmin())  # of equally rare ones the last
        return judging.verdict(len(trained), classification.rarest(counts), rarest_class)

    def values(self, pairs: Pairs, positive: int = 1) -> dict[str, np.ndarray]:
        """The metrics of pairs."""
        return values(pairs, positive)

    def means(self, pairs: Tree) -> Tree:
        """`values` of one client's pairs, so that sums over clients give means."""
        return classification.means(pairs)

    def constant(self, pairs: Pairs) -> np.ndarray | None:
        """The best constant prediction by training examples; None where it is unknown."""
        return classification.majority_classes(pairs["classes"]) if "classes" in pairs else None

    def measure(self, pairs: Pairs, constant: np.ndarray | None, positive: int) -> Measured:
        """The metrics of all people, together with the baseline that always predicts `constant`, and the metrics that
        compare groups of people."""
        metrics = values(pairs, positive)
        if constant is not None and "classes" in pairs:
            metrics |= classification.references(pairs["classes"], constant)
        return metrics, groups.measures(pairs, metrics.get("accuracy"), metrics.get("auc"))

    def between(self, per_client: Pairs, metric: str, clients: Sequence[str]) -> dict[str, float]:
        """How evenly the model serves clients, also by the selection metric."""
        loss, accuracy = per_client["loss"], per_client["accuracy"]
        evenness, _ = client_fairness(loss[:, TEST], accuracy[:, TEST], loss[:, TRAIN], clients)
        return evenness if metric == PLAIN else evenness | extremes(per_client, metric)

    def warnings(self, everyone: Pairs, trained_loss: np.ndarray | None) -> dict[str, float]:
        """Warnings that belong to the scores: a class that is rare in training, a loss so large that training
        diverged."""
        warnings = {}
        if "classes" in everyone:
            rarest = classification.rarest(everyone["classes"])
            if not math.isnan(rarest):
                warnings[RAREST] = rarest
        worst = 0.0
        if "loss" in everyone:
            worst = float(np.nanmax(ratio(*everyone["loss"].T), initial=0.0))
        if trained_loss is not None:
            worst = max(worst, float(np.nanmax(trained_loss, initial=0.0)))
        if worst > EXPLODED:
            warnings[DIVERGED] = worst
        return warnings

    def positive_counts(self, pairs: Pairs, by: Mapping[str, float], positive: int) -> dict[str, float]:
        """The number of examples of the positive class, and of alerts among test examples, where a metric of such a
        class selects; {} where a client keeps these counts back."""
        if positive_of(by) is None or "recall_at_1" not in pairs or self.coarse(pairs).any():
            return {}
        positives, examples = pairs["recall_at_1"][..., 1, positive], pairs["accuracy"][..., 1]
        summary: dict[str, float] = {}
        for name, split in (("test", TEST), ("val", VAL)):
            counts = positives[examples[:, split] > 0, split]
            summary |= {
                f"{POSITIVES}/{name}": float(counts.sum()),
                f"{POSITIVES}/{name}_fewest": float(min(counts, default=0)),
            }
        within = pairs["precision_at_1"][:, TEST, 1, positive].sum()
        together = math.ceil(examples[:, TEST].sum() / ALERTS)
        return summary | {f"{POSITIVES}/alerts": float(together), f"{POSITIVES}/alerts_within": float(within)}

    def coarse(self, pairs: Pairs) -> np.ndarray:
        """Which clients send how many of their examples are right, but no counts by class, or no loss where another
        client sends its loss."""
        examples, of_classes = pairs["accuracy"][:, :, 1].sum(-1), pairs["f1"][:, :, 1].sum((-1, -2))
        lossless = pairs["loss"][:, :, 1].sum(-1) == 0
        result: np.ndarray = (examples > 0) & ((of_classes == 0) | (lossless & ~lossless.all()))
        return result

    def of_each(self, pairs: Values) -> dict[str, float]:
        """Metrics of each class, or target, from pairs of one set."""
        return classification.by_class(pairs)

    def personal(self, pairs: Pairs) -> dict[str, np.ndarray]:
        """Metrics of every client's own model on the global test set, float64 [P]."""
        return classification.personal(pairs)

    def uncounted_share(self, summed: Pairs) -> float:
        """The share of the sums' examples that are in none of the histograms."""
        examples = summed["accuracy"][:, 1].sum() if summed else 0
        if not examples:
            return 0.0
        return float(1 - summed[f"histogram/{MARGINS}"][:, 0].sum() / examples)


class Labels(Classes):
    """Metrics where an example has several yes-or-no labels."""

    always: tuple[str, ...] = labels.ALWAYS
    ordering: tuple[str, ...] = ("auc", "average_precision")
    each = "per_target"

    def verdict(self, everyone: Pairs, judging: Judging) -> dict[str, float]:
        return judging.verdict_of(LABELS)

    def values(self, pairs: Pairs, positive: int = 1) -> dict[str, np.ndarray]:
        return labels.values(pairs)

    def means(self, pairs: Tree) -> Tree:
        return labels.means(pairs)

    def constant(self, pairs: Pairs) -> np.ndarray | None:
        return None

    def measure(self, pairs: Pairs, constant: np.ndarray | None, positive: int) -> Measured:
        return self.values(pairs), {}

    def positive_counts(self, pairs: Pairs, by: Mapping[str, float], positive: int) -> dict[str, float]:
        return {}

    def coarse(self, pairs: Pairs) -> np.ndarray:
        return np.zeros(len(pairs["loss"]), bool)

    def of_each(self, pairs: Values) -> dict[str, float]:
        return labels.of_each(pairs)

    def personal(self, pairs: Pairs) -> dict[str, np.ndarray]:
        return {}

    def uncounted_share(self, summed: Pairs) -> float:
        return 0.0


class Numbers(Labels):
    """Metrics where an example has numbers."""

    always: tuple[str, ...] = numbers.ALWAYS
    ordering: tuple[str, ...] = ("spearman",)

    def verdict(self, everyone: Pairs, judging: Judging) -> dict[str, float]:
        return judging.verdict_of(NUMBER)

    def values(self, pairs: Pairs, positive: int = 1) -> dict[str, np.ndarray]:
        return numbers.values(pairs)

    def means(self, pairs: Tree) -> Tree:
        return numbers.means(pairs)

    def constant(self, pairs: Pairs) -> np.ndarray | None:
        return numbers.train_means(pairs)

    def measure(self, pairs: Pairs, constant: np.ndarray | None, positive: int) -> Measured:
        metrics = numbers.values(pairs)
        if constant is not None and "moments" in pairs:
            metrics |= numbers.references(pairs, constant)
        return metrics, numbers.between_groups(pairs)

    def between(self, per_client: Pairs, metric: str, clients: Sequence[str]) -> dict[str, float]:
        """The spread of the RMSE divided by the client's own standard deviation. Without the division, the client with
        the widest numbers would always be the worst."""
        if NRMSE not in per_client:
            return {}
        loss, relative = per_client["loss"], per_client[NRMSE]
        evenness, _ = client_fairness(loss[:, TEST], relative[:, TEST], loss[:, TRAIN], clients, NRMSE)
        compared = of_members(metric)
        return evenness if compared == NRMSE else evenness | extremes(per_client, compared)

    def warnings(self, everyone: Pairs, trained_loss: np.ndarray | None) -> dict[str, float]:
        """No warnings: a loss has the units of the numbers, so no limit fits."""
        return {}

    def of_each(self, pairs: Values) -> dict[str, float]:
        return numbers.of_each(pairs)

    def personal(self, pairs: Pairs) -> dict[str, np.ndarray]:
        return numbers.personal(pairs)


CLASSES, LABEL_SETS, NUMBERS = Classes(), Labels(), Numbers()


def kind_by(pairs: Mapping[str, object]) -> Classes:
    """The kind of target, by the names of pairs or of their sums."""
    if "squared" in pairs:
        return NUMBERS
    return LABEL_SETS if "labels" in pairs else CLASSES


def always(pairs: Mapping[str, object]) -> tuple[str, ...]:
    """The metrics that are always counts, for pairs of this kind."""
    return kind_by(pairs).always


def means(pairs: Tree) -> Tree:
    """`Classes.values` of one client's pairs, float64 [S, 2] each, so that sums over clients give means."""
    return kind_by(pairs).means(pairs)


def pairs_of(outputs: Tensor, y: Tensor, masks: Tensor, target: str, scale: Tensor | None = None) -> Tree:
    """The pairs of a model's outputs [e, …] on the examples of masks bool [1, e]; scale: of numbers
    (`Dataset.target_scale`)."""
    if target == NUMBER:
        return numbers.counts(outputs, y, masks, scale)
    if target == LABELS:
        return labels.counts(outputs, y, masks)
    return classification.counts(outputs, y, masks)


def test_value(pairs: Sequence[Tree], metric: str, positive: int) -> Tensor:
    """A metric, a scalar, of the `pairs_of` several clients together; positive: the class of a metric of one."""
    value: Tensor = means(classification.merge(pairs))[metric][0, 0]
    return value[positive] if value.dim() else value


def extremes(per_client: Pairs, metric: str) -> dict[str, float]:
    """The worst and the best value of a metric over clients, and how many clients have no value."""
    value = per_client[metric][:, TEST] if metric in per_client else np.array([math.nan])
    defined = value[~np.isnan(value)]
    if not len(defined):
        return {}
    worst, best = (max, min) if lower(metric) else (min, max)
    summary = {f"fairness/worst_{metric}": float(worst(defined)), f"fairness/best_{metric}": float(best(defined))}
    return summary | {f"fairness/undefined_{metric}": float(len(value) - len(defined))}


def mean(of_clients: np.ndarray) -> float:
    """The mean over clients where it is defined."""
    defined = of_clients[~np.isnan(of_clients)]
    return float(defined.mean()) if len(defined) else math.nan


def selection_of(judging: Judging, labels: np.ndarray) -> tuple[str, int]:
    """The selection metric, and the class that it describes if it is of one, by the number of training examples of each
    class: `labels` [c]."""
    counts = np.zeros((3, 2, len(labels)))
    counts[TRAIN, classification.TRUE] = labels
    by = CLASSES.verdict({"classes": counts} if labels.any() else {}, judging)
    return selection_metric_of(by), positive_class(judging, by)

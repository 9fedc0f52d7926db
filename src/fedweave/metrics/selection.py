"""The metrics, the choice of the metric that selects rounds and models, the positive class, and the threshold from
which an example is flagged.

Nothing here needs torch, so that the command line starts quickly.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from fedweave.core.types import CLASS, LABELS, NOUNS, NUMBER, Kind, Record, Values
from fedweave.errors import ConfigError

HITS = (1, 3, 10, 50, 100)
PLAIN, RARE_OF_TWO, RARE_OF_MANY = "accuracy", "average_precision", "macro_f1"
BEST = "best_val"  # "best_val/<metric>" in a summary: value at the round that was best on validation examples
VERDICT = "judged"  # "judged/<metric>" in a summary: number of the positive class, or NONE for a metric without one
NONE = -1.0
# "scores/positive" in a summary: number of the positive class, where one of two is rare and the selection metric is of
# none.
POSITIVE = "scores/positive"
NEARLY = 0.1
THRESHOLD, HALF = "pooled/threshold", 0.5
RAREST = "scores/rarest"  # share of the rarest class among the training examples, where accuracy says little
TIED = "scores/tied"  # evaluations in a row, up to the last, in which all test examples had the same score
MAX_TIED = 3  # such evaluations after which a model does not recover
TIED_SENTENCE = (
    "all scores were equal in the last {} evaluations: the model tells no examples apart, as where all units of a "
    "hidden layer are below 0 at all nodes. More rounds will not help. Lower algorithm.lr, scale features, set "
    "model.norm, or for links model.decoder."
)
TARGET_SPREAD = "targets/apart"  # in a summary: how far members' means of numbers are apart, in typical deviations
SHELF_JOINT = "shelf_joint"  # likewise, where the tools also read what the joint model says
SHELF = "shelf"  # "shelf/local/<metric>" in a summary: what members reach alone with the tools on their shelf
ALONE = "alone"  # "alone/local/<metric>" in a summary: the same model, trained at each member on its own examples
DIVERGED_ALONE = f"{ALONE}/diverged"  # in the row of a member whose model diverged there
REFERENCE = "reference"  # "reference/<score>/<metric>" in a summary: a score of links without a model
CROSSING = "crossing"  # "crossing/<metric>" in a summary: links between members
# Beginnings of names in a summary that are of one round's models.
OF_A_ROUND = (
    *("global/", "local/", "trained/", "within/", "pooled/", "fairness/", "crossing/", "groups/"),
    *("intervals/", "per_class/", "per_target/"),
)
POSITIVES = "positives"  # "positives/test" in a summary: number of examples of the positive class
ALL_EXAMPLES, MEMBER_MEAN, WORST_MEMBER = "all examples", "member mean", "worst member"
CHOSEN_ROUND, LAST_ROUND = "chosen round", "last round"
RANKS_SAMPLED = "scores/ranks_sampled"  # in a summary: 1 if ranks of links are those of a sample, 0 if all are ranked
# {beginning of a name in a summary: what people read for it, on every screen}
WORDS_OF_PLACES = {
    "global": ALL_EXAMPLES,
    "local": MEMBER_MEAN,
    "trained": "after local training",
    "within": "within members",
    "pooled": "members ranked together",
    CROSSING: "links between members",
    f"{ALONE}/local": ALONE,
    ALONE: ALONE,
    f"{SHELF}/local": SHELF,
    SHELF: SHELF,
    f"{SHELF}/pooled": "shelf, pooled",
    f"{SHELF_JOINT}/local": "shelf, with joint columns",
    "groups/global": "between groups",
    "groups/median": "between groups, median of members",
    "fairness": "",
    REFERENCE: "",
    "val": "validation",
    "own/local": MEMBER_MEAN,
    "own/pooled": "members together",
}


@dataclass(frozen=True)
class Metric:
    """One number of a result, described once for settings, terminal, pages, sweeps, sites, payments and docs.

    title:    name in prose; "" for the words of its key.
    of:       the kinds of targets whose models it evaluates (`core.target`); () for a metric in only some part of a
              result (`report.result_names`).
    better:   which values are better, "high" or "low"; "" where neither are.
    note:     its meaning in a few words.
    positive: whether it describes one of two classes.
    judges:   whether it may be the selection metric ([evaluation] metric).
    fair:     the metric that compares members where this one selects; "" for itself.
    measure:  the entry of a site's policy.measures that lets it leave; "" for its own name.
    beside:   whether the terminal shows it below the selection metric.
    shown:    whether reports show the note next to the number.
    whole:    whether it counts something, so that it has no decimals.
    """

    title: str
    of: tuple[Kind, ...] = ()
    better: Literal["high", "low", ""] = "high"
    note: str = ""
    positive: bool = False
    judges: bool = True
    fair: str = ""
    measure: str = ""
    beside: bool = False
    shown: bool = True
    whole: bool = False


RMSE, NRMSE, RMSE_OF_MEAN = "rmse", "nrmse", "rmse_of_mean"
METRICS: dict[str, Metric] = {
    PLAIN: Metric(
        "accuracy", (CLASS, LABELS), note="share of examples whose prediction is right", beside=True, shown=False
    ),
    "macro_f1": Metric("macro F1", (CLASS,), note="mean over classes", measure="classes", beside=True),
    "auc": Metric("AUC", (CLASS, LABELS), note="one class against the rest", beside=True),
    "average_precision": Metric(
        "average precision",
        (CLASS, LABELS),
        note="of the positive class; its share of the examples by chance",
        positive=True,
        beside=True,
    ),
    "recall_at_1": Metric(
        "recall at 1 % of alerts",
        (CLASS,),
        note="positives among the hundredth of examples with the highest scores",
        positive=True,
    ),
    "precision_at_1": Metric(
        "precision at 1 % of alerts",
        (CLASS,),
        note="positives among these alerts, the hundredth with the highest scores",
        positive=True,
        judges=False,
    ),
    "recall": Metric(
        "recall",
        (CLASS,),
        note="positives for which that is the more probable class",
        positive=True,
        judges=False,
        measure="classes",
    ),
    "precision": Metric(
        "precision",
        (CLASS,),
        note="positives among those for which it is the more probable class",
        positive=True,
        judges=False,
        measure="classes",
    ),
    "f1_positive": Metric(
        "F1 of the positive class",
        (CLASS,),
        note="harmonic mean of recall and precision",
        positive=True,
        measure="classes",
    ),
    RMSE: Metric(
        "RMSE",
        (NUMBER,),
        "low",
        "root of the mean squared error, in the data's units",
        fair=NRMSE,
        measure="loss",
        beside=True,
    ),
    "mae": Metric(
        "MAE", (NUMBER,), "low", "mean absolute error, in the data's units", fair=NRMSE, measure="loss", beside=True
    ),
    "r2": Metric(
        "R²", (NUMBER,), note="share of the variance that predictions explain", measure="classes", beside=True
    ),
    "pearson": Metric(
        "Pearson correlation",
        (NUMBER,),
        note="linear correlation, of numbers and predictions, or of contribution and reward",
        measure="classes",
    ),
    "spearman": Metric("Spearman correlation", (NUMBER,), note="correlation of ranks within members", measure="auc"),
    NRMSE: Metric(
        "RMSE / standard deviation",
        (NUMBER,),
        "low",
        "RMSE over the standard deviation of the same examples",
        measure="classes",
    ),
    "mrr": Metric("MRR", (CLASS,), note="mean of 1 / rank of a link among pairs that are none", measure="ranks"),
    **{
        f"hits_at_{k}": Metric(f"Hits@{k}", (CLASS,), note=f"links whose rank is at most {k}", measure="ranks")
        for k in HITS
    },
    "recall_at_20": Metric(
        "recall@20", (CLASS,), note="share of a user's items among the first 20 of its list", measure="ranks"
    ),
    "ndcg_at_20": Metric(
        "NDCG@20", (CLASS,), note="discounted gain of these lists, 1 if they are in the best order", measure="ranks"
    ),
    RMSE_OF_MEAN: Metric(
        "RMSE of the training mean", (NUMBER,), "low", "RMSE of always predicting the mean of training", judges=False
    ),
    "loss": Metric(
        "loss",
        (CLASS, NUMBER, LABELS),
        "low",
        "mean cross-entropy, nats; of numbers the mean squared error in units of the training examples",
        judges=False,
    ),
}
OF_POSITIVE = tuple(name for name, metric in METRICS.items() if metric.positive)
OF_LISTS = ("recall_at_20", "ndcg_at_20")  # of all items for each user
OF_RANKS = tuple(name for name, metric in METRICS.items() if metric.measure == "ranks")  # of links
OF_SCORES = tuple(name for name in OF_POSITIVE if not METRICS[name].measure)  # independent of the threshold
OF_ORDER = ("auc", "spearman", *OF_SCORES, *OF_RANKS)  # examples are sorted for them, which takes longest
JUDGES = tuple(name for name, metric in METRICS.items() if metric.judges)
BESIDE = tuple(name for name, metric in METRICS.items() if metric.beside)
AUTO: dict[Kind, str] = {NUMBER: RMSE, LABELS: "auc"}  # the default selection metric; for classes see `Judging`


def title_of(metric: str) -> str:
    """A metric's name in prose: its key in words if it is not built in, "result" if it has no key."""
    return METRICS[metric].title if metric in METRICS else metric.replace("_", " ") or "result"


def metrics_of(target: Kind, classes: int) -> tuple[str, ...]:
    """The metrics of models that predict such targets, without losses, ranks and references; `classes`: their
    number."""
    names = []
    for name, metric in METRICS.items():
        measured = target in metric.of and (metric.judges or metric.positive) and name not in OF_RANKS
        if measured and (target != CLASS or classes == 2 or not metric.positive):
            names.append(name)
    return tuple(names)


def lower(name: str) -> bool:
    """Whether lower values are better for a metric, such as "rmse", or for its entry in a summary, "global/rmse"."""
    metric = METRICS.get(name.rpartition("/")[2])
    return metric is not None and metric.better == "low"


def is_possible(name: str, value: float) -> bool:
    """Whether a metric can have this value, by its name alone: "accuracy" is at most 1, "rmse" not below 0."""
    if not math.isfinite(value):
        return False
    if lower(name):
        return value >= 0
    return value <= 1 and (value >= -1 or name.rpartition("/")[2] == "r2")


def rank(name: str, value: float) -> float:
    """A value that is larger where the metric `name` is better."""
    return -value if lower(name) else value


def of_members(metric: str) -> str:
    """The metric that compares members where `metric` selects."""
    return METRICS[metric].fair or metric if metric in METRICS else metric


Threshold = float | str | Values  # see `Judging`
Ranks = Literal["auto", "all", "needed"]  # see `Judging`


@dataclass(frozen=True)
class Judging:
    """How a run selects and evaluates: the section [evaluation] of a configuration.

    metric:    selection metric, which best rounds, gains, stars, notes and sweeps follow. "auto" is the accuracy or,
               where a class is rare in training (`metrics.classification.rarest`), average precision of the rarer of
               two classes, macro F1 of more. For numbers it is the RMSE, for several labels the mean AUC.
    positive:  class, by name or number, that metrics of one class describe; without it the rarer of two in training
               where that is rare, whichever metric selects, else class 1.
    threshold: probability of the positive class from which on an example is flagged. "f1": the one with the highest F1
               on validation examples; {recall_at = 0.01}: the one that flags this share of them; {cost = {miss = 50,
               alarm = 1}}: the one with the lowest cost there; "auto": "f1" where a metric of the positive class
               selects, else 0.5.
    intervals: share of examples that prediction intervals of numbers are to cover, such as 0.9; 0 for none.
    ranks:     which evaluations of a simulation sort examples, which takes most of their time, for AUC, average
               precision, recall and precision of alerts, Spearman's correlation and ranks of links. "needed": the
               first, the last and each that is the best so far, and all where the selection metric or fairness between
               groups needs them, or a mechanism protects what evaluations send; "all"; "auto": "needed" from 50,000
               examples on, else "all". Other numbers and the result are the same. Where examples are links, these
               evaluations rank a sample, the same in each: at most 5,000 queries of validation and 5,000 of test over
               all clients, of each client in proportion, and at least 100 or all that it has. The sample chooses the
               round, so that "best_val/val/…" is of it. At the end all links of the chosen round are ranked, or of the
               last one without validation examples; "scores/ranks_sampled" says so of each round.
    """

    metric: str = "auto"
    positive: str | int | None = None
    threshold: Threshold = "auto"
    intervals: float = 0.0
    ranks: Ranks = "auto"

    @property
    def flags(self) -> bool:
        """Whether these settings ask for examples of two classes to be flagged."""
        return self.metric in OF_POSITIVE or self.positive is not None or self.threshold != "auto"

    def plain(self) -> Record:
        """The TOML table that produces these settings."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    def of(self, labels: Sequence[str], classes: int, target: Kind = CLASS) -> "Judging":
        """These settings with the number of the positive class.

        labels: the classes' names, () if unknown. target: the kind of target.

        Raises:
            ConfigError: there is no such class; the metric needs two classes, and the data has another number; or the
                metric is for another kind of target.
        """
        if self.metric != "auto" and target not in METRICS[self.metric].of:
            fits = ", ".join(name for name, metric in METRICS.items() if target in metric.of and metric.judges)
            raise ConfigError(
                f"evaluation.metric = {self.metric!r}: the data has {NOUNS[target]}, which it does not judge. Take one "
                f"of {fits}.",
                code="config.metric",
            )
        if self.intervals and target != NUMBER:
            raise ConfigError(
                f"evaluation.intervals = {self.intervals:g}: prediction intervals are of numbers, and the data has "
                f"{NOUNS[target]}. Leave it out.",
                code="config.intervals",
            )
        if target != CLASS:
            if self.positive is not None or self.threshold != "auto":
                raise ConfigError(
                    f"evaluation: positive and threshold are of classes, and the data has {NOUNS[target]}. Leave them "
                    "out.",
                    code="config.no-class",
                )
            return self
        number = self.positive
        if isinstance(number, str):
            if number not in labels:
                named = ", ".join(labels) or f"numbers, 0 to {classes - 1}: give one of these"
                raise ConfigError(
                    f"evaluation.positive: there is no class {number!r}. The classes are {named}.",
                    code="config.no-class",
                )
            number = list(labels).index(number)
        if number is not None and number >= classes:
            raise ConfigError(
                f"evaluation.positive: is {number}, and the classes are 0 to {classes - 1}.", code="config.no-class"
            )
        if self.metric in OF_POSITIVE and classes != 2:
            raise ConfigError(
                f"evaluation.metric: {self.metric} is of the positive one of two classes, and the data has {classes}. "
                "Take macro_f1, auc or accuracy.",
                code="config.classes",
            )
        return Judging(self.metric, number, self.threshold, self.intervals, self.ranks)

    def verdict_of(self, target: Kind) -> dict[str, float]:
        """{"judged/<metric>": NONE} for targets that are not classes."""
        return {f"{VERDICT}/{AUTO[target] if self.metric == 'auto' else self.metric}": NONE}

    def verdict(self, classes: int, rarest: float, rarer: int) -> dict[str, float]:
        """{"judged/<metric>": the positive class}, {} where the automatic choice is the accuracy; with `POSITIVE` where
        one of two classes is rare and the metric is of none.

        rarest: the share of the rarest class in training if it is rare, else NaN. rarer: the number of that class.
        """
        is_rare, rare = not math.isnan(rarest), dict[str, float]()
        if is_rare and classes == 2:
            rare = {POSITIVE: float(self.positive if isinstance(self.positive, int) else rarer)}
        metric = self.metric
        if metric == "auto":
            if not is_rare:
                return {}
            metric = RARE_OF_TWO if classes == 2 else RARE_OF_MANY
        if metric in OF_POSITIVE:
            return {f"{VERDICT}/{metric}": float(positive_class(self, rare))}
        return {f"{VERDICT}/{metric}": NONE} | rare


class Flagging(NamedTuple):
    """Which examples of two classes are flagged: those whose probability of the class `positive` is at least
    `threshold`."""

    positive: int
    threshold: float


def flagging(judging: Judging, metrics: Mapping[str, float | None]) -> Flagging | None:
    """How a run of two classes flags examples. None if it has no positive class to look for. None also if validation
    examples should choose a threshold and did not, because no single model served all of them.

    judging: with the number of the positive class. metrics: of the run's summary.
    """
    if positive_of(metrics) is None and judging.positive is None and judging.threshold == "auto":
        return None
    threshold, how = metrics.get(THRESHOLD), judging.threshold
    if threshold is None:
        if isinstance(how, float | int):
            threshold = how
        elif how == "auto":
            threshold = HALF
        else:
            return None
    return Flagging(positive_class(judging, metrics), float(threshold))


def chooses_threshold(judging: Judging, metrics: Mapping[str, float | None]) -> bool:
    """Whether a run chooses a threshold on validation examples."""
    is_number = isinstance(judging.threshold, float | int)
    return not is_number and (judging.threshold != "auto" or positive_of(metrics) is not None)


def positive_class(judging: Judging, metrics: Mapping[str, float | None]) -> int:
    """The number of the class that metrics of one class describe: what a run has chosen, else the one that `judging`
    names, else 1. metrics: of the run's summary. judging: with the number of that class."""
    positive = positive_in(metrics)
    if positive is not None:
        return positive
    return judging.positive if isinstance(judging.positive, int) else 1


def selection_entries(metrics: Mapping[str, float]) -> dict[str, float]:
    """The entries of a summary that an evaluation has from the one before: selection metric and positive class."""
    return {name: value for name, value in metrics.items() if name.startswith(f"{VERDICT}/") or name == POSITIVE}


def entries_of(metric: str, positive: int) -> dict[str, float]:
    """These entries for a selection metric and the number of the positive class, -1 for none."""
    if metric in OF_POSITIVE:
        return {f"{VERDICT}/{metric}": float(positive)}
    return {f"{VERDICT}/{metric}": NONE} | ({POSITIVE: float(positive)} if positive >= 0 else {})


def of_best(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    """A summary's entries for the round that was best on validation examples, and for its selection metric."""
    prefixes = (f"{VERDICT}/", RAREST, POSITIVE)
    entries = {name: value for name, value in metrics.items() if name.startswith(prefixes)}
    best = {name.removeprefix(f"{BEST}/"): value for name, value in metrics.items() if name.startswith(f"{BEST}/")}
    return entries | {name: value for name, value in best.items() if "/" in name and not name.startswith("val/")}


def of_result(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """The metrics of the round that is a run's result: the one that validation chose, else the last. Entries that are
    not of one round's models stay. summary: content of summary.json."""
    metrics: dict[str, float | None] = summary["metrics"]
    if "chosen_round" not in summary:
        return metrics
    others = {name: value for name, value in metrics.items() if not name.startswith(OF_A_ROUND)}
    return others | of_best(metrics)


def sample_words(metric: str, sampled: bool) -> str:
    """What follows a metric's value: ", a sample of the links" if it is of ranks and these are `sampled`, else ""."""
    return ", a sample of the links" if sampled and metric in OF_RANKS else ""


def near_constant(predicted: float, true: float) -> bool:
    """Whether nearly all examples get one prediction: one of two classes is predicted for fewer than a tenth of the
    number of its examples. predicted, true: shares of the one class."""
    return predicted < NEARLY * true or 1 - predicted < NEARLY * (1 - true)


def selection_metric_of(metrics: Mapping[str, float | None]) -> str:
    """The selection metric of a run, by its summary."""
    for name in metrics:
        if name.startswith(f"{VERDICT}/"):
            return name.removeprefix(f"{VERDICT}/")
    return PLAIN if metrics.get(RAREST) is None else RARE_OF_MANY


def positive_of(metrics: Mapping[str, float | None]) -> int | None:
    """The number of the class that the selection metric describes; None where it describes none."""
    number = metrics.get(f"{VERDICT}/{selection_metric_of(metrics)}")
    return None if number is None or number < 0 else int(number)


def positive_in(metrics: Mapping[str, float | None]) -> int | None:
    """The number of the positive class in a summary, also where the selection metric is of none; None without one."""
    positive, number = positive_of(metrics), metrics.get(POSITIVE)
    return positive if positive is not None or number is None else int(number)


def headline(metrics: Mapping[str, float | None]) -> str:
    """ "accuracy 0.8123 all examples, 0.7912 member mean" of an evaluation, by its selection metric; "" without it."""
    name = selection_metric_of(metrics)
    values = {kind: metrics.get(f"{kind}/{name}") for kind in ("global", "local")}
    texts = [f"{value:.4f} {WORDS_OF_PLACES[kind]}" for kind, value in values.items() if value is not None]
    return f"{title_of(name)} {', '.join(texts)}" if texts else ""

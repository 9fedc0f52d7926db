"""Cells of tables: how numbers are written, which way is better, and what stands for a missing one."""

import math
import re
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from fedweave.core.types import Record
from fedweave.experiment.config import differences, flat
from fedweave.metrics.selection import BEST, CROSSING, HITS, METRICS, OF_POSITIVE, PLAIN, REFERENCE, WITHOUT_GRAPH
from fedweave.report.reading import Group, Run, spread


def interval(values: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """The two-sided 95 % interval of the mean of independent normal values, by Student's t; None of fewer than two."""
    from scipy.stats import t  # slow to import

    if len(values) < 2:
        return None, None
    half = t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return mean - float(half), mean + float(half)


def paired_differences(one: Mapping[Hashable, float], other: Mapping[Hashable, float]) -> list[float]:
    """One minus the other for every seed that both have, {seed: value} each."""
    return [one[seed] - other[seed] for seed in one if seed in other]


LEAST_SEEDS = 3  # that say anything: two have an interval of width 0 as often as their differences are equal


def sign(found: Sequence[float]) -> int:
    """What the paired test says of differences, one for each seed: 1 if their 95 % interval lies above 0, -1 if it lies
    below; else 0, as of fewer than `LEAST_SEEDS`."""
    low, high = interval(found)
    if low is None or high is None or len(found) < LEAST_SEEDS:
        return 0
    return int(low > 0) - int(high < 0)


LEVEL = 0.05


def signs(several: Sequence[Sequence[float]]) -> list[int]:
    """What paired tests say of the differences of several groups to the same one, as `sign` does of one: 1, -1 or 0, at
    a level of 5 % for all of them together (Holm 1979, "A simple sequentially rejective multiple test procedure").

    several: differences of each group, one for each seed; groups of fewer than `LEAST_SEEDS` are not tested.
    """
    ways = [sign(differences) for differences in several]
    order = sorted((_p(differences), at) for at, differences in enumerate(several) if len(differences) >= LEAST_SEEDS)
    while order and order[0][0] <= LEVEL / len(order):
        order.pop(0)
    for _, at in order:
        ways[at] = 0
    return ways


def _p(values: Sequence[float]) -> float:
    """Of the two-sided t-test that the mean of independent normal values is 0."""
    from scipy.stats import t  # slow to import

    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    return float(not mean) if not error else 2 * float(t.sf(abs(mean) / error, len(values) - 1))


def surely_above(one: Mapping[Hashable, float], other: Mapping[Hashable, float]) -> bool:
    """Whether the paired test over their common seeds says that one is above the other (`sign`)."""
    return sign(paired_differences(one, other)) > 0


NONE = "-"
MOST = 25  # rows at either end of a long table
_LEAST = 1e-9  # below it a number is as good as 0
_PLAIN_NUMBER = re.compile(r"[-\N{MINUS SIGN}+]?[\d,]+(\.\d+)?")

# Which way is better, by the last part of a metric's name; others are not marked.
_ENDS = ("", "worst_", "best_")
HIGHER = (
    *(f"{kind}{name}" for name, metric in METRICS.items() if metric.better == "high" for kind in _ENDS),
    *(f"{kind}recall_at_5" for kind in _ENDS),
    *("f1", "test_loss_entropy", "tradeoff_accuracy", "tradeoff_auc", "tradeoff_skill"),
)
ACCURACIES = (*("accuracy", "f1", "worst_accuracy", "best_accuracy"), *("accuracy_deviation", "tradeoff_accuracy"))
LOWER = (
    *(f"{kind}{name}" for name, metric in METRICS.items() if metric.better == "low" for kind in _ENDS),
    *("brier", "calibration_error", "test_loss_variance", "accuracy_deviation", "nrmse_deviation"),
    *("sp", "eo", "equalised_odds"),
)

NOTES = {
    "loss": "mean cross-entropy, nats; of numbers the mean squared error in units of the training examples",
    "rmse": "root of the mean squared error, in the data's units",
    "mae": "mean absolute error, in the data's units",
    "r2": "share of the variance that predictions explain",
    "nrmse": "RMSE over the standard deviation of the same examples",
    "spearman": "correlation of ranks within members",
    "pooled/spearman": "correlation of ranks, all members' examples together",
    "rmse_of_mean": "RMSE of always predicting the mean of training",
    "labels": "how many labels have examples of both kinds; means are over these",
    "nrmse_deviation": "standard deviation over clients of RMSE / standard deviation",
    "worst_nrmse": "of the client served worst, by its own spread",
    "best_nrmse": "of the client served best, by its own spread",
    "coverage": "share of test examples inside their interval, mean over members",
    "worst_coverage": "coverage at the member with the lowest",
    "width": "mean width of the intervals",
    "nominal": "share that the intervals are to cover",
    "least_coverage": "coverage below which chance does not explain the difference from that share",
    "apart": "of members' means of the target, in its typical deviations, where each member scales by its own",
    "bin_error": "how much too wide intervals may be, by the bins of the sum",
    "f1": "micro average",
    "macro_f1": "mean over classes",
    "auc": "one class against the rest",
    "pooled/auc": "one model's, all members' examples compared with each other",
    "within/auc": "over pairs of examples of the same member",
    "within/members": "that AUC, or order, within members is of: those with examples of two classes, or numbers",
    "average_precision": "of the positive class; its share of the examples by chance",
    "recall_at_1": "positives among the hundredth of examples with the highest scores",
    "recall_at_5": "positives among the twentieth of examples with the highest scores",
    "precision_at_1": "positives among these alerts, the hundredth with the highest scores",
    "recall": "positives for which that is the more probable class",
    "precision": "positives among those for which it is the more probable class",
    "f1_positive": "harmonic mean of recall and precision",
    "pooled/recall": "positives that are flagged: from the threshold on",
    "pooled/precision": "positives among the flagged",
    "pooled/f1_positive": "harmonic mean of recall and precision of the flagged",
    "brier": "mean squared error of probabilities",
    "calibration_error": "probabilities less shares, 15 bins",
    "flagged": "share of examples from the threshold on",
    "threshold": "probability from which on an example is flagged, by all members' validation examples",
    "within/average_precision": "mean over positives, each at its own member",
    "mrr": "mean of 1 / rank of a link among pairs that are none",
    **{f"hits_at_{most}": f"links whose rank is at most {most}" for most in HITS},
    "recall_at_20": "share of a user's items among the first 20 of its list",
    "ndcg_at_20": "discounted gain of these lists, 1 if they are in the best order",
    "majority": "accuracy of always predicting the most frequent class of training",
    "matched_accuracy": "of the clients with training examples, whom majority is of",
    "classes_predicted": "how many classes the model predicts",
    "test_loss_variance": "0 if every client has the same test loss",
    "test_loss_entropy": "nats; highest if all test losses are equal",
    "accuracy_deviation": "standard deviation over clients of the test accuracy",
    "train_loss_variance": "of training losses, FairGFL's definition; small wherever models memorize",
    "train_loss_entropy": "of training losses, nats; highest if all are equal",
    "worst_accuracy": "of the client served worst",
    "best_accuracy": "of the client served best",
    "round": "with the best mean over clients on validation examples",
    "undefined_clients": "without a loss or a test accuracy",
    "sp": "statistical parity gap; 0 is fair",
    "eo": "equal opportunity gap; 0 is fair",
    "pearson": "linear correlation, of numbers and predictions, or of contribution and reward",
}
ALERTING = ("recall_at_1", "precision_at_1")  # and what the threshold finds, where one class is looked for
FLAGGING = ("pooled/threshold", "pooled/recall", "pooled/precision", "pooled/flagged")


@dataclass(frozen=True)
class Cell:
    """One cell: its text, the unrounded value (shown on pointing at it), small print, and whether it is the best."""

    text: str
    exact: str = ""
    note: str = ""
    best: bool = False


@dataclass(frozen=True)
class ResultTable:
    """A table; its first `words` columns hold words, the others numbers."""

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    words: int = 1


def ends(rows: Sequence[tuple[Cell, ...]]) -> tuple[tuple[Cell, ...], ...]:
    """The rows or, of many, the first and the last of them, and between these how many there are more."""
    left_out = len(rows) - 2 * MOST
    if left_out <= MOST:
        return tuple(rows)
    between = (Cell(f"… {left_out:,} more"), *[Cell("")] * (len(rows[0]) - 1))
    return (*rows[:MOST], between, *rows[-MOST:])


def measured(values: Sequence[float | None], form: Callable[[float], str]) -> Cell:
    """One value, or mean ± sample standard deviation over the runs where it is defined."""
    mean, deviation, n = spread(values)
    if not n:
        return Cell(NONE)
    note = f"in {n} of {len(values)} runs" if n < len(values) else ""
    exact = ", ".join(NONE if value is None else repr(value) for value in values)
    return Cell(form(mean) if n == 1 else f"{form(mean)} ± {_beside(deviation, form(mean), form)}", exact, note)


def _beside(deviation: float, mean: str, form: Callable[[float], str]) -> str:
    """A deviation with as many decimals as the mean that it stands beside; "0" only of none at all."""
    if not _PLAIN_NUMBER.fullmatch(mean):
        return form(deviation)
    decimals = len(mean.partition(".")[2])
    shown, least = f"{deviation:,.{decimals}f}", 10.0**-decimals
    return "0" if not deviation else shown if deviation >= least / 2 else f"<{least:.{decimals}f}"


def number(value: float) -> str:
    """Four decimals, or as many as two digits need of what is smaller than that can show."""
    small = _LEAST <= abs(value) < 0.001
    return f"{value:.{1 - math.floor(math.log10(abs(value)))}f}" if small else f"{value:.4f}"


def signed(value: float, form: Callable[[float], str] = number) -> str:
    """A difference with its sign."""
    return ("+" if value >= 0 else "\N{MINUS SIGN}") + form(abs(value))


def judging(by: str) -> tuple[str, ...]:
    """The metrics, by the last part of their names, that say which of two runs is better where they are judged `by`
    one: no accuracies where that is another."""
    return tuple(name for name in HIGHER + LOWER if by == PLAIN or name not in ACCURACIES)


def marked(cells: list[Cell], values: Sequence[Mapping[object, float]], last: str, by: str = PLAIN) -> list[Cell]:
    """Mark what is better than every other by a paired test over seeds (`surely_above`). values: {seed: value} of each
    cell."""
    if last not in judging(by):
        return cells
    way = 1 if last in HIGHER else -1
    oriented = [{seed: way * value for seed, value in by_seed.items()} for by_seed in values]
    best = [
        len(oriented) > 1 and all(surely_above(by_seed, other) for j, other in enumerate(oriented) if j != i)
        for i, by_seed in enumerate(oriented)
    ]
    return [replace(cell, best=is_best) for cell, is_best in zip(cells, best, strict=True)]


def leading(judged: str) -> Callable[[str], bool]:
    """Whether a metric of the summary is to be seen first: all of them, but what judges and what alerts find where a
    positive class is looked for."""
    last = (judged, *ALERTING)
    return lambda name: judged not in OF_POSITIVE or name.rpartition("/")[2] in last or name in FLAGGING


def explained(name: str) -> str:
    """What a metric is, whatever round it is of."""
    within, last = name.removeprefix(f"{BEST}/"), name.rpartition("/")[2]
    if last.startswith("undefined_"):
        return NOTES.get(last, "without a positive test example, or a score: in no mean over clients of these metrics")
    if within.startswith(f"{WITHOUT_GRAPH}/"):
        return "of a regression on features alone, which knows no graph"
    if within.startswith(f"{CROSSING}/"):
        return "of test pairs with one end at another member, at each member that knows the pair"
    if within.startswith(f"{REFERENCE}/"):
        return "of a score that knows the training edges alone, on the same test pairs"
    return NOTES.get(within, NOTES.get(last, ""))


# ----------------------------------------------------------------------------------------------------
# How a run's members train, as its configuration has it: what a comparison of algorithms should have alike.


UNLIKE = (
    "The algorithms do not train alike: {told}. A difference between them may be that of the learning rate or of the "
    "amount of training. Give them the same, or each its own best, chosen on validation (--grid)."
)


_ASIDE = (
    "algorithm",
    "engine",
    "seed",
    "eval_every",
    "fair_margin",
    "evaluation",
    "privacy",
    "requester",
    "purpose",
)  # what a comparison may differ in


def recipe(run: Run) -> str:
    """ "adam, lr 0.01, 25 steps of 32 examples": how each member trains in a round."""
    section = run.section("algorithm")
    words = [str(section["optimizer"])] if "optimizer" in section else []
    words += [f"lr {section['lr']}"] if "lr" in section else []
    if steps := _steps(section):
        words.append(f"{steps} step{'s' * (steps != 1)} of {_examples(section)}")
    return ", ".join(words) or NONE


def unlike(groups: Sequence[Group]) -> list[str]:
    """Sentences where an algorithm was run under other conditions than the first one, or two of them have no way to
    train in common; none where all is alike."""
    sentences, first = list[str](), groups[0].first
    for group in groups[1:]:
        apart = conditions(group.first, first) if group.first.summary["algorithm"] != first.summary["algorithm"] else ""
        sentences += (
            [f"{group.label} has {apart}: a difference to {groups[0].label} may come from that."] if apart else []
        )
    return [*sentences, *_trained_unlike(groups)]


def _trained_unlike(groups: Sequence[Group]) -> list[str]:
    ways: dict[str, dict[str, None]] = {}
    for group in groups:
        ways.setdefault(str(group.first.summary["algorithm"]), {})[recipe(group.first)] = None
    if all(not one.keys().isdisjoint(other) for one in ways.values() for other in ways.values()):
        return []
    alike: dict[str, list[str]] = {}
    for name, recipes in ways.items():
        alike.setdefault(" or ".join(recipes), []).append(name)
    return [UNLIKE.format(told="; ".join(f"{', '.join(names)} with {way}" for way, names in alike.items()))]


def conditions(one: Run, other: Run) -> str:
    """In what two runs differ besides the algorithm, "rounds = 3 where the other has 100"; "" if in nothing."""
    mine, theirs = flat(one.config), flat(other.config)
    keys = [key for key in differences(mine, theirs) if key.partition(".")[0] not in _ASIDE]
    return ", ".join(f"{key} = {mine.get(key)} where the other has {theirs.get(key)}" for key in keys)


def _steps(section: Record) -> int:
    for name in ("local_steps", "steps"):
        if isinstance(section.get(name), int):
            return int(section[name])
    batches, epochs = section.get("batches"), section.get("epochs")
    return batches * epochs if isinstance(batches, int) and isinstance(epochs, int) else 0


def _examples(section: Record) -> str:
    parts = [part for part in section.get("parts") or () if isinstance(part, dict)]
    batch = next((settings["batch"] for settings in (section, *parts) if settings.get("batch")), None)
    return "all examples" if batch is None else f"{batch} examples"

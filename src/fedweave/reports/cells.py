"""Cells of tables: how numbers are written, which direction is better, and how a missing number is shown."""

import math
import re
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from fedweave.core.types import Record
from fedweave.experiment.config import differences, flat
from fedweave.metrics.selection import BEST, CROSSING, OF_POSITIVE, PLAIN, REFERENCE, WITHOUT_GRAPH
from fedweave.reports.reading import Group, Run, spread
from fedweave.reports.result_names import better, note


def interval(values: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """The two-sided 95 % interval of the mean of independent normal values, by Student's t; None for fewer than two."""
    from scipy.stats import t  # slow to import

    if len(values) < 2:
        return None, None
    half = t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return mean - float(half), mean + float(half)


def paired_differences(one: Mapping[Hashable, float], other: Mapping[Hashable, float]) -> list[float]:
    """One minus the other for every seed that both have, {seed: value} each."""
    return [one[seed] - other[seed] for seed in one if seed in other]


LEAST_SEEDS = 3  # that a test needs: two seeds have an interval of width 0 whenever their differences are equal


def sign(seed_differences: Sequence[float]) -> int:
    """The result of the paired test on differences, one for each seed.

    Returns 1 if their 95 % interval lies above 0 and -1 if it lies below; else 0, also for fewer than `LEAST_SEEDS`.
    """
    low, high = interval(seed_differences)
    if low is None or high is None or len(seed_differences) < LEAST_SEEDS:
        return 0
    return int(low > 0) - int(high < 0)


LEVEL = 0.05


def signs(several: Sequence[Sequence[float]]) -> list[int]:
    """The results of paired tests on the differences of several groups to the same group, as `sign` for one: 1, -1 or
    0.

    The level is 5 % for all of them together (Holm 1979, "A simple sequentially rejective multiple test procedure").

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
    """The p-value of the two-sided t-test that the mean of independent normal values is 0."""
    from scipy.stats import t  # slow to import

    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    return float(not mean) if not error else 2 * float(t.sf(abs(mean) / error, len(values) - 1))


def surely_above(one: Mapping[Hashable, float], other: Mapping[Hashable, float]) -> bool:
    """Whether the paired test over the seeds that both have shows one above the other (`sign`)."""
    return sign(paired_differences(one, other)) > 0


NONE = "-"
MOST = 25  # rows at either end of a long table
_LEAST = 1e-9  # below it a number is as good as 0
_PLAIN_NUMBER = re.compile(r"[-\N{MINUS SIGN}+]?[\d,]+(\.\d+)?")

ACCURACIES = (*("accuracy", "f1", "worst_accuracy", "best_accuracy"), *("accuracy_deviation", "tradeoff_accuracy"))
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
    """The rows; of a long table the first and the last `MOST`, and between them a row with the number of rows left
    out."""
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
    return Cell(form(mean) if n == 1 else f"{form(mean)} ± {_deviation(deviation, form(mean), form)}", exact, note)


def _deviation(deviation: float, mean: str, form: Callable[[float], str]) -> str:
    """A deviation with the number of decimals of its mean; "0" only if there is no deviation."""
    if not _PLAIN_NUMBER.fullmatch(mean):
        return form(deviation)
    decimals = len(mean.partition(".")[2])
    shown, least = f"{deviation:,.{decimals}f}", 10.0**-decimals
    return "0" if not deviation else shown if deviation >= least / 2 else f"<{least:.{decimals}f}"


def number(value: float) -> str:
    """A number with four decimals; a smaller one with as few decimals as show two digits."""
    small = _LEAST <= abs(value) < 0.001
    return f"{value:.{1 - math.floor(math.log10(abs(value)))}f}" if small else f"{value:.4f}"


def signed(value: float, form: Callable[[float], str] = number) -> str:
    """A difference with its sign."""
    return ("+" if value >= 0 else "\N{MINUS SIGN}") + form(abs(value))


def direction(name: str, by: str) -> int:
    """1 where higher values of a metric are better, -1 where lower ones are, 0 where it does not decide between two
    runs.

    No accuracy decides between runs whose selection metric (`by`) is another one.
    """
    if by != PLAIN and name.rpartition("/")[2] in ACCURACIES:
        return 0
    return {"high": 1, "low": -1, "": 0}[better(name)]


def marked(cells: list[Cell], values: Sequence[Mapping[object, float]], last: str, by: str = PLAIN) -> list[Cell]:
    """Mark the cell that a paired test over seeds (`surely_above`) shows better than every other.

    values: {seed: value} for each cell.
    """
    if not (sign := direction(last, by)):
        return cells
    oriented = [{seed: sign * value for seed, value in by_seed.items()} for by_seed in values]
    best = [
        len(oriented) > 1 and all(surely_above(by_seed, other) for j, other in enumerate(oriented) if j != i)
        for i, by_seed in enumerate(oriented)
    ]
    return [replace(cell, best=is_best) for cell, is_best in zip(cells, best, strict=True)]


def leading(selection_metric: str) -> Callable[[str], bool]:
    """Whether a metric of the summary is shown first.

    All metrics are, except where a positive class is looked for: there only the selection metric and metrics of
    alerts.
    """
    last = (selection_metric, *ALERTING)
    return lambda name: selection_metric not in OF_POSITIVE or name.rpartition("/")[2] in last or name in FLAGGING


def explained(name: str) -> str:
    """What a metric is, in any round."""
    within, last = name.removeprefix(f"{BEST}/"), name.rpartition("/")[2]
    if last.startswith("undefined_"):
        return note(last) or "without a positive test example, or a score: in no mean over clients of these metrics"
    if within.startswith(f"{WITHOUT_GRAPH}/"):
        return "of a regression on features only, without the graph"
    if within.startswith(f"{CROSSING}/"):
        return "of test pairs with one end at another member, at each member that knows the pair"
    if within.startswith(f"{REFERENCE}/"):
        return "of a score that knows only the training edges, on the same test pairs"
    return note(within)


# ----------------------------------------------------------------------------------------------------
# How a run's members train, by its configuration: a comparison of algorithms should train all of them in the same way.


UNLIKE = (
    "The algorithms do not train in the same way: {ways}. A difference between them may come from the learning rate or "
    "from the amount of training. Give all the same settings, or choose the best of each on validation (--grid)."
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
    """Sentences on algorithms that ran under other conditions than the first one, or that share no way to train; [] if
    none."""
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
    return [UNLIKE.format(ways="; ".join(f"{', '.join(names)} with {way}" for way, names in alike.items()))]


def conditions(one: Run, other: Run) -> str:
    """The settings in which two runs differ, except the algorithm, "rounds = 3 where the other has 100"; "" if none
    differ."""
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

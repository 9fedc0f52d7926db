"""Cells of tables: how numbers are written, which way is better, and what stands for a missing one."""

import math
import re
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from fedweave.core.types import Record
from fedweave.experiment.config import differences, flat
from fedweave.metrics.selection import BEST, CROSSING, OF_POSITIVE, PLAIN, REFERENCE, WITHOUT_GRAPH
from fedweave.report.reading import Group, Run, spread
from fedweave.report.result_names import better, note


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


def direction(name: str, by: str) -> int:
    """1 where higher values of a metric are better, -1 where lower ones are; 0 where it does not say which of two runs
    is better that are judged `by` a metric: no accuracy does where another one judges."""
    if by != PLAIN and name.rpartition("/")[2] in ACCURACIES:
        return 0
    return {"high": 1, "low": -1, "": 0}[better(name)]


def marked(cells: list[Cell], values: Sequence[Mapping[object, float]], last: str, by: str = PLAIN) -> list[Cell]:
    """Mark what is better than every other by a paired test over seeds (`surely_above`). values: {seed: value} of each
    cell."""
    if not (sign := direction(last, by)):
        return cells
    oriented = [{seed: sign * value for seed, value in by_seed.items()} for by_seed in values]
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
        return note(last) or "without a positive test example, or a score: in no mean over clients of these metrics"
    if within.startswith(f"{WITHOUT_GRAPH}/"):
        return "of a regression on features alone, which knows no graph"
    if within.startswith(f"{CROSSING}/"):
        return "of test pairs with one end at another member, at each member that knows the pair"
    if within.startswith(f"{REFERENCE}/"):
        return "of a score that knows the training edges alone, on the same test pairs"
    return note(within)


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

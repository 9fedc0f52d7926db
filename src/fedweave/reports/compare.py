"""Groups of runs compared with the first one: paired over seeds, with intervals.

The tables show which run is fairer, between members and between groups of people, and at what price.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

from fedweave.core.text import counted
from fedweave.errors import listed
from fedweave.metrics.selection import OF_POSITIVE, POSITIVES, lower, of_members, title_of
from fedweave.reports.cells import (
    LEAST_SEEDS,
    NONE,
    Cell,
    ResultTable,
    direction,
    interval,
    paired_differences,
    sign,
    signed,
    signs,
)
from fedweave.reports.conditions import Condition, incomparable, overview, ranks, standing
from fedweave.reports.notes import WHOSE, RunFacts, hits
from fedweave.reports.reading import Group, common_selection_metric, spread
from fedweave.reports.result_names import readable
from fedweave.reports.tables import Gain, alike, gains, headline, sentences

VERDICTS = ("between members", "between groups of people")
_GAPS = ("groups/global/sp", "groups/global/eo")
_BYTES = ("bytes_up", "bytes_down", "bytes_peer")

BySeed = Mapping[object, float]  # by seed


def tradeoff(groups: Sequence[Group]) -> ResultTable:
    """For each group of runs but the first: whether it is fairer than the first one, and the price in the selection
    metric.

    There is no row where the runs have different selection metrics, or where no fairness was measured.
    """
    metric = common_selection_metric(groups)
    first, *others = groups
    rows = [row for other in others if metric and (row := _row(first, other, metric))]
    names = [
        name for name in dict.fromkeys(name for row in rows for name in row) if any(row[name].text for row in rows)
    ]
    words = ("run", *VERDICTS)
    names = [name for name in names if name in words] + [name for name in names if name not in words]
    cells = tuple(tuple(row[name] for name in names) for row in rows)
    return ResultTable(tuple(names), cells, words=sum(name in words for name in names))


def _row(first: Group, other: Group, metric: str) -> dict[str, Cell]:
    metric_title, worst = title_of(metric), f"fairness/worst_{of_members(metric)}"
    same = listed([group.label for group in (other, first) if alike(group)], " and ")
    void = f"none: the model predicts one class for almost everyone, so its gaps mean nothing ({same})" if same else ""
    lowest, gaps = (other.by_seed(worst), first.by_seed(worst)), (_gaps(other), _gaps(first))
    verdicts = [_verdict(*lowest, more=-1 if lower(metric) else 1), _verdict(*gaps, more=-1, void=void)]
    if not any(verdicts):
        return {}
    prices = {
        f"global/{metric}": f"{metric_title}, {RunFacts.of_summary(first.first.summary).test}",
        f"local/{metric}": f"{metric_title}, mean of members",
    }
    price = {words: _difference(other.by_seed(name), first.by_seed(name)) for name, words in prices.items()}
    return {
        "run": Cell(other.label),
        **{name: Cell(verdict) for name, verdict in zip(VERDICTS, verdicts, strict=True)},
        f"worst-off member's {title_of(of_members(metric))}": _difference(*lowest),
        "SP + EO": _difference(*gaps),
        **price,
        "bytes": Cell(_traffic(other, first)),
    }


def _verdict(one: BySeed, other: BySeed, more: int, void: str = "") -> str:
    """The result of a paired test in words; "" where nothing was measured.

    more: the sign of a better difference. void: a sentence instead of the verdict, where no verdict is possible.
    """
    differences = paired_differences(one, other)
    if not differences:
        return ""
    if void:
        return void
    if len(differences) < LEAST_SEEDS:
        return f"not known: {counted(len(differences), 'seed')}"
    return {0: "no significant difference", more: "fairer", -more: "less fair"}[sign(differences)]


def _difference(one: BySeed, other: BySeed) -> Cell:
    differences = paired_differences(one, other)
    if not differences:
        return Cell("")
    low, high = interval(differences)
    mean = statistics.fmean(differences)
    between = "" if low is None or high is None else f"{signed(low)} to {signed(high)}"
    return Cell(signed(mean), repr(mean), between)


def _gaps(group: Group) -> BySeed:
    """SP + EO."""
    sp, eo = (group.by_seed(name) for name in _GAPS)
    return {seed: sp[seed] + eo[seed] for seed in sp if seed in eo}


def _traffic(one: Group, other: Group) -> str:
    """The bytes of one group's mean run, as a multiple of the other's."""
    mine, theirs = (
        sum(sum(group.by_seed(name).values()) for name in _BYTES) / len(group.runs) for group in (one, other)
    )
    if not theirs:
        return ""
    if mine / theirs < 0.001:
        return "less than a thousandth"
    return "the same" if 0.99 < mine / theirs < 1.01 else f"{mine / theirs:.2f} times"


COMPARED = (
    *("global/accuracy", "local/accuracy", "trained/accuracy", "global/loss", "global/auc"),
    *("global/rmse", "local/rmse", "trained/rmse", "global/mae", "global/r2", "pooled/spearman", "intervals/width"),
    *("best_val/local/rmse", "fairness/worst_nrmse", "fairness/nrmse_deviation", "global/average_precision"),
    *("pooled/auc", "within/auc", "pooled/average_precision", "within/average_precision", "pooled/recall_at_1"),
    "within/recall_at_1",
    *("best_val/local/average_precision", "best_val/pooled/average_precision", "best_val/pooled/recall_at_1"),
    "fairness/worst_average_precision",
    *("fairness/worst_accuracy", "fairness/test_loss_variance", "fairness/accuracy_deviation"),
    *("groups/global/sp", "groups/global/eo"),
)
NOTE = (
    "Differences between runs with the same seed: their mean over the seeds that both have, and its two-sided 95 % "
    "interval by Student's t. ★ better, ▽ worse where the paired t-test says so over three seeds or more, at a level "
    "of 5 % for all groups of a metric together (Holm). One metric in twenty has such a mark by chance."
)


def caught(groups: Sequence[Group]) -> str:
    """A sentence on what alerts catch in each group of runs, the mean over seeds.

    Returns "" unless a metric of a positive class is the selection metric of all, or if the number is not known.
    """
    if common_selection_metric(groups) not in OF_POSITIVE:
        return ""
    sentences = []
    for kind, whose in WHOSE.items():
        means = [(group, spread(group.values(f"{kind}/recall_at_1"))[0]) for group in groups]
        texts = [_caught(group, mean) for group, mean in means if math.isfinite(mean)]
        sentences += [f"{whose}, {', '.join(texts)}"] if texts else []
    return f"Caught at 1 % of alerts: {'; '.join(sentences)}." if sentences else ""


def _caught(group: Group, mean: float) -> str:
    """ "fedavg 0.292 (7 of 24)"; a single run has its counts."""
    positives = group.first.summary["metrics"].get(f"{POSITIVES}/test") if len(group.runs) == 1 else None
    of = hits(mean, positives)
    return f"{group.label} {mean:.3f}" + (f" ({of})" if of else "")


def metrics_compared(groups: Sequence[Group]) -> list[str]:
    """The metrics by which groups of runs are compared: the selection metric, and then `COMPARED`."""
    metric = common_selection_metric(groups)
    decides = (f"global/{metric}", f"local/{metric}") if metric else ()
    return list(dict.fromkeys((*decides, *COMPARED)))


def compared(groups: Sequence[Group], names: Sequence[str] | None = None) -> ResultTable:
    """A row for every metric and every group but the first, which the others are compared with.

    names: the metrics; by default the selection metric and then `COMPARED`.
    """
    rows, first = [], groups[0]
    for name in metrics_compared(groups) if names is None else names:
        for group, differences, way in verdicts(groups, name):
            low, high = interval(differences)
            mean = statistics.fmean(differences)
            between = NONE if low is None or high is None else f"{signed(low)} to {signed(high)}"
            cell = Cell(f"{MARKS[way]}{signed(mean)}", repr(mean))
            rows.append((Cell(readable(name)), Cell(group.label), cell, Cell(between), Cell(str(len(differences)))))
    return ResultTable(
        ("metric", "run", f"difference to {first.label}", "95 % interval", "seeds"), tuple(rows), words=2
    )


MARKS = {1: "★ ", -1: "▽ ", 0: ""}


def verdicts(groups: Sequence[Group], name: str) -> list[tuple[Group, list[float], int]]:
    """The groups but the first that have the metric and share a seed with the first one, each with differences and
    verdict.

    Differences are paired over seeds; the verdicts come from `cells.signs`: 1 better, -1 worse, 0 neither. Gaps of a
    model that predicts one class for almost everyone get no verdict.
    """
    first, *others = groups
    base = first.by_seed(name)
    pairs = [(group, paired_differences(group.by_seed(name), base)) for group in others]
    pairs = [(group, differences) for group, differences in pairs if differences]
    void = [name.startswith("groups/") and (alike(first) or alike(group)) for group, _ in pairs]
    ways = signs([() if empty else differences for (_, differences), empty in zip(pairs, void, strict=True)])
    return [
        (group, differences, verdict(name, sign, common_selection_metric([first, group])))
        for (group, differences), sign in zip(pairs, ways, strict=True)
    ]


def verdict(name: str, sign: int, by: str) -> int:
    """Whether a difference of this sign is better, 1, or worse, -1, where `by` is the selection metric.

    Returns 0 for metrics that decide nothing, such as accuracies where another selection metric counts.
    """
    return sign * direction(name, by)


def headlines(groups: Sequence[Group], gained: Sequence[Gain], name: str = "") -> list[str]:
    """A sentence that compares several groups of runs and one on what joining changes; or the gain of one group.

    name: the summary's name of the metric that ranks the groups; "" takes the metric of the last models.
    """
    metric = common_selection_metric(groups)
    name, comparable = name or f"local/{metric}", bool(metric) and not incomparable(groups)
    lines = [standing(groups, name, metric), caught(groups)] if comparable else []
    alone = headline(gained)
    return [*filter(None, lines), *([alone] if alone else sentences(gained))]


def over_conditions(all_conditions: Sequence[Condition]) -> list[str | ResultTable]:
    """How groups of runs compare over several conditions, and then in each: sentences and tables in their order."""
    over = ranks(all_conditions)
    lines: list[str | ResultTable] = [over.sentence(), over.table()]
    for one in all_conditions:
        why = incomparable(one.groups) if len(one.groups) > 1 else ""
        lines += [f"{one.title}:", *([f"Not compared: {why}."] if why else [])]
        lines += [*headlines(one.groups, gains(one.groups), one.shown), overview(one)]
    return lines

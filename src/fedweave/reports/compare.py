"""Groups of runs compared with the first one: paired over seeds, with intervals.

The tables show which run is fairer, between members and between groups of people, and at what price.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

from fedweave.core.text import counted
from fedweave.errors import listed
from fedweave.experiment.runs.reading import Group, common_selection_metric, spread
from fedweave.metrics.selection import OF_POSITIVE, POSITIVES, lower, of_members, title_of
from fedweave.reports.cells import NONE, Cell, ResultTable, direction, interval_text, signed
from fedweave.reports.conditions import MARKS, Condition, incomparability, overview
from fedweave.reports.effects import comparison_sentence
from fedweave.reports.gains import Gain, gain_headline, gain_sentences, member_gains
from fedweave.reports.group_fairness import predicts_one_class
from fedweave.reports.notes import WHOSE, RunFacts, hits
from fedweave.reports.paired import MIN_SEEDS, interval, paired_differences, paired_test, paired_tests
from fedweave.reports.paired_examples import difference_cell
from fedweave.reports.ranks import ranks
from fedweave.reports.result_names import readable

_GAPS = ("groups/global/sp", "groups/global/eo")
_BYTES = ("bytes_up", "bytes_down", "bytes_peer")
_COMPARED = (
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


BySeed = Mapping[object, float]  # {seed: value}


def tradeoff(groups: Sequence[Group]) -> ResultTable:
    """For each group of runs but the first: whether it is fairer than the first one, and the price in the selection
    metric.

    There is no row where the runs have different selection metrics, or where no fairness was measured.
    """
    metric = common_selection_metric(groups)
    first = groups[0]
    rows = []
    for group in groups[1:] if metric else ():
        row = _tradeoff_row(first, group, metric)
        if row:
            rows.append(row)
    words = ("run", "between members", "between groups of people")
    columns = [name for name in rows[0] if any(row[name].text for row in rows)] if rows else []
    columns.sort(key=lambda name: name not in words)
    cells = [tuple(map(row.__getitem__, columns)) for row in rows]
    return ResultTable(tuple(columns), tuple(cells), words=len({*columns}.intersection(words)))


def _tradeoff_row(first: Group, other: Group, metric: str) -> dict[str, Cell]:
    """{column: cell}; {} where no fairness was measured."""
    lowest = f"fairness/worst_{of_members(metric)}"
    lowest_of_other, lowest_of_first = other.by_seed(lowest), first.by_seed(lowest)
    gaps_of_other, gaps_of_first = _gaps(other), _gaps(first)
    constant = [group.label for group in (other, first) if predicts_one_class(group)]
    void = ""
    if constant:
        names = listed(constant, " and ")
        void = f"none: the model predicts one class for almost everyone, so its gaps mean nothing ({names})"
    of_members_verdict = _verdict(lowest_of_other, lowest_of_first, better=-1 if lower(metric) else 1)
    of_people_verdict = _verdict(gaps_of_other, gaps_of_first, better=-1, void=void)
    if not of_members_verdict and not of_people_verdict:
        return {}
    title, test = title_of(metric), RunFacts.of_summary(first.first.summary).test
    row = {
        "run": Cell(other.label),
        "between members": Cell(of_members_verdict),
        "between groups of people": Cell(of_people_verdict),
        f"worst-off member's {title_of(of_members(metric))}": _difference(lowest_of_other, lowest_of_first),
        "SP + EO": _difference(gaps_of_other, gaps_of_first),
    }
    prices = {f"{title}, {test}": f"global/{metric}", f"{title}, mean of members": f"local/{metric}"}
    for column, name in prices.items():
        row[column] = _difference(other.by_seed(name), first.by_seed(name))
    return row | {"bytes": Cell(_bytes_ratio(other, first))}


def _verdict(one: BySeed, other: BySeed, better: int, void: str = "") -> str:
    """The result of a paired test in words; "" where nothing was measured.

    better: the sign of a better difference. void: a sentence instead of the verdict, where no verdict is possible.
    """
    differences = paired_differences(one, other)
    if not differences:
        return ""
    if void:
        return void
    if len(differences) < MIN_SEEDS:
        return f"not known: {counted(len(differences), 'seed')}"
    return {0: "no significant difference", better: "fairer", -better: "less fair"}[paired_test(differences)]


def _difference(one: BySeed, other: BySeed) -> Cell:
    differences = paired_differences(one, other)
    return difference_cell(differences) if differences else Cell("")


def _gaps(group: Group) -> BySeed:
    """SP + EO."""
    sp, eo = map(group.by_seed, _GAPS)
    return {seed: sp[seed] + eo[seed] for seed in sp if seed in eo}


def _bytes_ratio(one: Group, other: Group) -> str:
    """The bytes of one group's mean run, as a multiple of the other's."""
    bytes_of_one, bytes_of_other = _mean_bytes(one), _mean_bytes(other)
    if not bytes_of_other:
        return ""
    ratio = bytes_of_one / bytes_of_other
    if ratio < 0.001:
        return "less than a thousandth"
    return "the same" if 0.99 < ratio < 1.01 else f"{ratio:.2f} times"


def _mean_bytes(group: Group) -> float:
    return sum(sum(group.by_seed(name).values()) for name in _BYTES) / len(group.runs)


def alerts_sentence(groups: Sequence[Group]) -> str:
    """A sentence on what alerts catch in each group of runs, the mean over seeds.

    Returns "" unless a metric of a positive class is the selection metric of all, or if the number is not known.
    """
    if common_selection_metric(groups) not in OF_POSITIVE:
        return ""
    clauses = []
    for kind, whose in WHOSE.items():
        texts = []
        for group in groups:
            recall = spread(group.values(f"{kind}/recall_at_1"))[0]
            if math.isfinite(recall):
                positives = group.first.summary["metrics"].get(f"{POSITIVES}/test") if len(group.runs) == 1 else None
                counts = hits(recall, positives)  # only a single run has counts
                texts.append(f"{group.label} {recall:.3f}" + (f" ({counts})" if counts else ""))
        if texts:
            clauses.append(f"{whose}, {', '.join(texts)}")
    return f"Caught at 1 % of alerts: {'; '.join(clauses)}." if clauses else ""


def metrics_compared(groups: Sequence[Group]) -> list[str]:
    """The metrics by which groups of runs are compared: the selection metric, and then common ones."""
    metric = common_selection_metric(groups)
    selection = (f"global/{metric}", f"local/{metric}") if metric else ()
    return list(dict.fromkeys((*selection, *_COMPARED)))


def comparison_table(groups: Sequence[Group], names: Sequence[str] | None = None) -> ResultTable:
    """A row for every metric and every group but the first, which the others are compared with.

    names: the metrics; by default `metrics_compared`.
    """
    rows = []
    for name in metrics_compared(groups) if names is None else names:
        for group, differences, verdict in verdicts(groups, name):
            mean = statistics.fmean(differences)
            difference = Cell(f"{MARKS[verdict]}{signed(mean)}", repr(mean))
            low, high = interval(differences)
            between = Cell(interval_text(low, high, unknown=NONE))
            seeds = Cell(str(len(differences)))
            rows.append((Cell(readable(name)), Cell(group.label), difference, between, seeds))
    head = ("metric", "run", f"difference to {groups[0].label}", "95 % interval", "seeds")
    return ResultTable(head, tuple(rows), words=2)


def verdicts(groups: Sequence[Group], name: str) -> list[tuple[Group, list[float], int]]:
    """The groups but the first that have the metric and share a seed with the first one, each with differences and
    verdict.

    Differences are paired over seeds; the verdicts are of tests (`paired.paired_tests`): 1 better, -1 worse, 0 neither.
    Gaps of a model that predicts one class for almost everyone get no verdict.
    """
    first = groups[0]
    compared, tested = list[tuple[Group, list[float]]](), list[list[float]]()
    for group in groups[1:]:
        differences = paired_differences(group.by_seed(name), first.by_seed(name))
        if differences:
            void = name.startswith("groups/") and (predicts_one_class(first) or predicts_one_class(group))
            compared.append((group, differences))
            tested.append([] if void else differences)
    result = []
    for (group, differences), sign in zip(compared, paired_tests(tested), strict=True):
        verdict = sign * direction(name, common_selection_metric([first, group]))
        result.append((group, differences, verdict))
    return result


def headlines(groups: Sequence[Group], all_gains: Sequence[Gain], name: str = "") -> list[str]:
    """A sentence that compares several groups of runs and one on what joining changes; or the gain of one group.

    name: the summary's name of the metric that ranks the groups; "" takes the metric of the last models.
    """
    metric = common_selection_metric(groups)
    lines = []
    if metric and not incomparability(groups):
        lines += [comparison_sentence(groups, name or f"local/{metric}", metric), alerts_sentence(groups)]
    joining = gain_headline(all_gains)
    lines += [joining] if joining else gain_sentences(all_gains)
    return [line for line in lines if line]


def over_conditions(conditions: Sequence[Condition]) -> list[str | ResultTable]:
    """How groups of runs compare over several conditions, and then in each: sentences and tables in their order."""
    over_all = ranks(conditions)
    lines: list[str | ResultTable] = [over_all.sentence(), over_all.table()]
    for condition in conditions:
        groups = condition.groups
        lines.append(f"{condition.title}:")
        reason = incomparability(groups) if len(groups) > 1 else ""
        if reason:
            lines.append(f"Not compared: {reason}.")
        lines += headlines(groups, member_gains(groups), condition.metric_name)
        lines.append(overview(condition))
    return lines

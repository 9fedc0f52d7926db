"""Groups of runs compared with the first one: paired over seeds, with intervals; and example by example.

The tables show which run is fairer, between members and between groups of people, and at what price.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa

from fedweave.core.text import counted
from fedweave.errors import listed
from fedweave.experiment.runs.reading import Group, common_selection_metric, spread
from fedweave.metrics.selection import OF_POSITIVE, POSITIVES, lower, of_members, title_of
from fedweave.reports.cells import NONE, Cell, ResultTable, direction, interval_text, number_cell, row_of, with_sign
from fedweave.reports.conditions import MARKS, Condition, incomparability, overview
from fedweave.reports.effects import comparison_sentence
from fedweave.reports.gains import Gain, gain_headline, gain_sentences, member_gains
from fedweave.reports.group_fairness import predicts_one_class
from fedweave.reports.notes import WHOSE, RunFacts, hits
from fedweave.reports.paired import MIN_SEEDS, interval, paired_differences, paired_test, paired_tests
from fedweave.reports.ranks import ranks
from fedweave.reports.result_names import readable

_BYTES = ("bytes_up", "bytes_down", "bytes_peer")
_COMPARED = (
    *("global/accuracy", "local/accuracy", "trained/accuracy", "global/loss", "global/auc"),
    *("global/rmse", "local/rmse", "trained/rmse", "global/mae", "global/r2", "pooled/spearman", "intervals/width"),
    *("fairness/worst_nrmse", "fairness/nrmse_deviation", "global/average_precision"),
    *("pooled/auc", "within/auc", "pooled/average_precision", "within/average_precision", "pooled/recall_at_1"),
    *("within/recall_at_1", "local/average_precision", "fairness/worst_average_precision"),
    *("fairness/worst_accuracy", "fairness/test_loss_variance", "fairness/accuracy_deviation"),
    *("groups/global/sp", "groups/global/eo"),
)
NOTE = (
    "Differences between runs with the same seed: their mean over the seeds that both have, and its two-sided 95 % "
    "interval by Student's t. ★ better, ▽ worse where the paired t-test says so over three seeds or more, at a level "
    "of 5 % for all groups of a metric together (Holm). One metric in twenty has such a mark by chance."
)

_EXAMPLE_COLUMNS = ("id", "node", "graph", "edge")  # columns that name an example
_MIN_PROBABILITY = 1e-12  # whose logarithm is taken
_EXAMPLES_HEAD = (
    "run",
    "client",
    "test examples",
    "right, first run",
    "right, this run",
    "difference",
    "log loss, difference",
)
EXAMPLES_NOTE = (
    "On the same examples: this run minus the first one, of the test examples that both predict (`fedweave predict`), "
    "with the two-sided 95 % interval over examples; where there are several seeds, of each example's mean over them. "
    "It says how sure the difference is for these models on other examples, not for models of other seeds."
)

Example = tuple[str, object]  # (client, id)
Score = tuple[float, float]  # (1 where the prediction is right, else 0; log loss)
Pair = tuple[float, float, float]  # (right in the first run, right in the other, difference of log losses)


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
    columns = list[str]()
    for name in rows[0] if rows else ():
        if any(row[name].text for row in rows):
            columns.append(name)
    columns.sort(key=lambda name: name not in words)
    cells = [tuple(map(row.__getitem__, columns)) for row in rows]
    return ResultTable(tuple(columns), tuple(cells), words=len({*columns}.intersection(words)))


def _tradeoff_row(first: Group, other: Group, metric: str) -> dict[str, Cell]:
    """{column: cell}; {} where no fairness was measured."""
    # 1. Differences by the worst member, and by SP + EO between groups of people.
    of_worst, gaps = f"fairness/worst_{of_members(metric)}", []
    for group in (other, first):
        sp, eo = group.by_seed("groups/global/sp"), group.by_seed("groups/global/eo")
        gaps.append({seed: sp[seed] + eo[seed] for seed in sp if seed in eo})
    between_members = paired_differences(other.by_seed(of_worst), first.by_seed(of_worst))
    between_people = paired_differences(*gaps)
    if not between_members and not between_people:
        return {}
    people = _verdict(between_people, better=-1)
    constant = [group.label for group in (other, first) if predicts_one_class(group)]
    if people and constant:
        names = listed(constant, " and ")
        people = f"none: the model predicts one class for almost everyone, so its gaps mean nothing ({names})"
    row = {
        "run": Cell(other.label),
        "between members": Cell(_verdict(between_members, better=-1 if lower(metric) else 1)),
        "between groups of people": Cell(people),
        f"worst-off member's {title_of(of_members(metric))}": difference_cell(between_members),
        "SP + EO": difference_cell(between_people),
    }

    # 2. The price, in the metric and in bytes.
    title, test = title_of(metric), RunFacts.of_summary(first.first.summary).test
    prices = {f"{title}, {test}": f"global/{metric}", f"{title}, mean of members": f"local/{metric}"}
    for column, name in prices.items():
        row[column] = difference_cell(paired_differences(other.by_seed(name), first.by_seed(name)))
    sizes = []  # bytes of a group's mean run
    for group in (other, first):
        sizes.append(sum(sum(group.by_seed(name).values()) for name in _BYTES) / len(group.runs))
    ratio = sizes[0] / sizes[1] if sizes[1] else math.nan
    text = f"{ratio:.2f} times" if sizes[1] else ""
    if ratio < 0.001:
        text = "less than a thousandth"
    elif 0.99 < ratio < 1.01:
        text = "the same"
    return row | {"bytes": Cell(text)}


def _verdict(differences: Sequence[float], better: int) -> str:
    """The result of a paired test in words; "" where nothing was measured. better: the sign of a better difference."""
    if not differences:
        return ""
    if len(differences) < MIN_SEEDS:
        return f"not known: {counted(len(differences), 'seed')}"
    return {0: "no significant difference", better: "fairer", -better: "less fair"}[paired_test(differences)]


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
            difference, between = Cell("none", repr(mean)), ""
            if any(differences):
                difference = Cell(f"{MARKS[verdict]}{with_sign(mean)}", repr(mean))
                low, high = interval(differences)
                between = interval_text(low, high, unknown=NONE)
            rows.append(row_of(readable(name), group.label, difference, between, str(len(differences))))
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

    name: the summary's name of the metric that ranks the groups; "" takes the member mean.
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


def example_differences(groups: Sequence[Group]) -> ResultTable:
    """A row for each group of runs but the first and each client whose test examples both runs predict.

    There are no rows where runs have no predictions.
    """
    rows = []
    for group in groups[1:]:
        for client, pairs in _example_pairs(groups[0], group).items():
            right, right_in_other, losses = zip(*pairs, strict=True)
            differences = [one - other for one, other in zip(right_in_other, right, strict=True)]
            shares = (f"{statistics.fmean(right):.3f}", f"{statistics.fmean(right_in_other):.3f}")
            cells = (difference_cell(differences), difference_cell(losses))
            rows.append(row_of(group.label, client, f"{len(pairs):,}", *shares, *cells))
    return ResultTable(_EXAMPLES_HEAD, tuple(rows), words=2)


def _example_pairs(first: Group, other: Group) -> dict[str, list[Pair]]:
    """{client: a pair for each example}, means over the seeds that both groups have."""
    predictions = {run.config.get("seed"): run.predictions for run in first.runs}
    predictions_of_other = {run.config.get("seed"): run.predictions for run in other.runs}
    pairs = defaultdict[Example, list[Pair]](list)
    for seed in predictions.keys() & predictions_of_other.keys():
        scores, scores_of_other = _example_scores(predictions[seed]), _example_scores(predictions_of_other[seed])
        for example in scores.keys() & scores_of_other.keys():
            right, loss = scores[example]
            right_in_other, loss_in_other = scores_of_other[example]
            pairs[example].append((right, right_in_other, loss_in_other - loss))
    by_client = defaultdict[str, list[Pair]](list)
    for client, example_id in sorted(pairs, key=str):
        right, right_in_other, loss = map(statistics.fmean, zip(*pairs[client, example_id], strict=True))
        by_client[client].append((right, right_in_other, loss))
    return by_client


def _example_scores(table: pa.Table | None) -> dict[Example, Score]:
    """The scores of the test examples whose class is known."""
    if table is None or not {"split", "true"} <= {*table.column_names}:
        return {}
    if not any(name.startswith("p_") for name in table.column_names):  # of numbers
        return {}
    place = next((name for name in _EXAMPLE_COLUMNS if name in table.column_names), "node")
    scores = {}
    for row in table.to_pylist():
        if row["split"] == "test" and row["true"] is not None:
            probability = max(row[f"p_{row['true']}"], _MIN_PROBABILITY)
            scores[row["client"], row[place]] = (float(row["predicted"] == row["true"]), -math.log(probability))
    return scores


def difference_cell(differences: Sequence[float]) -> Cell:
    """The mean of differences, with its 95 % interval as small print; empty without differences."""
    if not differences:
        return Cell("")
    return number_cell(statistics.fmean(differences), interval_text(*interval(differences)), with_sign)

"""Groups of runs against the first one: paired over seeds, with intervals."""

import math
import statistics
from collections.abc import Sequence

from fedweave.metrics.judging import OF_POSITIVE, POSITIVES
from fedweave.report.cells import HIGHER, NONE, Cell, Table, differences, interval, judging, signed
from fedweave.report.groups import alike
from fedweave.report.notes import WHOSE, hits
from fedweave.report.reading import Group, judged_alike, spread
from fedweave.report.tables import readable

COMPARED = (
    *("global/accuracy", "local/accuracy", "trained/accuracy", "global/loss", "global/auc"),
    *("pooled/auc", "within/auc", "pooled/average_precision", "within/average_precision", "pooled/recall_at_1"),
    "within/recall_at_1",
    *("best_val/local/average_precision", "best_val/pooled/average_precision", "best_val/pooled/recall_at_1"),
    "fairness/worst_average_precision",
    *("fairness/worst_accuracy", "fairness/test_loss_variance", "fairness/accuracy_deviation"),
    *("groups/global/sp", "groups/global/eo"),
)
NOTE = (
    "Differences between runs with the same seed: their mean over the seeds that both have, and its two-sided 95 % "
    "interval by Student's t. ★ better, ▽ worse where the interval leaves out 0, as one in twenty does by chance. One "
    "seed says nothing about another."
)


def caught(groups: Sequence[Group]) -> str:
    """What alerts catch in each group of runs, its mean over seeds, in a sentence; "" where no metric of a positive
    class judges all of them, or nothing of it is known."""
    if judged_alike(groups) not in OF_POSITIVE:
        return ""
    said = []
    for kind, whose in WHOSE.items():
        found = [(group, spread(group.values(f"{kind}/recall_at_1"))[0]) for group in groups]
        told = [_caught(group, mean) for group, mean in found if math.isfinite(mean)]
        said += [f"{whose}, {', '.join(told)}"] if told else []
    return f"Caught at 1 % of alerts: {'; '.join(said)}." if said else ""


def _caught(group: Group, mean: float) -> str:
    """ "fedavg 0.292 (7 of 24)", the counts of one run alone."""
    positives = group.first.summary["metrics"].get(f"{POSITIVES}/test") if len(group.runs) == 1 else None
    of = hits(mean, positives)
    return f"{group.label} {mean:.3f}" + (f" ({of})" if of else "")


def compared(groups: Sequence[Group], names: Sequence[str] = COMPARED) -> Table:
    """A row for every metric and every group but the first, which the others are compared with."""
    rows = []
    first, *others = groups
    for name in names:
        base = first.by_seed(name)
        for group in others:
            if found := differences(group.by_seed(name), base):
                low, high = interval(found)
                mean = statistics.fmean(found)
                between = NONE if low is None or high is None else f"{signed(low)} to {signed(high)}"
                void = name.startswith("groups/") and (alike(first) or alike(group))
                sign = "" if void else mark(name, low, high, judged_alike([first, group]))
                told = Cell(f"{sign}{signed(mean)}", repr(mean))
                rows.append((Cell(readable(name)), Cell(group.label), told, Cell(between), Cell(str(len(found)))))
    return Table(("metric", "run", f"difference to {first.label}", "95 % interval", "seeds"), tuple(rows), words=2)


def mark(name: str, low: float | None, high: float | None, by: str) -> str:
    """ "★ " or "▽ " where the interval says that a difference is better, or worse; else "", as of accuracies where
    these judge nothing."""
    last = name.rpartition("/")[2]
    if low is None or high is None or last not in judging(by) or low <= 0 <= high:
        return ""
    return "★ " if (low > 0) == (last in HIGHER) else "▽ "

"""The rounds of a run that were best on validation examples, and their values on test examples."""

import math
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from fedweave.core.types import NUMBER
from fedweave.metrics import groups
from fedweave.metrics.measured import GLOBAL, MISSING, SELECTION
from fedweave.metrics.selection import BEST, METRICS, OF_POSITIVE, rank, selection_metric_of

FAIREST = "best_fair"
_SELECTION = groups.SELECTION + groups.OTHERWISE
_OF_FAIREST = ("global/accuracy", "global/auc", "global/classes_predicted", "local/accuracy", "local/auc")


def validated(metrics: pa.Table, by: str) -> float | None:
    """The mean over clients of the metric `by` on validation examples, by an evaluation's rows; None without any."""
    mask = pc.and_(pc.equal(metrics["metric"], by), pc.not_equal(metrics["client"], GLOBAL))
    mask = pc.or_(mask, pc.equal(metrics["metric"], f"local/{by}"))  # where single clients' values are unknown
    mean: float | None = pc.mean(metrics.filter(pc.and_(mask, pc.equal(metrics["split"], "val")))["value"]).as_py()
    return mean


def selection(metrics: pa.Table) -> dict[str, float]:
    """`groups.selection` by an evaluation's rows."""
    rows = metrics.filter(pc.starts_with(metrics["metric"], SELECTION)).select(["metric", "value"]).to_pylist()
    return {row["metric"].removeprefix(SELECTION): row["value"] for row in rows}


def best_validated(
    round: int, score: float | None, summary: Mapping[str, float], before: Mapping[str, float]
) -> dict[str, float]:
    """The test accuracies "best_val/global/accuracy", "best_val/local/…" and "best_val/trained/…" of the round
    "best_val/round" with the best mean over clients of the validation accuracy, "best_val/val/accuracy"; of equal ones
    the first. Empty without validation examples.

    Another selection metric (`selection.selection_metric_of`) replaces the accuracy, and its test values are added,
    with other metrics of the positive class. Rounds that lack clients' scores ("best_val/missing") are compared only
    with rounds that lack the same number, and count only while no round lacks fewer. Otherwise the mean would rise
    because the worst client is missing.

    score: that mean (`validated`). summary: of this round's evaluation. before: the summary of the evaluation before.
    """
    by = selection_metric_of(summary)
    validation = f"{BEST}/val/{by}"
    missing = summary.get(MISSING, 0.0)
    if score is None:
        return _carry_over(BEST, before)
    reached = -missing, rank(by, score)
    best = -_missing(before, BEST), rank(by, before.get(validation, math.nan))
    if validation in before and reached <= best:
        return _carry_over(BEST, before)
    metrics = ["accuracy", by]
    if by in OF_POSITIVE:
        metrics += OF_POSITIVE
    if NUMBER in METRICS[by].of:
        metrics += [name for name, metric in METRICS.items() if NUMBER in metric.of and metric.judges]
    test = {}
    for kind in ("global", "local", "trained"):
        for name in dict.fromkeys(f"{kind}/{metric}" for metric in metrics):
            if name in summary:
                test[name] = summary[name]
    return _chosen(BEST, round, missing) | {validation: score} | {f"{BEST}/{name}": v for name, v in test.items()}


def fairest(
    round: int,
    selected: Mapping[str, float],
    summary: Mapping[str, float],
    before: Mapping[str, float],
    margin: float = 0.0,
) -> dict[str, float]:
    """The fairest round so far, as "best_fair/…": its number, and its test accuracies, AUC and gaps between groups.

    It has the lowest SP + EO ("val/gaps") on all clients' validation examples together, among the rounds that pass two
    bounds. Their accuracy there ("val/accuracy"), or another selection metric ("val/score"), is more than `margin`
    above the better constant prediction ("val/constant", "val/chance"), and they do not give nearly all people one
    prediction ("val/alike"). While no round passes, it is the most accurate round (`groups.fairer`). Rounds
    that lack scores ("best_fair/missing") are compared as in `best_validated`. Empty without groups.

    selected: `groups.selection` of this round, without NaN. summary, before: as in `best_validated`.
    """
    if "accuracy" not in selected:
        return _carry_over(FAIREST, before)
    scores = {"gaps": math.nan, **selected}
    last = {name: before.get(f"{FAIREST}/val/{name}", math.nan) for name in _SELECTION}
    missing = summary.get(MISSING, 0.0)
    first = f"{FAIREST}/round" not in before
    more_missing = missing - _missing(before, FAIREST)  # than at the fairest round so far
    if not (first or more_missing < 0 or (more_missing == 0 and groups.fairer(scores, last, margin))):
        return _carry_over(FAIREST, before)
    more = tuple(f"{kind}/{selection_metric_of(summary)}" for kind in ("global", "local"))
    test = {name: v for name, v in summary.items() if name in _OF_FAIREST + more or name.startswith("groups/")}
    scores["margin"] = margin
    val = {f"{FAIREST}/val/{name}": value for name, value in scores.items() if not math.isnan(value)}
    return _chosen(FAIREST, round, missing) | val | {f"{FAIREST}/{name}": value for name, value in test.items()}


def _carry_over(kind: str, before: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in before.items() if name.startswith(f"{kind}/")}


def _missing(before: Mapping[str, float], kind: str) -> float:
    return before.get(f"{kind}/missing", 0.0)


def _chosen(kind: str, round: int, missing: float) -> dict[str, float]:
    return {f"{kind}/round": round} | ({f"{kind}/missing": missing} if missing else {})

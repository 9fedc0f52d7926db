"""The rounds of a run that were best on validation examples, and their values on test examples."""

import math
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from fedweave.metrics import groups
from fedweave.metrics.measured import GLOBAL, MISSING, SELECTION
from fedweave.metrics.selection import BEST, OF_A_ROUND, rank, selection_metric_of

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
    rows = metrics.filter(pc.starts_with(metrics["metric"], SELECTION)).to_pylist()
    return {row["metric"].removeprefix(SELECTION): row["value"] for row in rows}


def best_validated(
    round: int, score: float | None, summary: Mapping[str, float], before: Mapping[str, float]
) -> dict[str, float]:
    """All metrics of the round "best_val/round" (`OF_A_ROUND`), such as "best_val/global/accuracy" on test examples.
    That is the round with the best mean over clients of the selection metric on validation examples,
    "best_val/val/accuracy"; of equal ones the first. Empty without validation examples.

    Rounds that lack clients' scores ("best_val/missing") are compared only with rounds that lack the same number, and
    count only while no round lacks fewer. Otherwise the mean would rise because the worst client is missing.

    score: that mean (`validated`). summary: of this round's evaluation. before: the summary of the evaluation before.
    """
    by = selection_metric_of(summary)
    validation = f"{BEST}/val/{by}"
    missing, previous = summary.get(MISSING, 0.0), _entries(BEST, before)
    if score is None:
        return previous
    if validation in before:
        best = -before.get(f"{BEST}/missing", 0.0), rank(by, before[validation])
        if (-missing, rank(by, score)) <= best:
            return previous
    best_round = _round_entries(BEST, round, missing) | {validation: score}
    for name, value in summary.items():
        if name.startswith(OF_A_ROUND):
            best_round[f"{BEST}/{name}"] = value
    return best_round


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
    previous = _entries(FAIREST, before)
    if "accuracy" not in selected:
        return previous
    scores = {"gaps": math.nan, **selected}
    last = {name: before.get(f"{FAIREST}/val/{name}", math.nan) for name in _SELECTION}
    missing = summary.get(MISSING, 0.0)
    more_missing = missing - before.get(f"{FAIREST}/missing", 0.0)  # than at the fairest round so far
    better = more_missing < 0 or (more_missing == 0 and groups.fairer(scores, last, margin))
    if f"{FAIREST}/round" in before and not better:
        return previous
    fairest_round = _round_entries(FAIREST, round, missing)
    for name, value in (scores | {"margin": margin}).items():
        if not math.isnan(value):
            fairest_round[f"{FAIREST}/val/{name}"] = value
    metric = selection_metric_of(summary)
    for name, value in summary.items():
        if name in (*_OF_FAIREST, f"global/{metric}", f"local/{metric}") or name.startswith("groups/"):
            fairest_round[f"{FAIREST}/{name}"] = value
    return fairest_round


def _entries(kind: str, summary: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in summary.items() if name.startswith(f"{kind}/")}


def _round_entries(kind: str, round: int, missing: float) -> dict[str, float]:
    return {f"{kind}/round": round} | ({f"{kind}/missing": missing} if missing else {})

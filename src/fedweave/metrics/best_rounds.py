"""Which of a run's rounds were best on validation examples, and what they reach on test examples."""

import math
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from fedweave.metrics import between_groups
from fedweave.metrics.judging import BEST, OF_POSITIVE, judged_by
from fedweave.metrics.measured import GLOBAL, MISSING, SELECTION

FAIREST = "best_fair"
_SELECTION = between_groups.SELECTION + between_groups.OTHERWISE
_OF_FAIREST = ("global/accuracy", "global/auc", "global/classes_predicted", "local/accuracy", "local/auc")


def validated(metrics: pa.Table, by: str) -> float | None:
    """The mean over clients of the metric `by` on validation examples, by an evaluation's rows; None without any."""
    own = pc.and_(pc.equal(metrics["metric"], by), pc.not_equal(metrics["client"], GLOBAL))
    own = pc.or_(own, pc.equal(metrics["metric"], f"local/{by}"))  # where single clients' are not known
    found: float | None = pc.mean(metrics.filter(pc.and_(own, pc.equal(metrics["split"], "val")))["value"]).as_py()
    return found


def selection(metrics: pa.Table) -> dict[str, float]:
    """`between_groups.selection` by an evaluation's rows."""
    chosen = metrics.filter(pc.starts_with(metrics["metric"], SELECTION)).select(["metric", "value"]).to_pylist()
    return {row["metric"].removeprefix(SELECTION): row["value"] for row in chosen}


def best_validated(
    round: int, found: float | None, summary: Mapping[str, float], before: Mapping[str, float]
) -> dict[str, float]:
    """The test accuracies "best_val/global/accuracy", "best_val/local/…" and "best_val/trained/…" of the round
    "best_val/round" with the best mean over clients of the validation accuracy, "best_val/val/accuracy"; of equal ones
    the first. Where another metric judges (`judging.judged_by`), that takes the place of the accuracy, and is there on
    test examples, too, with others of the positive class. Rounds that lack clients' scores are compared with others
    that lack as many, "best_val/missing" if any, and count only where no round lacks fewer: a mean rises by itself
    where the worst client is missing. Empty without validation examples.

    found: that mean (`validated`). summary: of this round's evaluation. before: what the summary of the evaluation
    before said.
    """
    by = judged_by(summary)
    validation = f"{BEST}/val/{by}"
    missing = summary.get(MISSING, 0.0)
    if found is None or (validation in before and (-missing, found) <= (-_missing(before, BEST), before[validation])):
        return _kept(BEST, before)
    shown = dict.fromkeys(("accuracy", by, *(OF_POSITIVE if by in OF_POSITIVE else ())))
    names = (f"{kind}/{name}" for kind in ("global", "local", "trained") for name in shown)
    test = {name: summary[name] for name in names if name in summary}
    return _chosen(BEST, round, missing) | {validation: found} | {f"{BEST}/{name}": v for name, v in test.items()}


def fairest(
    round: int,
    selected: Mapping[str, float],
    summary: Mapping[str, float],
    before: Mapping[str, float],
    margin: float = 0.0,
) -> dict[str, float]:
    """The fairest round so far, as "best_fair/…": its number, and its test accuracies, AUC and gaps between groups.

    It has the lowest SP + EO on all clients' validation examples together ("val/gaps") among the rounds whose accuracy
    there ("val/accuracy"), or what else judges ("val/score"), is more than `margin` above that of the better constant
    prediction ("val/constant", "val/chance"), and that do not predict one class for nearly everybody ("val/alike").
    While none is, it is the most accurate round (`between_groups.fairer`). Rounds that lack scores
    ("best_fair/missing") are compared as in `best_validated`. Empty without groups.

    selected: `between_groups.selection` of this round, what is not a number left out. summary, before: as in
    `best_validated`.
    """
    if "accuracy" not in selected:
        return _kept(FAIREST, before)
    found = {"gaps": math.nan, **selected}
    last = {name: before.get(f"{FAIREST}/val/{name}", math.nan) for name in _SELECTION}
    missing, first = summary.get(MISSING, 0.0), f"{FAIREST}/round" not in before
    lacking = missing - _missing(before, FAIREST)  # clients than at the fairest round so far
    better = first or lacking < 0 or (lacking == 0 and between_groups.fairer(found, last, margin))
    if not better:
        return _kept(FAIREST, before)
    more = tuple(f"{kind}/{judged_by(summary)}" for kind in ("global", "local"))
    test = {name: v for name, v in summary.items() if name in _OF_FAIREST + more or name.startswith("groups/")}
    found["margin"] = margin
    val = {f"{FAIREST}/val/{name}": value for name, value in found.items() if not math.isnan(value)}
    return _chosen(FAIREST, round, missing) | val | {f"{FAIREST}/{name}": value for name, value in test.items()}


def _kept(kind: str, before: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in before.items() if name.startswith(f"{kind}/")}


def _missing(before: Mapping[str, float], kind: str) -> float:
    return before.get(f"{kind}/missing", 0.0)


def _chosen(kind: str, round: int, missing: float) -> dict[str, float]:
    return {f"{kind}/round": round} | ({f"{kind}/missing": missing} if missing else {})

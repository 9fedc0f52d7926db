"""Which of a run's rounds were best on validation examples, and what they reach on test examples."""

import math
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from fedweave.metrics import between_groups
from fedweave.metrics.measured import GLOBAL, SELECTION

BEST = "best_val"
VALIDATION = f"{BEST}/val/accuracy"
FAIREST = "best_fair"
_OF_FAIREST = ("global/accuracy", "global/auc", "global/classes_predicted", "local/accuracy", "local/auc")


def best_validated(
    round: int, metrics: pa.Table, summary: Mapping[str, float], before: Mapping[str, float]
) -> dict[str, float]:
    """The test accuracies "best_val/global/accuracy", "best_val/local/…" and "best_val/trained/…" of the round
    "best_val/round" with the best mean over clients of the validation accuracy, "best_val/val/accuracy"; of equal ones
    the first. Empty without validation examples.

    metrics, summary: of this round's evaluation. before: what the summary of the evaluation before said.
    """
    own = pc.and_(pc.equal(metrics["metric"], "accuracy"), pc.not_equal(metrics["client"], GLOBAL))
    found = pc.mean(metrics.filter(pc.and_(own, pc.equal(metrics["split"], "val")))["value"]).as_py()
    if found is None or found <= before.get(VALIDATION, -math.inf):
        return {name: value for name, value in before.items() if name.startswith(f"{BEST}/")}
    test = {
        name: summary[name] for name in ("global/accuracy", "local/accuracy", "trained/accuracy") if name in summary
    }
    return {f"{BEST}/round": round, VALIDATION: found} | {f"{BEST}/{name}": v for name, v in test.items()}


def fairest(
    round: int, metrics: pa.Table, summary: Mapping[str, float], before: Mapping[str, float], margin: float = 0.0
) -> dict[str, float]:
    """The fairest round so far, as "best_fair/…": its number, and its test accuracies, AUC and gaps between groups.

    It has the lowest SP + EO on all clients' validation examples together ("val/gaps") among the rounds whose accuracy
    there ("val/accuracy") is more than `margin` above that of the better constant prediction ("val/constant"). While
    none is, it is the most accurate round (`between_groups.fairer`). Empty without groups.

    metrics, summary, before: as in `best_validated`.
    """
    chosen = metrics.filter(pc.starts_with(metrics["metric"], SELECTION)).select(["metric", "value"]).to_pylist()
    found = {"gaps": math.nan} | {row["metric"].removeprefix(SELECTION): row["value"] for row in chosen}
    last = {name: before.get(f"{FAIREST}/val/{name}", math.nan) for name in between_groups.SELECTION}
    first = f"{FAIREST}/round" not in before
    if "accuracy" not in found or not (first or between_groups.fairer(found, last, margin)):
        return {name: value for name, value in before.items() if name.startswith(f"{FAIREST}/")}
    test = {name: value for name, value in summary.items() if name in _OF_FAIREST or name.startswith("groups/")}
    found["margin"] = margin
    val = {f"{FAIREST}/val/{name}": value for name, value in found.items() if not math.isnan(value)}
    return {f"{FAIREST}/round": round} | val | {f"{FAIREST}/{name}": value for name, value in test.items()}

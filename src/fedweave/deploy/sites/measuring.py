"""Which numbers of an evaluation a run will lack, because no site's policy lets them leave."""

from collections.abc import Iterator, Sequence

from fedweave.deploy.flare.site.sitefile import FINE, Measure
from fedweave.deploy.sites.site_check import Found
from fedweave.experiment.config import Config
from fedweave.metrics.judging import OF_POSITIVE, RARE_OF_TWO, WORDS

# What is measured by each of `FINE`.
NUMBERS: dict[Measure, str] = {
    "classes": "whether a class is rare, macro F1, recall, precision and gaps between groups",
    "loss": "loss",
    "auc": "AUC",
    "group_auc": "AUC of each group",
    "average_precision": "average precision",
    "recall_at_1": "recall at 1 % of alerts",
    "precision_at_1": "precision at 1 % of alerts",
    "histogram": "AUC, average precision and calibration of all sites' examples together",
}
_OF_TWO: tuple[Measure, ...] = ("average_precision", "recall_at_1", "precision_at_1")


def compare_measures(told: Found, config: Config, sites: Sequence[str]) -> None:
    """Note which numbers, best rounds and thresholds a run of these `sites` will lack, or have of some sites only."""
    forms = {name: form for name, form in told.forms.items() if "measures" in form}
    if not forms:
        return
    sums, two = (
        any(form.get(key) == value for form in forms.values()) for key, value in (("in sums", True), ("classes", 2))
    )
    groups = any(form["groups"] for form in forms.values())
    due = [
        own
        for own in FINE
        if (two or own not in _OF_TWO) and (groups or own != "group_auc") and (sums or own != "histogram")
    ]
    lacking: dict[tuple[str, ...], list[Measure]] = {}
    for measure in due:
        without = tuple(name for name, form in forms.items() if measure not in form["measures"])
        lacking.setdefault(without, []).append(measure)
    for without, measures in lacking.items():
        if not without:
            continue
        everywhere = len(without) == len(sites)
        what = "; ".join(NUMBERS[own] for own in measures)
        ends = "will be missing" if everywhere else "will be of other sites only, if these measure them"
        said = [f"policy.measures lets no {', '.join(measures)} leave, so that these numbers {ends}: {what}"]
        said += _undecided(config, two, sums, measures) if everywhere else []
        told.notes.append((", ".join(without), ". ".join(said)))


def _undecided(config: Config, two: bool, sums: bool, measures: Sequence[Measure]) -> Iterator[str]:
    """Sentences on what is not decided without the `measures`."""
    metric, threshold = config.evaluation.metric, config.evaluation.threshold
    by = (RARE_OF_TWO if two else "macro_f1") if metric == "auto" else metric
    needs = by if by in FINE else "classes" if by in ("macro_f1", *OF_POSITIVE) else ""
    if needs in measures:
        where = ", by which a run with a rare class is judged" if metric == "auto" else ", by which the run is judged"
        yield f"No round will be the best by {WORDS[by]}{where}"
    if two and sums and "histogram" in measures and not isinstance(threshold, float | int):
        yield "No threshold will be chosen on all sites' validation examples: each site chooses its own"
